// What a launch comes to.
#pragma once
#include "core.hpp"

struct LaunchResult {
  Outcome outcome = Outcome::Ok;
  bool reran = false;  // CTAs were not independent: they ran one after the other
  bool looked = false;  // some CTA has read memory that others may write: neither input nor const
  uint64_t warp_instructions = 0, tma_bytes = 0;
  std::vector<uint64_t> warp_counts, thread_counts;  // per instruction; zero where the launch failed
  std::vector<uint64_t> multiply_adds;               // the same: those that only the run knows
  int64_t busiest = -1;  // where it failed: the most executed instruction of the CTA that ended it
  std::vector<FindingRecord> findings;
  std::string printed;
};

// `only` is 0 for the whole launch, or 1 + the index of the one CTA (or cluster) that runs: others it must not wait for.
LaunchResult launch(Grid&, unsigned threads, uint64_t only = 0);
