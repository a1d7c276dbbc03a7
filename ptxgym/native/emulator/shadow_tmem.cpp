// Ordering of tensor memory (PTX ISA 9.7.16.6): ld, st, mma, cp and shift are asynchronous; what orders them is
// tcgen05.wait for ld and st, tcgen05.commit for the others, and the pipelines of one thread.
#include "shadow_state.hpp"

namespace {

constexpr int COLUMNS = 512, LANE_GROUPS = 8;

const char* op_name(const Kernel& kernel, int inst) {
  switch (kernel.inst[inst].op) {
    case OP_TCGEN05_MMA: return "tcgen05.mma";
    case OP_TCGEN05_CP: return "tcgen05.cp";
    case OP_TCGEN05_SHIFT: return "tcgen05.shift";
    case OP_TCGEN05_LD: return "tcgen05.ld";
    case OP_TCGEN05_ST: return "tcgen05.st";
    case OP_TCGEN05_DEALLOC: return "tcgen05.dealloc";
    default: return "tcgen05";
  }
}

enum class Pipeline { Ordered, InPractice, None };

// Whether two operations execute in the order of issue (9.7.16.6.2): mma → mma of the same accumulator and shape, cp →
// mma, shift → mma, shift → cp.4x256b, mma → shift. Later revisions of the ISA are quoted with what an mma reads before
// another writes it: so do attention kernels write S over P. In practice other accumulators follow each other, and a cp
// refills scale factors behind the mma, as in CUTLASS's block-scaled main loops. That sums of one mma are ready for
// another that reads them as A or scale factors, nothing says.
Pipeline pipelined(const Kernel& kernel, const Touch& before, uint32_t earlier_shape, const Touch& after, uint32_t shape) {
  const Inst& earlier = kernel.inst[before.inst];
  const Inst& now = kernel.inst[after.inst];
  if (now.op == OP_TCGEN05_MMA) {
    if (earlier.op != OP_TCGEN05_MMA) return Pipeline::Ordered;
    if (!after.write) return Pipeline::None;
    return !before.write || earlier_shape == shape ? Pipeline::Ordered : Pipeline::InPractice;
  }
  if (earlier.op == OP_TCGEN05_MMA && now.op == OP_TCGEN05_SHIFT) return Pipeline::Ordered;
  if (earlier.op == OP_TCGEN05_MMA && now.op == OP_TCGEN05_CP) return Pipeline::InPractice;
  if (earlier.op == OP_TCGEN05_SHIFT && now.op == OP_TCGEN05_CP && mods_low(now.mods) == TCP_4X256B)
    return Pipeline::Ordered;
  return Pipeline::None;
}

// Whether a product has read what a cp or shift wrote before: it stands between that and what writes now, and is
// looked at by itself.
bool read_between(const Kernel& kernel, const TmemCell& cell, const Touch& now) {
  if (!now.write || now.kind != Kind::Tcgen05 || cell.write.kind != Kind::Tcgen05) return false;
  return std::any_of(cell.reads.begin(), cell.reads.end(), [&](const Touch& read) {
    return kernel.inst[read.inst].op == OP_TCGEN05_MMA;
  });
}

const char* remedy(Kind earlier) {
  switch (earlier) {
    case Kind::TmemLoad:
      return "tcgen05.wait::ld in the loading warp, then tcgen05.fence::before_thread_sync and an arrival or barrier, "
             "before the cells are written.";
    case Kind::TmemStore:
      return "tcgen05.wait::st in the storing warp, then tcgen05.fence::before_thread_sync and an arrival or barrier, "
             "before the cells are used.";
    default:
      return "tcgen05.commit after it, to an mbarrier that this warp waits on (with the parity of that phase), then "
             "tcgen05.fence::after_thread_sync.";
  }
}

}  // namespace

void ShadowState::tmem_allocated(int column, int columns) {
  if (tmem_.empty()) tmem_.resize(static_cast<size_t>(LANE_GROUPS) * COLUMNS);
  for (int group = 0; group < LANE_GROUPS; ++group) {
    for (int at = column; at < column + columns; ++at) tmem_[static_cast<size_t>(group * COLUMNS + at)] = TmemCell();
  }
}

