// dQ, dK and dV of causal attention for Blackwell, all matrix products by tcgen05, in three kernels, without atomics:
//   1. `statistics`: for every query, LSE in base 2 and delta = Σ_d dO · O, into a workspace;
//   2. `backward<Kept::Keys>`: a CTA keeps 128 keys, the queries that see them stream past; dV and dK;
//   3. `backward<Kept::Queries>`: a CTA keeps 128 queries, the keys that they see stream past; dQ.
// With P = exp(scale · Q·Kᵀ − LSE), dP = dO·Vᵀ and dS = P ∘ (dP − delta), the latter two are one program. Of a pair of
// tiles that is kept and a pair that streams past, (K, V) and (Q, dO) or the other way round, it computes
//   S = kept[0] · stream[0]ᵀ         sums[0] += dS · stream[0]    which is dK or dQ
//   dP = kept[1] · stream[1]ᵀ        sums[1] += P · stream[1]     for keys alone: dV
// Where keys are kept, S, P, dP and dS are thereby transposed: a row is a key, a column a query. Both kernels compute S
// and dP: two products of seven are the price of sums that need no other CTA.
//
// Eight warps turn S into P and dP into dS within tensor memory, whence the next products take them as operand A. Each
// takes the place of what it was made from, and the order of products keeps the tensor core busy all the same: while
// warps take exponentials of S, it computes the last block's share of sums[0] and the next dP; while they form dS, it
// computes sums[1] and the next S.
#include <cuda.h>
#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include <cstdint>

namespace {

constexpr int kHeadDim = 128;
constexpr int kTokens = 128;  // of a tile: what a CTA keeps, and what streams past at a time
constexpr int kSpan = 64;     // columns of half a tile: 128 bytes, one swizzle span
constexpr int kHalves = 2;
constexpr int kStages = 2;
constexpr float kScale = 0.08838834764831845f;  // 1 / sqrt(kHeadDim)
constexpr float kLog2E = 1.4426950408889634f;

// Warps by number. Eight work on rows: which quarter of the lanes a warp may touch follows from its number (PTX ISA
// 9.7.16.8.1), and two warps share a quarter, each with half of the columns.
constexpr int kRowWarps = 8;
constexpr int kProducer = 8;
constexpr int kMultiplier = 9;
constexpr int kThreads = 32 * 10;

// Tensor memory: four matrices of 128 lanes × 128 columns of 32 bits, all that there is.
constexpr int kScores = 0;         // S, then P
constexpr int kDerivatives = 128;  // dP, then dS
constexpr int kFirstSums = 256;
constexpr int kSecondSums = 384;
constexpr int kTensorColumns = 512;

enum class Kept { Keys, Queries };

// 128 tokens × 128 dimensions, as two halves that TMA fills and the tensor core reads with 128-byte swizzle.
struct Tile {
  __nv_bfloat16 half[kHalves][kTokens * kSpan];
};

struct alignas(16) Statistics {  // of 128 queries
  float lse_log2[kTokens];
  float delta[kTokens];
};

struct Shared {
  Tile kept[2];  // at the end the sums on their way out
  Tile ring[kStages][2];
  Statistics statistics[kStages];  // of the queries that stream past
  uint64_t loaded;                 // TMA has brought what is kept
  uint64_t full[kStages];          // and a stage of what streams past
  uint64_t empty[kStages];         // all its products are complete
  uint64_t scores;                 // S is complete
  uint64_t derivatives;            // dP is
  uint64_t scores_used;            // P stands in the place of S, or S has been read
  uint64_t derivatives_used;       // dS stands in the place of dP
  uint64_t done;                   // the sums are complete
  uint32_t tensor_memory;          // address that tcgen05.alloc gave
};
constexpr int kSharedBytes = sizeof(Shared) + 1024;  // 128-byte swizzle needs tiles at multiples of 1024
static_assert(kSharedBytes <= 227 * 1024, "more shared memory than a CTA can have on Blackwell");

struct Maps {
  CUtensorMap kept[2];
  CUtensorMap stream[2];
  CUtensorMap sums[2];  // the second for keys alone
};

__device__ __forceinline__ uint32_t shared_address(const void* pointer) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(pointer));
}

