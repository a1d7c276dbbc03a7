// Completion of asynchronous operations: mbarrier phases, groups, wgmma collectives; and what is still pending at exit.
#include "shadow_state.hpp"

std::string ShadowState::barrier_name(const Mbar& bar) const {
  char text[96];
  snprintf(text, sizeof text, "mbarrier at shared 0x%x (initialised at line {@%d})", bar.address, bar.init_inst);
  return text;
}

// ---- mbarriers

void ShadowState::mbar_init(Warp& warp, int inst, Mbar& bar) {
  settle();
  WarpState& w = of(warp);
  BarrierState& b = of(bar);
  const uint32_t component = b.component;
  // Phases count from 0 again; the component must not.
  const uint32_t offset = b.live ? std::max(b.offset, b.reached) : b.reached;
  b = BarrierState{};
  b.component = component;
  b.offset = b.reached = offset;
  b.live = true;
  b.observers.resize(warps_.size());
  b.init = {w.time, inst, static_cast<uint16_t>(w.component), static_cast<uint16_t>(warp.id), Kind::Mbarrier, 1, 0};
  touch(warp, b.init, bar.address, 8);
}

void ShadowState::mbar_inval(Warp& warp, int inst, Mbar& bar) {
  settle();
  BarrierState& b = of(bar);
  b.live = false;
  const WarpState& w = of(warp);
  // The bytes are ordinary memory again; whoever writes them next must come after this.
  const Touch inval{w.time, inst, static_cast<uint16_t>(w.component), static_cast<uint16_t>(warp.id), Kind::Generic, 1, 0};
  const uint32_t history = histories_.written(inval);
  histories_.apply(bar.address, 8, [&](uint32_t, uint32_t) { return history; });
}

void ShadowState::mbar_use(Warp& warp, int inst, Mbar& bar) {
  settle();
  const BarrierState& b = of(bar);
  if (!b.live) return;
  const Knowledge& know = of(warp).now;
  const uint16_t op = cta_.program.kernel.inst[inst].op;
  const bool copies = op == OP_TMA_LOAD || op == OP_BULK_LOAD;
  if (!know.seen.covers(b.init.component, b.init.time)) {
    const bool likely = know.likely.covers(b.init.component, b.init.time);
    if (FindingRecord* f = cta_.findings.add(cta_, &warp, -1, "mbarrier.init_not_visible",
                                             likely ? Severity::Warning : Severity::Error, inst, b.init.inst)) {
      f->say("warp %d uses the %s, but nothing makes it wait until warp %d has initialised it", warp.id, barrier_name(bar).c_str(),
             b.init.warp);
      f->mend("Initialise in one thread, then fence.mbarrier_init and __syncthreads() (bar.sync) before any other warp uses it.");
      describe_pair(*f, {0, inst, 0, static_cast<uint16_t>(warp.id), Kind::Generic, 0, 0}, "used it", b.init, "initialised it");
    }
    return;
  }
  if (copies && !b.told_async) {
    if (FindingRecord* f = cta_.findings.add(cta_, &warp, -1, "mbarrier.init_not_visible", Severity::Note, inst, b.init.inst)) {
      f->say("the copy signals the %s, which no fence.mbarrier_init or fence.proxy.async made visible to the async proxy",
             barrier_name(bar).c_str());
      f->mend("After mbarrier.init: fence.mbarrier_init.release.cluster (or fence.proxy.async), then __syncthreads().");
      describe_pair(*f, {0, inst, 0, static_cast<uint16_t>(warp.id), Kind::TmaLoad, 1, 0}, "signals it", b.init, "initialised it");
    }
  }
}

void ShadowState::mbar_expect(Warp& warp, int inst, Mbar& bar, int64_t bytes) {
  BarrierState& b = of(bar);
  b.expected += bytes;
  b.expect_inst = inst;
  b.expect_warp = static_cast<uint16_t>(warp.id);
}

void ShadowState::mbar_arrive(Warp& warp, int inst, Mbar& bar) {
  settle();
  WarpState& w = of(warp);
  Knowledge& pending = of(bar).pending;
  if (mods_order(cta_.program.kernel.inst[inst].mods) == O_RELAXED) {
    pending.likely.join(w.now.likely);
    if (w.fenced) pending.join(w.at_fence);
  } else {
    pending.join(w.now);
  }
  tick(w);
}

