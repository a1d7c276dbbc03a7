// Ordering of shared memory accesses: what each warp knows, and the check of every access against the history of its
// bytes.
#include "element.hpp"
#include "shadow_state.hpp"
#include <algorithm>

namespace {

constexpr size_t OPERATIONS = 1024;

// A kernel that touches neither shared memory nor barriers nor asynchronous copies.
struct NullShadow final : Shadow {
  void reset(Cta&) override {}
  void read(Warp&, int, uint32_t, uint32_t) override {}
  void write(Warp&, int, uint32_t, uint32_t) override {}
  void atomic(Warp&, int, uint32_t, uint32_t) override {}
  void proxy_fence(Warp&, int) override {}
  void bar_arrive(Warp&, int) override {}
  void bar_complete(int) override {}
  void bar_depart(Warp&, int) override {}
  void mbar_init(Warp&, int, Mbar&) override {}
  void mbar_use(Warp&, int, Mbar&) override {}
  void mbar_arrive(Warp&, int, Mbar&) override {}
  void mbar_phase(Mbar&) override {}
  void mbar_observe(Warp&, int, Mbar&, uint64_t) override {}
  void async_read(Warp&, int, Async, uint32_t, uint32_t, Mbar*) override {}
  void async_write(Warp&, int, Async, uint32_t, uint32_t, Mbar*) override {}
  void group_commit(Warp&, int, Async, int) override {}
  void group_wait(Warp&, int, Async, int, int64_t, bool) override {}
  void cp_async_arrive(Warp&, int, Mbar&) override {}
  void exit(Warp&, int) override {}
};

// Flags are scalars: a vector access is one access for each of its elements (PTX ISA 8.2.2).
uint32_t flag_bytes(const Inst& inst) { return element_bytes(inst.type); }

bool releases(uint8_t order) { return order == O_RELEASE || order == O_ACQ_REL || order == O_SC; }
bool acquires(uint8_t order) { return order == O_ACQUIRE || order == O_ACQ_REL || order == O_SC; }

// Whether the scope of a strong access or a fence includes the other CTAs of the cluster.
bool reaches_cluster(const Inst& inst) {
  const uint8_t scope = mods_scope(inst.mods);
  return mods_order(inst.mods) == O_VOLATILE || scope == SC_NONE || scope >= SC_CLUSTER;
}

// mbarriers are left out: that they reach the cluster whatever their scope, the default .cta included, is what published
// kernels rely on (CUTLASS's ClusterBarrier::arrive), and the ISA's own example of a remote arrival says .cta.
bool scopes_matter(const Cta& cta) {
  const Kernel& kernel = cta.program.kernel;
  return cta.grid.cluster_size > 1 && std::any_of(kernel.inst, kernel.inst + kernel.ninst, [](const Inst& inst) {
           const bool flag = inst.op == OP_LD || inst.op == OP_ST || inst.op == OP_ATOM || inst.op == OP_RED;
           return (flag || inst.op == OP_FENCE) && mods_order(inst.mods) != O_WEAK && !reaches_cluster(inst);
         });
}

}  // namespace

std::unique_ptr<Shadow> make_shadow(Cta& cta) {
  const uint32_t needed = FEAT_SHARED | FEAT_ASYNC | FEAT_BARRIER | FEAT_TARGET | FEAT_COMMUNICATES;
  if (!(cta.program.kernel.features & needed) && cta.grid.cluster_size == 1) return std::make_unique<NullShadow>();
  return std::make_unique<ShadowState>(cta);
}

ShadowState::ShadowState(Cta& cta)
    : cta_(cta), map_(std::make_shared<const RegisterMap>(cta.program.kernel)), scoped_(scopes_matter(cta)) {}

