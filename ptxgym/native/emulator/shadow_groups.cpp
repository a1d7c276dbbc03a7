// Operations that complete by groups: bulk stores, cp.async, wgmma; and what is still pending at exit.
#include "shadow_state.hpp"

void ShadowState::group_commit(Warp& warp, int, Async kind, int lane) { queue(warp, kind, lane).commit(); }

// A wait is for committed groups only: what was issued last was in none.
void ShadowState::report_not_committed(const Warp& warp, Async kind, int lane, const GroupQueue& q, Severity severity) {
  const char* code = kind == Async::Wgmma ? "wgmma.not_committed" : "bulk.not_committed";
  const char* what = kind == Async::Wgmma ? "wgmma" : "bulk store";
  const char* commit = kind == Async::Wgmma ? "wgmma.commit_group" : "cp.async.bulk.commit_group";
  FindingRecord* f = cta_.findings.add(cta_, &warp, -1, code, severity, q.waited_inst, q.passed_inst);
  if (!f) return;
  f->say("warp %d waits for all groups, but the %s of line {@%d} is in none%s, so the wait does not cover it", warp.id,
         what, q.passed_inst, severity == Severity::Error ? ": it was never committed" : " yet");
  f->mend("Add %s between the %s and this wait, if the wait is meant for it.", commit, what);
  describe_pair(*f, by_warp(warp.label, q.waited_inst), "waits for committed groups only",
                kind == Async::Wgmma ? by_wgmma(warp.label, q.passed_inst) : by_store(warp.label, q.passed_inst, lane),
                "was not committed");
}

void ShadowState::group_wait(Warp& warp, int inst, Async kind, int lane, int64_t pending, bool read_only) {
  settle();
  WarpState& w = of(warp);
  GroupQueue& q = queue(warp, kind, lane);
  if (pending == 0 && q.uncommitted() && kind != Async::CpAsync) {
    q.passed_over = q.issued;
    q.waited_inst = inst;
    q.passed_inst = q.last_inst;
    report_not_committed(warp, kind, lane, q, Severity::Note);  // it may be another wait's turn
  }
  const uint32_t over = q.wait(pending);
  w.now.raise(q.component, over);
  if (q.writes && !read_only) w.now.raise(q.writes, q.wait_for_writes(pending));
  if (kind == Async::Wgmma) {
    // A collective starts when all four warps have issued it and completes for all at once.
    w.now.likely.join(collectives_[static_cast<size_t>(warp.id / 4)].likely);
    w.registers.retire(over, [&](const FlyingRegister& reg) { report_early_copy(warp, reg); });
  }
  changed(w);
}

// ---- wgmma

