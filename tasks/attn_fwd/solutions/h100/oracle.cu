// Attention forward for Hopper, made to be fast: O = softmax(Q·Kᵀ/√D)·V and the log-sum-exp of every row, without ever
// writing the scores. One persistent CTA per SM walks tiles of 128 queries; TMA fills a ring with tiles of K and V that
// runs on across query tiles; two warpgroups of 64 queries each multiply with wgmma. Softmax is hidden twice: a
// warpgroup computes it while its own product with V runs, and while the other warpgroup has the tensor core.
#include <cuda.h>
#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include <cstdint>

namespace {

constexpr int kHeadDim = 128;
constexpr int kRows = 128;    // of a tile of Q, K or V
constexpr int kStages = 4;    // tiles of K and V in shared memory
constexpr int kConsumers = 2;
constexpr int kThreads = 128 * (1 + kConsumers);
constexpr int kSpan = 64;     // columns of one TMA box: 128 bytes, one swizzle span; two boxes make a tile
constexpr int kBox = kRows * kSpan;
constexpr int kStoreBox = 64 * kSpan;
constexpr int kUnit = 8;      // descriptors count addresses and offsets in 16 bytes: eight elements
constexpr uint32_t kTileBytes = kRows * kHeadDim * sizeof(__nv_bfloat16);
constexpr float kLn2 = 0.6931471805599453f;
constexpr float kScaleLog2 = 0.08838834764831845f / kLn2;  // 1/√128, and powers of two instead of e

struct Shared {
  __nv_bfloat16 q[2 * kBox];
  __nv_bfloat16 ring[kStages][2 * kBox];
  __nv_bfloat16 out[kConsumers][2 * kStoreBox];
  uint64_t q_full;
  uint64_t q_empty;
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

// One box of `map` at column `column`, row `row`, into shared memory; its bytes count towards `barrier`.
__device__ __forceinline__ void tma_load(void* target, const CUtensorMap* map, uint64_t* barrier, int column, int row) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3}], [%4];" ::
          "r"(shared_address(target)),
      "l"(map), "r"(column), "r"(row), "r"(shared_address(barrier))
      : "memory");
}

__device__ __forceinline__ void tma_store(const CUtensorMap* map, const void* source, int column, int row) {
  asm volatile("cp.async.bulk.tensor.2d.global.shared::cta.tile.bulk_group [%0, {%1, %2}], [%3];" ::"l"(map),
               "r"(column), "r"(row), "r"(shared_address(source))
               : "memory");
}

// Let the 128 threads of one consumer meet; identifier 0 belongs to __syncthreads.
__device__ __forceinline__ void consumer_sync(int consumer) {
  asm volatile("bar.sync %0, 128;" ::"r"(consumer + 1) : "memory");
}

// The consumers take turns at the tensor core: one waits until the other has issued its products.
__device__ __forceinline__ void take_turn(int consumer) {
  asm volatile("bar.sync %0, 256;" ::"r"(1 + kConsumers + consumer) : "memory");
}

__device__ __forceinline__ void pass_turn(int consumer) {
  asm volatile("bar.arrive %0, 256;" ::"r"(1 + kConsumers + (1 - consumer)) : "memory");
}

// Q and K: neighbours in memory are neighbours along D, over which Q·Kᵀ sums (K-major, PTX ISA 9.7.15.5.1). With
// 128-byte swizzle eight rows of 128 bytes make an atom, atoms 1024 bytes apart.
__device__ __forceinline__ uint64_t k_major(const __nv_bfloat16* tile) {
  constexpr uint64_t kLeading = 1;  // not used by swizzled K-major layouts
  constexpr uint64_t kStride = 1024 / 16;
  constexpr uint64_t kSwizzle128 = 1;
  return ((shared_address(tile) & 0x3ffff) >> 4) | kLeading << 16 | kStride << 32 | kSwizzle128 << 62;
}

