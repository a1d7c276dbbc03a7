// Vector clocks over the logical threads of one CTA, and the accesses that they order.
#pragma once
#include <algorithm>
#include <cstdint>
#include <vector>
#include "global_clock.hpp"

// One component per logical thread. Components are handed out densely as threads appear; a missing one counts as 0.
class Clock {
 public:
  uint32_t at(uint32_t component) const { return component < times_.size() ? times_[component] : 0; }
  bool covers(uint32_t component, uint32_t time) const { return at(component) >= time; }

  // Both return whether the clock grew.
  bool raise(uint32_t component, uint32_t time) {
    if (component >= times_.size()) times_.resize(component + 1, 0);
    if (times_[component] >= time) return false;
    times_[component] = time;
    return true;
  }
  bool join(const Clock& other) {
    if (other.times_.size() > times_.size()) times_.resize(other.times_.size(), 0);
    uint32_t grew = 0;
    for (size_t i = 0; i < other.times_.size(); ++i) {
      grew |= static_cast<uint32_t>(other.times_[i] > times_[i]);
      times_[i] = std::max(times_[i], other.times_[i]);
    }
    return grew != 0;
  }
  void clear() { times_.clear(); }
  bool empty() const { return times_.empty(); }

 private:
  std::vector<uint32_t> times_;
};

// What a logical thread knows of the others, and hands over when it releases.
struct Knowledge {
  Clock seen;       // happens-before
  Clock published;  // generic writes that a fence.proxy.async made visible to the async proxy
  Clock likely;     // `seen`, and order that hardware gives in practice
  Clock tensor;     // accesses to tensor memory that tcgen05.fence::before_thread_sync or tcgen05.commit handed over, also
                    // those that are handed over in order only (IN_ORDER)
  ForeignRef foreign, foreign_likely;  // `seen` and `likely` of other CTAs
  Clock flushed;                       // what fences of scope .gpu made visible to all: a relaxed store after them releases it
  ForeignRef foreign_flushed;
  Clock shown;  // generic writes to global memory that a fence.proxy.async made visible to the async proxy
  ForeignRef foreign_shown;

  bool join(const Knowledge& other) {
    const bool a = seen.join(other.seen), b = published.join(other.published), c = likely.join(other.likely);
    const bool d = tensor.join(other.tensor);
    const bool e = ::join(foreign, other.foreign), f = ::join(foreign_likely, other.foreign_likely);
    const bool g = flushed.join(other.flushed), h = ::join(foreign_flushed, other.foreign_flushed);
    const bool i = shown.join(other.shown), j = ::join(foreign_shown, other.foreign_shown);
    return a || b || c || d || e || f || g || h || i || j;
  }
  void raise(uint32_t component, uint32_t time) {
    seen.raise(component, time);
    likely.raise(component, time);
  }
  void clear() {
    seen.clear();
    published.clear();
    likely.clear();
    tensor.clear();
    flushed.clear();
    shown.clear();
    foreign = foreign_likely = foreign_flushed = foreign_shown = nullptr;
  }
};

enum class Kind : uint8_t {
  None,      // nobody wrote: uninitialised
  Generic,   // ld, st
  Strong,    // volatile, relaxed, acquire, release: does not race with its like
  Atomic,    // atom, red
  CpAsync,   // non-bulk cp.async: generic proxy, asynchronous
  TmaLoad,   // tensor or bulk copy into shared memory
  TmaStore,  // tensor or bulk copy out of shared memory
  Wgmma,     // operand of wgmma
  Tcgen05,   // tcgen05.mma, cp, shift: their operands, shared and tensor memory
  TmemLoad,  // tcgen05.ld
  TmemStore, // tcgen05.st
  Mbarrier,  // mbarrier.init
  StAsync,   // st.async: generic proxy, asynchronous
  Reduce,    // red.async
  BulkReduce,  // cp.reduce.async.bulk into shared memory
};

// An access by the logical thread `component` at its `time`: it is over, for a thread that knows component >= time.
struct Touch {
  uint32_t time = 0;
  int32_t inst = -1;
  uint16_t component = 0;
  uint16_t warp = 0;  // that issued it
  Kind kind = Kind::None;
  uint8_t write = 0;
  uint16_t lane = 0;  // issuing lane of bulk copies and tcgen05

  bool operator==(const Touch& o) const {
    return time == o.time && inst == o.inst && component == o.component && warp == o.warp && kind == o.kind &&
           write == o.write && lane == o.lane;
  }
  bool generic() const {
    return kind == Kind::Generic || kind == Kind::Strong || kind == Kind::Atomic || kind == Kind::CpAsync ||
           kind == Kind::StAsync;
  }
  bool async_proxy() const {
    return kind == Kind::TmaLoad || kind == Kind::TmaStore || kind == Kind::Wgmma || kind == Kind::Tcgen05 ||
           kind == Kind::BulkReduce;
  }
  bool reduces() const { return kind == Kind::Reduce || kind == Kind::BulkReduce; }
  bool strong() const { return kind == Kind::Strong || kind == Kind::Atomic; }
  bool in_flight_kind() const { return async_proxy() || kind == Kind::CpAsync || kind == Kind::StAsync || kind == Kind::Reduce; }
};
static_assert(sizeof(Touch) == 16, "compact: histories hold many");
