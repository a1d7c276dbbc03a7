// What flags in global memory hand over from CTA to CTA (PTX ISA 8.8 to 8.10): release and acquire patterns with scopes.
#include "global_access.hpp"
#include "global_order.hpp"
#include "shadow_state.hpp"

namespace {

constexpr uint64_t FLAG_BYTES = 8;       // a plain store of one lane, no wider, may be meant as a flag
constexpr int MOST_PLAIN_FLAGS = 8;      // of one instruction: a store to more places is none
constexpr uint64_t MOST_FLAG_LANES = 2;  // an atomic operation of more lanes is no flag, unless it releases something

bool releases(uint8_t order) { return order == O_RELEASE || order == O_ACQ_REL || order == O_SC; }
bool acquires(uint8_t order) { return order == O_ACQUIRE || order == O_ACQ_REL || order == O_SC; }

}  // namespace

void ShadowState::global(Warp& warp, GlobalOrder& order, GlobalTouch& touch, Buffer& buffer, const Ranges& ranges,
                         uint64_t each, int lane) {
  settle();
  WarpState& w = of(warp);
  const Inst& inst = cta_.program.kernel.inst[touch.inst];
  const uint8_t how = touch.async ? static_cast<uint8_t>(O_WEAK) : mods_order(inst.mods), scope = touch.scope;
  const bool strong = touch.kind != GlobalKind::Weak && !touch.async, reads = !touch.write;
  const bool flags = (touch.write || touch.kind == GlobalKind::Atomic) && !touch.async;
  if (strong && reads)
    for (const Range& range : ranges)
      order.for_flags(range, each, [&](uint64_t address, GlobalFlag& flag) {
        acquire_global(w, flag, address, how, scope);
      });
  touch.component = static_cast<uint16_t>(w.component);
  touch.time = w.time;
  if (touch.async && (touch.write || touch.kind == GlobalKind::Atomic)) {  // it is about to be issued
    GroupQueue& q = queue(warp, Async::BulkStore, lane);
    if (!q.writes) q.writes = shared_->components++;
    touch.component = static_cast<uint16_t>(q.writes);
    touch.time = q.issued + 1;
    w.now.likely.raise(q.writes, touch.time);  // who waits for its source only gets away with it
  }
  if (buffer.ordered || !reads || touch.kind == GlobalKind::Atomic)
    order.access(cta_, &w.now, buffer, ranges);
  if (!flags || order.flags_full()) return;
  if (strong) {
    // Atomics on every element of a tile are no flags, unless they are said to release something.
    if (releases(how) || !w.now.flushed.empty() || w.fence_near || ranges.bytes() <= MOST_FLAG_LANES * each)
      release_global(w, order, ranges, each, how, scope);
  } else if (each <= FLAG_BYTES) {
    tell_plainly(w, order, ranges, each);
  }
}

// What plain stores, each of one lane, may be meant to announce. Many at once are results.
void ShadowState::tell_plainly(WarpState& w, GlobalOrder& order, const Ranges& ranges, uint64_t each) {
  if (ranges.count() > MOST_PLAIN_FLAGS) return;
  ForeignRef likely;
  for (const Range& range : ranges) {
    if (range.bytes > each) continue;
    if (!likely) likely = message(w.now.likely, w.now.foreign_likely);
    GlobalFlag& flag = order.make_flag(range.address);
    ++flag.version;
    join(flag.likely, likely);
  }
  if (likely) tick(w);
}

// A clock of the own unit, and those of the others.
ForeignRef ShadowState::message(const Clock& own, const ForeignRef& others) const {
  ForeignRef all = others;
  join(all, Foreign::alone(static_cast<uint32_t>(cta_.unit), std::make_shared<const Clock>(own)));
  return all;
}

void ShadowState::take(WarpState& w, const ForeignRef& message) {
  if (!message) return;
  const Clock* own = message->of(static_cast<uint32_t>(cta_.unit));
  if (own) {
    w.now.seen.join(*own);
    w.now.likely.join(*own);
  }
  join(w.now.foreign, message);
  join(w.now.foreign_likely, message);
}

