// Products of a pair of CTAs through a ring: D[256, 128] (+)= A[256, 64] * B[64, 128] for each slice of K; and one with
// A in tensor memory.
constexpr int kSlice = 64;
constexpr int kStages = 2;
constexpr int kN = 128;
constexpr int kRowsM = 128;
constexpr int kRowsN = kN / 2;
constexpr uint16_t kBoth = 0b11;

__global__ void __cluster_dims__(2, 1, 1) __launch_bounds__(192)
pair_product(const __grid_constant__ CUtensorMap map_a, const __grid_constant__ CUtensorMap map_b, float* out,
             int slices) {
  extern __shared__ __align__(1024) uint8_t raw[];
  auto& a = *reinterpret_cast<__nv_bfloat16(*)[kStages][kRowsM * kSlice]>(raw);
  auto& b = *reinterpret_cast<__nv_bfloat16(*)[kStages][kRowsN * kSlice]>(raw + sizeof(a));
  __shared__ uint64_t full[kStages], empty[kStages], done, drained;
  __shared__ uint32_t slot;
  const uint32_t rank = cluster_rank();
  const int warp = threadIdx.x / 32;
  if (threadIdx.x == 0) {
    for (int stage = 0; stage < kStages; ++stage) {
      mbarrier_init(&full[stage], 1);
      mbarrier_init(&empty[stage], 1);
    }
    mbarrier_init(&done, 1);
    mbarrier_init(&drained, 8);
    mbarrier_init_fence();
  }
  if (warp == 5) tmem_alloc<2>(&slot, kN);
  tcgen05_fence_before();
  cluster_sync();
  tcgen05_fence_after();
  const uint32_t tmem = slot;
  Ring<kStages> ring;
  if (warp == 4) {
    for (int slice = 0; slice < slices; ++slice, ring.advance()) {
      if (elect_one()) {
        mbarrier_wait_cluster(&empty[ring.slot], ring.parity ^ 1);
        if (rank == 0) mbarrier_arrive_expect_tx(&full[ring.slot], 2 * (sizeof(a[0]) + sizeof(b[0])));
        tma_load_2d_pair(a[ring.slot], &map_a, &full[ring.slot], slice * kSlice, rank * kRowsM);
        tma_load_2d_pair(b[ring.slot], &map_b, &full[ring.slot], slice * kSlice, rank * kRowsN);
      }
      __syncwarp();
    }
  } else if (warp == 5 && rank == 0) {
    if (elect_one()) {
      for (int slice = 0; slice < slices; ++slice, ring.advance()) {
        mbarrier_wait_cluster(&full[ring.slot], ring.parity);
        for (int k = 0; k < kSlice; k += 16) {
          mma_ss<2>(tmem, descriptor_k_major<128>(a[ring.slot]) + k / 8, descriptor_k_major<128>(b[ring.slot]) + k / 8,
                    instruction_bf16(2 * kRowsM, kN), slice > 0 || k > 0);
        }
        tcgen05_commit_multicast(&empty[ring.slot], kBoth);
      }
      tcgen05_commit_multicast(&done, kBoth);
      mbarrier_wait_cluster(&drained, 0);
      tcgen05_fence_after();
    }
    __syncwarp();
  } else if (warp < 4) {
    mbarrier_wait_cluster(&done, 0);
    tcgen05_fence_after();
    float* row = out + (rank * kRowsM + threadIdx.x) * kN;
    for (int column = 0; column < kN; column += 64) {
      float r[64];
      tmem_load(tmem + tmem_own_lanes() + column, r);
      tmem_wait_load(r);
      for (int i = 0; i < 64; ++i) row[column + i] = r[i];
    }
    pair_warp_arrive(&drained);
  }
  tcgen05_fence_before();
  __syncwarp();
  cluster_sync();
  tcgen05_fence_after();
  if (warp == 5) tmem_dealloc<2>(tmem, kN);
}