// V: neighbours in memory are neighbours along D, which P·V keeps, while keys, over which it sums, are rows (MN-major).
// Atoms of eight keys lie 1024 bytes apart; the next 64 columns are in the other box.
__device__ __forceinline__ uint64_t mn_major(const __nv_bfloat16* tile) {
  constexpr uint64_t kLeading = kBox / kUnit;
  constexpr uint64_t kStride = 1024 / 16;
  constexpr uint64_t kSwizzle128 = 1;
  return ((shared_address(tile) & 0x3ffff) >> 4) | kLeading << 16 | kStride << 32 | kSwizzle128 << 62;
}

// A thread's part of 64×128 sums (PTX ISA 9.7.15.5.1.1): [g][e] is column 16·g + 8·(e/4) + 2·(lane%4) + e%2 of row
// 16·warp + lane/4 + 8·(e/2%2). Elements with equal e/2%2 belong to the same of the thread's two rows.
using Sums = float[kHeadDim / 16][8];
static_assert(kRows == kHeadDim, "scores and outputs have the same shape here");

// D[64, 128] (+)= A[64, 16] · B[128, 16]ᵀ, both operands in shared memory, K-major.
__device__ __forceinline__ void wgmma_m64n128k16(Sums& d, uint64_t a, uint64_t b, int accumulate) {
  asm volatile(
      "{\n"
      ".reg .pred p;\n"
      "setp.ne.b32 p, %66, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 {"
      "%0, %1, %2, %3, %4, %5, %6, %7, "
      "%8, %9, %10, %11, %12, %13, %14, %15, "
      "%16, %17, %18, %19, %20, %21, %22, %23, "
      "%24, %25, %26, %27, %28, %29, %30, %31, "
      "%32, %33, %34, %35, %36, %37, %38, %39, "
      "%40, %41, %42, %43, %44, %45, %46, %47, "
      "%48, %49, %50, %51, %52, %53, %54, %55, "
      "%56, %57, %58, %59, %60, %61, %62, %63"
      "}, %64, %65, p, 1, 1, 0, 0;\n"
      "}\n"
      : "+f"(d[0][0]), "+f"(d[0][1]), "+f"(d[0][2]), "+f"(d[0][3]),
        "+f"(d[0][4]), "+f"(d[0][5]), "+f"(d[0][6]), "+f"(d[0][7]),
        "+f"(d[1][0]), "+f"(d[1][1]), "+f"(d[1][2]), "+f"(d[1][3]),
        "+f"(d[1][4]), "+f"(d[1][5]), "+f"(d[1][6]), "+f"(d[1][7]),
        "+f"(d[2][0]), "+f"(d[2][1]), "+f"(d[2][2]), "+f"(d[2][3]),
        "+f"(d[2][4]), "+f"(d[2][5]), "+f"(d[2][6]), "+f"(d[2][7]),
        "+f"(d[3][0]), "+f"(d[3][1]), "+f"(d[3][2]), "+f"(d[3][3]),
        "+f"(d[3][4]), "+f"(d[3][5]), "+f"(d[3][6]), "+f"(d[3][7]),
        "+f"(d[4][0]), "+f"(d[4][1]), "+f"(d[4][2]), "+f"(d[4][3]),
        "+f"(d[4][4]), "+f"(d[4][5]), "+f"(d[4][6]), "+f"(d[4][7]),
        "+f"(d[5][0]), "+f"(d[5][1]), "+f"(d[5][2]), "+f"(d[5][3]),
        "+f"(d[5][4]), "+f"(d[5][5]), "+f"(d[5][6]), "+f"(d[5][7]),
        "+f"(d[6][0]), "+f"(d[6][1]), "+f"(d[6][2]), "+f"(d[6][3]),
        "+f"(d[6][4]), "+f"(d[6][5]), "+f"(d[6][6]), "+f"(d[6][7]),
        "+f"(d[7][0]), "+f"(d[7][1]), "+f"(d[7][2]), "+f"(d[7][3]),
        "+f"(d[7][4]), "+f"(d[7][5]), "+f"(d[7][6]), "+f"(d[7][7])
      : "l"(a), "l"(b), "r"(accumulate));
}

