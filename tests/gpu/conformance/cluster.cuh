// Thread-block clusters, and bulk reductions. Job.threads holds the CTAs of the cluster in bits 16 up.
#pragma once
#include "device.cuh"

__device__ uint32_t cluster_rank() {
  uint32_t rank;
  asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  return rank;
}
__device__ void cluster_sync() {
  asm volatile("barrier.cluster.arrive.aligned;\nbarrier.cluster.wait.aligned;" ::: "memory");
}
__device__ uint32_t in_cta(uint32_t address, uint32_t rank) {
  uint32_t mapped;
  asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(mapped) : "r"(address), "r"(rank));
  return mapped;
}

// ---- reductions into global memory, one CTA. args: 0 bytes. in: what memory holds, then what is combined with it.

template <class Issue> __device__ void reduce_into_global(const Params& p, Issue issue) {
  uint8_t* smem = image();
  copy(p.out, p.in, p.args[0]);
  copy(smem, p.in + p.args[0], p.args[0]);
  __threadfence();
  asm volatile("fence.proxy.async;" ::: "memory");
  __syncthreads();
  if (threadIdx.x == 0) {
    issue(smem_address(smem));
    asm volatile("cp.async.bulk.commit_group;\ncp.async.bulk.wait_group 0;" ::: "memory");
  }
  __syncthreads();
}

#define BULK_REDUCE(OP, TYPE, SPELLED)                                                                       \
  extern "C" __global__ void bulk_reduce_##OP##_##TYPE(const __grid_constant__ Params p) {                   \
    reduce_into_global(p, [&](uint32_t from) {                                                               \
      asm volatile("cp.reduce.async.bulk.global.shared::cta.bulk_group." SPELLED " [%0], [%1], %2;" ::"l"(p.out), \
                   "r"(from), "r"(p.args[0]) : "memory");                                                    \
    });                                                                                                      \
  }
BULK_REDUCE(add, u32, "add.u32")
BULK_REDUCE(add, u64, "add.u64")
BULK_REDUCE(add, f32, "add.f32")
BULK_REDUCE(add, f64, "add.f64")
BULK_REDUCE(add, f16, "add.noftz.f16")
BULK_REDUCE(add, bf16, "add.noftz.bf16")
BULK_REDUCE(min, s32, "min.s32")
BULK_REDUCE(min, bf16, "min.bf16")
BULK_REDUCE(max, u64, "max.u64")
BULK_REDUCE(max, f16, "max.f16")
BULK_REDUCE(inc, u32, "inc.u32")
BULK_REDUCE(dec, u32, "dec.u32")
BULK_REDUCE(and, b32, "and.b32")
BULK_REDUCE(or, b64, "or.b64")
BULK_REDUCE(xor, b32, "xor.b32")
BULK_REDUCE(add, s32, "add.s32")
BULK_REDUCE(min, u32, "min.u32")
BULK_REDUCE(min, u64, "min.u64")
BULK_REDUCE(min, s64, "min.s64")
BULK_REDUCE(min, f16, "min.f16")
BULK_REDUCE(max, u32, "max.u32")
BULK_REDUCE(max, s32, "max.s32")
BULK_REDUCE(max, s64, "max.s64")
BULK_REDUCE(max, bf16, "max.bf16")
BULK_REDUCE(and, b64, "and.b64")
BULK_REDUCE(or, b32, "or.b32")
BULK_REDUCE(xor, b64, "xor.b64")

#define TENSOR_REDUCE(OP)                                                                                      \
  extern "C" __global__ void tensor_reduce_##OP(const __grid_constant__ Params p) {                            \
    reduce_into_global(p, [&](uint32_t from) {                                                                 \
      asm volatile("cp.reduce.async.bulk.tensor.2d.global.shared::cta." #OP ".tile.bulk_group [%0, {%1, %2}], [%3];" ::"l"( \
                       &p.map), "r"(p.args[1]), "r"(p.args[2]), "r"(from) : "memory");                         \
    });                                                                                                        \
  }
