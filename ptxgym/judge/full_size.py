"""Does a kernel that is right at small sizes do its work at the size that is timed? A few of its CTAs show it.

The emulator cannot execute that size whole. It runs CTAs (or clusters) of the very launches that a GPU would get, drawn
from the conditions, with the true arguments: a kernel that returns early there, faults or computes something else is
refused. What a sample cannot show is said in a note; a GPU judges every element.
"""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ptxgym.build.demangle import function_name
from ptxgym.device.protocol import Bytes, Execution
from ptxgym.device.sampling import PERIOD_STEP_BYTES, Sample, SampledLaunch, Written, units_of
from ptxgym.judge import numbers
from ptxgym.plan.model import Launch, LaunchPlan
from ptxgym.task import ITEM_BYTES, Axes, Task, Tensor
from ptxgym.verdict import Failure, OutputError, Stage, Status

UNITS = 1024
"""Idle CTAs that are tried before a launch counts as doing nothing; a grid may be made for the largest size."""
TOLERANCE = 0.05
"""Relative Frobenius error of what a CTA wrote. The small sizes are judged exactly; here ten times the honest error."""
UNIT_MULTIPLY_ADDS = 220_000_000
"""Work of a CTA that is executed to its end: half a second on wgmma. A tile of 128×256 takes 168 million."""
SLACK = 2.0
LEAST_BUDGET, MOST_BUDGET = 200_000, 40_000_000
"""Warp instructions."""
MOSTLY, MOSTLY_BEFORE = 0.75, 0.5
"""A launch is refused if more than the one share of its CTAs is idle, and at the small size less than the other."""
COVERED = 4.0
"""A launch is refused whose CTAs, if all wrote as much as the sampled one, would write so many times too little."""
_PERIOD_PAGES = (251, 257, 263, 269, 271, 277, 281, 283)
"""Primes, so that rows of power-of-two lengths differ."""


@dataclass(frozen=True)
class FullSize:
    """What the sample says."""

    wrong: OutputError | None = None
    failure: Failure | None = None
    message: str = ""
    """Why it is refused."""
    note: str = ""
    """What was seen and what was not, where it is not refused."""
    uncovered: str | None = None
    """The output that is refused because too little of it was written: CTAs may have different roles, so ask more."""


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


def budgets(task: Task, axes: Axes, plan: LaunchPlan, small: Axes, execution: Execution) -> list[int]:
    """Return the warp instructions that the units of each launch may take, at the rate that `execution` took."""
    rate = execution.warp_instructions / task.required_multiply_adds(small)
    found = []
    for launch in plan.launches:
        work = task.required_multiply_adds(axes) / units_of(launch)
        allowed = rate * SLACK * (work if work <= UNIT_MULTIPLY_ADDS else UNIT_MULTIPLY_ADDS / 4)
        found.append(int(min(MOST_BUDGET, max(LEAST_BUDGET, allowed))))
    return found


_ORDERS = re.compile(r"\.(acquire|release|acq_rel|sc)\.(gpu|sys)\b|^membar\.(gl|sys)\b")
"""Forms by which one CTA hands results to another."""


def judge_sample(
    task: Task, axes: Axes, plan: LaunchPlan, sample: Sample, periods: Mapping[str, Bytes], execution: Execution
) -> FullSize:
    """Judge what the sampled CTAs did, but for launches that were idle (`idle_launches`).

    Args:
        task: What was asked for.
        axes: The size that is timed.
        plan: The plan that was sampled.
        sample: What its CTAs did.
        periods: The inputs, as they repeat.
        execution: The same kernels at a small size, whole: which instructions they use.
    """
    first = sample.launches[0]
    size = named(axes)
    if first.end == "runtime_fault":
        message = f"At the size that is timed ({size}), {_unit(plan, 0, first)} faults: {first.message}"
        return FullSize(failure=_failure(message), message=message)
    if first.unit < 0:
        return FullSize(note=_seen(size, plan, sample, "nothing more is known"))
    if len(sample.launches) > 1 or any(tensor.derived for tensor in task.inputs):
        return FullSize(note=_seen(size, plan, sample, "it stores results; their values were not checked"))
    if first.end != "ok":
        why = {
            "budget": "works and had not ended within its share of instructions",
            "hang": "waits for others, which were not executed",
        }[first.end]
        return FullSize(note=_seen(size, plan, sample, f"it {why}; what it computes was not checked"))
    if _combines(execution):
        return FullSize(note=_seen(size, plan, sample, "CTAs combine their results, so their values were not checked"))
    return _numbers(task, axes, plan, sample, periods)


def mostly_idle(sample: Sample) -> bool:
    """Return whether most units of a launch do nothing."""
    return any(launch.idle_share > MOSTLY for launch in sample.launches)


