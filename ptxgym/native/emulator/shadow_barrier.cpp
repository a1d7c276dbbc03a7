// mbarriers: who may use them, what their phases order, and the bytes that they count.
#include "shadow_state.hpp"

std::string ShadowState::barrier_name(const Mbar& bar) const {
  char text[96];
  snprintf(text, sizeof text, "mbarrier at shared 0x%x (initialised at line {@%d})", bar.address, bar.init_inst);
  return text;
}

void ShadowState::mbar_init(Warp& warp, int inst, Mbar& bar) {
  settle();
  BarrierState& b = of(bar);
  b.live = true;
  b.init = own_touch(warp, inst, Kind::Mbarrier, true);
  touch(warp, b.init, bar.address, 8);
}

void ShadowState::mbar_inval(Warp& warp, int inst, Mbar& bar) {
  settle();
  BarrierState& b = of(bar);
  b.live = false;
  // The bytes are ordinary memory again; whoever writes them next must come after this.
  const uint32_t history = histories_.written(own_touch(warp, inst, Kind::Generic, true));
  histories_.apply(bar.address, 8, [&](uint32_t, uint32_t) { return history; });
}

void ShadowState::mbar_use(Warp& warp, int inst, Mbar& bar) {
  settle();
  const BarrierState& b = of(bar);
  if (!b.live) return;
  const Knowledge& know = of(warp).now;
  const uint16_t op = cta_.program.kernel.inst[inst].op;
  const bool copies = op == OP_TMA_LOAD || op == OP_BULK_LOAD;
  const bool likely = know.likely.covers(b.init.component, b.init.time);
  if (!know.seen.covers(b.init.component, b.init.time) && !(likely && b.released)) {
    if (FindingRecord* f = cta_.findings.add(cta_, &warp, -1, "mbarrier.init_not_visible",
                                             likely ? Severity::Warning : Severity::Error, inst, b.init.inst)) {
      const Touch initialiser = by_warp(b.init.warp, b.init.inst);
      f->say("%s uses the %s, but nothing makes it wait until %s has initialised it",
             who(by_warp(warp.label, inst)).c_str(), barrier_name(bar).c_str(), who(initialiser).c_str());
      f->mend(
          "Initialise in one thread, then fence.mbarrier_init and __syncthreads() (bar.sync) before any other warp "
          "uses it.");
      describe_pair(*f, by_warp(warp.label, inst), "used it", b.init, "initialised it");
    }
    return;
  }
  if (copies && !b.told_async) {
    if (FindingRecord* f =
            cta_.findings.add(cta_, &warp, -1, "mbarrier.init_not_visible", Severity::Note, inst, b.init.inst)) {
      f->say(
          "the copy signals the %s, which no fence.mbarrier_init or fence.proxy.async made visible to the async proxy",
          barrier_name(bar).c_str());
      f->mend("After mbarrier.init: fence.mbarrier_init.release.cluster (or fence.proxy.async), then __syncthreads().");
      describe_pair(*f, by_load(warp.label, inst), "signals it", b.init, "initialised it");
    }
  }
}

void ShadowState::mbar_expect(Warp& warp, int inst, Mbar& bar, int64_t bytes) {
  BarrierState& b = of(bar);
  b.expected += bytes;
  b.expect_inst = inst;
  b.expect_warp = warp.label;
}

