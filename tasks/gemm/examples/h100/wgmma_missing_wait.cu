// A teaching kernel, wrong on purpose: wgmma runs asynchronously, and the loop in `multiply` lacks a `wgmma.wait_group`
// before it releases a slot, so that TMA may overwrite operands that the tensor core still reads.
#include <cuda.h>
#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include <cstdint>

namespace {

constexpr int kTileM = 128;
constexpr int kTileN = 256;
constexpr int kTileK = 64;
constexpr int kStages = 4;
constexpr int kConsumers = 2;
constexpr int kThreads = 128 * (1 + kConsumers);
constexpr uint32_t kStageBytes = (kTileM + kTileN) * kTileK * sizeof(__nv_bfloat16);

struct Shared {
  __nv_bfloat16 a[kStages][kTileM * kTileK];
  __nv_bfloat16 b[kStages][kTileN * kTileK];
  uint64_t full[kStages];
  uint64_t empty[kStages];
};
constexpr int kSharedBytes = sizeof(Shared) + 1024;  // 128-byte swizzle needs tiles at multiples of 1024

__device__ __forceinline__ uint32_t shared_address(const void* pointer) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(pointer));
}

__device__ __forceinline__ void barrier_init(uint64_t* barrier, int arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(shared_address(barrier)), "r"(arrivals) : "memory");
}

__device__ __forceinline__ void barrier_expect(uint64_t* barrier, uint32_t bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared_address(barrier)), "r"(bytes)
               : "memory");
}

__device__ __forceinline__ void barrier_arrive(uint64_t* barrier) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(shared_address(barrier)) : "memory");
}

__device__ __forceinline__ void barrier_wait(uint64_t* barrier, uint32_t parity) {
  asm volatile(
      "{\n"
      ".reg .pred done;\n"
      "WAIT:\n"
      "mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
      "@!done bra WAIT;\n"
      "}\n" ::"r"(shared_address(barrier)),
      "r"(parity)
      : "memory");
}

// One box of `map` at column `k`, row `row`, into shared memory; its bytes count towards `barrier`.
__device__ __forceinline__ void tma_load(void* target, const CUtensorMap* map, uint64_t* barrier, int k, int row) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3}], [%4];" ::
          "r"(shared_address(target)),
      "l"(map), "r"(k), "r"(row), "r"(shared_address(barrier))
      : "memory");
}

// K-major operand, 128-byte swizzle: eight rows of 128 bytes make an atom, atoms 1024 bytes apart (PTX ISA 9.7.15.5.1).
__device__ __forceinline__ uint64_t descriptor(const __nv_bfloat16* tile) {
  constexpr uint64_t kLeading = 1;  // not used by swizzled K-major layouts
  constexpr uint64_t kStride = 1024 / 16;
  constexpr uint64_t kSwizzle128 = 1;
  return ((shared_address(tile) & 0x3ffff) >> 4) | kLeading << 16 | kStride << 32 | kSwizzle128 << 62;
}

