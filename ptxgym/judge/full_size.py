"""Does a kernel that is right at small sizes do its work at the size that is timed? A few of its CTAs show it.

The emulator cannot execute that size whole. It runs CTAs (or clusters) of the very launches that a GPU would get, drawn
from the conditions, with the true arguments: a kernel that returns early there, faults or computes something else is
refused. What a sample cannot show is said in a note; a GPU judges every element.

As many CTAs as a second allows are compared, by an estimate that knows no clock. Each comes from another part of the
grid: of four, every axis of the grid gives both halves, odd and even, in all combinations. A defect in a share p of the
CTAs is missed with a probability of (1 − p)^k at most where its CTAs are anyhow spread; one that follows a half or the
parity of an axis, or of two axes together, is found.
"""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ptxgym.build.demangle import function_name
from ptxgym.device.protocol import Bytes, Execution
from ptxgym.device.sampling import PERIOD_STEP_BYTES, Sample, SampledUnit, Written, units_of
from ptxgym.judge import numbers
from ptxgym.plan.model import Copy, Launch, LaunchPlan
from ptxgym.task import ITEM_BYTES, Axes, Task, Tensor
from ptxgym.verdict import Failure, OutputError, Stage, Status

UNITS = 1024
"""Idle CTAs that are tried before a launch counts as doing nothing; a grid may be made for the largest size."""
TOLERANCE = 0.05
"""Relative Frobenius error of what a CTA wrote. The small sizes are judged exactly; here ten times the honest error."""
UNIT_MULTIPLY_ADDS = 220_000_000
"""Work of a CTA that is executed to its end: half a second on wgmma. A tile of 128×256 takes 168 million."""
SECOND_MULTIPLY_ADDS, SECOND_WARP_INSTRUCTIONS = 450_000_000, 10_000_000
"""What the emulator does in a second on one core (`benchmarks/emulator.py`), on tensor cores and otherwise."""
MOST_COMPARED, LEAST_COMPARED = 12, 2
"""CTAs of one launch whose results are compared."""
CANDIDATES = 16
"""CTAs that are tried in each part of the grid, since some may be idle."""
SLACK = 2.0
LEAST_BUDGET, MOST_BUDGET = 200_000, 40_000_000
"""Warp instructions."""
MOSTLY, MOSTLY_BEFORE = 0.75, 0.5
"""A launch is refused if more than the one share of its CTAs is idle, and at the small size less than the other."""
LEAST_COMPUTED, LEAST_COMPUTED_BEFORE = 0.1, 0.5
"""A plan is refused that computes less than the one share of the task's multiply-adds, and at the small size more than
the other. Of causal attention one CTA in twenty does so little: draws must agree (`ptxgym.full_size`)."""
COVERED = 4.0
"""A launch is refused whose CTAs, if all wrote as much as the sampled ones, would write so many times too little."""
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
    instructions = work * _rate(task, small, execution)
    on_target = sum(count.multiply_adds for count in execution.counts if count.family in _MATRIX)
    seconds = instructions / SECOND_WARP_INSTRUCTIONS + (work / SECOND_MULTIPLY_ADDS if on_target else 0)
    return max(LEAST_COMPARED, min(MOST_COMPARED, int(1 / seconds)))


_MATRIX = frozenset({"wgmma", "tcgen05", "mma.sync"})


def budgets(task: Task, axes: Axes, plan: LaunchPlan, small: Axes, execution: Execution) -> list[int]:
    """Return the warp instructions that the units of each launch may take, at the rate that `execution` took."""
    rate = _rate(task, small, execution)
    found = []
    for launch in plan.launches:
        work = task.required_multiply_adds(axes) / units_of(launch)
        allowed = rate * SLACK * (work if work <= UNIT_MULTIPLY_ADDS else UNIT_MULTIPLY_ADDS / 4)
        found.append(int(min(MOST_BUDGET, max(LEAST_BUDGET, allowed))))
    return found


_ORDERS = re.compile(r"\.(acquire|release|acq_rel|sc)\.(gpu|sys)\b|^membar\.(gl|sys)\b")
"""Forms by which one CTA hands results to another."""