void ShadowState::tmem_access(Warp& warp, int inst, TmemUse use, int lane, int column, int columns, uint32_t lanes,
                              uint32_t shape) {
  settle();
  if (tmem_.empty()) return;
  WarpState& w = of(warp);
  Touch now = own_touch(warp, inst, Kind::Generic, use != TmemUse::Load && use != TmemUse::Read);
  now.lane = static_cast<uint16_t>(lane);
  if (use == TmemUse::Load || use == TmemUse::Store) {
    GroupQueue& q = use == TmemUse::Load ? w.tmem_loads : w.tmem_stores;
    if (!q.component) {
      q.component = shared_->components;
      shared_->components += 1 + DELIVERED;
    }
    now.kind = use == TmemUse::Load ? Kind::TmemLoad : Kind::TmemStore;
    now.component = static_cast<uint16_t>(q.component);
    now.time = ++q.issued;
    q.last_inst = inst;
  } else if (use != TmemUse::Dealloc) {
    const GroupQueue& q = queue(warp, Async::Tcgen05, lane);
    now.kind = Kind::Tcgen05;
    now.component = static_cast<uint16_t>(q.component);
    now.time = q.issued;
  }
  bool sound = true;
  if (use == TmemUse::Overwrite || use == TmemUse::Store || use == TmemUse::Dealloc)
    note_lost_sums(warp, now, column, columns, lanes);
  for (uint32_t group = 0; group < LANE_GROUPS; ++group) {
    if (!(lanes >> group & 1)) continue;
    for (int at = column; at < column + columns; ++at) {
      TmemCell& cell = tmem_[group * COLUMNS + static_cast<uint32_t>(at)];
      if (cell.write.inst >= 0 && sound && !read_between(cta_.program.kernel, cell, now))
        sound = tmem_ordered(warp, cell.write, cell.shape, now, shape, at, group * 16);
      if (!now.write) {
        bool known = false;
        for (Touch& read : cell.reads) {
          if (read.component != now.component) continue;
          read = now;
          known = true;
        }
        if (!known) cell.reads.push_back(now);
        continue;
      }
      for (const Touch& read : cell.reads)
        if (sound) sound = tmem_ordered(warp, read, 0, now, 0, at, group * 16);
      if (use == TmemUse::Dealloc) continue;  // nobody has the cells any more
      cell.reads.clear();
      cell.write = now;
      cell.shape = shape;
    }
  }
}

// Sums that nothing has read, overwritten or freed: the first product of a tile must not accumulate, all others must,
// and whoever loads them must load all columns.
void ShadowState::note_lost_sums(Warp& warp, const Touch& now, int column, int columns, uint32_t lanes) {
  const Kernel& kernel = cta_.program.kernel;
  const bool frees = now.kind == Kind::Generic;
  const char* did = frees                         ? "tcgen05.dealloc frees"
                    : now.kind == Kind::TmemStore ? "tcgen05.st overwrites"
                                                  : "a tcgen05.mma that does not accumulate overwrites";
  for (uint32_t group = 0; group < LANE_GROUPS; ++group) {
    if (!(lanes >> group & 1)) continue;
    for (int at = column; at < column + columns; ++at) {
      const TmemCell& cell = tmem_[group * COLUMNS + static_cast<uint32_t>(at)];
      const bool sums = cell.write.inst >= 0 && kernel.inst[cell.write.inst].op == OP_TCGEN05_MMA;
      const bool own = cell.write.component == now.component && cell.write.time == now.time;
      if (!sums || own || !cell.reads.empty()) continue;
      FindingRecord* f = cta_.findings.add(cta_, &warp, static_cast<int>(now.lane), "tmem.sums_lost", Severity::Note,
                                           now.inst, cell.write.inst);
      if (!f) return;
      f->say("%s column %d of tensor memory (lanes from %u), whose sums by the tcgen05.mma of line {@%d} nothing has read",
             did, at, group * 16, cell.write.inst);
      f->mend("Let enable-input-d be false for the first product of a tile only; check the columns of tcgen05.ld and of "
              "the accumulators, and the shape in the instruction descriptor.");
      describe_pair(*f, now, frees ? "frees the sums" : "overwrites the sums", cell.write, "made them");
      return;
    }
  }
}

