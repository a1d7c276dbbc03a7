// Kernels of thread-block clusters. `Good` is the same kernel without its fault. A comment `!code` stands on the line that
// the finding (or one of its parties) must name.
#include <cuda.h>
#include <cuda_runtime.h>

#include <cstdint>

__device__ __forceinline__ uint32_t address(const void* p) { return static_cast<uint32_t>(__cvta_generic_to_shared(p)); }
__device__ __forceinline__ uint32_t rank() {
  uint32_t value;
  asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(value));
  return value;
}
__device__ __forceinline__ uint32_t ranks() {
  uint32_t value;
  asm volatile("mov.u32 %0, %%cluster_nctarank;" : "=r"(value));
  return value;
}
__device__ __forceinline__ uint32_t map(const void* p, uint32_t cta) {
  uint32_t mapped;
  asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(mapped) : "r"(address(p)), "r"(cta));
  return mapped;
}
__device__ __forceinline__ void arrive_all() { asm volatile("barrier.cluster.arrive.aligned;" ::: "memory"); }
__device__ __forceinline__ void wait_all() { asm volatile("barrier.cluster.wait.aligned;" ::: "memory"); }
__device__ __forceinline__ void sync_all() {
  arrive_all();
  wait_all();
}
__device__ __forceinline__ uint32_t get(uint32_t at) {
  uint32_t value;
  asm volatile("ld.shared::cluster.u32 %0, [%1];" : "=r"(value) : "r"(at) : "memory");
  return value;
}
__device__ __forceinline__ void put(uint32_t at, uint32_t value) {
  asm volatile("st.shared::cluster.u32 [%0], %1;" ::"r"(at), "r"(value) : "memory");
}
__device__ __forceinline__ void init(uint64_t* bar, int count) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(address(bar)), "r"(count) : "memory");
}
__device__ __forceinline__ void init_fence() { asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory"); }
__device__ __forceinline__ void expect(uint64_t* bar, uint32_t bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(address(bar)), "r"(bytes) : "memory");
}
__device__ __forceinline__ void arrive_at(uint32_t bar) {
  asm volatile("mbarrier.arrive.release.cluster.shared::cluster.b64 _, [%0];" ::"r"(bar) : "memory");
}
__device__ __forceinline__ void wait(uint64_t* bar, uint32_t parity) {
  asm volatile(
      "{\n.reg .pred done;\nWAIT:\nmbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 done, [%0], %1;\n"
      "@!done bra WAIT;\n}\n" ::"r"(address(bar)),
      "r"(parity)
      : "memory");
}
__device__ __forceinline__ void bulk_multicast(void* to, const void* from, uint32_t bytes, uint64_t* bar, uint16_t mask) {
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster [%0], [%1], %2, [%3], %4;" ::"r"(
          address(to)),
      "l"(from), "r"(bytes), "r"(address(bar)), "h"(mask)
      : "memory");
}
__device__ __forceinline__ void bulk_share(uint32_t to, const void* from, uint32_t bytes, uint32_t bar) {
  asm volatile("cp.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(to),
               "r"(address(from)), "r"(bytes), "r"(bar)
               : "memory");
}

// ---- who and where

extern "C" __global__ void identities(uint32_t* out) {
  uint32_t v[16];
  asm volatile("mov.u32 %0, %%clusterid.x;" : "=r"(v[0]));
  asm volatile("mov.u32 %0, %%clusterid.y;" : "=r"(v[1]));
  asm volatile("mov.u32 %0, %%clusterid.z;" : "=r"(v[2]));
  asm volatile("mov.u32 %0, %%nclusterid.x;" : "=r"(v[3]));
  asm volatile("mov.u32 %0, %%nclusterid.y;" : "=r"(v[4]));
  asm volatile("mov.u32 %0, %%nclusterid.z;" : "=r"(v[5]));
  asm volatile("mov.u32 %0, %%cluster_ctaid.x;" : "=r"(v[6]));
  asm volatile("mov.u32 %0, %%cluster_ctaid.y;" : "=r"(v[7]));
  asm volatile("mov.u32 %0, %%cluster_ctaid.z;" : "=r"(v[8]));
  asm volatile("mov.u32 %0, %%cluster_nctaid.x;" : "=r"(v[9]));
  asm volatile("mov.u32 %0, %%cluster_nctaid.y;" : "=r"(v[10]));
  asm volatile("mov.u32 %0, %%cluster_nctaid.z;" : "=r"(v[11]));
  v[12] = rank();
  v[13] = ranks();
  asm volatile("{.reg .pred p;\nmov.pred p, %%is_explicit_cluster;\nselp.u32 %0, 1, 0, p;}" : "=r"(v[14]));
  v[15] = 0xC0DE;
  const uint32_t cta = blockIdx.x + gridDim.x * (blockIdx.y + gridDim.y * blockIdx.z);
  if (threadIdx.x < 16) out[cta * 16 + threadIdx.x] = v[threadIdx.x];
}

