// CTAs that hand data to each other through global memory. Every kernel is a template over what is wrong with it, 0 for
// nothing. A comment `!n` marks the lines that a finding must name (one of them) where fault n is planted.
#include <cstdint>

__device__ inline uint32_t load_acquire(const uint32_t* at) {
  uint32_t value;
  asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(value) : "l"(at) : "memory");
  return value;
}
__device__ inline uint32_t load_relaxed(const uint32_t* at) {
  uint32_t value;
  asm volatile("ld.relaxed.gpu.global.u32 %0, [%1];" : "=r"(value) : "l"(at) : "memory");
  return value;
}
__device__ inline void store_release(uint32_t* at, uint32_t value) {
  asm volatile("st.release.gpu.global.u32 [%0], %1;" ::"l"(at), "r"(value) : "memory");
}
__device__ inline void store_relaxed(uint32_t* at, uint32_t value) {
  asm volatile("st.relaxed.gpu.global.u32 [%0], %1;" ::"l"(at), "r"(value) : "memory");
}
__device__ inline void fence_cluster() { asm volatile("fence.acq_rel.cluster;" ::: "memory"); }

// The last CTA to come adds up what all have left: split-K with a counter.
template <int FAULT>
__global__ void last_one(uint32_t* out, uint32_t* parts, uint32_t* counter) {
  __shared__ bool last;
  const uint32_t t = threadIdx.x, b = blockIdx.x, n = gridDim.x;
  parts[b * blockDim.x + t] = 100 * b + t;  // !1 !2 !5
  if (FAULT != 1 && FAULT != 2) __threadfence();
  if (FAULT == 2) __threadfence_block();
  if (FAULT != 5) __syncthreads();
  if (t == 0) {
    last = atomicAdd(counter, 1) == (FAULT == 4 ? 0 : n - 1);
    if (FAULT != 3) __threadfence();
  }
  __syncthreads();
  if (!last) return;
  uint32_t sum = 0;
  for (uint32_t i = 0; i < n; ++i) sum += parts[i * blockDim.x + t];  // !1 !2 !3 !4 !5
  out[t] = sum;
}

// CTAs add to one tile, each when the one before it has: a semaphore, as stream-K has it.
template <int FAULT>
__global__ void in_turn(uint32_t* out, uint32_t* flag) {
  const uint32_t t = threadIdx.x, b = blockIdx.x;
  if (t == 0) {
    if (FAULT == 1)
      while (load_relaxed(flag) != b) {}
    else if (FAULT != 3)
      while (load_acquire(flag) != b) {}
  }
  if (FAULT != 4) __syncthreads();
  const uint32_t before = b ? out[t] : 0;  // !1 !2 !3 !4 !5
  out[t] = before + 10 * b + t;            // !1 !2 !3 !4 !5
  if (FAULT != 5) __syncthreads();
  if (t == 0) {
    if (FAULT == 2)
      store_relaxed(flag, b + 1);
    else
      store_release(flag, b + 1);
  }
}

// What one warp has handed over within its CTA, another hands on: its one fence acquires and releases. 1: no such fence.
template <int FAULT>
__global__ void passed_on(uint32_t* out, uint32_t* data, uint32_t* flag) {
  __shared__ uint32_t near;
  const uint32_t t = threadIdx.x, b = blockIdx.x, at = static_cast<uint32_t>(__cvta_generic_to_shared(&near));
  if (t == 0) near = 0;
  __syncthreads();
  if (b == 0 && t == 0) {
    data[0] = 7;  // !1
    __threadfence_block();
    asm volatile("st.relaxed.cta.shared.u32 [%0], 1;" ::"r"(at) : "memory");
  }
  if (b == 0 && t == 32) {
    uint32_t seen = 0;
    while (!seen) asm volatile("ld.relaxed.cta.shared.u32 %0, [%1];" : "=r"(seen) : "r"(at) : "memory");
    if (FAULT != 1) __threadfence();
    store_relaxed(flag, 1);
  }
  if (b == 1 && t == 0) {
    while (!load_relaxed(flag)) {}
    __threadfence();
    out[0] = data[0];  // !1
  }
}

