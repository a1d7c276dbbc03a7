// What a thread knows of the CTAs that it shares no clock with: those of other clusters, or without clusters all others.
#pragma once
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

class Clock;

// The clock of each other unit (a CTA, or the CTAs of a cluster), as it was when something of it was last acquired.
// Clocks are never changed, so that a hundred CTAs can know the same of each other at the price of pointers.
class Foreign {
 public:
  using Known = std::pair<uint32_t, std::shared_ptr<const Clock>>;  // unit, its clock

  bool covers(uint32_t unit, uint32_t component, uint32_t time) const;
  const Clock* of(uint32_t unit) const;
  bool empty() const { return known_.empty(); }
  // Both return whether anything was new.
  bool learn(uint32_t unit, const std::shared_ptr<const Clock>& clock);
  bool join(const Foreign& other);

 private:
  std::vector<Known> known_;  // ascending units
};

// Shared by all that know the same; nullptr: nothing.
using ForeignRef = std::shared_ptr<const Foreign>;
bool join(ForeignRef& mine, const ForeignRef& other);  // whether anything was new
