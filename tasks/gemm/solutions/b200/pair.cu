// C = A·Bᵀ for Blackwell by pairs of CTAs: two CTAs of a cluster, on neighbouring SMs, share one product of 256×256. Each
// holds 128 rows of A, of B and of the sums, and the tensor cores of both read B from both: an SM loads half of the B
// that it would need alone, so the same shared memory carries twice the arithmetic.
//
//            even CTA, which leads         odd CTA
//   TMA      A[0:128], B[0:128]            A[128:256], B[128:256]     bytes of both count at the even CTA's barrier
//   product  one thread issues tcgen05.mma.cta_group::2 for both      commit tells both, by multicast
//   sums     rows 0:128, 256 columns       rows 128:256               in the tensor memory of each
//   C        stores its rows               stores its rows            `drained` counts both, at the even CTA
//
// The rest is oracle.cu: persistent, a ring of stages, two accumulators, TMA stores beside the next tile. Where M is no
// multiple of 256, TMA fills the rows beyond with zeros, and half of a product is wasted.
#include <cuda.h>
#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include <cstdint>

namespace {

constexpr int kPair = 2;                // CTAs of a pair: cluster ranks 0 and 1
constexpr int kTileM = 256;             // of the pair
constexpr int kTileN = 256;
constexpr int kRowsM = kTileM / kPair;  // of A, of the sums and of C in one CTA
constexpr int kRowsN = kTileN / kPair;  // of B in one CTA
constexpr int kTileK = 64;     // 128 bytes of BF16: one swizzle span
constexpr int kStages = 4;
constexpr int kGroupM = 8;     // row tiles that are walked together
constexpr int kStoreN = 64;    // columns of one TMA store: 128 bytes again
constexpr int kEpilogueWarps = 4;
constexpr int kThreads = 32 * (2 + kEpilogueWarps);
constexpr int kAccumulators = 2;
constexpr int kTensorColumns = kAccumulators * kTileN;  // all of tensor memory: 512 columns of 128 lanes of 32 bits
constexpr uint32_t kStageBytes = (kRowsM + kRowsN) * kTileK * sizeof(__nv_bfloat16);  // of one CTA

enum Role { kProducer = 0, kMultiplier = 1 };  // by warp; the others are the epilogue

struct Shared {
  __nv_bfloat16 a[kStages][kRowsM * kTileK];
  __nv_bfloat16 b[kStages][kRowsN * kTileK];
  __nv_bfloat16 out[2][kRowsM * kStoreN];
  uint64_t full[kStages];           // even CTA only: TMA has brought a stage to both CTAs
  uint64_t empty[kStages];          // the tensor cores have read it
  uint64_t done[kAccumulators];     // the sums of a tile are complete
  uint64_t drained[kAccumulators];  // even CTA only: the epilogues of both have read them
  uint32_t tensor_memory;           // address that tcgen05.alloc gave, the same in both CTAs
};
constexpr int kSharedBytes = sizeof(Shared) + 1024;  // 128-byte swizzle needs tiles at multiples of 1024
static_assert(kSharedBytes <= 227 * 1024, "more shared memory than a CTA can have on Blackwell");

__device__ __forceinline__ uint32_t shared_address(const void* pointer) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(pointer));
}

// A shared address names its CTA in the bits from 24 up: without bit 24 it is the same place in the pair's even CTA.
__device__ __forceinline__ uint32_t even_address(const void* pointer) { return shared_address(pointer) & 0xfeffffffu; }

__device__ __forceinline__ uint32_t cluster_rank() {
  uint32_t rank;
  asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  return rank;
}

// All threads of both CTAs meet.
__device__ __forceinline__ void cluster_sync() {
  asm volatile("barrier.cluster.arrive.release;\nbarrier.cluster.wait.acquire;" ::: "memory");
}

// ---- mbarriers

__device__ __forceinline__ void barrier_init(uint64_t* barrier, int arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(shared_address(barrier)), "r"(arrivals) : "memory");
}

