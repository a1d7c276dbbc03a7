// The other spellings: state spaces, 64-bit shared addresses, cache hints, orders, scopes and prefetches of instructions
// whose plain form copies.cuh, mbarrier.cuh and warp.cuh show. None may change what happens.
#pragma once
#include "device.cuh"

__device__ uint64_t wide_address(const void* p) { return smem_address(p); }
__device__ uint64_t policy() {
  uint64_t value;
  asm volatile("createpolicy.fractional.L2::evict_first.b64 %0, 0f3F800000;" : "=l"(value));
  return value;
}

// ---- copies; parameters as in copies.cuh

extern "C" __global__ void bulk_load_hint(const __grid_constant__ Params p) {
  load_box(p, [&](uint32_t to) {
    const uint8_t* from = p.in + p.args[3];
    asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" ::"l"(from), "r"(p.args[1]) : "memory");
    asm volatile("cp.async.bulk.shared::cta.global.mbarrier::complete_tx::bytes.L2::cache_hint [%0], [%1], %2, [%3], %4;"
                 ::"l"(uint64_t{to}), "l"(from), "r"(p.args[1]), "l"(wide_address(bar)), "l"(policy()) : "memory");
  });
}
extern "C" __global__ void bulk_store_hint(const __grid_constant__ Params p) {
  store_box(p, [&](uint32_t from) {
    asm volatile("cp.async.bulk.global.shared::cta.bulk_group.L2::cache_hint [%0], [%1], %2, %3;"
                 ::"l"(p.out + p.args[3]), "l"(uint64_t{from}), "r"(p.args[1]), "l"(policy()) : "memory");
    asm volatile("cp.async.bulk.commit_group;\ncp.async.bulk.wait_group.read 0;" ::: "memory");
  });
}
extern "C" __global__ void tensor_load_hint(const __grid_constant__ Params p) {
  load_box(p, [&](uint32_t to) {
    asm volatile("prefetch.tensormap [%0];" ::"l"(&p.map) : "memory");
    asm volatile("cp.async.bulk.prefetch.tensor.2d.L2.global.tile [%0, {%1, %2}];"
                 ::"l"(&p.map), "r"(p.args[3]), "r"(p.args[4]) : "memory");
    asm volatile("cp.async.bulk.tensor.2d.shared::cta.global.tile.mbarrier::complete_tx::bytes.L2::cache_hint "
                 "[%0], [%1, {%3, %4}], [%2], %5;"
                 ::"l"(uint64_t{to}), "l"(&p.map), "l"(wide_address(bar)), "r"(p.args[3]), "r"(p.args[4]), "l"(policy())
                 : "memory");
  });
}
extern "C" __global__ void tensor_store_hint(const __grid_constant__ Params p) {
  store_box(p, [&](uint32_t from) {
    asm volatile("cp.async.bulk.tensor.2d.global.shared::cta.tile.bulk_group.L2::cache_hint [%1, {%2, %3}], [%0], %4;"
                 ::"l"(uint64_t{from}), "l"(&p.map), "r"(p.args[3]), "r"(p.args[4]), "l"(policy()) : "memory");
    asm volatile("cp.async.bulk.commit_group;\ncp.async.bulk.wait_group 1;" ::: "memory");
  });
}

// Two groups of cp.async, waited for one after the other: the first half of shared memory, then all of it.
extern "C" __global__ void cp_async_groups(const __grid_constant__ Params p) {
  uint8_t* smem = image();
  fill(smem, 1024, 0xCD);
  __syncthreads();
  const uint32_t to = smem_address(smem) + 16 * threadIdx.x;
  const uint8_t* from = p.in + 16 * threadIdx.x;
  asm volatile("cp.async.cg.shared::cta.global.L2::128B [%0], [%1], 16;" ::"r"(to), "l"(from) : "memory");
  asm volatile("cp.async.commit_group;" ::: "memory");
  asm volatile("cp.async.cg.shared.global.L2::cache_hint [%0], [%1], 16, %2;"
               ::"l"(uint64_t{to + 512}), "l"(from + 512), "l"(policy()) : "memory");
  asm volatile("cp.async.commit_group;\ncp.async.wait_group 1;" ::: "memory");
  __syncthreads();
  copy(p.out, smem, 512);
  asm volatile("cp.async.wait_all;" ::: "memory");
  __syncthreads();
  copy(p.out + 512, smem, 1024);
}