// "Issuing warp and peer CTA warp must synchronize tensor memory accesses before attempting to collectively deallocate"
// (9.7.16.7.1). A warning: since the other CTA takes part, its accesses are over where dealloc blocks (9.7.16.5).
void ShadowState::tmem_peer_dealloc(Warp& warp, int inst, int column, int columns) {
  settle();
  if (tmem_.empty()) return;
  const WarpState& w = of(warp);
  const Touch now = own_touch(warp, inst, Kind::Generic, true);
  const auto over = [&](const Touch& earlier, int at, uint32_t group) {
    if (earlier.inst < 0 || w.now.likely.covers(earlier.component, earlier.time)) return true;
    report_tmem(warp, earlier, now, at, group * 16, Severity::Warning);
    return false;
  };
  for (uint32_t group = 0; group < LANE_GROUPS; ++group) {
    for (int at = column; at < column + columns; ++at) {
      const TmemCell& cell = tmem_[group * COLUMNS + static_cast<uint32_t>(at)];
      if (!over(cell.write, at, group)) return;
      for (const Touch& read : cell.reads)
        if (!over(read, at, group)) return;
    }
  }
}

// Whether two of tcgen05.mma, cp and shift execute in the order of issue; false after a finding.
bool ShadowState::in_pipeline(Warp& warp, const Touch& earlier, uint32_t earlier_shape, const Touch& now, uint32_t shape,
                              int column) {
  switch (pipelined(cta_.program.kernel, earlier, earlier_shape, now, shape)) {
    case Pipeline::Ordered: return true;
    case Pipeline::InPractice:
      if (first_note(earlier, now)) report_tcgen05_pipeline(warp, earlier, now, column, Severity::Note);
      return true;
    case Pipeline::None: report_tcgen05_pipeline(warp, earlier, now, column, Severity::Warning); return false;
  }
  return true;
}

// What executes in order is also complete in order: a commit of the later operation tells of the earlier one.
void ShadowState::follow(Warp& warp, const Touch& earlier, const Touch& now) {
  GroupQueue& before = of(labelled(earlier.warp)).tcgen05.at(earlier.lane);
  std::vector<GroupQueue::Precedent>& known = queue(warp, Async::Tcgen05, now.lane).precedents;
  const auto add = [&](GroupQueue* queue, uint32_t time) {
    for (GroupQueue::Precedent& one : known) {
      if (one.queue != queue) continue;
      one.time = std::max(one.time, time);
      return;
    }
    known.push_back({queue, time});
  };
  add(&before, earlier.time);
  for (const GroupQueue::Precedent& one : before.precedents) add(one.queue, one.time);
}

