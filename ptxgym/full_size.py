"""After a kernel is right at small sizes: is it at the size that is timed, too, as far as no GPU can tell?

The host code is recorded at that size as on the task's GPU, where it must not fail, and as on one with so many SMs that
persistent kernels launch a CTA for each tile; a few CTAs of that plan are executed (`judge.full_size`). No GPU has so
many: what is refused there is judged again as on the task's.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass

from ptxgym.build import Build
from ptxgym.device.protocol import Bytes, Execution
from ptxgym.device.sampling import Sample, Sampler
from ptxgym.judge import full_size as judging
from ptxgym.judge import sampled_units
from ptxgym.judge.conditions import Case, Conditions
from ptxgym.judge.full_size import FullSize
from ptxgym.plan import DeviceProfile, LaunchPlan
from ptxgym.recording import record_call
from ptxgym.task import Axes, Task
from ptxgym.verdict import Failure

WORKLOAD = "hardware"
ROUNDS = 3
"""Draws of the small size that must agree before a kernel is refused for too little writing or work at the large."""
WRITE_ROUNDS = 5
"""Draws of the large size before it is refused for writing too little."""
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
    call = _Call(built, task, axes, profile, first, device, execution)
    many = record_call(built, task, axes, profile.of_many_sms())
    if isinstance(many, Failure) or many == recorded or _kernels(many) != _kernels(recorded):
        return call.judged(recorded)
    on_many = call.judged(many)
    return on_many if not on_many.refused else judging.either(on_many, call.judged(recorded, again=True))


@dataclass(frozen=True)
class _Call:
    """The call at the size that is timed, and the one at a small size with which it is compared where it looks odd."""

    built: Build
    task: Task
    axes: Axes
    profile: DeviceProfile
    case: Case
    device: Sampler
    execution: Execution

    def judged(self, plan: LaunchPlan, *, again: bool = False) -> FullSize:
        """Judge a plan of this call.

        Args:
            plan: As on one GPU or another.
            again: It has been refused as on another, and has more time. What its CTAs have written is compared even if
                they have not come to their end, and whether they write enough is told by one draw.
        """
        task, axes, seed = self.task, self.axes, self.case.seed
        full = self._sampling(plan, axes, again=again)
        sample = full.draw(seed)
        if isinstance(sample, Failure):
            return _failed(axes, sample)
        if judging.mostly_idle(sample):
            before = few.draw(seed) if (few := self._small) else None
            if isinstance(before, Sample) and (found := judging.idle_launch(sample, before)) is not None:
                return judging.idle(axes, plan, sample, found, task.outputs[0].name)
        judged = judging.judge_sample(
            task, axes, plan, sample, full.periods, self.case.axes, self.execution, unended=again
        )
        if judged.uncovered is not None and not again and not self._writes_little(judged.uncovered, full, sample):
            return FullSize(note=judged.note)
        share = judging.computed_share(task, axes, sample)
        if judged.wrong is not None or share is None or share >= judging.LEAST_COMPUTED:
            return judged
        if again or self._computes_little(full):
            return judging.computes_little(axes, share, task.outputs[0].name)
        return judged

    def _writes_little(self, output: str, full: _Sampling, first: Sample) -> bool:
        """Return whether other CTAs do not write their share of `output` either, though all of the small size do.

        CTAs may have different roles, and the last ones of a row less to write. So several must agree, or many.
        """
        small, seed = self._small, self.case.seed
        if small is None or not all(small.all_write(other, output) for other in range(seed, seed + ROUNDS)):
            return False
        samples: list[Sample] = []
        for other in range(seed + 1, seed + 1 + WRITE_ROUNDS):
            sample = full.draw(other, sampled_units.asked_again(first))
            if isinstance(sample, Failure) or not judging.ended_alone(sample):
                return False
            if judging.splits(self.task, self.axes, sample, output):
                return False
            samples.append(sample)
            share, most = (
                judging.written_share(self.task, self.axes, samples, output, errors) for errors in (0, judging.CERTAIN)
            )
            if len(samples) >= ROUNDS and share >= judging.LEAST_WRITTEN and most < judging.ENOUGH:
                return True
        return judging.written_share(self.task, self.axes, samples, output, judging.LIKELY) < judging.ENOUGH

    def _computes_little(self, full: _Sampling) -> bool:
        """Return whether other CTAs compute as little, though those of the small size do not."""
        small, seed = self._small, self.case.seed
        if small is None:
            return False
        before = [small.computed_share(other) for other in range(seed, seed + ROUNDS)]
        now = [full.computed_share(other) for other in range(seed + 1, seed + WORK_ROUNDS)]
        return all(share is not None and share >= judging.LEAST_COMPUTED_BEFORE for share in before) and all(
            share is not None and share < judging.LEAST_COMPUTED for share in now
        )

    @functools.cached_property
    def _small(self) -> _Sampling | None:
        """How to sample the small size."""
        plan = record_call(self.built, self.task, self.case.axes, self.profile)
        return None if isinstance(plan, Failure) else self._sampling(plan, self.case.axes, compared=1)

    def _sampling(self, plan: LaunchPlan, axes: Axes, *, compared: int | None = None, again: bool = False) -> _Sampling:
        small, execution = self.case.axes, self.execution
        budgets = sampled_units.budgets(self.task, axes, plan, small, execution, patient=again)
        if compared is None:
            compared = sampled_units.comparisons(self.task, axes, plan, small, execution)
        return _Sampling(self.built, self.task, axes, plan, self.device, budgets, compared)


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

    def draw(self, seed: int, compared: int | None = None) -> Sample | Failure:
        """Run other CTAs for each seed, `compared` of the only launch; the device refuses a plan whatever the seed."""
        self.periods = sampled_units.patterns(self._task, self._axes, seed)
        units = sampled_units.units(self._plan, seed)
        more = sampled_units.further_units(self._plan, seed, compared or self._compared)
        return self._device.sample(self._built, self._plan, self.periods, units, self._budgets, more)

    def computed_share(self, seed: int) -> float | None:
        """Return which share of the task's work CTAs like those of this seed do; None where that is not known."""
        sample = self.draw(seed)
        return None if isinstance(sample, Failure) else judging.computed_share(self._task, self._axes, sample)

    def all_write(self, seed: int, output: str) -> bool:
        """Return whether CTAs like those of this seed all write an output."""
        sample = self.draw(seed, sampled_units.LEAST_ASKED)
        if isinstance(sample, Failure) or not judging.ended_alone(sample):
            return False
        return judging.all_write(self._task, self._axes, sample, output)


def _kernels(plan: LaunchPlan) -> list[str]:
    return [launch.kernel for launch in plan.launches]
