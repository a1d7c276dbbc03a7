// One CTA: its start, the turns of its warps, exits and faults.
#include <algorithm>

#include "lanes.hpp"
#include "schedule.hpp"

namespace {

constexpr int64_t FAIR_QUANTUM = 512;    // warp instructions of a turn
constexpr uint64_t RANDOM_QUANTUM = 64;  // at most, under the random policy
constexpr uint8_t POISON = 0xff;         // NaN in every float format
constexpr uint32_t SM_COUNT = 132;       // H100 SXM: %smid counts CTAs round robin

uint64_t mixed(uint64_t x) {  // splitmix64
  x += 0x9e3779b97f4a7c15ull;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ull;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebull;
  return x ^ (x >> 31);
}

// Static and dynamic shared memory in multiples of the allocation unit of sm_9x and sm_10x (PTX ISA 10.30).
uint64_t allocated_smem(const Cta& cta) {
  constexpr uint64_t UNIT = 128;
  const uint64_t used = static_cast<uint64_t>(cta.program.kernel.static_smem_bytes) + cta.grid.dynamic_smem_bytes;
  return (used + UNIT - 1) / UNIT * UNIT;
}

// Value of a special register that is fixed for the life of a thread.
uint64_t special(const Cta& cta, int warp, int lane, uint32_t which) {
  const Grid& g = cta.grid;
  const uint32_t* const n = g.cluster;
  const uint32_t thread = static_cast<uint32_t>(warp) * LANES + static_cast<uint32_t>(lane);
  const uint32_t bit = 1u << lane;
  switch (which) {
    case SR_TID_X: return thread < g.block[0] ? thread : thread % g.block[0];
    case SR_TID_Y: return thread / g.block[0] % g.block[1];
    case SR_TID_Z: return thread / (g.block[0] * g.block[1]);
    case SR_NTID_X: return g.block[0];
    case SR_NTID_Y: return g.block[1];
    case SR_NTID_Z: return g.block[2];
    case SR_CTAID_X: return cta.id[0];
    case SR_CTAID_Y: return cta.id[1];
    case SR_CTAID_Z: return cta.id[2];
    case SR_NCTAID_X: return g.grid[0];
    case SR_NCTAID_Y: return g.grid[1];
    case SR_NCTAID_Z: return g.grid[2];
    case SR_CLUSTERID_X: return cta.id[0] / n[0];
    case SR_CLUSTERID_Y: return cta.id[1] / n[1];
    case SR_CLUSTERID_Z: return cta.id[2] / n[2];
    case SR_NCLUSTERID_X: return g.grid[0] / n[0];
    case SR_NCLUSTERID_Y: return g.grid[1] / n[1];
    case SR_NCLUSTERID_Z: return g.grid[2] / n[2];
    case SR_CLUSTER_CTAID_X: return cta.id[0] % n[0];
    case SR_CLUSTER_CTAID_Y: return cta.id[1] % n[1];
    case SR_CLUSTER_CTAID_Z: return cta.id[2] % n[2];
    case SR_CLUSTER_NCTAID_X: return n[0];
    case SR_CLUSTER_NCTAID_Y: return n[1];
    case SR_CLUSTER_NCTAID_Z: return n[2];
    case SR_CLUSTER_CTARANK: return cta.rank;
    case SR_CLUSTER_NCTARANK: return g.cluster_size;
    case SR_IS_EXPLICIT_CLUSTER: return g.explicit_cluster;
    case SR_ENVREG1: return g.workspace >> 32;
    case SR_ENVREG2: return g.workspace & 0xffff'ffffu;
    case SR_LANEID: return static_cast<uint32_t>(lane);
    case SR_WARPID: return static_cast<uint32_t>(warp);
    case SR_NWARPID: return 64;
    case SR_SMID: return cta.linear % SM_COUNT;
    case SR_NSMID: return SM_COUNT;
    case SR_GRIDID: return 1;
    case SR_LANEMASK_EQ: return bit;
    case SR_LANEMASK_LE: return bit | (bit - 1);
    case SR_LANEMASK_LT: return bit - 1;
    case SR_LANEMASK_GE: return ~(bit - 1);
    case SR_LANEMASK_GT: return ~(bit | (bit - 1));
    case SR_TOTAL_SMEM: return allocated_smem(cta);
    case SR_DYNAMIC_SMEM: return g.dynamic_smem_bytes;
    case SR_AGGR_SMEM: return allocated_smem(cta) + SMEM_BASE;
    default: return 0;
  }
}

bool differs_by_lane(uint32_t which) {
  switch (which) {
    case SR_TID_X:
    case SR_TID_Y:
    case SR_TID_Z:
    case SR_LANEID:
    case SR_LANEMASK_EQ:
    case SR_LANEMASK_LE:
    case SR_LANEMASK_LT:
    case SR_LANEMASK_GE:
    case SR_LANEMASK_GT: return true;
    default: return false;
  }
}

// Lets every suspended try_wait fail once; false if there is none.
bool time_out_waits(Cta& cta) {
  bool any = false;
  for (Warp& w : cta.warps) {
    uint32_t lanes = 0;
    for_lanes(w.live & w.blocked & w.retry,
              [&](int l) { lanes |= static_cast<uint32_t>(w.wait[l].kind == WaitKind::Mbarrier) << l; });
    w.timed_out = lanes;
    w.blocked &= ~lanes;
    w.retry &= ~lanes;
    any |= lanes != 0;
  }
  return any;
}

}  // namespace