__device__ __forceinline__ void barrier_expect(uint64_t* barrier, uint32_t bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared_address(barrier)), "r"(bytes)
               : "memory");
}

// At the even CTA's barrier, from either CTA.
__device__ __forceinline__ void barrier_arrive_even(uint64_t* barrier) {
  asm volatile("mbarrier.arrive.release.cluster.shared::cluster.b64 _, [%0];" ::"r"(even_address(barrier)) : "memory");
}

__device__ __forceinline__ void barrier_wait(uint64_t* barrier, uint32_t parity) {
  asm volatile(
      "{\n"
      ".reg .pred done;\n"
      "WAIT:\n"
      "mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 done, [%0], %1;\n"
      "@!done bra WAIT;\n"
      "}\n" ::"r"(shared_address(barrier)),
      "r"(parity)
      : "memory");
}

// ---- TMA

// One box of `map` at column `k`, row `row`, into the own shared memory. Its bytes count at the even CTA's barrier:
// .cta_group::2 allows the two to lie in different CTAs of a pair.
__device__ __forceinline__ void tma_load(void* target, const CUtensorMap* map, uint64_t* barrier, int k, int row) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes.cta_group::2 "
      "[%0], [%1, {%2, %3}], [%4];" ::"r"(shared_address(target)),
      "l"(map), "r"(k), "r"(row), "r"(even_address(barrier))
      : "memory");
}

__device__ __forceinline__ void tma_store(const CUtensorMap* map, const void* source, int column, int row) {
  asm volatile("cp.async.bulk.tensor.2d.global.shared::cta.tile.bulk_group [%0, {%1, %2}], [%3];" ::"l"(map),
               "r"(column), "r"(row), "r"(shared_address(source))
               : "memory");
}

// ---- tensor core

// K-major operand, 128-byte swizzle: eight rows of 128 bytes make an atom, atoms 1024 bytes apart. Bit 46 marks the
// descriptors of sm_100, whose swizzle modes stand in bits 61-63 (PTX ISA 9.7.16.4.1).
__device__ __forceinline__ uint64_t descriptor(const __nv_bfloat16* tile) {
  constexpr uint64_t kLeading = 1;  // not used by swizzled K-major layouts
  constexpr uint64_t kStride = 1024 / 16;
  constexpr uint64_t kVersion = 1;
  constexpr uint64_t kSwizzle128 = 2;
  return ((shared_address(tile) & 0x3ffff) >> 4) | kLeading << 16 | kStride << 32 | kVersion << 46 | kSwizzle128 << 61;
}

// Shape and types of the pair's product: FP32 sums (bit 4), BF16 operands (bits 7 and 10), N ÷ 8 from bit 17, M ÷ 16
// from bit 24; both operands K-major (PTX ISA 9.7.16.4.2).
constexpr uint32_t kInstruction = 1u << 4 | 1u << 7 | 1u << 10 | (kTileN / 8) << 17 | (kTileM / 16) << 24;

// Tensor memory[256, 256] += A[256, 16] · B[256, 16]ᵀ. One thread of the pair issues it for both CTAs: each tensor
// core takes A from its own CTA and B from both, at the addresses of the descriptors, and adds to its own CTA's sums.
__device__ __forceinline__ void multiply_add(uint32_t sums, uint64_t a, uint64_t b, bool accumulate) {
  asm volatile(
      "{\n"
      ".reg .pred p;\n"
      "setp.ne.b32 p, %4, 0;\n"
      "tcgen05.mma.cta_group::2.kind::f16 [%0], %1, %2, %3, p;\n"
      "}\n" ::"r"(sums),
      "l"(a), "l"(b), "r"(kInstruction), "r"(static_cast<int>(accumulate))
      : "memory");
}

// Arrive at `barrier` in both CTAs when everything that this thread has issued to the tensor cores is complete.
__device__ __forceinline__ void tensor_commit(uint64_t* barrier) {
  constexpr uint16_t kBoth = 0b11;  // bit per cluster rank
  asm volatile(
      "tcgen05.commit.cta_group::2.mbarrier::arrive::one.shared::cluster.multicast::cluster.b64 [%0], %1;" ::"r"(
          shared_address(barrier)),
      "h"(kBoth)
      : "memory");
}