// D[64, 256] += A[64, 16] · B[256, 16]ᵀ, operands in shared memory, K-major (PTX ISA 9.7.15.5).
__device__ __forceinline__ void wgmma_m64n256k16(float (&d)[16][8], uint64_t a, uint64_t b, int accumulate) {
  asm volatile(
      "{\n"
      ".reg .pred p;\n"
      "setp.ne.b32 p, %130, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n256k16.f32.bf16.bf16 {"
      "%0, %1, %2, %3, %4, %5, %6, %7, "
      "%8, %9, %10, %11, %12, %13, %14, %15, "
      "%16, %17, %18, %19, %20, %21, %22, %23, "
      "%24, %25, %26, %27, %28, %29, %30, %31, "
      "%32, %33, %34, %35, %36, %37, %38, %39, "
      "%40, %41, %42, %43, %44, %45, %46, %47, "
      "%48, %49, %50, %51, %52, %53, %54, %55, "
      "%56, %57, %58, %59, %60, %61, %62, %63, "
      "%64, %65, %66, %67, %68, %69, %70, %71, "
      "%72, %73, %74, %75, %76, %77, %78, %79, "
      "%80, %81, %82, %83, %84, %85, %86, %87, "
      "%88, %89, %90, %91, %92, %93, %94, %95, "
      "%96, %97, %98, %99, %100, %101, %102, %103, "
      "%104, %105, %106, %107, %108, %109, %110, %111, "
      "%112, %113, %114, %115, %116, %117, %118, %119, "
      "%120, %121, %122, %123, %124, %125, %126, %127"
      "}, %128, %129, p, 1, 1, 0, 0;\n"
      "}\n"
      : "+f"(d[0][0]), "+f"(d[0][1]), "+f"(d[0][2]), "+f"(d[0][3]), "+f"(d[0][4]), "+f"(d[0][5]), "+f"(d[0][6]), "+f"(d[0][7]),
        "+f"(d[1][0]), "+f"(d[1][1]), "+f"(d[1][2]), "+f"(d[1][3]), "+f"(d[1][4]), "+f"(d[1][5]), "+f"(d[1][6]), "+f"(d[1][7]),
        "+f"(d[2][0]), "+f"(d[2][1]), "+f"(d[2][2]), "+f"(d[2][3]), "+f"(d[2][4]), "+f"(d[2][5]), "+f"(d[2][6]), "+f"(d[2][7]),
        "+f"(d[3][0]), "+f"(d[3][1]), "+f"(d[3][2]), "+f"(d[3][3]), "+f"(d[3][4]), "+f"(d[3][5]), "+f"(d[3][6]), "+f"(d[3][7]),
        "+f"(d[4][0]), "+f"(d[4][1]), "+f"(d[4][2]), "+f"(d[4][3]), "+f"(d[4][4]), "+f"(d[4][5]), "+f"(d[4][6]), "+f"(d[4][7]),
        "+f"(d[5][0]), "+f"(d[5][1]), "+f"(d[5][2]), "+f"(d[5][3]), "+f"(d[5][4]), "+f"(d[5][5]), "+f"(d[5][6]), "+f"(d[5][7]),
        "+f"(d[6][0]), "+f"(d[6][1]), "+f"(d[6][2]), "+f"(d[6][3]), "+f"(d[6][4]), "+f"(d[6][5]), "+f"(d[6][6]), "+f"(d[6][7]),
        "+f"(d[7][0]), "+f"(d[7][1]), "+f"(d[7][2]), "+f"(d[7][3]), "+f"(d[7][4]), "+f"(d[7][5]), "+f"(d[7][6]), "+f"(d[7][7]),
        "+f"(d[8][0]), "+f"(d[8][1]), "+f"(d[8][2]), "+f"(d[8][3]), "+f"(d[8][4]), "+f"(d[8][5]), "+f"(d[8][6]), "+f"(d[8][7]),
        "+f"(d[9][0]), "+f"(d[9][1]), "+f"(d[9][2]), "+f"(d[9][3]), "+f"(d[9][4]), "+f"(d[9][5]), "+f"(d[9][6]), "+f"(d[9][7]),
        "+f"(d[10][0]), "+f"(d[10][1]), "+f"(d[10][2]), "+f"(d[10][3]), "+f"(d[10][4]), "+f"(d[10][5]), "+f"(d[10][6]), "+f"(d[10][7]),
        "+f"(d[11][0]), "+f"(d[11][1]), "+f"(d[11][2]), "+f"(d[11][3]), "+f"(d[11][4]), "+f"(d[11][5]), "+f"(d[11][6]), "+f"(d[11][7]),
        "+f"(d[12][0]), "+f"(d[12][1]), "+f"(d[12][2]), "+f"(d[12][3]), "+f"(d[12][4]), "+f"(d[12][5]), "+f"(d[12][6]), "+f"(d[12][7]),
        "+f"(d[13][0]), "+f"(d[13][1]), "+f"(d[13][2]), "+f"(d[13][3]), "+f"(d[13][4]), "+f"(d[13][5]), "+f"(d[13][6]), "+f"(d[13][7]),
        "+f"(d[14][0]), "+f"(d[14][1]), "+f"(d[14][2]), "+f"(d[14][3]), "+f"(d[14][4]), "+f"(d[14][5]), "+f"(d[14][6]), "+f"(d[14][7]),
        "+f"(d[15][0]), "+f"(d[15][1]), "+f"(d[15][2]), "+f"(d[15][3]), "+f"(d[15][4]), "+f"(d[15][5]), "+f"(d[15][6]), "+f"(d[15][7])
      : "l"(a), "l"(b), "r"(accumulate));
}

// A place in the ring: its slot, and the parity that flips each time around.
struct Cursor {
  int slot = 0;
  uint32_t parity = 0;
  __device__ __forceinline__ void advance() {
    if (++slot == kStages) {
      slot = 0;
      parity ^= 1;
    }
  }
};

__device__ __forceinline__ void produce(Shared& shared, const CUtensorMap& map_a, const CUtensorMap& map_b, int m,
                                        int n, int slices) {
  Cursor cursor;
  for (int slice = 0; slice < slices; ++slice, cursor.advance()) {
    barrier_wait(&shared.empty[cursor.slot], cursor.parity ^ 1);
    barrier_expect(&shared.full[cursor.slot], kStageBytes);
    tma_load(shared.a[cursor.slot], &map_a, &shared.full[cursor.slot], slice * kTileK, m);
    tma_load(shared.b[cursor.slot], &map_b, &shared.full[cursor.slot], slice * kTileK, n);
  }
}

