// Warps that hand data to each other by flags in shared memory. Every kernel is a template over what is wrong with it, 0 for
// nothing, or over how it does right. A comment `!code` marks the lines of which the finding must name one.
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
__device__ __forceinline__ void release(uint32_t* at, uint32_t value) {
  asm volatile("st.release.cta.shared.u32 [%0], %1;" ::"r"(address(at)), "r"(value) : "memory");
}
__device__ __forceinline__ void relaxed(uint32_t* at, uint32_t value) {
  asm volatile("st.relaxed.cta.shared.u32 [%0], %1;" ::"r"(address(at)), "r"(value) : "memory");
}
__device__ __forceinline__ void add_release(uint32_t* at) {
  asm volatile("red.release.cta.shared.add.u32 [%0], 1;" ::"r"(address(at)) : "memory");
}
__device__ __forceinline__ uint32_t acquire(const uint32_t* at) {
  uint32_t value;
  asm volatile("ld.acquire.cta.shared.u32 %0, [%1];" : "=r"(value) : "r"(address(at)) : "memory");
  return value;
}

// A lock that two warps take in turn. How 0 and 1: right; 2: the lock is given back without a release.
template <int How> __global__ void lock(uint32_t* out) {
  __shared__ uint32_t taken, sum;
  if (threadIdx.x == 0) taken = sum = 0;
  __syncthreads();
  if (threadIdx.x % 32 == 0) {
    for (uint32_t i = 0; i < 3; ++i) {
      uint32_t before = 1;
      while (before)
        asm volatile("atom.acquire.cta.shared.cas.b32 %0, [%1], 0, 1;" : "=r"(before) : "r"(address(&taken)) : "memory");
      put(&sum, get(&sum) + 1 + threadIdx.x);  // !smem.race
      if (How == 0) release(&taken, 0);
      if (How == 1) asm volatile("{\n.reg .b32 t;\natom.release.cta.shared.exch.b32 t, [%0], 0;\n}\n" ::"r"(address(&taken)) : "memory");
      if (How == 2) relaxed(&taken, 0);
    }
  }
  __syncthreads();
  if (threadIdx.x == 0) out[0] = get(&sum);
}

// Warp 0 publishes two words, one after the other, by one flag. 0: by stores; 1: by reductions; 2: the second word comes after
// the flag.
template <int How> __global__ void twice(uint32_t* out) {
  __shared__ uint32_t data[2], ready;
  if (threadIdx.x == 0) ready = 0;
  __syncthreads();
  if (threadIdx.x == 0) {
    put(&data[0], 3);
    How == 1 ? add_release(&ready) : release(&ready, 1);
    if (How != 2) put(&data[1], 4);
    How == 1 ? add_release(&ready) : release(&ready, 2);
    if (How == 2) put(&data[1], 4);  // !smem.race
  } else if (threadIdx.x == 32) {
    while (acquire(&ready) != 2) {
    }
    out[0] = get(&data[0]) + get(&data[1]);  // !smem.race
  }
}

// Every warp counts itself in and waits for all: what the one that comes last counts is no acquire, its load is. 1: it only
// counts.
template <int Fault> __global__ void meet(uint32_t* out) {
  __shared__ uint32_t data[64], count;
  if (threadIdx.x == 0) count = 0;
  __syncthreads();
  put(&data[threadIdx.x], threadIdx.x);  // !smem.race
  __syncwarp();
  if (threadIdx.x % 32 == 0) {
    add_release(&count);
    if (Fault == 0)
      while (acquire(&count) != 2) {
      }
  }
  __syncwarp();
  out[threadIdx.x] = get(&data[threadIdx.x ^ 32]);  // !smem.race
}

// Lanes of warp 0 wait for a flag each of the other warps. 0: words; 1: half words; 2: volatile, then a fence; 3: warp 3
// sets its flag before it has stored.
template <int How> __global__ void each_waits(uint32_t* out) {
  __shared__ uint32_t data[4], ready[4];
  __shared__ uint16_t ready_half[4];
  const uint32_t warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  if (threadIdx.x < 4) ready[threadIdx.x] = ready_half[threadIdx.x] = 0;
  __syncthreads();
  if (warp == 0) {
    if (lane >= 1 && lane < 4) {
      uint32_t seen = 0;
      uint16_t half = 0;
      while (!seen) {
        if (How == 1) {
          asm volatile("ld.acquire.cta.shared.u16 %0, [%1];" : "=h"(half) : "r"(address(&ready_half[lane])) : "memory");
          seen = half;
        } else if (How == 2) {
          asm volatile("ld.volatile.shared.u32 %0, [%1];" : "=r"(seen) : "r"(address(&ready[lane])) : "memory");
        } else {
          seen = acquire(&ready[lane]);
        }
      }
      if (How == 2) __threadfence_block();
      out[lane] = get(&data[lane]);  // !smem.race
    }
  } else if (lane == 0) {
    if (How != 3 || warp != 3) put(&data[warp], 10 * warp);
    if (How == 1)
      asm volatile("st.release.cta.shared.u16 [%0], %1;" ::"r"(address(&ready_half[warp])), "h"(uint16_t{1}) : "memory");
    else
      release(&ready[warp], 1);
    if (How == 3 && warp == 3) put(&data[warp], 10 * warp);  // !smem.race
  }
}

// One store of a warp sets the flags of all others. 1: it releases nothing.
template <int Fault> __global__ void one_tells_each(uint32_t* out) {
  __shared__ uint32_t data, ready[4];
  const uint32_t warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  if (threadIdx.x < 4) ready[threadIdx.x] = 0;
  __syncthreads();
  if (warp == 0) {
    if (lane < 4) put(&data, 5);  // !smem.race
    if (lane < 4) Fault ? relaxed(&ready[lane], 1) : release(&ready[lane], 1);
  } else if (lane == 0) {
    while (!acquire(&ready[warp])) {
    }
    out[warp] = get(&data);  // !smem.race
  }
}

#define INSTANCE(name, how) template __global__ void name<how>(uint32_t*);
INSTANCE(lock, 0)
INSTANCE(lock, 1)
INSTANCE(lock, 2)
INSTANCE(twice, 0)
INSTANCE(twice, 1)
INSTANCE(twice, 2)
INSTANCE(meet, 0)
INSTANCE(meet, 1)
INSTANCE(each_waits, 0)
INSTANCE(each_waits, 1)
INSTANCE(each_waits, 2)
INSTANCE(each_waits, 3)
INSTANCE(one_tells_each, 0)
INSTANCE(one_tells_each, 1)
