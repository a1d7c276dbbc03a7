// Clocks, random bytes and process functions of libc that this program answers in its place.
#pragma once

#include <cstdint>

namespace recorder {

// Two recordings get different seeds, so that host code which depends on time or randomness gives itself away.
void seed_clock_and_random(std::uint64_t seed);

// A time that no clock has: it starts at a date given by the seed and advances with every look.
std::uint64_t fake_time_ns();

// From here on the process is the submission's: failing allocations, exits and threads are its own.
void submission_begins();

// The dynamic linker's own dlopen; the one that host code sees knows no libraries.
void* load_library(const char* file, int flags);

}  // namespace recorder