// D[64, 128] += A[64, 16] · B[16, 128], A in registers, B in shared memory, MN-major.
__device__ __forceinline__ void wgmma_m64n128k16(Sums& d, const uint32_t (&a)[4], uint64_t b) {
  asm volatile(
      "wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 {"
      "%0, %1, %2, %3, %4, %5, %6, %7, "
      "%8, %9, %10, %11, %12, %13, %14, %15, "
      "%16, %17, %18, %19, %20, %21, %22, %23, "
      "%24, %25, %26, %27, %28, %29, %30, %31, "
      "%32, %33, %34, %35, %36, %37, %38, %39, "
      "%40, %41, %42, %43, %44, %45, %46, %47, "
      "%48, %49, %50, %51, %52, %53, %54, %55, "
      "%56, %57, %58, %59, %60, %61, %62, %63"
      "}, {%64, %65, %66, %67}, %68, 1, 1, 1, 1;\n"
      : "+f"(d[0][0]), "+f"(d[0][1]), "+f"(d[0][2]), "+f"(d[0][3]),
        "+f"(d[0][4]), "+f"(d[0][5]), "+f"(d[0][6]), "+f"(d[0][7]),
        "+f"(d[1][0]), "+f"(d[1][1]), "+f"(d[1][2]), "+f"(d[1][3]),
        "+f"(d[1][4]), "+f"(d[1][5]), "+f"(d[1][6]), "+f"(d[1][7]),
        "+f"(d[2][0]), "+f"(d[2][1]), "+f"(d[2][2]), "+f"(d[2][3]),
        "+f"(d[2][4]), "+f"(d[2][5]), "+f"(d[2][6]), "+f"(d[2][7]),
        "+f"(d[3][0]), "+f"(d[3][1]), "+f"(d[3][2]), "+f"(d[3][3]),
        "+f"(d[3][4]), "+f"(d[3][5]), "+f"(d[3][6]), "+f"(d[3][7]),
        "+f"(d[4][0]), "+f"(d[4][1]), "+f"(d[4][2]), "+f"(d[4][3]),
        "+f"(d[4][4]), "+f"(d[4][5]), "+f"(d[4][6]), "+f"(d[4][7]),
        "+f"(d[5][0]), "+f"(d[5][1]), "+f"(d[5][2]), "+f"(d[5][3]),
        "+f"(d[5][4]), "+f"(d[5][5]), "+f"(d[5][6]), "+f"(d[5][7]),
        "+f"(d[6][0]), "+f"(d[6][1]), "+f"(d[6][2]), "+f"(d[6][3]),
        "+f"(d[6][4]), "+f"(d[6][5]), "+f"(d[6][6]), "+f"(d[6][7]),
        "+f"(d[7][0]), "+f"(d[7][1]), "+f"(d[7][2]), "+f"(d[7][3]),
        "+f"(d[7][4]), "+f"(d[7][5]), "+f"(d[7][6]), "+f"(d[7][7])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));
}

// Registers that were written before are ready for the wgmma that follow.
__device__ __forceinline__ void wgmma_fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }

__device__ __forceinline__ void wgmma_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }

// Wait until all but the last `kPending` groups have retired. `sums` are what they wrote: passing them through keeps
// the compiler from reading these registers any earlier.
template <int kPending>
__device__ __forceinline__ void wgmma_wait(Sums& sums) {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(kPending) : "memory");
#pragma unroll
  for (auto& eight : sums) {
#pragma unroll
    for (float& sum : eight) asm volatile("" : "+f"(sum)::"memory");
  }
}

