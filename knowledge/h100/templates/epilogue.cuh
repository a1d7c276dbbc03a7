#pragma once
#include "../../common/registers.cuh"
#include "../../common/tma.cuh"
#include "wgmma.cuh"

// 16 columns of the sums (those from column 16 * step) as BF16 operand A of a following wgmma_rs().
template <int kCount>
__device__ __forceinline__ void accumulators_to_a(const float (&sums)[kCount], int step, uint32_t (&a)[4]) {
#pragma unroll
  for (int i = 0; i < 4; ++i) a[i] = pack_bf16(sums[8 * step + 2 * i], sums[8 * step + 2 * i + 1]);
}

// Over a row of the fragment: the four threads that share it combine what they hold; all get the result.
__device__ __forceinline__ float row_max(float value) {
  value = fmaxf(value, __shfl_xor_sync(0xffffffffu, value, 1));
  return fmaxf(value, __shfl_xor_sync(0xffffffffu, value, 2));
}
__device__ __forceinline__ float row_sum(float value) {
  value += __shfl_xor_sync(0xffffffffu, value, 1);
  return value + __shfl_xor_sync(0xffffffffu, value, 2);
}

// A warpgroup writes columns [first, first + 64) of its 64 rows of sums as BF16 into a box [64, 64] with 128-byte swizzle
// (8192 bytes at a multiple of 1024), as tma_store_2d() wants it. Then async_proxy_fence() by all, a barrier of the 128
// threads, and one thread stores and commits. `first` is a compile-time constant after unrolling.
template <int kCount>
__device__ __forceinline__ void sums_to_box(void* box, const float (&sums)[kCount], int first) {
  const int lane = threadIdx.x % 32;
  const int row = threadIdx.x % 128 / 32 * 16 + lane % 16;
#pragma unroll
  for (int step = 0; step < 4; ++step) {
    uint32_t a[4];
    accumulators_to_a(sums, first / 16 + step, a);
    stmatrix_x4(smem_address(box) + swizzled<128>(row, step * 32 + lane / 16 * 16), a[0], a[1], a[2], a[3]);
  }
}
