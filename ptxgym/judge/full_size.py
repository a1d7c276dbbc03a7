"""Does a kernel that is right at small sizes do its work at the size that is timed? A few of its CTAs show it.

The emulator cannot execute that size whole. It runs CTAs (or clusters) of the very launches that a GPU would get, drawn
from the conditions, with the true arguments: a kernel that returns early there, faults or computes something else is
refused. What a sample cannot show is said in a note; a GPU judges every element.

Which CTAs these are is decided in `sampled_units`, what they should have written in `sampled_numbers`.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ptxgym.build.demangle import function_name
from ptxgym.device.protocol import Bytes, Execution
from ptxgym.device.sampling import Sample, SampledUnit
from ptxgym.judge.sampled_numbers import Reference, elements, expected_in, region_of, relative_error
from ptxgym.judge.sampled_units import instruction_rate
from ptxgym.plan.model import Copy, Launch, LaunchPlan
from ptxgym.plan.profile import MANY_SMS
from ptxgym.task import Axes, Task, Tensor
from ptxgym.verdict import Failure, OutputError, Stage, Status

TOLERANCE = 0.01
"""Relative Frobenius error of what a CTA wrote. The small sizes are judged exactly; here four times the honest error.

Simulated at the sizes that are timed: C of every variant up to 0.0018, O up to 0.0028 in tiles of 4 rows and 0.0025 in
tiles of 64, LSE up to 0.0006 where P is summed as rounded. Operands in e4m3 are at 0.038, 8 of 5120 products at 0.039.
"""
MOSTLY, MOSTLY_BEFORE = 0.75, 0.5
"""A launch is refused if more than the one share of its CTAs is idle, and at the small size less than the other."""
LEAST_COMPUTED, LEAST_COMPUTED_BEFORE = 0.1, 0.5
"""A plan is refused that computes less than the one share of the task's multiply-adds, and at the small size more than
the other. Of causal attention one CTA in twenty does so little: draws must agree (`ptxgym.full_size`)."""
ENOUGH, ENOUGH_OF_MANY_TILES = 0.9, 0.7
"""A launch is refused whose CTAs write less than this share of an output, going by the sampled ones. Averaged over the
grid, those of a right one write all of it, or more where they overlap: only chance can make it look less. One that goes
through many tiles may have one less than others."""
LEAST_WRITTEN = 0.25
"""If it is even less, the values are not compared: CTAs may do the work for others, or have another."""
CERTAIN, LIKELY = 3.0, 2.0
"""Standard errors by which less is written than enough: after a few CTAs, and after all that are drawn for that."""


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

    @property
    def refused(self) -> bool:
        """Whether the kernel is."""
        return self.wrong is not None or self.failure is not None


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
    *,
    unended: bool = False,
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
        unended: What the first unit has written is compared even if it ran out of instructions.
    """
    worked = sample.launches[0].worked
    size = named(axes)
    alone = len(sample.launches) == 1
    for unit in worked if alone else worked[:1]:
        if unit.end == "runtime_fault":
            message = f"At the size that is timed ({size}), {_unit(plan, unit)} faults: {unit.message}"
            return FullSize(failure=_failure(message), message=message)
        if (how := _hangs(task, unit, small, execution, alone)) is not None:
            message = (
                f"At the size that is timed ({size}), {_unit(plan, unit)} {how}; no other can end that, since it has "
                "read nothing that they could write"
            )
            return FullSize(failure=_failure(message, Status.HANG), message=message)
    copied = any(isinstance(operation, Copy) for operation in plan.operations)
    if not worked:
        if alone and not copied and sample.launches[0].blind == sample.launches[0].ran:
            return idle(axes, plan, sample, 0, task.outputs[0].name)
        return FullSize(note=_seen(size, plan, sample, "nothing more is known"))
    if not alone or any(tensor.derived for tensor in task.inputs):
        return FullSize(note=_seen(size, plan, sample, "it stores results; their values were not checked"))
    if worked[0].end != "ok" and not (unended and worked[0].end == "budget"):
        return FullSize(note=_seen(size, plan, sample, f"it {_goes_on(worked[0])}; what it computes was not checked"))
    if copied:
        return FullSize(
            note=_seen(size, plan, sample, "what was copied before it was not; its values were not checked")
        )
    if combines(count.form for count in execution.counts) or any(combines(unit.forms) for unit in worked):
        return FullSize(note=_seen(size, plan, sample, "CTAs combine their results, so their values were not checked"))
    return _numbers(task, axes, plan, sample, periods, ENOUGH_OF_MANY_TILES if unended else ENOUGH)