__device__ __forceinline__ float exp2_approximate(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

__device__ __forceinline__ uint32_t pack(float low, float high) {
  const __nv_bfloat162 pair = __floats2bfloat162_rn(low, high);
  return reinterpret_cast<const uint32_t&>(pair);
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

// Call `visit(head, tile)` for every query tile of this CTA. Neighbours in time share a head, so that K and V come out
// of L2.
template <typename Visit>
__device__ __forceinline__ void for_each_tile(int heads, int tiles, Visit visit) {
  for (int index = blockIdx.x; index < heads * tiles; index += gridDim.x) visit(index / tiles, index % tiles);
}

__device__ __forceinline__ void load_tile(__nv_bfloat16* tile, const CUtensorMap& map, uint64_t* barrier, int row) {
  barrier_expect(barrier, kTileBytes);
  tma_load(tile, &map, barrier, 0, row);
  tma_load(tile + kBox, &map, barrier, kSpan, row);
}

// Slots are filled in the order in which the consumers use them: K₀, K₁, V₀, K₂, V₁, …, the last V.
struct Producer {
  Shared& shared;
  Cursor cursor;
  uint32_t q_parity = 0;

  __device__ __forceinline__ void next(const CUtensorMap& map, int row) {
    barrier_wait(&shared.empty[cursor.slot], cursor.parity ^ 1);
    load_tile(shared.ring[cursor.slot], map, &shared.full[cursor.slot], row);
    cursor.advance();
  }

  // Queries from row `query`, and the `count` tiles of keys of their head, which begins at row `first`.
  __device__ __forceinline__ void load(const CUtensorMap& map_q, const CUtensorMap& map_k, const CUtensorMap& map_v,
                                       int query, int first, int count) {
    next(map_k, first);
    barrier_wait(&shared.q_empty, q_parity ^ 1);
    load_tile(shared.q, map_q, &shared.q_full, query);
    q_parity ^= 1;
#pragma unroll 1
    for (int step = 1; step < count; ++step) {
      next(map_k, first + step * kRows);
      next(map_v, first + (step - 1) * kRows);
    }
    next(map_v, first + (count - 1) * kRows);
  }
};

// What a thread keeps of its two rows between tiles of keys.
struct Rows {
  float maximum[2] = {-INFINITY, -INFINITY};  // of the scores so far, the same in the four threads of a row
  float sum[2] = {0, 0};                      // of this thread's exponentials
};

// One consumer: 64 queries.
struct Consumer {
  Shared& shared;
  const int index;
  Cursor cursor;
  uint32_t q_parity = 0;

  __device__ __forceinline__ void release(uint64_t* barrier) {
    if (threadIdx.x % 128 == 0) barrier_arrive(barrier);
  }

  // scores = Q·Kᵀ
  __device__ __forceinline__ void multiply_keys(Sums& scores, const __nv_bfloat16* keys) {
    wgmma_fence();
    const uint64_t a = k_major(shared.q + index * 64 * kSpan);
    const uint64_t b = k_major(keys);
#pragma unroll
    for (int d = 0; d < kHeadDim; d += 16) {
      const int offset = (d / kSpan * kBox + d % kSpan) / kUnit;
      wgmma_m64n128k16(scores, a + offset, b + offset, d > 0);
    }
    wgmma_commit();
  }

  // output += P·V. The sums' layout is that of the operand A (PTX ISA 9.7.15.5.1.1): P never leaves its registers.
  __device__ __forceinline__ void multiply_values(Sums& output, const uint32_t (&p)[8][4],
                                                  const __nv_bfloat16* values) {
    wgmma_fence();
    const uint64_t b = mn_major(values);
#pragma unroll
    for (int key = 0; key < kRows; key += 16) wgmma_m64n128k16(output, p[key / 16], b + key * kSpan / kUnit);
    wgmma_commit();
  }

  // Replace scores by exponentials relative to the new maximum; `correction` is what older sums must be multiplied by.
  __device__ __forceinline__ void softmax(Sums& scores, Rows& rows, float (&correction)[2]) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      float maximum = rows.maximum[half];
#pragma unroll
      for (int g = 0; g < 8; ++g) {
#pragma unroll
        for (int e = 0; e < 8; ++e) {
          if (e / 2 % 2 == half) maximum = fmaxf(maximum, scores[g][e]);
        }
      }
      maximum = fmaxf(maximum, __shfl_xor_sync(~0u, maximum, 1));
      maximum = fmaxf(maximum, __shfl_xor_sync(~0u, maximum, 2));
      correction[half] = exp2_approximate((rows.maximum[half] - maximum) * kScaleLog2);
      rows.maximum[half] = maximum;
      const float offset = -maximum * kScaleLog2;
      float sum = rows.sum[half] * correction[half];
#pragma unroll
      for (int g = 0; g < 8; ++g) {
#pragma unroll
        for (int e = 0; e < 8; ++e) {
          if (e / 2 % 2 != half) continue;
          scores[g][e] = exp2_approximate(fmaf(scores[g][e], kScaleLog2, offset));
          sum += scores[g][e];
        }
      }
      rows.sum[half] = sum;
    }
  }

  __device__ __forceinline__ void to_bf16(const Sums& exponentials, uint32_t (&p)[8][4]) {
#pragma unroll
    for (int g = 0; g < 8; ++g) {
#pragma unroll
      for (int r = 0; r < 4; ++r) p[g][r] = pack(exponentials[g][2 * r], exponentials[g][2 * r + 1]);
    }
  }

  __device__ __forceinline__ void rescale(Sums& output, const float (&factor)[2]) {
#pragma unroll
    for (int g = 0; g < 8; ++g) {
#pragma unroll
      for (int e = 0; e < 8; ++e) output[g][e] *= factor[e / 2 % 2];
    }
  }

  // Wait for the next slot of the ring.
  __device__ __forceinline__ void wait() { barrier_wait(&shared.full[cursor.slot], cursor.parity); }

  // Sum over `count` tiles of keys. Each turn issues the scores of one tile and the product with V of the tile before:
  // the softmax of the former runs beside the latter.
  __device__ __forceinline__ void attend(Sums& output, Rows& rows, int count) {
    Sums scores;
    uint32_t p[8][4];
    float correction[2];

    barrier_wait(&shared.q_full, q_parity);
    q_parity ^= 1;
    wait();
    multiply_keys(scores, shared.ring[cursor.slot]);
    wgmma_wait<0>(scores);
    release(&shared.empty[cursor.slot]);
    cursor.advance();
    softmax(scores, rows, correction);
    to_bf16(scores, p);
    wait();

    for (int step = 1; step < count; ++step) {
      take_turn(index);
      const int keys = cursor.slot;
      multiply_keys(scores, shared.ring[keys]);
      cursor.advance();
      wait();
      const int values = cursor.slot;
      multiply_values(output, p, shared.ring[values]);
      cursor.advance();
      pass_turn(index);

      wgmma_wait<1>(scores);
      release(&shared.empty[keys]);
      softmax(scores, rows, correction);
      // To wait for the next slot here, not at the turn, keeps the softmax in its place: ptxas moves nothing across this
      // loop, but would put the wait for the product before the exponentials.
      wait();
      wgmma_wait<0>(output);
      release(&shared.empty[values]);
      to_bf16(scores, p);
      rescale(output, correction);
    }
    release(&shared.q_empty);

    multiply_values(output, p, shared.ring[cursor.slot]);
    wgmma_wait<0>(output);
    release(&shared.empty[cursor.slot]);
    cursor.advance();
  }

  // Divide by the sums of the rows, and write their logarithms: of Σ exp(score/√D), with the maximum put back.
  __device__ __forceinline__ void normalise(Sums& output, const Rows& rows, float* lse) {
    const int lane = threadIdx.x % 32;
    float inverse[2];
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      float sum = rows.sum[half];
      sum += __shfl_xor_sync(~0u, sum, 1);
      sum += __shfl_xor_sync(~0u, sum, 2);
      inverse[half] = 1.0f / sum;
      const int row = threadIdx.x % 128 / 32 * 16 + lane / 4 + half * 8;
      if (lane % 4 == 0) lse[row] = fmaf(rows.maximum[half], kScaleLog2, log2f(sum)) * kLn2;
    }
    rescale(output, inverse);
  }

  // Write 64×128 outputs by two TMA stores; the buffers are refilled when the stores of the tile before have read them.
  __device__ __forceinline__ void store(const Sums& output, const CUtensorMap& map_o, int row) {
    const bool issuer = threadIdx.x % 128 == 0;
    const int lane = threadIdx.x % 32;
    const int shared_row = threadIdx.x % 128 / 32 * 16 + lane % 16;
    if (issuer) asm volatile("cp.async.bulk.wait_group.read 0;" ::: "memory");
    consumer_sync(index);
#pragma unroll
    for (int g = 0; g < 8; ++g) {  // 16 columns: two 8×8 blocks, upper and lower rows of each
      const float* eight = output[g];
      const uint32_t line = shared_address(shared.out[index] + g / 4 * kStoreBox + shared_row * kSpan);
      const uint32_t chunk = (g % 4 * 2 + lane / 16) ^ (shared_row % 8);
      asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(line + chunk * 16),
                   "r"(pack(eight[0], eight[1])), "r"(pack(eight[2], eight[3])), "r"(pack(eight[4], eight[5])),
                   "r"(pack(eight[6], eight[7]))
                   : "memory");
    }
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");  // TMA reads what ordinary stores wrote
    consumer_sync(index);
    if (issuer) {
      tma_store(&map_o, shared.out[index], 0, row);
      tma_store(&map_o, shared.out[index] + kStoreBox, kSpan, row);
      asm volatile("cp.async.bulk.commit_group;" ::: "memory");
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

  if (threadIdx.x == 0) {
    barrier_init(&shared.q_full, 1);
    barrier_init(&shared.q_empty, kConsumers);
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
    if (threadIdx.x == 0) {
      Producer producer{shared};
      for_each_tile(heads, tiles, [&](int head, int tile) {
        producer.load(map_q, map_k, map_v, head * S + tile * kRows, head * S, tiles);
      });
    }
  } else {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 232;");
    Consumer consumer{shared, warpgroup - 1};
    if (consumer.index == 1) pass_turn(1);  // consumer 0 begins
    for_each_tile(heads, tiles, [&](int head, int tile) {
      const int row = head * S + tile * kRows + consumer.index * 64;
      Sums output = {};
      Rows rows;
      consumer.attend(output, rows, tiles);
      consumer.normalise(output, rows, LSE + row);
      consumer.store(output, map_o, row);
    });
    if (consumer.index == 0) take_turn(0);  // the turn that nobody takes any more
    if (threadIdx.x % 128 == 0) asm volatile("cp.async.bulk.wait_group 0;" ::: "memory");
  }
}

// A [rows, 128] row-major BF16 matrix, moved in boxes of 64 columns (128 bytes: one swizzle span).
CUtensorMap tensor_map(const __nv_bfloat16* matrix, int rows, int box_rows) {
  const cuuint64_t dims[2] = {kHeadDim, static_cast<cuuint64_t>(rows)};
  const cuuint64_t strides[1] = {kHeadDim * sizeof(__nv_bfloat16)};
  const cuuint32_t box[2] = {kSpan, static_cast<cuuint32_t>(box_rows)};
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
  const int tiles = B * H * (S / kRows);
  const int rows = B * H * S;
  const CUtensorMap map_q = tensor_map(Q, rows, kRows);
  const CUtensorMap map_k = tensor_map(K, rows, kRows);
  const CUtensorMap map_v = tensor_map(V, rows, kRows);
  const CUtensorMap map_o = tensor_map(O, rows, 64);
  cudaFuncSetAttribute(attention_oracle, cudaFuncAttributeMaxDynamicSharedMemorySize, kSharedBytes);
  attention_oracle<<<tiles < processors ? tiles : processors, kThreads, kSharedBytes, stream>>>(
      map_q, map_k, map_v, map_o, LSE, B * H, S);
}