// ---- mbarriers

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

// ---- TMA

// The tile that begins at token `row` of `map`; its bytes count towards `barrier`.
__device__ __forceinline__ void load_tile(Tile& tile, const CUtensorMap& map, uint64_t* barrier, int row) {
#pragma unroll
  for (int half = 0; half < kHalves; ++half) {
    asm volatile(
        "cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes "
        "[%0], [%1, {%2, %3}], [%4];" ::"r"(shared_address(tile.half[half])),
        "l"(&map), "r"(half * kSpan), "r"(row), "r"(shared_address(barrier))
        : "memory");
  }
}

__device__ __forceinline__ void load_statistics(Statistics& target, const Statistics* source, uint64_t* barrier) {
  asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(
                   shared_address(&target)),
               "l"(source), "n"(sizeof(Statistics)), "r"(shared_address(barrier))
               : "memory");
}

__device__ __forceinline__ void tma_store(const CUtensorMap& map, const void* source, int column, int row) {
  asm volatile("cp.async.bulk.tensor.2d.global.shared::cta.tile.bulk_group [%0, {%1, %2}], [%3];" ::"l"(&map),
               "r"(column), "r"(row), "r"(shared_address(source))
               : "memory");
}

// Wait until this thread's stores are done: shared memory must outlive them.
__device__ __forceinline__ void finish_stores() {
  asm volatile("cp.async.bulk.commit_group;" ::: "memory");
  asm volatile("cp.async.bulk.wait_group 0;" ::: "memory");
}

// ---- tensor core

// Both layouts of a half tile in 128-byte swizzle: eight tokens of 128 bytes make an atom of 1024 bytes, and the next
// eight tokens follow it. Summed over dimensions the tile is K-major, and 16 of them lie within an atom's rows; summed
// over tokens it is MN-major, 16 of them are two atoms, and the second 64 dimensions are in the other half, at the
// leading offset (PTX ISA 9.7.16.3.3). Bit 46 marks the descriptors of sm_100, whose swizzle modes stand in bits 61-63
// (9.7.16.4.1).
__device__ __forceinline__ uint64_t descriptor(const void* start, uint64_t leading_bytes) {
  constexpr uint64_t kStride = 1024 / 16;
  constexpr uint64_t kVersion = 1;
  constexpr uint64_t kSwizzle128 = 2;
  return ((shared_address(start) & 0x3ffff) >> 4) | leading_bytes / 16 << 16 | kStride << 32 | kVersion << 46 |
         kSwizzle128 << 61;
}

__device__ __forceinline__ uint64_t k_major(const Tile& tile, int dimension) {
  return descriptor(tile.half[dimension / kSpan] + dimension % kSpan, 16);  // swizzled K-major: leading is not used
}

__device__ __forceinline__ uint64_t mn_major(const Tile& tile, int token) {
  return descriptor(tile.half[0] + token * kSpan, sizeof(tile.half[0]));
}

// Shape and types of a product: FP32 sums (bit 4), BF16 operands (bits 7 and 10), N ÷ 8 from bit 17, M ÷ 16 from bit 24
// (PTX ISA 9.7.16.4.2). Operands are K-major unless bit 15 (A) or 16 (B) says otherwise.
constexpr uint32_t kInstruction = 1u << 4 | 1u << 7 | 1u << 10 | (128 / 8) << 17 | (128 / 16) << 24;
constexpr uint32_t kTransposeB = 1u << 16;

// Tensor memory[128, 128] (+)= A[128, 16] · B[128, 16]ᵀ. One thread issues it for the whole CTA.
__device__ __forceinline__ void multiply_add(uint32_t sums, uint64_t a, uint64_t b, bool accumulate) {
  asm volatile(
      "{\n"
      ".reg .pred p;\n"
      "setp.ne.b32 p, %4, 0;\n"
      "tcgen05.mma.cta_group::1.kind::f16 [%0], %1, %2, %3, p;\n"
      "}\n" ::"r"(sums),
      "l"(a), "l"(b), "r"(kInstruction), "r"(static_cast<int>(accumulate))
      : "memory");
}

