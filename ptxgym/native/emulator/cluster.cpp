// Thread-block clusters: addresses of shared memory in other CTAs (PTX ISA 5.1.7, 9.7.9.23, 9.7.9.24), the cluster
// barrier (9.7.13.4), and what must hold before one CTA reaches into another.
#include "lanes.hpp"
#include "schedule.hpp"

namespace {

constexpr uint64_t OFFSET_MASK = (1ull << RANK_SHIFT) - 1;

template <class Body>
void for_cluster(Cta& cta, Body body) {
  if (!cta.cluster) return body(cta);
  for (Cta* each : cta.cluster->ctas) body(*each);
}

uint64_t address_operand(Cta& cta, Warp& w, const Inst& inst, int lane) {
  if (inst.a < 0) return cta.tag + static_cast<uint64_t>(inst.imm);
  const uint64_t base = inst.mods & M_A64 ? w.reg<uint64_t>(inst.a)[lane] : w.reg<uint32_t>(inst.a)[lane];
  return base + static_cast<uint64_t>(inst.imm);
}

Step map_address(Cta& cta, Warp& w, const Inst& inst, uint32_t mask) {
  const auto* ranks = w.reg<uint32_t>(inst.b);
  for_lanes(mask, [&](int lane) {
    const uint64_t address = address_operand(cta, w, inst, lane);
    const uint64_t window = address & ~0xffff'ffffull;
    const uint64_t mapped = window | uint64_t{ranks[lane] & 0xff} << RANK_SHIFT | (address & OFFSET_MASK);
    if (inst.type == T_U64)
      w.reg<uint64_t>(inst.d)[lane] = mapped;
    else
      w.reg<uint32_t>(inst.d)[lane] = static_cast<uint32_t>(mapped);
  });
  return Step::Next;
}

Step rank_of(Cta& cta, Warp& w, const Inst& inst, uint32_t mask) {
  for_lanes(mask, [&](int lane) {
    const uint64_t address = address_operand(cta, w, inst, lane) & 0xffff'ffffull;
    w.reg<uint32_t>(inst.d)[lane] = static_cast<uint32_t>(address >> RANK_SHIFT);
  });
  return Step::Next;
}

// ---- the cluster barrier

Step arrive(Cta& cta, Warp& w, const Inst& inst, uint32_t mask) {
  const int at = cta.index_of(inst);
  const uint32_t again = mask & (w.cluster_arrived | w.cluster_passed);
  if (again) {
    if (FindingRecord* f =
            cta.findings.add(cta, &w, first_lane(again), "cluster.arrived_twice", Severity::Error, at)) {
      char who[sizeof f->who[0]];
      std::snprintf(who, sizeof who, "warp %d%s", w.id, of_cta(cta).c_str());
      f->say("%s arrives at the cluster barrier again, without having waited for its phase", who);
      f->party(0, who, "arrived a second time");
      f->mend("put barrier.cluster.wait between two barrier.cluster.arrive of a thread");
    }
  }
  w.cluster_arrived |= mask & ~again;
  if (cta.shadow) cta.shadow->cluster_arrive(w, at);
  recheck_cluster_barrier(cta);
  return Step::Next;
}

Step wait(Cta& cta, Warp& w, const Inst& inst, uint32_t mask) {
  const int at = cta.index_of(inst);
  const uint32_t passed = mask & w.cluster_passed, suspended = mask & w.cluster_arrived;
  if (const uint32_t never = mask & ~(passed | suspended))
    return cta.fault(w, inst, first_lane(never), "cluster.wait_without_arrive",
                     "barrier.cluster.wait in a thread that has not arrived: barrier.cluster.arrive comes first");
  w.cluster_passed &= ~passed;
  if (passed && cta.shadow) cta.shadow->cluster_wait(w, at);
  if (!suspended) return Step::Next;
  w.block(suspended, Wait{WaitKind::ClusterBarrier, at, 0, 0, ""}, true);
  return Step::Block;
}

}  // namespace

std::string of_cta(const Cta& cta) { return cta.cluster ? " of CTA " + std::to_string(cta.rank) : ""; }

SharedPlace locate(Cta& cta, uint64_t address) {
  if (address >= SHARED_WINDOW && address < LOCAL_WINDOW) address -= SHARED_WINDOW;
  if (!cta.cluster) return {&cta, address};
  const uint64_t rank = address >> RANK_SHIFT;
  if (rank >= cta.cluster->ctas.size()) return {nullptr, address};
  return {cta.cluster->ctas[rank], address & OFFSET_MASK};
}

void reach(Cta& cta, Warp& w, const Inst& inst, int lane, Cta& owner) {
  if (&owner == &cta) return;
  if (owner.ended) {
    // Public kernels end with arrivals on barriers of CTAs that may be gone (fast.cu's matmul 8 to 12), and run right.
    const Severity severity = inst.op == OP_MBAR_ARRIVE ? Severity::Warning : Severity::Error;
    if (FindingRecord* f = cta.findings.add(cta, &w, lane, "cluster.exited_cta", severity, cta.index_of(inst))) {
      char who[sizeof f->who[0]], other[sizeof f->who[0]];
      std::snprintf(who, sizeof who, "warp %d%s", w.id, of_cta(cta).c_str());
      std::snprintf(other, sizeof other, "CTA %u", owner.rank);
      f->say("%s reaches into the shared memory of %s of its cluster, which has exited", who, other);
      f->party(0, who, "reached into it");
      f->mend("keep every CTA until all accesses to its shared memory are over: barrier.cluster.arrive and .wait before "
              "the end");
    }
    return;
  }
  if (owner.shadow) owner.shadow->from_afar(w, cta.index_of(inst));
}

// Exited threads no longer count.
void recheck_cluster_barrier(Cta& cta) {
  bool any = false, all = true;
  for_cluster(cta, [&](const Cta& each) {
    for (const Warp& w : each.warps) {
      any |= (w.live & w.cluster_arrived) != 0;
      all &= (w.live & ~w.cluster_arrived) == 0;
    }
  });
  if (!any || !all) return;
  if (cta.shadow) cta.shadow->cluster_complete();
  for_cluster(cta, [&](Cta& each) {
    for (Warp& w : each.warps) {
      w.cluster_passed |= w.cluster_arrived;
      w.cluster_arrived = 0;
    }
    each.wake();
  });
}

Handler bind_cluster(const Inst& inst) {
  switch (inst.op) {
    case OP_MAPA: return map_address;
    case OP_GETCTARANK: return rank_of;
    case OP_CLUSTER_ARRIVE: return arrive;
    case OP_CLUSTER_WAIT: return wait;
    default: return nullptr;
  }
}