TENSOR_REDUCE(add)
TENSOR_REDUCE(min)
TENSOR_REDUCE(max)
TENSOR_REDUCE(inc)
TENSOR_REDUCE(dec)
TENSOR_REDUCE(and)
TENSOR_REDUCE(or)
TENSOR_REDUCE(xor)

// ---- between the two CTAs of a cluster. args: 0 bytes. Each CTA has its own part of `in`: what its memory holds, then what goes
// to the other. out: the memory of each in the end.

template <class Issue> __device__ void exchange(const Params& p, uint32_t expected, Issue issue) {
  uint8_t* smem = image();
  const uint32_t rank = cluster_rank(), bytes = p.args[0];
  const uint8_t* in = p.in + rank * 2 * bytes;
  copy(smem, in, 2 * bytes);
  if (threadIdx.x == 0) {
    init(bar, 1);
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    expect(bar, expected);
  }
  publish();
  cluster_sync();
  const uint32_t own = smem_address(smem);
  issue(in_cta(own, rank ^ 1), own + bytes, in_cta(smem_address(bar), rank ^ 1));
  const uint32_t done = poll(bar, 0);
  __syncthreads();
  cluster_sync();
  copy(p.out + rank * bytes, smem, bytes);
  if (threadIdx.x == 0 && !done) p.out[rank * bytes] ^= 0xFF;
}

extern "C" __global__ void cluster_share(const __grid_constant__ Params p) {
  exchange(p, p.args[0], [&](uint32_t to, uint32_t from, uint32_t there) {
    if (threadIdx.x == 0)
      asm volatile("cp.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(to),
                   "r"(from), "r"(p.args[0]), "r"(there) : "memory");
  });
}

// Each thread sends its 32-bit or 64-bit words one by one, or the whole part is one copy.
#define SHARED_REDUCE(OP, TYPE, CONSTRAINT, WORD)                                                                       \
  extern "C" __global__ void share_reduce_##OP##_##TYPE(const __grid_constant__ Params p) {                             \
    exchange(p, p.args[0], [&](uint32_t to, uint32_t from, uint32_t there) {                                            \
      if (threadIdx.x == 0)                                                                                             \
        asm volatile("cp.reduce.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes." #OP "." #TYPE     \
                     " [%0], [%1], %2, [%3];" ::"r"(to), "r"(from), "r"(p.args[0]), "r"(there) : "memory");             \
    });                                                                                                                 \
  }                                                                                                                     \
  extern "C" __global__ void red_async_##OP##_##TYPE(const __grid_constant__ Params p) {                                \
    exchange(p, p.args[0], [&](uint32_t to, uint32_t, uint32_t there) {                                                 \
      const uint32_t at = threadIdx.x * sizeof(WORD);                                                                   \
      const WORD value = *reinterpret_cast<const WORD*>(image() + p.args[0] + at);                                      \
      asm volatile("red.async.relaxed.cluster.shared::cluster.mbarrier::complete_tx::bytes." #OP "." #TYPE              \
                   " [%0], %1, [%2];" ::"r"(to + at), CONSTRAINT(value), "r"(there) : "memory");                        \
    });                                                                                                                 \
  }
SHARED_REDUCE(add, u32, "r", uint32_t)
SHARED_REDUCE(add, u64, "l", uint64_t)
SHARED_REDUCE(min, s32, "r", uint32_t)
SHARED_REDUCE(max, u32, "r", uint32_t)
SHARED_REDUCE(inc, u32, "r", uint32_t)
SHARED_REDUCE(dec, u32, "r", uint32_t)
SHARED_REDUCE(and, b32, "r", uint32_t)
SHARED_REDUCE(or, b32, "r", uint32_t)
SHARED_REDUCE(xor, b32, "r", uint32_t)

