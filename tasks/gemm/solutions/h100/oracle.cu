// C = A·Bᵀ for Hopper, made to be fast: one persistent CTA per SM walks tiles in an order that keeps both operands in
// L2; TMA fills a ring of four stages that runs on across tiles; two warpgroups keep one group of wgmma in flight; sums
// leave through shared memory by TMA stores that overlap the next tile.
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
constexpr int kGroupM = 16;    // row tiles that are walked together: with 132 SMs a wave covers about 2048×2048 of C
constexpr int kStoreN = 64;    // columns of one TMA store: 128 bytes, one swizzle span
constexpr uint32_t kStageBytes = (kTileM + kTileN) * kTileK * sizeof(__nv_bfloat16);

struct Shared {
  __nv_bfloat16 a[kStages][kTileM * kTileK];
  __nv_bfloat16 b[kStages][kTileN * kTileK];
  __nv_bfloat16 out[kConsumers][2][64 * kStoreN];
  uint64_t full[kStages];
  uint64_t empty[kStages];
};
constexpr int kSharedBytes = sizeof(Shared) + 1024;  // 128-byte swizzle needs tiles at multiples of 1024
static_assert(kSharedBytes <= 227 * 1024, "more shared memory than a CTA can have on Hopper");

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

__device__ __forceinline__ void tma_store(const CUtensorMap* map, const void* source, int column, int row) {
  asm volatile("cp.async.bulk.tensor.2d.global.shared::cta.tile.bulk_group [%0, {%1, %2}], [%3];" ::"l"(map),
               "r"(column), "r"(row), "r"(shared_address(source))
               : "memory");
  asm volatile("cp.async.bulk.commit_group;" ::: "memory");
}

// Let the 128 threads of one consumer meet; identifier 0 belongs to __syncthreads.
__device__ __forceinline__ void consumer_sync(int consumer) {
  asm volatile("bar.sync %0, 128;" ::"r"(consumer + 1) : "memory");
}

__device__ __forceinline__ uint32_t pack(float low, float high) {
  const __nv_bfloat162 pair = __floats2bfloat162_rn(low, high);
  return reinterpret_cast<const uint32_t&>(pair);
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

struct Tile {
  int m, n;
};

// Groups of kGroupM row tiles; inside a group rows run fastest.
__device__ __forceinline__ Tile tile_at(int index, int tiles_m, int tiles_n) {
  const int first = index / (kGroupM * tiles_n) * kGroupM;
  const int rows = min(kGroupM, tiles_m - first);
  const int inside = index % (kGroupM * tiles_n);
  return {(first + inside % rows) * kTileM, inside / rows * kTileN};
}

__device__ __forceinline__ void produce(Shared& shared, const CUtensorMap& map_a, const CUtensorMap& map_b, int tiles_m,
                                        int tiles_n, int slices) {
  Cursor cursor;
  for (int index = blockIdx.x; index < tiles_m * tiles_n; index += gridDim.x) {
    const Tile tile = tile_at(index, tiles_m, tiles_n);
    for (int slice = 0; slice < slices; ++slice, cursor.advance()) {
      barrier_wait(&shared.empty[cursor.slot], cursor.parity ^ 1);
      barrier_expect(&shared.full[cursor.slot], kStageBytes);
      tma_load(shared.a[cursor.slot], &map_a, &shared.full[cursor.slot], slice * kTileK, tile.m);
      tma_load(shared.b[cursor.slot], &map_b, &shared.full[cursor.slot], slice * kTileK, tile.n);
    }
  }
}

// Sum one tile. A slot is released when the group that reads it has retired, one slice after it was issued.
__device__ __forceinline__ void multiply(Shared& shared, float (&sums)[16][8], Cursor& cursor, int consumer,
                                         int slices) {
  int previous = 0;
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
    asm volatile("wgmma.wait_group.sync.aligned 1;" ::: "memory");
    if (slice > 0 && threadIdx.x % 128 == 0) barrier_arrive(&shared.empty[previous]);
    previous = cursor.slot;
  }
  asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory");
  if (threadIdx.x % 128 == 0) barrier_arrive(&shared.empty[previous]);
}