Cta::Cta(Grid& g, const Program& p) : grid(g), program(p) {
  const uint32_t ordering = FEAT_SHARED | FEAT_ASYNC | FEAT_BARRIER | FEAT_COMMUNICATES;
  shadow = p.kernel.features & ordering || g.cluster_size > 1 ? make_shadow(*this) : nullptr;
  findings.limit = g.max_findings;
}

void Cta::start(Cluster& of, uint32_t rank_in_cluster, uint64_t cluster_index, uint64_t linear_index) {
  cluster = &of;
  rank = rank_in_cluster;
  tag = rank << RANK_SHIFT;
  start(linear_index);
  unit = cluster_index;
}

void Cta::start(uint64_t linear_index) {
  const Kernel& k = program.kernel;
  linear = unit = linear_index;
  ended = false;
  spare_registers = left_registers = lent_registers = 0;
  requests.clear();
  id[0] = static_cast<uint32_t>(linear % grid.grid[0]);
  id[1] = static_cast<uint32_t>(linear / grid.grid[0] % grid.grid[1]);
  id[2] = static_cast<uint32_t>(linear / grid.grid[0] / grid.grid[1]);
  smem_end = SMEM_BASE + static_cast<uint32_t>(k.static_smem_bytes) + grid.dynamic_smem_bytes;
  smem.assign((smem_end + 127u) / 16u * 16u, POISON);
  local.assign(static_cast<size_t>(k.local_bytes) * grid.warps_per_cta * LANES, POISON);
  mbars.clear();
  for (NamedBarrier& barrier : barriers) barrier = NamedBarrier();
  async.clear();
  findings.records.clear();
  outcome = Outcome::Ok;
  printed.clear();
  rng = mixed(grid.seed * 0x2545f4914f6cdd1dull + linear) | 1;
  now = clock = events = warp_instructions = tma_bytes = 0;
  timeout_events = ~0ull;
  effects = quiet_since = effects_then = idle_rounds = 0;
  recurrence = nullptr;
  frames.assign(program.calls ? grid.warps_per_cta : 0, CallFrames());
  maps.clear();
  turn = nullptr;
  waited = !grid.programmatic;
  triggered = cancel_failed = false;
  hot_buffer = 0;
  looked = false;

  const size_t bytes = program.warp_image.size();
  registers.resize(bytes * grid.warps_per_cta + 64);
  const uintptr_t unaligned = reinterpret_cast<uintptr_t>(registers.data());
  uint8_t* first = registers.data() + ((unaligned + 63) / 64 * 64 - unaligned);
  warps.assign(grid.warps_per_cta, Warp());
  for (uint32_t i = 0; i < grid.warps_per_cta; ++i) {
    Warp& w = warps[i];
    w.regs = first + bytes * i;
    w.id = static_cast<int>(i);
    w.home = this;
    w.held = grid.registers;
    w.label = static_cast<uint16_t>(cluster ? (rank + 1) << 8 | i : i);
    const uint32_t rest = grid.threads_per_cta - i * LANES;
    w.initial = w.live = rest >= LANES ? FULL_MASK : (1u << rest) - 1;
    std::memcpy(w.regs, program.warp_image.data(), bytes);
    for (int64_t c = 0; tag && c < k.nconst; ++c) {
      const Const& constant = k.consts[c];
      if (constant.width == (8 | SHARED_ADDRESS))
        write_lanes(w.reg<uint64_t>(constant.offset), FULL_MASK, [&](int) { return constant.lo + tag; });
      else if (constant.width & SHARED_ADDRESS)
        write_lanes(w.reg<uint32_t>(constant.offset), FULL_MASK,
                    [&](int) { return static_cast<uint32_t>(constant.lo) + tag; });
    }
    for (int64_t s = 0; s < k.nsreg; ++s) {
      const SregInit& init = k.sregs[s];
      const bool apart = differs_by_lane(init.sreg);
      uint64_t value = special(*this, w.id, 0, init.sreg);
      for (int lane = 0; lane < LANES; ++lane) {
        if (apart) value = special(*this, w.id, lane, init.sreg);
        if (init.width == 8)
          w.reg<uint64_t>(init.offset)[lane] = value;
        else if (init.width == 1)
          w.set_pred(init.offset, 1u << lane, value ? FULL_MASK : 0);
        else
          w.reg<uint32_t>(init.offset)[lane] = static_cast<uint32_t>(value);
      }
    }
  }
  tensor = program.needs_tensor_state ? make_tensor_state(*this) : nullptr;
  if (shadow) shadow->reset(*this);
}

