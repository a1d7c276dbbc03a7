#include "global_clock.hpp"

#include <algorithm>

#include "shadow_clock.hpp"

namespace {

template <class List>
auto place_of(List& known, uint32_t unit) {
  return std::lower_bound(known.begin(), known.end(), unit,
                          [](const Foreign::Known& one, uint32_t wanted) { return one.first < wanted; });
}

}  // namespace

const Clock* Foreign::of(uint32_t unit) const {
  const auto at = place_of(known_, unit);
  return at != known_.end() && at->first == unit ? at->second.get() : nullptr;
}

bool Foreign::covers(uint32_t unit, uint32_t component, uint32_t time) const {
  const Clock* clock = of(unit);
  return clock && clock->covers(component, time);
}

bool Foreign::learn(uint32_t unit, const std::shared_ptr<const Clock>& clock) {
  const auto at = place_of(known_, unit);
  if (at == known_.end() || at->first != unit) {
    known_.insert(at, Known{unit, clock});
    return true;
  }
  if (at->second == clock) return false;
  Clock both = *at->second;
  if (!both.join(*clock)) return false;
  Clock other = *clock;
  at->second = other.join(*at->second) ? std::make_shared<const Clock>(std::move(both)) : clock;
  return true;
}

bool Foreign::join(const Foreign& other) {
  bool grew = false;
  if (known_.empty()) {
    known_ = other.known_;
    return !known_.empty();
  }
  for (const Known& one : other.known_) grew |= learn(one.first, one.second);
  return grew;
}

bool join(ForeignRef& mine, const ForeignRef& other) {
  if (!other || mine == other) return false;
  if (!mine) {
    mine = other;
    return true;
  }
  auto both = std::make_shared<Foreign>(*mine);
  if (!both->join(*other)) return false;
  mine = std::move(both);
  return true;
}
