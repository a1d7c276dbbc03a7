// One small kernel per kind of hazard. `Good` is the same kernel without the fault. A comment `!code` stands on the line that
// the finding (or one of its parties) must name.
#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include <cstdint>

__device__ __forceinline__ uint32_t address(const void* p) { return static_cast<uint32_t>(__cvta_generic_to_shared(p)); }

__device__ __forceinline__ void init(uint64_t* bar, int count) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(address(bar)), "r"(count) : "memory");
}
__device__ __forceinline__ void expect(uint64_t* bar, uint32_t bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(address(bar)), "r"(bytes) : "memory");
}
__device__ __forceinline__ void arrive(uint64_t* bar) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(address(bar)) : "memory");
}
__device__ __forceinline__ void wait(uint64_t* bar, uint32_t parity) {
  asm volatile(
      "{\n.reg .pred done;\nWAIT:\nmbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n@!done bra WAIT;\n}\n" ::"r"(
          address(bar)),
      "r"(parity)
      : "memory");
}
__device__ __forceinline__ void bulk_load(void* to, const void* from, uint32_t bytes, uint64_t* bar) {
  asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(address(to)),
               "l"(from), "r"(bytes), "r"(address(bar))
               : "memory");
}
__device__ __forceinline__ void bulk_store(void* to, const void* from, uint32_t bytes) {
  asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;" ::"l"(to), "r"(address(from)), "r"(bytes)
               : "memory");
}
__device__ __forceinline__ void bulk_commit() { asm volatile("cp.async.bulk.commit_group;" ::: "memory"); }
__device__ __forceinline__ void bulk_wait_read() { asm volatile("cp.async.bulk.wait_group.read 0;" ::: "memory"); }
__device__ __forceinline__ void proxy_fence() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }
__device__ __forceinline__ void init_fence() { asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory"); }
__device__ __forceinline__ void copy16(void* to, const void* from) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(address(to)), "l"(from) : "memory");
}
__device__ __forceinline__ void put(uint32_t* at, uint32_t value) {
  asm volatile("st.shared.u32 [%0], %1;" ::"r"(address(at)), "r"(value) : "memory");
}
__device__ __forceinline__ uint32_t get(const uint32_t* at) {
  uint32_t value;
  asm volatile("ld.shared.u32 %0, [%1];" : "=r"(value) : "r"(address(at)) : "memory");
  return value;
}

// ---- generic accesses

template <bool Good> __global__ void race_read(uint32_t* out) {
  __shared__ uint32_t data[64];
  put(&data[threadIdx.x], threadIdx.x);
  if (Good) __syncthreads();
  out[threadIdx.x] = get(&data[threadIdx.x ^ 32]);  // !smem.race
}

template <bool Good> __global__ void race_write(uint32_t* out) {
  __shared__ uint32_t cell;
  if (threadIdx.x % 32 == 0 && (!Good || threadIdx.x == 0)) put(&cell, threadIdx.x);  // !smem.race
  __syncthreads();
  out[threadIdx.x] = get(&cell);
}

template <bool Good> __global__ void race_same_value(uint32_t* out) {
  __shared__ uint32_t cell;
  if (threadIdx.x % 32 == 0 && (!Good || threadIdx.x == 0)) put(&cell, 7);  // !smem.race
  __syncthreads();
  out[threadIdx.x] = get(&cell);
}

// At first both warps store the same.
template <bool Good> __global__ void race_later(uint32_t* out) {
  __shared__ uint32_t cell;
#pragma unroll 1
  for (uint32_t i = 0; i < 2; ++i) {
    if (threadIdx.x % 32 == 0 && (!Good || threadIdx.x == 0)) put(&cell, threadIdx.x * i);  // !smem.race
    __syncthreads();
    out[threadIdx.x] = get(&cell);
    __syncthreads();
  }
}