// A barrier of the whole grid, written by hand.
template <int FAULT>
__global__ void all_meet(uint32_t* out, uint32_t* buffer, uint32_t* counter) {
  const uint32_t t = threadIdx.x, b = blockIdx.x, n = gridDim.x;
  buffer[b * blockDim.x + t] = b + t;  // !1 !2
  __syncthreads();
  if (t == 0 && FAULT != 2) {
    if (FAULT != 1) __threadfence();
    atomicAdd(counter, 1);
    while (*(volatile uint32_t*)counter != n) {}
    __threadfence();
  }
  __syncthreads();
  out[b * blockDim.x + t] = buffer[(b + 1) % n * blockDim.x + t];  // !1 !2
}

// 1: two CTAs write one element with different values. 2: the same value.
template <int FAULT>
__global__ void overlap(uint32_t* out) {
  const uint32_t t = threadIdx.x, b = blockIdx.x;
  const uint32_t first = FAULT ? b * (blockDim.x - 1) : b * blockDim.x;
  out[first + t] = FAULT == 2 ? 7 : b + t;  // !1 !2
}

// Halves of one word belong to different CTAs, which is no race.
__global__ void halves(uint16_t* out) {
  if (threadIdx.x == 0) out[blockIdx.x] = static_cast<uint16_t>(blockIdx.x + 1);
}

// 1: read without waiting for the CTA that writes it, in a kernel that has no synchronisation at all.
template <int FAULT>
__global__ void neighbour(uint32_t* out, uint32_t* buffer) {
  const uint32_t t = threadIdx.x, b = blockIdx.x, n = gridDim.x;
  buffer[b * blockDim.x + t] = t;                                                   // !1
  out[b * blockDim.x + t] = buffer[(FAULT ? (b + 1) % n : b) * blockDim.x + t] + 1;  // !1
}

// As NVIDIA's programming guide has it: the results are volatile, and no fence stands behind the counter.
__global__ void guide(volatile uint32_t* parts, uint32_t* counter, uint32_t* out) {
  __shared__ bool last;
  if (threadIdx.x == 0) {
    parts[blockIdx.x] = blockIdx.x + 1;
    __threadfence();
    last = atomicInc(counter, gridDim.x) == gridDim.x - 1;
  }
  __syncthreads();
  if (!last) return;
  if (threadIdx.x == 0) {
    uint32_t sum = 0;
    for (uint32_t i = 0; i < gridDim.x; ++i) sum += parts[i];
    *out = sum;
    *counter = 0;
  }
}

// 1: the atomics reach their own CTA only. Without fault: a histogram.
template <int FAULT>
__global__ void counts(uint32_t* out) {
  if (FAULT)
    atomicAdd_block(out + threadIdx.x % 4, 1);  // !1
  else
    atomicAdd(out + threadIdx.x % 4, 1);
}

// The flag is a plain store, and what it announces was fenced: practice, though a race.
__global__ void plain_flag(uint32_t* data, uint32_t* flag, uint32_t* out) {
  if (threadIdx.x) return;
  if (blockIdx.x == 0) {
    *data = 42;
    __threadfence();
    *flag = 1;
  } else {
    while (*(volatile uint32_t*)flag == 0) {}
    __threadfence();
    out[blockIdx.x] = *data;
  }
}

// Hands a value from the even to the odd CTA by a flag and fences of scope .cluster: right within a cluster of two only.
__global__ void in_cluster(uint32_t* data, uint32_t* flag, uint32_t* out) {
  if (threadIdx.x) return;
  const uint32_t pair = blockIdx.x / 2;
  if (blockIdx.x % 2 == 0) {
    data[pair] = blockIdx.x + 5;
    fence_cluster();
    store_relaxed(flag + pair, 1);
  } else {
    while (load_relaxed(flag + pair) == 0) {}
    fence_cluster();
    out[pair] = data[pair];
  }
}

// 1: the copy engine reads what another CTA writes, before it is released.
template <int FAULT>
__global__ void copied(uint32_t* data, uint32_t* flag, uint32_t* out) {
  __shared__ alignas(16) uint32_t tile[4];
  if (threadIdx.x) return;
  if (blockIdx.x == 0) {
    for (uint32_t i = 0; i < 4; ++i) data[i] = i + 1;  // !1
    store_release(flag, 1);
    return;
  }
  if (!FAULT)
    while (load_acquire(flag) == 0) {}
  const uint32_t to = static_cast<uint32_t>(__cvta_generic_to_shared(tile));
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;\ncp.async.wait_all;" ::"r"(to), "l"(data) : "memory");  // !1
  out[blockIdx.x] = tile[0] + tile[3];
}

