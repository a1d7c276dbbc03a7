// dQ, dK and dV of causal attention for Hopper, every matrix product by wgmma, in three kernels and without atomics:
//   1. `statistics`: for every query, LSE in base 2 and delta = Σ_d dO · O, into a workspace;
//   2. `backward_keys`: a CTA keeps 128 keys, the queries that see them stream past; dV += Pᵀ·dO, dK += dSᵀ·Q;
//   3. `backward_queries`: a CTA keeps 128 queries, the keys that they see stream past; dQ += dS·K.
// with P = exp(scale · Q·Kᵀ − LSE), dP = dO·Vᵀ, dS = P ∘ (dP − delta). P and dP are computed in both of the latter: two
// products of seven are the price of sums that need no other CTA.
//
// The second kernel computes the transposes, Sᵀ = K·Qᵀ and dPᵀ = V·dOᵀ, because a result of wgmma lies in registers
// just as its operand A must: Pᵀ and dSᵀ, rounded to BF16, go into the next product without a detour. Its operand B, dO
// or Q with the tokens as summed dimension, is the tile that is in shared memory already, read as MN-major.
#include <cuda.h>
#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include <cstdint>

namespace {

constexpr int kHeadDim = 128;
constexpr int kTokens = 64;    // of a tile: what a consumer keeps, and what streams past at a time
constexpr int kSpan = 64;      // columns of half a tile: 128 bytes, one swizzle span
constexpr int kConsumers = 2;  // warpgroups that multiply; each keeps its own 64 tokens
constexpr int kStages = 3;
constexpr int kThreads = 128 * (1 + kConsumers);
constexpr int kKept = kConsumers * kTokens;
constexpr float kScale = 0.08838834764831845f;  // 1 / sqrt(kHeadDim)
constexpr float kLog2E = 1.4426950408889634f;

// 64 tokens × 128 dimensions, as two halves that TMA fills and wgmma reads with 128-byte swizzle.
struct Tile {
  __nv_bfloat16 half[kHeadDim / kSpan][kTokens * kSpan];
};

struct alignas(16) Statistics {  // of 64 queries
  float lse_log2[kTokens];
  float delta[kTokens];
};

struct Shared {
  Tile kept[2][kConsumers];  // K and V, or Q and dO; at the end their gradients on the way out
  Tile ring[kStages][2];     // Q and dO, or K and V
  Statistics statistics[kStages];
  uint64_t loaded;
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

// The tile that begins at token `row` of `map`; its bytes count towards `barrier`.
__device__ __forceinline__ void load_tile(Tile& tile, const CUtensorMap* map, uint64_t* barrier, int row) {
#pragma unroll
  for (int half = 0; half < kHeadDim / kSpan; ++half) {
    asm volatile(
        "cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes "
        "[%0], [%1, {%2, %3}], [%4];" ::"r"(shared_address(tile.half[half])),
        "l"(map), "r"(half * kSpan), "r"(row), "r"(shared_address(barrier))
        : "memory");
  }
}

__device__ __forceinline__ void load_statistics(Statistics& target, const Statistics* source, uint64_t* barrier) {
  asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(
                   shared_address(&target)),
               "l"(source), "n"(sizeof(Statistics)), "r"(shared_address(barrier))
               : "memory");
}

__device__ __forceinline__ void tma_store(const CUtensorMap* map, const void* source, int column, int row) {
  asm volatile("cp.async.bulk.tensor.2d.global.shared::cta.tile.bulk_group [%0, {%1, %2}], [%3];" ::"l"(map),
               "r"(column), "r"(row), "r"(shared_address(source))
               : "memory");
}

// Wait until this thread's stores are done: shared memory must outlive them.
__device__ __forceinline__ void finish_stores() {
  asm volatile("cp.async.bulk.commit_group;" ::: "memory");
  asm volatile("cp.async.bulk.wait_group 0;" ::: "memory");
}

// Let the 128 threads of one consumer meet; identifier 0 belongs to __syncthreads.
__device__ __forceinline__ void consumer_sync(int consumer) {
  asm volatile("bar.sync %0, 128;" ::"r"(consumer + 1) : "memory");
}

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

// Both layouts of a half tile in 128-byte swizzle: eight tokens of 128 bytes make an atom of 1024 bytes, and the next
// eight tokens follow it (PTX ISA 9.7.15.5.1). Summed over dimensions the tile is K-major, and 16 of them lie within an
// atom's rows; summed over tokens it is MN-major, 16 of them are two atoms, and the second 64 dimensions are in the
// other half, at the leading offset.
__device__ __forceinline__ uint64_t descriptor(const void* start, uint64_t leading_bytes) {
  constexpr uint64_t kStride = 1024 / 16;
  constexpr uint64_t kSwizzle128 = 1;
  return ((shared_address(start) & 0x3ffff) >> 4) | leading_bytes / 16 << 16 | kStride << 32 | kSwizzle128 << 62;
}

__device__ __forceinline__ uint64_t k_major(const Tile& tile, int dimension) {
  return descriptor(tile.half[dimension / kSpan] + dimension % kSpan, 16);  // swizzled K-major: leading is not used
}

__device__ __forceinline__ uint64_t mn_major(const Tile& tile, int token) {
  return descriptor(tile.half[0] + token * kSpan, sizeof(tile.half[0]));
}

// D[64, 64] (+)= A[64, 16] · B[64, 16]ᵀ, both operands in shared memory, K-major (PTX ISA 9.7.15.5).
__device__ __forceinline__ void wgmma_m64n64k16(float (&d)[4][8], uint64_t a, uint64_t b, int accumulate) {
  asm volatile(
      "{\n"
      ".reg .pred p;\n"
      "setp.ne.b32 p, %34, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 {"
      "%0, %1, %2, %3, %4, %5, %6, %7, "
      "%8, %9, %10, %11, %12, %13, %14, %15, "
      "%16, %17, %18, %19, %20, %21, %22, %23, "
      "%24, %25, %26, %27, %28, %29, %30, %31"
      "}, %32, %33, p, 1, 1, 0, 0;\n"
      "}\n"
      : "+f"(d[0][0]), "+f"(d[0][1]), "+f"(d[0][2]), "+f"(d[0][3]), "+f"(d[0][4]), "+f"(d[0][5]), "+f"(d[0][6]), "+f"(d[0][7]),
        "+f"(d[1][0]), "+f"(d[1][1]), "+f"(d[1][2]), "+f"(d[1][3]), "+f"(d[1][4]), "+f"(d[1][5]), "+f"(d[1][6]), "+f"(d[1][7]),
        "+f"(d[2][0]), "+f"(d[2][1]), "+f"(d[2][2]), "+f"(d[2][3]), "+f"(d[2][4]), "+f"(d[2][5]), "+f"(d[2][6]), "+f"(d[2][7]),
        "+f"(d[3][0]), "+f"(d[3][1]), "+f"(d[3][2]), "+f"(d[3][3]), "+f"(d[3][4]), "+f"(d[3][5]), "+f"(d[3][6]), "+f"(d[3][7])
      : "l"(a), "l"(b), "r"(accumulate));
}

// D[64, 128] (+)= A[64, 16] · B[16, 128]: A in registers, B in shared memory, MN-major (the last 1 transposes it).
__device__ __forceinline__ void wgmma_m64n128k16(float (&d)[8][8], const uint32_t (&a)[4], uint64_t b,
                                                 int accumulate) {
  asm volatile(
      "{\n"
      ".reg .pred p;\n"
      "setp.ne.b32 p, %69, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 {"
      "%0, %1, %2, %3, %4, %5, %6, %7, "
      "%8, %9, %10, %11, %12, %13, %14, %15, "
      "%16, %17, %18, %19, %20, %21, %22, %23, "
      "%24, %25, %26, %27, %28, %29, %30, %31, "
      "%32, %33, %34, %35, %36, %37, %38, %39, "
      "%40, %41, %42, %43, %44, %45, %46, %47, "
      "%48, %49, %50, %51, %52, %53, %54, %55, "
      "%56, %57, %58, %59, %60, %61, %62, %63"
      "}, {%64, %65, %66, %67}, %68, p, 1, 1, 1;\n"
      "}\n"
      : "+f"(d[0][0]), "+f"(d[0][1]), "+f"(d[0][2]), "+f"(d[0][3]), "+f"(d[0][4]), "+f"(d[0][5]), "+f"(d[0][6]), "+f"(d[0][7]),
        "+f"(d[1][0]), "+f"(d[1][1]), "+f"(d[1][2]), "+f"(d[1][3]), "+f"(d[1][4]), "+f"(d[1][5]), "+f"(d[1][6]), "+f"(d[1][7]),
        "+f"(d[2][0]), "+f"(d[2][1]), "+f"(d[2][2]), "+f"(d[2][3]), "+f"(d[2][4]), "+f"(d[2][5]), "+f"(d[2][6]), "+f"(d[2][7]),
        "+f"(d[3][0]), "+f"(d[3][1]), "+f"(d[3][2]), "+f"(d[3][3]), "+f"(d[3][4]), "+f"(d[3][5]), "+f"(d[3][6]), "+f"(d[3][7]),
        "+f"(d[4][0]), "+f"(d[4][1]), "+f"(d[4][2]), "+f"(d[4][3]), "+f"(d[4][4]), "+f"(d[4][5]), "+f"(d[4][6]), "+f"(d[4][7]),
        "+f"(d[5][0]), "+f"(d[5][1]), "+f"(d[5][2]), "+f"(d[5][3]), "+f"(d[5][4]), "+f"(d[5][5]), "+f"(d[5][6]), "+f"(d[5][7]),
        "+f"(d[6][0]), "+f"(d[6][1]), "+f"(d[6][2]), "+f"(d[6][3]), "+f"(d[6][4]), "+f"(d[6][5]), "+f"(d[6][6]), "+f"(d[6][7]),
        "+f"(d[7][0]), "+f"(d[7][1]), "+f"(d[7][2]), "+f"(d[7][3]), "+f"(d[7][4]), "+f"(d[7][5]), "+f"(d[7][6]), "+f"(d[7][7])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(accumulate));
}

__device__ __forceinline__ void wgmma_fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }

