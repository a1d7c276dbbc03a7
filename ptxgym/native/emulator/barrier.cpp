// Named barriers and fences (PTX ISA 9.7.13.1 to 9.7.13.4).
#include <algorithm>

#include "lanes.hpp"
#include "schedule.hpp"
#include "tensor.hpp"

namespace {

// Threads that a barrier without a thread count waits for, as it counts them: whole warps. One that has arrived and then
// exited has arrived.
uint32_t threads_of_cta(const Cta& cta, const NamedBarrier& barrier) {
  uint32_t warps = 0;
  for (const Warp& w : cta.warps) warps += w.live || (barrier.counted >> w.id & 1);
  return warps * LANES;
}

// What the barrier is after a phase: anew, but for warps of which some lanes have come and others have not.
NamedBarrier after(NamedBarrier& barrier) {
  NamedBarrier next;
  std::copy(std::begin(barrier.here), std::end(barrier.here), next.here);
  for (const NamedBarrier::Waiter& waiter : barrier.waiters)
    if (barrier.here[waiter.warp->id]) next.waiters.push_back(waiter);
  next.leaving = std::move(barrier.leaving);
  if (next.waiters.empty() && next.leaving.empty()) return next;
  next.expected = barrier.expected;
  next.whole_cta = barrier.whole_cta;
  next.reduces = barrier.reduces;
  next.first_inst = (next.waiters.empty() ? next.leaving : next.waiters).front().inst;
  return next;
}

void complete(Cta& cta, int id) {
  NamedBarrier& barrier = cta.barriers[id];
  if (cta.shadow) {
    if (barrier.whole_cta) cta.shadow->bar_together(id);
    cta.shadow->bar_complete(id);
  }
  for (const NamedBarrier::Waiter& waiter : barrier.waiters) {
    if (barrier.here[waiter.warp->id]) continue;
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
  barrier = after(barrier);
  cta.wake();
}

void check_complete(Cta& cta, int id) {
  NamedBarrier& barrier = cta.barriers[id];
  if (barrier.first_inst < 0) return;
  if (barrier.whole_cta) barrier.expected = threads_of_cta(cta, barrier);
  if (barrier.arrived >= barrier.expected) complete(cta, id);
}

// Lets the warp arrive if all its living lanes have come.
void count_warp(Cta& cta, NamedBarrier& barrier, Warp& w) {
  if (!barrier.here[w.id] || (w.live & ~barrier.here[w.id])) return;
  barrier.here[w.id] = 0;
  barrier.arrived += LANES;
  barrier.counted |= 1u << w.id;
  for (size_t i = barrier.leaving.size(); i--;) {
    if (barrier.leaving[i].warp != &w) continue;
    cta.release(w, barrier.leaving[i].lanes);
    barrier.leaving.erase(barrier.leaving.begin() + static_cast<std::ptrdiff_t>(i));
  }
}

void warn_of_mixed_reduction(Cta& cta, const Warp& w, int lane, int at, uint32_t id, const NamedBarrier& barrier) {
  FindingRecord* f =
      cta.findings.add(cta, &w, lane, "barrier.mixed_reduction", Severity::Warning, at, barrier.first_inst);
  if (!f) return;
  char who[sizeof f->who[0]];
  std::snprintf(who, sizeof who, "warp %d", w.id);
  f->say("barrier %u is used %s here and %s at {@%d} in the same phase: what it does then is unpredictable", id,
         barrier.reduces ? "without a reduction" : "with a reduction",
         barrier.reduces ? "with one" : "without one", barrier.first_inst);
  f->party(0, who, "arrived at barrier %u %s", id, barrier.reduces ? "without a reduction" : "with a reduction");
  f->party(1, "another thread", "arrived at barrier %u %s", id, barrier.reduces ? "with one" : "without one");
  f->mend("let all participants of one phase reduce (.red), or none; or use different barriers");
}

// Adds what has come to the barrier. It counts warps: one arrives when all its living lanes have come, and then for 32
// threads (9.7.13.1: "wait for all non-exited threads from its warp and marks warps' arrival"; ptxas puts a WARPSYNC.ALL
// before each). Lanes of one instruction that name different barriers (`apart`) are what PTX says nothing about; where
// there is a thread count, each counts for itself.
bool arrive(Cta& cta, Warp& w, const Inst& inst, uint32_t mask, uint32_t id, uint32_t count, bool counted, bool apart) {
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
  const bool reduces = inst.op == OP_BAR_RED;
  ++cta.effects;
  const uint32_t expected = counted ? count : threads_of_cta(cta, barrier);
  if (barrier.first_inst < 0) {
    barrier.expected = expected;
    barrier.whole_cta = !counted;
    barrier.reduces = reduces;
    barrier.first_inst = at;
  } else if (barrier.expected != expected) {
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
  if (barrier.reduces != reduces) warn_of_mixed_reduction(cta, w, lane, at, id, barrier);
  const bool aligned = inst.flags & F_ALIGNED;
  if (counted && apart && !aligned) {
    barrier.arrived += static_cast<uint32_t>(__builtin_popcount(mask));
    barrier.counted |= 1u << w.id;
  } else {
    barrier.here[w.id] |= counted && aligned ? FULL_MASK : mask;
    count_warp(cta, barrier, w);
  }
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
    if (!arrive(cta, w, inst, lanes, id, counted ? w.reg<uint32_t>(inst.b)[lane] : 0, counted, lanes != mask))
      return Step::Fault;
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
  bool waits = false;
  for (uint32_t left = mask; left;) {
    const int lane = first_lane(left);
    const uint32_t id = w.reg<uint32_t>(inst.a)[lane], lanes = lanes_of_first(w, inst, left);
    left &= ~lanes;
    if (!arrive(cta, w, inst, lanes, id, w.reg<uint32_t>(inst.b)[lane], true, lanes != mask)) return Step::Fault;
    NamedBarrier& barrier = cta.barriers[id];
    if (barrier.here[w.id] & lanes) {
      Wait why;
      why.kind = WaitKind::NamedBarrier;
      why.inst = cta.index_of(inst);
      why.address = id;
      w.block(lanes, why, false);
      barrier.leaving.push_back({&w, lanes, why.inst});
      waits = true;
    }
    check_complete(cta, static_cast<int>(id));
  }
  return waits ? Step::Yield : Step::Next;
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

// Lanes have exited: nobody waits for them any more.
void recheck_barriers(Cta& cta) {
  for (int id = 0; id < 16; ++id) {
    if (cta.barriers[id].first_inst < 0) continue;
    for (Warp& w : cta.warps) count_warp(cta, cta.barriers[id], w);
    check_complete(cta, id);
  }
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