// The copy engine writes what a flag announces. 0, 4: its writes are waited for; 1, 5: only its reads; 2: nothing is, before
// the flag; 3: the reader does not wait for the flag. From 4 on it adds.
template <int FAULT>
__global__ void stored_by_copy(uint32_t* data, uint32_t* flag, uint32_t* out) {
  __shared__ alignas(16) uint32_t tile[4];
  if (threadIdx.x) return;
  if (blockIdx.x == 0) {
    const uint32_t from = static_cast<uint32_t>(__cvta_generic_to_shared(tile));
    for (uint32_t i = 0; i < 4; ++i) tile[i] = i + 1;
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
    if (FAULT < 4)
      asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], 16;" ::"l"(data), "r"(from) : "memory");  // !1 !2 !3
    else
      asm volatile("cp.reduce.async.bulk.global.shared::cta.bulk_group.add.u32 [%0], [%1], 16;" ::"l"(data), "r"(from) : "memory");  // !5
    asm volatile("cp.async.bulk.commit_group;" ::: "memory");
    if (FAULT == 1 || FAULT == 5)
      asm volatile("cp.async.bulk.wait_group.read 0;" ::: "memory");
    else if (FAULT != 2)
      asm volatile("cp.async.bulk.wait_group 0;" ::: "memory");
    store_release(flag, 1);
    asm volatile("cp.async.bulk.wait_group 0;" ::: "memory");
    return;
  }
  if (FAULT != 3)
    while (load_acquire(flag) == 0) {}
  out[blockIdx.x] = data[0] + data[3];  // !1 !2 !3 !5
}

// A word that is handed over in order, and then loaded as if it were read-only. 0: by a plain load; 1: by ld.global.nc; 2: past
// the cache of the SM, as DeepEP does; 3: by ld.global.nc of what nobody writes.
template <int HOW>
__global__ void non_coherent(uint32_t* data, uint32_t* flag, uint32_t* out) {
  const uint32_t t = threadIdx.x;
  if (blockIdx.x == 0) {
    data[t] = t + 1;  // !1 !2
    __syncthreads();
    if (t == 0) asm volatile("red.release.gpu.global.add.u32 [%0], 1;" ::"l"(flag) : "memory");
    return;
  }
  if (t == 0)
    while (load_acquire(flag) == 0) {}
  __syncthreads();
  uint32_t value = 0;
  const uint32_t* from = data + (HOW == 3 ? blockDim.x : 0) + t;
  if (HOW == 0) value = *from;
  if (HOW == 1 || HOW == 3) asm volatile("ld.global.nc.u32 %0, [%1];" : "=r"(value) : "l"(from));  // !1
  if (HOW == 2) asm volatile("ld.global.nc.L1::no_allocate.u32 %0, [%1];" : "=r"(value) : "l"(from));  // !2
  out[blockIdx.x * blockDim.x + t] = value;
}

// The copy engine reads what another CTA has stored and handed over. 0: the writer fences the async proxy; 1: nobody does; 2: the
// reader does; 3: a fence for shared memory alone; 4: a copy has written it, which needs none.
template <int HOW>
__global__ void loaded_by_copy(uint32_t* data, uint32_t* flag, uint32_t* out) {
  __shared__ alignas(16) uint32_t tile[4];
  __shared__ alignas(8) uint64_t full;
  const uint32_t at = static_cast<uint32_t>(__cvta_generic_to_shared(tile)), t = threadIdx.x;
  const uint32_t bar = static_cast<uint32_t>(__cvta_generic_to_shared(&full));
  if (blockIdx.x == 0) {
    if (t < 4) {
      (HOW == 4 ? tile : data)[t] = t + 1;  // !1 !3
      if (HOW == 0) asm volatile("fence.proxy.async.global;" ::: "memory");
      if (HOW == 3 || HOW == 4) asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
    }
    __syncthreads();
    if (t) return;
    if (HOW == 4)
      asm volatile(
          "cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], 16;\ncp.async.bulk.commit_group;\ncp.async.bulk.wait_group 0;" ::"l"(
              data),
          "r"(at)
          : "memory");
    store_release(flag, 1);
    return;
  }
  if (t) return;
  asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;\nfence.mbarrier_init.release.cluster;" ::"r"(bar) : "memory");
  while (load_acquire(flag) == 0) {}
  if (HOW == 2) asm volatile("fence.proxy.async;" ::: "memory");
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], 16;" ::"r"(bar) : "memory");
  asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], 16, [%2];" ::"r"(at), "l"(data), "r"(bar) : "memory");  // !1 !3
  asm volatile(
      "{\n.reg .pred done;\nWAIT:\nmbarrier.try_wait.parity.shared::cta.b64 done, [%0], 0;\n@!done bra WAIT;\n}\n" ::"r"(bar)
      : "memory");
  out[blockIdx.x] = tile[0] + tile[3];
}