__device__ __forceinline__ void wgmma_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }

// Wait until at most `pending` groups run, the latest ones.
template <int pending>
__device__ __forceinline__ void wgmma_wait() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(pending) : "memory");
}

// Registers are read and written here as far as the compiler knows: it cannot move their use before the wait that
// stands ahead of this.
template <int groups>
__device__ __forceinline__ void pin(float (&d)[groups][8]) {
#pragma unroll
  for (int group = 0; group < groups; ++group) {
#pragma unroll
    for (int i = 0; i < 8; ++i) asm volatile("" : "+f"(d[group][i])::"memory");
  }
}

// A 64×64 or 64×128 result of wgmma as one thread has it, 16 columns to a group: element i of group g stands in
// column 16 g + column_of(i) and row row_of(i) of the warpgroup's 64 (PTX ISA 9.7.15.5.2).
__device__ __forceinline__ int column_of(int i) { return i / 4 * 8 + threadIdx.x % 4 * 2 + i % 2; }
__device__ __forceinline__ int row_of(int i) {
  return threadIdx.x % 128 / 32 * 16 + i / 2 % 2 * 8 + threadIdx.x % 32 / 4;
}

// d = a · bᵀ, summed over the 128 dimensions; a group of its own.
__device__ __forceinline__ void multiply_dimensions(float (&d)[4][8], const Tile& a, const Tile& b) {
#pragma unroll
  for (int dimension = 0; dimension < kHeadDim; dimension += 16) {
    wgmma_m64n64k16(d, k_major(a, dimension), k_major(b, dimension), dimension > 0);
  }
  wgmma_commit();
}