// Order what touches tensor memory with what other threads did to it before (after) a barrier.
__device__ __forceinline__ void fence_before_sync() { asm volatile("tcgen05.fence::before_thread_sync;" ::: "memory"); }
__device__ __forceinline__ void fence_after_sync() { asm volatile("tcgen05.fence::after_thread_sync;" ::: "memory"); }

// 32 columns of the 32 lanes that belong to this warp: thread i gets lane i. The wait names the registers, so that the
// compiler reads none of them before it.
__device__ __forceinline__ void load_sums(uint32_t address, uint32_t (&r)[32]) {
  asm volatile(
      "tcgen05.ld.sync.aligned.32x32b.x32.b32 {"
      "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
      "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31}, [%32];\n"
      "tcgen05.wait::ld.sync.aligned;"
      : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]), "=r"(r[4]), "=r"(r[5]), "=r"(r[6]), "=r"(r[7]), "=r"(r[8]),
        "=r"(r[9]), "=r"(r[10]), "=r"(r[11]), "=r"(r[12]), "=r"(r[13]), "=r"(r[14]), "=r"(r[15]), "=r"(r[16]),
        "=r"(r[17]), "=r"(r[18]), "=r"(r[19]), "=r"(r[20]), "=r"(r[21]), "=r"(r[22]), "=r"(r[23]), "=r"(r[24]),
        "=r"(r[25]), "=r"(r[26]), "=r"(r[27]), "=r"(r[28]), "=r"(r[29]), "=r"(r[30]), "=r"(r[31])
      : "r"(address)
      : "memory");
}

// ---- the walk over tiles

// A place in a ring of `Slots`: its slot, and the parity that flips each time around.
template <int Slots>
struct Cursor {
  int slot = 0;
  uint32_t parity = 0;
  __device__ __forceinline__ void advance() {
    if (++slot == Slots) {
      slot = 0;
      parity ^= 1;
    }
  }
};

struct Tile {
  int m, n;
};

__device__ __forceinline__ int pair_index() { return blockIdx.x / kPair; }
__device__ __forceinline__ int pairs() { return gridDim.x / kPair; }

// Groups of kGroupM row tiles; inside a group rows run fastest.
__device__ __forceinline__ Tile tile_at(int index, int tiles_m, int tiles_n) {
  const int first = index / (kGroupM * tiles_n) * kGroupM;
  const int rows = min(kGroupM, tiles_m - first);
  const int inside = index % (kGroupM * tiles_n);
  return {(first + inside % rows) * kTileM, inside / rows * kTileN};
}

// ---- roles

// One thread of each CTA loads its own halves. The even one announces the bytes of both; those of the odd CTA may come
// before they are announced, since the phase cannot end without that arrival.
__device__ __forceinline__ void produce(Shared& shared, const CUtensorMap& map_a, const CUtensorMap& map_b, int tiles_m,
                                        int tiles_n, int slices) {
  const int rank = cluster_rank();
  Cursor<kStages> stage;
  for (int index = pair_index(); index < tiles_m * tiles_n; index += pairs()) {
    const Tile tile = tile_at(index, tiles_m, tiles_n);
    for (int slice = 0; slice < slices; ++slice, stage.advance()) {
      barrier_wait(&shared.empty[stage.slot], stage.parity ^ 1);
      if (rank == 0) barrier_expect(&shared.full[stage.slot], kPair * kStageBytes);
      tma_load(shared.a[stage.slot], &map_a, &shared.full[stage.slot], slice * kTileK, tile.m + rank * kRowsM);
      tma_load(shared.b[stage.slot], &map_b, &shared.full[stage.slot], slice * kTileK, tile.n + rank * kRowsN);
    }
  }
}