template <bool Good> __global__ void race_loop(uint32_t* out) {
  __shared__ uint32_t data[64];
  uint32_t sum = 0;
  for (int i = 0; i < 3; ++i) {
    put(&data[threadIdx.x], threadIdx.x * i);  // !smem.race
    __syncthreads();
    sum += get(&data[63 - threadIdx.x]);
    if (Good) __syncthreads();
  }
  out[threadIdx.x] = sum;
}

// Neighbouring bytes of one word belong to different warps: no race.
template <bool Good> __global__ void bytes_apart(uint32_t* out) {
  __shared__ uint8_t data[64];
  data[threadIdx.x / 32 + threadIdx.x % 32 * 2] = static_cast<uint8_t>(threadIdx.x);
  __syncthreads();
  out[threadIdx.x] = data[63 - threadIdx.x];
}

template <bool Good> __global__ void flag(uint32_t* out) {
  __shared__ uint32_t data;
  __shared__ volatile uint32_t ready;
  if (threadIdx.x == 0) ready = 0;
  __syncthreads();
  if (threadIdx.x == 0) {
    put(&data, 5);
    if (Good) __threadfence_block();
    ready = 1;
  } else if (threadIdx.x == 32) {
    while (ready == 0) {
    }
    if (Good) __threadfence_block();
    out[0] = get(&data);  // !smem.race
  }
}

template <bool Good> __global__ void histogram(uint32_t* out) {
  __shared__ uint32_t bins[4];
  if (threadIdx.x < 4) bins[threadIdx.x] = 0;
  __syncthreads();
  atomicAdd(&bins[threadIdx.x % 4], 1);
  __syncthreads();
  if (threadIdx.x < 4) out[threadIdx.x] = bins[threadIdx.x];
}

template <bool Good> __global__ void unwritten(uint32_t* out) {
  __shared__ uint32_t data[64];
  if (threadIdx.x >= 32) return;
  put(&data[threadIdx.x], 1);
  if (Good) put(&data[32 + threadIdx.x], 1);
  out[threadIdx.x] = get(&data[32 + threadIdx.x]);  // !smem.uninitialised
}

// Warp 0 hands a buffer to warp 1 through a named barrier on which it only arrives.
// The first CTA makes more findings than are kept, the last one a race.
template <bool Good> __global__ void flooded(uint32_t* out) {
  __shared__ uint32_t unwritten[250], data[64];
  uint32_t sum = 0;
  if (blockIdx.x == 0) {
#pragma unroll
    for (int i = 0; i < 250; ++i) sum += get(&unwritten[i]);
  }
  if (blockIdx.x == gridDim.x - 1) {
    put(&data[threadIdx.x], threadIdx.x);
    if (Good) __syncthreads();
    sum += get(&data[threadIdx.x ^ 32]);
  }
  out[blockIdx.x * 64 + threadIdx.x] = sum;
}

template <bool Good> __global__ void named(uint32_t* out) {
  __shared__ uint32_t data[32];
  if (threadIdx.x < 32) {
    put(&data[threadIdx.x], threadIdx.x);
    asm volatile("bar.arrive 3, 64;" ::: "memory");
  } else {
    if (Good) asm volatile("bar.sync 3, 64;" ::: "memory");
    out[threadIdx.x - 32] = get(&data[63 - threadIdx.x]);  // !smem.race
    if (!Good) asm volatile("bar.sync 3, 64;" ::: "memory");
  }
}

// ---- asynchronous copies

template <bool Good> __global__ void early_cp_async(uint32_t* out, const uint32_t* in) {
  __shared__ alignas(16) uint32_t data[256];
  copy16(&data[threadIdx.x * 4], in + threadIdx.x * 4);  // !async.read_early
  asm volatile("cp.async.commit_group;" ::: "memory");
  if (Good) asm volatile("cp.async.wait_group 0;" ::: "memory");
  __syncthreads();
  out[threadIdx.x] = get(&data[255 - threadIdx.x]);  // !async.read_early
  if (!Good) asm volatile("cp.async.wait_group 0;" ::: "memory");
}