// A[256, 16] lies in tensor memory, each CTA's half in its own; B is MN-major, each CTA has half of N.
__global__ void __cluster_dims__(2, 1, 1) __launch_bounds__(128)
pair_from_tensor_memory(const __grid_constant__ CUtensorMap map_b, const uint32_t* a, float* out) {
  __shared__ alignas(1024) __nv_bfloat16 b[16 * kRowsN];
  __shared__ uint64_t full, done;
  __shared__ uint32_t slot;
  const uint32_t rank = cluster_rank();
  if (threadIdx.x == 0) {
    mbarrier_init(&full, 1);
    mbarrier_init(&done, 1);
    mbarrier_init_fence();
  }
  if (threadIdx.x < 32) tmem_alloc<2>(&slot, 256);
  tcgen05_fence_before();
  cluster_sync();
  tcgen05_fence_after();
  const uint32_t tmem = slot, operand = tmem + kN;
  uint32_t r[8];
  for (int i = 0; i < 8; ++i) r[i] = a[(rank * 128 + threadIdx.x) * 8 + i];
  tmem_store(operand + tmem_own_lanes(), r);
  tmem_wait_store();
  tcgen05_fence_before();
  cluster_sync();
  if (threadIdx.x == 0) {
    if (rank == 0) mbarrier_arrive_expect_tx(&full, 2 * sizeof(b));
    tma_load_2d_pair(b, &map_b, &full, rank * kRowsN, 0);
    if (rank == 0) {
      mbarrier_wait_cluster(&full, 0);
      tcgen05_fence_after();
      mma_ts<2>(tmem, operand, descriptor_mn_major<128>(b, sizeof(b)), instruction_bf16(256, kN, false, true), false);
      tcgen05_commit_multicast(&done, kBoth);
    }
  }
  __syncwarp();
  mbarrier_wait_cluster(&done, 0);
  tcgen05_fence_after();
  float* row = out + (rank * 128 + threadIdx.x) * kN;
  for (int column = 0; column < kN; column += 32) {
    float sums[32];
    tmem_load(tmem + tmem_own_lanes() + column, sums);
    tmem_wait_load(sums);
    for (int i = 0; i < 32; ++i) row[column + i] = sums[i];
  }
  tcgen05_fence_before();
  cluster_sync();
  if (threadIdx.x < 32) tmem_dealloc<2>(tmem, 256);
}

// A[128, 64] * Bt by each of two CTAs with products of its own; each waits for both, by commits to both.
__global__ void __cluster_dims__(2, 1, 1) __launch_bounds__(128)
neighbours(const __grid_constant__ CUtensorMap map_a, const __grid_constant__ CUtensorMap map_b, float* out) {
  __shared__ alignas(1024) __nv_bfloat16 a[kRowsM * kSlice];
  __shared__ alignas(1024) __nv_bfloat16 b[kRowsN * kSlice];
  __shared__ uint64_t full, done;
  __shared__ uint32_t slot;
  const uint32_t rank = cluster_rank();
  if (threadIdx.x == 0) {
    mbarrier_init(&full, 1);
    mbarrier_init(&done, 2);
    mbarrier_init_fence();
  }
  if (threadIdx.x < 32) tmem_alloc(&slot, 64);
  tcgen05_fence_before();
  cluster_sync();
  tcgen05_fence_after();
  if (threadIdx.x == 0) {
    mbarrier_arrive_expect_tx(&full, sizeof(a) + sizeof(b));
    tma_load_2d(a, &map_a, &full, 0, rank * kRowsM);
    tma_load_2d(b, &map_b, &full, 0, 0);
    mbarrier_wait(&full, 0);
    for (int k = 0; k < kSlice; k += 16) {
      mma_ss(slot, descriptor_k_major<128>(a) + k / 8, descriptor_k_major<128>(b) + k / 8,
             instruction_bf16(kRowsM, kRowsN), k > 0);
    }
    tcgen05_commit_multicast<1>(&done, kBoth);
  }
  __syncwarp();
  mbarrier_wait_cluster(&done, 0);
  tcgen05_fence_after();
  float r[64];
  tmem_load(slot + tmem_own_lanes(), r);
  tmem_wait_load(r);
  for (int i = 0; i < 64; ++i) out[(rank * kRowsM + threadIdx.x) * kRowsN + i] = r[i];
  tcgen05_fence_before();
  cluster_sync();
  if (threadIdx.x < 32) tmem_dealloc(slot, 64);
}

extern "C" void run(const __nv_bfloat16* a, const __nv_bfloat16* b, float* out, int slices, cudaStream_t stream) {
  if (slices > 0) {
    const int k = slices * kSlice;
    constexpr int kBytes = kStages * (kRowsM + kRowsN) * kSlice * 2;
    cudaFuncSetAttribute(pair_product, cudaFuncAttributeMaxDynamicSharedMemorySize, kBytes);
    pair_product<<<2, 192, kBytes, stream>>>(bf16_map(a, 256, k, kRowsM), bf16_map(b, kN, k, kRowsN), out, slices);
  } else if (slices < 0) {
    neighbours<<<2, 128, 0, stream>>>(bf16_map(a, 256, kSlice, kRowsM), bf16_map(b, kRowsN, kSlice, kRowsN), out);
  } else {
    pair_from_tensor_memory<<<2, 128, 0, stream>>>(bf16_map(b, 16, kN, 16), reinterpret_cast<const uint32_t*>(a), out);
  }
}