// d = a · b, summed over the 64 tokens of b, or added to d; a group of its own. The first product overwrites: sums that
// ordinary instructions set to zero would keep ptxas from leaving a product in flight across blocks (C7515).
__device__ __forceinline__ void multiply_tokens(float (&d)[8][8], const uint32_t (&a)[4][4], const Tile& b,
                                                bool accumulate) {
#pragma unroll
  for (int group = 0; group < kTokens / 16; ++group) {
    wgmma_m64n128k16(d, a[group], mn_major(b, group * 16), accumulate || group > 0);
  }
  wgmma_commit();
}

// 16 columns of a result are one operand A of 64×16, register for register.
__device__ __forceinline__ void as_operand(uint32_t (&a)[4][4], const float (&d)[4][8]) {
#pragma unroll
  for (int group = 0; group < 4; ++group) {
#pragma unroll
    for (int i = 0; i < 4; ++i) a[group][i] = pack(d[group][2 * i], d[group][2 * i + 1]);
  }
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

// Blocks of 64 tokens that stream past a CTA.
struct Blocks {
  int begin, end;
};

// The producer: load what the CTA keeps, then let blocks stream through the ring.
__device__ __forceinline__ void produce(Shared& shared, const CUtensorMap& kept0, const CUtensorMap& kept1,
                                        const CUtensorMap& stream0, const CUtensorMap& stream1,
                                        const Statistics* statistics, int kept_row, int stream_row, Blocks blocks) {
  barrier_expect(&shared.loaded, sizeof(shared.kept));
  for (int consumer = 0; consumer < kConsumers; ++consumer) {
    load_tile(shared.kept[0][consumer], &kept0, &shared.loaded, kept_row + consumer * kTokens);
    load_tile(shared.kept[1][consumer], &kept1, &shared.loaded, kept_row + consumer * kTokens);
  }
  Cursor cursor;
  for (int block = blocks.begin; block < blocks.end; ++block, cursor.advance()) {
    const int row = stream_row + block * kTokens;
    uint64_t* full = &shared.full[cursor.slot];
    barrier_wait(&shared.empty[cursor.slot], cursor.parity ^ 1);
    barrier_expect(full, 2 * sizeof(Tile) + (statistics ? sizeof(Statistics) : 0));
    load_tile(shared.ring[cursor.slot][0], &stream0, full, row);
    load_tile(shared.ring[cursor.slot][1], &stream1, full, row);
    if (statistics) load_statistics(shared.statistics[cursor.slot], statistics + row / kTokens, full);
  }
}

// One arrival per warp, when all its threads have come here: they read the slot's statistics themselves.
__device__ __forceinline__ void release(Shared& shared, int slot) {
  __syncwarp();
  if (threadIdx.x % 32 == 0) barrier_arrive(&shared.empty[slot]);
}

// Round `factor` · sums into a tile that no product reads any more, and send it to token `row` of `map`. Groups of
// wgmma belong to the warpgroup: when one of its warps has waited for them, they have read the tile for all four.
__device__ __forceinline__ void store(Tile& tile, const CUtensorMap& map, const float (&sums)[8][8], float factor,
                                      int consumer, int row) {
  const int lane = threadIdx.x % 32;
  const int tile_row = threadIdx.x % 128 / 32 * 16 + lane % 16;
#pragma unroll
  for (int group = 0; group < kHeadDim / 16; ++group) {  // 16 columns: two 8×8 blocks, upper and lower rows of each
    const float* eight = sums[group];
    const uint32_t line = shared_address(tile.half[group / 4]) + tile_row * kSpan * sizeof(__nv_bfloat16);
    const uint32_t chunk = (group % 4 * 2 + lane / 16) ^ (tile_row % 8);
    asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(line + chunk * 16),
                 "r"(pack(factor * eight[0], factor * eight[1])), "r"(pack(factor * eight[2], factor * eight[3])),
                 "r"(pack(factor * eight[4], factor * eight[5])), "r"(pack(factor * eight[6], factor * eight[7]))
                 : "memory");
  }
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");  // TMA reads what ordinary stores wrote
  consumer_sync(consumer);
  if (threadIdx.x % 128 == 0) {
#pragma unroll
    for (int half = 0; half < kHeadDim / kSpan; ++half) tma_store(&map, tile.half[half], half * kSpan, row);
  }
}