void ShadowState::issue_wgmma(Warp& warp, int inst) {
  const Kernel& kernel = cta_.program.kernel;
  const Inst& wgmma = kernel.inst[inst];
  WarpState& w = of(warp);
  WarpRegisters& regs = w.registers;
  current_ = &w.wgmma;
  current_lane_ = 0;
  const uint32_t time = ++w.wgmma.issued;
  w.wgmma.last_inst = inst;
  collectives_[static_cast<size_t>(warp.id / 4)].likely.join(w.now.likely);

  const auto check_operand = [&](int32_t reg, uint32_t extent, bool mn_major, const char* name) {
    check_layout(warp, inst, {decode_descriptor(warp.reg<uint64_t>(reg)[0]), extent, mn_major}, name,
                 by_wgmma(warp.label, inst));
  };
  if (wgmma.a >= 0) check_operand(wgmma.a, 64, wgmma.flags & F_TRANS_A, "A");
  check_operand(wgmma.b, static_cast<uint32_t>(wgmma.imm), wgmma.flags & F_TRANS_B, "B");

  const uint32_t shape = static_cast<uint32_t>(wgmma.imm) << 8 | wgmma.type;
  const bool accumulates = warp.pred(wgmma.c) != 0;
  bool unwritten = false;
  int unordered = WarpRegisters::CLEAN, flying_error = -1;
  FlyingRegister early;
  const auto uses = [&](int32_t reg, FlyingRegister::Role role) {
    if (reg < 0) return;
    const bool accumulator = role == FlyingRegister::Role::Accumulator;
    unwritten |= (accumulates || !accumulator) && !regs.written(reg);
    if (accumulator) regs.set_written(reg);
    const int touched = regs.touched(reg);
    if (touched != WarpRegisters::CLEAN && unordered < 0) unordered = touched;
    if (const FlyingRegister* flying = regs.find(reg)) {
      const bool moved_only = flying->role == FlyingRegister::Role::Copy && flying->reader < 0;
      const bool both_read = role == FlyingRegister::Role::Fragment && flying->role == FlyingRegister::Role::Fragment;
      const bool follows = accumulator && flying->shape == shape &&
                           (flying->role == FlyingRegister::Role::Accumulator || moved_only);
      if (!follows && !both_read && flying_error < 0) {
        flying_error = flying->writer;
        early = *flying;
      }
    }
    regs.add({reg, inst, -1, time, shape, role});
  };
  for (int i = 0; i < wgmma.nvec; ++i) uses(kernel.pool[wgmma.vec + i], FlyingRegister::Role::Accumulator);
  if (wgmma.a < 0) {
    for (int i = 0; i < wgmma.nvec2; ++i) uses(kernel.pool[wgmma.vec2 + i], FlyingRegister::Role::Fragment);
  }
  if (flying_error >= 0) report_register(warp, inst, early, false);
  if (unwritten) report_unwritten(warp, inst);
  if (unordered == WarpRegisters::CLEAN) return;
  // Compilers move what computes in registers past the fence, since its asm does not name them; ptxas knows.
  const bool moved = unordered >= 0 && map_->use(unordered).pure;
  if (FindingRecord* f = cta_.findings.add(cta_, &warp, -1, "wgmma.missing_fence",
                                           moved ? Severity::Note : Severity::Warning, inst, unordered)) {
    if (unordered == WarpRegisters::UNFENCED) {
      f->say("the first wgmma of warp %d has no wgmma.fence before it", warp.id);
      describe_pair(*f, by_wgmma(warp.label, inst), "starts without a fence", nobody(), "");
    } else {
      f->say("wgmma uses registers that the instruction of line {@%d} accessed, with no wgmma.fence in between",
             unordered);
      describe_pair(*f, by_wgmma(warp.label, inst), "uses the registers", by_warp(warp.label, unordered), "accessed them");
    }
    f->mend("Put wgmma.fence.sync.aligned between the last access to the accumulator or A registers and the wgmma.");
  }
}

void ShadowState::report_unwritten(Warp& warp, int inst) {
  FindingRecord* f = cta_.findings.add(cta_, &warp, -1, "wgmma.uninitialised", Severity::Warning, inst);
  if (!f) return;
  f->say("wgmma reads registers that nothing has written: their values are arbitrary on a GPU, and NaN here");
  f->mend("Set scale-d to 0 for the first wgmma of a tile, or clear the accumulators (and load the A registers) before.");
  describe_pair(*f, by_wgmma(warp.label, inst), "reads accumulator or A registers", nobody(), "");
}

void ShadowState::report_register(Warp& warp, int inst, const FlyingRegister& reg, bool writes) {
  FindingRecord* f = cta_.findings.add(cta_, &warp, -1, "wgmma.register_in_flight", Severity::Error, inst, reg.writer);
  if (!f) return;
  const bool committed = reg.time <= of(warp).wgmma.committed;
  const bool fragment = reg.role == FlyingRegister::Role::Fragment;
  f->say("%s register of the wgmma of line {@%d} is %s before %s", fragment ? "an A" : "an accumulator", reg.writer,
         writes ? "overwritten" : "read",
         committed ? "its group was waited for" : "the wgmma was committed and waited for");
  f->mend("%s", committed
                    ? "Wait first: wgmma.wait_group with a count small enough to cover that group (0 waits for all)."
                    : "wgmma.commit_group after the wgmma, then wgmma.wait_group before the registers are touched.");
  describe_pair(*f, by_warp(warp.label, inst), writes ? "wrote the register" : "read the register",
                by_wgmma(warp.label, reg.writer), fragment ? "reads it" : "writes it");
}

