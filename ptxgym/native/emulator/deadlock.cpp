// Deadlock: nothing can run and nothing is pending. Every waiter is named, the likeliest cause first.
#include <algorithm>
#include <map>

#include "schedule.hpp"

namespace {

// Warps that wait for the same thing at the same instruction.
struct Group {
  Cta* cta;
  WaitKind kind;
  int inst;
  uint32_t address, parity;
  const char* what;
  std::vector<int> warps;
  int lane;
  int rank = 0;  // smaller: nearer to the cause
};

const Mbar* mbar_of(const Cta& cta, uint32_t address) {
  for (auto m = cta.mbars.rbegin(); m != cta.mbars.rend(); ++m)
    if (m->address == address && m->valid) return &*m;
  return nullptr;
}

void add_waiters(Cta& cta, std::vector<Group>& groups) {
  for (const Warp& w : cta.warps) {
    for (uint32_t rest = w.live; rest; rest &= rest - 1) {
      const int lane = first_lane(rest);
      Group wanted{&cta, WaitKind::Other, w.pc[lane], 0, 0, "", {}, lane};
      if (w.blocked >> lane & 1) {
        const Wait& wait = w.wait[lane];
        wanted = {&cta, wait.kind, wait.inst, wait.address, wait.parity, wait.what, {}, lane};
      } else {
        wanted.what = "for lanes of its warp that are elsewhere";
      }
      auto same = std::find_if(groups.begin(), groups.end(), [&](const Group& g) {
        return g.cta == wanted.cta && g.kind == wanted.kind && g.inst == wanted.inst && g.address == wanted.address &&
               g.parity == wanted.parity;
      });
      if (same == groups.end()) same = groups.insert(groups.end(), wanted);
      if (same->warps.empty() || same->warps.back() != w.id) same->warps.push_back(w.id);
    }
  }
}

// Threads of the cluster that are alive, and those of them that have arrived at its barrier.
struct Presence {
  uint32_t live = 0, arrived = 0;
  std::string missing;  // "CTAs 1, 3": of which some thread has not
};

Presence presence(const Cta& cta) {
  Presence found;
  const auto count = [&](const Cta& each) {
    uint32_t live = 0, arrived = 0;
    for (const Warp& w : each.warps) {
      live += static_cast<uint32_t>(__builtin_popcount(w.live));
      arrived += static_cast<uint32_t>(__builtin_popcount(w.live & w.cluster_arrived));
    }
    found.live += live;
    found.arrived += arrived;
    if (live != arrived) found.missing += (found.missing.empty() ? "" : ", ") + std::to_string(each.rank);
  };
  if (cta.cluster)
    for (const Cta* each : cta.cluster->ctas) count(*each);
  else
    count(cta);
  return found;
}

// 0: cannot be mended by any thread that waits. 1: some participant has exited, or some arrivals of a phase have come
// and others have not. 2: a barrier whose arrivals must all come from warps that wait themselves. 3: lanes of a warp
// that wait for their own warp.
int rank(const Cta& cta, const Group& group) {
  const bool exited = std::any_of(cta.warps.begin(), cta.warps.end(), [](const Warp& w) { return !w.live; });
  switch (group.kind) {
    case WaitKind::Mbarrier: {
      const Mbar* m = mbar_of(cta, group.address);
      if (!m) return 0;
      if (m->tx < 0 || (m->tx && !m->pending)) return 0;
      return exited || m->pending < m->expected ? 1 : 2;
    }
    case WaitKind::NamedBarrier: return exited ? 1 : 2;
    case WaitKind::ClusterBarrier: return 2;
    case WaitKind::Registers:
    case WaitKind::PeerCta: return 0;
    default: return 3;
  }
}

std::string described(const Cta& cta, const Group& group) {
  char text[320];
  if (group.kind == WaitKind::Mbarrier) {
    const Mbar* m = mbar_of(cta, group.address);
    if (!m) return "for an mbarrier that is gone";
    std::snprintf(
        text, sizeof text,
        "for parity %u of mbarrier 0x%x (initialised at {@%d}, phase %llu): %u of %u arrivals missing, tx-count %lld",
        group.parity, group.address, m->init_inst, static_cast<unsigned long long>(m->phases), m->pending, m->expected,
        static_cast<long long>(m->tx));
    std::string all = text;
    if (m->tx > 0 && !m->pending)
      all += " bytes that no copy delivers";
    else if (m->tx < 0)
      all += ": more bytes arrived than were expected";
    return all;
  }
  if (group.kind == WaitKind::NamedBarrier) {
    const NamedBarrier& barrier = cta.barriers[group.address & 15];
    uint32_t arrived = barrier.arrived, expected = barrier.expected;
    if (barrier.whole_cta) arrived = expected = 0;
    std::vector<int> exited, halves;
    for (const Warp& w : cta.warps) {
      const auto come = static_cast<uint32_t>(__builtin_popcount(barrier.here[w.id]));
      const auto live = static_cast<uint32_t>(__builtin_popcount(w.live));
      if (barrier.whole_cta) arrived += barrier.counted >> w.id & 1 ? live : come, expected += live;
      if (!w.live) exited.push_back(w.id);
      if (come && !barrier.whole_cta) halves.push_back(w.id);
    }
    std::snprintf(text, sizeof text, "at barrier %u: %u of %u threads arrived", group.address, arrived, expected);
    std::string all = text;
    if (!halves.empty()) all += "; of " + warp_list(halves) + " some have not come, and a warp arrives as a whole";
    if (exited.empty()) return all;
    return all + ", and " + warp_list(exited) + (exited.size() == 1 ? " has" : " have") + " exited";
  }
  if (group.kind == WaitKind::ClusterBarrier) {
    const Presence there = presence(cta);
    std::snprintf(text, sizeof text, "at the cluster barrier: %u of %u threads arrived; some of CTA %s have not",
                  there.arrived, there.live, there.missing.c_str());
    return text;
  }
  if (group.kind == WaitKind::PeerCta && cta.cluster->ctas[cta.rank ^ 1]->ended)
    return std::string(group.what) + ", but that CTA has exited";
  return group.what;
}

// What is wrong with an mbarrier, apart from who waits for it: the message begins with it. `at` is the instruction to
// look at. Empty where nothing more is known than that the arrivals have not come.
std::string cause(const Mbar& m, int& at) {
  char text[240] = "";
  const auto bytes = static_cast<long long>(m.tx < 0 ? -m.tx : m.tx);
  if (m.tx > 0 && !m.pending && m.last_expect_inst >= 0) {
    at = m.last_expect_inst;
    std::snprintf(text, sizeof text, "of the bytes that line {@%d} expects at mbarrier 0x%x, %lld never arrive", at,
                  m.address, bytes);
  } else if (m.tx < 0 && m.last_expect_inst >= 0) {
    at = m.last_expect_inst;
    std::snprintf(text, sizeof text, "%lld bytes more arrive at mbarrier 0x%x than line {@%d} expects", bytes, m.address,
                  at);
  } else if (m.tx < 0) {
    at = m.init_inst;
    std::snprintf(text, sizeof text,
                  "%lld bytes arrive at mbarrier 0x%x (initialised at line {@%d}), which no expect_tx announces", bytes,
                  m.address, at);
  } else if (m.pending && m.pending < m.expected) {
    at = m.init_inst;
    std::snprintf(text, sizeof text,
                  "line {@%d} sets mbarrier 0x%x to %u arrivals a phase, and only %u come (the last at line {@%d})", at,
                  m.address, m.expected, m.expected - m.pending, m.last_arrive_inst);
  }
  return text;
}

const char* remedy(const Cta& cta, const Group& group) {
  if (group.kind == WaitKind::NamedBarrier)
    return "let every thread that the barrier counts reach it, or give the number of threads that do";
  if (group.kind == WaitKind::ClusterBarrier)
    return "let every thread of every CTA of the cluster reach barrier.cluster.arrive, or exit";
  if (group.kind == WaitKind::Registers)
    return "let the setmaxnreg values of all warps sum up to at most registers per thread × threads of the launch; "
           "__launch_bounds__ decides the registers per thread";
  if (group.kind == WaitKind::PeerCta)
    return "let one warp of each CTA of the pair execute it, and nothing that one of them does first wait for the other's";
  if (group.kind != WaitKind::Mbarrier) return "";
  const Mbar* m = mbar_of(cta, group.address);
  if (m && m->tx && !m->pending)
    return "expect exactly the bytes that the copies of this phase bring (full boxes, clipped or not)";
  return "check the count of mbarrier.init against the arrivals of a phase, and the parity that the waiter asks for";
}

}  // namespace