def idle_launch(sample: Sample, small: Sample) -> int | None:
    """Return the first launch of which most units are idle, though those of the small size are not."""
    for index, (full, few) in enumerate(zip(sample.launches, small.launches, strict=False)):
        if full.idle_share > MOSTLY and few.idle_share < MOSTLY_BEFORE and full.kernel == few.kernel:
            return index
    return None


def idle(axes: Axes, plan: LaunchPlan, sample: Sample, index: int, output: str) -> FullSize:
    """Refuse a plan whose launch `index` does little or nothing at the size that is timed."""
    launch = sample.launches[index]
    ctas = f"{_noun(plan.launches[index])}s of {function_name(launch.kernel)} ({launch.units:,} in all)"
    message = (
        f"at the size that is timed ({named(axes)}), {launch.idle} of {launch.ran} sampled {ctas} end without storing "
        "anything, though at small sizes they do: `run` must do the whole work at every size that its arguments name"
    )
    return FullSize(wrong=_output(output, float("inf")), message=message)


def named(axes: Axes) -> str:
    """Return sizes as text."""
    return ", ".join(f"{axis} = {size}" for axis, size in axes.items())


def covers(task: Task, axes: Axes, sample: Sample, name: str) -> bool:
    """Return whether the CTAs of the first launch would write the output `name`, if all wrote as much as the last."""
    total = sum(tensor.size_bytes(axes) for tensor in task.outputs if tensor.name == name)
    return bool(sample.outputs[name].offsets.size * sample.launches[0].units * COVERED >= total)


def _numbers(task: Task, axes: Axes, plan: LaunchPlan, sample: Sample, periods: Mapping[str, Bytes]) -> FullSize:
    """Compare what the sampled unit wrote with the reference of these elements."""
    launch = sample.launches[0]
    checked = []
    reference = _Reference(task, axes, periods)
    for tensor in task.outputs:
        written = sample.outputs[tensor.name]
        if not covers(task, axes, sample, tensor.name):
            message = (
                f"at the size that is timed ({named(axes)}), the {launch.units:,} {_noun(plan.launches[0])}s of "
                f"{function_name(launch.kernel)} cannot have written {tensor.name}: {_unit(plan, 0, launch)} stored "
                f"{written.offsets.size:,} of its {tensor.size_bytes(axes):,} bytes and ended"
            )
            note = _seen(named(axes), plan, sample, f"it did not write its share of {tensor.name}; others may")
            wrong = _output(tensor.name, float("inf"))
            return FullSize(wrong=wrong, message=message, note=note, uncovered=tensor.name)
        indices, values = _elements(tensor, axes, written)
        region = _region(task, tensor, indices)
        inside, expected = _expected(reference, tensor, indices, region)
        error = _relative_error(values[inside], expected)
        where = ", ".join(_span(column) for column in indices[:, list(tensor.to_stored)].T)
        if not error <= TOLERANCE:
            message = (
                f"at the size that is timed ({named(axes)}), {_unit(plan, 0, launch)} writes {tensor.name}[{where}] "
                f"wrong: relative error {error:.2g}, at most {TOLERANCE:g} there, though small sizes are right; sizes "
                "must come from the arguments, and indices must not overflow"
            )
            return FullSize(wrong=_output(tensor.name, error, f"{tensor.name}[{where}]"), message=message)
        checked.append(f"{expected.size:,} elements of {tensor.name}")
    return FullSize(note=_seen(named(axes), plan, sample, f"it wrote {' and '.join(checked)}, which are right"))


