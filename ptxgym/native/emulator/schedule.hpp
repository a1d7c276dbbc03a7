// How warps take turns; see warp.cpp and cta.cpp.
#pragma once
#include "core.hpp"

// What a warp did with its turn.
enum class Turn : uint8_t {
  Idle,     // nothing could execute
  Polling,  // it executed, but only asks again and again for something that others must do
  Progress,
};
Turn run_warp(Cta&, Warp&, int64_t quantum);

enum class Slice : uint8_t { Progress, Waiting, Finished, Failed };
// One turn for every warp of the CTA. Waiting: every warp polls memory that only another CTA can change. Failed: see
// Cta::outcome.
Slice run_slice(Cta&);
Slice run_slice(Cluster&);  // the same for every CTA of a cluster

// Named barriers (barrier.cpp): completes those whose expected count follows the number of live threads.
void recheck_barriers(Cta&);
// Deadlock (deadlock.cpp) of CTAs that are scheduled together: records every waiter, root cause first, and sets the
// outcome.
void report_deadlock(const std::vector<Cta*>&);
// The same where warps ask memory again and again for something that no thread will write (endless.cpp).
void report_livelock(Cta&);
constexpr uint64_t IDLE_LIMIT = 100'000;  // rounds of nothing but polling
void watch_idle(Cta&);      // after a round in which its warps only polled
void forget_idle(Cta&);     // after anything that they may notice
bool recurs(const Cta&);    // every warp that polls is back in a state that it has been in since
bool run_without_end(const std::vector<Cta*>&);  // the same of CTAs that communicate, together
bool runs_without_end(Cta&);  // after a turn: records the loop and sets the outcome where it is one without end

// Lanes of `mask` whose member masks (register e) are complete within `present`.
uint32_t complete_members(const Warp&, const Inst&, uint32_t mask, uint32_t present);