uint64_t Cta::random() {
  rng ^= rng << 13;
  rng ^= rng >> 7;
  rng ^= rng << 17;
  return rng;
}

namespace {

// Whether the registers of warps that exited go to the others is documented nowhere.
void warn_of_lent_registers(Cta& cta, const Warp& w) {
  FindingRecord* f = cta.findings.add(cta, &w, -1, "setmaxnreg.pool", Severity::Warning, cta.lent_at);
  if (!f) return;
  f->say("setmaxnreg.inc gets its registers only if those of exited warps are given to it, which nothing promises: else "
         "the warp waits for ever");
  f->mend("let the setmaxnreg values of all warps sum up to at most registers per thread × threads of the launch");
}

}  // namespace

void Cta::lanes_exit(Warp& w, const Inst& inst, uint32_t lanes) {
  if (tensor) tensor->lanes_exit(*this, w, index_of(inst), lanes);
  w.live &= ~lanes;
  if (!w.live) {
    if (shadow) shadow->exit(w, index_of(inst));
    left_registers += w.held;
    const auto group = static_cast<size_t>(w.id / 4);
    w.left_early = requests.size() <= group || (requests[group].recent.empty() && !requests[group].dropped);
    wake();
  }
  recheck_barriers(*this);
  ended = std::none_of(warps.begin(), warps.end(), [](const Warp& each) { return each.live; });
  if (ended && lent_registers) warn_of_lent_registers(*this, w);
  if (ended && !requests.empty()) report_missing_requests(*this);
  if (program.clusters) recheck_cluster_barrier(*this);
}

void Cta::release(Warp& w, uint32_t lanes) { w.blocked &= ~lanes; }

Step Cta::fault(Warp& w, const Inst& inst, int lane, const char* code, const char* format, ...) {
  char text[sizeof(FindingRecord::message)];
  va_list args;
  va_start(args, format);
  std::vsnprintf(text, sizeof text, format, args);
  va_end(args);
  outcome = Outcome::RuntimeFault;
  findings.limit = std::max(findings.limit, findings.records.size() + 1);
  if (FindingRecord* f = findings.add(*this, &w, lane, code, Severity::Error, index_of(inst))) {
    f->fatal = 1;
    f->say("%s", text);
    char who[sizeof f->who[0]];
    if (lane < 0)
      std::snprintf(who, sizeof who, "warp %d, CTA (%u, %u, %u)", w.id, id[0], id[1], id[2]);
    else
      std::snprintf(who, sizeof who, "lane %d of warp %d, CTA (%u, %u, %u)", lane, w.id, id[0], id[1], id[2]);
    f->party(0, who, "executed {@%d}", index_of(inst));
  } else {  // a softer finding of the same kind stands already: it becomes the fatal one
    for (FindingRecord& record : findings.records)
      record.fatal |= record.inst == index_of(inst) && record.code == std::string(code);
  }
  return Step::Fault;
}