// ---- mbarrier: one thread; out: what is seen after each step

extern "C" __global__ void mbarrier_forms(const __grid_constant__ Params p) {
  if (threadIdx.x) return;
  uint32_t* out = reinterpret_cast<uint32_t*>(p.out);
  const uint32_t b = smem_address(bar);
  int at = 0;
  uint64_t state;
  const auto pending = [&] {
    uint32_t count;
    asm volatile("mbarrier.pending_count.b64 %0, %1;" : "=r"(count) : "l"(state));
    out[at++] = count;
  };
  const auto look = [&] {
    out[at++] = test(bar, 0);
    out[at++] = test(bar, 1);
  };
#define DONE(FORM, ADDRESS, ...)                                                                       \
  asm volatile("{\n.reg .pred p;\n" FORM ";\nselp.u32 %0, 1, 0, p;\n}" : "=r"(out[at]) : ADDRESS, __VA_ARGS__ : "memory"); \
  ++at;
  asm volatile("mbarrier.init.b64 [%0], 2;" ::"l"(bar) : "memory");  // a generic address
  asm volatile("mbarrier.arrive.release.cta.b64 %0, [%1];" : "=l"(state) : "l"(bar) : "memory");
  pending();
  DONE("mbarrier.test_wait.b64 p, [%1], %2", "l"(bar), "l"(state))
  asm volatile("mbarrier.arrive.release.cluster.shared::cluster.b64 _, [%0];" ::"r"(b) : "memory");
  DONE("mbarrier.test_wait.acquire.cluster.shared.b64 p, [%1], %2", "r"(b), "l"(state))
  DONE("mbarrier.try_wait.shared::cta.b64 p, [%1], %2, 1000", "r"(b), "l"(state))
  DONE("mbarrier.try_wait.parity.acquire.cta.shared::cta.b64 p, [%1], %2", "r"(b), "r"(0))
  DONE("mbarrier.try_wait.parity.relaxed.cluster.shared::cta.b64 p, [%1], %2, 1000", "r"(b), "r"(0))
  look();
  asm volatile("mbarrier.arrive.relaxed.cta.shared.b64 %0, [%1], 1;" : "=l"(state) : "r"(b) : "memory");
  pending();
  asm volatile("mbarrier.expect_tx.shared.b64 [%0], 32;" ::"r"(b) : "memory");
  asm volatile("mbarrier.arrive.expect_tx.relaxed.cta.shared::cta.b64 _, [%0], 32;" ::"r"(b) : "memory");
  look();
  asm volatile("mbarrier.complete_tx.shared::cluster.b64 [%0], 64;" ::"r"(b) : "memory");
  look();  // phase 1 complete
  asm volatile("mbarrier.arrive_drop.expect_tx.shared::cta.b64 %0, [%1], 16;" : "=l"(state) : "r"(b) : "memory");
  pending();
  look();
  asm volatile("mbarrier.complete_tx.relaxed.cluster.shared::cta.b64 [%0], 16;" ::"r"(b) : "memory");
  look();
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 %0, [%1], 0;" : "=l"(state) : "r"(b) : "memory");
  pending();
  look();  // phase 2 complete; from here one arrival makes a phase
  asm volatile("mbarrier.inval.shared::cta.b64 [%0];" ::"r"(b) : "memory");
  asm volatile("mbarrier.init.shared.b64 [%0], 5;" ::"r"(b) : "memory");
  asm volatile("mbarrier.arrive_drop.noComplete.shared.b64 %0, [%1], 2;" : "=l"(state) : "r"(b) : "memory");
  pending();
  asm volatile("mbarrier.arrive.noComplete.release.cta.b64 %0, [%1], 2;" : "=l"(state) : "l"(bar) : "memory");
  pending();
  asm volatile("mbarrier.arrive_drop.relaxed.cta.shared::cta.b64 %0, [%1], 1;" : "=l"(state) : "r"(b) : "memory");
  pending();
  look();
  asm volatile("mbarrier.arrive.shared::cta.b64 %0, [%1], 2;" : "=l"(state) : "r"(b) : "memory");
  pending();
  look();  // five less the three that were dropped
#undef DONE
}