// Tensor memory[128, 128] (+)= A[128, 16] · B[16, 128]: A in tensor memory, B in shared memory, MN-major.
__device__ __forceinline__ void multiply_add_tmem(uint32_t sums, uint32_t a, uint64_t b, bool accumulate) {
  asm volatile(
      "{\n"
      ".reg .pred p;\n"
      "setp.ne.b32 p, %4, 0;\n"
      "tcgen05.mma.cta_group::1.kind::f16 [%0], [%1], %2, %3, p;\n"
      "}\n" ::"r"(sums),
      "r"(a), "l"(b), "r"(kInstruction | kTransposeB), "r"(static_cast<int>(accumulate))
      : "memory");
}

// d = a · bᵀ, summed over the 128 dimensions.
__device__ __forceinline__ void multiply_dimensions(uint32_t d, const Tile& a, const Tile& b) {
#pragma unroll
  for (int dimension = 0; dimension < kHeadDim; dimension += 16) {
    multiply_add(d, k_major(a, dimension), k_major(b, dimension), dimension > 0);
  }
}

// An operand A that has taken the place of a result: each warp has put the 64 values of a row that it read, two to a
// column, into the first 32 of their 64 columns.
__device__ __forceinline__ uint32_t operand_column(int token) { return token / kSpan * kSpan + token % kSpan / 2; }

// d = a · b, summed over the 128 tokens of b, or added to d.
__device__ __forceinline__ void multiply_tokens(uint32_t d, uint32_t a, const Tile& b, bool accumulate) {
#pragma unroll
  for (int token = 0; token < kTokens; token += 16) {
    multiply_add_tmem(d, a + operand_column(token), mn_major(b, token), accumulate || token > 0);
  }
}

// Arrive at `barrier` when everything that this thread has issued to the tensor core is complete.
__device__ __forceinline__ void tensor_commit(uint64_t* barrier) {
  asm volatile("tcgen05.commit.cta_group::1.mbarrier::arrive::one.shared::cluster.b64 [%0];" ::"r"(
                   shared_address(barrier))
               : "memory");
}

// Order what touches tensor memory with what other threads did to it before (after) a barrier.
__device__ __forceinline__ void fence_before_sync() { asm volatile("tcgen05.fence::before_thread_sync;" ::: "memory"); }
__device__ __forceinline__ void fence_after_sync() { asm volatile("tcgen05.fence::after_thread_sync;" ::: "memory"); }

// 32 columns of the 32 lanes that belong to this warp: thread i gets lane i. The wait names the registers, so that the
// compiler reads none of them before it.
__device__ __forceinline__ void load_columns(float* r, uint32_t address) {
  asm volatile(
      "tcgen05.ld.sync.aligned.32x32b.x32.b32 {"
      "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
      "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31}, [%32];\n"
      "tcgen05.wait::ld.sync.aligned;"
      : "=f"(r[0]), "=f"(r[1]), "=f"(r[2]), "=f"(r[3]), "=f"(r[4]), "=f"(r[5]), "=f"(r[6]), "=f"(r[7]), "=f"(r[8]),
        "=f"(r[9]), "=f"(r[10]), "=f"(r[11]), "=f"(r[12]), "=f"(r[13]), "=f"(r[14]), "=f"(r[15]), "=f"(r[16]),
        "=f"(r[17]), "=f"(r[18]), "=f"(r[19]), "=f"(r[20]), "=f"(r[21]), "=f"(r[22]), "=f"(r[23]), "=f"(r[24]),
        "=f"(r[25]), "=f"(r[26]), "=f"(r[27]), "=f"(r[28]), "=f"(r[29]), "=f"(r[30]), "=f"(r[31])
      : "r"(address)
      : "memory");
}