// The shared memory of a CTA, its barriers ready.
__device__ __forceinline__ Shared& set_up() {
  extern __shared__ uint8_t raw[];
  Shared& shared = *reinterpret_cast<Shared*>(raw + (-shared_address(raw) & 1023));
  if (threadIdx.x == 0) {
    barrier_init(&shared.loaded, 1);
    for (int slot = 0; slot < kStages; ++slot) {
      barrier_init(&shared.full[slot], 1);
      barrier_init(&shared.empty[slot], kConsumers * 4);
    }
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
  }
  __syncthreads();
  return shared;
}

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

// Gradients of one consumer's 64 keys. While the tensor cores compute dPᵀ, exponentials are taken; while they compute
// dV, dSᵀ is formed; and the other consumer fills what gaps remain. Each block waits for its last product: sums, Sᵀ, Pᵀ
// and dPᵀ take 224 of 240 registers, too many for an operand that is still in flight (ptxas would serialise: C7512).
__device__ __forceinline__ void consume_queries(Shared& shared, float (&dk)[8][8], float (&dv)[8][8], int consumer,
                                                int diagonal, Blocks blocks) {
  const Tile& k = shared.kept[0][consumer];
  const Tile& v = shared.kept[1][consumer];
  Cursor cursor;
  barrier_wait(&shared.loaded, 0);
  for (int block = blocks.begin; block < blocks.end; ++block, cursor.advance()) {
    barrier_wait(&shared.full[cursor.slot], cursor.parity);
    if (block < diagonal) {  // queries that see none of these keys
      release(shared, cursor.slot);
      continue;
    }
    const Tile& q = shared.ring[cursor.slot][0];
    const Tile& d_out = shared.ring[cursor.slot][1];
    const Statistics& query = shared.statistics[cursor.slot];
    float p[4][8];   // Sᵀ, then Pᵀ: a row per key, a column per query
    float ds[4][8];  // dPᵀ, then dSᵀ
    uint32_t operand_p[4][4];
    uint32_t operand_ds[4][4];

    wgmma_fence();
    multiply_dimensions(p, k, q);
    multiply_dimensions(ds, v, d_out);
    wgmma_wait<1>();  // Sᵀ
    pin(p);
#pragma unroll
    for (int group = 0; group < 4; ++group) {
#pragma unroll
      for (int i = 0; i < 8; ++i) {
        p[group][i] = probability(p[group][i], query.lse_log2[group * 16 + column_of(i)]);
      }
    }
    if (block == diagonal) {
#pragma unroll
      for (int group = 0; group < 4; ++group) {
#pragma unroll
        for (int i = 0; i < 8; ++i) {
          if (group * 16 + column_of(i) < row_of(i)) p[group][i] = 0.0f;  // the query comes before the key
        }
      }
    }
    as_operand(operand_p, p);
    wgmma_fence();
    multiply_tokens(dv, operand_p, d_out, block > diagonal);
    wgmma_wait<1>();  // dPᵀ
    pin(ds);
#pragma unroll
    for (int group = 0; group < 4; ++group) {
#pragma unroll
      for (int i = 0; i < 8; ++i) ds[group][i] = p[group][i] * (ds[group][i] - query.delta[group * 16 + column_of(i)]);
    }
    as_operand(operand_ds, ds);
    wgmma_fence();
    multiply_tokens(dk, operand_ds, q, block > diagonal);
    wgmma_wait<0>();
    release(shared, cursor.slot);
  }
  pin(dk);
  pin(dv);
}