void ShadowState::reset(Cta&) {
  const bool leads = !cta_.cluster || cta_.rank == 0;  // the first CTA of a cluster is reset first
  // Versions and operations go on counting from CTA to CTA, so that no old entry of the caches looks like a new one.
  const uint32_t versions = shared_ ? shared_->versions : 0;
  shared_ = leads ? std::make_shared<ClusterKnowledge>()
                  : static_cast<const ShadowState&>(*cta_.cluster->ctas.front()->shadow).shared_;
  shared_->versions = std::max(shared_->versions, versions);
  const size_t warps = cta_.warps.size(), warpgroups = (warps + 3) / 4;
  warps_.assign(warps, WarpState{});
  barriers_.clear();
  noted_ = Touch{};
  noted_earlier_ = -1;
  for (NamedBarrierState& bar : named_) {
    bar.arriving.clear();
    bar.arrived.assign(warps, 0);
    bar.inbox.assign(warps, nullptr);
  }
  collectives_.assign(warpgroups, Knowledge{});
  flags_.clear();
  histories_.reset(static_cast<uint32_t>(cta_.smem.size()));
  latest_ = Operation{};
  deferred_.clear();
  split_.clear();
  races_.clear();
  filled_late_.clear();
  current_ = nullptr;
  layouts_.clear();
  tmem_.clear();
  commits_.clear();
  passed_on_.clear();
  for (WarpState& w : warps_) w.component = shared_->components++;
  const uint32_t first_wgmma = shared_->components;
  shared_->components += static_cast<uint32_t>(warpgroups);
  for (size_t i = 0; i < warps; ++i) {
    WarpState& w = warps_[i];
    w.wgmma.component = first_wgmma + static_cast<uint32_t>(i / 4);
    w.cp_async.component = shared_->components++;
    w.now.raise(w.component, w.time);
    if (map_->flags()) w.registers.reset(static_cast<size_t>(cta_.program.kernel.reg_bytes / 128 + 2));
    changed(w);
  }
}

// What follows is not covered by what was handed over so far.
void ShadowState::tick(WarpState& w) {
  w.now.raise(w.component, ++w.time);
  changed(w);
}

BarrierState& ShadowState::of(const Mbar& bar) {
  if (bar.home != &cta_) return static_cast<ShadowState&>(*bar.home->shadow).of(bar);
  while (barriers_.size() <= bar.index) {
    barriers_.emplace_back();
    barriers_.back().component = shared_->components++;
    barriers_.back().observers.resize(warps_.size());
  }
  return barriers_[bar.index];
}

GroupQueue& ShadowState::queue(Warp& warp, Async kind, int lane) {
  WarpState& w = of(warp);
  if (kind == Async::Wgmma) return w.wgmma;
  if (kind == Async::CpAsync) return w.cp_async;
  const auto [found, fresh] = (kind == Async::Tcgen05 ? w.tcgen05 : w.bulk).try_emplace(lane);
  if (fresh) {
    found->second.component = shared_->components;
    shared_->components += kind == Async::Tcgen05 ? 1 + IN_ORDER : 1;
  }
  return found->second;
}

// ---- accesses

uint32_t ShadowState::number_of(const WarpState& w, const Touch& access) {
  if (latest_.version == w.version && latest_.access == access) return latest_.number;
  const uint32_t key = (w.version * 0x9e3779b1u) ^ (static_cast<uint32_t>(access.inst) * 0x85ebca6bu) ^ access.time;
  Operation& op = operations_[key >> 22];
  if (op.number == 0 || op.version != w.version || !(op.access == access))
    op = Operation{w.version, ++operation_numbers_, access};
  latest_ = op;
  return op.number;
}

void ShadowState::touch(Warp& warp, const Touch& access, uint32_t addr, uint32_t bytes) {
  if (operations_.empty()) {  // many kernels never come here
    operations_.resize(OPERATIONS);
    memo_.clear();
  }
  if (histories_.crowded()) {
    histories_.compact();
    memo_.clear();
  }
  const uint32_t operation = number_of(of(warp), access), end = addr + bytes;
  histories_.apply(addr, bytes, [&](uint32_t history, uint32_t at) {
    if (const uint32_t* known = memo_.find(history, operation)) return *known;
    const uint32_t next = next_history(warp, access, history, at, end - at);
    memo_.put(history, operation, next);
    return next;
  });
}