__device__ __forceinline__ void store_columns(uint32_t address, const uint32_t (&r)[32]) {
  asm volatile(
      "tcgen05.st.sync.aligned.32x32b.x32.b32 [%0], {"
      "%1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, "
      "%17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, %32};\n"
      "tcgen05.wait::st.sync.aligned;" ::"r"(address),
      "r"(r[0]), "r"(r[1]), "r"(r[2]), "r"(r[3]), "r"(r[4]), "r"(r[5]), "r"(r[6]), "r"(r[7]), "r"(r[8]), "r"(r[9]),
      "r"(r[10]), "r"(r[11]), "r"(r[12]), "r"(r[13]), "r"(r[14]), "r"(r[15]), "r"(r[16]), "r"(r[17]), "r"(r[18]),
      "r"(r[19]), "r"(r[20]), "r"(r[21]), "r"(r[22]), "r"(r[23]), "r"(r[24]), "r"(r[25]), "r"(r[26]), "r"(r[27]),
      "r"(r[28]), "r"(r[29]), "r"(r[30]), "r"(r[31])
      : "memory");
}

// ---- arithmetic of a row

// exp(scale · score − LSE): base 2 is what the hardware computes.
__device__ __forceinline__ float probability(float score, float lse_log2) {
  float p;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(p) : "f"(fmaf(score, kScale * kLog2E, -lse_log2)));
  return p;
}

__device__ __forceinline__ uint32_t pack(float low, float high) {
  const __nv_bfloat162 pair = __floats2bfloat162_rn(low, high);
  return reinterpret_cast<const uint32_t&>(pair);
}

// Round 64 values of a row into the first 32 of the columns that they came from (see operand_column).
__device__ __forceinline__ void store_operand(uint32_t address, const float (&values)[kSpan]) {
  uint32_t pairs[kSpan / 2];
#pragma unroll
  for (int pair = 0; pair < kSpan / 2; ++pair) pairs[pair] = pack(values[2 * pair], values[2 * pair + 1]);
  store_columns(address, pairs);
}

// One arrival per warp, when all its threads have come here.
__device__ __forceinline__ void warp_arrive(uint64_t* barrier) {
  fence_before_sync();
  __syncwarp();
  if (threadIdx.x % 32 == 0) barrier_arrive(barrier);
}

// ---- roles

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

// One thread: load what the CTA keeps, then let blocks of 128 tokens stream through the ring.
template <Kept kept>
__device__ __forceinline__ void produce(Shared& shared, const Maps& maps, const Statistics* statistics, int kept_row,
                                        int stream_row, int blocks) {
  barrier_expect(&shared.loaded, sizeof(shared.kept));
  for (int i = 0; i < 2; ++i) load_tile(shared.kept[i], maps.kept[i], &shared.loaded, kept_row);
  Cursor stage;
  for (int block = 0; block < blocks; ++block, stage.advance()) {
    const int row = stream_row + block * kTokens;
    uint64_t* full = &shared.full[stage.slot];
    barrier_wait(&shared.empty[stage.slot], stage.parity ^ 1);
    barrier_expect(full, 2 * sizeof(Tile) + (kept == Kept::Keys ? sizeof(Statistics) : 0));
    for (int i = 0; i < 2; ++i) load_tile(shared.ring[stage.slot][i], maps.stream[i], full, row);
    if constexpr (kept == Kept::Keys) load_statistics(shared.statistics[stage.slot], statistics + row / kTokens, full);
  }
}

