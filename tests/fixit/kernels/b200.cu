// C = A·Bᵀ + bias for Blackwell, as plain as tcgen05 allows: a CTA per tile of 128×128, one stage, nothing overlaps.
constexpr int kTileM = 128;
constexpr int kTileN = 128;
constexpr int kTileK = 64;
constexpr int kBytesA = kTileM * kTileK * 2;
constexpr int kBytesB = kTileN * kTileK * 2;

__global__ void __launch_bounds__(128)
gemm_bias(const __grid_constant__ CUtensorMap map_a, const __grid_constant__ CUtensorMap map_b,
          const __nv_bfloat16* bias, __nv_bfloat16* C, int N, int K) {
  constexpr uint32_t kInstruction = instruction_bf16(kTileM, kTileN, false, false);
  extern __shared__ __align__(1024) uint8_t tiles[];
  __shared__ uint64_t full, done;
  __shared__ uint32_t slot;
  const int m = blockIdx.y * kTileM;
  const int n = blockIdx.x * kTileN;
  const int warp = threadIdx.x / 32;
  if (threadIdx.x == 0) {
    mbarrier_init(&full, 1);
    mbarrier_init(&done, 1);
    mbarrier_init_fence();
  }
  if (warp == 2) tmem_alloc(&slot, kTileN);
  tcgen05_fence_before();
  __syncthreads();
  tcgen05_fence_after();
  const uint32_t sums = slot;
  uint32_t parity = 0;
  for (int first = 0; first < K; first += kTileK) {
    if (threadIdx.x == 0) {
      mbarrier_arrive_expect_tx(&full, kBytesA + kBytesB);
      tma_load_2d(tiles, &map_a, &full, first, m);
      tma_load_2d(tiles + kBytesA, &map_b, &full, first, n);
      mbarrier_wait(&full, parity);
      tcgen05_fence_after();
      for (int k = 0; k < kTileK; k += 16) {
        const uint64_t a = descriptor_k_major<128>(tiles) + k / 8;
        const uint64_t b = descriptor_k_major<128>(tiles + kBytesA) + k / 8;
        mma_ss(sums, a, b, kInstruction, first > 0 || k > 0);
      }
      tcgen05_commit(&done);
    }
    __syncwarp();
    mbarrier_wait(&done, parity);
    parity ^= 1;
  }
  tcgen05_fence_after();
  const int row = m + threadIdx.x;
  for (int part = 0; part < kTileN; part += 32) {
    float values[32];
    tmem_load(sums + tmem_own_lanes() + part, values);
    tmem_wait_load(values);
    for (int i = 0; i < 32; ++i) {
      const float sum = values[i] + __bfloat162float(bias[n + part + i]);
      C[static_cast<size_t>(row) * N + n + part + i] = __float2bfloat16(sum);
    }
  }
  tcgen05_fence_before();
  __syncthreads();
  if (warp == 2) tmem_dealloc(sums, kTileN);
}

extern "C" void run(const __nv_bfloat16* A, const __nv_bfloat16* B, const __nv_bfloat16* bias, __nv_bfloat16* C, int M,
                    int N, int K, cudaStream_t stream) {
  const CUtensorMap map_a = bf16_map(A, M, K, kTileM);
  const CUtensorMap map_b = bf16_map(B, N, K, kTileN);
  const dim3 grid(N / kTileN, M / kTileM);
  gemm_bias<<<grid, 128, kBytesA + kBytesB, stream>>>(map_a, map_b, bias, C, N, K);
}
