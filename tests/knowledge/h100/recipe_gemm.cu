// The recipe for GEMM followed to the letter, by template functions alone: C[M, N] = A[M, K] * B[N, K]^T, persistent.
constexpr int kM = 128, kN = 256, kK = 64, kStages = 4, kGroup = 8;
constexpr int kStageBytes = (kM + kN) * kK * 2;

struct Tiles {
  __nv_bfloat16 a[kStages][kM * kK];
  __nv_bfloat16 b[kStages][kN * kK];
  __nv_bfloat16 out[2][2][64 * 64];
  uint64_t full[kStages], empty[kStages];
};
constexpr int kBytes = sizeof(Tiles) + 1024;
static_assert(kBytes <= 232448, "shared memory of a CTA");

struct Place {
  int m, n;
};

__device__ Place place_of(int tile, int rows, int columns) {
  const int group = tile / (kGroup * columns) * kGroup;
  const int height = min(kGroup, rows - group);
  const int within = tile % (kGroup * columns);
  return {(group + within % height) * kM, within / height * kN};
}

__global__ void __launch_bounds__(384, 1)
gemm(const __grid_constant__ CUtensorMap map_a, const __grid_constant__ CUtensorMap map_b,
     const __grid_constant__ CUtensorMap map_c, int M, int N, int K) {
  extern __shared__ __align__(1024) uint8_t memory[];
  Tiles& tiles = *reinterpret_cast<Tiles*>(memory + (-smem_address(memory) & 1023));
  const int rows = M / kM, columns = N / kN, slices = K / kK;
  if (threadIdx.x == 0) {
    tma_prefetch(&map_a);
    tma_prefetch(&map_b);
    for (int slot = 0; slot < kStages; ++slot) {
      mbarrier_init(&tiles.full[slot], 1);
      mbarrier_init(&tiles.empty[slot], 2);
    }
    mbarrier_init_fence();
  }
  __syncthreads();
  Ring<kStages> ring;
  if (threadIdx.x < 128) {
    registers_shrink<40>();
    if (threadIdx.x != 0) return;
    for (int tile = blockIdx.x; tile < rows * columns; tile += gridDim.x) {
      const Place place = place_of(tile, rows, columns);
      for (int slice = 0; slice < slices; ++slice, ring.advance()) {
        uint64_t* full = &tiles.full[ring.slot];
        mbarrier_wait(&tiles.empty[ring.slot], ring.parity ^ 1);
        mbarrier_arrive_expect_tx(full, kStageBytes);
        tma_load_2d(tiles.a[ring.slot], &map_a, full, slice * kK, place.m);
        tma_load_2d(tiles.b[ring.slot], &map_b, full, slice * kK, place.n);
      }
    }
  } else {
    registers_grow<232>();
    const int consumer = threadIdx.x / 128 - 1;
    const bool issues = threadIdx.x % 128 == 0;
    for (int tile = blockIdx.x; tile < rows * columns; tile += gridDim.x) {
      const Place place = place_of(tile, rows, columns);
      float sums[128];
      int before = 0;
      for (int slice = 0; slice < slices; ++slice, ring.advance()) {
        mbarrier_wait(&tiles.full[ring.slot], ring.parity);
        const uint64_t a = descriptor_k_major<128>(tiles.a[ring.slot] + consumer * 64 * kK);
        const uint64_t b = descriptor_k_major<128>(tiles.b[ring.slot]);
        wgmma_fence();
#pragma unroll
        for (int step = 0; step < 4; ++step) wgmma_ss(sums, a + 2 * step, b + 2 * step, slice > 0 || step > 0);
        wgmma_commit();
        wgmma_wait<1>(sums);
        if (slice > 0 && issues) mbarrier_arrive(&tiles.empty[before]);
        before = ring.slot;
      }
      wgmma_wait<0>(sums);
      if (issues) mbarrier_arrive(&tiles.empty[before]);
#pragma unroll
      for (int part = 0; part < 4; ++part) {
        __nv_bfloat16* box = tiles.out[consumer][part % 2];
        if (issues) tma_wait_read<1>();
        named_barrier_sync(1 + consumer, 128);
        sums_to_box(box, sums, 64 * part);
        async_proxy_fence();
        named_barrier_sync(1 + consumer, 128);
        if (issues) {
          tma_store_2d(&map_c, box, place.n + 64 * part, place.m + 64 * consumer);
          tma_commit();
        }
      }
    }
    if (issues) tma_wait<0>();
  }
}

extern "C" void run(const __nv_bfloat16* A, const __nv_bfloat16* B, __nv_bfloat16* C, int M, int N, int K,
                    cudaStream_t stream) {
  int processors = 0;
  cudaDeviceGetAttribute(&processors, cudaDevAttrMultiProcessorCount, 0);
  const int tiles = M / kM * (N / kN);
  cudaFuncSetAttribute(gemm, cudaFuncAttributeMaxDynamicSharedMemorySize, kBytes);
  gemm<<<tiles < processors ? tiles : processors, 384, kBytes, stream>>>(
      bf16_map(A, M, K, kM), bf16_map(B, N, K, kN), bf16_map(C, M, N, 64), M, N, K);
}