// Addresses of one variable in all CTAs differ by whole ranks; getctarank reads them back.
extern "C" __global__ void addresses(uint32_t* out) {
  __shared__ uint32_t cell[4];
  cell[threadIdx.x & 3] = 0;
  const uint32_t own = address(cell);
  uint32_t target, back;
  uint64_t generic, mapped;
  asm volatile("mapa.shared::cluster.u32 %0, %1, 1;" : "=r"(target) : "r"(own));
  asm volatile("getctarank.shared::cluster.u32 %0, %1;" : "=r"(back) : "r"(target));
  asm volatile("cvta.shared.u64 %0, %1;" : "=l"(generic) : "l"(static_cast<uint64_t>(own)));
  asm volatile("mapa.u64 %0, %1, 1;" : "=l"(mapped) : "l"(generic));
  uint32_t near, far, cluster, rank_of;
  asm volatile("{.reg .pred p;\nisspacep.shared::cta p, %1;\nselp.u32 %0, 1, 0, p;}" : "=r"(near) : "l"(generic));
  asm volatile("{.reg .pred p;\nisspacep.shared::cta p, %1;\nselp.u32 %0, 1, 0, p;}" : "=r"(far) : "l"(mapped));
  asm volatile("{.reg .pred p;\nisspacep.shared::cluster p, %1;\nselp.u32 %0, 1, 0, p;}" : "=r"(cluster) : "l"(mapped));
  asm volatile("getctarank.u64 %0, %1;" : "=r"(rank_of) : "l"(mapped));
  const uint32_t row[8] = {own, target, back, near, far, cluster, rank_of, static_cast<uint32_t>(mapped - generic)};
  if (threadIdx.x < 8) out[blockIdx.x * 8 + threadIdx.x] = row[threadIdx.x];
}

// ---- distributed shared memory

template <int Fault>  // 1: no sync before, 2: none after
__global__ void ring(uint32_t* out) {
  __shared__ uint32_t data[64];
  data[threadIdx.x] = 1000 * rank() + threadIdx.x;  // !smem.race
  if (Fault != 1) sync_all();
  const uint32_t next = (rank() + 1) % ranks();
  const uint32_t value = get(map(&data[63 - threadIdx.x], next));  // !cluster.not_begun !cluster.exited_cta
  if (Fault != 2) sync_all();
  out[blockIdx.x * 64 + threadIdx.x] = value;
}
template __global__ void ring<0>(uint32_t*);
template __global__ void ring<1>(uint32_t*);
template __global__ void ring<2>(uint32_t*);

extern __shared__ uint32_t dynamic[];

// Generic addresses; each lane of a warp reaches another CTA.
extern "C" __global__ void scatter(uint32_t* out) {
  for (uint32_t i = threadIdx.x; i < 64; i += blockDim.x) dynamic[i] = 0;
  sync_all();
  const uint32_t cta = threadIdx.x % ranks();
  uint64_t mapped;
  asm volatile("mapa.u64 %0, %1, %2;" : "=l"(mapped) : "l"(&dynamic[threadIdx.x / ranks()]), "r"(cta));
  atomicAdd(reinterpret_cast<uint32_t*>(mapped), 1u + rank());
  sync_all();
  if (threadIdx.x < 64) out[blockIdx.x * 64 + threadIdx.x] = dynamic[threadIdx.x];
}

