// C = A·Bᵀ + bias for Hopper, as plain as wgmma allows: a warpgroup per tile of 64×128, one stage, nothing overlaps.
constexpr int kTileM = 64;
constexpr int kTileN = 128;
constexpr int kTileK = 64;
constexpr int kBytesA = kTileM * kTileK * 2;
constexpr int kBytesB = kTileN * kTileK * 2;

__global__ void __launch_bounds__(128)
gemm_bias(const __grid_constant__ CUtensorMap map_a, const __grid_constant__ CUtensorMap map_b,
          const __nv_bfloat16* bias, __nv_bfloat16* C, int N, int K) {
  extern __shared__ __align__(1024) uint8_t tiles[];
  __shared__ uint64_t full;
  const int m = blockIdx.y * kTileM;
  const int n = blockIdx.x * kTileN;
  if (threadIdx.x == 0) {
    mbarrier_init(&full, 1);
    mbarrier_init_fence();
  }
  __syncthreads();
  float sums[kTileN / 2];
  uint32_t parity = 0;
  for (int first = 0; first < K; first += kTileK) {
    if (threadIdx.x == 0) {
      mbarrier_arrive_expect_tx(&full, kBytesA + kBytesB);
      tma_load_2d(tiles, &map_a, &full, first, m);
      tma_load_2d(tiles + kBytesA, &map_b, &full, first, n);
    }
    mbarrier_wait(&full, parity);
    parity ^= 1;
    wgmma_fence();
#pragma unroll
    for (int k = 0; k < kTileK; k += 16) {
      const uint64_t a = descriptor_k_major<128>(tiles) + k / 8;
      const uint64_t b = descriptor_k_major<128>(tiles + kBytesA) + k / 8;
      wgmma_ss(sums, a, b, first > 0 || k > 0);
    }
    wgmma_commit();
    wgmma_wait<0>(sums);
    __syncthreads();
  }
#pragma unroll
  for (int block = 0; block < kTileN / 8; ++block) {
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      const int row = m + fragment_row(e);
      const int column = n + fragment_column(block, e);
      const float sum = sums[4 * block + e] + __bfloat162float(bias[column]);
      C[static_cast<size_t>(row) * N + column] = __float2bfloat16(sum);
    }
  }
}

extern "C" void run(const __nv_bfloat16* A, const __nv_bfloat16* B, const __nv_bfloat16* bias, __nv_bfloat16* C, int M,
                    int N, int K, cudaStream_t stream) {
  const CUtensorMap map_a = bf16_map(A, M, K, kTileM);
  const CUtensorMap map_b = bf16_map(B, N, K, kTileN);
  const dim3 grid(N / kTileN, M / kTileM);
  gemm_bias<<<grid, 128, kBytesA + kBytesB, stream>>>(map_a, map_b, bias, C, N, K);
}
