// Asynchronous operations as the ordering analysis sees them: one begins, then its footprint follows.
#include "shadow_state.hpp"

void ShadowState::async_begin(Warp& warp, int inst, Async kind, int lane, Mbar* bar, uint32_t bytes) {
  settle();
  if (kind == Async::Wgmma) {
    issue_wgmma(warp, inst);
    return;
  }
  if (bar) {
    BarrierState& b = of(*bar);
    b.issued += bytes;
    b.load_inst = inst;
    b.load_warp = warp.label;
    // The phase cannot complete before its copies were issued. Nothing makes what the issuer did before visible by that.
    WarpState& w = of(warp);
    b.pending.likely.join(w.now.likely);
    tick(w);
    return;
  }
  current_ = &queue(warp, kind, lane);
  current_lane_ = static_cast<uint16_t>(lane);
  ++current_->issued;
  current_->last_inst = inst;
}

void ShadowState::async_share(Warp& warp, Async kind, int lane) {
  settle();
  current_ = &queue(warp, kind, lane);
  current_lane_ = static_cast<uint16_t>(lane);
}

namespace {

Kind kind_of(Async kind) {
  switch (kind) {
    case Async::TmaLoad:
    case Async::BulkLoad:
      return Kind::TmaLoad;
    case Async::TmaStore:
    case Async::BulkStore:
      return Kind::TmaStore;
    case Async::CpAsync:
      return Kind::CpAsync;
    case Async::Wgmma:
      return Kind::Wgmma;
    case Async::StAsync:
      return Kind::StAsync;
    case Async::Reduce:
      return Kind::Reduce;
    case Async::BulkReduce:
      return Kind::BulkReduce;
    case Async::Tcgen05:
      return Kind::Tcgen05;
  }
  return Kind::None;
}

}  // namespace

void ShadowState::async_read(Warp& warp, int inst, Async kind, uint32_t addr, uint32_t bytes, Mbar* bar) {
  if (bar) {  // the source of a copy within the cluster
    const auto phase = static_cast<uint32_t>(bar->phases + 1);
    touch(warp, {phase, inst, static_cast<uint16_t>(of(*bar).component), warp.label, kind_of(kind), 0, 0}, addr, bytes);
    return;
  }
  const GroupQueue& q = *current_;
  const auto issuer = static_cast<uint16_t>(kind == Async::Wgmma ? warp.label & ~3 : warp.label);
  touch(warp, {q.issued, inst, static_cast<uint16_t>(q.component), issuer, kind_of(kind), 0, current_lane_}, addr,
        bytes);
}

void ShadowState::async_write(Warp& warp, int inst, Async kind, uint32_t addr, uint32_t bytes, Mbar* bar) {
  Touch access{0, inst, 0, warp.label, kind_of(kind), 1, 0};
  if (bar) {
    const BarrierState& b = of(*bar);
    access.component = static_cast<uint16_t>(b.component);
    access.time = static_cast<uint32_t>(bar->phases + 1);
  } else {
    access.component = static_cast<uint16_t>(current_->component);
    access.time = current_->issued;
  }
  touch(warp, access, addr, bytes);
}