// One thread of the pair, in the even CTA. The products of a thread execute in order; a commit releases each stage in
// both CTAs when they have read it.
__device__ __forceinline__ void multiply(Shared& shared, uint32_t tensor_memory, int tiles, int slices) {
  Cursor<kStages> stage;
  Cursor<kAccumulators> accumulator;
  for (int index = pair_index(); index < tiles; index += pairs(), accumulator.advance()) {
    const uint32_t sums = tensor_memory + accumulator.slot * kTileN;
    barrier_wait(&shared.drained[accumulator.slot], accumulator.parity ^ 1);
    fence_after_sync();
    for (int slice = 0; slice < slices; ++slice, stage.advance()) {
      barrier_wait(&shared.full[stage.slot], stage.parity);
      fence_after_sync();
#pragma unroll
      for (int k = 0; k < kTileK; k += 16) {
        multiply_add(sums, descriptor(shared.a[stage.slot] + k), descriptor(shared.b[stage.slot] + k),
                     slice > 0 || k > 0);
      }
      tensor_commit(&shared.empty[stage.slot]);
    }
    tensor_commit(&shared.done[accumulator.slot]);
  }
}

__device__ __forceinline__ uint32_t pack(uint32_t low, uint32_t high) {
  const __nv_bfloat162 pair = __floats2bfloat162_rn(__uint_as_float(low), __uint_as_float(high));
  return reinterpret_cast<const uint32_t&>(pair);
}

// Let the threads of the epilogue meet; identifier 0 belongs to __syncthreads.
__device__ __forceinline__ void epilogue_sync() { asm volatile("bar.sync 1, %0;" ::"n"(32 * kEpilogueWarps)); }

// Four warps of each CTA, one for each quarter of its lanes: which quarter a warp may read follows from its number (PTX
// ISA 9.7.16.8.1). A row of C is a lane: rows 0 to 127 of the tile in the even CTA, 128 to 255 in the odd one
// (9.7.16.10.5, layout A), from lane 0 up in both.
__device__ __forceinline__ void store(Shared& shared, const CUtensorMap& map_c, uint32_t tensor_memory, int tiles_m,
                                      int tiles_n, int M) {
  const int quarter = threadIdx.x / 32 % 4;
  const int row = quarter * 32 + threadIdx.x % 32;
  const bool issuer = threadIdx.x == 64;  // the first thread of the epilogue
  const int first_row = cluster_rank() * kRowsM;
  Cursor<kAccumulators> accumulator;
  for (int index = pair_index(); index < tiles_m * tiles_n; index += pairs(), accumulator.advance()) {
    const Tile tile = tile_at(index, tiles_m, tiles_n);
    const uint32_t sums = tensor_memory + (quarter * 32 << 16) + accumulator.slot * kTileN;
    barrier_wait(&shared.done[accumulator.slot], accumulator.parity);
    fence_after_sync();
    for (int part = 0; part < kTileN / kStoreN; ++part) {
      __nv_bfloat16* buffer = shared.out[part % 2];
      if (issuer) asm volatile("cp.async.bulk.wait_group.read 1;" ::: "memory");  // its last store has read it
      epilogue_sync();
      const uint32_t line = shared_address(buffer) + row * kStoreN * sizeof(__nv_bfloat16);
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        uint32_t values[32];
        load_sums(sums + part * kStoreN + half * 32, values);
#pragma unroll
        for (int eight = 0; eight < 4; ++eight) {  // 16 bytes each, swizzled as the tensor map says
          const uint32_t* v = values + eight * 8;
          const uint32_t chunk = (half * 4 + eight) ^ (row % 8);
          asm volatile("st.shared.v4.b32 [%0], {%1, %2, %3, %4};" ::"r"(line + chunk * 16), "r"(pack(v[0], v[1])),
                       "r"(pack(v[2], v[3])), "r"(pack(v[4], v[5])), "r"(pack(v[6], v[7]))
                       : "memory");
        }
      }
      if (part == kTileN / kStoreN - 1) {  // the tile is read: its tensor memory may take the next but one
        fence_before_sync();
        __syncwarp();
        if (threadIdx.x % 32 == 0) barrier_arrive_even(&shared.drained[accumulator.slot]);
      }
      asm volatile("fence.proxy.async.shared::cta;" ::: "memory");  // TMA reads what ordinary stores wrote
      epilogue_sync();
      if (issuer) {
        if (tile.m + first_row < M) tma_store(&map_c, buffer, tile.n + part * kStoreN, tile.m + first_row);
        asm volatile("cp.async.bulk.commit_group;" ::: "memory");  // empty ones, too: the wait counts groups
      }
    }
  }
  if (issuer) asm volatile("cp.async.bulk.wait_group 0;" ::: "memory");
}