// Two stages: the group of the stage that is read must be over, the other may be pending.
template <bool Good> __global__ void double_buffer(uint32_t* out, const uint32_t* in) {
  __shared__ alignas(16) uint32_t data[2][256];
  uint32_t sum = 0;
  copy16(&data[0][threadIdx.x * 4], in + threadIdx.x * 4);
  asm volatile("cp.async.commit_group;" ::: "memory");
  for (int i = 0; i < 4; ++i) {
    if (i < 3) copy16(&data[(i + 1) % 2][threadIdx.x * 4], in + (i + 1) * 256 + threadIdx.x * 4);  // !async.overwrite
    asm volatile("cp.async.commit_group;" ::: "memory");
    asm volatile("cp.async.wait_group 1;" ::: "memory");
    __syncthreads();
    sum += get(&data[i % 2][255 - threadIdx.x]);
    if (Good) __syncthreads();
  }
  out[threadIdx.x] = sum;
}

template <bool Good> __global__ void early_bulk(uint32_t* out, const uint32_t* in) {
  __shared__ alignas(128) uint32_t data[256];
  __shared__ uint64_t full;
  if (threadIdx.x == 0) {
    init(&full, 1);
    init_fence();
  }
  __syncthreads();
  if (threadIdx.x == 0) {
    expect(&full, 1024);
    bulk_load(data, in, 1024, &full);  // !async.read_early
  }
  if (Good) wait(&full, 0);
  out[threadIdx.x] = get(&data[threadIdx.x]);  // !async.read_early
  if (!Good) wait(&full, 0);
}

// A try_wait may return false, so it must be asked again.
template <bool Good> __global__ void asked_once(uint32_t* out, const uint32_t* in) {
  __shared__ alignas(128) uint32_t data[256];
  __shared__ uint64_t full;
  if (threadIdx.x == 0) {
    init(&full, 1);
    init_fence();
  }
  __syncthreads();
  if (threadIdx.x == 0) {
    expect(&full, 1024);
    bulk_load(data, in, 1024, &full);
  }
  uint32_t done = 0;
  do {
    asm volatile(
        "{\n.reg .pred done;\nmbarrier.try_wait.parity.shared::cta.b64 done, [%1], 0;\nselp.u32 %0, 1, 0, done;\n}\n"
        : "=r"(done)
        : "r"(address(&full))
        : "memory");
  } while (Good && !done);
  out[threadIdx.x] = get(&data[threadIdx.x]);  // !async.read_early
}

// A ring of one slot: the copy of round 1 must wait until everyone has read round 0.
template <bool Good> __global__ void refill(uint32_t* out, const uint32_t* in) {
  __shared__ alignas(128) uint32_t data[256];
  __shared__ uint64_t full, empty;
  if (threadIdx.x == 0) {
    init(&full, 1);
    init(&empty, 64);
    init_fence();
  }
  __syncthreads();
  for (uint32_t round = 0; round < 3; ++round) {
    if (threadIdx.x == 0) {
      if (Good) wait(&empty, (round & 1) ^ 1);
      expect(&full, 1024);
      bulk_load(data, in + round * 256, 1024, &full);  // !async.overwrite !async.read_early
    }
    __syncwarp();
    wait(&full, round & 1);
    __syncthreads();
    out[round * 64 + threadIdx.x] = get(&data[threadIdx.x]);
    arrive(&empty);
  }
}

// ---- proxies and bulk stores

template <bool Good> __global__ void unfenced(uint32_t* out) {
  __shared__ alignas(128) uint32_t data[64];
  put(&data[threadIdx.x], threadIdx.x);  // !proxy.missing_fence
  if (Good) proxy_fence();
  __syncthreads();
  if (threadIdx.x == 0) {
    bulk_store(out, data, 256);  // !proxy.missing_fence
    bulk_commit();
    bulk_wait_read();
  }
}