extern "C" __global__ void histogram(const uint32_t* in, uint32_t* out) {
  __shared__ uint32_t bins[32];
  if (threadIdx.x < 32) bins[threadIdx.x] = 0;
  sync_all();
  const uint32_t value = in[blockIdx.x * blockDim.x + threadIdx.x];
  const uint32_t bin = map(&bins[value / ranks() % 32], value % ranks());
  asm volatile("red.relaxed.cluster.shared::cluster.add.u32 [%0], 1;" ::"r"(bin) : "memory");
  sync_all();
  if (threadIdx.x < 32) out[blockIdx.x * 32 + threadIdx.x] = bins[threadIdx.x];
}

template <int Fault>  // 1: the writes are not ordered, 2: relaxed arrival
__global__ void remote_race(uint32_t* out) {
  __shared__ uint32_t data[64];
  data[threadIdx.x] = 0;
  sync_all();
  if (rank() == 1) put(map(&data[threadIdx.x], 0), threadIdx.x);  // !smem.race
  if (Fault == 2) {
    asm volatile("barrier.cluster.arrive.relaxed.aligned;" ::: "memory");
    wait_all();
  } else if (Fault == 0) {
    sync_all();
  }
  const uint32_t value = data[threadIdx.x ^ 32];
  sync_all();
  if (rank() == 0) out[threadIdx.x] = value;
}
template __global__ void remote_race<0>(uint32_t*);
template __global__ void remote_race<1>(uint32_t*);
template __global__ void remote_race<2>(uint32_t*);

// ---- mbarriers of other CTAs

template <int Fault>  // 1: no cluster sync after init, 2: init fence and relaxed sync (sound), 3: wrong count
__global__ void signal(uint32_t* out) {
  __shared__ uint64_t bar;
  __shared__ uint32_t mail[2];
  if (threadIdx.x == 0) {
    init(&bar, Fault == 3 ? 2 : 1);
    init_fence();
  }
  if (Fault == 2) {
    asm volatile("barrier.cluster.arrive.relaxed.aligned;" ::: "memory");
    wait_all();
  } else if (Fault == 1) {
    __syncthreads();
  } else {
    sync_all();
  }
  const uint32_t other = rank() ^ 1;
  if (threadIdx.x == 0) {
    put(map(&mail[0], other), 10 * rank() + 7);
    arrive_at(map(&bar, other));
  }
  wait(&bar, 0);  // !emulator.deadlock
  if (threadIdx.x == 0) out[blockIdx.x] = mail[0];
  sync_all();
}
template __global__ void signal<0>(uint32_t*);
template __global__ void signal<1>(uint32_t*);
template __global__ void signal<2>(uint32_t*);
template __global__ void signal<3>(uint32_t*);

// The last arrivals on the other CTA's barrier, for which nobody waits.
template <int Fault>  // 1: no cluster sync at the end
__global__ void parting(uint32_t* out) {
  __shared__ uint64_t bar;
  if (threadIdx.x == 0) {
    init(&bar, 1);
    init_fence();
  }
  sync_all();
  if (threadIdx.x == 0) arrive_at(map(&bar, rank() ^ 1));  // !cluster.exited_cta
  if (Fault != 1) sync_all();
  if (threadIdx.x == 0) out[blockIdx.x] = rank();
}
template __global__ void parting<0>(uint32_t*);
template __global__ void parting<1>(uint32_t*);

template <int Fault>  // 1: the writers exit instead of arriving, 2: nobody arrives
__global__ void leaving(uint32_t* out) {
  __shared__ uint32_t data[32];
  const bool writer = threadIdx.x >= 32;
  if (writer) put(address(&data[threadIdx.x - 32]), threadIdx.x);  // !smem.race
  if (writer && Fault) return;
  if (Fault != 2) sync_all();
  if (!writer) out[blockIdx.x * 32 + threadIdx.x] = get(address(&data[threadIdx.x]));  // !smem.race
}
template __global__ void leaving<0>(uint32_t*);
template __global__ void leaving<1>(uint32_t*);
template __global__ void leaving<2>(uint32_t*);

// ---- asynchronous stores and copies between CTAs

