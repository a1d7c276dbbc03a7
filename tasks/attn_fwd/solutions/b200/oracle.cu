// Attention forward for Blackwell: O = softmax(Q·Kᵀ/√D)·V and the log-sum-exp of every row, without ever writing the
// scores. One persistent CTA per SM walks pairs of query tiles, the two sides of a ping-pong: while the softmax of one
// side runs, the tensor core multiplies for the other. Every product is a tcgen05.mma with its sums in tensor memory:
//
//   warp 12     TMA: queries, and a ring of key and value tiles that both sides share
//   warp 13     one thread issues S = Q·Kᵀ and O += P·V for both sides, in turns
//   warps 0-7   softmax, four warps a side: a thread has a row. S out of tensor memory, P into it, where S was
//   warps 8-11  correction: multiply O in tensor memory where a maximum has grown; at last divide and store it
//
// Tensor memory has 128 lanes, a row of a tile each, and 512 columns, of which S and O take 128 a side. P, as operand A
// of the second product, is two BF16 in a cell, so it needs the first 64 columns of S.
#include <cuda.h>
#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include <cstdint>

namespace {

constexpr int kHeadDim = 128;
constexpr int kRows = 128;  // of a tile of Q, K, V or O
constexpr int kSides = 2;
constexpr int kStages = 4;  // tiles of K and V in shared memory
constexpr int kSpan = 64;   // columns of one TMA box: 128 bytes, one swizzle span; two boxes make a tile
constexpr int kBox = kRows * kSpan;
constexpr int kUnit = 8;    // descriptors count addresses and offsets in 16 bytes: eight elements
constexpr int kPart = 32;   // columns of one load or store of tensor memory
constexpr uint32_t kTileBytes = kRows * kHeadDim * sizeof(__nv_bfloat16);
constexpr float kLn2 = 0.6931471805599453f;
constexpr float kScaleLog2 = 0.08838834764831845f / kLn2;  // 1/√128, and powers of two instead of e
// A row keeps an old maximum until the new one is 2⁸ times as heavy: FP32 and BF16 have room, and O seldom needs to be
// corrected.
constexpr float kSlackLog2 = 8;

// Columns of tensor memory.
constexpr int kTensorColumns = 512;
constexpr int kScores = 0;  // S, then P
constexpr int kOutput = kSides * kRows;

constexpr int kWarpgroup = 4;  // warps
enum Role { kSoftmax = 0, kCorrection = kSides * kWarpgroup, kProducer = kCorrection + kWarpgroup, kMultiplier };
constexpr int kThreads = 32 * (kProducer + kWarpgroup);  // setmaxnreg takes whole warpgroups: two warps have no work

struct Shared {
  __nv_bfloat16 q[kSides][2 * kBox];
  __nv_bfloat16 ring[kStages][2 * kBox];
  __nv_bfloat16 out[2][kBox];
  float factor[kSides][kRows];  // from softmax to correction: what O must be multiplied by
  uint64_t full[kStages];       // TMA has brought a tile
  uint64_t empty[kStages];      // both sides' products have read it
  uint64_t q_full[kSides];
  uint64_t q_empty[kSides];
  uint64_t s_full[kSides];  // the scores of a step are complete, and with them all that was multiplied before
  uint64_t p_full[kSides];  // P is written and O corrected: eight warps
  uint64_t f_full[kSides];  // factors are written
  uint64_t f_empty[kSides];
  uint64_t o_full[kSides];  // O is complete
  uint32_t tensor_memory;   // address that tcgen05.alloc gave
};
constexpr int kSharedBytes = sizeof(Shared) + 1024;  // 128-byte swizzle needs tiles at multiples of 1024
static_assert(kSharedBytes <= 227 * 1024, "more shared memory than a CTA can have on Blackwell");

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

// One arrival for the 32 threads of a warp, after all of them.
__device__ __forceinline__ void barrier_arrive(uint64_t* barrier) {
  __syncwarp();
  if (threadIdx.x % 32 == 0) {
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(shared_address(barrier)) : "memory");
  }
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

// Waits phase by phase for barriers of which each side has one. What begins empty begins with parity 1: the phase
// before the first counts as over.
struct Phases {
  uint32_t parities;  // a bit for each side