// Write 64×256 sums as four stores of 64×64 through two buffers; a buffer is refilled when its last store has read it.
__device__ __forceinline__ void store(Shared& shared, const CUtensorMap& map_c, const float (&sums)[16][8],
                                      int consumer, int row, int column) {
  const bool issuer = threadIdx.x % 128 == 0;
  const int lane = threadIdx.x % 32;
  const int shared_row = threadIdx.x % 128 / 32 * 16 + lane % 16;
#pragma unroll
  for (int part = 0; part < kTileN / kStoreN; ++part) {
    __nv_bfloat16* buffer = shared.out[consumer][part % 2];
    if (issuer) asm volatile("cp.async.bulk.wait_group.read 1;" ::: "memory");
    consumer_sync(consumer);
    const uint32_t line = shared_address(buffer) + shared_row * kStoreN * sizeof(__nv_bfloat16);
#pragma unroll
    for (int pair = 0; pair < 4; ++pair) {  // 16 columns: two 8×8 blocks, upper and lower rows of each
      const float* eight = sums[part * 4 + pair];
      const uint32_t chunk = (pair * 2 + lane / 16) ^ (shared_row % 8);
      asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(line + chunk * 16),
                   "r"(pack(eight[0], eight[1])), "r"(pack(eight[2], eight[3])), "r"(pack(eight[4], eight[5])),
                   "r"(pack(eight[6], eight[7]))
                   : "memory");
    }
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");  // TMA reads what ordinary stores wrote
    consumer_sync(consumer);
    if (issuer) tma_store(&map_c, buffer, column + part * kStoreN, row);
  }
}

__global__ void __launch_bounds__(kThreads, 1)
gemm_oracle(const __grid_constant__ CUtensorMap map_a, const __grid_constant__ CUtensorMap map_b,
            const __grid_constant__ CUtensorMap map_c, int M, int N, int K) {
  extern __shared__ uint8_t raw[];
  Shared& shared = *reinterpret_cast<Shared*>((reinterpret_cast<uintptr_t>(raw) + 1023) & ~uintptr_t{1023});
  const int tiles_m = M / kTileM;
  const int tiles_n = N / kTileN;
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
    if (threadIdx.x == 0) produce(shared, map_a, map_b, tiles_m, tiles_n, slices);
  } else {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 232;");
    const int consumer = warpgroup - 1;
    Cursor cursor;
    for (int index = blockIdx.x; index < tiles_m * tiles_n; index += gridDim.x) {
      const Tile tile = tile_at(index, tiles_m, tiles_n);
      float sums[16][8];
      multiply(shared, sums, cursor, consumer, slices);
      store(shared, map_c, sums, consumer, tile.m + consumer * 64, tile.n);
    }
    if (threadIdx.x % 128 == 0) asm volatile("cp.async.bulk.wait_group 0;" ::: "memory");
  }
}

// A [rows, columns] row-major BF16 matrix, moved in boxes of 64 columns (128 bytes: one swizzle span).
CUtensorMap tensor_map(const __nv_bfloat16* matrix, int rows, int columns, int box_rows) {
  const cuuint64_t dims[2] = {static_cast<cuuint64_t>(columns), static_cast<cuuint64_t>(rows)};
  const cuuint64_t strides[1] = {static_cast<cuuint64_t>(columns) * sizeof(__nv_bfloat16)};
  const cuuint32_t box[2] = {64, static_cast<cuuint32_t>(box_rows)};
  const cuuint32_t steps[2] = {1, 1};
  void* encode = nullptr;
  cudaDriverEntryPointQueryResult found;
  cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &encode, 12000, cudaEnableDefault, &found);
  CUtensorMap map;
  reinterpret_cast<decltype(&cuTensorMapEncodeTiled)>(encode)(
      &map, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, 2, const_cast<__nv_bfloat16*>(matrix), dims, strides, box, steps,
      CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B, CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
      CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  return map;
}

}  // namespace

extern "C" void run(const __nv_bfloat16* A, const __nv_bfloat16* B, __nv_bfloat16* C, int M, int N, int K,
                    cudaStream_t stream) {
  int device = 0;
  int processors = 0;
  cudaGetDevice(&device);
  cudaDeviceGetAttribute(&processors, cudaDevAttrMultiProcessorCount, device);
  const int tiles = (M / kTileM) * (N / kTileN);
  const CUtensorMap map_a = tensor_map(A, M, K, kTileM);
  const CUtensorMap map_b = tensor_map(B, N, K, kTileN);
  const CUtensorMap map_c = tensor_map(C, M, N, 64);
  cudaFuncSetAttribute(gemm_oracle, cudaFuncAttributeMaxDynamicSharedMemorySize, kSharedBytes);
  gemm_oracle<<<tiles < processors ? tiles : processors, kThreads, kSharedBytes, stream>>>(map_a, map_b, map_c, M, N,
                                                                                           K);
}
