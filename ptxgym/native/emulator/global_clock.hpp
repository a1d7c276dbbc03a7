// What a thread knows of the CTAs that it shares no clock with: those of other clusters, or without clusters all others.
#pragma once
#include <array>
#include <cstdint>
#include <memory>

class Clock;
using ClockRef = std::shared_ptr<const Clock>;

// The clock of each other unit (a CTA, or the CTAs of a cluster), as it was when something of it was last acquired: a
// tree over the digits of unit numbers. Nodes and clocks are never changed, so that thousands of CTAs can know the same
// of each other at the price of pointers, and one that learns of another makes the nodes on the way to it anew.
class Foreign;
using ForeignRef = std::shared_ptr<const Foreign>;  // nullptr: nothing

class Foreign {
 public:
  static ForeignRef alone(uint32_t unit, ClockRef);  // nothing but the clock of one unit

  const Clock* of(uint32_t unit) const;
  bool covers(uint32_t unit, uint32_t component, uint32_t time) const;

 private:
  friend bool join(ForeignRef& mine, const ForeignRef& other);
  static constexpr uint32_t BITS = 4, FANOUT = 1u << BITS;

  // Both are of `height`; the same object as one of them where that one knows it all.
  static std::shared_ptr<const void> joined(const std::shared_ptr<const void>&, const std::shared_ptr<const void>&,
                                            uint32_t height);
  static ForeignRef lifted(ForeignRef, uint32_t height);
  uint32_t digit(uint32_t unit) const { return unit >> BITS * height_ & (FANOUT - 1); }
  bool holds(uint32_t unit) const { return uint64_t{unit} >> BITS * (height_ + 1) == 0; }

  uint32_t height_ = 0;
  std::array<std::shared_ptr<const void>, FANOUT> below_;  // height 0: clocks; else nodes of the height below
};

bool join(ForeignRef& mine, const ForeignRef& other);  // whether anything was new