template <int Fault>  // 1: reads before the barrier, 2: too few bytes expected
__global__ void send(uint32_t* out) {
  __shared__ uint64_t bar;
  __shared__ __align__(16) uint32_t box[64 * 4];
  if (threadIdx.x == 0) {
    init(&bar, 1);
    init_fence();
  }
  __syncthreads();
  if (threadIdx.x == 0) expect(&bar, Fault == 2 ? 64 * 16 - 16 : 64 * 16);
  sync_all();
  const uint32_t next = (rank() + 1) % ranks(), base = 10000 * rank() + 10 * threadIdx.x;
  asm volatile("st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v4.u32 [%0], {%1, %2, %3, %4}, [%5];" ::"r"(
                   map(&box[4 * threadIdx.x], next)),
               "r"(base), "r"(base + 1), "r"(base + 2), "r"(base + 3), "r"(map(&bar, next))
               : "memory");
  if (Fault != 1) wait(&bar, 0);
  for (int i = 0; i < 4; ++i) out[blockIdx.x * 256 + i * 64 + threadIdx.x] = box[4 * (63 - threadIdx.x) + i];  // !async.read_early
  if (Fault == 1) wait(&bar, 0);
  sync_all();
}
template __global__ void send<0>(uint32_t*);
template __global__ void send<1>(uint32_t*);
template __global__ void send<2>(uint32_t*);

extern "C" __global__ void async_sums(uint32_t* out) {
  __shared__ uint64_t bar;
  __shared__ uint32_t sums[32];
  if (threadIdx.x == 0) {
    init(&bar, 1);
    init_fence();
  }
  sums[threadIdx.x] = 5;
  __syncthreads();
  if (threadIdx.x == 0) expect(&bar, ranks() * 32 * 4);
  sync_all();
  for (uint32_t cta = 0; cta < ranks(); ++cta)
    asm volatile("red.async.relaxed.cluster.shared::cluster.mbarrier::complete_tx::bytes.add.u32 [%0], %1, [%2];" ::"r"(
                     map(&sums[threadIdx.x], cta)),
                 "r"(100 * (rank() + 1) + threadIdx.x), "r"(map(&bar, cta))
                 : "memory");
  wait(&bar, 0);
  out[blockIdx.x * 32 + threadIdx.x] = sums[threadIdx.x];
  sync_all();
}

template <int Fault>  // 1: no proxy fence, 2: the source is overwritten at once
__global__ void share(uint32_t* out) {
  __shared__ uint64_t bar;
  __shared__ __align__(128) uint32_t from[128], to[128];
  if (threadIdx.x == 0) {
    init(&bar, 1);
    init_fence();
    expect(&bar, 512);
  }
  from[threadIdx.x] = 1000 * rank() + threadIdx.x;
  from[threadIdx.x + 64] = 1000 * rank() + threadIdx.x + 64;
  if (Fault != 1) asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
  __syncthreads();
  sync_all();
  const uint32_t next = (rank() + 1) % ranks();
  if (threadIdx.x == 0) bulk_share(map(to, next), from, 512, map(&bar, next));  // !proxy.missing_fence
  if (Fault == 2) from[threadIdx.x] = 0;  // !async.overwrite
  wait(&bar, 0);
  out[blockIdx.x * 128 + threadIdx.x] = to[127 - threadIdx.x];
  out[blockIdx.x * 128 + threadIdx.x + 64] = to[63 - threadIdx.x];
  sync_all();
}
template __global__ void share<0>(uint32_t*);
template __global__ void share<1>(uint32_t*);
template __global__ void share<2>(uint32_t*);