uint32_t ShadowState::next_history(Warp& warp, const Touch& access, uint32_t id, uint32_t addr, uint32_t bytes) {
  const Touch write = histories_.at(id).write;
  check(warp, write, access, addr, bytes);
  const bool conflicts_with_reads = access.write || access.kind == Kind::Atomic;
  if (conflicts_with_reads || histories_.at(id).atomics) {
    histories_.since(id, [&](const Touch& earlier) {
      if (access.write && fills_late(warp, write, earlier, access))
        report_filled_late(warp, earlier, access, addr, bytes);
      else
        check(warp, earlier, access, addr, bytes);
    });
  }
  if (access.write) return histories_.written(access);
  // An atomic gives bytes that nobody wrote a value; after a plain read of such bytes one complaint is enough.
  if (write.kind == Kind::None && !access.async_proxy()) return histories_.written(access);
  return histories_.extended(id, access);
}

void ShadowState::check(Warp& warp, const Touch& earlier, const Touch& now, uint32_t addr, uint32_t bytes) {
  const bool reads = !now.write;
  if (earlier.kind == Kind::None) {
    if (reads) report_uninitialised(cta_, warp, now, addr, bytes);
    return;
  }
  const Knowledge& know = of(warp).now;
  const bool ordered = know.seen.covers(earlier.component, earlier.time);
  if (earlier.kind == Kind::Mbarrier) {
    if (now.kind == Kind::Mbarrier ? !ordered : now.write != 0)
      report_barrier_overwritten(cta_, warp, earlier, now, addr, bytes);
    return;
  }
  if (!earlier.write && earlier.kind != Kind::Atomic && reads && now.kind != Kind::Atomic) return;
  if (earlier.strong() && now.strong()) return;
  if (earlier.reduces() && now.reduces()) return;  // in any order the same
  if (ordered) {
    const bool wrote = earlier.write || earlier.kind == Kind::Atomic;
    if (wrote && earlier.generic() && now.async_proxy() && !know.published.covers(earlier.component, earlier.time)) {
      report_unfenced(cta_, warp, earlier, now, addr, bytes);
    }
    return;
  }
  const bool likely = know.likely.covers(earlier.component, earlier.time);
  if (!likely && earlier.kind == Kind::Generic && now.kind == Kind::Generic && earlier.write && now.write) {
    same_value_or_race(warp, earlier, now, addr, bytes);
    return;
  }
  unordered(warp, earlier, now, addr, bytes, likely ? Severity::Warning : Severity::Error);
}

// Whether a store fills bytes that an asynchronous operation was to find filled: nothing had written them before, or the
// operation is a wgmma that this warp has yet to issue. Then a barrier is missing before the operation, not a wait
// after it.
bool ShadowState::fills_late(const Warp& warp, const Touch& before, const Touch& read, const Touch& now) {
  if (!now.generic() || read.write || !read.in_flight_kind()) return false;
  const WarpState& w = of(warp);
  if (w.now.seen.covers(read.component, read.time)) return false;
  const uint64_t pair = static_cast<uint64_t>(now.inst) << 32 | static_cast<uint32_t>(read.inst);
  const bool to_issue = read.kind == Kind::Wgmma && read.component == w.wgmma.component && read.time > w.wgmma.issued;
  if (before.kind == Kind::None || to_issue) filled_late_.insert(pair);
  return filled_late_.count(pair) != 0;
}

void ShadowState::report_filled_late(const Warp& warp, const Touch& read, const Touch& now, uint32_t addr,
                                     uint32_t bytes) {
  const bool likely = of(warp).now.likely.covers(read.component, read.time);
  report_unordered(cta_, labelled(read.warp), now, read, addr, bytes, likely ? Severity::Warning : Severity::Error);
}