// A bulk reduction reads what it adds to. Two of them in any order are one sum.
template <bool Good> __global__ void unfenced_sum(uint32_t* out) {
  __shared__ alignas(128) uint32_t sum[64], data[64];
  __shared__ uint64_t full;
  if (threadIdx.x == 0) {
    init(&full, 1);
    init_fence();
  }
  put(&data[threadIdx.x], threadIdx.x);
  proxy_fence();
  put(&sum[threadIdx.x], 1);  // !proxy.missing_fence
  if (Good) proxy_fence();
  __syncthreads();
  if (threadIdx.x == 0) {
    expect(&full, 512);
    for (int i = 0; i < 2; ++i)
      asm volatile(
          "cp.reduce.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes.add.u32 [%0], [%1], 256, [%2];" ::"r"(
              address(sum)),
          "r"(address(data)), "r"(address(&full))
          : "memory");  // !proxy.missing_fence
  }
  wait(&full, 0);
  out[threadIdx.x] = get(&sum[threadIdx.x]);
}

// No barrier before the store, in the second round as in the first: not a wait after it is missing.
template <bool Good> __global__ void store_unfilled(uint32_t* out) {
  __shared__ alignas(128) uint32_t data[64];
#pragma unroll 1
  for (int i = 0; i < 2; ++i) {
    put(&data[threadIdx.x], threadIdx.x + i);  // !smem.race
    proxy_fence();
    if (Good) __syncthreads();
    if (threadIdx.x == 0) {
      bulk_store(out + i * 64, data, 256);  // !smem.race
      bulk_commit();
      bulk_wait_read();
    }
    __syncthreads();
  }
}

// The fence may also stand with the thread that issues the copy, after the barrier.
template <bool Good> __global__ void fenced_by_reader(uint32_t* out) {
  __shared__ alignas(128) uint32_t data[64];
  put(&data[threadIdx.x], threadIdx.x);
  __syncthreads();
  if (threadIdx.x == 0) {
    proxy_fence();
    bulk_store(out, data, 256);
    bulk_commit();
    bulk_wait_read();
  }
}

template <bool Good> __global__ void store_reuse(uint32_t* out) {
  __shared__ alignas(128) uint32_t data[64];
  for (int i = 0; i < 2; ++i) {
    put(&data[threadIdx.x], threadIdx.x + i);  // !async.overwrite
    proxy_fence();
    __syncthreads();
    if (threadIdx.x == 0) {
      bulk_store(out + i * 64, data, 256);  // !async.overwrite
      bulk_commit();
      if (Good) bulk_wait_read();
    }
    __syncthreads();
  }
  if (threadIdx.x == 0) bulk_wait_read();
}

template <bool Good> __global__ void store_unwritten(uint32_t* out) {
  __shared__ alignas(128) uint32_t data[64];
  if (Good || threadIdx.x < 32) put(&data[threadIdx.x], 1);
  proxy_fence();
  __syncthreads();
  if (threadIdx.x == 0) {
    bulk_store(out, data, 256);  // !smem.uninitialised
    bulk_commit();
    bulk_wait_read();
  }
}

template <bool Good> __global__ void store_pending(uint32_t* out) {
  __shared__ alignas(128) uint32_t data[64];
  put(&data[threadIdx.x], 1);
  proxy_fence();
  __syncthreads();
  if (threadIdx.x == 0) {
    bulk_store(out, data, 256);  // !bulk.pending_at_exit
    bulk_commit();
    if (Good) bulk_wait_read();
  }
}

template <bool Good> __global__ void store_uncommitted(uint32_t* out) {
  __shared__ alignas(128) uint32_t data[64];
  put(&data[threadIdx.x], 1);
  proxy_fence();
  __syncthreads();
  if (threadIdx.x == 0) {
    bulk_store(out, data, 256);  // !bulk.not_committed
    if (Good) bulk_commit();
    bulk_wait_read();
  }
}

