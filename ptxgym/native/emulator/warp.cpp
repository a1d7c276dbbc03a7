// The warp loop: chooses a group of lanes with equal program counter and runs it straight on until it meets another
// group.
#include <algorithm>
#include <climits>

#include "schedule.hpp"

namespace {

constexpr int POLL_LIMIT = 8;  // polling instructions before others get their turn

struct Choice {
  int pc;
  uint32_t group;
  int meets;   // the nearest program counter beyond `pc` where other lanes can run
  bool alone;  // no other lane of the warp can run
};

Choice choose(Warp& w, uint32_t runnable) {
  const uint32_t wanted = (w.released & runnable) ? w.released & runnable : runnable;
  int lowest = INT_MAX, beyond = INT_MAX;
  for (int lane = 0; lane < LANES; ++lane) {
    const int at = (wanted >> lane & 1) ? w.pc[lane] : INT_MAX;
    lowest = std::min(lowest, at);
    beyond = std::min(beyond, at > w.skip_pc ? at : INT_MAX);
  }
  Choice choice{beyond != INT_MAX ? beyond : lowest, 0, INT_MAX, true};
  w.skip_pc = -1;
  for (int lane = 0; lane < LANES; ++lane)
    choice.group |= static_cast<uint32_t>((wanted >> lane & 1) && w.pc[lane] == choice.pc) << lane;
  const uint32_t rest = runnable & ~choice.group;
  choice.alone = rest == 0;
  for (uint32_t left = rest; left; left &= left - 1) {
    const int at = w.pc[first_lane(left)];
    if (at > choice.pc) choice.meets = std::min(choice.meets, at);
  }
  return choice;
}

void set_pc(Warp& w, uint32_t lanes, int pc) {
  if (lanes == FULL_MASK)
    std::fill(w.pc, w.pc + LANES, pc);
  else
    for_lanes(lanes, [&](int lane) { w.pc[lane] = pc; });
}

// Releases parked lanes whose collective is complete; false if there are none.
bool release_parked(const Program& program, Warp& w) {
  uint32_t freed = 0, warp_sync = 0;
  for (uint32_t rest = w.parked; rest; rest &= rest - 1) {
    const int lane = first_lane(rest);
    if (program.kernel.inst[w.pc[lane]].op == OP_BAR_WARP_SYNC) warp_sync |= 1u << lane;
  }
  for (uint32_t rest = w.parked; rest;) {
    const int pc = w.pc[first_lane(rest)];
    uint32_t here = 0;
    for_lanes(rest, [&](int lane) { here |= static_cast<uint32_t>(w.pc[lane] == pc) << lane; });
    rest &= ~here;
    if (program.slots[pc].park == ParkKind::Members) {
      const Inst& inst = program.kernel.inst[pc];
      // bar.warp.sync synchronises lanes at different places; the others exchange values between lanes at the same
      // instruction.
      freed |= complete_members(w, inst, here, inst.op == OP_BAR_WARP_SYNC ? warp_sync : here);
    } else if (here == w.live) {
      freed |= here;
    }
  }
  w.parked &= ~freed;
  w.released |= freed;
  return freed != 0;
}

// Arrivals on mbarriers. Without delays, what they announce is done at once. On hardware it takes long enough for all
// warps that wait for the phase to come to their wait: they get their turn before the arriving warp can run through
// another one, which by parity would look as if the first had never been.
bool arrives(uint16_t op) { return op == OP_MBAR_ARRIVE || op == OP_MBAR_EXPECT_TX || op == OP_TCGEN05_COMMIT; }

void stuck_apart(Cta& cta, Warp& w) {
  const int lane = first_lane(w.parked), pc = w.pc[lane];
  uint32_t here = 0;
  for_lanes(w.parked, [&](int l) { here |= static_cast<uint32_t>(w.pc[l] == pc) << l; });
  const uint32_t elsewhere = w.parked & ~here;
  const Inst& inst = cta.program.kernel.inst[pc];
  if (elsewhere) {
    const int other = w.pc[first_lane(elsewhere)];
    cta.fault(w, inst, lane, "sync.divergent_collective",
              "lanes 0x%x of warp %d wait for their whole warp at {@%d} while lanes 0x%x wait at {@%d}: a collective "
              "instruction "
              "must be reached by all its lanes together",
              here, w.id, pc, elsewhere, other);
  } else {
    cta.fault(w, inst, lane, "sync.missing_lanes",
              "lanes 0x%x of warp %d wait at {@%d} for member lanes that never come", here, w.id, pc);
  }
}

}  // namespace

uint32_t complete_members(const Warp& w, const Inst& inst, uint32_t mask, uint32_t present) {
  const uint32_t* members = reinterpret_cast<const uint32_t*>(w.regs + inst.e);
  const uint32_t missing = w.live & ~present;
  uint32_t complete = 0;
  for (int lane = 0; lane < LANES; ++lane) complete |= static_cast<uint32_t>((members[lane] & missing) == 0) << lane;
  return complete & mask;
}

void Warp::block(uint32_t lanes, const Wait& why, bool again) {
  blocked |= lanes;
  if (again)
    retry |= lanes;
  else
    retry &= ~lanes;
  for_lanes(lanes, [&](int lane) { wait[lane] = why; });
}

