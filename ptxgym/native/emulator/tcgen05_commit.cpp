// tcgen05.commit: an arrival when what the thread issued to the tensor core is complete (PTX ISA 9.7.16.12.1).
#include "tcgen05.hpp"

namespace {

// Arrives once at each mbarrier, when all mma, cp and shift that the thread issued before are complete.
struct Commit : AsyncOp {
  std::vector<Mbar*> targets;
  int released = 0;

  void run(Cta& cta) override {
    for (Mbar* mbar : targets) {
      if (!mbar->valid || !mbar->pending) {
        report(cta, *mbar);
        continue;
      }
      if (mbar->home->ended) report_exited(cta, *mbar->home);
      if (cta.shadow) cta.shadow->tcgen05_arrive(released, *mbar);
      mbar->last_arrive_inst = inst;
      mbar->home->mbar_arrive(*mbar, 1);
    }
  }

  void report(Cta& cta, const Mbar& mbar) const {
    FindingRecord* f = cta.findings.add(cta, nullptr, -1, "mbarrier.over_arrival", Severity::Error, inst, mbar.init_inst);
    if (!f) return;
    f->address = mbar.address;
    f->say("tcgen05.commit arrives at the mbarrier at shared 0x%x%s, %s", mbar.address,
           mbar.home == &cta ? "" : of_cta(*mbar.home).c_str(),
           mbar.valid ? "whose phase misses no arrival any more" : "which is not valid any more");
    f->party(0, "tcgen05.commit", "arrived at mbarrier 0x%x", mbar.address);
    f->party(1, "mbarrier.init", "set its count to %u", mbar.expected);
    f->mend("count the arrivals of commits in mbarrier.init, and keep the barrier until they have come");
  }

  // As for other arrivals: published kernels do it (cluster.cpp).
  void report_exited(Cta& cta, const Cta& target) const {
    FindingRecord* f = cta.findings.add(cta, nullptr, -1, "cluster.exited_cta", Severity::Warning, inst);
    if (!f) return;
    f->say("tcgen05.commit arrives at an mbarrier of CTA %u of its cluster, which has exited", target.rank);
    f->party(0, "tcgen05.commit", "arrived there");
    f->mend("let every CTA wait for the last commit to its barriers before it exits");
  }
};

// The mbarriers that a lane's commit signals: one, or those at the same offset in the CTAs of its mask; empty after a
// fault was recorded.
std::vector<Mbar*> targets_of(Cta& cta, Warp& warp, const Inst& inst, int lane) {
  const uint64_t address = lane_address(cta, warp, inst.a, inst.mods & M_A64, lane, inst.imm);
  std::vector<Mbar*> targets;
  if (inst.b < 0) {
    Mbar* mbar = cta.cluster ? cta.mbar_near(warp, inst, lane, address) : cta.mbar_at(warp, inst, lane, cta.own(address));
    if (mbar) targets.push_back(mbar);
    return targets;
  }
  const uint32_t size = cta.cluster ? static_cast<uint32_t>(cta.cluster->ctas.size()) : 1;
  const uint32_t mask = warp.reg<uint32_t>(inst.b)[lane];
  if (!mask || mask >> size) {
    cta.fault(warp, inst, lane, "cluster.bad_mask",
              "tcgen05.commit to the CTAs of mask 0x%x, but the cluster has %u CTA%s: bits 0 to %u", mask, size,
              size == 1 ? "" : "s", size - 1);
    return {};
  }
  for (uint32_t rest = mask; rest; rest &= rest - 1) {
    const auto rank = static_cast<uint32_t>(first_lane(rest));
    Mbar* mbar = cta.cluster ? cta.mbar_near(warp, inst, lane, rank << RANK_SHIFT | locate(cta, address).offset)
                             : cta.mbar_at(warp, inst, lane, cta.own(address));
    if (!mbar) return {};
    targets.push_back(mbar);
  }
  return targets;
}

Step commit(Cta& cta, Warp& warp, const Inst& inst, uint32_t mask) {
  const int at = cta.index_of(inst);
  if (inst.flags & F_PAIR && !has_peer(cta, warp, inst, first_lane(mask), "tcgen05.commit")) return Step::Fault;
  for (uint32_t rest = mask; rest; rest &= rest - 1) {
    const int lane = first_lane(rest);
    auto op = std::make_unique<Commit>();
    op->targets = targets_of(cta, warp, inst, lane);
    if (op->targets.empty()) return Step::Fault;
    op->inst = at;
    if (Shadow* shadow = cta.shadow.get()) {
      for (Mbar* mbar : op->targets) mbar->home->shadow->mbar_use(warp, at, *mbar);
      op->released = shadow->tcgen05_commit(warp, at, lane);
    }
    cta.async.post(cta, std::move(op), TCGEN05_QUEUE);
  }
  return Step::Next;
}

}  // namespace

Handler bind_tcgen05_commit(const Inst& inst) { return inst.op == OP_TCGEN05_COMMIT ? commit : nullptr; }