def _hangs(task: Task, unit: SampledUnit, small: Axes, execution: Execution, alone: bool) -> str | None:
    """Say how a unit hangs whatever others do; None where it does not, or others may end it.

    One that ran out of instructions, or long was in a loop, hangs if it did little of its work, which is known of the
    only launch (`alone`): the first of several may do another work, and have much of it. So may a CTA of the only one
    that reads inputs and stores what it makes of them.
    """
    if unit.looked or unit.end not in ("hang", "budget"):
        return None
    if unit.end == "hang" and (unit.stuck or not unit.loaded):
        return f"hangs ({unit.message})"
    usual = unit.warp_instructions / instruction_rate(task, small, execution)
    if not alone or unit.multiply_adds >= LEAST_COMPUTED * usual or (unit.loaded and unit.stored):
        return None
    share = 100 * unit.multiply_adds / usual
    return f"does not end, and in {unit.warp_instructions:,} warp instructions it did {share:.2g} % of its usual work"


def _goes_on(unit: SampledUnit) -> str:
    """Say why a unit has not come to its end, which others may bring about."""
    if unit.end == "hang" and unit.stuck:
        return "waits for others, which were not executed"
    return "works and had not ended within its share of instructions"


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
        "anything, though at small sizes all is written: `run` must do the whole work at every size that its arguments "
        "name"
    )
    return FullSize(wrong=_output(output, float("inf")), message=message)


def either(on_many: FullSize, on_task: FullSize) -> FullSize:
    """Refuse what is refused as on a GPU of very many SMs and as on the task's; else tell what was seen on the first.

    A kernel may rely on there being no more CTAs than its GPU has room for, in an array with an element for each.
    """
    if on_task.refused:
        return on_task
    seen = on_many.message or (on_many.failure.message if on_many.failure is not None else "")
    only = f"refused as on a GPU of {MANY_SMS:,} SMs, which does not exist, but not as on the task's: {seen}"
    return FullSize(note=f"{on_task.note}; {only}" if on_task.note else only)


def named(axes: Axes) -> str:
    """Return sizes as text."""
    return ", ".join(f"{axis} = {size}" for axis, size in axes.items())


def written_share(task: Task, axes: Axes, samples: Sequence[Sample], name: str, errors: float = 0.0) -> float:
    """Return which share of the output `name` the CTAs of the only launch write, or at most write, going by samples.

    Each unit that came to its end counts with what it wrote, or with nothing where it stands for one that wrote
    nothing, and all together with the share of units that do not end at once.

    Args:
        task: What was asked for.
        axes: The size.
        samples: Of one plan.
        name: The output.
        errors: How many standard errors are added: the bound of a normal distribution, and what it takes more where few
            units write much and many nothing, as of a count of rare events.
    """
    launches = [sample.launches[0] for sample in samples]
    total = sum(tensor.size_bytes(axes) for tensor in task.outputs if tensor.name == name)
    written = np.array(
        [0 if unit.instead else unit.outputs[name].offsets.size for sample in samples for unit in _ended(sample)], float
    )
    ran = sum(launch.ran for launch in launches)
    working = 1 - sum(launch.idle for launch in launches) / ran
    mean, most, count = float(written.mean()), float(written.max()), written.size
    spread = float(written.std(ddof=1)) if count > 1 else 0.0
    error = math.hypot(working * spread / math.sqrt(count), mean * math.sqrt(working * (1 - working) / ran))
    bound = working * mean + errors * error + errors**2 * working * most / (2 * count)
    return bound * launches[0].units / total


def _share_of(task: Task, axes: Axes, sample: Sample, name: str) -> float:
    """Return which share of an output the CTAs write by one sample; all of it where none has come to its end."""
    return written_share(task, axes, [sample], name) if _ended(sample) else 1.0


def ended_alone(sample: Sample) -> bool:
    """Return whether the plan has one launch, and all of its units that worked came to their end."""
    return len(sample.launches) == 1 and len(_ended(sample)) == len(sample.launches[0].worked) > 0


def all_write(task: Task, axes: Axes, sample: Sample, name: str) -> bool:
    """Return whether every sampled CTA of the only launch writes an output as if it had no other work to do."""
    launch = sample.launches[0]
    total = sum(tensor.size_bytes(axes) for tensor in task.outputs if tensor.name == name)
    least = LEAST_WRITTEN * total / (launch.units * (1 - launch.idle_share))
    return all(not unit.instead and unit.outputs[name].offsets.size >= least for unit in _ended(sample))


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
    return stored * launch.units >= LEAST_WRITTEN * total and computed * launch.units >= LEAST_WRITTEN * needed