Turn run_warp(Cta& cta, Warp& w, int64_t quantum) {
  const Program& program = cta.program;
  const Inst* const code = program.kernel.inst;
  const Slot* const slots = program.slots.data();
  const uint8_t* const watched = cta.shadow ? cta.shadow->watched() : nullptr;
  const uint8_t* const suspects = program.suspects.empty() ? nullptr : program.suspects.data();
  uint64_t* const warp_counts = cta.warp_counts;
  uint64_t* const thread_counts = cta.thread_counts;
  const int64_t allowed = quantum;
  int64_t left = quantum;
  w.polls = 0;
  cta.turn = &w;
  if (w.seen_events != cta.events) {
    w.seen_events = cta.events;
    w.blocked &= ~w.retry;
    w.retry = 0;
  }
  const bool arrivals_end_turns = cta.grid.policy == Policy::Eager;
  bool stop = false;
  while (!stop && left > 0) {
    const uint32_t runnable = w.live & ~(w.blocked | w.parked);
    if (!runnable) {
      if (w.parked && release_parked(program, w)) continue;
      if (w.parked && w.parked == w.live) stuck_apart(cta, w);
      break;
    }
    const Choice choice = choose(w, runnable);
    const uint32_t group = choice.group;
    int pc = choice.pc;
    bool come_together = (w.released & group) == group;
    w.released &= ~group;
    w.group = group;
    for (bool running = true; running;) {
      const Inst& inst = code[pc];
      const Slot& slot = slots[pc];
      uint32_t mask = group;
      if (inst.guard >= 0) mask &= inst.guard_not ? ~w.pred(inst.guard) : w.pred(inst.guard);
      if (slot.park != ParkKind::None && !come_together) {
        if (slot.park == ParkKind::Aligned) {
          if (mask && group != w.live) {  // lanes that its guard leaves out go by
            set_pc(w, group, pc);
            w.parked |= group;
            release_parked(program, w);
            break;
          }
        } else if (mask && complete_members(w, inst, mask, mask) != mask) {
          set_pc(w, group & ~mask, pc + 1);
          set_pc(w, mask, pc);
          w.parked |= mask;
          release_parked(program, w);
          break;
        }
      }
      come_together = false;
      w.cur = pc;
      Step step = Step::Next;
      if (mask) {
        if (watched && watched[pc] & w.watch) cta.shadow->registers(w, pc);
        if (suspects && suspects[pc]) check_suspect(cta, w, inst, mask);
        if (__builtin_expect(arrivals_end_turns && arrives(inst.op), false)) {  // the others keep nothing over the call
          const uint64_t events = cta.events;
          step = slot.handler(cta, w, inst, mask);
          if (step == Step::Next && cta.events != events) step = Step::Yield;
        } else {
          step = slot.handler(cta, w, inst, mask);
        }
      }
      uint32_t done = mask;
      if (__builtin_expect(step == Step::Next, true)) {
        ++pc;  // nearly always, and so not left to the jump table of the others
      } else switch (step) {
        case Step::Next: break;
        case Step::Jump: {
          const bool backward = w.next_pc <= pc;
          warp_counts[pc] += 1;
          thread_counts[pc] += static_cast<uint32_t>(__builtin_popcount(done));
          --left;
          pc = w.next_pc;
          if (left <= 0 || (!choice.alone && (backward || pc >= choice.meets))) {
            set_pc(w, group, pc);
            running = false;
          }
          continue;
        }
        case Step::Split: running = false; break;
        case Step::Block:
          done = mask & ~w.blocked;
          set_pc(w, group, pc + 1);
          set_pc(w, mask & w.blocked, pc);
          running = false;
          if (!done) continue;
          break;
        case Step::Park:
          set_pc(w, group, pc);
          w.parked |= group;
          release_parked(program, w);
          running = false;
          continue;
        case Step::Yield:
          set_pc(w, group, pc + 1);
          running = false;
          stop = true;
          break;
        case Step::Exit:
          set_pc(w, group & ~mask, pc + 1);
          cta.lanes_exit(w, inst, mask);
          running = false;
          break;
        case Step::Fault:
          set_pc(w, group, pc);
          stop = true;
          running = false;
          continue;
      }
      // Step::Next has moved on already; the others still stand at the instruction they count for.
      const int counted = w.cur;
      warp_counts[counted] += 1;
      thread_counts[counted] += static_cast<uint32_t>(__builtin_popcount(done));
      --left;
      if (step == Step::Next && (left <= 0 || pc >= choice.meets)) {
        set_pc(w, group, pc);
        running = false;
      }
      if (w.polls >= POLL_LIMIT) {
        if (running) set_pc(w, group, pc);
        running = false;
        stop = true;
        if (!choice.alone) w.skip_pc = counted;
      }
    }
    if (!choice.alone && w.executed >> 16 != (w.executed + static_cast<uint64_t>(allowed - left)) >> 16)
      w.skip_pc = w.cur;
  }
  const uint64_t executed = static_cast<uint64_t>(allowed - left);
  w.executed += executed;
  cta.warp_instructions += executed;
  if (!executed) return Turn::Idle;
  return w.polls >= POLL_LIMIT ? Turn::Polling : Turn::Progress;
}