def judge_sample(
    task: Task,
    axes: Axes,
    plan: LaunchPlan,
    sample: Sample,
    periods: Mapping[str, Bytes],
    small: Axes,
    execution: Execution,
) -> FullSize:
    """Judge what the sampled CTAs did, but for launches that were idle (`idle_launch`).

    Args:
        task: What was asked for.
        axes: The size that is timed.
        plan: The plan that was sampled.
        sample: What its CTAs did.
        periods: The inputs, as they repeat.
        small: A small size.
        execution: The same kernels there, whole: which instructions they use, and how many.
    """
    worked = sample.launches[0].worked
    size = named(axes)
    alone = len(sample.launches) == 1
    for unit in worked if alone else worked[:1]:
        if unit.end == "runtime_fault":
            message = f"At the size that is timed ({size}), {_unit(plan, unit)} faults: {unit.message}"
            return FullSize(failure=_failure(message), message=message)
        if (how := _hangs(task, unit, small, execution)) is not None:
            message = (
                f"At the size that is timed ({size}), {_unit(plan, unit)} {how}; no other can end that, since it has "
                "read nothing that they could write"
            )
            return FullSize(failure=_failure(message, Status.HANG), message=message)
    if not worked:
        return FullSize(note=_seen(size, plan, sample, "nothing more is known"))
    if not alone or any(tensor.derived for tensor in task.inputs):
        return FullSize(note=_seen(size, plan, sample, "it stores results; their values were not checked"))
    if worked[0].end != "ok":
        why = {
            "budget": "works and had not ended within its share of instructions",
            "hang": "waits for others, which were not executed",
        }[worked[0].end]
        return FullSize(note=_seen(size, plan, sample, f"it {why}; what it computes was not checked"))
    if any(isinstance(operation, Copy) for operation in plan.operations):
        return FullSize(
            note=_seen(size, plan, sample, "what was copied before it was not; its values were not checked")
        )
    if combines(count.form for count in execution.counts) or any(combines(unit.forms) for unit in worked):
        return FullSize(note=_seen(size, plan, sample, "CTAs combine their results, so their values were not checked"))
    return _numbers(task, axes, plan, sample, periods)


def _hangs(task: Task, unit: SampledUnit, small: Axes, execution: Execution) -> str | None:
    """Say how a unit hangs whatever others do; None where it does not, or others may end it."""
    if unit.looked or unit.end not in ("hang", "budget"):
        return None
    if unit.end == "hang":
        return f"hangs ({unit.message})"
    usual = unit.warp_instructions / _rate(task, small, execution)
    if unit.multiply_adds >= LEAST_COMPUTED * usual:
        return None
    share = 100 * unit.multiply_adds / usual
    return f"does not end, and in {unit.warp_instructions:,} warp instructions it did {share:.2g} % of its usual work"


def _rate(task: Task, small: Axes, execution: Execution) -> float:
    """Return how many warp instructions a small size takes for each multiply-add."""
    return execution.warp_instructions / task.required_multiply_adds(small)


def mostly_idle(sample: Sample) -> bool:
    """Return whether most units of a launch do nothing."""
    return any(launch.idle_share > MOSTLY for launch in sample.launches)


def idle_launch(sample: Sample, small: Sample) -> int | None:
    """Return the first launch of which most units are idle, though those of the small size are not.

    What comes after a launch that did not run whole may be idle for want of what that writes: only units that did not
    look at memory count there.
    """
    for index, (full, few) in enumerate(zip(sample.launches, small.launches, strict=False)):
        share = full.blind_share if index else full.idle_share
        if share > MOSTLY and few.idle_share < MOSTLY_BEFORE and full.kernel == few.kernel:
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
    """Return whether the CTAs of the only launch would write the output `name`, if all wrote as much as the sampled."""
    total = sum(tensor.size_bytes(axes) for tensor in task.outputs if tensor.name == name)
    ended = _ended(sample)
    mean = sum(unit.outputs[name].offsets.size for unit in ended) / len(ended)
    return bool(mean * sample.launches[0].units * COVERED >= total)


def splits(task: Task, axes: Axes, sample: Sample, name: str) -> bool:
    """Return whether the CTAs of the only launch may do the work for others: partial sums, for instance.

    Then they store as much to memory of their own as they would have to of the output `name`, and compute their share.
    A word stored there is no work.
    """
    total = sum(tensor.size_bytes(axes) for tensor in task.outputs if tensor.name == name)
    launch, ended = sample.launches[0], _ended(sample)
    stored = launch.worked[-1].elsewhere_bytes / len(launch.worked)
    computed = sum(unit.multiply_adds for unit in ended) / len(ended)
    needed = task.required_multiply_adds(axes)
    return stored * launch.units * COVERED >= total and computed * launch.units * COVERED >= needed


def computed_share(task: Task, axes: Axes, sample: Sample) -> float | None:
    """Return which share of the task's multiply-adds the plan would do, if all units were like the busiest sampled.

    None where that is not known: a unit did not come to its end, or a launch had none that worked.
    """
    if not all(launch.worked and all(unit.end == "ok" for unit in launch.worked) for launch in sample.launches):
        return None
    most = sum(launch.units * max(unit.multiply_adds for unit in launch.worked) for launch in sample.launches)
    return most / task.required_multiply_adds(axes)


def computes_little(axes: Axes, share: float, output: str) -> FullSize:
    """Refuse a plan that computes the `share` of what the task needs at the size that is timed."""
    message = (
        f"at the size that is timed ({named(axes)}), the plan does about {100 * share:.2g} % of the multiply-adds that "
        "the task needs, going by the busiest of its sampled CTAs, though at small sizes it does them all: `run` must "
        "do the whole work at every size that its arguments name"
    )
    return FullSize(wrong=_output(output, float("inf")), message=message)