std::string warp_list(const std::vector<int>& warps) {
  std::string text = warps.size() == 1 ? "warp " : "warps ";
  for (size_t i = 0; i < warps.size();) {
    size_t end = i;
    while (end + 1 < warps.size() && warps[end + 1] == warps[end] + 1) ++end;
    if (i) text += ", ";
    text += std::to_string(warps[i]);
    if (end > i) text += (end == i + 1 ? ", " : "-") + std::to_string(warps[end]);
    i = end + 1;
  }
  return text;
}

void report_deadlock(const std::vector<Cta*>& ctas) {
  std::vector<Group> groups;
  for (Cta* cta : ctas) {
    if (cta->ended) continue;
    add_waiters(*cta, groups);
    cta->outcome = Outcome::Hang;
  }
  for (Group& group : groups) {
    group.rank = rank(*group.cta, group);
    ++group.cta->findings.limit;
  }
  std::stable_sort(groups.begin(), groups.end(), [](const Group& a, const Group& b) { return a.rank < b.rank; });
  bool first = true;
  for (const Group& group : groups) {
    Cta& cta = *group.cta;
    const Mbar* m = group.kind == WaitKind::Mbarrier ? mbar_of(cta, group.address) : nullptr;
    if (!cta.shadow || !m) continue;
    for (const int warp : group.warps)
      cta.shadow->stuck(cta.warps[static_cast<size_t>(warp)], group.inst, *m, group.parity);
  }
  for (const Group& group : groups) {
    Cta& cta = *group.cta;
    Warp& w = cta.warps[static_cast<size_t>(group.warps.front())];
    FindingRecord* f = cta.findings.add(cta, &w, group.lane, "emulator.deadlock", Severity::Error, group.inst,
                                        static_cast<int>(group.address) | 1 << 30);
    if (!f) continue;
    f->other_inst = -1;
    f->address = group.address;
    f->fatal = first;
    const std::string who = warp_list(group.warps) + of_cta(cta), what = described(cta, group);
    const char* plural = group.warps.size() == 1 ? "s" : "";
    const Mbar* m = group.kind == WaitKind::Mbarrier ? mbar_of(cta, group.address) : nullptr;
    int at = -1;
    const std::string why = first && m ? cause(*m, at) : "";
    if (why.empty())
      f->say("%s: %s wait%s %s", first ? "deadlock" : "also waiting in the deadlock", who.c_str(), plural, what.c_str());
    else
      f->say("deadlock: %s; %s wait%s for it at line {@%d} (parity %u, phase %llu)", why.c_str(), who.c_str(), plural,
             group.inst, group.parity, static_cast<unsigned long long>(m->phases));
    f->party(0, who.c_str(), "waited %s", what.c_str());
    if (at >= 0) {
      f->inst = at;
      f->other_inst = group.inst;
      f->party(1, who.c_str(), "waited %s", what.c_str());
      if (at == m->init_inst)
        f->party(0, "mbarrier.init", "set the count of mbarrier 0x%x to %u", m->address, m->expected);
      else
        f->party(0, "expect_tx", "announced the bytes of a phase of mbarrier 0x%x", m->address);
    } else if (m) {
      f->other_inst = m->init_inst;
      f->party(1, "mbarrier.init", "set the count of mbarrier 0x%x to %u", m->address, m->expected);
    }
    f->mend("%s", remedy(cta, group));
    first = false;
  }
}