#define INSTANCE(name, fault) template __global__ void name<fault>
INSTANCE(last_one, 0)(uint32_t*, uint32_t*, uint32_t*);
INSTANCE(last_one, 1)(uint32_t*, uint32_t*, uint32_t*);
INSTANCE(last_one, 2)(uint32_t*, uint32_t*, uint32_t*);
INSTANCE(last_one, 3)(uint32_t*, uint32_t*, uint32_t*);
INSTANCE(last_one, 4)(uint32_t*, uint32_t*, uint32_t*);
INSTANCE(last_one, 5)(uint32_t*, uint32_t*, uint32_t*);
INSTANCE(in_turn, 0)(uint32_t*, uint32_t*);
INSTANCE(in_turn, 1)(uint32_t*, uint32_t*);
INSTANCE(in_turn, 2)(uint32_t*, uint32_t*);
INSTANCE(in_turn, 3)(uint32_t*, uint32_t*);
INSTANCE(in_turn, 4)(uint32_t*, uint32_t*);
INSTANCE(in_turn, 5)(uint32_t*, uint32_t*);
INSTANCE(all_meet, 0)(uint32_t*, uint32_t*, uint32_t*);
INSTANCE(all_meet, 1)(uint32_t*, uint32_t*, uint32_t*);
INSTANCE(all_meet, 2)(uint32_t*, uint32_t*, uint32_t*);
INSTANCE(overlap, 0)(uint32_t*);
INSTANCE(overlap, 1)(uint32_t*);
INSTANCE(overlap, 2)(uint32_t*);
INSTANCE(neighbour, 0)(uint32_t*, uint32_t*);
INSTANCE(neighbour, 1)(uint32_t*, uint32_t*);
INSTANCE(counts, 0)(uint32_t*);
INSTANCE(counts, 1)(uint32_t*);
INSTANCE(copied, 0)(uint32_t*, uint32_t*, uint32_t*);
INSTANCE(copied, 1)(uint32_t*, uint32_t*, uint32_t*);
INSTANCE(stored_by_copy, 0)(uint32_t*, uint32_t*, uint32_t*);
INSTANCE(stored_by_copy, 1)(uint32_t*, uint32_t*, uint32_t*);
INSTANCE(stored_by_copy, 2)(uint32_t*, uint32_t*, uint32_t*);
INSTANCE(stored_by_copy, 3)(uint32_t*, uint32_t*, uint32_t*);
INSTANCE(stored_by_copy, 4)(uint32_t*, uint32_t*, uint32_t*);
INSTANCE(stored_by_copy, 5)(uint32_t*, uint32_t*, uint32_t*);
INSTANCE(non_coherent, 0)(uint32_t*, uint32_t*, uint32_t*);
INSTANCE(non_coherent, 1)(uint32_t*, uint32_t*, uint32_t*);
INSTANCE(non_coherent, 2)(uint32_t*, uint32_t*, uint32_t*);
INSTANCE(non_coherent, 3)(uint32_t*, uint32_t*, uint32_t*);
INSTANCE(loaded_by_copy, 0)(uint32_t*, uint32_t*, uint32_t*);
INSTANCE(loaded_by_copy, 1)(uint32_t*, uint32_t*, uint32_t*);
INSTANCE(loaded_by_copy, 2)(uint32_t*, uint32_t*, uint32_t*);
INSTANCE(loaded_by_copy, 3)(uint32_t*, uint32_t*, uint32_t*);
INSTANCE(loaded_by_copy, 4)(uint32_t*, uint32_t*, uint32_t*);
INSTANCE(passed_on, 0)(uint32_t*, uint32_t*, uint32_t*);
INSTANCE(passed_on, 1)(uint32_t*, uint32_t*, uint32_t*);
