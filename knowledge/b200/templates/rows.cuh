#pragma once
#include "../../common/tma.cuh"
#include "tmem.cuh"

// A thread has a row of the sums, or a stretch of it: no shuffles.

// All 32 threads: one arrival for the warp, after what they did with tensor memory (and waited for).
__device__ __forceinline__ void warp_arrive(uint64_t* barrier) {
  tcgen05_fence_before();
  __syncwarp();
  if (threadIdx.x % 32 == 0) mbarrier_arrive(barrier);
}

// Columns from `count` on become -infinity: for a causal mask, count = row + 1 - first column.
template <int kCount>
__device__ __forceinline__ void row_mask(float (&row)[kCount], int count) {
#pragma unroll
  for (int i = 0; i < kCount; ++i) row[i] = i < count ? row[i] : -INFINITY;
}

// The largest of the row and of `maximum`: -infinity, or what the row had before.
template <int kCount>
__device__ __forceinline__ float row_max(const float (&row)[kCount], float maximum) {
#pragma unroll
  for (int i = 0; i < kCount; ++i) maximum = fmaxf(maximum, row[i]);
  return maximum;
}

// packed = BF16(2^(row * scale - offset)), as tmem_store() and mma_ts() take it; returns the sum of the powers. For
// softmax: scale = log2(e) / sqrt(D), offset = maximum * scale, where the maximum is finite.
template <int kCount>
__device__ __forceinline__ float row_exp2(const float (&row)[kCount], float scale, float offset,
                                          uint32_t (&packed)[kCount / 2]) {
  float sum = 0;
#pragma unroll
  for (int i = 0; i < kCount; i += 2) {
    const float low = exp2_approx(fmaf(row[i], scale, -offset));
    const float high = exp2_approx(fmaf(row[i + 1], scale, -offset));
    sum += low + high;
    packed[i / 2] = pack_bf16(low, high);
  }
  return sum;
}

// A warp multiplies kColumns columns of its lanes by each thread's factor, in place.
template <int kColumns>
__device__ __forceinline__ void tmem_scale(uint32_t address, float factor) {
  for (int column = 0; column < kColumns; column += 32) {
    float r[32];
    tmem_load(address + column, r);
    tmem_wait_load(r);
#pragma unroll
    for (float& value : r) value *= factor;
    tmem_store(address + column, r);
  }
  tmem_wait_store();
}

// A warp writes factor * 64 columns of its lanes, from `address` on, as BF16 into rows of a box [rows, 64] with
// 128-byte swizzle: thread i into `row` (its own). Then async_proxy_fence() by all, a barrier, and one thread calls
// tma_store_2d(). Before it, tma_wait_read() by that thread and a barrier, if the box was stored from.
__device__ __forceinline__ void tmem_to_box(void* box, int row, uint32_t address, float factor = 1) {
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    float r[32];
    tmem_load(address + 32 * half, r);
    tmem_wait_load(r);
#pragma unroll
    for (int i = 0; i < 32; i += 8) {
      uint32_t p[4];
#pragma unroll
      for (int j = 0; j < 4; ++j) p[j] = pack_bf16(factor * r[i + 2 * j], factor * r[i + 2 * j + 1]);
      char* chunk = static_cast<char*>(box) + swizzled<128>(row, 64 * half + 2 * i);
      *reinterpret_cast<uint4*>(chunk) = make_uint4(p[0], p[1], p[2], p[3]);
    }
  }
}

// The same in FP32: 32 columns into a box [rows, 32] of floats, for tma_add_2d().
__device__ __forceinline__ void tmem_to_float_box(void* box, int row, uint32_t address, float factor = 1) {
  float r[32];
  tmem_load(address, r);
  tmem_wait_load(r);
#pragma unroll
  for (int i = 0; i < 32; i += 4) {
    char* chunk = static_cast<char*>(box) + swizzled<128>(row, 4 * i);
    *reinterpret_cast<float4*>(chunk) =
        make_float4(factor * r[i], factor * r[i + 1], factor * r[i + 2], factor * r[i + 3]);
  }
}