def _ended(sample: Sample) -> list[SampledUnit]:
    """Return the units of the only launch whose results are known."""
    return [unit for unit in sample.launches[0].worked if unit.end == "ok"]


def _numbers(task: Task, axes: Axes, plan: LaunchPlan, sample: Sample, periods: Mapping[str, Bytes]) -> FullSize:
    """Compare what the sampled units wrote with the reference of these elements."""
    launch, ended = sample.launches[0], _ended(sample)
    reference = _Reference(task, axes, periods)
    checked = dict.fromkeys((tensor.name for tensor in task.outputs), 0)
    for tensor in task.outputs:
        if not covers(task, axes, sample, tensor.name):
            return _uncovered(task, axes, plan, sample, tensor)
    for unit in ended:
        for tensor in task.outputs:
            written = unit.outputs[tensor.name]
            if not written.offsets.size:
                continue
            indices, values = _elements(tensor, axes, written)
            region = _region(task, tensor, indices)
            inside, expected = _expected(reference, tensor, indices, region)
            error = _relative_error(values[inside], expected)
            if not error <= TOLERANCE:
                where = ", ".join(_span(column) for column in indices[:, list(tensor.to_stored)].T)
                message = (
                    f"at the size that is timed ({named(axes)}), {_unit(plan, unit)} writes {tensor.name}[{where}] "
                    f"wrong: relative error {error:.2g}, at most {TOLERANCE:g} there, though small sizes are right; "
                    "sizes must come from the arguments, and indices must not overflow"
                )
                return FullSize(wrong=_output(tensor.name, error, f"{tensor.name}[{where}]"), message=message)
            checked[tensor.name] += expected.size
    elements = " and ".join(f"{count:,} elements of {name}" for name, count in checked.items())
    it = "it" if len(launch.worked) == 1 else "they"
    return FullSize(note=_seen(named(axes), plan, sample, f"{it} wrote {elements}, which are right"))


def _uncovered(task: Task, axes: Axes, plan: LaunchPlan, sample: Sample, tensor: Tensor) -> FullSize:
    """Refuse a launch whose sampled units store too little of an output, unless they do their work elsewhere."""
    launch, unit = sample.launches[0], _ended(sample)[0]
    few = f"it did not write its share of {tensor.name}; others may"
    if splits(task, axes, sample, tensor.name):
        few = f"it stores to memory of its own and not its share of {tensor.name}, so its values were not checked"
        return FullSize(note=_seen(named(axes), plan, sample, few))
    message = (
        f"at the size that is timed ({named(axes)}), the {launch.units:,} {_noun(plan.launches[0])}s of "
        f"{function_name(launch.kernel)} cannot have written {tensor.name}: {_unit(plan, unit)} stored "
        f"{unit.outputs[tensor.name].offsets.size:,} of its {tensor.size_bytes(axes):,} bytes and ended"
    )
    wrong = _output(tensor.name, float("inf"))
    return FullSize(wrong=wrong, message=message, note=_seen(named(axes), plan, sample, few), uncovered=tensor.name)


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


def combines(forms: Iterable[str]) -> bool:
    """Return whether results may be sums over several CTAs: by atomics, or in turn, by a flag in global memory."""
    return any(
        form.startswith("cp.reduce")
        or (form.startswith(("atom.", "red.", "multimem.")) and ".shared" not in form)
        or (_ORDERS.search(form) is not None and ".shared" not in form)
        for form in forms
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


def _failure(message: str, status: Status = Status.RUNTIME_FAULT) -> Failure:
    return Failure(stage=Stage.EXECUTE, status=status, code=f"full_size.{status}", message=message)


def _seen(size: str, plan: LaunchPlan, sample: Sample, what: str) -> str:
    working = [index for index, launch in enumerate(sample.launches) if launch.worked]
    index = working[-1] if working else len(sample.launches) - 1
    launch = sample.launches[index]
    idle = f"; {launch.idle} of {launch.ran} sampled had nothing to do" if launch.idle else ""
    count = max(1, len(launch.worked))
    number, was = ("one", "was") if count == 1 else (str(count), "were")
    return (
        f"the size that is timed ({size}) beyond a sample: {number} of {launch.units:,} {_noun(plan.launches[index])}s "
        f"of {function_name(launch.kernel)} {was} executed; {what}{idle}"
    )


def _unit(plan: LaunchPlan, unit: SampledUnit) -> str:
    launch = plan.launches[0]
    return f"{_noun(launch)} {unit.unit} of {function_name(launch.kernel)}"


def _noun(launch: Launch) -> str:
    return "cluster" if math.prod(launch.cluster or (1, 1, 1)) > 1 else "CTA"


def _span(column: NDArray[np.int64]) -> str:
    low, high = int(column.min()), int(column.max()) + 1
    return f"{low}:{high}" if high - low > 1 else str(low)
