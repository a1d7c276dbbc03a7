// Products of one CTA: D[M, N] = A[M, 64] * B[64, N], operands in each major and swizzle, or A in tensor memory.
constexpr int kK = 64;

// A matrix in shared memory as boxes of kSpan bytes a row. K-major: kExtent rows along M or N, K / (kSpan / 2) boxes.
// MN-major: kK rows along K, kExtent / (kSpan / 2) boxes.
template <int kSpan, int kExtent, bool kMnMajor>
struct Operand {
  static constexpr int kRows = kMnMajor ? kK : kExtent;
  static constexpr int kBoxBytes = kRows * kSpan;
  static constexpr int kWidth = kSpan / 2;
  static constexpr int kBoxes = ((kMnMajor ? kExtent : kK) + kWidth - 1) / kWidth;
  static constexpr int kBytes = kBoxBytes * kBoxes;

  static __device__ void load(uint8_t* tile, const CUtensorMap* map, uint64_t* full) {
    for (int box = 0; box < kBoxes; ++box) tma_load_2d(tile + box * kBoxBytes, map, full, box * kWidth, 0);
  }
  static __device__ uint64_t descriptor(const uint8_t* tile, int k) {
    if constexpr (kMnMajor) return descriptor_mn_major<kSpan>(tile, kBoxBytes) + k / 16 * kSpan;
    else return descriptor_k_major<kSpan>(tile + k / kWidth * kBoxBytes, kBoxBytes) + k % kWidth / 8;
  }
};

enum Source { kShared, kTensor };

template <int kM, int kN, int kSpan, bool kAMn, bool kBMn, Source kSource>
__global__ void __launch_bounds__(128)
product(const __grid_constant__ CUtensorMap map_a, const __grid_constant__ CUtensorMap map_b, const __nv_bfloat16* a,
        float* out) {
  using A = Operand<kSpan, kM, kAMn>;
  using B = Operand<kSpan, kN, kBMn>;
  constexpr int kFirstA = 256;
  constexpr int kColumns = kSource == kTensor ? 512 : 256;
  constexpr uint32_t kInstruction = instruction_bf16(kM, kN, kAMn, kBMn);
  extern __shared__ __align__(1024) uint8_t tiles[];
  __shared__ uint64_t full, done;
  __shared__ uint32_t slot;
  const int warp = threadIdx.x / 32;
  if (threadIdx.x == 0) {
    mbarrier_init(&full, 1);
    mbarrier_init(&done, 1);
    mbarrier_init_fence();
  }
  if (warp == 2) tmem_alloc(&slot, kColumns);
  tcgen05_fence_before();
  __syncthreads();
  tcgen05_fence_after();
  const uint32_t tmem = slot;
  if (kSource == kTensor) {  // A, row by row
    const uint32_t* pairs = reinterpret_cast<const uint32_t*>(a) + threadIdx.x * (kK / 2);
    uint32_t r[32];
    for (int i = 0; i < 32; ++i) r[i] = pairs[i];
    tmem_store(tmem + tmem_own_lanes() + kFirstA, r);
    tmem_wait_store();
    tcgen05_fence_before();
    __syncthreads();
  }
  if (threadIdx.x == 0) {
    mbarrier_arrive_expect_tx(&full, (kSource == kShared ? A::kBytes : 0) + B::kBytes);
    if (kSource == kShared) A::load(tiles, &map_a, &full);
    B::load(tiles + A::kBytes, &map_b, &full);
    mbarrier_wait(&full, 0);
    tcgen05_fence_after();
    for (int k = 0; k < kK; k += 16) {
      const uint64_t b = B::descriptor(tiles + A::kBytes, k);
      if constexpr (kSource == kTensor) mma_ts(tmem, tmem + kFirstA + k / 2, b, kInstruction, k > 0);
      else mma_ss(tmem, A::descriptor(tiles, k), b, kInstruction, k > 0);
    }
    tcgen05_commit(&done);
  }
  __syncwarp();
  mbarrier_wait(&done, 0);
  tcgen05_fence_after();
  // M = 64: 16 rows in the lower lanes of each quarter.
  const int lane = threadIdx.x % 32;
  const int row = kM == 128 ? threadIdx.x : warp * 16 + lane;
  for (int column = 0; column < kN; column += 16) {
    float r[16];
    if (kM == 128) {
      tmem_load(tmem + tmem_own_lanes() + column, r);
      tmem_wait_load(r);
      for (int i = 0; i < 16; ++i) out[row * kN + column + i] = r[i];
    } else if (column % 32 == 0) {
      tmem_load_fragments(tmem + tmem_own_lanes() + column, r);
      tmem_wait_load(r);
      for (int i = 0; i < 16; ++i) {
        const int line = warp * 16 + lane / 4 + i % 4 / 2 * 8;
        out[line * kN + column + i / 4 * 8 + lane % 4 * 2 + i % 2] = r[i];
      }
    }
  }
  tcgen05_fence_before();
  __syncthreads();
  if (warp == 2) tmem_dealloc(tmem, kColumns);
}

