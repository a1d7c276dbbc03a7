"""Which CTAs of the size that is timed are executed, on which inputs, how many are compared and how far they may run.

As many as a second allows are compared, by an estimate that knows no clock. Each comes from another part of the grid:
of four, every axis of the grid gives both halves, odd and even, in all combinations. A defect in a share p of the CTAs
is missed with a probability of (1 − p)^k at most where its CTAs are anyhow spread; one that follows a half or the
parity of an axis, or of two axes together, is found.
"""

from __future__ import annotations

import itertools

import numpy as np

from ptxgym.device.protocol import Bytes, Execution
from ptxgym.device.sampling import PERIOD_STEP_BYTES, Sample, units_of
from ptxgym.judge import numbers
from ptxgym.plan.model import LaunchPlan
from ptxgym.task import ITEM_BYTES, Axes, Task

UNITS = 1024
"""Idle CTAs that are tried before a launch counts as doing nothing; a grid may be made for the largest size."""
UNIT_MULTIPLY_ADDS = 220_000_000
"""Work of a CTA that is executed to its end: half a second on wgmma. A tile of 128×256 takes 168 million."""
SECOND_MULTIPLY_ADDS, SECOND_WARP_INSTRUCTIONS = 450_000_000, 10_000_000
"""What the emulator does in a second on one core (`benchmarks/emulator.py`), on tensor cores and otherwise."""
MOST_COMPARED, LEAST_COMPARED = 12, 2
"""CTAs of one launch whose results are compared."""
LEAST_ASKED = 4
"""CTAs of a launch that seems to leave some of its work out, of each further draw."""
CANDIDATES = 16
"""CTAs that are tried in each part of the grid, since some may be idle."""
SLACK = 2.0
LEAST_BUDGET, MOST_BUDGET = 200_000, 40_000_000
"""Warp instructions."""
PATIENT_MULTIPLY_ADDS, PATIENT_BUDGET = 2_500_000_000, 60_000_000
"""The same of a CTA that decides whether a kernel is refused: five seconds."""
_PERIOD_PAGES = (251, 257, 263, 269, 271, 277, 281, 283)
"""Primes, so that rows of power-of-two lengths differ."""


