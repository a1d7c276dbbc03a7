// Products of one warpgroup: D[64, N] = A[64, 64] * B[64, N], operands in each major and swizzle, or A in registers.
constexpr int kM = 64;
constexpr int kK = 64;

// A matrix in shared memory as boxes of kSpan bytes a row. K-major: extent rows along M or N, K / (kSpan / 2) boxes.
// MN-major: kK rows along K, extent / (kSpan / 2) boxes.
template <int kSpan, int kExtent, int kTransposed>
struct Operand {
  static constexpr int kRows = kTransposed ? kK : kExtent;
  static constexpr int kBoxBytes = kRows * kSpan;
  static constexpr int kWidth = kSpan / 2;
  static constexpr int kBoxes = ((kTransposed ? kExtent : kK) + kWidth - 1) / kWidth;
  static constexpr int kBytes = kBoxBytes * kBoxes;

  static __device__ void load(uint8_t* tile, const CUtensorMap* map, uint64_t* full) {
    for (int box = 0; box < kBoxes; ++box) tma_load_2d(tile + box * kBoxBytes, map, full, box * kWidth, 0);
  }
  static __device__ uint64_t descriptor(const uint8_t* tile, int k) {
    if (kTransposed) return descriptor_mn_major<kSpan>(tile, kBoxBytes) + k / 16 * kSpan;
    return descriptor_k_major<kSpan>(tile + k / kWidth * kBoxBytes) + k % kWidth / 8;
  }
};

template <int kN, int kSpan, int kTransA, int kTransB, bool kFromRegisters>
__global__ void __launch_bounds__(128)
product(const __grid_constant__ CUtensorMap map_a, const __grid_constant__ CUtensorMap map_b, const __nv_bfloat16* a,
        float* out) {
  using A = Operand<kSpan, kM, kTransA>;
  using B = Operand<kSpan, kN, kTransB>;
  extern __shared__ __align__(1024) uint8_t tiles[];
  __shared__ uint64_t full;
  if (threadIdx.x == 0) {
    mbarrier_init(&full, 1);
    mbarrier_init_fence();
    mbarrier_arrive_expect_tx(&full, (kFromRegisters ? 0 : A::kBytes) + B::kBytes);
    if (!kFromRegisters) A::load(tiles, &map_a, &full);
    B::load(tiles + A::kBytes, &map_b, &full);
  }
  __syncthreads();
  mbarrier_wait(&full, 0);
  float sums[kN / 2];
  uint32_t fragments[kK / 16][4];
  if (kFromRegisters) {
#pragma unroll
    for (int step = 0; step < kK / 16; ++step) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int row = fragment_row(2 * (i % 2)), column = fragment_column(2 * step + i / 2, 0);
        fragments[step][i] = pack_bf16(a[row * kK + column], a[row * kK + column + 1]);
      }
    }
  }
  wgmma_fence();
#pragma unroll
  for (int k = 0; k < kK; k += 16) {
    const uint64_t b = B::descriptor(tiles + A::kBytes, k);
    if constexpr (kFromRegisters) wgmma_rs<kTransB>(sums, fragments[k / 16], b, k > 0);
    else wgmma_ss<kTransA, kTransB>(sums, A::descriptor(tiles, k), b, k > 0);
  }
  wgmma_commit();
  wgmma_wait<0>(sums);
#pragma unroll
  for (int b = 0; b < kN / 8; ++b) {
#pragma unroll
    for (int e = 0; e < 4; ++e) out[fragment_row(e) * kN + fragment_column(b, e)] = sums[4 * b + e];
  }
}

template <int kSpan>
constexpr CUtensorMapSwizzle kSwizzle = kSpan == 128  ? CU_TENSOR_MAP_SWIZZLE_128B
                                        : kSpan == 64 ? CU_TENSOR_MAP_SWIZZLE_64B
                                                      : CU_TENSOR_MAP_SWIZZLE_32B;

template <int kSpan>
CUtensorMap map_of(const __nv_bfloat16* matrix, cuuint64_t rows, cuuint64_t columns) {
  return tensor_map<2>(CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, matrix, {columns, rows}, {columns * 2},
                       {kSpan / 2, cuuint32_t(rows)}, kSwizzle<kSpan>);
}

template <int kN, int kSpan, int kTransA, int kTransB, bool kFromRegisters>
void launch(const __nv_bfloat16* a, const __nv_bfloat16* b, float* out, cudaStream_t stream) {
  const auto kernel = product<kN, kSpan, kTransA, kTransB, kFromRegisters>;
  const int bytes = Operand<kSpan, kM, kTransA>::kBytes + Operand<kSpan, kN, kTransB>::kBytes;
  cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
  kernel<<<1, 128, bytes, stream>>>(kTransA ? map_of<kSpan>(a, kK, kM) : map_of<kSpan>(a, kM, kK),
                                    kTransB ? map_of<kSpan>(b, kK, kN) : map_of<kSpan>(b, kN, kK), a, out);
}

template <int kN>
void launch_of(const __nv_bfloat16* a, const __nv_bfloat16* b, float* out, int which, cudaStream_t stream) {
  if (which == 0) launch<kN, 128, 0, 0, false>(a, b, out, stream);
  if (which == 1) launch<kN, 128, 0, 1, false>(a, b, out, stream);
  if (which == 2) launch<kN, 128, 1, 0, false>(a, b, out, stream);
  if (which == 3) launch<kN, 128, 0, 0, true>(a, b, out, stream);
  if (which == 4) launch<kN, 128, 0, 1, true>(a, b, out, stream);
}

extern "C" void run(const __nv_bfloat16* a, const __nv_bfloat16* b, float* out, int n, int which,
                    cudaStream_t stream) {
  if (which == 5) return launch<64, 64, 0, 0, false>(a, b, out, stream);
  if (which == 6) return launch<64, 64, 1, 1, false>(a, b, out, stream);
  if (which == 7) return launch<64, 32, 0, 0, false>(a, b, out, stream);
  if (which == 8) return launch<64, 32, 1, 1, false>(a, b, out, stream);
  if (which == 9) return launch<96, 64, 0, 0, false>(a, b, out, stream);
  if (which == 10) return launch<96, 64, 0, 1, true>(a, b, out, stream);
  if (n == 64) launch_of<64>(a, b, out, which, stream);
  if (n == 96) launch_of<96>(a, b, out, which, stream);
  if (n == 128) launch_of<128>(a, b, out, which, stream);
  if (n == 256) launch_of<256>(a, b, out, which, stream);
}
