#pragma once
#include "../../common/barriers.cuh"

// ---- operands in shared memory (PTX ISA 9.7.15.5.1)

// Descriptor of a tile of 16-bit elements as TMA wrote it, rows of kSpan = 128, 64 or 32 bytes swizzled by that span; the
// tile starts at a multiple of 8 * kSpan. All offsets count 16 bytes, so that descriptors may be added to.
// K-major: a row is one of M (or N), the span runs along K; eight rows make an atom, atoms of the next eight rows follow
// 8 * kSpan bytes on (stride offset), and the leading offset is not used. The next 16 of K inside of the span are
// 32 bytes, or 2, further: descriptor + 2.
template <int kSpan>
__device__ __forceinline__ uint64_t descriptor_k_major(const void* tile) {
  constexpr uint64_t kMode = kSpan == 128 ? 1 : kSpan == 64 ? 2 : 3;
  const uint64_t start = (smem_address(tile) & 0x3ffff) >> 4;
  return start | 1ull << 16 | uint64_t(8 * kSpan / 16) << 32 | kMode << 62;
}

// MN-major: a row is one of K, the span runs along M (or N); pass 1 for the operand's transpose. The next eight of K follow
// 8 * kSpan bytes on (stride offset), the next kSpan / 2 of M (or N) `leading_bytes` on: the size of a TMA box where each
// box holds one span. The next 16 of K are two atoms further: descriptor + kSpan.
template <int kSpan>
__device__ __forceinline__ uint64_t descriptor_mn_major(const void* tile, uint32_t leading_bytes) {
  constexpr uint64_t kMode = kSpan == 128 ? 1 : kSpan == 64 ? 2 : 3;
  const uint64_t start = (smem_address(tile) & 0x3ffff) >> 4;
  return start | uint64_t(leading_bytes / 16) << 16 | uint64_t(8 * kSpan / 16) << 32 | kMode << 62;
}

// ---- order (PTX ISA 9.7.15.7); all 128 threads of a warpgroup, its warps at multiples of four

// Before the first product, and whenever ordinary code has touched accumulators or A registers since.
__device__ __forceinline__ void wgmma_fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }

// End a group of products.
__device__ __forceinline__ void wgmma_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }

// Wait until at most kPending groups run. Then the accumulators of the others may be touched and their shared memory
// released. `sums`, what they wrote, pass through, so that the compiler moves no use of them before the wait.
template <int kPending, int kCount>
__device__ __forceinline__ void wgmma_wait(float (&sums)[kCount]) {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(kPending) : "memory");
#pragma unroll
  for (float& sum : sums) asm volatile("" : "+f"(sum)::"memory");
}

// ---- products of a warpgroup (PTX ISA 9.7.15.5): D[64, N] (+)= A[64, 16] * B[16, N], BF16 operands, FP32 sums

// Where the sums of a thread lie: d[4 * b + e], b < N / 8, is row fragment_row(e), column fragment_column(b, e).
__device__ __forceinline__ int fragment_row(int e) {
  return threadIdx.x % 128 / 32 * 16 + threadIdx.x % 32 / 4 + e / 2 * 8;
}
__device__ __forceinline__ int fragment_column(int b, int e) { return 8 * b + threadIdx.x % 4 * 2 + e % 2; }

#define TEN(t) "%" #t "0,%" #t "1,%" #t "2,%" #t "3,%" #t "4,%" #t "5,%" #t "6,%" #t "7,%" #t "8,%" #t "9,"
#define REGISTERS_32 "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9," TEN(1) TEN(2) "%30,%31"
#define REGISTERS_48 "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9," TEN(1) TEN(2) TEN(3) "%40,%41,%42,%43,%44,%45,%46,%47"
#define REGISTERS_64 "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9," TEN(1) TEN(2) TEN(3) TEN(4) TEN(5) "%60,%61,%62,%63"
#define REGISTERS_128 \
  "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9," TEN(1) TEN(2) TEN(3) TEN(4) TEN(5) TEN(6) TEN(7) TEN(8) TEN(9) TEN(10) TEN(11) \
      "%120,%121,%122,%123,%124,%125,%126,%127"
#define SUMS_8(i) \
  "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3]), "+f"(d[i + 4]), "+f"(d[i + 5]), "+f"(d[i + 6]), \
      "+f"(d[i + 7])
#define SUMS_32(i) SUMS_8(i), SUMS_8(i + 8), SUMS_8(i + 16), SUMS_8(i + 24)

// wgmma_ss: A and B in shared memory, by descriptors; kTransA, kTransB = 1 where that operand is MN-major. With
// accumulate = 0 the sums are overwritten. wgmma_rs: A from registers, kept unchanged until the wait; a[0..3] are two
// BF16 each of (row fragment_row(0), column fragment_column(0, 0)), (row + 8), (column + 8), (both): sums of an earlier
// product, packed by accumulators_to_a(), fit as they are. N is twice the number of sums: 64, 96, 128 or 256.
#define DEFINE_WGMMA(n, count, registers, sums, o0, o1, o2, o3, o4, o5, o6) \
  template <int kTransA = 0, int kTransB = 0> \
  __device__ __forceinline__ void wgmma_ss(float (&d)[count], uint64_t a, uint64_t b, int accumulate) { \
    asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %" #o2 ", 0;\nwgmma.mma_async.sync.aligned.m64n" #n \
                 "k16.f32.bf16.bf16 {" registers "}, %" #o0 ", %" #o1 ", p, 1, 1, %" #o3 ", %" #o4 ";\n}" \
                 : sums : "l"(a), "l"(b), "r"(accumulate), "n"(kTransA), "n"(kTransB)); \
  } \
  template <int kTransB = 0> \
  __device__ __forceinline__ void wgmma_rs(float (&d)[count], const uint32_t (&a)[4], uint64_t b, int accumulate) { \
    asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %" #o5 ", 0;\nwgmma.mma_async.sync.aligned.m64n" #n \
                 "k16.f32.bf16.bf16 {" registers "}, {%" #o0 ",%" #o1 ",%" #o2 ",%" #o3 "}, %" #o4 \
                 ", p, 1, 1, %" #o6 ";\n}" \
                 : sums : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(accumulate), "n"(kTransB)); \
  }
DEFINE_WGMMA(64, 32, REGISTERS_32, SUMS_32(0), 32, 33, 34, 35, 36, 37, 38)
#define SUMS_48 SUMS_32(0), SUMS_8(32), SUMS_8(40)
DEFINE_WGMMA(96, 48, REGISTERS_48, SUMS_48, 48, 49, 50, 51, 52, 53, 54)
#define SUMS_64 SUMS_32(0), SUMS_32(32)
DEFINE_WGMMA(128, 64, REGISTERS_64, SUMS_64, 64, 65, 66, 67, 68, 69, 70)
#define SUMS_128 SUMS_32(0), SUMS_32(32), SUMS_32(64), SUMS_32(96)
DEFINE_WGMMA(256, 128, REGISTERS_128, SUMS_128, 128, 129, 130, 131, 132, 133, 134)