extern "C" __global__ void st_async_v4(const __grid_constant__ Params p) {
  exchange(p, p.args[0], [&](uint32_t to, uint32_t, uint32_t there) {
    const uint4 v = reinterpret_cast<const uint4*>(image() + p.args[0])[threadIdx.x];
    asm volatile("st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v4.b32 [%0], {%1, %2, %3, %4}, [%5];" ::"r"(
                     to + 16 * threadIdx.x), "r"(v.x), "r"(v.y), "r"(v.z), "r"(v.w), "r"(there) : "memory");
  });
}

// Loads, stores and atomics in the other CTA's memory, by relaxed arrivals and a fence.
extern "C" __global__ void cluster_access(const __grid_constant__ Params p) {
  uint8_t* smem = image();
  const uint32_t rank = cluster_rank(), bytes = p.args[0];
  copy(smem, p.in + rank * bytes, bytes);
  cluster_sync();
  const uint32_t far = in_cta(smem_address(smem), rank ^ 1) + 4 * threadIdx.x;
  uint32_t value, old;
  asm volatile("ld.shared::cluster.u32 %0, [%1];" : "=r"(value) : "r"(far) : "memory");
  cluster_sync();
  asm volatile("st.shared::cluster.u32 [%0], %1;" ::"r"(far), "r"(value + 3) : "memory");
  asm volatile("atom.relaxed.cluster.shared::cluster.add.u32 %0, [%1], %2;" : "=r"(old) : "r"(far), "r"(value) : "memory");
  asm volatile("fence.acq_rel.cluster;\nbarrier.cluster.arrive.relaxed;\nbarrier.cluster.wait.acquire;" ::: "memory");
  uint32_t* out = reinterpret_cast<uint32_t*>(p.out + rank * 2 * bytes);
  out[threadIdx.x] = reinterpret_cast<uint32_t*>(smem)[threadIdx.x];
  out[bytes / 4 + threadIdx.x] = old;
}

// ---- multicast from CTA 0. args: 0 shared offset, 1 bytes that each CTA expects, 2 bytes to dump, 3 mask, 4 and 5 coordinates.
// out of each CTA: completed?, 12 bytes unused, then shared memory.

template <class Issue> __device__ void multicast(const Params& p, Issue issue) {
  uint8_t* smem = image();
  const uint32_t rank = cluster_rank();
  fill(smem, p.args[2], 0xCD);
  if (threadIdx.x == 0) {
    init(bar, 1);
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    if (p.args[3] >> rank & 1) expect(bar, p.args[1]);
  }
  publish();
  cluster_sync();
  if (rank == 0 && threadIdx.x == 0) issue(smem_address(smem) + p.args[0], static_cast<uint16_t>(p.args[3]));
  const uint32_t done = p.args[3] >> rank & 1 ? poll(bar, 0) : 2;
  __syncthreads();
  cluster_sync();
  uint8_t* out = p.out + rank * (16 + p.args[2]);
  if (threadIdx.x == 0) *reinterpret_cast<uint32_t*>(out) = done;
  copy(out + 16, smem, p.args[2]);
}

extern "C" __global__ void bulk_multicast(const __grid_constant__ Params p) {
  multicast(p, [&](uint32_t to, uint16_t mask) {
    asm volatile(
        "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster [%0], [%1], %2, [%3], %4;" ::"r"(to),
        "l"(p.in), "r"(p.args[1]), "r"(smem_address(bar)), "h"(mask) : "memory");
  });
}
extern "C" __global__ void tensor_multicast(const __grid_constant__ Params p) {
  multicast(p, [&](uint32_t to, uint16_t mask) {
    asm volatile(
        "cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes.multicast::cluster [%0], [%1, {%2, %3}], "
        "[%4], %5;" ::"r"(to), "l"(&p.map), "r"(p.args[4]), "r"(p.args[5]), "r"(smem_address(bar)), "h"(mask) : "memory");
  });
}
