#pragma once
#include "../../common/cluster.cuh"
#include "tcgen05.cuh"

// A pair: cluster ranks 2 i and 2 i + 1 share one product (PTX ISA 9.7.16.5). The even one leads: its thread issues,
// and barriers that products wait for live in it.

// `barrier` of the pair's even CTA, as a shared::cluster address.
__device__ __forceinline__ uint32_t pair_leader(const uint64_t* barrier) {
  return cluster_address(barrier, cluster_rank() & ~1u);
}

// One thread of either CTA: a box into the own shared memory, whose bytes count at the leader's `barrier`. The leader
// alone calls mbarrier_arrive_expect_tx(), with the bytes of both; copies of the other may land before that.
__device__ __forceinline__ void tma_load_2d_pair(void* target, const CUtensorMap* map, uint64_t* barrier, int x,
                                                 int y) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes.cta_group::2 "
      "[%0], [%1, {%2, %3}], [%4];" ::"r"(smem_address(target)), "l"(map), "r"(x), "r"(y), "r"(pair_leader(barrier))
      : "memory");
}

// All 32 threads: one arrival at the leader's `barrier` for the warp, after what they did with tensor memory.
__device__ __forceinline__ void pair_warp_arrive(uint64_t* barrier) {
  tcgen05_fence_before();
  __syncwarp();
  if (threadIdx.x % 32 == 0) mbarrier_arrive_at(barrier, cluster_rank() & ~1u);
}