def patterns(task: Task, axes: Axes, seed: int) -> dict[str, Bytes]:
    """Return the inputs as devices repeat them: standard normal, one period of each (all of it where it is small)."""
    drawn = {}
    streams = np.random.SeedSequence(seed).spawn(len(task.inputs))
    for tensor, stream, pages in zip(task.inputs, streams, itertools.cycle(_PERIOD_PAGES), strict=False):
        size = tensor.size_bytes(axes)
        period = min(pages * PERIOD_STEP_BYTES, -(-size // PERIOD_STEP_BYTES) * PERIOD_STEP_BYTES)
        count = period // ITEM_BYTES[tensor.dtype]
        values = np.random.default_rng(stream).standard_normal(count, dtype=np.float32)
        drawn[tensor.name] = numbers.encode(values, tensor.dtype)
    return drawn


def units(plan: LaunchPlan, seed: int) -> list[list[int]]:
    """Return which CTAs or clusters of each launch are tried, in order: drawn, since any fixed ones could be spared."""
    random = np.random.default_rng(seed)
    return [
        [int(unit) for unit in random.choice(count, min(count, UNITS), replace=False, shuffle=True)]
        if (count := units_of(launch)) <= 1 << 20
        else sorted({int(unit) for unit in random.integers(0, count, UNITS)}, key=lambda _: random.random())
        for launch in plan.launches
    ]


def further_units(plan: LaunchPlan, seed: int, count: int) -> list[list[int]]:
    """Return which CTAs or clusters of the only launch are tried for each further comparison.

    Four in turn, of which `units` starts with one, lie in all combinations of halves and parities of the first two
    axes of the grid that are longer than 1; a launch of few units has no more than there are.
    """
    if len(plan.launches) != 1:
        return []
    random = np.random.default_rng((seed, 1))
    launch = plan.launches[0]
    sizes = [g // c for g, c in zip(launch.grid, launch.cluster or (1, 1, 1), strict=True)]
    first = units(plan, seed)[0][0]
    at = [first % sizes[0], first // sizes[0] % sizes[1], first // (sizes[0] * sizes[1])]
    long = [axis for axis, size in enumerate(sizes) if size > 1]
    found = []
    for number in range(1, min(count, units_of(launch))):
        flips = {axis: (_FLIPS[number % 4] >> place) & 1 for place, axis in enumerate(long[:2])}
        tried = []
        for _ in range(CANDIDATES):
            x, y, z = (_place(random, size, at[axis], flips.get(axis)) for axis, size in enumerate(sizes))
            tried.append(x + sizes[0] * (y + sizes[1] * z))
        found.append(list(dict.fromkeys(tried)))
    return found


_FLIPS = (0b00, 0b11, 0b01, 0b10)
"""Which of two axes change half and parity, against the first CTA: two CTAs already differ in both."""


def _place(random: np.random.Generator, size: int, other: int, flip: int | None) -> int:
    """Draw an index on one axis of the grid: in the half and of the parity of `other`, in the others, or any."""
    places = np.arange(size)
    if flip is not None:
        half, parity = (other >= size // 2) ^ flip, (other % 2) ^ flip
        chosen = places[((places >= size // 2) == half) & (places % 2 == parity)]
        places = chosen if chosen.size else places
    return int(random.choice(places))


def comparisons(task: Task, axes: Axes, plan: LaunchPlan, small: Axes, execution: Execution) -> int:
    """Return of how many CTAs the results are compared: as many as take a second, by what `execution` took.

    One of operators that couple all that lies along an axis (attention): their references cost more than the CTAs.
    """
    if any(set(task.independent) < set(tensor.logical or tensor.shape) for tensor in task.outputs):
        return 1
    work = task.required_multiply_adds(axes) / units_of(plan.launches[0])
    instructions = work * instruction_rate(task, small, execution)
    on_target = sum(count.multiply_adds for count in execution.counts if count.family in _MATRIX)
    seconds = instructions / SECOND_WARP_INSTRUCTIONS + (work / SECOND_MULTIPLY_ADDS if on_target else 0)
    return max(LEAST_COMPARED, min(MOST_COMPARED, int(1 / seconds)))


def asked_again(sample: Sample) -> int:
    """Return how many CTAs of the only launch are run at once where the question is how much they write."""
    units = sample.launches[0].worked
    instructions = sum(unit.warp_instructions for unit in units) / len(units)
    work = sum(unit.multiply_adds for unit in units) / len(units)
    seconds = instructions / SECOND_WARP_INSTRUCTIONS + work / SECOND_MULTIPLY_ADDS
    return max(LEAST_ASKED, min(MOST_COMPARED, int(1 / seconds)))


_MATRIX = frozenset({"wgmma", "tcgen05", "mma.sync"})


def budgets(
    task: Task, axes: Axes, plan: LaunchPlan, small: Axes, execution: Execution, *, patient: bool = False
) -> list[int]:
    """Return the warp instructions that the units of each launch may take, at the rate that `execution` took.

    Those that are `patient` are for a CTA that goes through many tiles.
    """
    if patient:
        rate = instruction_rate(task, small, execution) * SLACK
        works = [task.required_multiply_adds(axes) / units_of(launch) for launch in plan.launches]
        return [int(min(PATIENT_BUDGET, max(LEAST_BUDGET, rate * min(work, PATIENT_MULTIPLY_ADDS)))) for work in works]
    rate = instruction_rate(task, small, execution)
    found = []
    for launch in plan.launches:
        work = task.required_multiply_adds(axes) / units_of(launch)
        allowed = rate * SLACK * (work if work <= UNIT_MULTIPLY_ADDS else UNIT_MULTIPLY_ADDS / 4)
        found.append(int(min(MOST_BUDGET, max(LEAST_BUDGET, allowed))))
    return found


def instruction_rate(task: Task, small: Axes, execution: Execution) -> float:
    """Return how many warp instructions a small size takes for each multiply-add."""
    return execution.warp_instructions / task.required_multiply_adds(small)
