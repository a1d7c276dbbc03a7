// Named barriers: what they order, and the __syncthreads() that not all threads of the block came to.
#include <algorithm>
#include "shadow_state.hpp"

void ShadowState::bar_arrive(Warp& warp, int id) {
  settle();
  WarpState& w = of(warp);
  NamedBarrierState& bar = named_[id & 15];
  bar.arriving.join(w.now);
  bar.arrived[static_cast<size_t>(warp.id)] = 1;
  tick(w);
}

void ShadowState::bar_complete(int id) {
  NamedBarrierState& bar = named_[id & 15];
  const auto released = std::make_shared<const Knowledge>(bar.arriving);
  for (size_t i = 0; i < bar.arrived.size(); ++i) {
    if (bar.arrived[i]) bar.inbox[i] = released;
    bar.arrived[i] = 0;
  }
  bar.arriving.clear();
}

void ShadowState::bar_depart(Warp& warp, int id) {
  std::shared_ptr<const Knowledge>& inbox = named_[id & 15].inbox[static_cast<size_t>(warp.id)];
  if (!inbox) return;
  WarpState& w = of(warp);
  if (w.now.join(*inbox)) changed(w);
}

// Remembers the first time at each instruction; what it means is known when the CTA has ended.
void ShadowState::bar_together(int id) {
  const std::vector<NamedBarrier::Waiter>& waiters = cta_.barriers[id & 15].waiters;
  const auto exited = [](const Warp& warp) { return !warp.live; };
  const bool all_here = std::all_of(waiters.begin(), waiters.end(), [&](const NamedBarrier::Waiter& waiter) {
    return waiter.inst == waiters.front().inst;
  });
  if (waiters.empty() || (all_here && std::none_of(cta_.warps.begin(), cta_.warps.end(), exited))) return;
  SplitBarrier split{waiters.front().inst, -1, {}, {}};
  for (const NamedBarrier::Waiter& waiter : waiters) {
    const bool here = waiter.inst == split.inst;
    if (!here) split.elsewhere = waiter.inst;
    std::vector<int>& group = here ? split.here : split.others;
    if (group.empty() || group.back() != waiter.warp->id) group.push_back(waiter.warp->id);
  }
  for (const Warp& warp : cta_.warps)
    if (all_here && exited(warp)) split.others.push_back(warp.id);
  for (const SplitBarrier& known : split_)
    if (known.inst == split.inst && known.elsewhere == split.elsewhere) return;
  for (std::vector<int>* group : {&split.here, &split.others}) std::sort(group->begin(), group->end());
  split_.push_back(std::move(split));
}

// Warps that have exited are not waited for, and one __syncthreads() answers another; kernels rely on both. It is an
// error where the barrier was to order accesses of those warps.
void ShadowState::report_split_barriers() {
  const auto label = [&](int warp) { return cta_.warps[static_cast<size_t>(warp)].label; };
  for (const SplitBarrier& split : split_) {
    bool raced = false;
    for (const int one : split.here)
      for (const int other : split.others)
        raced |= races_.count(uint32_t{std::min(label(one), label(other))} << 16 | std::max(label(one), label(other)));
    const Warp& warp = cta_.warps[static_cast<size_t>(split.here.front())];
    FindingRecord* f = cta_.findings.add(cta_, &warp, -1, "barrier.divergent", raced ? Severity::Error : Severity::Note,
                                         split.inst, split.elsewhere);
    if (!f) continue;
    const std::string here = warp_list(split.here), others = warp_list(split.others);
    const char* race = raced ? "; they race in shared memory, which it was to order" : "";
    if (split.elsewhere < 0)
      f->say("%s met at the barrier of line {@%d} after %s had exited%s", here.c_str(), split.inst, others.c_str(),
             race);
    else
      f->say(
          "%s waited at the barrier of line {@%d} while %s waited at that of line {@%d}, and one answered the other%s",
          here.c_str(), split.inst, others.c_str(), split.elsewhere, race);
    f->mend(
        "Let all threads of the block reach each __syncthreads(): move it out of the if, and guard the work instead.");
    f->party(0, here.c_str(), "waited here");
    f->party(1, others.c_str(), split.elsewhere < 0 ? "exited without it" : "waited there");
  }
}