// A wait for the store that is committed, while the next one is not yet. Fault 1: that one never is. 2: its source is
// written again, not that of the first.
template <int Fault> __global__ void store_ahead(uint32_t* out) {
  __shared__ alignas(128) uint32_t data[2][32];
  if (threadIdx.x < 32) {
    put(&data[0][threadIdx.x], 1);
    put(&data[1][threadIdx.x], 2);
  }
  proxy_fence();
  __syncthreads();
  if (threadIdx.x == 0) {
    bulk_store(out, data[0], 128);
    bulk_commit();
    bulk_store(out + 32, data[1], 128);  // !bulk.not_committed !async.overwrite
    bulk_wait_read();                    // !bulk.not_committed
    put(&data[Fault == 2][0], 3);        // !async.overwrite
    if (Fault != 1) bulk_commit();
    bulk_wait_read();
  }
}

template <bool Good> __global__ void copy_pending(uint32_t* out, const uint32_t* in) {
  __shared__ alignas(16) uint32_t data[256];
  copy16(&data[threadIdx.x * 4], in + threadIdx.x * 4);  // !cp_async.pending_at_exit
  if (Good) asm volatile("cp.async.wait_all;" ::: "memory");
  out[threadIdx.x] = threadIdx.x;
}

// ---- mbarriers

template <bool Good> __global__ void init_unseen(uint32_t* out) {
  __shared__ uint64_t bar;
  if (threadIdx.x == 0) init(&bar, 64);  // !mbarrier.init_not_visible
  if (Good) __syncthreads();
  else __syncwarp();
  arrive(&bar);  // !mbarrier.init_not_visible
  wait(&bar, 0);
  out[threadIdx.x] = 1;
}

template <bool Good> __global__ void init_unfenced(uint32_t* out, const uint32_t* in) {
  __shared__ alignas(128) uint32_t data[64];
  __shared__ uint64_t full;
  if (threadIdx.x == 0) {
    init(&full, 1);  // !mbarrier.init_not_visible
    if (Good) init_fence();
  }
  __syncthreads();
  if (threadIdx.x == 0) {
    expect(&full, 256);
    bulk_load(data, in, 256, &full);  // !mbarrier.init_not_visible
  }
  wait(&full, 0);
  out[threadIdx.x] = get(&data[threadIdx.x]);
}

template <bool Good> __global__ void bytes_short(uint32_t* out, const uint32_t* in) {
  __shared__ alignas(128) uint32_t data[256];
  __shared__ uint64_t full;
  if (threadIdx.x == 0) {
    init(&full, 1);
    init_fence();
  }
  __syncthreads();
  if (threadIdx.x == 0) {
    expect(&full, Good ? 1024 : 512);                 // !mbarrier.tx_overflow
    bulk_load(data, in, 512, &full);
    bulk_load(data + 128, in + 128, 512, &full);      // !mbarrier.tx_overflow !async.read_early
  }
  wait(&full, 0);
  out[threadIdx.x] = get(&data[threadIdx.x + 128]);   // !async.read_early
}

template <bool Good> __global__ void bytes_left(uint32_t* out) {
  __shared__ uint64_t full;
  if (threadIdx.x == 0) {
    init(&full, 2);
    asm volatile("mbarrier.expect_tx.relaxed.cta.shared::cta.b64 [%0], %1;" ::"r"(address(&full)), "r"(Good ? 0 : 64) : "memory");  // !mbarrier.tx_left
    arrive(&full);
  }
  out[threadIdx.x] = 1;
}

template <bool Good> __global__ void overwritten(uint32_t* out) {
  __shared__ struct {
    uint32_t data[64];
    uint64_t bar;
  } shared;
  if (threadIdx.x == 0) init(&shared.bar, 64);
  __syncthreads();
  uint32_t* at = &shared.data[threadIdx.x];
  if (!Good) at += 1;
  put(at, 1);  // !mbarrier.overwritten
  out[threadIdx.x] = 1;
}

template <bool Good> __global__ void initialised_twice(uint32_t* out) {
  __shared__ uint64_t bar;
  if (Good ? threadIdx.x == 0 : threadIdx.x % 32 == 0) init(&bar, 64);  // !mbarrier.overwritten
  __syncthreads();
  arrive(&bar);
  wait(&bar, 0);
  out[threadIdx.x] = 1;
}