// Checks one pair of accesses to a cell; false after a finding, so that one operation makes one.
bool ShadowState::tmem_ordered(Warp& warp, const Touch& earlier, uint32_t earlier_shape, const Touch& now,
                               uint32_t shape, int column, uint32_t lane) {
  const Kernel& kernel = cta_.program.kernel;
  const WarpState& w = of(warp);
  // Execution order is enough for tensor memory where its fences stand around it: so do the ISA's own examples, with
  // relaxed barriers (9.7.16.6.4).
  const bool handed_over = w.now.tensor.covers(earlier.component, earlier.time);
  const bool complete = handed_over || w.now.seen.covers(earlier.component, earlier.time);
  const bool both = earlier.kind == Kind::Tcgen05 && now.kind == Kind::Tcgen05;
  if (both && earlier.component == now.component) {
    const bool same = earlier.time == now.time;
    return same || complete || in_pipeline(warp, earlier, earlier_shape, now, shape, column);
  }
  // "Asynchronous tcgen05 instructions which are ordered across threads also form a tcgen05 pipeline" (9.7.16.6.3).
  const uint32_t in_order = earlier.component + IN_ORDER;
  const bool passed_on = both && !complete && w.now.tensor.covers(in_order, earlier.time);
  if (passed_on) follow(warp, earlier, now);
  if (passed_on && w.after_fence.covers(in_order, earlier.time))
    return in_pipeline(warp, earlier, earlier_shape, now, shape, column);
  if (!complete && !passed_on) {
    const bool likely = w.now.likely.covers(earlier.component, earlier.time);
    if (!likely && earlier.kind == Kind::TmemLoad && w.now.likely.covers(earlier.component + DELIVERED, earlier.time))
      return delivered_only(warp, earlier, now, column, lane);
    report_tmem(warp, earlier, now, column, lane, likely ? Severity::Warning : Severity::Error);
    return false;
  }
  // Across threads, and after the tensor core, execution order alone does not order asynchronous operations
  // (9.7.16.6.3, 9.7.16.6.4.2 example 2).
  const bool crosses = earlier.warp != now.warp || earlier.kind == Kind::Tcgen05;
  if (!crosses || now.kind == Kind::Generic) return true;
  if (complete && w.after_fence.covers(earlier.component, earlier.time)) {
    if (earlier.warp != now.warp && !handed_over) note_missing_fence_before(warp, earlier, now);
    return true;
  }
  FindingRecord* f =
      cta_.findings.add(cta_, &warp, -1, "tcgen05.missing_fence", Severity::Warning, now.inst, earlier.inst);
  if (f) {
    f->say("the %s of warp %d follows the %s of line {@%d} through a barrier, but without "
           "tcgen05.fence::after_thread_sync between the wait and itself",
           op_name(kernel, now.inst), warp.id, op_name(kernel, earlier.inst), earlier.inst);
    f->mend("Put tcgen05.fence::after_thread_sync after the wait (or bar.sync), before the next tcgen05 instruction.");
    describe_pair(*f, now, "touches tensor memory", earlier, "touched it before the barrier");
  }
  return false;
}

// A tcgen05.ld whose values have been used has read its cells, though "to avoid anti-dependency hazards" tcgen05.wait::ld
// must be used (9.7.16.6.4.5). A note where the cells are written with what comes from its values, which cannot come
// sooner. CUTLASS's attention does both (sm100_fmha_fwd_mainloop_tma_warpspecialized.hpp).
bool ShadowState::delivered_only(Warp& warp, const Touch& earlier, const Touch& now, int column, uint32_t lane) {
  const bool own = earlier.warp == now.warp && now.kind == Kind::TmemStore;
  if (!own || !stores_loaded(warp, now.inst, earlier.time)) {
    report_tmem(warp, earlier, now, column, lane, Severity::Warning, true);
    return false;
  }
  if (first_note(earlier, now)) report_tmem(warp, earlier, now, column, lane, Severity::Note, true);
  return true;
}

// After a note the other cells are looked at, too; they say it once.
bool ShadowState::first_note(const Touch& earlier, const Touch& now) {
  if (noted_ == now && noted_earlier_ == earlier.inst) return false;
  noted_ = now;
  noted_earlier_ = earlier.inst;
  return true;
}

// A note: most published kernels leave this fence out, and ptxas 13.0 makes no instruction of it (nor of the other one).
// What it does is to keep the compiler from moving tcgen05 instructions across (9.7.16.11.1).
void ShadowState::note_missing_fence_before(Warp& warp, const Touch& earlier, const Touch& now) {
  const Kernel& kernel = cta_.program.kernel;
  FindingRecord* f =
      cta_.findings.add(cta_, &warp, -1, "tcgen05.missing_fence_before", Severity::Note, earlier.inst, now.inst);
  if (!f) return;
  f->say("the %s of line {@%d} is followed by a barrier, and then by the %s of warp %d, but without "
         "tcgen05.fence::before_thread_sync between itself and the arrival at the barrier",
         op_name(kernel, earlier.inst), earlier.inst, op_name(kernel, now.inst), warp.id);
  f->mend("Put tcgen05.fence::before_thread_sync before the arrival (or bar.sync), after tcgen05.wait.");
  describe_pair(*f, earlier, "touched tensor memory", now, "touches it after the barrier");
}