def _elements(tensor: Tensor, axes: Axes, written: Written) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
    """Return logical indices [count, rank] and values of the elements that were written."""
    item = ITEM_BYTES[tensor.dtype]
    flat = np.unique(written.offsets // item)
    whole = np.searchsorted(written.offsets, flat * item)
    values = _values(written.data[np.minimum(whole[:, None] + np.arange(item), written.data.size - 1)], tensor)
    stored = np.stack(np.unravel_index(flat, tensor.sizes(axes)), axis=1)
    return stored[:, list(tensor.to_logical)].astype(np.int64), values


_MOST = 256


def _region(task: Task, tensor: Tensor, indices: NDArray[np.int64]) -> dict[str, NDArray[np.int64]]:
    """Return which places along the independent axes are checked: of those that were written, up to `_MOST` each.

    Where an operator couples what lies along other axes (attention), one head is work enough.
    """
    names = tensor.logical or tensor.shape
    most = _MOST if set(task.independent) >= set(names) else 1
    chosen: dict[str, NDArray[np.int64]] = {}
    kept = np.ones(len(indices), bool)
    for axis in task.independent:
        if axis in names:
            column = indices[:, names.index(axis)]
            chosen[axis] = np.unique(column[kept])[:most]
            kept &= np.isin(column, chosen[axis])
    return chosen


def _expected(
    reference: _Reference,
    tensor: Tensor,
    indices: NDArray[np.int64],
    region: Mapping[str, NDArray[np.int64]],
) -> tuple[NDArray[np.bool_], NDArray[np.float64]]:
    """Return which elements lie in the region, and their references."""
    names = tensor.logical or tensor.shape
    inside = np.ones(len(indices), bool)
    local = []
    for at, axis in enumerate(names):
        column = indices[:, at]
        if axis in region:
            inside &= np.isin(column, region[axis])
            local.append(np.searchsorted(region[axis], column))
        else:
            local.append(column)
    return inside, reference.of(region)[tensor.name][tuple(column[inside] for column in local)]


class _Reference:
    """References at some places along the independent axes; the last ones are kept, since outputs often share them."""

    def __init__(self, task: Task, axes: Axes, periods: Mapping[str, Bytes]) -> None:
        self._task, self._axes = task, axes
        self._periods = {tensor.name: _values(periods[tensor.name], tensor) for tensor in task.inputs}
        self._region: Mapping[str, NDArray[np.int64]] | None = None
        self._last: dict[str, NDArray[np.float64]] = {}

    def of(self, region: Mapping[str, NDArray[np.int64]]) -> dict[str, NDArray[np.float64]]:
        """Return the references of all outputs in `region`."""
        if self._region is None or not _same(self._region, region):
            smaller = {axis: len(region.get(axis, range(size))) for axis, size in self._axes.items()}
            self._last = self._task.reference().reference(np, self._inputs(region, smaller), smaller)
            self._region = region
        return self._last

    def _inputs(self, region: Mapping[str, NDArray[np.int64]], smaller: Axes) -> dict[str, NDArray[np.float32]]:
        values: dict[str, NDArray[np.float32]] = {}
        for tensor in self._task.inputs:
            period = self._periods[tensor.name]
            places = [region.get(axis, np.arange(self._axes[axis])) for axis in tensor.shape]
            flat = np.ravel_multi_index(np.ix_(*places), tensor.sizes(self._axes))
            values[tensor.name] = period[flat % period.size].transpose(tensor.to_logical)
        for tensor in self._task.unused:
            sizes = [smaller[axis] for axis in tensor.logical or tensor.shape]
            values[tensor.name] = np.broadcast_to(np.zeros(1, np.float32), sizes)
        return values


def _same(one: Mapping[str, NDArray[np.int64]], other: Mapping[str, NDArray[np.int64]]) -> bool:
    return one.keys() == other.keys() and all(np.array_equal(one[axis], other[axis]) for axis in one)


def _values(data: Bytes, tensor: Tensor) -> NDArray[np.float32]:
    """Return elements of a tensor's type as float32, one after the other."""
    words = np.ascontiguousarray(data).reshape(-1).view(numbers.POISON[tensor.dtype].dtype)
    return numbers.bf16_values(words) if tensor.dtype == "bf16" else words.view(np.float32)


def _relative_error(found: NDArray[np.float32], expected: NDArray[np.float64]) -> float:
    if not np.isfinite(found).all():
        return float("inf")
    norm = math.sqrt(float(np.square(expected).sum()))
    return math.sqrt(float(np.square(found - expected).sum())) / (norm or 1.0)


def _combines(execution: Execution) -> bool:
    """Return whether results may be sums over several CTAs: by atomics, or in turn, by a flag in global memory."""
    return any(
        (count.family == "atom" and ".shared" not in count.form)
        or count.form.startswith("cp.reduce")
        or (_ORDERS.search(count.form) is not None and ".shared" not in count.form)
        for count in execution.counts
    )


def _output(name: str, error: float, where: str | None = None) -> OutputError:
    return OutputError(
        name=name,
        ok=False,
        relative_error=error,
        relative_budget=TOLERANCE,
        worst_tile_error=error,
        tile_budget=TOLERANCE,
        worst_region=where,
        draw="hardware/sample",
    )


def _failure(message: str) -> Failure:
    return Failure(stage=Stage.EXECUTE, status=Status.RUNTIME_FAULT, code="full_size.runtime_fault", message=message)


def _seen(size: str, plan: LaunchPlan, sample: Sample, what: str) -> str:
    working = [index for index, launch in enumerate(sample.launches) if launch.unit >= 0]
    index = working[-1] if working else len(sample.launches) - 1
    launch = sample.launches[index]
    idle = f"; {launch.idle} of {launch.ran} sampled had nothing to do" if launch.idle else ""
    return (
        f"the size that is timed ({size}) beyond a sample: one of {launch.units:,} {_noun(plan.launches[index])}s of "
        f"{function_name(launch.kernel)} was executed; {what}{idle}"
    )


def _unit(plan: LaunchPlan, index: int, launch: SampledLaunch) -> str:
    return f"{_noun(plan.launches[index])} {launch.unit} of {function_name(launch.kernel)}"


def _noun(launch: Launch) -> str:
    return "cluster" if math.prod(launch.cluster or (1, 1, 1)) > 1 else "CTA"


def _span(column: NDArray[np.int64]) -> str:
    low, high = int(column.min()), int(column.max()) + 1
    return f"{low}:{high}" if high - low > 1 else str(low)