// One thread. The tensor core executes its products in the order of issue, so that the next S may be written to where
// the last product reads P from, and the next dP to where dS is. (PTX ISA 9.7.16.6.2 promises this order for products
// that share their sums; published attention kernels rely on it for all of one thread.)
template <Kept kept>
__device__ __forceinline__ void multiply(Shared& shared, uint32_t tensor_memory, int blocks) {
  const uint32_t scores = tensor_memory + kScores;
  const uint32_t derivatives = tensor_memory + kDerivatives;
  Cursor stage;
  Cursor next;
  barrier_wait(&shared.loaded, 0);
  barrier_wait(&shared.full[0], 0);
  multiply_dimensions(scores, shared.kept[0], shared.ring[0][0]);
  tensor_commit(&shared.scores);
  multiply_dimensions(derivatives, shared.kept[1], shared.ring[0][1]);
  tensor_commit(&shared.derivatives);
  for (int block = 0; block < blocks; ++block, stage.advance()) {
    const Tile(&stream)[2] = shared.ring[stage.slot];
    const bool last = block == blocks - 1;
    next.advance();

    barrier_wait(&shared.scores_used, block % 2);
    fence_after_sync();
    if constexpr (kept == Kept::Keys) multiply_tokens(tensor_memory + kSecondSums, scores, stream[1], block > 0);
    if (!last) {
      barrier_wait(&shared.full[next.slot], next.parity);
      multiply_dimensions(scores, shared.kept[0], shared.ring[next.slot][0]);
      tensor_commit(&shared.scores);
    }

    barrier_wait(&shared.derivatives_used, block % 2);
    fence_after_sync();
    multiply_tokens(tensor_memory + kFirstSums, derivatives, stream[0], block > 0);
    tensor_commit(&shared.empty[stage.slot]);
    if (!last) {
      multiply_dimensions(derivatives, shared.kept[1], shared.ring[next.slot][1]);
      tensor_commit(&shared.derivatives);
    }
  }
  tensor_commit(&shared.done);
}

// Eight warps, each with 32 rows and half of the columns: a thread turns 64 values of S into P and 64 of dP into dS.
// `queries` are the statistics of the queries that are kept. One block holds the diagonal of P: the first block of
// queries, the last block of keys.
template <Kept kept>
__device__ __forceinline__ void differentiate(Shared& shared, uint32_t cells, const Statistics& queries, int blocks) {
  const int row = threadIdx.x % kTokens;
  const int first = threadIdx.x / kTokens * kSpan;  // of the columns
  const float row_lse = kept == Kept::Queries ? queries.lse_log2[row] : 0.0f;
  const float row_delta = kept == Kept::Queries ? queries.delta[row] : 0.0f;
  const int diagonal = kept == Kept::Keys ? 0 : blocks - 1;
  Cursor stage;
  for (int block = 0; block < blocks; ++block, stage.advance()) {
    const float* lse = shared.statistics[stage.slot].lse_log2 + first;
    const float* delta = shared.statistics[stage.slot].delta + first;
    float p[kSpan];   // S, then P
    float ds[kSpan];  // dP, then dS
    if constexpr (kept == Kept::Keys) barrier_wait(&shared.full[stage.slot], stage.parity);  // for statistics

    barrier_wait(&shared.scores, block % 2);
    fence_after_sync();
    load_columns(p, cells + kScores);
    load_columns(p + 32, cells + kScores + 32);
#pragma unroll
    for (int i = 0; i < kSpan; ++i) p[i] = probability(p[i], kept == Kept::Keys ? lse[i] : row_lse);
    if (block == diagonal) {
#pragma unroll
      for (int i = 0; i < kSpan; ++i) {  // the query comes before the key
        if (kept == Kept::Keys ? first + i < row : row < first + i) p[i] = 0.0f;
      }
    }
    if constexpr (kept == Kept::Keys) store_operand(cells + kScores, p);
    warp_arrive(&shared.scores_used);

    barrier_wait(&shared.derivatives, block % 2);
    fence_after_sync();
    load_columns(ds, cells + kDerivatives);
    load_columns(ds + 32, cells + kDerivatives + 32);
#pragma unroll
    for (int i = 0; i < kSpan; ++i) ds[i] = p[i] * (ds[i] - (kept == Kept::Keys ? delta[i] : row_delta));
    store_operand(cells + kDerivatives, ds);
    warp_arrive(&shared.derivatives_used);
  }
}

