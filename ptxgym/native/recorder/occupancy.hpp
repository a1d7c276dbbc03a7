// How many CTAs and clusters the device of the profile keeps resident.
#pragma once

#include <cstddef>

#include "state.hpp"

namespace recorder {

// CTAs of `threads` threads and `dynamic_smem_bytes` that fit one SM together; 0 where one does not fit.
int blocks_per_sm(const Kernel& kernel, int threads, std::size_t dynamic_smem_bytes);

// Largest dynamic shared memory with which `blocks` CTAs of `threads` threads fit one SM.
std::size_t available_smem_bytes(const Kernel& kernel, int blocks, int threads);

// Clusters of `ctas` CTAs that the device keeps resident at a time; a lower bound, since GPCs differ from chip to chip.
int active_clusters(const Kernel& kernel, int ctas, int threads, std::size_t dynamic_smem_bytes);

// Registers that the hardware's check of a launch counts for one CTA: its warps are rounded up to the SM's partitions.
int registers_per_block(const Kernel& kernel, int threads);

// The most threads with which a CTA can be launched: its bound, and what its registers leave.
int launchable_threads(const Kernel& kernel);

}  // namespace recorder
