#pragma once
#include "../../common/registers.cuh"
#include "tcgen05.cuh"

// What to add to an address for the lanes that this warp may touch, 32 * (warp % 4) and on (PTX ISA 9.7.16.8.1). With
// sums of 128 rows, thread i of the warp then has row 32 * (warp % 4) + i.
__device__ __forceinline__ uint32_t tmem_own_lanes() { return (threadIdx.x / 32 % 4 * 32) << 16; }

// Loads and stores are for whole converged warps and asynchronous. After loads, before any value is used; `r` passes
// through, so that the compiler moves no use of it before the wait. One wait serves all loads before it: pass the
// others through tmem_wait_load() as well.
template <int kCount>
__device__ __forceinline__ void tmem_wait_load(float (&r)[kCount]) {
  asm volatile("tcgen05.wait::ld.sync.aligned;" ::: "memory");
#pragma unroll
  for (float& value : r) asm volatile("" : "+f"(value)::"memory");
}

// After stores, before tcgen05_fence_before() and the arrival that hands the cells on.
__device__ __forceinline__ void tmem_wait_store() { asm volatile("tcgen05.wait::st.sync.aligned;" ::: "memory"); }

#define TEN(t) "%" #t "0,%" #t "1,%" #t "2,%" #t "3,%" #t "4,%" #t "5,%" #t "6,%" #t "7,%" #t "8,%" #t "9,"
#define UP_TO_8 "%0,%1,%2,%3,%4,%5,%6,%7"
#define UP_TO_16 UP_TO_8 ",%8,%9,%10,%11,%12,%13,%14,%15"
#define UP_TO_32 "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9," TEN(1) TEN(2) "%30,%31"
#define UP_TO_64 "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9," TEN(1) TEN(2) TEN(3) TEN(4) TEN(5) "%60,%61,%62,%63"
#define EACH_8(c, i) c(r[i]), c(r[i + 1]), c(r[i + 2]), c(r[i + 3]), c(r[i + 4]), c(r[i + 5]), c(r[i + 6]), c(r[i + 7])
#define EACH_16(c, i) EACH_8(c, i), EACH_8(c, i + 8)
#define EACH_32(c, i) EACH_16(c, i), EACH_16(c, i + 16)
#define EACH_64(c, i) EACH_32(c, i), EACH_32(c, i + 32)

// tmem_load: `count` = 8, 16, 32 or 64 columns from `address` on, a lane per thread, r[c] = column c. tmem_store: the
// other way, of floats or of packed BF16 (PTX ISA 9.7.16.8, shape .32x32b).
#define DEFINE_TMEM(count)                                                                                          \
  __device__ __forceinline__ void tmem_load(uint32_t address, float (&r)[count]) {                                  \
    asm volatile("tcgen05.ld.sync.aligned.32x32b.x" #count ".b32 {" UP_TO_##count "}, [%" #count "];"                \
                 : EACH_##count("=f", 0) : "r"(address) : "memory");                                               \
  }                                                                                                                 \
  __device__ __forceinline__ void tmem_store(uint32_t address, const float (&r)[count]) {                           \
    asm volatile("tcgen05.st.sync.aligned.32x32b.x" #count ".b32 [%" #count "], {" UP_TO_##count "};" ::             \
                 EACH_##count("f", 0), "r"(address) : "memory");                                                   \
  }                                                                                                                 \
  __device__ __forceinline__ void tmem_store(uint32_t address, const uint32_t (&r)[count]) {                        \
    asm volatile("tcgen05.st.sync.aligned.32x32b.x" #count ".b32 [%" #count "], {" UP_TO_##count "};" ::             \
                 EACH_##count("r", 0), "r"(address) : "memory");                                                   \
  }
DEFINE_TMEM(8)
DEFINE_TMEM(16)
DEFINE_TMEM(32)
DEFINE_TMEM(64)

// 16 lanes (those of `address`: the lower or upper half of the warp's) x 32 columns as fragments: r[4 * b + e] is lane
// l / 4 + e / 2 * 8, column 8 * b + l % 4 * 2 + e % 2, for thread l: what stmatrix_x4() takes (shape .16x256b).
__device__ __forceinline__ void tmem_load_fragments(uint32_t address, float (&r)[16]) {
  asm volatile("tcgen05.ld.sync.aligned.16x256b.x4.b32 {" UP_TO_16 "}, [%16];" : EACH_16("=f", 0) : "r"(address)
               : "memory");
}
