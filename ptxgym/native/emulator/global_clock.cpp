#include "global_clock.hpp"

#include <algorithm>

#include "shadow_clock.hpp"

namespace {

std::shared_ptr<const void> joined_clock(const std::shared_ptr<const void>& a, const std::shared_ptr<const void>& b) {
  const Clock& one = *static_cast<const Clock*>(a.get());
  const Clock& other = *static_cast<const Clock*>(b.get());
  Clock both = one, back = other;
  if (!both.join(other)) return a;
  return back.join(one) ? std::make_shared<const Clock>(std::move(both)) : b;
}

}  // namespace

ForeignRef Foreign::alone(uint32_t unit, ClockRef clock) {
  auto leaf = std::make_shared<Foreign>();
  leaf->below_[leaf->digit(unit)] = std::move(clock);
  ForeignRef all = std::move(leaf);
  while (!all->holds(unit)) {
    auto above = std::make_shared<Foreign>();
    above->height_ = all->height_ + 1;
    above->below_[above->digit(unit)] = std::move(all);
    all = std::move(above);
  }
  return all;
}

const Clock* Foreign::of(uint32_t unit) const {
  if (!holds(unit)) return nullptr;
  const Foreign* node = this;
  while (node && node->height_) node = static_cast<const Foreign*>(node->below_[node->digit(unit)].get());
  return node ? static_cast<const Clock*>(node->below_[node->digit(unit)].get()) : nullptr;
}

bool Foreign::covers(uint32_t unit, uint32_t component, uint32_t time) const {
  const Clock* clock = of(unit);
  return clock && clock->covers(component, time);
}

// The same under roots that make it as high as another.
ForeignRef Foreign::lifted(ForeignRef all, uint32_t height) {
  while (all->height_ < height) {
    auto above = std::make_shared<Foreign>();
    above->height_ = all->height_ + 1;
    above->below_[0] = std::move(all);
    all = std::move(above);
  }
  return all;
}

std::shared_ptr<const void> Foreign::joined(const std::shared_ptr<const void>& a, const std::shared_ptr<const void>& b,
                                            uint32_t height) {
  Foreign both;
  both.height_ = height;
  bool first = true, second = true;  // whether it is all that both know
  for (uint32_t i = 0; i < FANOUT; ++i) {
    const auto& one = static_cast<const Foreign*>(a.get())->below_[i];
    const auto& other = static_cast<const Foreign*>(b.get())->below_[i];
    if (one == other || !other)
      both.below_[i] = one;
    else if (!one)
      both.below_[i] = other;
    else
      both.below_[i] = height ? joined(one, other, height - 1) : joined_clock(one, other);
    first = first && both.below_[i] == one;
    second = second && both.below_[i] == other;
  }
  return first ? a : second ? b : std::make_shared<const Foreign>(std::move(both));
}

bool join(ForeignRef& mine, const ForeignRef& other) {
  if (!other || mine == other) return false;
  if (!mine) {
    mine = other;
    return true;
  }
  const uint32_t height = std::max(mine->height_, other->height_);
  const ForeignRef own = Foreign::lifted(mine, height);
  auto both = Foreign::joined(own, Foreign::lifted(other, height), height);
  if (both == own) return false;
  mine = std::static_pointer_cast<const Foreign>(both);
  return true;
}