def computed_share(task: Task, axes: Axes, sample: Sample) -> float | None:
    """Return which share of the task's multiply-adds the plan would do, if all at work were like the busiest sampled.

    None where that is not known: a unit did not come to its end, or a launch had none that worked. Units that are idle
    do none; after the first launch, only those that did not look at memory, since what they wait for may not have run.
    """
    if not all(launch.worked and all(unit.end == "ok" for unit in launch.worked) for launch in sample.launches):
        return None
    most = 0.0
    for index, launch in enumerate(sample.launches):
        working = 1 - (launch.blind_share if index else launch.idle_share)
        most += launch.units * working * max(unit.multiply_adds for unit in launch.worked)
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


def _numbers(
    task: Task, axes: Axes, plan: LaunchPlan, sample: Sample, periods: Mapping[str, Bytes], enough: float
) -> FullSize:
    """Compare what the sampled units wrote with the reference of these elements, and how much that is."""
    launch, ended = sample.launches[0], _ended(sample)
    reference = Reference(task, axes, periods)
    checked = dict.fromkeys((tensor.name for tensor in task.outputs), 0)
    shares = {tensor.name: _share_of(task, axes, sample, tensor.name) for tensor in task.outputs}
    for tensor in task.outputs:
        if shares[tensor.name] < LEAST_WRITTEN:
            share = f"its share of {tensor.name}"
            if splits(task, axes, sample, tensor.name):
                few = f"it stores to memory of its own and not {share}, so its values were not checked"
                return FullSize(note=_seen(named(axes), plan, sample, few))
            return _uncovered(task, axes, plan, sample, tensor, f"it did not write {share}; others may")
    for unit in ended or launch.worked[:1]:
        for tensor in task.outputs:
            written = unit.outputs[tensor.name]
            if not written.offsets.size:
                continue
            indices, values = elements(tensor, axes, written)
            region = region_of(task, tensor, indices)
            inside, expected = expected_in(reference, tensor, indices, region)
            error = relative_error(values[inside], expected)
            if not error <= TOLERANCE:
                where = ", ".join(_span(column) for column in indices[:, list(tensor.to_stored)].T)
                message = (
                    f"at the size that is timed ({named(axes)}), {_unit(plan, unit)} writes {tensor.name}[{where}] "
                    f"wrong: relative error {error:.2g}, at most {TOLERANCE:g} there, though small sizes are right; "
                    "sizes must come from the arguments, and indices must not overflow"
                )
                return FullSize(wrong=_output(tensor.name, error, f"{tensor.name}[{where}]"), message=message)
            checked[tensor.name] += expected.size
    what = " and ".join(f"{count:,} elements of {name}" for name, count in checked.items())
    seen = f"{'they' if len(ended) > 1 else 'it'} wrote {what}, which are right"
    for unit in launch.worked:
        if unit.end != "ok":
            seen += f"; {_unit(plan, unit)} {_goes_on(unit)}, and what it computes was not checked"
    for tensor in task.outputs:
        if shares[tensor.name] < enough and not splits(task, axes, sample, tensor.name):
            seen += f", but less than their share of {tensor.name}; others may write the rest"
            return _uncovered(task, axes, plan, sample, tensor, seen)
    return FullSize(note=_seen(named(axes), plan, sample, seen))


def _uncovered(task: Task, axes: Axes, plan: LaunchPlan, sample: Sample, tensor: Tensor, seen: str) -> FullSize:
    """Refuse a launch whose sampled units store too little of an output; `seen` is for a note, where others may."""
    launch = sample.launches[0]
    unit = min(_ended(sample), key=lambda unit: unit.outputs[tensor.name].offsets.size)
    message = (
        f"at the size that is timed ({named(axes)}), the {launch.units:,} {_noun(plan.launches[0])}s of "
        f"{function_name(launch.kernel)} cannot have written {tensor.name}: going by the sampled ones, they write "
        f"about {100 * _share_of(task, axes, sample, tensor.name):.2g} % of it. {_unit(plan, unit)} stored "
        f"{unit.outputs[tensor.name].offsets.size:,} of its {tensor.size_bytes(axes):,} bytes and ended"
    )
    if launch.idle:
        message += f"; {launch.idle} of {launch.ran} ended at once, without storing anything"
    wrong = _output(tensor.name, float("inf"))
    return FullSize(wrong=wrong, message=message, note=_seen(named(axes), plan, sample, seen), uncovered=tensor.name)


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
    count = max(1, sum(unit.end == "ok" for unit in launch.worked))
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
