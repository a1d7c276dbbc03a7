#pragma once
#include "../../common/barriers.cuh"

// kCtas = 1, or 2 for a pair (.cta_group::2); one kernel uses one of them throughout. Addresses of tensor memory are
// lane << 16 | column: 128 lanes, 512 columns of 32 bits (PTX ISA 9.7.16.1).

// ---- allocation (PTX ISA 9.7.16.7.1)

// One whole warp; of a pair the same warp of both CTAs. `columns`: a power of two from 32 to 512. The address arrives
// in *slot (shared memory): others read it after tcgen05_fence_before(), a barrier, tcgen05_fence_after(). Gives up the
// right to allocate again: one call per kernel.
template <int kCtas = 1>
__device__ __forceinline__ void tmem_alloc(uint32_t* slot, uint32_t columns) {
  asm volatile("tcgen05.alloc.cta_group::%2.sync.aligned.shared::cta.b32 [%0], %1;\n"
               "tcgen05.relinquish_alloc_permit.cta_group::%2.sync.aligned;" ::"r"(smem_address(slot)), "r"(columns),
               "n"(kCtas) : "memory");
}

// The same warp with the same number, before the kernel ends and after a barrier behind all uses (a pair:
// cluster_sync()).
template <int kCtas = 1>
__device__ __forceinline__ void tmem_dealloc(uint32_t address, uint32_t columns) {
  asm volatile("tcgen05.dealloc.cta_group::%2.sync.aligned.b32 %0, %1;" ::"r"(address), "r"(columns), "n"(kCtas));
}

// ---- order (PTX ISA 9.7.16.6)

// After tensor memory was used and waited for, before the arrival or barrier that tells another thread.
__device__ __forceinline__ void tcgen05_fence_before() {
  asm volatile("tcgen05.fence::before_thread_sync;" ::: "memory");
}

// After the wait or barrier, before the first use of tensor memory, MMA included, that relies on it.
__device__ __forceinline__ void tcgen05_fence_after() {
  asm volatile("tcgen05.fence::after_thread_sync;" ::: "memory");
}

// The thread that issued the products: one arrival at `barrier` when all that it issued so far are complete. Then their
// shared memory may be refilled and their sums read. Implies tcgen05_fence_before().
__device__ __forceinline__ void tcgen05_commit(uint64_t* barrier) {
  asm volatile("tcgen05.commit.cta_group::1.mbarrier::arrive::one.shared::cluster.b64 [%0];" ::"r"(
                   smem_address(barrier)) : "memory");
}

// The same, with an arrival at this place in every CTA of `mask` (bit per cluster rank). After products of a pair
// always with the bits of both: 0b11 in a cluster of two.
template <int kCtas = 2>
__device__ __forceinline__ void tcgen05_commit_multicast(uint64_t* barrier, uint16_t mask) {
  asm volatile("tcgen05.commit.cta_group::%2.mbarrier::arrive::one.shared::cluster.multicast::cluster.b64 [%0], %1;" ::
               "r"(smem_address(barrier)), "h"(mask), "n"(kCtas) : "memory");
}

// ---- operands in shared memory (PTX ISA 9.7.16.3, 9.7.16.4.1)

// Descriptor of a tile of 16-bit elements as TMA wrote it, rows of kSpan bytes swizzled by that span; 16: not swizzled.
// The tile starts at a multiple of 8 * kSpan. All fields count 16 bytes, so that small numbers may be added to the
// descriptor. Bit 46 marks the format of sm_100, whose swizzle modes stand in bits 61 to 63.
// K-major: a row is one of M (or N), the span runs along K; eight rows make an atom, the next atom is 8 * kSpan bytes
// on. The next 16 of K inside of the span: descriptor + 2. Unswizzled, the next eight of K are `leading_bytes` on, the
// size of a box [rows, 8]; swizzled, it is not used.
template <int kSpan>
__device__ __forceinline__ uint64_t descriptor_k_major(const void* tile, uint32_t leading_bytes = 16) {
  constexpr uint64_t kMode = kSpan == 128 ? 2 : kSpan == 64 ? 4 : kSpan == 32 ? 6 : 0;
  const uint64_t start = (smem_address(tile) & 0x3ffff) >> 4;
  return start | uint64_t(leading_bytes / 16) << 16 | uint64_t(8 * kSpan / 16) << 32 | 1ull << 46 | kMode << 61;
}

// MN-major: a row is one of K, the span runs along M (or N). The next eight of K are 8 * kSpan bytes on, the next
// kSpan / 2 of M (or N) `leading_bytes`: the size of a box that is one span wide. The next 16 of K: descriptor + kSpan.
template <int kSpan>
__device__ __forceinline__ uint64_t descriptor_mn_major(const void* tile, uint32_t leading_bytes) {
  static_assert(kSpan >= 32, "for swizzled tiles only");
  return descriptor_k_major<kSpan>(tile, leading_bytes);
}

// ---- products D[M, N] (+)= A[M, 16] * B[16, N], BF16 operands, FP32 sums in tensor memory (PTX ISA 9.7.16.10)

// The instruction descriptor (PTX ISA 9.7.16.4.2). One CTA: M = 64 or 128, N a multiple of 8 to 256; a pair: M = 128
// or 256 of both together, N a multiple of 16; twice these steps with A in tensor memory. Say which operands are
// MN-major.
__host__ __device__ constexpr uint32_t instruction_bf16(int m, int n, bool a_mn_major = false,
                                                        bool b_mn_major = false) {
  return 1u << 4 | 1u << 7 | 1u << 10 | uint32_t(a_mn_major) << 15 | uint32_t(b_mn_major) << 16 |
         uint32_t(n / 8) << 17 | uint32_t(m / 16) << 24;
}

// One thread (of a pair: of the even CTA, for both). A, B by descriptors; of a pair each CTA holds, at the same places,
// its half of A's rows and of B's N. accumulate = false overwrites D: for the first product of a tile. Products of one
// thread with the same D and shape execute in the order of issue; nothing else is ordered without tcgen05_commit().
template <int kCtas = 1>
__device__ __forceinline__ void mma_ss(uint32_t d, uint64_t a, uint64_t b, uint32_t instruction, bool accumulate) {
  asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %4, 0;\n"
               "tcgen05.mma.cta_group::%5.kind::f16 [%0], %1, %2, %3, p;\n}" ::"r"(d), "l"(a), "l"(b), "r"(instruction),
               "r"(int(accumulate)), "n"(kCtas) : "memory");
}

// The same with A in tensor memory: row r in lane r, two BF16 to a column, the lower index in the low half. 16 of K are
// eight columns: the next are a + 8. A is K-major.
template <int kCtas = 1>
__device__ __forceinline__ void mma_ts(uint32_t d, uint32_t a, uint64_t b, uint32_t instruction, bool accumulate) {
  asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %4, 0;\n"
               "tcgen05.mma.cta_group::%5.kind::f16 [%0], [%1], %2, %3, p;\n}" ::"r"(d), "r"(a), "l"(b),
               "r"(instruction), "r"(int(accumulate)), "n"(kCtas) : "memory");
}
