#pragma once
#include "barriers.cuh"

// Two floats as BF16, rounded to nearest even: `low` in bits 0 to 15, the lower address.
__device__ __forceinline__ uint32_t pack_bf16(float low, float high) {
  const __nv_bfloat162 pair = __floats2bfloat162_rn(low, high);
  return *reinterpret_cast<const uint32_t*>(&pair);
}

// 2^x by one instruction of the special function unit; exp(x) is exp2_approx(x * 1.4426950408889634f).
__device__ __forceinline__ float exp2_approx(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

// A warp writes four 8x8 matrices of 16-bit elements to shared memory. Lane l gives the address of row l % 8 of matrix
// l / 8, 16 bytes; register m holds, of matrix m, row lane / 4, columns 2 * (lane % 4) and the next (PTX ISA 9.7.14.5).
__device__ __forceinline__ void stmatrix_x4(uint32_t row_address, uint32_t m0, uint32_t m1, uint32_t m2, uint32_t m3) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(row_address), "r"(m0), "r"(m1),
               "r"(m2), "r"(m3) : "memory");
}
