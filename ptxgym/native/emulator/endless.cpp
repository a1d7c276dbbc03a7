// Hangs that are no deadlock: warps that poll for ever, and loops that never end.
//
// A warp that only polls is in a loop for ever once a state of its own comes back while nothing that it can see
// changes: registers and local memory decide what it does next. Where values keep changing (a counter, a sum), nothing
// can be proved; then the loop ends the launch when one CTA has done by itself more than a whole task takes.
#include <algorithm>

#include "schedule.hpp"

namespace {

constexpr uint64_t FIRST_SNAPSHOT = 16, SNAPSHOT_STEP = 64;  // idle rounds
// Of the launch's budget: instructions of one CTA while it stores nothing and arrives nowhere; and its stores and
// arrivals. The tasks' budgets are about two warp instructions, 64 thread instructions, per multiply-add. So the first
// is more than a plain loop takes (8 each) if one CTA does the whole task and stores once at the end; the second is four
// stores for every multiply-add of the task, all by one CTA. CTAs that communicate may together store twice that.
constexpr uint64_t QUIET_SHARE = 5, EFFECTS_SHARE = 16, LEAST_QUIET = 8'000'000, LEAST_EFFECTS = 4'000'000;

// All that decides what a warp does next while memory stays as it is.
struct WarpSnapshot {
  std::vector<uint8_t> registers, local;
  int pc[LANES] = {};
  uint32_t masks[7] = {};
  int skip_pc = -1;
  bool taken = false, came_back = false;
};

struct LocalMemory {
  const uint8_t* begin;
  size_t bytes;
};
LocalMemory local_of(const Cta& cta, const Warp& w) {
  const size_t bytes = static_cast<size_t>(cta.program.kernel.local_bytes) * LANES;
  return {cta.local.data() + bytes * static_cast<size_t>(w.id), bytes};
}

// Calls that the lanes are in.
uint32_t depth(const Cta& cta, const Warp& w) {
  size_t sum = 0;
  if (!cta.frames.empty())
    for (const std::vector<int32_t>& returns : cta.frames[static_cast<size_t>(w.id)].returns) sum += returns.size();
  return static_cast<uint32_t>(sum);
}

void take(const Cta& cta, const Warp& w, WarpSnapshot& out) {
  const LocalMemory local = local_of(cta, w);
  out.registers.assign(w.regs, w.regs + cta.program.warp_image.size());
  out.local.assign(local.begin, local.begin + local.bytes);
  std::copy(w.pc, w.pc + LANES, out.pc);
  const uint32_t masks[7] = {w.live, w.blocked, w.retry, w.parked, w.released, w.timed_out, depth(cta, w)};
  std::copy(masks, masks + 7, out.masks);
  out.skip_pc = w.skip_pc;
  out.taken = true;
  out.came_back = false;
}

// Lanes that can run at different places take turns by a count that is no part of a snapshot: of them nothing is proved.
bool together(const Warp& w) {
  const uint32_t runnable = w.live & ~(w.blocked | w.parked);
  bool all = true;
  for (uint32_t rest = runnable; rest; rest &= rest - 1)
    all &= w.pc[first_lane(rest)] == w.pc[first_lane(runnable)];
  return all;
}

bool same(const Cta& cta, const Warp& w, const WarpSnapshot& then) {
  const uint32_t masks[7] = {w.live, w.blocked, w.retry, w.parked, w.released, w.timed_out, depth(cta, w)};
  if (!then.taken || !together(w) || w.skip_pc != then.skip_pc) return false;
  if (!std::equal(masks, masks + 7, then.masks)) return false;
  for (int lane = 0; lane < LANES; ++lane)
    if ((w.live >> lane & 1) && w.pc[lane] != then.pc[lane]) return false;
  return std::equal(then.registers.begin(), then.registers.end(), w.regs) &&
         std::equal(then.local.begin(), then.local.end(), local_of(cta, w).begin);
}

uint64_t noticed(const Cta& cta) { return cta.effects + cta.events; }
uint64_t effects_limit(const Grid& grid) { return std::max(LEAST_EFFECTS, grid.budget / EFFECTS_SHARE); }

// The warp that executed most, and the loop in which its CTA spent most: the first instruction of its body.
struct Loop {
  const Warp* warp;
  int head, branch;
};
Loop busiest_loop(const Cta& cta) {
  Loop loop{&cta.warps.front(), -1, -1};
  for (const Warp& w : cta.warps)
    if (w.live && (!loop.warp->live || w.executed > loop.warp->executed)) loop.warp = &w;
  const Kernel& kernel = cta.program.kernel;
  uint64_t most = 0;
  for (int i = 0; i < kernel.ninst; ++i) {
    if (kernel.inst[i].op != OP_BRA || kernel.inst[i].target > i || cta.warp_counts[i] <= most) continue;
    most = cta.warp_counts[i];
    loop.head = kernel.inst[i].target;
    loop.branch = i;
  }
  if (loop.head < 0) loop.head = loop.branch = loop.warp->cur;
  return loop;
}

void report_endless(Cta& cta, const char* what, uint64_t count) {
  const Loop loop = busiest_loop(cta);
  const int lane = loop.warp->live ? first_lane(loop.warp->live) : 0;
  cta.outcome = Outcome::Hang;
  ++cta.findings.limit;
  FindingRecord* f =
      cta.findings.add(cta, loop.warp, lane, "emulator.endless_loop", Severity::Error, loop.head, loop.branch);
  if (!f) return;
  f->fatal = 1;
  f->say("the loop of line {@%d} does not end, or far too late: lane %d of warp %d in CTA (%u, %u, %u) is still in it "
         "after %llu %s of its CTA, more than the whole task takes",
         loop.head, lane, loop.warp->id, cta.id[0], cta.id[1], cta.id[2], static_cast<unsigned long long>(count), what);
  f->party(0, warp_list({loop.warp->id}).c_str(), "goes round the loop");
  f->party(1, "the branch back", "closes the loop");
  f->mend("check the condition that ends the loop, the step of its counter, and what changes the value it waits for");
}

}  // namespace

