#pragma once
#include "barriers.cuh"

// Host. The map of a row-major tensor for TMA, innermost dimension first: dims and box in elements, strides_bytes of all
// dimensions but the innermost (multiples of 16). box[0] elements must fill at most the swizzle span (128 bytes for
// CU_TENSOR_MAP_SWIZZLE_128B); each box[i] <= 256. What a box covers outside of the tensor is read as zero and not
// written. Pass it to the kernel as `const __grid_constant__ CUtensorMap`.
template <int kRank>
inline CUtensorMap tensor_map(CUtensorMapDataType type, const void* base, const cuuint64_t (&dims)[kRank],
                              const cuuint64_t (&strides_bytes)[kRank - 1], const cuuint32_t (&box)[kRank],
                              CUtensorMapSwizzle swizzle) {
  void* encode = nullptr;
  cudaDriverEntryPointQueryResult found;
  cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &encode, 12000, cudaEnableDefault, &found);
  cuuint32_t steps[kRank];
  for (cuuint32_t& step : steps) step = 1;
  CUtensorMap map;
  reinterpret_cast<decltype(&cuTensorMapEncodeTiled)>(encode)(
      &map, type, kRank, const_cast<void*>(base), dims, strides_bytes, box, steps, CU_TENSOR_MAP_INTERLEAVE_NONE,
      swizzle, CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  return map;
}

// Host. Matrix [rows, columns] of BF16, row-major, in boxes of box_rows rows of 64 columns: one 128-byte swizzle span.
inline CUtensorMap bf16_map(const __nv_bfloat16* matrix, uint64_t rows, uint64_t columns, uint32_t box_rows) {
  return tensor_map<2>(CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, matrix, {columns, rows}, {columns * 2}, {64, box_rows},
                       CU_TENSOR_MAP_SWIZZLE_128B);
}

// Byte offset of byte `byte` of row `row` in a box whose rows are kSpan = 32, 64 or 128 bytes, swizzled by that span:
// 16-byte chunks are XORed with the row (128B: row % 8; 64B: row / 2 % 4; 32B: row / 4 % 2). The box starts at a
// multiple of 8 * kSpan. With it ordinary code reads and writes what TMA swizzled.
template <int kSpan>
__device__ __forceinline__ uint32_t swizzled(uint32_t row, uint32_t byte) {
  const uint32_t offset = row * kSpan + byte;
  return offset ^ (offset >> 3 & (kSpan - 16));
}

// One thread, once, before the first copy: takes the latency of the map off it.
__device__ __forceinline__ void tma_prefetch(const CUtensorMap* map) {
  asm volatile("prefetch.tensormap [%0];" ::"l"(map) : "memory");
}

// One thread. Box of `map` whose first element is (x, y) = (column, row) to `target`, aligned to 128 bytes (swizzle of
// 128 bytes: 1024). Its whole bytes, clipped or not, count at `barrier`, which must expect them (PTX ISA 9.7.9.25.5.2).
__device__ __forceinline__ void tma_load_2d(void* target, const CUtensorMap* map, uint64_t* barrier, int x, int y) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3}], [%4];" ::
      "r"(smem_address(target)), "l"(map), "r"(x), "r"(y), "r"(smem_address(barrier)) : "memory");
}

// The same for a map of rank 3, such as [heads, rows, columns]: rows past the end of one head come as zeros, not as the
// next head's.
__device__ __forceinline__ void tma_load_3d(void* target, const CUtensorMap* map, uint64_t* barrier, int x, int y,
                                            int z) {
  asm volatile(
      "cp.async.bulk.tensor.3d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3, %4}], [%5];"
      ::"r"(smem_address(target)), "l"(map), "r"(x), "r"(y), "r"(z), "r"(smem_address(barrier)) : "memory");
}

// One thread. `bytes` (a multiple of 16) in a row from global to shared memory, both aligned to 16; no map.
__device__ __forceinline__ void bulk_load(void* target, const void* source, uint64_t* barrier, uint32_t bytes) {
  asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::
               "r"(smem_address(target)), "l"(source), "r"(bytes), "r"(smem_address(barrier)) : "memory");
}

// One thread, after async_proxy_fence() by the writers and a barrier: box from shared memory to (x, y) of `map`.
__device__ __forceinline__ void tma_store_2d(const CUtensorMap* map, const void* source, int x, int y) {
  asm volatile("cp.async.bulk.tensor.2d.global.shared::cta.tile.bulk_group [%0, {%1, %2}], [%3];" ::"l"(map), "r"(x),
               "r"(y), "r"(smem_address(source)) : "memory");
}

// The same for a map of rank 3: rows past the end of a head are not written.
__device__ __forceinline__ void tma_store_3d(const CUtensorMap* map, const void* source, int x, int y, int z) {
  asm volatile("cp.async.bulk.tensor.3d.global.shared::cta.tile.bulk_group [%0, {%1, %2, %3}], [%4];" ::"l"(map),
               "r"(x), "r"(y), "r"(z), "r"(smem_address(source)) : "memory");
}

// As tma_store_2d(), adding to what is there; the order of additions from several CTAs is free.
__device__ __forceinline__ void tma_add_2d(const CUtensorMap* map, const void* source, int x, int y) {
  asm volatile("cp.reduce.async.bulk.tensor.2d.global.shared::cta.add.tile.bulk_group [%0, {%1, %2}], [%3];" ::"l"(map),
               "r"(x), "r"(y), "r"(smem_address(source)) : "memory");
}

// The storing thread: end a group of stores.
__device__ __forceinline__ void tma_commit() { asm volatile("cp.async.bulk.commit_group;" ::: "memory"); }

// The storing thread: wait until at most kPending of its groups still read shared memory; then, after a barrier, their
// buffers may be written again.
template <int kPending>
__device__ __forceinline__ void tma_wait_read() {
  asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(kPending) : "memory");
}

// The storing thread: wait until the groups are written as well. With 0 before the thread ends: the CTA's shared memory
// must outlive the copies.
template <int kPending>
__device__ __forceinline__ void tma_wait() {
  asm volatile("cp.async.bulk.wait_group %0;" ::"n"(kPending) : "memory");
}