void ShadowState::mbar_phase(Mbar& bar) {
  BarrierState& b = of(bar);
  b.done.join(b.pending);
  b.pending.clear();
  ++b.reached;
  if (b.issued > b.expected && b.load_inst >= 0) {
    const int64_t missing = b.issued - b.expected;
    const Warp& warp = cta_.warps[b.load_warp];
    if (FindingRecord* f = cta_.findings.add(cta_, &warp, -1, "mbarrier.tx_overflow", Severity::Error,
                                             b.expect_inst >= 0 ? b.expect_inst : b.load_inst, b.load_inst)) {
      f->say("a phase of the %s completes while copies of %lld bytes that signal it are still under way: %lld bytes were expected, copies "
             "of %lld bytes were issued", barrier_name(bar).c_str(), static_cast<long long>(missing), static_cast<long long>(b.expected),
             static_cast<long long>(b.issued));
      f->mend("expect_tx must announce the bytes of every copy of the phase: %lld here.", static_cast<long long>(b.issued));
      if (b.expect_inst >= 0) {
        describe_pair(*f, {0, b.expect_inst, 0, b.expect_warp, Kind::Generic, 0, 0}, "announced too few bytes",
                      {0, b.load_inst, 0, b.load_warp, Kind::TmaLoad, 1, 0}, "is not covered");
      }
    }
  }
  b.expected = b.issued = 0;
}

// A waiter by parity cannot tell a phase from the next but one. Where a phase can complete before a warp has seen the one before,
// that warp may find the parity it waits for gone, and wait for ever.
void ShadowState::mbar_observe(Warp& warp, int inst, Mbar& bar, uint64_t phases) {
  settle();
  if (phases == 0) return;
  WarpState& w = of(warp);
  BarrierState& b = of(bar);
  BarrierState::Observer& last = b.observers[static_cast<size_t>(warp.id)];
  if (last.phases != 0 && phases == last.phases + 1 && !b.done.likely.covers(w.component, last.time)) {
    if (FindingRecord* f = cta_.findings.add(cta_, &warp, -1, "mbarrier.phase_skipped", Severity::Warning, inst, bar.last_arrive_inst)) {
      f->say("warp %d waits for every phase of the %s, but nothing keeps the next phase from completing before the warp has seen this one; "
             "then its parity comes round again and the wait never ends", warp.id, barrier_name(bar).c_str());
      f->mend("Let the warp arrive on a barrier that the next phase depends on after it has waited (an `empty` barrier, or bar.sync).");
      describe_pair(*f, {0, inst, 0, static_cast<uint16_t>(warp.id), Kind::Generic, 0, 0}, "waits by parity",
                    Touch{}, "");
    }
  }
  last = {phases, w.time, inst};
  const auto reached = static_cast<uint32_t>(b.offset + phases);
  if (mods_order(cta_.program.kernel.inst[inst].mods) == O_RELAXED) {
    w.now.likely.raise(b.component, reached);
    w.now.likely.join(b.done.likely);
    w.to_acquire.raise(b.component, reached);
    w.to_acquire.join(b.done);
    w.has_to_acquire = true;
  } else {
    w.now.raise(b.component, reached);
    w.now.join(b.done);
  }
  changed(w);
}

void ShadowState::cp_async_arrive(Warp& warp, int, Mbar& bar) {
  settle();
  WarpState& w = of(warp);
  BarrierState& b = of(bar);
  b.pending.join(w.now);
  b.pending.raise(w.cp_async.component, w.cp_async.issued);
  tick(w);
}

// ---- groups

void ShadowState::group_commit(Warp& warp, int, Async kind, int lane) { queue(warp, kind, lane).commit(); }

