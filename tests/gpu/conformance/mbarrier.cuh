// Phases, counts and waits of mbarrier.
#pragma once
#include "device.cuh"

// ---- mbarrier. One thread; out: a list of what is seen after each step.
extern "C" __global__ void mbarrier_trace(const __grid_constant__ Params p) {
  if (threadIdx.x) return;
  uint32_t* out = reinterpret_cast<uint32_t*>(p.out);
  const uint32_t b = smem_address(bar);
  int at = 0;
  uint64_t state;
  const auto pending = [&](uint64_t token) {
    uint32_t count;
    asm volatile("mbarrier.pending_count.b64 %0, %1;" : "=r"(count) : "l"(token));
    return count;
  };
  const auto look = [&] {
    out[at++] = test(bar, 0);
    out[at++] = test(bar, 1);
  };
  const auto by_state = [&](uint64_t token) {
    uint32_t done;
    asm volatile("{\n.reg .pred p;\nmbarrier.test_wait.shared::cta.b64 p, [%1], %2;\nselp.u32 %0, 1, 0, p;\n}"
                 : "=r"(done) : "r"(b), "l"(token) : "memory");
    return done;
  };
  init(bar, 3);
  look();  // phase 0 not complete; the phase before counts as complete
  asm volatile("mbarrier.arrive.shared::cta.b64 %0, [%1];" : "=l"(state) : "r"(b) : "memory");
  out[at++] = pending(state);
  out[at++] = by_state(state);
  look();
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0], 2;" ::"r"(b) : "memory");
  out[at++] = by_state(state);
  look();
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 %0, [%1], 64;" : "=l"(state) : "r"(b) : "memory");
  out[at++] = pending(state);
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0], 2;" ::"r"(b) : "memory");
  look();  // all arrived, 64 bytes missing
  asm volatile("mbarrier.complete_tx.relaxed.cta.shared::cta.b64 [%0], 48;" ::"r"(b) : "memory");
  look();
  asm volatile("mbarrier.complete_tx.relaxed.cta.shared::cta.b64 [%0], 16;" ::"r"(b) : "memory");
  look();
  asm volatile("mbarrier.expect_tx.relaxed.cta.shared::cta.b64 [%0], 16;" ::"r"(b) : "memory");
  asm volatile("mbarrier.complete_tx.relaxed.cta.shared::cta.b64 [%0], 16;" ::"r"(b) : "memory");
  look();  // no arrivals: still phase 2
  asm volatile("mbarrier.arrive_drop.shared::cta.b64 %0, [%1];" : "=l"(state) : "r"(b) : "memory");
  out[at++] = pending(state);
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0], 2;" ::"r"(b) : "memory");
  look();  // phase 2 complete; from here two arrivals make a phase
  asm volatile("mbarrier.arrive.noComplete.shared::cta.b64 %0, [%1], 1;" : "=l"(state) : "r"(b) : "memory");
  out[at++] = pending(state);
  look();
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(b) : "memory");
  look();
}