template <int Fault>  // 1: CTA 1 does not wait before it reads, 2: writes over a slot that a peer still reads, 3: bad mask
__global__ void multicast(const uint32_t* in, uint32_t* out) {
  __shared__ uint64_t full, empty;
  __shared__ __align__(128) uint32_t tile[64];
  if (threadIdx.x == 0) {
    init(&full, 1);
    init(&empty, ranks() * blockDim.x);
    init_fence();
  }
  sync_all();
  for (uint32_t step = 0; step < 3; ++step) {
    if (threadIdx.x == 0) {
      if (step > 0 && Fault != 2) wait(&empty, (step - 1) & 1);
      expect(&full, 256);
      if (rank() == 0)
        bulk_multicast(tile, in + step * 64, 256, &full,  // !async.overwrite
                       static_cast<uint16_t>(Fault == 3 ? 1 << ranks() : (1 << ranks()) - 1));
    }
    if (!(Fault == 1 && rank() == 1)) wait(&full, step & 1);
    out[(blockIdx.x * 3 + step) * 64 + threadIdx.x] = tile[threadIdx.x ^ 32] + rank();  // !async.read_early
    for (uint32_t cta = 0; cta < ranks(); ++cta) arrive_at(map(&empty, cta));
  }
  sync_all();
}
template __global__ void multicast<0>(const uint32_t*, uint32_t*);
template __global__ void multicast<1>(const uint32_t*, uint32_t*);
template __global__ void multicast<2>(const uint32_t*, uint32_t*);
template __global__ void multicast<3>(const uint32_t*, uint32_t*);

// Every CTA loads its part of a tile and sends it to all.
extern "C" __global__ void tensor_multicast(const __grid_constant__ CUtensorMap map_in, uint32_t* out) {
  __shared__ uint64_t full;
  extern __shared__ __align__(1024) uint32_t tile[];  // [ranks * 8][32]
  if (threadIdx.x == 0) {
    init(&full, 1);
    init_fence();
    expect(&full, ranks() * 8 * 128);
  }
  sync_all();
  if (threadIdx.x == 0)
    asm volatile(
        "cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes.multicast::cluster "
        "[%0], [%1, {%2, %3}], [%4], %5;" ::"r"(address(&tile[rank() * 8 * 32])),
        "l"(&map_in), "r"(0), "r"(static_cast<int>(blockIdx.x * 8)), "r"(address(&full)),
        "h"(static_cast<uint16_t>((1 << ranks()) - 1))
        : "memory");
  wait(&full, 0);
  for (uint32_t i = threadIdx.x; i < ranks() * 8 * 32; i += blockDim.x) out[blockIdx.x * ranks() * 8 * 32 + i] = tile[i];
  sync_all();
}

// ---- faults

extern "C" __global__ void lonely(uint32_t* out) {  // CTA 1 never comes to the barrier
  __shared__ uint64_t bar;
  if (threadIdx.x == 0) init(&bar, 1);
  __syncthreads();
  if (rank() == 1) wait(&bar, 0);  // !emulator.deadlock
  sync_all();
  out[0] = 1;
}
extern "C" __global__ void twice(uint32_t* out) {
  arrive_all();
  arrive_all();  // !cluster.arrived_twice
  wait_all();
  out[blockIdx.x] = 1;
}
extern "C" __global__ void never_arrived(uint32_t* out) {
  wait_all();  // !cluster.wait_without_arrive
  out[blockIdx.x] = 1;
}
extern "C" __global__ void nobody(uint32_t* out) {
  __shared__ uint32_t cell;
  cell = 1;
  sync_all();
  out[blockIdx.x] = get(map(&cell, 5));  // !memory.out_of_bounds
}
extern "C" __global__ void not_own(uint32_t* out) {
  __shared__ uint32_t cell;
  cell = 1;
  sync_all();
  uint32_t value;
  asm volatile("ld.shared::cta.u32 %0, [%1];" : "=r"(value) : "r"(map(&cell, rank() ^ 1)));  // !memory.out_of_bounds
  out[blockIdx.x] = value;
}
extern "C" __global__ void split_target(uint32_t* out) {
  __shared__ uint64_t bar;
  __shared__ __align__(16) uint32_t from[4], to[4];
  if (threadIdx.x == 0) init(&bar, 1);
  from[threadIdx.x & 3] = to[threadIdx.x & 3] = 0;
  sync_all();
  if (threadIdx.x == 0) bulk_share(map(to, rank() ^ 1), from, 16, address(&bar));  // !cluster.mbarrier_elsewhere
  out[0] = 0;
  sync_all();
}
// Exited threads do not count at the cluster barrier.
extern "C" __global__ void early_leavers(uint32_t* out) {
  if (threadIdx.x >= 32) return;
  sync_all();
  if (rank() == 1) return;
  sync_all();
  out[blockIdx.x * 32 + threadIdx.x] = threadIdx.x;
}
