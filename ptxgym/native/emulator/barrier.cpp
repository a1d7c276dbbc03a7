// Named barriers and fences (PTX ISA 9.7.13.1 to 9.7.13.4).
#include "lanes.hpp"
#include "schedule.hpp"
#include "tensor.hpp"

namespace {

uint32_t live_threads(const Cta& cta) {
  uint32_t total = 0;
  for (const Warp& w : cta.warps) total += static_cast<uint32_t>(__builtin_popcount(w.live));
  return total;
}

void complete(Cta& cta, int id) {
  NamedBarrier& barrier = cta.barriers[id];
  if (cta.shadow) {
    if (barrier.whole_cta) cta.shadow->bar_together(id);
    cta.shadow->bar_complete(id);
  }
  for (const NamedBarrier::Waiter& waiter : barrier.waiters) {
    const Inst& inst = cta.program.kernel.inst[waiter.inst];
    if (inst.op == OP_BAR_RED && inst.d >= 0) {
      if (inst.imm == 0)
        for_lanes(waiter.lanes, [&](int l) { waiter.warp->reg<uint32_t>(inst.d)[l] = barrier.red_count; });
      else
        waiter.warp->set_pred(inst.d, waiter.lanes, inst.imm == 1 ? barrier.red_and : barrier.red_or);
    }
    cta.release(*waiter.warp, waiter.lanes);
    if (cta.shadow) cta.shadow->bar_depart(*waiter.warp, id);
  }
  barrier = NamedBarrier();
  cta.wake();
}

void check_complete(Cta& cta, int id) {
  NamedBarrier& barrier = cta.barriers[id];
  if (!barrier.arrived && barrier.waiters.empty()) return;
  if (barrier.whole_cta) barrier.expected = live_threads(cta);
  if (barrier.arrived >= barrier.expected) complete(cta, id);
}

// Adds the lanes' arrival. The hardware counts warps of 32: lanes that a partial last warp never had arrive with it.
bool arrive(Cta& cta, Warp& w, const Inst& inst, uint32_t mask, uint32_t id, uint32_t count, bool counted) {
  const int lane = first_lane(mask);
  if (id > 15)
    return cta.fault(w, inst, lane, "barrier.bad_id", "barrier %u does not exist: a CTA has barriers 0 to 15", id),
           false;
  if (counted && (count == 0 || count % LANES))
    return cta.fault(w, inst, lane, "barrier.bad_count",
                     "thread count %u of barrier %u is not a positive multiple of the warp size 32", count, id),
           false;
  NamedBarrier& barrier = cta.barriers[id];
  const int at = cta.index_of(inst);
  ++cta.effects;
  const uint32_t expected = counted ? count : live_threads(cta);
  if (!barrier.arrived && barrier.waiters.empty()) {
    barrier.expected = expected;
    barrier.whole_cta = !counted;
    barrier.first_inst = at;
  } else if (barrier.expected != expected || barrier.whole_cta == counted) {
    if (barrier.expected != expected) {
      if (FindingRecord* f =
              cta.findings.add(cta, &w, lane, "barrier.count_mismatch", Severity::Error, at, barrier.first_inst)) {
        char who[sizeof f->who[0]];
        std::snprintf(who, sizeof who, "warp %d", w.id);
        f->say("barrier %u is used with %u threads here and with %u at {@%d} in the same phase", id, expected,
               barrier.expected, barrier.first_inst);
        f->party(0, who, "arrived at barrier %u for %u threads", id, expected);
        f->party(1, "another warp", "arrived at barrier %u for %u threads", id, barrier.expected);
        f->mend("give every participant of one phase the same thread count, or use different barriers");
      }
    }
  }
  uint32_t lanes = static_cast<uint32_t>(__builtin_popcount(mask));
  if (!barrier.whole_cta) {
    if (inst.flags & F_ALIGNED)
      lanes = LANES;
    else if (mask >> (31 - __builtin_clz(w.initial)) & 1)
      lanes += LANES - static_cast<uint32_t>(__builtin_popcount(w.initial));
  }
  barrier.arrived += lanes;
  if (cta.shadow) cta.shadow->bar_arrive(w, static_cast<int>(id));
  return true;
}

// The lanes of `left` that name the same barrier as the first of them.
uint32_t lanes_of_first(Warp& w, const Inst& inst, uint32_t left) {
  const auto* ids = w.reg<uint32_t>(inst.a);
  const uint32_t id = ids[first_lane(left)];
  return left & lanes_where([=](int l) { return ids[l] == id; });
}

Step sync(Cta& cta, Warp& w, const Inst& inst, uint32_t mask) {
  for (uint32_t left = mask; left;) {
    const int lane = first_lane(left);
    const uint32_t id = w.reg<uint32_t>(inst.a)[lane], lanes = lanes_of_first(w, inst, left);
    left &= ~lanes;
    const bool counted = inst.b >= 0;
    if (!arrive(cta, w, inst, lanes, id, counted ? w.reg<uint32_t>(inst.b)[lane] : 0, counted)) return Step::Fault;
    NamedBarrier& barrier = cta.barriers[id];
    if (inst.op == OP_BAR_RED) {
      const uint32_t p = (inst.flags & F_C_NOT) ? ~w.pred(inst.c) : w.pred(inst.c);
      if ((p & lanes) != lanes) barrier.red_and = 0;
      if (p & lanes) barrier.red_or = FULL_MASK;
      barrier.red_count += static_cast<uint32_t>(__builtin_popcount(p & lanes));
    }
    Wait why;
    why.kind = WaitKind::NamedBarrier;
    why.inst = cta.index_of(inst);
    why.address = id;
    w.block(lanes, why, false);
    barrier.waiters.push_back({&w, lanes, why.inst});
    check_complete(cta, static_cast<int>(id));
  }
  return Step::Yield;
}

Step arrive_only(Cta& cta, Warp& w, const Inst& inst, uint32_t mask) {
  for (uint32_t left = mask; left;) {
    const int lane = first_lane(left);
    const uint32_t id = w.reg<uint32_t>(inst.a)[lane], lanes = lanes_of_first(w, inst, left);
    left &= ~lanes;
    if (!arrive(cta, w, inst, lanes, id, w.reg<uint32_t>(inst.b)[lane], true)) return Step::Fault;
    check_complete(cta, static_cast<int>(id));
  }
  return Step::Next;
}

Step fence(Cta& cta, Warp& w, const Inst& inst, uint32_t) {
  if (cta.shadow) cta.shadow->fence(w, cta.index_of(inst));
  return Step::Next;
}
Step proxy_fence(Cta& cta, Warp& w, const Inst& inst, uint32_t mask) {
  if (inst.imm == FP_TENSORMAP) fence_tensor_maps(cta, w, inst, mask);
  else if (cta.shadow && inst.imm != FP_ALIAS)
    cta.shadow->proxy_fence(w, cta.index_of(inst));
  return Step::Next;
}
Step init_fence(Cta& cta, Warp& w, const Inst& inst, uint32_t) {
  if (cta.shadow) cta.shadow->mbar_init_fence(w, cta.index_of(inst));
  return Step::Next;
}

}  // namespace

void recheck_barriers(Cta& cta) {
  for (int id = 0; id < 16; ++id)
    if (cta.barriers[id].whole_cta) check_complete(cta, id);
}

Handler bind_mbarrier(const Inst&);  // mbarrier.cpp

Handler bind_barrier(const Inst& inst) {
  switch (inst.op) {
    case OP_BAR_SYNC:
    case OP_BAR_RED: return sync;
    case OP_BAR_ARRIVE: return arrive_only;
    case OP_FENCE: return fence;
    case OP_FENCE_PROXY: return proxy_fence;
    case OP_FENCE_MBAR_INIT: return init_fence;
    default: return bind_mbarrier(inst);
  }
}