void ShadowState::group_wait(Warp& warp, int inst, Async kind, int lane, int64_t pending, bool) {
  settle();
  WarpState& w = of(warp);
  GroupQueue& q = queue(warp, kind, lane);
  if (pending == 0 && q.uncommitted() && kind != Async::CpAsync) {
    const char* code = kind == Async::Wgmma ? "wgmma.not_committed" : "bulk.not_committed";
    const char* what = kind == Async::Wgmma ? "wgmma" : "bulk store";
    const char* commit = kind == Async::Wgmma ? "wgmma.commit_group" : "cp.async.bulk.commit_group";
    if (FindingRecord* f = cta_.findings.add(cta_, &warp, -1, code, Severity::Error, inst, q.last_inst)) {
      f->say("warp %d waits for all groups, but the %s of line {@%d} is in none: it was never committed, so the wait does not cover it", warp.id,
             what, q.last_inst);
      f->mend("Add %s between the %s and this wait.", commit, what);
      describe_pair(*f, {0, inst, 0, static_cast<uint16_t>(warp.id), Kind::Generic, 0, 0}, "waits for committed groups only",
                    {0, q.last_inst, 0, static_cast<uint16_t>(kind == Async::Wgmma ? warp.id & ~3 : warp.id),
                     kind == Async::Wgmma ? Kind::Wgmma : Kind::TmaStore, 0, static_cast<uint16_t>(lane)}, "was not committed");
    }
  }
  const uint32_t over = q.wait(pending);
  w.now.raise(q.component, over);
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

  if (wgmma.a >= 0) check_layout(warp, inst, warp.reg<uint64_t>(wgmma.a)[0], 64, wgmma.flags & F_TRANS_A, "A");
  check_layout(warp, inst, warp.reg<uint64_t>(wgmma.b)[0], static_cast<uint32_t>(wgmma.imm), wgmma.flags & F_TRANS_B, "B");

  const uint32_t shape = static_cast<uint32_t>(wgmma.imm) << 8 | wgmma.type;
  int unordered = WarpRegisters::CLEAN, flying_error = -1;
  FlyingRegister early;
  const auto uses = [&](int32_t reg, FlyingRegister::Role role) {
    if (reg < 0) return;
    const int touched = regs.touched(reg);
    if (touched != WarpRegisters::CLEAN && unordered < 0) unordered = touched;
    if (const FlyingRegister* flying = regs.find(reg)) {
      const bool moved_only = flying->role == FlyingRegister::Role::Copy && flying->reader < 0;
      const bool both_read = role == FlyingRegister::Role::Fragment && flying->role == FlyingRegister::Role::Fragment;
      const bool follows = role == FlyingRegister::Role::Accumulator && flying->shape == shape &&
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
  if (unordered == WarpRegisters::CLEAN) return;
  // Compilers move what computes in registers past the fence, since its asm does not name them; ptxas knows.
  const bool moved = unordered >= 0 && map_->use(unordered).pure;
  if (FindingRecord* f = cta_.findings.add(cta_, &warp, -1, "wgmma.missing_fence", moved ? Severity::Note : Severity::Warning, inst, unordered)) {
    if (unordered == WarpRegisters::UNFENCED) {
      f->say("the first wgmma of warp %d has no wgmma.fence before it", warp.id);
      describe_pair(*f, {0, inst, 0, static_cast<uint16_t>(warp.id & ~3), Kind::Wgmma, 0, 0}, "starts without a fence", Touch{}, "");
    } else {
      f->say("wgmma uses registers that the instruction of line {@%d} accessed, with no wgmma.fence in between", unordered);
      describe_pair(*f, {0, inst, 0, static_cast<uint16_t>(warp.id & ~3), Kind::Wgmma, 0, 0}, "uses the registers",
                    {0, unordered, 0, static_cast<uint16_t>(warp.id), Kind::Generic, 0, 0}, "accessed them");
    }
    f->mend("Put wgmma.fence.sync.aligned between the last access to the accumulator or A registers and the wgmma.");
  }
}

void ShadowState::report_register(Warp& warp, int inst, const FlyingRegister& reg, bool writes) {
  FindingRecord* f = cta_.findings.add(cta_, &warp, -1, "wgmma.register_in_flight", Severity::Error, inst, reg.writer);
  if (!f) return;
  const bool committed = reg.time <= of(warp).wgmma.committed;
  const bool fragment = reg.role == FlyingRegister::Role::Fragment;
  f->say("%s register of the wgmma of line {@%d} is %s before %s", fragment ? "an A" : "an accumulator", reg.writer,
         writes ? "overwritten" : "read", committed ? "its group was waited for" : "the wgmma was committed and waited for");
  f->mend("%s", committed ? "Wait first: wgmma.wait_group with a count small enough to cover that group (0 waits for all)."
                          : "wgmma.commit_group after the wgmma, then wgmma.wait_group before the registers are touched.");
  describe_pair(*f, {0, inst, 0, static_cast<uint16_t>(warp.id), Kind::Generic, writes, 0}, writes ? "wrote the register" : "read the register",
                {0, reg.writer, 0, static_cast<uint16_t>(warp.id & ~3), Kind::Wgmma, 0, 0}, fragment ? "reads it" : "writes it");
}

// The value was computed from an accumulator before the wait, but used only after it.
void ShadowState::report_early_copy(Warp& warp, const FlyingRegister& reg) {
  if (reg.role != FlyingRegister::Role::Copy || reg.reader < 0) return;
  FindingRecord* f = cta_.findings.add(cta_, &warp, -1, "wgmma.register_in_flight", Severity::Note, reg.reader, reg.writer);
  if (!f) return;
  f->say("the compiler computes with an accumulator of the wgmma of line {@%d} before the wait, and uses the result after it", reg.writer);
  f->mend("Name the accumulators in the wait (\"+f\" operands of its asm) so that nothing that reads them can move above it.");
}

// ---- exit

void ShadowState::exit(Warp& warp, int inst) {
  settle();
  WarpState& w = of(warp);
  const auto pending = [&](const GroupQueue& q, const char* code, Severity severity, const char* what, const char* wait, Kind kind) {
    if (!q.pending()) return;
    FindingRecord* f = cta_.findings.add(cta_, &warp, -1, code, severity, q.last_inst, inst);
    if (!f) return;
    f->say("warp %d exits while the %s of line {@%d} %s", warp.id, what, q.last_inst,
           q.uncommitted() ? "was neither committed nor waited for" : "was not waited for");
    f->mend("%s", wait);
    describe_pair(*f, {0, q.last_inst, 0, static_cast<uint16_t>(kind == Kind::Wgmma ? warp.id & ~3 : warp.id), kind, 0, 0}, "is still pending",
                  {0, inst, 0, static_cast<uint16_t>(warp.id), Kind::Generic, 0, 0}, "exits");
  };
  pending(w.wgmma, w.wgmma.uncommitted() ? "wgmma.not_committed" : "wgmma.pending_at_exit", Severity::Warning, "wgmma",
          "wgmma.commit_group and wgmma.wait_group 0 before the results are used.", Kind::Wgmma);
  pending(w.cp_async, "cp_async.pending_at_exit", Severity::Note, "cp.async", "cp.async.wait_all before the end, or drop the copy.",
          Kind::CpAsync);
  for (const auto& [lane, q] : w.bulk) {
    pending(q, "bulk.pending_at_exit", Severity::Warning, "bulk store",
            "cp.async.bulk.commit_group and cp.async.bulk.wait_group.read 0 in the issuing thread: shared memory goes to another CTA after "
            "the exit.", Kind::TmaStore);
  }
}

void ShadowState::report_bytes(const Mbar& bar, const BarrierState& b, const char* when) {
  const int64_t left = b.expected - b.issued;
  const int inst = b.expect_inst >= 0 ? b.expect_inst : b.load_inst;
  FindingRecord* f = cta_.findings.add(cta_, nullptr, -1, "mbarrier.tx_left", Severity::Error, inst, b.load_inst);
  if (!f) return;
  f->say("%s the tx-count of the %s is %lld: in this phase expect_tx announced %lld bytes, and copies of %lld bytes signal it", when,
         barrier_name(bar).c_str(), static_cast<long long>(left), static_cast<long long>(b.expected), static_cast<long long>(b.issued));
  f->mend("The bytes of expect_tx must equal the bytes of the copies that signal the same barrier in the same phase.");
  const Touch expects{0, b.expect_inst, 0, b.expect_warp, Kind::Generic, 0, 0};
  const Touch copy{0, b.load_inst, 0, b.load_warp, b.load_inst >= 0 ? Kind::TmaLoad : Kind::None, 1, 0};
  if (b.expect_inst >= 0) describe_pair(*f, expects, "announced the bytes", copy, "signals it");
  else describe_pair(*f, copy, "signals it", Touch{}, "");
}

void ShadowState::finish() {
  settle();
  const Kernel& kernel = cta_.program.kernel;
  for (int64_t i = 0; i < kernel.ninst; ++i) {
    if (kernel.inst[i].op == OP_MBAR_COMPLETE_TX) return;  // bytes that no copy brings
  }
  for (const Mbar& bar : cta_.mbars) {
    const BarrierState& b = of(bar);
    if (b.live && b.expected != b.issued) report_bytes(bar, b, "At the end of the kernel");
  }
}

// Why a waiter of a deadlock may wait for ever. By parity it cannot tell a phase that it missed; and bytes that went to another
// barrier, or were not announced, are the cause where every arrival has come.
void ShadowState::stuck(Warp& warp, int inst, const Mbar& bar, uint32_t parity) {
  settle();
  const uint64_t seen = of(bar).observers[static_cast<size_t>(warp.id)].phases;
  if (bar.phases >= seen + 2 && (bar.phases & 1) == parity && (seen & 1) == parity) {
    if (FindingRecord* f = cta_.findings.add(cta_, &warp, -1, "mbarrier.phase_skipped", Severity::Error, inst, bar.last_arrive_inst)) {
      f->say("warp %d waits for phase %llu of the %s, but phase %llu is complete too: by parity the next one looks like the one that was "
             "missed, so the wait never ends", warp.id, static_cast<unsigned long long>(seen), barrier_name(bar).c_str(),
             static_cast<unsigned long long>(bar.phases - 1));
      f->mend("Let the warp arrive on a barrier that the next phase depends on after it has waited (an `empty` barrier, or bar.sync), and "
              "check the parity that it asks for.");
      describe_pair(*f, {0, inst, 0, static_cast<uint16_t>(warp.id), Kind::Generic, 0, 0}, "waits by parity", Touch{}, "");
    }
  }
  for (const Mbar& other : cta_.mbars) {
    const BarrierState& b = of(other);
    if (b.live && b.expected != b.issued) report_bytes(other, b, "In the deadlock");
  }
}
