// C = A·Bᵀ + bias for Hopper: a warpgroup per tile of 64×kTileN, a ring of kStages slots that is filled ahead.
// Stands behind the template functions of the knowledge pack. benchmarks/grpo_tiny.py writes the constants that the
// policy chose in front of it: kTileN, kStages, kExpected, kSwizzle, kPending, kBias.
constexpr int kTileM = 64;
constexpr int kTileK = 64;
constexpr int kBytesA = kTileM * kTileK * 2;
constexpr int kBytesB = kTileN * kTileK * 2;
constexpr int kSlotBytes = kBytesA + kBytesB;

__global__ void __launch_bounds__(128)
gemm_bias(const __grid_constant__ CUtensorMap map_a, const __grid_constant__ CUtensorMap map_b,
          const __nv_bfloat16* bias, __nv_bfloat16* C, int N, int K) {
  extern __shared__ __align__(1024) uint8_t tiles[];
  __shared__ uint64_t full[kStages];
  const int m = blockIdx.y * kTileM;
  const int n = blockIdx.x * kTileN;
  const int slices = K / kTileK;
  if (threadIdx.x == 0) {
    for (int slot = 0; slot < kStages; ++slot) mbarrier_init(&full[slot], 1);
    mbarrier_init_fence();
  }
  __syncthreads();
  const auto fill = [&](int slice, int slot) {
    uint8_t* slot_tiles = tiles + slot * kSlotBytes;
    mbarrier_arrive_expect_tx(&full[slot], kExpected);
    tma_load_2d(slot_tiles, &map_a, &full[slot], slice * kTileK, m);
    tma_load_2d(slot_tiles + kBytesA, &map_b, &full[slot], slice * kTileK, n);
  };
  if (threadIdx.x == 0) {
    for (int slice = 0; slice < kStages && slice < slices; ++slice) fill(slice, slice);
  }
  float sums[kTileN / 2];
  Ring<kStages> ring;
  for (int slice = 0; slice < slices; ++slice, ring.advance()) {
    const uint8_t* slot_tiles = tiles + ring.slot * kSlotBytes;
    mbarrier_wait(&full[ring.slot], ring.parity);
    wgmma_fence();
#pragma unroll
    for (int k = 0; k < kTileK; k += 16) {
      const uint64_t a = descriptor_k_major<128>(slot_tiles) + k / 8;
      const uint64_t b = descriptor_k_major<128>(slot_tiles + kBytesA) + k / 8;
      wgmma_ss(sums, a, b, slice > 0 || k > 0);
    }
    wgmma_commit();
    wgmma_wait<kPending>(sums);
    __syncthreads();
    if (threadIdx.x == 0 && slice + kStages < slices) fill(slice + kStages, ring.slot);
  }
#pragma unroll
  for (int block = 0; block < kTileN / 8; ++block) {
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      const int row = m + fragment_row(e);
      const int column = n + fragment_column(block, e);
      const float sum = sums[4 * block + e] + (kBias ? __bfloat162float(bias[column]) : 0.0f);
      C[static_cast<size_t>(row) * N + column] = __float2bfloat16(sum);
    }
  }
}

extern "C" void run(const __nv_bfloat16* A, const __nv_bfloat16* B, const __nv_bfloat16* bias, __nv_bfloat16* C, int M,
                    int N, int K, cudaStream_t stream) {
  const auto map = [](const __nv_bfloat16* matrix, int rows, int columns, uint32_t box_rows) {
    return tensor_map<2>(CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, matrix,
                         {static_cast<cuuint64_t>(columns), static_cast<cuuint64_t>(rows)},
                         {static_cast<cuuint64_t>(columns) * 2}, {kTileK, box_rows}, kSwizzle);
  };
  constexpr int kBytes = kStages * kSlotBytes;
  cudaFuncSetAttribute(gemm_bias, cudaFuncAttributeMaxDynamicSharedMemorySize, kBytes);
  const dim3 grid(N / kTileN, M / kTileM);
  gemm_bias<<<grid, 128, kBytes, stream>>>(map(A, M, K, kTileM), map(B, N, K, kTileN), bias, C, N, K);
}
