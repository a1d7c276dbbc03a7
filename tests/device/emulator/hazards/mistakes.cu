// Mistakes of everyday CUDA, one small kernel each. `Good` is the same kernel without the fault. A comment `!code` stands on
// the line that the finding (or one of its parties) must name.
#include <cuda_runtime.h>

#include <cstdint>

__device__ __forceinline__ uint32_t address(const void* p) { return static_cast<uint32_t>(__cvta_generic_to_shared(p)); }

__device__ __forceinline__ void put(uint32_t* at, uint32_t value) {
  asm volatile("st.shared.u32 [%0], %1;" ::"r"(address(at)), "r"(value) : "memory");
}
__device__ __forceinline__ uint32_t get(const uint32_t* at) {
  uint32_t value;
  asm volatile("ld.shared.u32 %0, [%1];" : "=r"(value) : "r"(address(at)) : "memory");
  return value;
}

// ---- barriers that some warps do not reach, arrays that an index leaves, variables without a value

template <bool Good> __global__ void skipped_barrier(uint32_t* out) {
  __shared__ uint32_t data[128];
  put(&data[threadIdx.x], threadIdx.x);
  if (Good || threadIdx.x < 32) __syncthreads();  // !barrier.divergent
  out[threadIdx.x] = get(&data[threadIdx.x ^ 32]);
}

template <bool Good> __global__ void one_barrier_too_few(uint32_t* out) {
  __shared__ uint32_t data[128];
  put(&data[threadIdx.x], threadIdx.x);
  if (Good || threadIdx.x < 32) __syncthreads();  // !barrier.divergent
  const uint32_t mine = get(&data[threadIdx.x ^ 32]);
  __syncthreads();
  put(&data[threadIdx.x], mine);
  out[threadIdx.x] = mine;
}

template <bool Good> __global__ void skipped_after_writing(uint32_t* out) {
  __shared__ uint32_t data[64];
  put(&data[threadIdx.x], threadIdx.x);
  if (!Good && threadIdx.x >= 32) return;
  __syncthreads();  // !barrier.divergent
  out[threadIdx.x] = get(&data[threadIdx.x ^ 32]);
}

template <bool Good> __global__ void overrun(uint32_t* out) {
  __shared__ uint32_t first[64], second[64];
  put(&second[threadIdx.x], threadIdx.x);
  put(&first[threadIdx.x + (Good ? 0 : blockDim.x)], 1);  // !smem.out_of_array
  __syncthreads();
  out[threadIdx.x] = get(&second[threadIdx.x ^ 32]) + get(&first[threadIdx.x ^ 32]);
}

template <bool Good> __global__ void read_behind(uint32_t* out) {
  __shared__ uint32_t first[64], second[64];
  put(&second[threadIdx.x], threadIdx.x);
  put(&first[threadIdx.x], 1);
  __syncthreads();
  out[threadIdx.x] = get(&second[threadIdx.x ^ 32]) + get(&first[threadIdx.x + (Good ? 0 : 1)]);  // !smem.out_of_array
}

__device__ __forceinline__ void add(float& sum, float value) {
  asm volatile("fma.rn.f32 %0, %0, 0f3F000000, %1;" : "+f"(sum) : "f"(value));
}
template <bool Good> __global__ void unset(float* out, const float* in) {
  float sum;
  if constexpr (Good) sum = 0;
  for (int i = 0; i < 3 + static_cast<int>(threadIdx.x); ++i)
    add(sum, in[i]);  // !register.uninitialised
  out[threadIdx.x] = sum;
}

// A variable that is set and used under one condition, with a value that is all ones: nothing is wrong with it.
__global__ void set_where_used(float* out, const float* in) {
  int value;
  const bool mine = in[threadIdx.x] == 0.0f || threadIdx.x > 3;
  if (mine) asm volatile("mov.b32 %0, -1;" : "=r"(value));
  asm volatile("" ::: "memory");
  if (mine) asm volatile("st.global.s32 [%0], %1;" ::"l"(out + threadIdx.x), "r"(value) : "memory");
}

template <bool Good> __global__ void lanes_disagree(uint32_t* out) {
  out[threadIdx.x / (Good ? 1 : 2)] = threadIdx.x;  // !memory.lane_conflict
}

#define PAIR(name, ...)                               \
  template __global__ void name<false>(__VA_ARGS__); \
  template __global__ void name<true>(__VA_ARGS__);
PAIR(skipped_barrier, uint32_t*)
PAIR(one_barrier_too_few, uint32_t*)
PAIR(skipped_after_writing, uint32_t*)
PAIR(overrun, uint32_t*)
PAIR(read_behind, uint32_t*)
PAIR(unset, float*, const float*)
PAIR(lanes_disagree, uint32_t*)