namespace {

struct Tour {  // what the warps of a CTA did in one turn each
  bool progress = false, polling = false, alive = false;
};

// One turn for every warp. False: the CTA failed.
bool tour(Cta& cta, Tour& out) {
  ++cta.now;
  cta.stored = false;
  const bool random = cta.grid.policy == Policy::Random;
  out.progress = cta.async.pump(cta, cta.now);
  const size_t count = cta.warps.size(), first = random ? cta.random() % count : 0;
  for (size_t i = 0; i < count; ++i) {
    Warp& w = cta.warps[(first + i) % count];
    if (!w.live) continue;
    int64_t quantum = random ? 1 + static_cast<int64_t>(cta.random() % RANDOM_QUANTUM) : FAIR_QUANTUM;
    const uint64_t remaining = cta.grid.budget - std::min(cta.grid.budget, cta.warp_instructions);
    quantum = static_cast<int64_t>(std::min<uint64_t>(static_cast<uint64_t>(quantum), remaining));
    if (!quantum) {
      cta.outcome = Outcome::Budget;
      return false;
    }
    const Turn turn = run_warp(cta, w, quantum);
    out.progress |= turn == Turn::Progress;
    out.polling |= turn == Turn::Polling;
    out.alive |= w.live != 0;
    if (cta.outcome != Outcome::Ok) return false;
  }
  return !runs_without_end(cta);
}

void finish(Cta& cta) {
  if (cta.tensor) cta.tensor->cta_exit(cta);
  if (cta.shadow) cta.shadow->finish();
  while (cta.outcome == Outcome::Ok && cta.async.force(cta)) {}
}

// Events of the last turns may have woken lanes of warps that had their turn before.
bool woken(const Cta& cta) {
  return std::any_of(cta.warps.begin(), cta.warps.end(), [&](const Warp& w) {
    return w.live && (w.seen_events != cta.events || (w.live & ~(w.blocked | w.parked)));
  });
}

// A try_wait may return false after its time limit, and the thread go on to do what others wait for. Only when that
// changes nothing either is it a deadlock.
bool timed_out(Cta& cta) {
  if (cta.timeout_events == cta.events || !time_out_waits(cta)) return false;
  cta.timeout_events = cta.events;
  return true;
}

Slice state_of(const Cta& cta, Slice good) { return cta.outcome == Outcome::Ok ? good : Slice::Failed; }

constexpr uint64_t STALLED = 4;  // of so many turns under the random policy, a CTA of a cluster loses one

}  // namespace

Slice run_slice(Cta& cta) {
  Tour done;
  if (!tour(cta, done)) return Slice::Failed;
  if (!done.alive) {
    finish(cta);
    return state_of(cta, Slice::Finished);
  }
  cta.idle_rounds = done.progress || cta.stored ? 0 : cta.idle_rounds + 1;
  if (!cta.idle_rounds) forget_idle(cta);
  if (done.progress) return Slice::Progress;
  if (cta.async.force(cta)) {
    forget_idle(cta);
    return state_of(cta, Slice::Progress);
  }
  if (done.polling) {
    watch_idle(cta);
    return Slice::Waiting;
  }
  if (woken(cta) || timed_out(cta)) return Slice::Progress;
  report_deadlock({&cta});
  return Slice::Failed;
}

// The CTAs take turns; what one does may let another go on, so only all together are they finished, idle or stuck.
Slice run_slice(Cluster& cluster) {
  const std::vector<Cta*>& ctas = cluster.ctas;
  Cta& leader = *ctas.front();
  const bool random = leader.grid.policy == Policy::Random;
  const size_t first = random ? leader.random() % ctas.size() : 0;
  Tour all;
  bool stored = false, stalled = false;
  for (size_t i = 0; i < ctas.size(); ++i) {
    Cta& cta = *ctas[(first + i) % ctas.size()];
    if (random && !cta.ended && leader.random() % STALLED == 0) {
      stalled = all.alive = true;
      continue;
    }
    Tour done;
    if (!tour(cta, done)) return Slice::Failed;
    all.progress |= done.progress;
    all.polling |= done.polling;
    all.alive |= done.alive;
    stored |= cta.stored;
  }
  const auto failed = [&] {
    return std::any_of(ctas.begin(), ctas.end(), [](const Cta* cta) { return cta->outcome != Outcome::Ok; });
  };
  if (failed()) return Slice::Failed;
  if (!all.alive) {
    for (Cta* cta : ctas) {
      finish(*cta);
      if (failed()) return Slice::Failed;
    }
    return Slice::Finished;
  }
  for (Cta* cta : ctas) {
    cta->idle_rounds = all.progress || stored ? 0 : cta->idle_rounds + 1;
    if (!cta->idle_rounds) forget_idle(*cta);
  }
  if (all.progress || stalled) return Slice::Progress;
  for (size_t i = 0; i < ctas.size(); ++i) {
    Cta& cta = *ctas[(first + i) % ctas.size()];
    if (!cta.async.force(cta)) continue;
    for (Cta* each : ctas) forget_idle(*each);
    return failed() ? Slice::Failed : Slice::Progress;
  }
  if (all.polling) {
    for (Cta* cta : ctas) watch_idle(*cta);
    return Slice::Waiting;
  }
  if (std::any_of(ctas.begin(), ctas.end(), [](const Cta* cta) { return woken(*cta); })) return Slice::Progress;
  bool any = false;
  for (Cta* cta : ctas) any |= timed_out(*cta);
  if (any) return Slice::Progress;
  report_deadlock(ctas);
  return Slice::Failed;
}
