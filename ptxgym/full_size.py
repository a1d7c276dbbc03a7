"""After a kernel is right at small sizes: is it at the size that is timed, too, as far as no GPU can tell?

The host code is recorded at that size as on the task's GPU, where it must not fail, and as on one with so many SMs that
persistent kernels launch a CTA for each tile; a few CTAs of that plan are executed (`judge.full_size`).
"""

from __future__ import annotations

import functools
from collections.abc import Sequence

from ptxgym.build import Build
from ptxgym.device.protocol import Bytes, Execution
from ptxgym.device.sampling import Sample, Sampler
from ptxgym.judge import full_size as judging
from ptxgym.judge import sampled_units
from ptxgym.judge.conditions import Conditions
from ptxgym.judge.full_size import FullSize
from ptxgym.plan import DeviceProfile, LaunchPlan
from ptxgym.recording import record_call
from ptxgym.task import Axes, Task
from ptxgym.verdict import Failure

WORKLOAD = "hardware"
ROUNDS = 3
"""CTAs of each size that must agree before a kernel is refused for writing too little."""
WORK_ROUNDS = 5
"""Of the large size before it is refused for computing too little: CTAs of causal attention differ in their work."""


def check(
    built: Build,
    task: Task,
    profile: DeviceProfile,
    drawn: Conditions,
    device: object,
    execution: Execution,
    other: LaunchPlan | None = None,
) -> FullSize:
    """Check `built` at the size that is timed; nothing is said where task or device cannot.

    Args:
        built: The compiled submission, right at the sizes of `drawn`.
        task: What was asked for.
        profile: The task's GPU.
        drawn: Under which conditions it was judged; they also decide which CTAs run.
        device: Where; only a `Sampler` can.
        execution: The first of these runs.
        other: Its plan, if the host code shall be called at its size, too.

    Raises:
        InfrastructureError: if the machine failed.
    """
    if WORKLOAD not in task.workloads or not isinstance(device, Sampler):
        return FullSize()
    axes, first = task.workloads[WORKLOAD].axes, drawn.cases[0]
    recorded = record_call(built, task, axes, profile, other)
    if isinstance(recorded, Failure):
        return _failed(axes, recorded)
    many = record_call(built, task, axes, profile.of_many_sms())
    plan = recorded if isinstance(many, Failure) or _kernels(many) != _kernels(recorded) else many
    budgets = sampled_units.budgets(task, axes, plan, first.axes, execution)
    full = _Sampling(
        built, task, axes, plan, device, budgets, sampled_units.comparisons(task, axes, plan, first.axes, execution)
    )
    sample = full.draw(first.seed)
    if isinstance(sample, Failure):
        return _failed(axes, sample)
    small = functools.cache(functools.partial(_small, built, task, profile, first.axes, device, execution))
    if judging.mostly_idle(sample):
        before = few.draw(first.seed) if (few := small()) else None
        if isinstance(before, Sample) and (found := judging.idle_launch(sample, before)) is not None:
            return judging.idle(axes, plan, sample, found, task.outputs[0].name)
    judged = judging.judge_sample(task, axes, plan, sample, full.periods, first.axes, execution)
    if judged.uncovered is not None and not _certain(judged.uncovered, full, small(), first.seed):
        return FullSize(note=judged.note)
    share = judging.computed_share(task, axes, sample)
    if judged.wrong is not None or share is None or share >= judging.LEAST_COMPUTED:
        return judged
    if _computes_little(full, small(), first.seed):
        return judging.computes_little(axes, share, task.outputs[0].name)
    return judged


def _failed(axes: Axes, failure: Failure) -> FullSize:
    """Refuse what the recorder or the emulator refuses at this size alone."""
    message = f"At the size that is timed ({judging.named(axes)}): {failure.message}"
    return FullSize(failure=failure.model_copy(update={"message": message}))


class _Sampling:
    """Samples of one plan, with the inputs of its first."""

    def __init__(
        self,
        built: Build,
        task: Task,
        axes: Axes,
        plan: LaunchPlan,
        device: Sampler,
        budgets: Sequence[int],
        compared: int = 1,
    ) -> None:
        self._built, self._task, self._axes, self._plan = built, task, axes, plan
        self._device, self._budgets, self._compared = device, budgets, compared
        self.periods: dict[str, Bytes] = {}

    def draw(self, seed: int) -> Sample | Failure:
        """Run other CTAs for each seed; the device refuses a plan whatever the seed."""
        self.periods = sampled_units.patterns(self._task, self._axes, seed)
        units = sampled_units.units(self._plan, seed)
        more = sampled_units.further_units(self._plan, seed, self._compared)
        return self._device.sample(self._built, self._plan, self.periods, units, self._budgets, more)

    def computed_share(self, seed: int) -> float | None:
        """Return which share of the task's work CTAs like those of this seed do; None where that is not known."""
        sample = self.draw(seed)
        return None if isinstance(sample, Failure) else judging.computed_share(self._task, self._axes, sample)

    def covers(self, seed: int, output: str) -> bool | None:
        """Return whether CTAs like those of this seed write all of an output; None where others may do it for them."""
        sample = self.draw(seed)
        if isinstance(sample, Failure) or len(sample.launches) != 1:
            return None
        worked = sample.launches[0].worked
        if not worked or any(unit.end != "ok" for unit in worked):
            return None
        if judging.covers(self._task, self._axes, sample, output):
            return True
        return None if judging.splits(self._task, self._axes, sample, output) else False


def _certain(output: str, full: _Sampling, small: _Sampling | None, seed: int) -> bool:
    """Return whether other CTAs do not write their share of `output` either, though those of the small size do."""
    seeds = range(seed + 1, seed + ROUNDS)
    return (
        small is not None
        and all(small.covers(other, output) is True for other in (seed, *seeds))
        and all(full.covers(other, output) is False for other in seeds)
    )


def _computes_little(full: _Sampling, small: _Sampling | None, seed: int) -> bool:
    """Return whether other CTAs compute as little, though those of the small size do not."""
    if small is None:
        return False
    before = [small.computed_share(other) for other in range(seed, seed + ROUNDS)]
    now = [full.computed_share(other) for other in range(seed + 1, seed + WORK_ROUNDS)]
    return all(share is not None and share >= judging.LEAST_COMPUTED_BEFORE for share in before) and all(
        share is not None and share < judging.LEAST_COMPUTED for share in now
    )


def _small(
    built: Build, task: Task, profile: DeviceProfile, axes: Axes, device: Sampler, execution: Execution
) -> _Sampling | None:
    """Return how to sample the small size, with which the full one is compared where it looks odd."""
    plan = record_call(built, task, axes, profile)
    if isinstance(plan, Failure):
        return None
    return _Sampling(built, task, axes, plan, device, sampled_units.budgets(task, axes, plan, axes, execution))


def _kernels(plan: LaunchPlan) -> list[str]:
    return [launch.kernel for launch in plan.launches]
