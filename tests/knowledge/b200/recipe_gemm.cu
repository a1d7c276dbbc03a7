// The recipe for GEMM to its end, from the pack's functions: pairs of CTAs on tiles of 256 x 256, persistent, two
// accumulators, six stages, boxes of 64 columns stored by TMA. `pairs` walk the tiles.
constexpr int kTile = 256;
constexpr int kHalf = 128;  // rows of A, of B and of C in one CTA
constexpr int kSlice = 64;
constexpr int kStages = 6;
constexpr int kAccumulators = 2;
constexpr int kColumns = kAccumulators * kTile;
constexpr uint16_t kBoth = 0b11;

struct Shared {
  __nv_bfloat16 a[kStages][kHalf * kSlice];
  __nv_bfloat16 b[kStages][kHalf * kSlice];
  __nv_bfloat16 out[2][kHalf * 64];
  uint64_t full[kStages], empty[kStages], done[kAccumulators], drained[kAccumulators];
  uint32_t slot;
};
static_assert(sizeof(Shared) <= 232448, "the recipe's budget");

__global__ void __cluster_dims__(2, 1, 1) __launch_bounds__(192, 1)
gemm(const __grid_constant__ CUtensorMap map_a, const __grid_constant__ CUtensorMap map_b,
     const __grid_constant__ CUtensorMap map_c, int tiles_m, int tiles, int slices) {
  extern __shared__ __align__(1024) uint8_t raw[];
  Shared& shared = *reinterpret_cast<Shared*>(raw);
  const int rank = cluster_rank();
  const int warp = threadIdx.x / 32;
  const int pair = blockIdx.x / 2, pairs = gridDim.x / 2;
  if (threadIdx.x == 0) {
    for (int i = 0; i < kStages; ++i) {
      mbarrier_init(&shared.full[i], 1);
      mbarrier_init(&shared.empty[i], 1);
    }
    for (int i = 0; i < kAccumulators; ++i) {
      mbarrier_init(&shared.done[i], 1);
      mbarrier_init(&shared.drained[i], 8);
    }
    mbarrier_init_fence();
  }
  if (warp == 5) tmem_alloc<2>(&shared.slot, kColumns);
  tcgen05_fence_before();
  cluster_sync();
  tcgen05_fence_after();
  const uint32_t tmem = shared.slot;
  Ring<kStages> stage;
  Ring<kAccumulators> accumulator;
  if (warp == 4 && elect_one()) {
    for (int tile = pair; tile < tiles; tile += pairs) {
      const int m = tile % tiles_m * kTile + rank * kHalf, n = tile / tiles_m * kTile + rank * kHalf;
      for (int slice = 0; slice < slices; ++slice, stage.advance()) {
        uint64_t* full = &shared.full[stage.slot];
        mbarrier_wait_cluster(&shared.empty[stage.slot], stage.parity ^ 1);
        if (rank == 0) mbarrier_arrive_expect_tx(full, 2 * (sizeof(shared.a[0]) + sizeof(shared.b[0])));
        tma_load_2d_pair(shared.a[stage.slot], &map_a, full, slice * kSlice, m);
        tma_load_2d_pair(shared.b[stage.slot], &map_b, full, slice * kSlice, n);
      }
    }
  } else if (warp == 5 && rank == 0 && elect_one()) {
    for (int tile = pair; tile < tiles; tile += pairs, accumulator.advance()) {
      const uint32_t sums = tmem + accumulator.slot * kTile;
      mbarrier_wait_cluster(&shared.drained[accumulator.slot], accumulator.parity ^ 1);
      tcgen05_fence_after();
      for (int slice = 0; slice < slices; ++slice, stage.advance()) {
        mbarrier_wait_cluster(&shared.full[stage.slot], stage.parity);
        tcgen05_fence_after();
        const uint64_t a = descriptor_k_major<128>(shared.a[stage.slot]);
        const uint64_t b = descriptor_k_major<128>(shared.b[stage.slot]);
        for (int k = 0; k < kSlice; k += 16)
          mma_ss<2>(sums, a + k / 8, b + k / 8, instruction_bf16(kTile, kTile), slice > 0 || k > 0);
        tcgen05_commit_multicast(&shared.empty[stage.slot], kBoth);
      }
      tcgen05_commit_multicast(&shared.done[accumulator.slot], kBoth);
    }
  } else if (warp < 4) {
    const bool issues = threadIdx.x == 0;
    for (int tile = pair; tile < tiles; tile += pairs, accumulator.advance()) {
      const uint32_t sums = tmem + accumulator.slot * kTile + tmem_own_lanes();
      mbarrier_wait_cluster(&shared.done[accumulator.slot], accumulator.parity);
      tcgen05_fence_after();
      for (int part = 0; part < kTile / 64; ++part) {
        if (issues) tma_wait_read<1>();
        named_barrier_sync(1, 128);
        tmem_to_box(shared.out[part % 2], threadIdx.x, sums + 64 * part);
        if (part == kTile / 64 - 1) pair_warp_arrive(&shared.drained[accumulator.slot]);
        async_proxy_fence();
        named_barrier_sync(1, 128);
        if (issues) {
          tma_store_2d(&map_c, shared.out[part % 2], tile / tiles_m * kTile + 64 * part,
                       tile % tiles_m * kTile + rank * kHalf);
          tma_commit();
        }
      }
    }
    if (issues) tma_wait<0>();
  }
  __syncwarp();
  tcgen05_fence_before();
  cluster_sync();
  tcgen05_fence_after();
  if (warp == 5) tmem_dealloc<2>(tmem, kColumns);
}

void launch(const __nv_bfloat16* A, const __nv_bfloat16* B, __nv_bfloat16* C, int M, int N, int K, int pairs,
            cudaStream_t stream) {
  const int tiles_m = (M + kTile - 1) / kTile, tiles = tiles_m * ((N + kTile - 1) / kTile);
  cudaFuncSetAttribute(gemm, cudaFuncAttributeMaxDynamicSharedMemorySize, sizeof(Shared));
  gemm<<<2 * pairs, 192, sizeof(Shared), stream>>>(bf16_map(A, M, K, kHalf), bf16_map(B, N, K, kHalf),
                                                   bf16_map(C, M, N, kHalf), tiles_m, tiles, (K + kSlice - 1) / kSlice);
}

#ifdef TASK
extern "C" void run(const __nv_bfloat16* A, const __nv_bfloat16* B, __nv_bfloat16* C, int M, int N, int K,
                    cudaStream_t stream) {
  int device = 0, processors = 0;
  cudaGetDevice(&device);
  cudaDeviceGetAttribute(&processors, cudaDevAttrMultiProcessorCount, device);
  launch(A, B, C, M, N, K, processors / 2, stream);
}
#else
extern "C" void run(const __nv_bfloat16* A, const __nv_bfloat16* B, __nv_bfloat16* C, int M, int N, int K, int pairs,
                    cudaStream_t stream) {
  launch(A, B, C, M, N, K, pairs, stream);
}
#endif