// Grid: a CTA for every 128 keys; those of a head, which read the same queries, run side by side.
__global__ void __launch_bounds__(kThreads, 1)
backward_keys(const __grid_constant__ CUtensorMap map_q, const __grid_constant__ CUtensorMap map_k,
              const __grid_constant__ CUtensorMap map_v, const __grid_constant__ CUtensorMap map_d_out,
              const __grid_constant__ CUtensorMap map_dk, const __grid_constant__ CUtensorMap map_dv,
              const Statistics* statistics, int S) {
  Shared& shared = set_up();
  const int key = blockIdx.x % (S / kKept) * kKept;  // first of the CTA, in its head
  const int head_row = blockIdx.x / (S / kKept) * S;
  const Blocks queries = {key / kTokens, S / kTokens};

  if (threadIdx.x < 128) {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 24;");
    if (threadIdx.x == 0) {
      produce(shared, map_k, map_v, map_q, map_d_out, statistics, head_row + key, head_row, queries);
    }
  } else {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 240;");
    const int consumer = threadIdx.x / 128 - 1;
    const int row = head_row + key + consumer * kTokens;
    float dk[8][8];
    float dv[8][8];
    consume_queries(shared, dk, dv, consumer, key / kTokens + consumer, queries);
    store(shared.kept[0][consumer], map_dk, dk, kScale, consumer, row);
    store(shared.kept[1][consumer], map_dv, dv, 1.0f, consumer, row);
    if (threadIdx.x % 128 == 0) finish_stores();
  }
}