// Warp 1 waits for every phase, but only warp 0 drives the barrier: it can be two phases ahead.
template <bool Good> __global__ void phase_skipped(uint32_t* out) {
  __shared__ uint64_t bar;
  if (threadIdx.x == 0) init(&bar, Good ? 64 : 32);
  __syncthreads();
  for (uint32_t i = 0; i < 4; ++i) {
    if (Good || threadIdx.x < 32) arrive(&bar);
    wait(&bar, i & 1);  // !mbarrier.phase_skipped
    __syncwarp();
  }
  out[threadIdx.x] = 1;
}

// cuda::barrier style: the state that arrive returns is what the wait takes.
template <bool Good> __global__ void token(uint32_t* out) {
  __shared__ uint64_t bar;
  __shared__ uint32_t data[64];
  if (threadIdx.x == 0) init(&bar, 64);
  __syncthreads();
  uint32_t sum = 0;
  for (int i = 0; i < 3; ++i) {
    put(&data[threadIdx.x], threadIdx.x + i);
    for (int half = 0; half < 2; ++half) {
      uint64_t state;
      asm volatile("mbarrier.arrive.shared::cta.b64 %0, [%1];" : "=l"(state) : "r"(address(&bar)) : "memory");
      asm volatile(
          "{\n.reg .pred done;\nWAIT:\nmbarrier.try_wait.shared::cta.b64 done, [%0], %1;\n@!done bra WAIT;\n}\n" ::"r"(
              address(&bar)),
          "l"(state)
          : "memory");
      if (half == 0) sum += get(&data[63 - threadIdx.x]);
    }
  }
  out[threadIdx.x] = sum;
}

// ---- wgmma: D[64, 8] = A[64, 16] · B[8, 16]ᵀ, unswizzled operands that the warpgroup writes itself

__device__ __forceinline__ uint64_t descriptor(const void* tile, uint64_t leading, uint64_t stride) {
  return ((address(tile) & 0x3ffff) >> 4) | (leading >> 4) << 16 | (stride >> 4) << 32;
}
__device__ __forceinline__ void wgmma(float (&d)[4], uint64_t a, uint64_t b) {
  asm volatile("wgmma.mma_async.sync.aligned.m64n8k16.f32.bf16.bf16 {%0, %1, %2, %3}, %4, %5, 1, 1, 1, 0, 0;\n"
               : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
               : "l"(a), "l"(b));
}

enum Fault { kNone, kNoWait, kNoFence, kNoCommit, kNoProxyFence, kEarlyWrite, kPending, kNotCleared, kNoBarrier, kAhead };

