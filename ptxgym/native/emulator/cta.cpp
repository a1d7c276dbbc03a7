// One CTA: its start, the turns of its warps, exits and faults.
#include <algorithm>

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

// Value of a special register that is fixed for the life of a thread.
uint64_t special(const Cta& cta, int warp, int lane, uint32_t which) {
  const Grid& g = cta.grid;
  const uint32_t thread = static_cast<uint32_t>(warp) * LANES + static_cast<uint32_t>(lane);
  const uint32_t bit = 1u << lane;
  switch (which) {
    case SR_TID_X: return thread % g.block[0];
    case SR_TID_Y: return thread / g.block[0] % g.block[1];
    case SR_TID_Z: return thread / (g.block[0] * g.block[1]);
    case SR_NTID_X: return g.block[0];
    case SR_NTID_Y: return g.block[1];
    case SR_NTID_Z: return g.block[2];
    case SR_CTAID_X:
    case SR_CLUSTERID_X: return cta.id[0];
    case SR_CTAID_Y:
    case SR_CLUSTERID_Y: return cta.id[1];
    case SR_CTAID_Z:
    case SR_CLUSTERID_Z: return cta.id[2];
    case SR_NCTAID_X:
    case SR_NCLUSTERID_X: return g.grid[0];
    case SR_NCTAID_Y:
    case SR_NCLUSTERID_Y: return g.grid[1];
    case SR_NCTAID_Z:
    case SR_NCLUSTERID_Z: return g.grid[2];
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
    case SR_TOTAL_SMEM: return static_cast<uint64_t>(cta.program.kernel.static_smem_bytes) + g.dynamic_smem_bytes;
    case SR_DYNAMIC_SMEM: return g.dynamic_smem_bytes;
    case SR_AGGR_SMEM:
      return static_cast<uint64_t>(cta.program.kernel.static_smem_bytes) + g.dynamic_smem_bytes + SMEM_BASE;
    case SR_CLUSTER_NCTARANK:
    case SR_CLUSTER_NCTAID_X:
    case SR_CLUSTER_NCTAID_Y:
    case SR_CLUSTER_NCTAID_Z: return 1;
    default: return 0;
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
  shadow = p.kernel.features & (FEAT_SHARED | FEAT_ASYNC | FEAT_BARRIER) ? make_shadow(*this) : nullptr;
  findings.limit = g.max_findings;
}

void Cta::start(uint64_t linear_index) {
  const Kernel& k = program.kernel;
  linear = linear_index;
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
  idle_rounds = 0;
  hot_buffer = 0;

  const size_t bytes = program.warp_image.size();
  registers.resize(bytes * grid.warps_per_cta + 64);
  const uintptr_t unaligned = reinterpret_cast<uintptr_t>(registers.data());
  uint8_t* first = registers.data() + ((unaligned + 63) / 64 * 64 - unaligned);
  warps.assign(grid.warps_per_cta, Warp());
  for (uint32_t i = 0; i < grid.warps_per_cta; ++i) {
    Warp& w = warps[i];
    w.regs = first + bytes * i;
    w.id = static_cast<int>(i);
    const uint32_t rest = grid.threads_per_cta - i * LANES;
    w.initial = w.live = rest >= LANES ? FULL_MASK : (1u << rest) - 1;
    std::memcpy(w.regs, program.warp_image.data(), bytes);
    for (int64_t s = 0; s < k.nsreg; ++s) {
      const SregInit& init = k.sregs[s];
      for (int lane = 0; lane < LANES; ++lane) {
        const uint64_t value = special(*this, w.id, lane, init.sreg);
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

void Cta::lanes_exit(Warp& w, const Inst& inst, uint32_t lanes) {
  if (tensor) tensor->lanes_exit(*this, w, index_of(inst), lanes);
  w.live &= ~lanes;
  if (!w.live && shadow) shadow->exit(w, index_of(inst));
  recheck_barriers(*this);
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

Slice run_slice(Cta& cta) {
  ++cta.now;
  cta.stored = false;
  const bool random = cta.grid.policy == Policy::Random;
  bool progress = cta.async.pump(cta, cta.now), polling = false, alive = false;
  const size_t count = cta.warps.size(), first = random ? cta.random() % count : 0;
  for (size_t i = 0; i < count; ++i) {
    Warp& w = cta.warps[(first + i) % count];
    if (!w.live) continue;
    int64_t quantum = random ? 1 + static_cast<int64_t>(cta.random() % RANDOM_QUANTUM) : FAIR_QUANTUM;
    const uint64_t remaining = cta.grid.budget - std::min(cta.grid.budget, cta.warp_instructions);
    quantum = static_cast<int64_t>(std::min<uint64_t>(static_cast<uint64_t>(quantum), remaining));
    if (!quantum) {
      cta.outcome = Outcome::Budget;
      return Slice::Failed;
    }
    const Turn turn = run_warp(cta, w, quantum);
    progress |= turn == Turn::Progress;
    polling |= turn == Turn::Polling;
    alive |= w.live != 0;
    if (cta.outcome != Outcome::Ok) return Slice::Failed;
  }
  if (!alive) {
    if (cta.tensor) cta.tensor->cta_exit(cta);
    if (cta.shadow) cta.shadow->finish();
    while (cta.outcome == Outcome::Ok && cta.async.force(cta)) {}
    return cta.outcome == Outcome::Ok ? Slice::Finished : Slice::Failed;
  }
  cta.idle_rounds = progress || cta.stored ? 0 : cta.idle_rounds + 1;
  if (progress) return Slice::Progress;
  if (cta.async.force(cta)) return cta.outcome == Outcome::Ok ? Slice::Progress : Slice::Failed;
  if (polling) return Slice::Waiting;
  // Events of the last turns may have woken lanes of warps that had their turn before.
  for (Warp& w : cta.warps)
    if (w.live && (w.seen_events != cta.events || (w.live & ~(w.blocked | w.parked)))) return Slice::Progress;
  // A try_wait may return false after its time limit, and the thread go on to do what others wait for. Only when that
  // changes nothing either is it a deadlock.
  if (cta.timeout_events != cta.events && time_out_waits(cta)) {
    cta.timeout_events = cta.events;
    return Slice::Progress;
  }
  report_deadlock(cta);
  return Slice::Failed;
}

void run_to_end(Cta& cta) {
  for (;;) {
    const Slice slice = run_slice(cta);
    if (slice == Slice::Finished || slice == Slice::Failed) return;
    if (cta.idle_rounds > IDLE_LIMIT) return report_livelock(cta);
    if (cta.grid.conflict.load(std::memory_order_relaxed)) return;
  }
}