  static __device__ __forceinline__ Phases of_full() { return {0}; }
  static __device__ __forceinline__ Phases of_empty() { return {(1u << kSides) - 1}; }
  __device__ __forceinline__ void wait(uint64_t (&barriers)[kSides], int side) {
    barrier_wait(&barriers[side], parities >> side & 1);
    parities ^= 1u << side;
  }
};

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

// ---- TMA

// One box of `map` at column `column`, row `row`, into shared memory; its bytes count towards `barrier`.
__device__ __forceinline__ void tma_load(void* target, const CUtensorMap* map, uint64_t* barrier, int column, int row) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3}], [%4];" ::
          "r"(shared_address(target)),
      "l"(map), "r"(column), "r"(row), "r"(shared_address(barrier))
      : "memory");
}

__device__ __forceinline__ void load_tile(__nv_bfloat16* tile, const CUtensorMap& map, uint64_t* barrier, int row) {
  barrier_expect(barrier, kTileBytes);
  tma_load(tile, &map, barrier, 0, row);
  tma_load(tile + kBox, &map, barrier, kSpan, row);
}

__device__ __forceinline__ void tma_store(const CUtensorMap* map, const void* source, int column, int row) {
  asm volatile("cp.async.bulk.tensor.2d.global.shared::cta.tile.bulk_group [%0, {%1, %2}], [%3];" ::"l"(map),
               "r"(column), "r"(row), "r"(shared_address(source))
               : "memory");
  asm volatile("cp.async.bulk.commit_group;" ::: "memory");
}

// ---- tensor core

// Shared memory descriptors: addresses in units of 16 bytes, bit 46 marks the format of sm_100, whose swizzle modes
// stand in bits 61-63 (PTX ISA 9.7.16.4.1). Eight rows of 128 bytes make an atom; atoms lie 1024 bytes apart.
__device__ __forceinline__ uint64_t descriptor(const __nv_bfloat16* tile, uint64_t leading) {
  constexpr uint64_t kStride = 1024 / 16;
  constexpr uint64_t kVersion = 1;
  constexpr uint64_t kSwizzle128 = 2;
  return ((shared_address(tile) & 0x3ffff) >> 4) | leading << 16 | kStride << 32 | kVersion << 46 | kSwizzle128 << 61;
}

// Q and K: neighbours in memory are neighbours along D, over which Q·Kᵀ sums (K-major, which does not use the leading
// offset).
__device__ __forceinline__ uint64_t k_major(const __nv_bfloat16* tile) { return descriptor(tile, 1); }

// V: neighbours in memory are neighbours along D, which P·V keeps, while keys, over which it sums, are rows (MN-major).
// The next 64 columns are in the other box.
__device__ __forceinline__ uint64_t mn_major(const __nv_bfloat16* tile) { return descriptor(tile, kBox / kUnit); }

// Shape and types of a product: FP32 sums (bit 4), BF16 operands (bits 7 and 10), N ÷ 8 from bit 17, M ÷ 16 from bit
// 24; bit 16 says that B is MN-major (PTX ISA 9.7.16.4.2).
constexpr uint32_t kProduct = 1u << 4 | 1u << 7 | 1u << 10 | (kRows / 8) << 17 | (kRows / 16) << 24;
constexpr uint32_t kProductWithValues = kProduct | 1u << 16;
static_assert(kRows == kHeadDim, "both products are 128×128 here");

// Tensor memory[128, 128] (+)= A[128, 16] · B[128, 16]ᵀ, both in shared memory.
__device__ __forceinline__ void multiply(uint32_t sums, uint64_t a, uint64_t b, bool accumulate) {
  asm volatile(
      "{\n"
      ".reg .pred p;\n"
      "setp.ne.b32 p, %4, 0;\n"
      "tcgen05.mma.cta_group::1.kind::f16 [%0], %1, %2, %3, p;\n"
      "}\n" ::"r"(sums),
      "l"(a), "l"(b), "r"(kProduct), "r"(static_cast<int>(accumulate))
      : "memory");
}

