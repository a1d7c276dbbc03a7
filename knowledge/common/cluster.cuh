#pragma once
#include "tma.cuh"

// Launch with cudaLaunchAttributeClusterDimension, or `__cluster_dims__(n, 1, 1)` on the kernel; at most 8 CTAs
// portably. All CTAs of a cluster run at once, on SMs of one GPC.

// This CTA's number in its cluster.
__device__ __forceinline__ uint32_t cluster_rank() {
  uint32_t rank;
  asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  return rank;
}

// All threads of all CTAs of the cluster meet. Once after mbarrier_init_fence(), before anyone reaches into another CTA;
// once more before a CTA ends whose shared memory others still use.
__device__ __forceinline__ void cluster_sync() {
  asm volatile("barrier.cluster.arrive.release.aligned;\nbarrier.cluster.wait.acquire.aligned;" ::: "memory");
}

// Where `pointer`, into the own shared memory, lies in CTA `rank`: a shared::cluster address.
__device__ __forceinline__ uint32_t cluster_address(const void* pointer, uint32_t rank) {
  uint32_t address;
  asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(address) : "r"(smem_address(pointer)), "r"(rank));
  return address;
}

// Read a float of another CTA's shared memory, after a barrier that orders it with the write.
__device__ __forceinline__ float cluster_load(uint32_t address) {
  float value;
  asm volatile("ld.shared::cluster.f32 %0, [%1];" : "=f"(value) : "r"(address) : "memory");
  return value;
}

// Write a float into another CTA's shared memory; four bytes count at `barrier`, an address in the same CTA.
__device__ __forceinline__ void cluster_store_async(uint32_t address, float value, uint32_t barrier) {
  asm volatile("st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.b32 [%0], %1, [%2];" ::"r"(address),
               "r"(__float_as_uint(value)), "r"(barrier) : "memory");
}

// One arrival at CTA `rank`'s copy of `barrier`: a consumer tells the CTA that multicasts to it that a slot is free.
__device__ __forceinline__ void mbarrier_arrive_at(uint64_t* barrier, uint32_t rank) {
  asm volatile("mbarrier.arrive.release.cluster.shared::cluster.b64 _, [%0];" ::"r"(cluster_address(barrier, rank))
               : "memory");
}

// mbarrier_wait() for phases in which threads of other CTAs arrive.
__device__ __forceinline__ void mbarrier_wait_cluster(uint64_t* barrier, uint32_t parity) {
  asm volatile(
      "{\n.reg .pred done;\n"
      "POLL:\nmbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 done, [%0], %1;\n"
      "@!done bra POLL;\n}" ::"r"(smem_address(barrier)), "r"(parity) : "memory");
}

// One thread of one CTA: the box goes to the same place in every CTA of `mask` (bit per rank), and its bytes count at
// each one's own copy of `barrier`. Every such CTA must have expected them, and must have said that its slot is free.
__device__ __forceinline__ void tma_load_2d_multicast(void* target, const CUtensorMap* map, uint64_t* barrier, int x,
                                                      int y, uint16_t mask) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes.multicast::cluster "
      "[%0], [%1, {%2, %3}], [%4], %5;" ::"r"(smem_address(target)), "l"(map), "r"(x), "r"(y),
      "r"(smem_address(barrier)), "h"(mask) : "memory");
}