// Gradients of one consumer's 64 queries; S and dP are not transposed here, so that statistics belong to rows.
__device__ __forceinline__ void consume_keys(Shared& shared, float (&dq)[8][8], const Statistics& queries,
                                             int consumer, int diagonal) {
  const Tile& q = shared.kept[0][consumer];
  const Tile& d_out = shared.kept[1][consumer];
  const float lse_log2[2] = {queries.lse_log2[row_of(0)], queries.lse_log2[row_of(2)]};
  const float delta[2] = {queries.delta[row_of(0)], queries.delta[row_of(2)]};
  Cursor cursor;
  int previous = -1;
  barrier_wait(&shared.loaded, 0);
  for (int block = 0; block <= diagonal; ++block, cursor.advance()) {
    const Tile& k = shared.ring[cursor.slot][0];
    const Tile& v = shared.ring[cursor.slot][1];
    float p[4][8];   // a row per query, a column per key
    float ds[4][8];  // dP, then dS
    uint32_t operand_ds[4][4];

    barrier_wait(&shared.full[cursor.slot], cursor.parity);
    wgmma_fence();
    multiply_dimensions(p, q, k);
    multiply_dimensions(ds, d_out, v);
    wgmma_wait<1>();  // the scores, and the product of the block before
    pin(p);
    if (previous >= 0) release(shared, previous);
    previous = cursor.slot;
#pragma unroll
    for (int group = 0; group < 4; ++group) {
#pragma unroll
      for (int i = 0; i < 8; ++i) p[group][i] = probability(p[group][i], lse_log2[i / 2 % 2]);
    }
    if (block == diagonal) {
#pragma unroll
      for (int group = 0; group < 4; ++group) {
#pragma unroll
        for (int i = 0; i < 8; ++i) {
          if (group * 16 + column_of(i) > row_of(i)) p[group][i] = 0.0f;  // the key comes after the query
        }
      }
    }
    wgmma_wait<0>();  // dP
    pin(ds);
#pragma unroll
    for (int group = 0; group < 4; ++group) {
#pragma unroll
      for (int i = 0; i < 8; ++i) ds[group][i] = p[group][i] * (ds[group][i] - delta[i / 2 % 2]);
    }
    as_operand(operand_ds, ds);
    wgmma_fence();
    multiply_tokens(dq, operand_ds, k, block > 0);
  }
  wgmma_wait<0>();
  pin(dq);
}

// Grid: a CTA for every 128 queries, the last of a head first: they see the most keys.
__global__ void __launch_bounds__(kThreads, 1)
backward_queries(const __grid_constant__ CUtensorMap map_q, const __grid_constant__ CUtensorMap map_k,
                 const __grid_constant__ CUtensorMap map_v, const __grid_constant__ CUtensorMap map_d_out,
                 const __grid_constant__ CUtensorMap map_dq, const Statistics* statistics, int S) {
  Shared& shared = set_up();
  const int query = S - kKept - blockIdx.x % (S / kKept) * kKept;  // first of the CTA, in its head
  const int head_row = blockIdx.x / (S / kKept) * S;

  if (threadIdx.x < 128) {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 24;");
    if (threadIdx.x == 0) {
      const Blocks keys = {0, (query + kKept) / kTokens};
      produce(shared, map_q, map_d_out, map_k, map_v, nullptr, head_row + query, head_row, keys);
    }
  } else {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 240;");
    const int consumer = threadIdx.x / 128 - 1;
    const int row = head_row + query + consumer * kTokens;
    float dq[8][8];
    consume_keys(shared, dq, statistics[row / kTokens], consumer, query / kTokens + consumer);
    store(shared.kept[0][consumer], map_dq, dq, kScale, consumer, row);
    if (threadIdx.x % 128 == 0) finish_stores();
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
  const CUtensorMap map_q = tensor_map(Q, rows);
  const CUtensorMap map_k = tensor_map(K, rows);
  const CUtensorMap map_v = tensor_map(V, rows);
  const CUtensorMap map_d_out = tensor_map(dO, rows);
  Statistics* workspace = nullptr;
  cudaMallocAsync(&workspace, rows / kTokens * sizeof(Statistics), stream);
  statistics<<<rows / 16, 256, 0, stream>>>(O, dO, LSE, workspace);
  cudaFuncSetAttribute(backward_keys, cudaFuncAttributeMaxDynamicSharedMemorySize, kSharedBytes);
  backward_keys<<<rows / kKept, kThreads, kSharedBytes, stream>>>(map_q, map_k, map_v, map_d_out, tensor_map(dK, rows),
                                                                 tensor_map(dV, rows), workspace, S);
  cudaFuncSetAttribute(backward_queries, cudaFuncAttributeMaxDynamicSharedMemorySize, kSharedBytes);
  backward_queries<<<rows / kKept, kThreads, kSharedBytes, stream>>>(map_q, map_k, map_v, map_d_out,
                                                                    tensor_map(dQ, rows), workspace, S);
  cudaFreeAsync(workspace, stream);
}