// The value was computed from an accumulator before the wait, but used only after it.
void ShadowState::report_early_copy(Warp& warp, const FlyingRegister& reg) {
  if (reg.role != FlyingRegister::Role::Copy || reg.reader < 0) return;
  FindingRecord* f =
      cta_.findings.add(cta_, &warp, -1, "wgmma.register_in_flight", Severity::Note, reg.reader, reg.writer);
  if (!f) return;
  f->say(
      "the compiler computes with an accumulator of the wgmma of line {@%d} before the wait, and uses the result after "
      "it",
      reg.writer);
  f->mend(
      "Name the accumulators in the wait (\"+f\" operands of its asm) so that nothing that reads them can move above "
      "it.");
}

// ---- exit

void ShadowState::report_pending(const Warp& warp, int exit, const GroupQueue& q, const char* code, Severity severity,
                                 const char* what, const char* wait, Kind kind) {
  if (!q.pending()) return;
  FindingRecord* f = cta_.findings.add(cta_, &warp, -1, code, severity, q.last_inst, exit);
  if (!f) return;
  f->say("warp %d exits while the %s of line {@%d} %s", warp.id, what, q.last_inst,
         q.uncommitted() ? "was neither committed nor waited for" : "was not waited for");
  f->mend("%s", wait);
  const Touch issuer{0, q.last_inst, 0, warp.label, kind, 0, 0};
  describe_pair(*f, issuer, "is still pending", by_warp(warp.label, exit), "exits");
}

void ShadowState::report_tcgen05_pending(const Warp& warp, int exit, const GroupQueue& q) {
  report_pending(warp, exit, q, "tcgen05.not_committed", Severity::Warning, "tcgen05 operation",
                 "tcgen05.commit to an mbarrier after the last tcgen05.mma, cp or shift, and a wait on it.",
                 Kind::Tcgen05);
}

void ShadowState::exit(Warp& warp, int inst) {
  settle();
  WarpState& w = of(warp);
  const auto never_committed = [&](const GroupQueue& q, Async kind, int lane) {
    if (q.passed_over <= q.committed) return false;
    report_not_committed(warp, kind, lane, q, Severity::Error);
    return true;
  };
  const auto pending = [&](const GroupQueue& q, const char* code, Severity severity, const char* what, const char* wait,
                           Kind kind) { report_pending(warp, inst, q, code, severity, what, wait, kind); };
  if (!never_committed(w.wgmma, Async::Wgmma, 0))
    pending(w.wgmma, w.wgmma.uncommitted() ? "wgmma.not_committed" : "wgmma.pending_at_exit", Severity::Warning, "wgmma",
            "wgmma.commit_group and wgmma.wait_group 0 before the results are used.", Kind::Wgmma);
  pending(w.cp_async, "cp_async.pending_at_exit", Severity::Note, "cp.async",
          "cp.async.wait_all before the end, or drop the copy.", Kind::CpAsync);
  for (const auto& [lane, q] : w.tcgen05) {
    if (q.passed_on == q.issued)
      passed_on_.push_back({&warp, inst, &q});
    else
      report_tcgen05_pending(warp, inst, q);
  }
  // No error: the ISA says nothing of shared memory after an exit, and published kernels end so (fast.cu's matmul 10 to
  // 12 commit their last stores and return).
  for (const auto& [lane, q] : w.bulk) {
    if (never_committed(q, Async::BulkStore, lane)) continue;
    pending(q, "bulk.pending_at_exit", Severity::Warning, "bulk store",
            "cp.async.bulk.commit_group and cp.async.bulk.wait_group.read 0 in the issuing thread: shared memory goes "
            "to another CTA after "
            "the exit.",
            Kind::TmaStore);
  }
  // The cluster barrier does not wait for exited threads (PTX ISA 9.7.13.4), so it completes after the exit: what this
  // warp had seen is over by then, though nothing releases it. ThunderKittens' educational level 9 frees tensor memory so.
  shared_->arriving.likely.join(w.now.likely);
}