// Only what concerns the own cluster.
void ShadowState::take_near(WarpState& w, const ForeignRef& message) {
  const Clock* own = message ? message->of(static_cast<uint32_t>(cta_.unit)) : nullptr;
  if (!own) return;
  w.now.seen.join(*own);
  w.now.likely.join(*own);
}

void ShadowState::acquire_global(WarpState& w, GlobalFlag& flag, uint64_t address, uint8_t how, uint8_t scope) {
  if (w.last_flag == address && w.last_flag_version == flag.version && w.last_flag_order == how) return;
  flag.strong = true;
  w.last_flag = address;
  w.last_flag_order = how;
  w.last_flag_version = flag.version;
  if (flag.likely) {
    if (const Clock* own = flag.likely->of(static_cast<uint32_t>(cta_.unit))) w.now.likely.join(*own);
    join(w.now.foreign_likely, flag.likely);
  }
  if (flag.shown) {
    if (const Clock* own = flag.shown->of(static_cast<uint32_t>(cta_.unit))) w.now.shown.join(*own);
    join(w.now.foreign_shown, flag.shown);
  }
  const bool wide = scope >= SC_GPU, near = scope >= SC_CLUSTER;
  if (acquires(how)) {
    if (wide) take(w, flag.wide);
    if (near) take_near(w, flag.near);
  } else {
    if (wide) join(w.to_acquire_wide, flag.wide);
    if (near) join(w.to_acquire_near, flag.near);
  }
  changed(w);
}

void ShadowState::release_global(WarpState& w, GlobalOrder& order, const Ranges& ranges, uint64_t each, uint8_t how,
                                 uint8_t scope) {
  const ForeignRef likely = message(w.now.likely, w.now.foreign_likely);
  const bool ordered = releases(how);
  const ForeignRef sure = ordered              ? message(w.now.seen, w.now.foreign)
                          : w.now.flushed.empty() ? nullptr
                                                  : message(w.now.flushed, w.now.foreign_flushed);
  const ForeignRef shown =
      w.now.shown.empty() && !w.now.foreign_shown ? nullptr : message(w.now.shown, w.now.foreign_shown);
  for (const Range& range : ranges)
    for (uint64_t at = range.address; at < range.address + range.bytes; at += each) {
      GlobalFlag& flag = order.make_flag(at);
      ++flag.version;
      flag.strong = true;
      join(flag.likely, likely);
      join(flag.shown, shown);
      if (scope >= SC_GPU) join(flag.wide, sure);
      if (scope >= SC_CLUSTER) join(flag.near, ordered ? sure : w.fence_near);
    }
  tick(w);
}

// A fence releases what came before it through strong stores after it, and acquires what strong loads before it saw. The
// store may be that of another thread behind a barrier: all threads fence, all meet, one sets the flag.
void ShadowState::fence_global(WarpState& w, const Inst& inst) {
  const uint8_t scope = mods_scope(inst.mods);
  if (scope >= SC_GPU) {
    take(w, w.to_acquire_wide);
    w.to_acquire_wide = nullptr;
  }
  if (scope >= SC_CLUSTER) {
    take_near(w, w.to_acquire_near);
    w.to_acquire_near = nullptr;
  }
  if (scope >= SC_GPU) {
    w.now.flushed.join(w.now.seen);
    join(w.now.foreign_flushed, w.now.foreign);
  }
  if (scope >= SC_CLUSTER) w.fence_near = message(w.now.seen, w.now.foreign);
}

// A fence.proxy.async of global memory: the async proxy sees what this thread knows of.
void ShadowState::show_global(WarpState& w) {
  if (!cta_.order->clocks) return;
  w.now.shown.join(w.now.seen);
  join(w.now.foreign_shown, w.now.foreign);
}