// Tensor memory[128, 128] (+)= A[128, 16] · B[16, 128], A in tensor memory, eight columns of it.
__device__ __forceinline__ void multiply_values(uint32_t sums, uint32_t a, uint64_t b, bool accumulate) {
  asm volatile(
      "{\n"
      ".reg .pred p;\n"
      "setp.ne.b32 p, %4, 0;\n"
      "tcgen05.mma.cta_group::1.kind::f16 [%0], [%1], %2, %3, p;\n"
      "}\n" ::"r"(sums),
      "r"(a), "l"(b), "r"(kProductWithValues), "r"(static_cast<int>(accumulate))
      : "memory");
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

// ---- tensor memory: 32 columns of the 32 lanes that belong to a warp; thread i has lane i

__device__ __forceinline__ void load_columns(uint32_t address, float* r) {
  asm volatile(
      "tcgen05.ld.sync.aligned.32x32b.x32.b32 {"
      "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
      "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31}, [%32];"
      : "=f"(r[0]), "=f"(r[1]), "=f"(r[2]), "=f"(r[3]), "=f"(r[4]), "=f"(r[5]), "=f"(r[6]), "=f"(r[7]), "=f"(r[8]),
        "=f"(r[9]), "=f"(r[10]), "=f"(r[11]), "=f"(r[12]), "=f"(r[13]), "=f"(r[14]), "=f"(r[15]), "=f"(r[16]),
        "=f"(r[17]), "=f"(r[18]), "=f"(r[19]), "=f"(r[20]), "=f"(r[21]), "=f"(r[22]), "=f"(r[23]), "=f"(r[24]),
        "=f"(r[25]), "=f"(r[26]), "=f"(r[27]), "=f"(r[28]), "=f"(r[29]), "=f"(r[30]), "=f"(r[31])
      : "r"(address)
      : "memory");
}

// Wait for all loads of the warp. Passing what they brought through keeps the compiler from reading it any earlier.
template <int kCount>
__device__ __forceinline__ void wait_loads(float (&values)[kCount]) {
  asm volatile("tcgen05.wait::ld.sync.aligned;" ::: "memory");
#pragma unroll
  for (float& value : values) asm volatile("" : "+f"(value)::"memory");
}

__device__ __forceinline__ void store_columns(uint32_t address, const uint32_t (&r)[kPart]) {
  asm volatile(
      "tcgen05.st.sync.aligned.32x32b.x32.b32 [%32], {"
      "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
      "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31};" ::"r"(r[0]),
      "r"(r[1]), "r"(r[2]), "r"(r[3]), "r"(r[4]), "r"(r[5]), "r"(r[6]), "r"(r[7]), "r"(r[8]), "r"(r[9]), "r"(r[10]),
      "r"(r[11]), "r"(r[12]), "r"(r[13]), "r"(r[14]), "r"(r[15]), "r"(r[16]), "r"(r[17]), "r"(r[18]), "r"(r[19]),
      "r"(r[20]), "r"(r[21]), "r"(r[22]), "r"(r[23]), "r"(r[24]), "r"(r[25]), "r"(r[26]), "r"(r[27]), "r"(r[28]),
      "r"(r[29]), "r"(r[30]), "r"(r[31]), "r"(address)
      : "memory");
}

__device__ __forceinline__ void wait_stores() { asm volatile("tcgen05.wait::st.sync.aligned;" ::: "memory"); }

// Which quarter of the lanes a warp may touch follows from its number (PTX ISA 9.7.16.8.1).
__device__ __forceinline__ uint32_t own_lanes() { return (threadIdx.x / 32 % 4 * 32) << 16; }

// ---- numbers

__device__ __forceinline__ float exp2_approximate(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

__device__ __forceinline__ uint32_t pack(float low, float high) {
  const __nv_bfloat162 pair = __floats2bfloat162_rn(low, high);
  return reinterpret_cast<const uint32_t&>(pair);
}

// ---- the walk over queries

// Two tiles of queries of one head, one for each side, and the tiles of keys that they attend to.
struct Item {
  int query;   // first row of side 0; side 1 follows
  int key;     // first row of the head's keys
  int count0;  // tiles of keys for side 0
  int count1;  // and for side 1: 0 where it has no queries

  __device__ __forceinline__ int count(int side) const { return side == 0 ? count0 : count1; }
  __device__ __forceinline__ int steps() const { return max(count0, count1); }
};

// Call `visit(item)` for every item of this CTA. Neighbours in time share a head, so that K and V come out of L2.
template <typename Visit>
__device__ __forceinline__ void for_each_item(int heads, int tiles, Visit visit) {
  const int pairs = (tiles + 1) / 2;
  for (int index = blockIdx.x; index < heads * pairs; index += gridDim.x) {
    const int first = index / pairs * tiles;
    const int tile = index % pairs * 2;
    visit(Item{(first + tile) * kRows, first * kRows, tiles, tile + 1 < tiles ? tiles : 0});
  }
}

// ---- roles

// One thread. The ring holds K₀, V₀, K₁, V₁, …, the order in which the multiplier needs them.
struct Producer {
  Shared& shared;
  Cursor cursor;
  Phases q_empty = Phases::of_empty();

  __device__ __forceinline__ void next(const CUtensorMap& map, int row) {
    barrier_wait(&shared.empty[cursor.slot], cursor.parity ^ 1);
    load_tile(shared.ring[cursor.slot], map, &shared.full[cursor.slot], row);
    cursor.advance();
  }

  __device__ __forceinline__ void load(const CUtensorMap& map_q, const CUtensorMap& map_k, const CUtensorMap& map_v,
                                       const Item& item) {
    for (int step = 0; step < item.steps(); ++step) {
      next(map_k, item.key + step * kRows);
      for (int side = 0; step == 0 && side < kSides; ++side) {
        if (item.count(side) == 0) continue;
        q_empty.wait(shared.q_empty, side);
        load_tile(shared.q[side], map_q, &shared.q_full[side], item.query + side * kRows);
      }
      next(map_v, item.key + step * kRows);
    }
  }

  // Wait until everything has been read: a commit that arrives after the end of the CTA may meet the next one there.
  __device__ __forceinline__ void finish() {
    for (int stage = 0; stage < kStages; ++stage, cursor.advance()) {
      barrier_wait(&shared.empty[cursor.slot], cursor.parity ^ 1);
    }
    for (int side = 0; side < kSides; ++side) q_empty.wait(shared.q_empty, side);
  }
};

// One thread. Its products execute in the order of issue, so the scores of a step may follow at once into the columns
// that hold P of the step before, and one commit says that both are over. (PTX ISA 9.7.16.6.2 promises the order for
// equal accumulators only; FlashAttention-4 relies on it in the same place.)
struct Multiplier {
  Shared& shared;
  const uint32_t tensor_memory;
  Cursor cursor;
  Phases q_full = Phases::of_full();
  Phases p_full = Phases::of_full();
  Item due = {};  // its product with V at step `due_step` has not been issued yet
  int due_step = -1;

  // Wait for the next tile of the ring.
  __device__ __forceinline__ int next() {
    const int slot = cursor.slot;
    barrier_wait(&shared.full[slot], cursor.parity);
    fence_after_sync();
    cursor.advance();
    return slot;
  }

  // S = Q·Kᵀ
  __device__ __forceinline__ void score(int side, const __nv_bfloat16* keys, bool first, bool last) {
    if (first) {
      q_full.wait(shared.q_full, side);
      fence_after_sync();
    }
    const uint64_t a = k_major(shared.q[side]);
    const uint64_t b = k_major(keys);
#pragma unroll
    for (int d = 0; d < kHeadDim; d += 16) {
      const int offset = (d / kSpan * kBox + d % kSpan) / kUnit;
      multiply(tensor_memory + kScores + side * kRows, a + offset, b + offset, d > 0);
    }
    tensor_commit(&shared.s_full[side]);
    if (last) tensor_commit(&shared.q_empty[side]);
  }

  // O (+)= P·V
  __device__ __forceinline__ void add(int side, const __nv_bfloat16* values, bool first, bool last) {
    p_full.wait(shared.p_full, side);
    fence_after_sync();
    const uint64_t b = mn_major(values);
#pragma unroll
    for (int key = 0; key < kRows; key += 16) {
      multiply_values(tensor_memory + kOutput + side * kRows, tensor_memory + kScores + side * kRows + key / 2,
                      b + key * kSpan / kUnit, !first || key > 0);
    }
    if (last) tensor_commit(&shared.o_full[side]);
  }

  // Each turn issues, for one side after the other, the product with V of the step before and the scores of this one.
  // Steps of all items are one sequence; -1 is the turn after the last.
  __device__ __forceinline__ void turn(const Item& item, int step) {
    const int values = due_step >= 0 ? next() : 0;
    const int keys = step >= 0 ? next() : 0;
    for (int side = 0; side < kSides; ++side) {
      if (due_step >= 0 && due_step < due.count(side)) {
        add(side, shared.ring[values], due_step == 0, due_step == due.count(side) - 1);
      }
      if (step >= 0 && step < item.count(side)) {
        score(side, shared.ring[keys], step == 0, step == item.count(side) - 1);
      }
    }
    if (due_step >= 0) tensor_commit(&shared.empty[values]);
    if (step >= 0) tensor_commit(&shared.empty[keys]);
    due = item;
    due_step = step;
  }
};

// 128 threads, one for each query of a side: lane, row and thread are the same number.
struct Softmax {
  Shared& shared;
  const uint32_t scores;  // tensor memory: this warp's lanes of S
  const int side;
  const int row = threadIdx.x % kRows;
  Phases s_full = Phases::of_full();
  Phases f_empty = Phases::of_empty();
  float maximum = 0;  // that the exponentials are relative to
  float sum = 0;      // of exponentials

  // Tell the correction what O must be multiplied by.
  __device__ __forceinline__ void send(float factor) {
    f_empty.wait(shared.f_empty, side);
    shared.factor[side][row] = factor;
    fence_before_sync();
    barrier_arrive(&shared.f_full[side]);
  }

  // One tile of keys: P = exp(S − maximum).
  __device__ __forceinline__ void step() {
    float s[kRows];
    s_full.wait(shared.s_full, side);
    fence_after_sync();
#pragma unroll
    for (int column = 0; column < kRows; column += kPart) load_columns(scores + column, s + column);
    wait_loads(s);

    float top = s[0];
#pragma unroll
    for (int column = 1; column < kRows; ++column) top = fmaxf(top, s[column]);
    float factor = 1;
    if ((top - maximum) * kScaleLog2 > kSlackLog2) {
      factor = exp2_approximate((maximum - top) * kScaleLog2);
      maximum = top;
    }
    send(factor);
    sum *= factor;

    const float offset = -maximum * kScaleLog2;
#pragma unroll
    for (int part = 0; part < kRows / 2; part += kPart) {
      uint32_t p[kPart];
#pragma unroll
      for (int i = 0; i < kPart; ++i) {
        const float low = exp2_approximate(fmaf(s[2 * (part + i)], kScaleLog2, offset));
        const float high = exp2_approximate(fmaf(s[2 * (part + i) + 1], kScaleLog2, offset));
        sum += low + high;
        p[i] = pack(low, high);
      }
      store_columns(scores + part, p);
    }
    wait_stores();
    fence_before_sync();
    barrier_arrive(&shared.p_full[side]);
  }

  // `count` tiles of keys. The logarithm of Σ exp(score/√D) has the maximum put back.
  __device__ __forceinline__ void attend(int count, float* lse) {
    maximum = -INFINITY;
    sum = 0;
    for (int index = 0; index < count; ++index) step();
    send(1.0f / sum);
    lse[row] = fmaf(maximum, kScaleLog2, log2f(sum)) * kLn2;
  }
};

// 128 threads, for both sides: each has the row of the softmax thread that it takes factors from.
struct Correction {
  Shared& shared;
  const uint32_t output;  // tensor memory: this warp's lanes of O
  const int row = threadIdx.x % kRows;
  const bool issuer = row == 0;
  Phases f_full = Phases::of_full();
  Phases o_full = Phases::of_full();

  __device__ __forceinline__ float receive(int side) {
    f_full.wait(shared.f_full, side);
    const float factor = shared.factor[side][row];
    barrier_arrive(&shared.f_empty[side]);
    return factor;
  }

  // A factor comes after the scores of its step, and those after the product with V of the step before: O is at rest.
  __device__ __forceinline__ void rescale(int side, float factor) {
    fence_after_sync();
    for (int column = 0; column < kHeadDim; column += kPart) {
      float o[kPart];
      uint32_t scaled[kPart];
      const uint32_t address = output + side * kRows + column;
      load_columns(address, o);
      wait_loads(o);
#pragma unroll
      for (int i = 0; i < kPart; ++i) scaled[i] = __float_as_uint(o[i] * factor);
      store_columns(address, scaled);
    }
    wait_stores();
  }

  // Let the threads of the correction meet; identifier 0 belongs to __syncthreads.
  __device__ __forceinline__ void sync() { asm volatile("bar.sync 1, %0;" ::"n"(32 * kWarpgroup) : "memory"); }

  // O, divided by the sums of its rows, through shared memory to rows `query` … by two TMA stores.
  __device__ __forceinline__ void store(int side, const CUtensorMap& map_o, int query) {
    const float inverse = receive(side);
    o_full.wait(shared.o_full, side);
    fence_after_sync();
    for (int half = 0; half < 2; ++half) {
      __nv_bfloat16* buffer = shared.out[half];
      if (issuer) asm volatile("cp.async.bulk.wait_group.read 1;" ::: "memory");  // its last store has read it
      sync();
      const uint32_t line = shared_address(buffer) + row * kSpan * sizeof(__nv_bfloat16);
      for (int part = 0; part < kSpan; part += kPart) {
        float o[kPart];
        load_columns(output + side * kRows + half * kSpan + part, o);
        wait_loads(o);
#pragma unroll
        for (int eight = 0; eight < kPart / 8; ++eight) {  // 16 bytes each, swizzled as the tensor map says
          const float* v = o + eight * 8;
          const uint32_t chunk = (part / 8 + eight) ^ (row % 8);
          asm volatile("st.shared.v4.b32 [%0], {%1, %2, %3, %4};" ::"r"(line + chunk * 16),
                       "r"(pack(v[0] * inverse, v[1] * inverse)), "r"(pack(v[2] * inverse, v[3] * inverse)),
                       "r"(pack(v[4] * inverse, v[5] * inverse)), "r"(pack(v[6] * inverse, v[7] * inverse))
                       : "memory");
        }
      }
      asm volatile("fence.proxy.async.shared::cta;" ::: "memory");  // TMA reads what ordinary stores wrote
      sync();
      if (issuer) tma_store(&map_o, buffer, half * kSpan, query);
    }
  }

  __device__ __forceinline__ void correct(const Item& item, const CUtensorMap& map_o) {
    for (int step = 0; step < item.steps(); ++step) {
      for (int side = 0; side < kSides; ++side) {
        if (step >= item.count(side)) continue;
        const float factor = receive(side);
        if (step > 0 && __any_sync(~0u, factor < 1)) rescale(side, factor);  // before, there is no O
        fence_before_sync();
        barrier_arrive(&shared.p_full[side]);
      }
      for (int side = 0; side < kSides; ++side) {
        if (step == item.count(side) - 1) store(side, map_o, item.query + side * kRows);
      }
    }
  }
};

__global__ void __launch_bounds__(kThreads, 1)
attention_oracle(const __grid_constant__ CUtensorMap map_q, const __grid_constant__ CUtensorMap map_k,
                 const __grid_constant__ CUtensorMap map_v, const __grid_constant__ CUtensorMap map_o, float* LSE,
                 int heads, int S) {
  extern __shared__ uint8_t raw[];
  Shared& shared = *reinterpret_cast<Shared*>((reinterpret_cast<uintptr_t>(raw) + 1023) & ~uintptr_t{1023});
  const int tiles = S / kRows;
  const int warp = threadIdx.x / 32;

  if (threadIdx.x == 0) {
    for (int slot = 0; slot < kStages; ++slot) {
      barrier_init(&shared.full[slot], 1);
      barrier_init(&shared.empty[slot], 1);
    }
    for (int side = 0; side < kSides; ++side) {
      barrier_init(&shared.q_full[side], 1);
      barrier_init(&shared.q_empty[side], 1);
      barrier_init(&shared.s_full[side], 1);
      barrier_init(&shared.p_full[side], 2 * kWarpgroup);
      barrier_init(&shared.f_full[side], kWarpgroup);
      barrier_init(&shared.f_empty[side], kWarpgroup);
      barrier_init(&shared.o_full[side], 1);
    }
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

  // 512 threads begin with 128 registers each; the softmax, which holds a whole row, gets what the others do not need.
  if (warp < kCorrection) {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 200;");
    const int side = warp / kWarpgroup;
    Softmax softmax{shared, shared.tensor_memory + own_lanes() + kScores + side * kRows, side};
    for_each_item(heads, tiles, [&](const Item& item) {
      if (item.count(side) > 0) softmax.attend(item.count(side), LSE + item.query + side * kRows);
    });
  } else if (warp < kProducer) {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 64;");
    Correction correction{shared, shared.tensor_memory + own_lanes() + kOutput};
    for_each_item(heads, tiles, [&](const Item& item) { correction.correct(item, map_o); });
    if (correction.issuer) asm volatile("cp.async.bulk.wait_group 0;" ::: "memory");
  } else {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 48;");
    if (warp == kProducer && threadIdx.x % 32 == 0) {
      Producer producer{shared};
      for_each_item(heads, tiles, [&](const Item& item) { producer.load(map_q, map_k, map_v, item); });
      producer.finish();
    }
    if (warp == kMultiplier && threadIdx.x % 32 == 0) {
      Multiplier multiplier{shared, shared.tensor_memory};
      for_each_item(heads, tiles, [&](const Item& item) {
        for (int step = 0; step < item.steps(); ++step) multiplier.turn(item, step);
      });
      multiplier.turn({}, -1);  // the last product with V
    }
  }

  fence_before_sync();
  __syncthreads();
  fence_after_sync();
  if (warp == kMultiplier) {
    asm volatile("tcgen05.dealloc.cta_group::1.sync.aligned.b32 %0, %1;" ::"r"(shared.tensor_memory),
                 "r"(kTensorColumns));
  }
}

// A [rows, 128] row-major BF16 matrix, moved in boxes of 64 columns (128 bytes: one swizzle span).
CUtensorMap tensor_map(const __nv_bfloat16* matrix, int rows) {
  const cuuint64_t dims[2] = {kHeadDim, static_cast<cuuint64_t>(rows)};
  const cuuint64_t strides[1] = {kHeadDim * sizeof(__nv_bfloat16)};
  const cuuint32_t box[2] = {kSpan, kRows};
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

extern "C" void run(const __nv_bfloat16* Q, const __nv_bfloat16* K, const __nv_bfloat16* V, __nv_bfloat16* O,
                    float* LSE, int B, int H, int S, int D, cudaStream_t stream) {
  int device = 0;
  int processors = 0;
  cudaGetDevice(&device);
  cudaDeviceGetAttribute(&processors, cudaDevAttrMultiProcessorCount, device);
  const int rows = B * H * S;
  const int items = B * H * ((S / kRows + 1) / 2);
  const CUtensorMap map_q = tensor_map(Q, rows);
  const CUtensorMap map_k = tensor_map(K, rows);
  const CUtensorMap map_v = tensor_map(V, rows);
  const CUtensorMap map_o = tensor_map(O, rows);
  cudaFuncSetAttribute(attention_oracle, cudaFuncAttributeMaxDynamicSharedMemorySize, kSharedBytes);
  attention_oracle<<<items < processors ? items : processors, kThreads, kSharedBytes, stream>>>(
      map_q, map_k, map_v, map_o, LSE, B * H, S);
}
