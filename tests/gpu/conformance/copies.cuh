// Asynchronous copies: tensor, bulk, cp.async.
#pragma once
#include "device.cuh"

// ---- tensor copies. args: 0 shared offset, 1 bytes to expect, 2 bytes to dump, 3… coordinates.
// out: completed?, 12 bytes unused, then shared memory.

#define COORDS_1 "r"(p.args[3])
#define COORDS_2 COORDS_1, "r"(p.args[4])
#define COORDS_3 COORDS_2, "r"(p.args[5])
#define COORDS_4 COORDS_3, "r"(p.args[6])
#define COORDS_5 COORDS_4, "r"(p.args[7])
#define SLOTS_1 "{%3}"
#define SLOTS_2 "{%3, %4}"
#define SLOTS_3 "{%3, %4, %5}"
#define SLOTS_4 "{%3, %4, %5, %6}"
#define SLOTS_5 "{%3, %4, %5, %6, %7}"

#define TENSOR_LOAD(RANK)                                                                                             \
  __device__ void issue_load_##RANK(const Params& p, const void* map, uint32_t to) {                                  \
    asm volatile("cp.async.bulk.tensor." #RANK "d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], [%1, " \
                 SLOTS_##RANK "], [%2];" ::"r"(to), "l"(map), "r"(smem_address(bar)), COORDS_##RANK : "memory");        \
  }                                                                                                                   \
  extern "C" __global__ void tensor_load_##RANK(const __grid_constant__ Params p) {                                   \
    load_box(p, [&](uint32_t to) { issue_load_##RANK(p, &p.map, to); });                                              \
  }                                                                                                                   \
  extern "C" __global__ void tensor_store_##RANK(const __grid_constant__ Params p) {                                  \
    store_box(p, [&](uint32_t from) {                                                                                 \
      asm volatile("cp.async.bulk.tensor." #RANK "d.global.shared::cta.tile.bulk_group [%1, " SLOTS_##RANK "], [%0];" \
                   ::"r"(from), "l"(&p.map), "r"(0), COORDS_##RANK : "memory");                                       \
    });                                                                                                               \
  }

template <class Issue> __device__ void load_box(const Params& p, Issue issue) {
  uint8_t* smem = image();
  fill(smem, p.args[2], 0xCD);
  if (threadIdx.x == 0) init(bar, 1);
  publish();
  if (threadIdx.x == 0) {
    expect(bar, p.args[1]);
    issue(smem_address(smem) + p.args[0]);
  }
  const uint32_t done = poll(bar, 0);
  __syncthreads();
  if (threadIdx.x == 0) *reinterpret_cast<uint32_t*>(p.out) = done;
  copy(p.out + 16, smem, p.args[2]);
}

template <class Issue> __device__ void store_box(const Params& p, Issue issue) {
  uint8_t* smem = image();
  copy(smem, p.in, p.in_bytes);
  publish();
  if (threadIdx.x == 0) {
    issue(smem_address(smem) + p.args[0]);
    asm volatile("cp.async.bulk.commit_group;" ::: "memory");
    asm volatile("cp.async.bulk.wait_group 0;" ::: "memory");
  }
  __syncthreads();
}

TENSOR_LOAD(1)
TENSOR_LOAD(2)
TENSOR_LOAD(3)
TENSOR_LOAD(4)
TENSOR_LOAD(5)

// The same load through a copy of the map in global memory, at out + args[8].
extern "C" __global__ void tensor_load_global_map(const __grid_constant__ Params p) {
  uint8_t* map = p.out + p.args[8];
  const uint8_t* from = reinterpret_cast<const uint8_t*>(&p.map);
  for (uint32_t i = threadIdx.x; i < sizeof(CUtensorMap) / 4; i += blockDim.x) {
    reinterpret_cast<uint32_t*>(map)[i] = reinterpret_cast<const uint32_t*>(from)[i];
  }
  asm volatile("fence.proxy.tensormap::generic.release.gpu;" ::: "memory");
  __syncthreads();
  asm volatile("fence.proxy.tensormap::generic.acquire.gpu [%0], 128;" ::"l"(map) : "memory");
  load_box(p, [&](uint32_t to) { issue_load_2(p, map, to); });
}

// ---- bulk copies. args: 0 shared offset, 1 bytes, 2 bytes to dump, 3 global offset

extern "C" __global__ void bulk_load(const __grid_constant__ Params p) {
  load_box(p, [&](uint32_t to) {
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(to),
                 "l"(p.in + p.args[3]), "r"(p.args[1]), "r"(smem_address(bar)) : "memory");
  });
}
extern "C" __global__ void bulk_store(const __grid_constant__ Params p) {
  store_box(p, [&](uint32_t from) {
    asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;" ::"l"(p.out + p.args[3]), "r"(from), "r"(p.args[1])
                 : "memory");
  });
}