// The same warps: round `factor` · sums into a tile that no product reads any more, and send it to token `row` of
// `map`. The four warps that share a half of the columns share a half of the tile.
__device__ __forceinline__ void store(Tile& tile, const CUtensorMap& map, uint32_t sums, float factor, int row) {
  const int tile_row = threadIdx.x % kTokens;
  const int half = threadIdx.x / kTokens;
  const uint32_t line = shared_address(tile.half[half]) + tile_row * kSpan * sizeof(__nv_bfloat16);
#pragma unroll
  for (int part = 0; part < 2; ++part) {
    float values[32];
    load_columns(values, sums + part * 32);
#pragma unroll
    for (int eight = 0; eight < 4; ++eight) {  // 16 bytes each, swizzled as the tensor map says
      const float* v = values + eight * 8;
      const uint32_t chunk = (part * 4 + eight) ^ (tile_row % 8);
      asm volatile("st.shared.v4.b32 [%0], {%1, %2, %3, %4};" ::"r"(line + chunk * 16),
                   "r"(pack(factor * v[0], factor * v[1])), "r"(pack(factor * v[2], factor * v[3])),
                   "r"(pack(factor * v[4], factor * v[5])), "r"(pack(factor * v[6], factor * v[7]))
                   : "memory");
    }
  }
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");  // TMA reads what ordinary stores wrote
  asm volatile("bar.sync %0, 128;" ::"r"(half + 1) : "memory");  // identifier 0 belongs to __syncthreads
  if (tile_row == 0) tma_store(map, tile.half[half], half * kSpan, row);
}

// ---- kernels

// Half a warp per query: 16 threads of eight dimensions each.
__global__ void __launch_bounds__(256) statistics(const __nv_bfloat16* O, const __nv_bfloat16* dO, const float* LSE,
                                                  Statistics* out) {
  const size_t query = blockIdx.x * size_t{16} + threadIdx.x / 16;
  const size_t vector = query * (kHeadDim / 8) + threadIdx.x % 16;
  const uint4 o = reinterpret_cast<const uint4*>(O)[vector];
  const uint4 gradient = reinterpret_cast<const uint4*>(dO)[vector];
  const __nv_bfloat162* left = reinterpret_cast<const __nv_bfloat162*>(&o);
  const __nv_bfloat162* right = reinterpret_cast<const __nv_bfloat162*>(&gradient);
  float sum = 0.0f;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const float2 a = __bfloat1622float2(left[i]);
    const float2 b = __bfloat1622float2(right[i]);
    sum += a.x * b.x + a.y * b.y;
  }
#pragma unroll
  for (int distance = 8; distance > 0; distance /= 2) sum += __shfl_xor_sync(0xffffffff, sum, distance);
  if (threadIdx.x % 16 == 0) {
    out[query / kTokens].lse_log2[query % kTokens] = LSE[query] * kLog2E;
    out[query / kTokens].delta[query % kTokens] = sum;
  }
}