__global__ void __cluster_dims__(kPair, 1, 1) __launch_bounds__(kThreads, 1)
gemm_pair(const __grid_constant__ CUtensorMap map_a, const __grid_constant__ CUtensorMap map_b,
            const __grid_constant__ CUtensorMap map_c, int M, int N, int K) {
  extern __shared__ uint8_t raw[];
  Shared& shared = *reinterpret_cast<Shared*>((reinterpret_cast<uintptr_t>(raw) + 1023) & ~uintptr_t{1023});
  const int tiles_m = (M + kTileM - 1) / kTileM;
  const int tiles_n = N / kTileN;
  const int slices = K / kTileK;
  const int warp = threadIdx.x / 32;

  if (threadIdx.x == 0) {
    for (int slot = 0; slot < kStages; ++slot) {
      barrier_init(&shared.full[slot], 1);
      barrier_init(&shared.empty[slot], 1);
    }
    for (int slot = 0; slot < kAccumulators; ++slot) {
      barrier_init(&shared.done[slot], 1);
      barrier_init(&shared.drained[slot], kPair * kEpilogueWarps);
    }
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
  }
  if (warp == kMultiplier) {  // a whole warp of each CTA allocates, both together; the address arrives in shared memory
    asm volatile("tcgen05.alloc.cta_group::2.sync.aligned.shared::cta.b32 [%0], %1;" ::"r"(
                     shared_address(&shared.tensor_memory)),
                 "r"(kTensorColumns)
                 : "memory");
    asm volatile("tcgen05.relinquish_alloc_permit.cta_group::2.sync.aligned;");
  }
  fence_before_sync();
  cluster_sync();  // the barriers of both CTAs exist before either signals them
  fence_after_sync();
  const uint32_t tensor_memory = shared.tensor_memory;

  if (warp == kProducer) {
    if (threadIdx.x % 32 == 0) produce(shared, map_a, map_b, tiles_m, tiles_n, slices);
  } else if (warp == kMultiplier) {
    if (threadIdx.x % 32 == 0 && cluster_rank() == 0) multiply(shared, tensor_memory, tiles_m * tiles_n, slices);
  } else {
    store(shared, map_c, tensor_memory, tiles_m, tiles_n, M);
  }

  fence_before_sync();
  cluster_sync();  // neither CTA leaves, or frees, while the other's work touches it
  fence_after_sync();
  if (warp == kMultiplier) {
    asm volatile("tcgen05.dealloc.cta_group::2.sync.aligned.b32 %0, %1;" ::"r"(tensor_memory), "r"(kTensorColumns));
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
  const int tiles = (M + kTileM - 1) / kTileM * (N / kTileN);
  const int resident = processors / kPair;
  const CUtensorMap map_a = tensor_map(A, M, K, kRowsM);
  const CUtensorMap map_b = tensor_map(B, N, K, kRowsN);
  const CUtensorMap map_c = tensor_map(C, M, N, kRowsM);
  cudaFuncSetAttribute(gemm_pair, cudaFuncAttributeMaxDynamicSharedMemorySize, kSharedBytes);
  gemm_pair<<<kPair * (tiles < resident ? tiles : resident), kThreads, kSharedBytes, stream>>>(map_a, map_b, map_c, M,
                                                                                               N, K);
}