void ShadowState::unordered(const Warp& warp, const Touch& earlier, const Touch& now, uint32_t addr, uint32_t bytes,
                            Severity severity) {
  if (severity == Severity::Error && !earlier.in_flight_kind() && !now.in_flight_kind())
    races_.insert(uint32_t{std::min(earlier.warp, now.warp)} << 16 | std::max(earlier.warp, now.warp));
  const bool out_of_scope = scoped_ && earlier.warp >> 8 != now.warp >> 8 &&
                            of(warp).now.likely.covers(earlier.component, earlier.time);
  report_unordered(cta_, warp, earlier, now, addr, bytes, severity, reads_two_stages(earlier, now, addr), out_of_scope);
}

// Whether a wgmma or tcgen05 operation that meets a copy also reads what the same tensor map brought in another phase:
// then its descriptor may reach into another stage. For reports only: it looks at every word of shared memory.
bool ShadowState::reads_two_stages(const Touch& earlier, const Touch& now, uint32_t addr) const {
  const auto multiplies = [](const Touch& t) { return !t.write && (t.kind == Kind::Wgmma || t.kind == Kind::Tcgen05); };
  if (!(multiplies(now) && earlier.kind == Kind::TmaLoad) && !(multiplies(earlier) && now.kind == Kind::TmaLoad))
    return false;
  const Touch& product = multiplies(now) ? now : earlier;
  const Touch& copy = multiplies(now) ? earlier : histories_.at(histories_.history_of_byte(addr)).write;
  const Inst* const code = cta_.program.kernel.inst;
  if (copy.kind != Kind::TmaLoad || code[copy.inst].op != OP_TMA_LOAD) return false;
  bool found = false;
  histories_.for_words([&](uint32_t id) {
    const Touch& other = histories_.at(id).write;
    if (found || other.kind != Kind::TmaLoad || code[other.inst].op != OP_TMA_LOAD) return;
    if (code[other.inst].b != code[copy.inst].b) return;
    if (other.component == copy.component && other.time == copy.time) return;
    histories_.since(id, [&](const Touch& read) {
      found |= read.component == product.component && read.time == product.time && read.inst == product.inst;
    });
  });
  return found;
}

void ShadowState::same_value_or_race(Warp& warp, const Touch& earlier, const Touch& now, uint32_t addr,
                                     uint32_t bytes) {
  const uint8_t* at = cta_.shared(addr);
  deferred_.push_back({earlier, now, &warp, addr, std::vector<uint8_t>(at, at + bytes)});
}

// The store that was deferred has moved its data by now.
void ShadowState::settle() {
  if (deferred_.empty()) return;
  std::vector<Deferred> due;
  due.swap(deferred_);
  for (const Deferred& d : due) {
    const bool same = std::equal(d.before.begin(), d.before.end(), cta_.shared(d.addr));
    unordered(*d.warp, d.earlier, d.now, d.addr, static_cast<uint32_t>(d.before.size()),
              same ? Severity::Warning : Severity::Error);
  }
}

Touch ShadowState::own_touch(const Warp& warp, int inst, Kind kind, bool write) {
  const WarpState& w = of(warp);
  return {w.time, inst, static_cast<uint16_t>(w.component), warp.label, kind, write, 0};
}

void ShadowState::read(Warp& warp, int inst, uint32_t addr, uint32_t bytes) {
  settle();
  const Inst& code = cta_.program.kernel.inst[inst];
  const bool strong = mods_order(code.mods) != O_WEAK;
  if (strong) acquire_flags(warp, {addr, bytes, flag_bytes(code)}, code);
  touch(warp, own_touch(warp, inst, strong ? Kind::Strong : Kind::Generic, false), addr, bytes);
}

