"""What Nsight Compute measured of a submission's kernels: counts for the evidence, a profile for the agent."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence

from ptxgym.device.cuda import metrics
from ptxgym.device.cuda.listing import Listing, Place
from ptxgym.device.cuda.report import Launch
from ptxgym.device.cuda.sass import Sass
from ptxgym.device.protocol import InstructionCount
from ptxgym.verdict import HotLine, KernelProfile, Stall

MOST_STALLS = 5
MOST_LINES = 5
LEAST_SHARE = 0.02
"""Stall reasons and lines below this share of the samples are left out."""
LEAST_SAMPLES = 50
"""Below that, shares say nothing."""
_LINE_LIMIT = 120


def instruction_counts(launches: Sequence[Launch], listing: Listing) -> tuple[InstructionCount, ...]:
    """Return what was executed, one entry per instruction of each launch, in order; what never ran is left out.

    Args:
        launches: from one report.
        listing: places of the instructions; one that is missing has no line.
    """
    counts = []
    for launch in launches:
        warps = launch.instances.get(metrics.WARP_EXECUTIONS, ())
        threads = launch.instances.get(metrics.THREAD_EXECUTIONS, ())
        places = listing.get(launch.kernel, {})
        for offset, text, warp, thread in zip(launch.offsets, launch.sass, warps, threads, strict=True):
            if warp:
                sass = Sass.parse(text)
                place = places.get(offset)
                line, site = (place.line, place.site) if place else (None, None)
                work = sass.multiply_adds(thread)
                counts.append(InstructionCount(launch.kernel, sass.opcode, sass.family, line, warp, thread, work, site))
    return tuple(counts)


def kernel_profiles(launches: Sequence[Launch], listing: Listing, source: str = "") -> tuple[KernelProfile, ...]:
    """Return one profile per kernel, the one with the longest launch first; its numbers are those of that launch.

    Args:
        launches: from one report.
        listing: places of the instructions, as above.
        source: the submission, for the text of hot lines.
    """
    of_kernel: dict[str, list[Launch]] = defaultdict(list)
    for launch in launches:
        of_kernel[launch.kernel].append(launch)
    longest = {kernel: max(found, key=duration_us) for kernel, found in of_kernel.items()}
    ordered = sorted(longest, key=lambda kernel: (-duration_us(longest[kernel]), kernel))
    text_lines = source.split("\n")
    return tuple(
        _profile(longest[kernel], len(of_kernel[kernel]), listing.get(kernel, {}), text_lines) for kernel in ordered
    )


def duration_us(launch: Launch) -> float:
    """Return the time that the GPU took for a launch, by its own clock."""
    return launch.values.get(metrics.DURATION, 0.0)


def profile_lines(profile: KernelProfile) -> list[str]:
    """Return a profile as text, for feedback: what limits first, hottest lines last; without the kernel's name.

    Names are Nsight Compute's. Source lines are not included: who prints them quotes them.
    """
    launches = "" if profile.launches == 1 else f" (longest of {profile.launches} launches)"
    lines = [f"duration {profile.duration_us:.1f} µs{launches}"]
    used = [
        f"{name} {value:.0f} %"
        for name, value in (
            ("tensor pipe", profile.tensor_pipe_percent),
            ("SM", profile.sm_throughput_percent),
            ("memory", profile.memory_throughput_percent),
            ("DRAM", profile.dram_throughput_percent),
        )
        if value is not None
    ]
    if used:
        lines.append("of peak: " + ", ".join(used))
    if profile.occupancy_percent is not None:
        lines.append(_occupancy_line(profile))
    if profile.bank_conflicts:
        lines.append(f"shared memory: {profile.bank_conflicts:,} wavefronts more than without bank conflicts")
    if profile.stalls:
        lines.append("warps wait for: " + ", ".join(f"{one.reason} {100 * one.share:.0f} %" for one in profile.stalls))
    for hot in profile.hot_lines:
        waits = f", mostly {hot.stall}" if hot.stall else ""
        lines.append(f"line {hot.line}: {100 * hot.share:.0f} % of the samples{waits}")
    return lines


def _occupancy_line(profile: KernelProfile) -> str:
    line = f"occupancy {profile.occupancy_percent:.0f} %"
    if profile.theoretical_occupancy_percent is not None:
        limiter = f", limited by {profile.occupancy_limiter}" if profile.occupancy_limiter else ""
        line += f" of at most {profile.theoretical_occupancy_percent:.0f} %{limiter}"
    needs = []
    if profile.registers_per_thread is not None:
        needs.append(f"{profile.registers_per_thread} registers per thread")
    if profile.smem_per_block_bytes:
        needs.append(f"{profile.smem_per_block_bytes:,} bytes of shared memory per block")
    return f"{line}: {', '.join(needs)}" if needs else line


def _profile(launch: Launch, count: int, places: Mapping[int, Place], text_lines: Sequence[str]) -> KernelProfile:
    value = launch.values.get
    wavefronts = sum(launch.instances.get(metrics.SHARED_WAVEFRONTS, ()))
    ideal = sum(launch.instances.get(metrics.SHARED_WAVEFRONTS_IDEAL, ()))
    static, dynamic = value(metrics.STATIC_SMEM), value(metrics.DYNAMIC_SMEM)
    registers = value(metrics.REGISTERS)
    return KernelProfile(
        kernel=launch.kernel,
        launches=count,
        duration_us=duration_us(launch),
        tensor_pipe_percent=value(metrics.TENSOR_PIPE),
        sm_throughput_percent=value(metrics.SM_THROUGHPUT),
        memory_throughput_percent=value(metrics.MEMORY_THROUGHPUT),
        dram_throughput_percent=value(metrics.DRAM_THROUGHPUT),
        occupancy_percent=value(metrics.OCCUPANCY),
        theoretical_occupancy_percent=value(metrics.THEORETICAL_OCCUPANCY),
        occupancy_limiter=limiter(launch),
        registers_per_thread=None if registers is None else round(registers),
        smem_per_block_bytes=None if static is None or dynamic is None else round(static + dynamic),
        bank_conflicts=max(0, wavefronts - ideal) if metrics.SHARED_WAVEFRONTS in launch.instances else None,
        stalls=stalls(launch),
        hot_lines=hot_lines(launch, sites(launch, places), text_lines),
    )


def sites(launch: Launch, places: Mapping[int, Place]) -> tuple[int, ...]:
    """Return the line of each instruction, that of the call where it came from a wrapper; 0 for none."""
    return tuple(places[offset].site if offset in places else 0 for offset in launch.offsets)


def limiter(launch: Launch) -> str | None:
    """Return what allows the fewest blocks per SM; None where a launch says nothing, or fills all warps."""
    limits = {name: launch.values[metric] for name, metric in metrics.LIMITS.items() if metric in launch.values}
    return min(limits, key=limits.__getitem__) if limits else None


def stalls(launch: Launch) -> tuple[Stall, ...]:
    """Return why warps waited, as shares of all samples, the most frequent first; issuing is no reason to wait."""
    by_reason = {stall: sum(launch.instances.get(metrics.STALL_PREFIX + stall, ())) for stall in metrics.STALLS}
    total = sum(by_reason.values())
    if total < LEAST_SAMPLES:
        return ()
    ordered = sorted(by_reason, key=lambda stall: (-by_reason[stall], stall))
    return tuple(
        Stall(reason=stall, share=by_reason[stall] / total)
        for stall in ordered
        if stall != metrics.ISSUED and by_reason[stall] >= LEAST_SHARE * total
    )[:MOST_STALLS]


def hot_lines(launch: Launch, lines: Sequence[int], text_lines: Sequence[str] = ()) -> tuple[HotLine, ...]:
    """Return the lines of the submission on which most samples fell.

    Args:
        launch: the launch.
        lines: per instruction, the line to which its samples count; 0 for none.
        text_lines: the submission's lines.
    """
    of_line: dict[int, Counter[str]] = defaultdict(Counter)
    for stall in metrics.STALLS:
        for line, samples in zip(lines, launch.instances.get(metrics.STALL_PREFIX + stall, ()), strict=False):
            of_line[line][stall] += samples
    totals = {line: found.total() for line, found in of_line.items()}
    everything = sum(totals.values())
    if everything < LEAST_SAMPLES:
        return ()
    hottest = sorted((line for line in totals if line), key=lambda line: (-totals[line], line))
    return tuple(
        HotLine(
            line=line,
            share=totals[line] / everything,
            source_line=text_lines[line - 1].strip()[:_LINE_LIMIT] if line <= len(text_lines) else None,
            stall=_most_frequent(of_line[line]),
        )
        for line in hottest[:MOST_LINES]
        if totals[line] >= LEAST_SHARE * everything
    )


def _most_frequent(found: Counter[str]) -> str | None:
    waiting = {stall: samples for stall, samples in found.items() if stall != metrics.ISSUED and samples}
    return min(waiting, key=lambda stall: (-waiting[stall], stall)) if waiting else None
