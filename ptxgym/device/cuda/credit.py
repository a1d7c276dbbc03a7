"""Which evidence counts on a GPU: Nsight Compute's counts, and the emulator as their witness."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

from ptxgym.device.cuda.job import orders
from ptxgym.device.cuda.model import Witness
from ptxgym.device.cuda.roofline import BF16_FLOP_PER_CLOCK
from ptxgym.device.protocol import InstructionCount
from ptxgym.judge.evidence import TARGET_COVERAGE
from ptxgym.judge.judge import Judgement
from ptxgym.plan.model import Copy, Launch, LaunchPlan, Memset
from ptxgym.reward import credited_coverage, score
from ptxgym.verdict import Evidence, KernelProfile, Status, Timing

DURATION_AGREES = 1.5
"""Nsight Compute's duration of all launches and the timed median may differ by this factor: clocks are left alone, and
between passes it restores memory. A kernel that does honest work under a profiler only differs by more."""

CREDIT_AGREES = 0.1
"""By how much a part that target instructions did may be greater at the measured size than at the emulator's."""

OLDER_TFLOPS = 580.0
"""What a kernel on older instructions may reach, whatever a library makes of the same operator: 0.7 of the best GEMM of
a library on an H200 (833, docs/timing.md). `mma.sync` alone reaches 62.9 % of the peak on an average (arXiv 2402.13499,
Hopper), 673 there; a kernel has to feed it from memory as well."""

UNSEEN = (
    "it is slow enough for older instructions, and nobody saw which ones it runs at the measured size: let it run "
    "under `ncu`, or make it faster"
)
"""Why a kernel gets no credit that avoids being counted: one that notices a profiler could break off on purpose."""

GAP_US = 10.0
"""Most that a launch, a fill or a copy may wait for the one before it."""
LEAST_BYTES_PER_US = 500_000.0
"""What a fill or a copy in GPU memory achieves at least: a tenth of the bus."""

TENSOR_CYCLES_AGREE = 0.5
"""Share of the tensor cores' cycles that counted instructions take which the hardware's own counter must show."""
MOST_SMS = 144
"""Of the full GH100 ("NVIDIA H100 Tensor Core GPU Architecture"); fewer would need more cycles."""
MOST_CLOCK_MHZ = 1980.0
"""Of the multiprocessors of an H100 or H200 (`nvidia-smi -q -d CLOCK`); a slower clock means fewer active cycles."""


def cross_checked(counted: Evidence, witness: Witness | None) -> tuple[Evidence, tuple[str, ...]]:
    """Return the profiler's evidence after the emulator's word on it, and notes.

    The emulator tells what no profiler can: whether the output depends on what the target instructions computed; and a
    kernel that does honest work only where a profiler is attached shows there what it does otherwise.

    Args:
        counted: from Nsight Compute, on the measured workload.
        witness: None where there is no emulator for the architecture.
    """
    if witness is None or not witness.ran:
        why = witness.result.message if witness is not None else "there is none for this architecture"
        note = f"ablation and a second count of instructions, since the emulator could not run the kernel: {why}"
        return counted, (note,)
    if witness.status is not Status.OK:
        said = f"it runs right on the GPU, but not on the emulator at its small sizes: {witness.result.message}"
        return denied(counted, said), ()
    seen = witness.evidence
    if seen is None:
        return counted, ("ablation, since the emulator counted nothing",)
    counted = counted.model_copy(update={"ablation": seen.ablation})
    if counted.target_ok and seen.ablation == "independent":
        return denied(counted, seen.explanation or "with the target instructions zeroed the output stays right"), ()
    if counted.target_ok and seen.coverage < TARGET_COVERAGE:
        said = f"coverage is {counted.coverage:.2f} under the profiler, but {seen.coverage:.2f} without one (emulated)"
        return denied(counted, said), ()
    if counted.target_ok and not seen.target_ok:
        return denied(counted, f"on the emulator: {seen.explanation}"), ()
    profiled, emulated = credited_coverage(counted), credited_coverage(seen)
    if not counted.target_ok and emulated < profiled - CREDIT_AGREES:
        said = f"credited coverage is {profiled:.2f} under the profiler, but {emulated:.2f} without one (emulated)"
        return seen.model_copy(update={"target_ok": False, "explanation": f"{said}, which counts"}), ()
    return counted, ()


def emulated(witness: Witness | None, same_launches: bool, why: str) -> tuple[Evidence | None, tuple[str, ...]]:
    """Return the emulator's evidence for a run on the GPU, and notes.

    Args:
        witness: What the emulator said.
        same_launches: whether the measured plan has the operations, kernels and blocks of the emulated one.
        why: why Nsight Compute did not count, as a clause.
    """
    seen = None if witness is None else witness.evidence
    if witness is None or seen is None:
        said = witness.result.message if witness is not None else "there is no emulator for this architecture"
        return None, (f"executed instructions: {why}; and the emulator did not count them either: {said}",)
    note = f"executed instructions at the measured size: {why}; they were counted by the emulator at its own size"
    if witness.status is not Status.OK:
        seen = denied(seen, f"it runs right on the GPU, but not on the emulator: {witness.result.message}")
    elif not same_launches:
        seen = denied(seen, "the measured size runs other kernels or blocks than the emulated one, which was counted")
    return seen, (note,)