template <int kSpan>
constexpr CUtensorMapSwizzle kSwizzle = kSpan == 128  ? CU_TENSOR_MAP_SWIZZLE_128B
                                        : kSpan == 64 ? CU_TENSOR_MAP_SWIZZLE_64B
                                        : kSpan == 32 ? CU_TENSOR_MAP_SWIZZLE_32B
                                                      : CU_TENSOR_MAP_SWIZZLE_NONE;

template <int kSpan>
CUtensorMap map_of(const __nv_bfloat16* matrix, cuuint64_t rows, cuuint64_t columns) {
  return tensor_map<2>(CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, matrix, {columns, rows}, {columns * 2},
                       {kSpan / 2, cuuint32_t(rows)}, kSwizzle<kSpan>);
}

template <int kM, int kN, int kSpan, bool kAMn, bool kBMn, Source kSource>
void launch(const __nv_bfloat16* a, const __nv_bfloat16* b, float* out, cudaStream_t stream) {
  const auto kernel = product<kM, kN, kSpan, kAMn, kBMn, kSource>;
  const int bytes = Operand<kSpan, kM, kAMn>::kBytes + Operand<kSpan, kN, kBMn>::kBytes;
  cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
  kernel<<<1, 128, bytes, stream>>>(kAMn ? map_of<kSpan>(a, kK, kM) : map_of<kSpan>(a, kM, kK),
                                    kBMn ? map_of<kSpan>(b, kK, kN) : map_of<kSpan>(b, kN, kK), a, out);
}

template <int kM>
void launch_of(const __nv_bfloat16* a, const __nv_bfloat16* b, float* out, int which, cudaStream_t stream) {
  if (which == 0) launch<kM, 256, 128, false, false, kShared>(a, b, out, stream);
  if (which == 1) launch<kM, 128, 128, false, true, kShared>(a, b, out, stream);
  if (which == 2) launch<kM, 64, 128, true, false, kShared>(a, b, out, stream);
  if (which == 3) launch<kM, 64, 64, false, false, kShared>(a, b, out, stream);
  if (which == 4) launch<kM, 64, 64, true, true, kShared>(a, b, out, stream);
  if (which == 5) launch<kM, 32, 32, false, false, kShared>(a, b, out, stream);
  if (which == 6) launch<kM, 64, 32, true, true, kShared>(a, b, out, stream);
  if (which == 7) launch<kM, 96, 16, false, false, kShared>(a, b, out, stream);
}

extern "C" void run(const __nv_bfloat16* a, const __nv_bfloat16* b, float* out, int m, int which,
                    cudaStream_t stream) {
  if (which == 8) return launch<128, 128, 128, false, false, kTensor>(a, b, out, stream);
  if (which == 9) return launch<128, 256, 128, false, true, kTensor>(a, b, out, stream);
  if (m == 64) launch_of<64>(a, b, out, which, stream);
  if (m == 128) launch_of<128>(a, b, out, which, stream);
}
