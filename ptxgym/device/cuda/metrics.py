"""Which of Nsight Compute's metrics are collected, under its own names.

Source: `ncu --query-metrics`, and a report read on an H200 (Nsight Compute 2025.3.1). All of them together take
14 passes over a kernel, some 25 ms each beside the kernel itself.
"""

from __future__ import annotations

WARP_EXECUTIONS = "inst_executed"
THREAD_EXECUTIONS = "thread_inst_executed_true"
"""Executions by threads whose predicate was on."""
SAMPLES = "smsp__pcsamp_sample_count"
SHARED_WAVEFRONTS = "memory_l1_wavefronts_shared"
SHARED_WAVEFRONTS_IDEAL = "memory_l1_wavefronts_shared_ideal"

DURATION = "gpu__time_duration.sum"
TENSOR_PIPE = "sm__pipe_tensor_cycles_active.avg.pct_of_peak_sustained_elapsed"
SM_THROUGHPUT = "sm__throughput.avg.pct_of_peak_sustained_elapsed"
MEMORY_THROUGHPUT = "gpu__compute_memory_throughput.avg.pct_of_peak_sustained_elapsed"
DRAM_THROUGHPUT = "gpu__dram_throughput.avg.pct_of_peak_sustained_elapsed"
OCCUPANCY = "sm__warps_active.avg.pct_of_peak_sustained_active"
THEORETICAL_OCCUPANCY = "sm__maximum_warps_per_active_cycle_pct"
REGISTERS = "launch__registers_per_thread"
STATIC_SMEM = "launch__shared_mem_per_block_static"
DYNAMIC_SMEM = "launch__shared_mem_per_block_dynamic"
LIMITS = {
    "registers": "launch__occupancy_limit_registers",
    "shared memory": "launch__occupancy_limit_shared_mem",
    "warps": "launch__occupancy_limit_warps",
    "blocks": "launch__occupancy_limit_blocks",
    "barriers": "launch__occupancy_limit_barriers",
}
"""What can limit occupancy → blocks per SM that it allows, from the scarcest resource on."""
STALL_PREFIX = "smsp__pcsamp_warps_issue_stalled_"
STALLS = (
    "barrier", "branch_resolving", "dispatch_stall", "drain", "gmma", "imc_miss", "lg_throttle", "long_scoreboard",
    "math_pipe_throttle", "membar", "mio_throttle", "misc", "no_instructions", "not_selected", "selected",
    "short_scoreboard", "sleeping", "tex_throttle", "wait", "warpgroup_arrive",
)  # fmt: skip
"""Warp states that are sampled; `selected` is no stall: the warp issued."""
ISSUED = "selected"

OF_LAUNCH = (
    DURATION, TENSOR_PIPE, SM_THROUGHPUT, MEMORY_THROUGHPUT, DRAM_THROUGHPUT, OCCUPANCY, THEORETICAL_OCCUPANCY,
    REGISTERS, STATIC_SMEM, DYNAMIC_SMEM, *LIMITS.values(),
)  # fmt: skip
OF_INSTRUCTIONS = (
    WARP_EXECUTIONS, THREAD_EXECUTIONS, SAMPLES, SHARED_WAVEFRONTS, SHARED_WAVEFRONTS_IDEAL,
    *(STALL_PREFIX + stall for stall in STALLS),
)  # fmt: skip
REQUESTED = (WARP_EXECUTIONS, THREAD_EXECUTIONS, *OF_LAUNCH)
"""What `--metrics` names."""
COUNTED = (WARP_EXECUTIONS, THREAD_EXECUTIONS, DURATION, TENSOR_PIPE)
"""What it names where a launch is only counted: `credit.idle_tensor_cores` holds counts against the last."""
SECTIONS = ("SourceCounters",)
"""Sections asked for beside: wavefronts and samples per instruction. `--metrics` does not know the samples' names."""