void ShadowState::write(Warp& warp, int inst, uint32_t addr, uint32_t bytes) {
  settle();
  const Inst& code = cta_.program.kernel.inst[inst];
  const bool strong = mods_order(code.mods) != O_WEAK;
  touch(warp, own_touch(warp, inst, strong ? Kind::Strong : Kind::Generic, true), addr, bytes);
  if (strong) release_flags(warp, {addr, bytes, flag_bytes(code)}, code, false);
}

void ShadowState::atomic(Warp& warp, int inst, uint32_t addr, uint32_t bytes) {
  settle();
  const Inst& code = cta_.program.kernel.inst[inst];
  const FlagRange range{addr, bytes, flag_bytes(code)};
  acquire_flags(warp, range, code);
  touch(warp, own_touch(warp, inst, Kind::Atomic, false), addr, bytes);
  release_flags(warp, range, code, true);
}

// ---- order through flags and fences (PTX ISA 8.8: release and acquire patterns)

// Lanes of one access mostly find the same, and leave the same.
void ShadowState::release_flags(const Warp& warp, const FlagRange& range, const Inst& inst, bool updates) {
  WarpState& w = of(warp);
  const uint8_t order = mods_order(inst.mods);
  const bool far = !scoped_ || reaches_cluster(inst), now = releases(order);
  std::shared_ptr<FlagState> before, after;
  for (uint32_t at = range.address; at < range.address + range.bytes; at += range.each) {
    SharedFlag& flag = flags_[at];
    if (!after || flag.state != before) {
      before = after = flag.state;
      const bool shared = before.use_count() > 3;  // by other flags
      if (!before || shared) after = before ? std::make_shared<FlagState>(*before) : std::make_shared<FlagState>();
      after->likely.join(w.now.likely);
      after->tensor.join(w.now.tensor);
      if (scoped_ && (now || w.fenced)) after->within_cta(warp.home->rank).join(now ? w.now : w.at_fence);
      if (far && (now || w.fenced)) after->released.join(now ? w.now : scoped_ ? w.at_far_fence : w.at_fence);
    }
    flag.state = after;
    flag.holder = 0;
  }
  tick(w);
  if (updates && range.bytes == range.each && !scoped_) {
    SharedFlag& flag = flags_[range.address];
    flag.holder = w.version;
    flag.holder_acquired = acquires(order);
  }
}

void ShadowState::acquire_flags(const Warp& warp, const FlagRange& range, const Inst& inst) {
  WarpState& w = of(warp);
  const bool acquire = acquires(mods_order(inst.mods)), far = !scoped_ || reaches_cluster(inst);
  const FlagState* last = nullptr;
  bool grew = false;
  const auto take = [&](const Knowledge& released, Knowledge& later) {
    if (acquire) {
      grew |= w.now.join(released);
    } else {
      later.join(released);
      w.has_to_acquire = true;
    }
  };
  for (uint32_t at = range.address; at < range.address + range.bytes; at += range.each) {
    const auto found = flags_.find(at);
    if (found == flags_.end() || found->second.state.get() == last || found->second.known_to(w.version, acquire)) continue;
    FlagState& state = *found->second.state;
    last = &state;
    grew |= w.now.likely.join(state.likely);
    grew |= w.now.tensor.join(state.tensor);
    if (far) take(state.released, scoped_ ? w.to_acquire_far : w.to_acquire);
    if (scoped_) take(state.within_cta(warp.home->rank), w.to_acquire);
  }
  if (grew) changed(w);
}

void ShadowState::acquire_seen(WarpState& w, bool far) {
  if (!w.has_to_acquire) return;
  w.now.join(w.to_acquire);
  w.to_acquire.clear();
  if (scoped_ && far) {
    w.now.join(w.to_acquire_far);
    w.to_acquire_far.clear();
  }
  w.has_to_acquire = scoped_ && !far;
}

void ShadowState::release_later(WarpState& w, bool far) {
  w.at_fence = w.now;
  w.fenced = true;
  if (scoped_ && far) w.at_far_fence = w.now;
}