struct Recurrence {
  std::vector<WarpSnapshot> warps;
  uint64_t taken_at = 0;  // idle rounds; 0: no snapshot
  bool proved = false;
};

bool recurs(const Cta& cta) { return cta.ended || (cta.recurrence && cta.recurrence->proved); }

void forget_idle(Cta& cta) {
  if (cta.recurrence) *cta.recurrence = Recurrence();
}

void watch_idle(Cta& cta) {
  if (cta.idle_rounds < FIRST_SNAPSHOT) return;
  if (!cta.recurrence) cta.recurrence = std::make_shared<Recurrence>();
  Recurrence& known = *cta.recurrence;
  if (known.proved) return;
  if (known.taken_at) {
    bool all = true;
    for (size_t i = 0; i < cta.warps.size(); ++i) {
      WarpSnapshot& then = known.warps[i];
      then.came_back = then.came_back || !cta.warps[i].live || same(cta, cta.warps[i], then);
      all &= then.came_back;
    }
    known.proved = all;
  }
  const uint64_t rounds = cta.idle_rounds;
  if (!known.proved && ((rounds & (rounds - 1)) == 0 || (!known.taken_at && rounds % SNAPSHOT_STEP == 0))) {
    known.warps.resize(cta.warps.size());
    for (size_t i = 0; i < cta.warps.size(); ++i) take(cta, cta.warps[i], known.warps[i]);
    known.taken_at = rounds;
  }
}

bool runs_without_end(Cta& cta) {
  const uint64_t budget = cta.grid.budget;
  const uint64_t total = noticed(cta);
  if (total != cta.effects_then) {
    cta.effects_then = total;
    cta.quiet_since = cta.warp_instructions;
    if (total <= effects_limit(cta.grid)) return false;
    report_endless(cta, "stores and arrivals", total);
    return true;
  }
  const uint64_t quiet = cta.warp_instructions - cta.quiet_since;
  if (quiet <= std::max(LEAST_QUIET, budget / QUIET_SHARE)) return false;
  report_endless(cta, "warp instructions without a store or an arrival", quiet);
  return true;
}

bool run_without_end(const std::vector<Cta*>& ctas) {
  uint64_t total = 0;
  Cta* busiest = ctas.front();
  for (Cta* cta : ctas) {
    total += noticed(*cta);
    if (noticed(*cta) > noticed(*busiest)) busiest = cta;
  }
  if (total <= 2 * effects_limit(busiest->grid)) return false;
  report_endless(*busiest, "stores and arrivals", noticed(*busiest));
  return true;
}

void report_livelock(Cta& cta) {
  cta.outcome = Outcome::Hang;
  cta.findings.limit += cta.warps.size();
  bool first = true;
  for (Warp& w : cta.warps) {
    if (!w.live) continue;
    const int lane = first_lane(w.live);
    const int at = (w.blocked >> lane & 1) ? w.wait[lane].inst : w.cur;
    FindingRecord* f = cta.findings.add(cta, &w, lane, "emulator.livelock", Severity::Error, at);
    if (!f) continue;
    f->fatal = first;
    f->say("%s: warp %d polls at {@%d} for a value that no running thread writes",
           first ? "livelock" : "also in the livelock", w.id, at);
    f->mend(
        "make sure that the thread that signals runs (all CTAs that wait for each other must be resident) and that it "
        "gets there");
    first = false;
  }
}