def idle_tensor_cores(
    counts: Iterable[InstructionCount], kernels: Iterable[KernelProfile], families: Collection[str]
) -> str | None:
    """Say that a kernel behaves differently while its instructions are counted, or None.

    Nsight Compute counts instructions by patching them into the code, which makes a kernel several times slower, and
    reads the hardware's counters in other passes, where the code runs as it is. A kernel that sees that it is slowed
    down shows target instructions in the one and leaves the tensor cores idle in the other.

    Args:
        counts: executed instructions of all launches.
        kernels: with the share of cycles in which the tensor cores were active, of the longest launch.
        families: whose multiply-adds run on tensor cores.
    """
    done: dict[str, int] = {}
    for count in counts:
        if count.family in families:
            done[count.kernel] = done.get(count.kernel, 0) + count.multiply_adds
    for kernel in kernels:
        if kernel.tensor_pipe_percent is None or not done.get(kernel.kernel):
            continue
        needed = done[kernel.kernel] / kernel.launches / (MOST_SMS * BF16_FLOP_PER_CLOCK / 2)
        active = kernel.tensor_pipe_percent / 100 * kernel.duration_us * MOST_CLOCK_MHZ
        if active < TENSOR_CYCLES_AGREE * needed:
            return (
                f"it behaves differently while its instructions are counted: those of {kernel.kernel} take "
                f"{needed:.0f} cycles of the tensor cores, which were active for {active:.0f} where nothing slows it"
            )
    return None


def needs_counting(timing: Timing | None) -> bool:
    """Return whether a kernel is so slow that it may have done its work on older instructions."""
    return timing is None or timing.tflops is None or timing.tflops < OLDER_TFLOPS


def duration_problem(plan: LaunchPlan, durations_us: Sequence[float], timed_us: float) -> str | None:
    """Say that a kernel behaves differently under the profiler, or None where the durations agree.

    The profiler runs one launch at a time and sees nothing between them. When timed, streams may run beside each other,
    and in one stream a launch beside the one before it, if it is programmatic. So the longest of what runs beside each
    other is the least; gaps, fills and copies come on top.

    Args:
        plan: What was run both times.
        durations_us: Of each launch, under the profiler.
        timed_us: Of the whole call, timed.
    """
    ordered = zip(plan.operations, orders(plan.operations), strict=True)
    programmatic = [order.programmatic for operation, order in ordered if isinstance(operation, Launch)]
    over_us: dict[int, float] = {}  # by stream, of what is over before the last launch begins,
    longest_us: dict[int, float] = {}  # and the longest of that launch and of those that it may run beside
    for launch, beside, duration_us in zip(plan.launches, programmatic, durations_us, strict=True):
        at, last_us = launch.stream, longest_us.get(launch.stream, 0.0)
        over_us[at] = over_us.get(at, 0.0) + (0.0 if beside else last_us)
        longest_us[at] = max(last_us, duration_us) if beside else duration_us
    moved_bytes = sum(
        one.count * one.width_bytes if isinstance(one, Memset) else one.size_bytes
        for one in plan.operations
        if isinstance(one, Memset | Copy)
    )
    beside_us = GAP_US * len(plan.operations) + moved_bytes / LEAST_BYTES_PER_US
    least_us = max((over_us[stream] + longest_us[stream] for stream in over_us), default=0.0)
    most_us = sum(durations_us)
    if least_us <= DURATION_AGREES * timed_us + GAP_US and timed_us <= DURATION_AGREES * most_us + beside_us:
        return None
    return (
        f"it behaves differently under the profiler: {most_us:.0f} µs there, {timed_us:.0f} µs when timed, so its "
        "counts say nothing about the timed calls"
    )


def concluded(judgement: Judgement, evidence: Evidence | None, timing: Timing | None) -> Judgement:
    """Return the judgement of a right kernel with what was counted and timed, and the score of that."""
    message = "all outputs are right"
    if evidence is not None and evidence.target_ok:
        message += f", and {evidence.coverage:.0%} of the multiply-adds ran on target instructions"
    elif evidence is not None:
        message += f", but {evidence.explanation}"
    reached = score(judgement.status, judgement.outputs, evidence, judgement.findings, timing)
    return judgement.model_copy(update={"message": message, "evidence": evidence, "score": reached})


def denied(evidence: Evidence, why: str) -> Evidence:
    """Return `evidence` that credits nothing, with the reason."""
    return evidence.model_copy(update={"target_ok": False, "denied": True, "explanation": why})