void ShadowState::fence(Warp& warp, int inst) {
  settle();
  WarpState& w = of(warp);
  const Inst& code = cta_.program.kernel.inst[inst];
  acquire_seen(w, reaches_cluster(code));
  if (cta_.order) fence_global(w, code);  // hands on what it has just acquired, too
  release_later(w, reaches_cluster(code));
  tick(w);
}

// fence.proxy.async::generic orders one way only, towards the asynchronous proxy, which is the way that matters here. Its
// .release and .acquire synchronise as those of a fence do (PTX ISA 9.7.13.4), in shared memory alone; that the one
// wants the other is not looked at, nor that they order generic accesses for the asynchronous proxy only.
void ShadowState::proxy_fence(Warp& warp, int inst) {
  settle();
  WarpState& w = of(warp);
  const int64_t proxy = cta_.program.kernel.inst[inst].imm;
  const uint8_t order = mods_order(cta_.program.kernel.inst[inst].mods);
  if (proxy == FP_ASYNC_GENERIC && order == O_ACQUIRE) acquire_seen(w, true);
  if (proxy != FP_ASYNC_GLOBAL) {
    w.now.published.join(w.now.seen);
    for (BarrierState& bar : barriers_)
      bar.told_async |= bar.live && w.now.seen.covers(bar.init.component, bar.init.time);
  }
  if (cta_.order && (proxy == FP_ASYNC || proxy == FP_ASYNC_GLOBAL)) show_global(w);
  if (proxy == FP_ASYNC_GENERIC && order == O_RELEASE) release_later(w, true);
  tick(w);
}

void ShadowState::mbar_init_fence(Warp& warp, int) {
  const WarpState& w = of(warp);
  for (BarrierState& bar : barriers_)
    bar.released |= bar.live && w.now.seen.covers(bar.init.component, bar.init.time);
  for (BarrierState& bar : barriers_) bar.told_async |= bar.released;
}

// ---- clusters

// What a thread knew when it arrived, the others know when they have waited (PTX ISA 9.7.13.4).
void ShadowState::cluster_arrive(Warp& warp, int inst) {
  settle();
  WarpState& w = of(warp);
  Knowledge& arriving = shared_->arriving;
  if (mods_order(cta_.program.kernel.inst[inst].mods) == O_RELAXED) {
    arriving.likely.join(w.now.likely);
    arriving.tensor.join(w.now.tensor);
    if (w.fenced) arriving.join(w.at_fence);
  } else {
    arriving.join(w.now);
  }
  tick(w);
}

void ShadowState::cluster_complete() {
  shared_->arrived = std::move(shared_->arriving);
  shared_->arriving.clear();
}

void ShadowState::cluster_wait(Warp& warp, int) {
  settle();
  WarpState& w = of(warp);
  if (w.now.join(shared_->arrived)) changed(w);
}

// CTAs of a cluster are guaranteed to run at the same time, not to begin at the same time (CUDA C++ Programming Guide,
// distributed shared memory).
void ShadowState::from_afar(Warp& warp, int inst) {
  WarpState& w = of(warp);
  if (w.begun >> cta_.rank & 1) return;
  w.begun |= std::any_of(warps_.begin(), warps_.end(),
                         [&](const WarpState& own) { return w.now.likely.covers(own.component, 1); })
                 ? 1u << cta_.rank
                 : 0;
  if (w.begun >> cta_.rank & 1) return;
  FindingRecord* f = warp.home->findings.add(*warp.home, &warp, -1, "cluster.not_begun", Severity::Warning, inst);
  if (!f) return;
  f->say("warp %d of CTA %u reaches into the shared memory of CTA %u before anything told it that this CTA has begun",
         warp.id, warp.home->rank, cta_.rank);
  f->mend("barrier.cluster.arrive and barrier.cluster.wait in all threads of the cluster before the first such access");
  describe_pair(*f, by_warp(warp.label, inst), "reached into it", nobody(), "");
}