void ShadowState::report_tmem(Warp& warp, const Touch& earlier, const Touch& now, int column, uint32_t lane,
                              Severity severity, bool delivered) {
  const Kernel& kernel = cta_.program.kernel;
  const bool frees = kernel.inst[now.inst].op == OP_TCGEN05_DEALLOC;
  const char* code = frees ? "tmem.dealloc_in_use" : now.write ? "tmem.overwrite" : "tmem.read_early";
  FindingRecord* f = cta_.findings.add(cta_, &warp, static_cast<int>(now.lane), code, severity, now.inst, earlier.inst);
  if (!f) return;
  const char* does = frees ? "frees" : now.write ? "writes" : "reads";
  if (delivered)
    f->say("the %s of warp %d %s column %d (lanes from %u) of tensor memory, which the tcgen05.ld of line {@%d} reads: all "
           "its values have been used, but only tcgen05.wait::ld orders it before what touches the cells next",
           op_name(kernel, now.inst), warp.id, does, column, lane, earlier.inst);
  else
    f->say("the %s of warp %d %s column %d (lanes from %u) of tensor memory, which the %s of line {@%d} may still be %s: "
           "nothing orders them",
           op_name(kernel, now.inst), warp.id, does, column, lane, op_name(kernel, earlier.inst), earlier.inst,
           earlier.write ? "writing" : "reading");
  f->mend("%s", remedy(earlier.kind));
  describe_pair(*f, now, frees ? "frees the cells" : now.write ? "writes the cells" : "reads the cells", earlier,
                earlier.write ? "writes the cells" : "reads the cells");
}

void ShadowState::report_tcgen05_pipeline(Warp& warp, const Touch& earlier, const Touch& now, int column,
                                          Severity severity) {
  const Kernel& kernel = cta_.program.kernel;
  FindingRecord* f = cta_.findings.add(cta_, &warp, static_cast<int>(now.lane), "tcgen05.unordered", severity, now.inst,
                                       earlier.inst);
  if (!f) return;
  f->say("a %s that %s column %d of tensor memory after the %s of line {@%d}, which %s it: such a pair is not guaranteed "
         "to execute in the order of issue%s",
         op_name(kernel, now.inst), verb(now).c_str(), column, op_name(kernel, earlier.inst), earlier.inst,
         verb(earlier).c_str(), severity == Severity::Note ? ", though it does in practice" : "");
  f->mend("tcgen05.commit after the first and a wait on its mbarrier, then tcgen05.fence::after_thread_sync.");
  describe_pair(*f, now, verb(now) + " the column", earlier, verb(earlier) + " it before");
}

// In a deadlock: commits that went to the barrier at the same offset of other CTAs, and not to the awaited one. Certain
// for a pair, whose CTAs hear of the same operations; where a mask names CTAs, it may mean to leave this one out.
void ShadowState::report_commits_of_twins(Warp& warp, int inst, const Mbar& awaited) {
  const Kernel& kernel = cta_.program.kernel;
  for (const Cta* cta : cta_.cluster->ctas) {
    for (const Mbar& twin : cta->mbars) {
      if (cta == &cta_ || !twin.valid || twin.address != awaited.address || twin.phases <= awaited.phases) continue;
      if (twin.last_arrive_inst < 0) continue;
      const Inst& commit = kernel.inst[twin.last_arrive_inst];
      const bool pair = commit.flags & F_PAIR && cta->rank == (cta_.rank ^ 1);
      if (commit.op != OP_TCGEN05_COMMIT || (!pair && commit.b < 0)) continue;
      FindingRecord* f =
          cta_.findings.add(cta_, &warp, -1, "tcgen05.commit_unseen", pair ? Severity::Error : Severity::Warning,
                            twin.last_arrive_inst, inst);
      if (!f) continue;
      f->say("the tcgen05.commit arrived at the mbarrier at shared 0x%x of CTA %u, while warp %d of CTA %u waits for the "
             "one at the same offset in its own CTA, at which nothing has arrived",
             twin.address, cta->rank, warp.id, cta_.rank);
      f->mend("tcgen05.commit with .multicast::cluster and a mask that holds bit %u.", cta_.rank);
      f->party(0, "tcgen05.commit", "arrived in CTA %u", cta->rank);
      f->party(1, who(by_warp(warp.label, inst)).c_str(), "waits in its own CTA");
    }
  }
}

