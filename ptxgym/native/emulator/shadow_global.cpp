// What flags in global memory hand over from CTA to CTA (PTX ISA 8.8 to 8.10): release and acquire patterns with scopes.
#include "global_access.hpp"
#include "global_order.hpp"
#include "shadow_state.hpp"

namespace {

constexpr uint64_t FLAG_BYTES = 8;  // a plain store of one lane, no wider, may be meant as a flag

bool releases(uint8_t order) { return order == O_RELEASE || order == O_ACQ_REL || order == O_SC; }
bool acquires(uint8_t order) { return order == O_ACQUIRE || order == O_ACQ_REL || order == O_SC; }

GlobalTouch touch_of(const Cta& cta, const Warp& warp, const Inst& inst, Access access, bool async) {
  GlobalTouch touch;
  touch.unit = static_cast<uint32_t>(cta.unit);
  touch.cta = static_cast<uint32_t>(cta.linear);
  touch.inst = cta.index_of(inst);
  touch.warp = static_cast<uint16_t>(warp.id);
  touch.write = access == Access::Write;
  touch.async = async;
  const uint8_t order = async ? static_cast<uint8_t>(O_WEAK) : mods_order(inst.mods);
  touch.kind = access == Access::Atomic ? GlobalKind::Atomic : order == O_WEAK ? GlobalKind::Weak : GlobalKind::Strong;
  if (touch.kind != GlobalKind::Weak)
    touch.scope = async || order == O_VOLATILE || !mods_scope(inst.mods) ? static_cast<uint8_t>(SC_SYS)
                                                                         : mods_scope(inst.mods);
  return touch;
}

}  // namespace

void order_global(Cta& cta, Warp& warp, const Inst& inst, Buffer& buffer, uint64_t address, uint64_t bytes,
                  uint64_t each, Access access, bool async) {
  GlobalOrder& order = *cta.grid.order;
  GlobalTouch touch = touch_of(cta, warp, inst, access, async);
  if (order.communicating && cta.shadow)
    cta.shadow->global(warp, order, touch, buffer, address, bytes, each);
  else if (buffer.ordered || access != Access::Read)
    order.access(cta, touch, nullptr, buffer, address - buffer.base, bytes);
}

void order_copy(Cta& cta, Warp& warp, const Inst& inst, uint64_t address, uint64_t bytes, Access access) {
  Buffer* buffer = cta.find_buffer(address, bytes);
  if (buffer && !buffer->read_only) order_global(cta, warp, inst, *buffer, address, bytes, bytes, access, true);
}

void ShadowState::global(Warp& warp, GlobalOrder& order, GlobalTouch& touch, Buffer& buffer, uint64_t address,
                         uint64_t bytes, uint64_t each) {
  settle();
  WarpState& w = of(warp);
  const Inst& inst = cta_.program.kernel.inst[touch.inst];
  const uint8_t how = touch.async ? static_cast<uint8_t>(O_WEAK) : mods_order(inst.mods);
  const bool strong = touch.kind != GlobalKind::Weak && !touch.async, reads = !touch.write;
  const bool one = bytes <= each;
  if (strong && reads)
    for (uint64_t at = address; at < address + bytes; at += each) acquire_global(w, order, at, how, touch.scope);
  touch.component = static_cast<uint16_t>(w.component);
  touch.time = w.time;
  if (buffer.ordered || !reads || touch.kind == GlobalKind::Atomic)
    order.access(cta_, touch, &w.now, buffer, address - buffer.base, bytes);
  const bool changes = touch.write || touch.kind == GlobalKind::Atomic;
  if (!changes || touch.async || order.flags_full()) return;
  // Atomics on every element of a tile are no flags, unless they are said to release something.
  if (strong && (releases(how) || !w.now.flushed.empty() || w.fence_near || bytes <= 2 * each)) {
    release_global(w, order, address, bytes, each, how, touch.scope);
  } else if (!strong && one && each <= FLAG_BYTES) {
    GlobalFlag& flag = order.make_flag(address);
    ++flag.version;
    join(flag.likely, message(w.now.likely, w.now.foreign_likely));
    tick(w);
  }
}

// A clock of the own unit, and those of the others.
ForeignRef ShadowState::message(const Clock& own, const ForeignRef& others) const {
  auto all = others ? std::make_shared<Foreign>(*others) : std::make_shared<Foreign>();
  all->learn(static_cast<uint32_t>(cta_.unit), std::make_shared<const Clock>(own));
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

void ShadowState::acquire_global(WarpState& w, GlobalOrder& order, uint64_t address, uint8_t how, uint8_t scope) {
  GlobalFlag* flag = order.flag(address);
  if (!flag || (w.last_flag == address && w.last_flag_version == flag->version && w.last_flag_order == how)) return;
  flag->strong = true;
  w.last_flag = address;
  w.last_flag_order = how;
  w.last_flag_version = flag->version;
  if (flag->likely) {
    if (const Clock* own = flag->likely->of(static_cast<uint32_t>(cta_.unit))) w.now.likely.join(*own);
    join(w.now.foreign_likely, flag->likely);
  }
  const bool wide = scope >= SC_GPU, near = scope >= SC_CLUSTER;
  if (acquires(how)) {
    if (wide) take(w, flag->wide);
    if (near) take_near(w, flag->near);
  } else {
    if (wide) join(w.to_acquire_wide, flag->wide);
    if (near) join(w.to_acquire_near, flag->near);
  }
  changed(w);
}

void ShadowState::release_global(WarpState& w, GlobalOrder& order, uint64_t address, uint64_t bytes, uint64_t each,
                                 uint8_t how, uint8_t scope) {
  const ForeignRef likely = message(w.now.likely, w.now.foreign_likely);
  const bool ordered = releases(how);
  const ForeignRef sure = ordered              ? message(w.now.seen, w.now.foreign)
                          : w.now.flushed.empty() ? nullptr
                                                  : message(w.now.flushed, w.now.foreign_flushed);
  for (uint64_t at = address; at < address + bytes; at += each) {
    GlobalFlag& flag = order.make_flag(at);
    ++flag.version;
    flag.strong = true;
    join(flag.likely, likely);
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