__device__ __forceinline__ void multiply(Shared& shared, float (&sums)[16][8], int consumer, int slices) {
  Cursor cursor;
  for (int slice = 0; slice < slices; ++slice, cursor.advance()) {
    barrier_wait(&shared.full[cursor.slot], cursor.parity);
    const __nv_bfloat16* a = shared.a[cursor.slot] + consumer * 64 * kTileK;
    const __nv_bfloat16* b = shared.b[cursor.slot];
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
#pragma unroll
    for (int k = 0; k < kTileK; k += 16) {
      wgmma_m64n256k16(sums, descriptor(a + k), descriptor(b + k), slice > 0 || k > 0);
    }
    asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
    if (threadIdx.x % 128 == 0) barrier_arrive(&shared.empty[cursor.slot]);
  }
  asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory");
}

// Each thread holds two neighbouring columns in two rows of every 8-column block (PTX ISA 9.7.15.5.1.1).
__device__ __forceinline__ void store(__nv_bfloat16* C, const float (&sums)[16][8], int row, int column, int N) {
  const int lane = threadIdx.x % 32;
  const int warp = threadIdx.x % 128 / 32;
  __nv_bfloat16* top = C + static_cast<size_t>(row + warp * 16 + lane / 4) * N + column + lane % 4 * 2;
  __nv_bfloat16* bottom = top + 8 * static_cast<size_t>(N);
#pragma unroll
  for (int block = 0; block < 32; ++block) {
    const float* four = &sums[block / 2][block % 2 * 4];
    *reinterpret_cast<__nv_bfloat162*>(top + block * 8) = __floats2bfloat162_rn(four[0], four[1]);
    *reinterpret_cast<__nv_bfloat162*>(bottom + block * 8) = __floats2bfloat162_rn(four[2], four[3]);
  }
}

__global__ void __launch_bounds__(kThreads, 1)
gemm_wgmma(const __grid_constant__ CUtensorMap map_a, const __grid_constant__ CUtensorMap map_b, __nv_bfloat16* C, int N,
           int K) {
  extern __shared__ uint8_t raw[];
  Shared& shared = *reinterpret_cast<Shared*>((reinterpret_cast<uintptr_t>(raw) + 1023) & ~uintptr_t{1023});
  const int m = blockIdx.y * kTileM;
  const int n = blockIdx.x * kTileN;
  const int slices = K / kTileK;

  if (threadIdx.x == 0) {
    for (int slot = 0; slot < kStages; ++slot) {
      barrier_init(&shared.full[slot], 1);
      barrier_init(&shared.empty[slot], kConsumers);
    }
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
  }
  __syncthreads();

  const int warpgroup = threadIdx.x / 128;
  if (warpgroup == 0) {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 40;");
    if (threadIdx.x == 0) produce(shared, map_a, map_b, m, n, slices);
  } else {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 232;");
    float sums[16][8];
    multiply(shared, sums, warpgroup - 1, slices);
    store(C, sums, m + (warpgroup - 1) * 64, n, N);
  }
}

// A [rows, columns] row-major BF16 matrix, read in boxes of 64 columns (128 bytes: one swizzle span).
CUtensorMap tensor_map(const __nv_bfloat16* matrix, int rows, int columns, int box_rows) {
  const cuuint64_t dims[2] = {static_cast<cuuint64_t>(columns), static_cast<cuuint64_t>(rows)};
  const cuuint64_t strides[1] = {static_cast<cuuint64_t>(columns) * sizeof(__nv_bfloat16)};
  const cuuint32_t box[2] = {kTileK, static_cast<cuuint32_t>(box_rows)};
  const cuuint32_t steps[2] = {1, 1};
  void* encode = nullptr;
  cudaDriverEntryPointQueryResult found;
  cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &encode, 12000, cudaEnableDefault, &found);
  CUtensorMap map;
  reinterpret_cast<decltype(&cuTensorMapEncodeTiled)>(encode)(
      &map, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, 2, const_cast<__nv_bfloat16*>(matrix), dims, strides, box, steps,
      CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B, CU_TENSOR_MAP_L2_PROMOTION_L2_128B,
      CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  return map;
}

}  // namespace

extern "C" void run(const __nv_bfloat16* A, const __nv_bfloat16* B, __nv_bfloat16* C, int M, int N, int K,
                    cudaStream_t stream) {
  const CUtensorMap map_a = tensor_map(A, M, K, kTileM);
  const CUtensorMap map_b = tensor_map(B, N, K, kTileN);
  cudaFuncSetAttribute(gemm_wgmma, cudaFuncAttributeMaxDynamicSharedMemorySize, kSharedBytes);
  gemm_wgmma<<<dim3(N / kTileN, M / kTileM), kThreads, kSharedBytes, stream>>>(map_a, map_b, C, N, K);
}