// ---- cp.async. One warp; lane l copies SIZE bytes from in + SIZE l to SIZE l. args: 0 multiplier of the source size, 1 lanes whose
// source is ignored (mask), 2 bytes to dump

#define CP_ASYNC(SIZE, CACHE)                                                                                        \
  extern "C" __global__ void cp_async_##SIZE(const __grid_constant__ Params p) {                                     \
    uint8_t* smem = image();                                                                                         \
    fill(smem, p.args[2], 0xCD);                                                                                     \
    __syncthreads();                                                                                                 \
    const uint32_t to = smem_address(smem) + SIZE * threadIdx.x;                                                     \
    const uint8_t* from = p.in + SIZE * threadIdx.x;                                                                 \
    const uint32_t size = threadIdx.x * p.args[0] % (SIZE + 1);                                                      \
    asm volatile("cp.async." CACHE ".shared.global [%0], [%1], " #SIZE ", %2;" ::"r"(to), "l"(from), "r"(size) : "memory"); \
    asm volatile("cp.async.commit_group;" ::: "memory");                                                             \
    asm volatile("{\n.reg .pred p;\nsetp.ne.u32 p, %2, 0;\ncp.async." CACHE ".shared.global [%0], [%1], " #SIZE ", p;\n}" \
                 ::"r"(to + SIZE * 32), "l"(from), "r"(p.args[1] >> threadIdx.x & 1) : "memory");                    \
    asm volatile("cp.async.commit_group;\ncp.async.wait_group 0;" ::: "memory");                                     \
    __syncthreads();                                                                                                 \
    copy(p.out, smem, p.args[2]);                                                                                    \
  }
CP_ASYNC(4, "ca")
CP_ASYNC(8, "ca")
CP_ASYNC(16, "cg")

// Arrivals of cp.async.mbarrier.arrive, with and without .noinc: out[0], out[1] tell whether the phases completed.
extern "C" __global__ void cp_async_arrive(const __grid_constant__ Params p) {
  uint8_t* smem = image();
  if (threadIdx.x == 0) {
    init(&bar[0], 32);
    init(&bar[1], 32);
  }
  __syncthreads();
  asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" ::"r"(smem_address(smem) + 4 * threadIdx.x), "l"(p.in + 4 * threadIdx.x)
               : "memory");
  asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" ::"r"(smem_address(&bar[0])) : "memory");
  asm volatile("cp.async.mbarrier.arrive.shared::cta.b64 [%0];" ::"r"(smem_address(&bar[1])) : "memory");
  const uint32_t first = poll(&bar[0], 0);
  const uint32_t early = test(&bar[1], 0);
  __syncwarp();
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(smem_address(&bar[1])) : "memory");
  const uint32_t second = poll(&bar[1], 0);
  __syncthreads();
  if (threadIdx.x == 0) {
    uint32_t* out = reinterpret_cast<uint32_t*>(p.out);
    out[0] = first;
    out[1] = early;
    out[2] = second;
  }
  copy(p.out + 16, smem, 128);
}