// Grid: a CTA for every 128 tokens; those of a head, which read the same tiles, run side by side. The first keys, which
// the most queries see, and the last queries, which see the most keys, come first.
template <Kept kept>
__global__ void __launch_bounds__(kThreads, 1)
backward(const __grid_constant__ Maps maps, const Statistics* statistics, int S) {
  extern __shared__ uint8_t raw[];
  Shared& shared = *reinterpret_cast<Shared*>(raw + (-shared_address(raw) & 1023));
  const int warp = threadIdx.x / 32;
  const int tiles = S / kTokens;
  const int tile = kept == Kept::Keys ? blockIdx.x % tiles : tiles - 1 - blockIdx.x % tiles;
  const int head_row = blockIdx.x / tiles * S;
  const int row = head_row + tile * kTokens;  // first of the tokens that are kept
  const int stream_row = kept == Kept::Keys ? row : head_row;
  const int blocks = kept == Kept::Keys ? tiles - tile : tile + 1;

  if (threadIdx.x == 0) {
    barrier_init(&shared.loaded, 1);
    for (int slot = 0; slot < kStages; ++slot) {
      barrier_init(&shared.full[slot], 1);
      barrier_init(&shared.empty[slot], 1);
    }
    barrier_init(&shared.scores, 1);
    barrier_init(&shared.derivatives, 1);
    barrier_init(&shared.scores_used, kRowWarps);
    barrier_init(&shared.derivatives_used, kRowWarps);
    barrier_init(&shared.done, 1);
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
  }
  if (warp == kMultiplier) {  // a whole warp allocates; the address arrives in shared memory
    asm volatile("tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32 [%0], %1;" ::"r"(
                     shared_address(&shared.tensor_memory)),
                 "r"(kTensorColumns)
                 : "memory");
    asm volatile("tcgen05.relinquish_alloc_permit.cta_group::1.sync.aligned;");
  }
  fence_before_sync();
  __syncthreads();
  fence_after_sync();
  const uint32_t tensor_memory = shared.tensor_memory;

  if (warp == kProducer) {
    if (threadIdx.x % 32 == 0) produce<kept>(shared, maps, statistics, row, stream_row, blocks);
  } else if (warp == kMultiplier) {
    if (threadIdx.x % 32 == 0) multiply<kept>(shared, tensor_memory, blocks);
  } else {
    const int lane = warp % 4 * 32;
    const uint32_t cells = tensor_memory + (lane << 16) + warp / 4 * kSpan;
    differentiate<kept>(shared, cells, statistics[row / kTokens], blocks);
    barrier_wait(&shared.done, 0);
    fence_after_sync();
    if constexpr (kept == Kept::Keys) store(shared.kept[1], maps.sums[1], cells + kSecondSums, 1.0f, row);
    store(shared.kept[0], maps.sums[0], cells + kFirstSums, kScale, row);
    if (threadIdx.x % kTokens == 0) finish_stores();
  }

  fence_before_sync();
  __syncthreads();
  fence_after_sync();
  if (warp == kMultiplier) {
    asm volatile("tcgen05.dealloc.cta_group::1.sync.aligned.b32 %0, %1;" ::"r"(tensor_memory), "r"(kTensorColumns));
  }
}

// All heads as one [rows, 128] row-major BF16 matrix, moved in half tiles. No box crosses a head: 128 divides S.
CUtensorMap tensor_map(const __nv_bfloat16* matrix, int rows) {
  const cuuint64_t dims[2] = {kHeadDim, static_cast<cuuint64_t>(rows)};
  const cuuint64_t strides[1] = {kHeadDim * sizeof(__nv_bfloat16)};
  const cuuint32_t box[2] = {kSpan, kTokens};
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

extern "C" void run(const __nv_bfloat16* Q, const __nv_bfloat16* K, const __nv_bfloat16* V, const __nv_bfloat16* O,
                    const __nv_bfloat16* dO, const float* LSE, __nv_bfloat16* dQ, __nv_bfloat16* dK, __nv_bfloat16* dV,
                    int B, int H, int S, int D, cudaStream_t stream) {
  const int rows = B * H * S;
  const CUtensorMap q = tensor_map(Q, rows);
  const CUtensorMap k = tensor_map(K, rows);
  const CUtensorMap v = tensor_map(V, rows);
  const CUtensorMap d_out = tensor_map(dO, rows);
  const Maps keys = {{k, v}, {q, d_out}, {tensor_map(dK, rows), tensor_map(dV, rows)}};
  const Maps queries = {{q, d_out}, {k, v}, {tensor_map(dQ, rows)}};
  Statistics* workspace = nullptr;
  cudaMallocAsync(&workspace, rows / kTokens * sizeof(Statistics), stream);
  statistics<<<rows / 16, 256, 0, stream>>>(O, dO, LSE, workspace);
  cudaFuncSetAttribute(backward<Kept::Keys>, cudaFuncAttributeMaxDynamicSharedMemorySize, kSharedBytes);
  backward<Kept::Keys><<<rows / kTokens, kThreads, kSharedBytes, stream>>>(keys, workspace, S);
  cudaFuncSetAttribute(backward<Kept::Queries>, cudaFuncAttributeMaxDynamicSharedMemorySize, kSharedBytes);
  backward<Kept::Queries><<<rows / kTokens, kThreads, kSharedBytes, stream>>>(queries, workspace, S);
  cudaFreeAsync(workspace, stream);
}