// ---- barriers of a CTA with reductions: 128 threads; out: per thread popc, and, or, and what named barriers let through

extern "C" __global__ void barrier_forms(const __grid_constant__ Params p) {
  const uint32_t mine = p.in[threadIdx.x] & 1;
  uint32_t seen[6];
  asm volatile("{\n.reg .pred p, q;\nsetp.ne.u32 p, %3, 0;\nbar.red.popc.u32 %0, 0, p;\nbar.red.and.pred q, 1, p;\n"
               "selp.u32 %1, 1, 0, q;\nbar.cta.red.or.pred q, 2, 128, !p;\nselp.u32 %2, 1, 0, q;\n}"
               : "=r"(seen[0]), "=r"(seen[1]), "=r"(seen[2]) : "r"(mine) : "memory");
  asm volatile("{\n.reg .pred p, q;\nsetp.ne.u32 p, %3, 0;\nbarrier.red.popc.aligned.u32 %0, 3, 128, p;\n"
               "barrier.red.and.pred q, 4, p;\nselp.u32 %1, 1, 0, q;\nbarrier.cta.red.or.pred q, 5, p;\n"
               "selp.u32 %2, 1, 0, q;\n}"
               : "=r"(seen[3]), "=r"(seen[4]), "=r"(seen[5]) : "r"(mine) : "memory");
  __shared__ uint32_t left;
  if (threadIdx.x < 32) {  // the first warp brings a value, the last one waits for it
    if (threadIdx.x == 0) left = 0xA5A5;
    asm volatile("fence.acq_rel.cta;\nbarrier.arrive 6, 64;" ::: "memory");
  } else if (threadIdx.x >= 96) {
    asm volatile("barrier.sync 6, 64;" ::: "memory");
    seen[5] |= *const_cast<volatile uint32_t*>(&left) << 8;
  }
  uint32_t* out = reinterpret_cast<uint32_t*>(p.out) + threadIdx.x * 6;
  for (int i = 0; i < 6; ++i) out[i] = seen[i];
}

// ---- a warp: matrices at 64-bit addresses, election, active lanes

extern "C" __global__ void warp_forms(const __grid_constant__ Params p) {
  uint8_t* smem = image();
  copy(smem, p.in, 512);
  __syncthreads();
  const uint64_t row = wide_address(smem) + 16 * threadIdx.x;
  uint32_t* out = reinterpret_cast<uint32_t*>(p.out) + threadIdx.x * 8;
  uint32_t d[4], leader = 0xEE, elected, active;
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared::cta.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(d[0]), "=r"(d[1]), "=r"(d[2]), "=r"(d[3]) : "l"(row) : "memory");
  __syncwarp();
  asm volatile("stmatrix.sync.aligned.m8n8.x2.trans.b16 [%0], {%1, %2};" ::"l"(__cvta_shared_to_generic(row)), "r"(d[1]), "r"(d[0])
               : "memory");
  __syncwarp();
  if (threadIdx.x >= 5) {
    asm volatile("{\n.reg .pred p;\nelect.sync %0|p, 0xffffffe0;\nselp.u32 %1, 1, 0, p;\n}"
                 : "=r"(leader), "=r"(elected) :: "memory");
    asm volatile("activemask.b32 %0;" : "=r"(active));
  } else {
    elected = active = 0xEE;
  }
  for (int i = 0; i < 4; ++i) out[i] = d[i] ^ reinterpret_cast<const uint32_t*>(smem)[threadIdx.x * 4 + i];
  out[4] = leader;
  out[5] = elected;
  out[6] = active;
  out[7] = 0;
}