void ShadowState::mbar_arrive(Warp& warp, int inst, Mbar& bar) {
  settle();
  WarpState& w = of(warp);
  Knowledge& pending = of(bar).pending;
  if (mods_order(cta_.program.kernel.inst[inst].mods) == O_RELAXED) {
    pending.likely.join(w.now.likely);
    pending.tensor.join(w.now.tensor);
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
  if (b.issued > b.expected && b.load_inst >= 0) {
    const int64_t missing = b.issued - b.expected;
    const Warp& warp = labelled(b.load_warp);
    if (FindingRecord* f = cta_.findings.add(cta_, &warp, -1, "mbarrier.tx_overflow", Severity::Error,
                                             b.expect_inst >= 0 ? b.expect_inst : b.load_inst, b.load_inst)) {
      f->say(
          "a phase of the %s completes while copies of %lld bytes that signal it are still under way: %lld bytes were "
          "expected, copies "
          "of %lld bytes were issued",
          barrier_name(bar).c_str(), static_cast<long long>(missing), static_cast<long long>(b.expected),
          static_cast<long long>(b.issued));
      f->mend("expect_tx must announce the bytes of every copy of the phase: %lld here.",
              static_cast<long long>(b.issued));
      if (b.expect_inst >= 0) {
        describe_pair(*f, by_warp(b.expect_warp, b.expect_inst), "announced too few bytes",
                      by_load(b.load_warp, b.load_inst), "is not covered");
      }
    }
  }
  b.expected = b.issued = 0;
}

// A waiter by parity cannot tell a phase from the next but one. Where a phase can complete before a warp has seen the
// one before, that warp may find the parity it waits for gone, and wait for ever.
void ShadowState::mbar_observe(Warp& warp, int inst, Mbar& bar, uint64_t phases) {
  settle();
  if (phases == 0) return;
  WarpState& w = of(warp);
  BarrierState& b = of(bar);
  BarrierState::Observer& last = b.observers[static_cast<size_t>(warp.id)];
  if (last.phases != 0 && phases == last.phases + 1 && !b.done.likely.covers(w.component, last.time)) {
    if (FindingRecord* f = cta_.findings.add(cta_, &warp, -1, "mbarrier.phase_skipped", Severity::Warning, inst,
                                             bar.last_arrive_inst)) {
      f->say(
          "warp %d waits for every phase of the %s, but nothing keeps the next phase from completing before the warp "
          "has seen this one; "
          "then its parity comes round again and the wait never ends",
          warp.id, barrier_name(bar).c_str());
      f->mend(
          "Let the warp arrive on a barrier that the next phase depends on after it has waited (an `empty` barrier, or "
          "bar.sync).");
      describe_pair(*f, by_warp(warp.label, inst), "waits by parity", nobody(), "");
    }
  }
  last = {phases, w.time, inst};
  const auto reached = static_cast<uint32_t>(phases);
  if (mods_order(cta_.program.kernel.inst[inst].mods) == O_RELAXED) {
    w.now.likely.raise(b.component, reached);
    w.now.likely.join(b.done.likely);
    w.now.tensor.join(b.done.tensor);
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
  w.cp_async.handed_over = w.cp_async.issued;
  tick(w);
}

void ShadowState::report_bytes(const Mbar& bar, const BarrierState& b, const char* when) {
  const int64_t left = b.expected - b.issued;
  const int inst = b.expect_inst >= 0 ? b.expect_inst : b.load_inst;
  FindingRecord* f = cta_.findings.add(cta_, nullptr, -1, "mbarrier.tx_left", Severity::Error, inst, b.load_inst);
  if (!f) return;
  f->say(
      "%s the tx-count of the %s is %lld: in this phase expect_tx announced %lld bytes, and copies of %lld bytes "
      "signal it",
      when, barrier_name(bar).c_str(), static_cast<long long>(left), static_cast<long long>(b.expected),
      static_cast<long long>(b.issued));
  f->mend("The bytes of expect_tx must equal the bytes of the copies that signal the same barrier in the same phase.");
  const Touch expects = by_warp(b.expect_warp, b.expect_inst);
  const Touch copy = b.load_inst >= 0 ? by_load(b.load_warp, b.load_inst) : nobody();
  if (b.expect_inst >= 0)
    describe_pair(*f, expects, "announced the bytes", copy, "signals it");
  else
    describe_pair(*f, copy, "signals it", nobody(), "");
}

void ShadowState::finish() {
  settle();
  report_split_barriers();
  for (const PassedOn& last : passed_on_) report_tcgen05_pending(*last.warp, last.exit, *last.queue);
  const Kernel& kernel = cta_.program.kernel;
  for (int64_t i = 0; i < kernel.ninst; ++i) {
    if (kernel.inst[i].op == OP_MBAR_COMPLETE_TX) return;  // bytes that no copy brings
  }
  for (const Mbar& bar : cta_.mbars) {
    const BarrierState& b = of(bar);
    if (bar.valid && b.live && b.expected != b.issued) report_bytes(bar, b, "At the end of the kernel");
  }
}

// Why a waiter of a deadlock may wait for ever. By parity it cannot tell a phase that it missed; and bytes that went to
// another barrier, or were not announced, are the cause where every arrival has come.
void ShadowState::stuck(Warp& warp, int inst, const Mbar& bar, uint32_t parity) {
  settle();
  const uint64_t seen = of(bar).observers[static_cast<size_t>(warp.id)].phases;
  if (bar.phases >= seen + 2 && (bar.phases & 1) == parity && (seen & 1) == parity) {
    if (FindingRecord* f =
            cta_.findings.add(cta_, &warp, -1, "mbarrier.phase_skipped", Severity::Error, inst, bar.last_arrive_inst)) {
      f->say(
          "warp %d waits for phase %llu of the %s, but phase %llu is complete too: by parity the next one looks like "
          "the one that was "
          "missed, so the wait never ends",
          warp.id, static_cast<unsigned long long>(seen), barrier_name(bar).c_str(),
          static_cast<unsigned long long>(bar.phases - 1));
      f->mend(
          "Let the warp arrive on a barrier that the next phase depends on after it has waited (an `empty` barrier, or "
          "bar.sync), and "
          "check the parity that it asks for.");
      describe_pair(*f, by_warp(warp.label, inst), "waits by parity", nobody(), "");
    }
  }
  for (const Mbar& other : cta_.mbars) {
    const BarrierState& b = of(other);
    if (other.valid && b.live && b.expected != b.issued) report_bytes(other, b, "In the deadlock");
  }
  report_unseen_commits(warp, inst, bar);
}