template <int kFault> __global__ void multiply(float* out) {
  __shared__ alignas(128) uint32_t a[64 * 8], b[8 * 8];
  for (int i = threadIdx.x; i < 64 * 8; i += 128) put(&a[i], 0x3f803f80);
  if (threadIdx.x < 64) put(&b[threadIdx.x], 0x3f803f80);  // !proxy.missing_fence
  if (kFault != kNoProxyFence) proxy_fence();
  if (kFault != kNoBarrier) __syncthreads();
  float d[4];
  for (int i = 0; i < 4 && kFault != kNotCleared; ++i) d[i] = 0;
  if (kFault != kNoFence) asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
  // Eight rows of 16 bytes make a core matrix of 128 bytes; two of them along K, then the next eight rows.
  wgmma(d, descriptor(a, 128, 256), descriptor(b, 128, 256));  // !wgmma.missing_fence !proxy.missing_fence !wgmma.not_committed !wgmma.pending_at_exit !wgmma.uninitialised !smem.race
  if (kFault == kEarlyWrite && threadIdx.x < 32) put(&b[threadIdx.x], 0);  // !async.overwrite
  if (kFault == kAhead) {  // waits for the first product while the second is in no group yet
    float next[4] = {0, 0, 0, 0};
    asm volatile("wgmma.commit_group.sync.aligned;\nwgmma.fence.sync.aligned;" ::: "memory");
    wgmma(next, descriptor(a, 128, 256), descriptor(b, 128, 256));  // !wgmma.not_committed
    asm volatile("wgmma.wait_group.sync.aligned 0;" : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])::"memory");  // !wgmma.not_committed
    for (int i = 0; i < 4; ++i) out[threadIdx.x * 4 + i] = d[i];
    asm volatile("wgmma.commit_group.sync.aligned;\nwgmma.wait_group.sync.aligned 0;"
                 : "+f"(next[0]), "+f"(next[1]), "+f"(next[2]), "+f"(next[3])::"memory");
    for (int i = 0; i < 4; ++i) out[512 + threadIdx.x * 4 + i] = next[i];
    return;
  }
  if (kFault != kNoCommit) asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
  if (kFault == kNone || kFault == kNotCleared || kFault == kNoFence || kFault == kNoCommit || kFault == kNoProxyFence || kFault == kEarlyWrite ||
      kFault == kNoBarrier)
    asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory");
  for (int i = 0; i < 4 && kFault != kPending; ++i) out[threadIdx.x * 4 + i] = d[i];  // !wgmma.register_in_flight
  if (kFault == kNoWait) asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory");
}

#define PAIR(name, ...) \
  template __global__ void name<false>(__VA_ARGS__); \
  template __global__ void name<true>(__VA_ARGS__);
PAIR(race_read, uint32_t*)
PAIR(race_write, uint32_t*)
PAIR(race_same_value, uint32_t*)
PAIR(race_later, uint32_t*)
PAIR(race_loop, uint32_t*)
PAIR(flooded, uint32_t*)
PAIR(bytes_apart, uint32_t*)
PAIR(flag, uint32_t*)
PAIR(histogram, uint32_t*)
PAIR(unwritten, uint32_t*)
PAIR(named, uint32_t*)
PAIR(early_cp_async, uint32_t*, const uint32_t*)
PAIR(double_buffer, uint32_t*, const uint32_t*)
PAIR(early_bulk, uint32_t*, const uint32_t*)
PAIR(refill, uint32_t*, const uint32_t*)
PAIR(asked_once, uint32_t*, const uint32_t*)
PAIR(unfenced, uint32_t*)
PAIR(fenced_by_reader, uint32_t*)
PAIR(unfenced_sum, uint32_t*)
PAIR(store_unfilled, uint32_t*)
PAIR(store_reuse, uint32_t*)
PAIR(store_unwritten, uint32_t*)
PAIR(store_pending, uint32_t*)
PAIR(store_uncommitted, uint32_t*)
PAIR(copy_pending, uint32_t*, const uint32_t*)
PAIR(init_unseen, uint32_t*)
PAIR(init_unfenced, uint32_t*, const uint32_t*)
PAIR(bytes_short, uint32_t*, const uint32_t*)
PAIR(bytes_left, uint32_t*)
PAIR(overwritten, uint32_t*)
PAIR(initialised_twice, uint32_t*)
PAIR(phase_skipped, uint32_t*)
PAIR(token, uint32_t*)
template __global__ void multiply<kNone>(float*);
template __global__ void multiply<kNoWait>(float*);
template __global__ void multiply<kNoFence>(float*);
template __global__ void multiply<kNoCommit>(float*);
template __global__ void multiply<kNoProxyFence>(float*);
template __global__ void multiply<kEarlyWrite>(float*);
template __global__ void multiply<kPending>(float*);
template __global__ void multiply<kNotCleared>(float*);
template __global__ void multiply<kNoBarrier>(float*);
template __global__ void multiply<kAhead>(float*);
template __global__ void store_ahead<0>(uint32_t*);
template __global__ void store_ahead<1>(uint32_t*);
template __global__ void store_ahead<2>(uint32_t*);