// In a deadlock: commits that completed phases of a barrier on which nobody has ever waited.
void ShadowState::report_unseen_commits(Warp& warp, int inst, const Mbar& awaited) {
  const Kernel& kernel = cta_.program.kernel;
  if (awaited.pending != awaited.expected) return;  // somebody does arrive there
  if (cta_.cluster) report_commits_of_twins(warp, inst, awaited);
  for (const Mbar& other : cta_.mbars) {
    if (!other.valid || !other.phases || other.last_arrive_inst < 0 || other.index == awaited.index) continue;
    if (kernel.inst[other.last_arrive_inst].op != OP_TCGEN05_COMMIT) continue;
    const auto& observers = of(other).observers;
    if (std::any_of(observers.begin(), observers.end(), [](const auto& o) { return o.phases != 0; })) continue;
    FindingRecord* f = cta_.findings.add(cta_, &warp, -1, "tcgen05.commit_unseen", Severity::Warning,
                                         other.last_arrive_inst, inst);
    if (!f) continue;
    f->say("the tcgen05.commit arrived at the %s, on which no warp has waited, while warp %d waits for the %s, at which "
           "nothing has arrived",
           barrier_name(other).c_str(), warp.id, barrier_name(awaited).c_str());
    f->mend("Commit to the barrier that is waited for: compare both addresses.");
    describe_pair(*f, by_tcgen05(warp.label, other.last_arrive_inst, 0), "arrived elsewhere", by_warp(warp.label, inst),
                  "waits for the other barrier");
  }
}

void ShadowState::tmem_wait(Warp& warp, int, bool stores) {
  settle();
  WarpState& w = of(warp);
  GroupQueue& q = stores ? w.tmem_stores : w.tmem_loads;
  if (!q.component) return;
  q.retired = q.issued;
  if (!stores) {
    w.registers.retire_loads();
    w.loads.clear();
    warp.watch &= static_cast<uint8_t>(~RegisterUse::LOADED);
  }
  w.now.raise(q.component, q.issued);
  w.after_fence.raise(q.component, q.issued);
  changed(w);
}

void ShadowState::tcgen05_fence(Warp& warp, int, bool after) {
  settle();
  WarpState& w = of(warp);
  if (after) {
    w.after_fence = w.now.seen;
    w.after_fence.join(w.now.tensor);
    return;
  }
  bool grew = w.now.tensor.join(w.now.likely);
  for (auto& [lane, q] : w.tcgen05) {
    grew |= w.now.tensor.raise(q.component + IN_ORDER, q.issued);
    q.passed_on = q.issued;
  }
  if (grew) changed(w);
}

// The arrival happens when the operations are over. It hands them over, and with them what their issuer knew.
int ShadowState::tcgen05_commit(Warp& warp, int, int lane) {
  settle();
  WarpState& w = of(warp);
  GroupQueue& q = queue(warp, Async::Tcgen05, lane);
  q.committed = q.issued;
  commits_.push_back(w.now);
  const auto complete = [&](GroupQueue& queue, uint32_t time) {
    queue.handed_over = std::max(queue.handed_over, time);
    commits_.back().raise(queue.component, time);
    commits_.back().tensor.raise(queue.component, time);  // "implicitly performed by tcgen05.commit" (9.7.16.6.4.2)
  };
  complete(q, q.issued);
  for (const GroupQueue::Precedent& before : q.precedents) complete(*before.queue, before.time);
  tick(w);
  return static_cast<int>(commits_.size()) - 1;
}

void ShadowState::tcgen05_arrive(int commit, Mbar& bar) {
  of(bar).pending.join(commits_[static_cast<size_t>(commit)]);
}

void ShadowState::tcgen05_operand(Warp& warp, int inst, const Operand& operand, const char* name) {
  check_layout(warp, inst, operand, name, by_tcgen05(warp.label, inst, 0));
}
