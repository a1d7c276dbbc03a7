"""What travels between an evaluator and the judge process of a GPU: one request, one witness, one outcome."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from ptxgym.build.model import Build
from ptxgym.device.protocol import InstructionCount
from ptxgym.judge.conditions import Case, Conditions
from ptxgym.judge.judge import Judgement
from ptxgym.plan.model import Launch, LaunchPlan
from ptxgym.task import Axes, Task
from ptxgym.verdict import Evidence, Failure, KernelProfile, Status, Timing

Tier = Literal["rl", "standard", "publish"]
TIERS: tuple[Tier, ...] = ("rl", "standard", "publish")
"""`rl`: evidence by the emulator, only correct and target-executing kernels are timed. `standard`: Nsight Compute where
it may profile, every correct kernel is timed. `publish`: Nsight Compute or nothing, more draws and pairs."""

Signature = tuple[tuple[object, ...], ...]


@dataclass(frozen=True)
class Request:
    """One submission, compiled and recorded, and how to measure it."""

    task: Task
    arch: str
    tier: Tier
    conditions: Conditions
    """Of the workload that is measured."""
    timing_draws: tuple[Case, ...]
    """Inputs of the first case's shape on which it is timed."""
    stress: Case
    """The small call on which sanitizers look for causes."""
    build: Build
    plans: tuple[LaunchPlan, ...]
    """Recorded on this GPU's profile, one per distinct shape of the conditions and of `stress`."""

    def plan_index(self, axes: Axes) -> int:
        """Return which of `plans` is for `axes`.

        Raises:
            ValueError: if none is.
        """
        return [plan.axes for plan in self.plans].index(axes)

    def plan(self, axes: Axes) -> LaunchPlan:
        """Return the plan for `axes`."""
        return self.plans[self.plan_index(axes)]


@dataclass(frozen=True)
class Announced:
    """An evaluation that has begun: what can be made ready while its text is compiled."""

    tier: Tier
    task: Task
    cases: tuple[Case, ...]
    """Whose inputs and references will be needed."""


@dataclass(frozen=True)
class Witness:
    """What the emulator says of the same build at its own, small sizes."""

    result: Judgement | Failure
    launches: Signature | None = None
    """Of the plan that it ran, as `signature` gives it; None where it came to none."""
    matrix_counts: tuple[InstructionCount, ...] = ()
    """What it counted of instructions whose multiply-adds no SASS tells."""

    @property
    def status(self) -> Status:
        """What became of the submission there."""
        return self.result.status

    @property
    def evidence(self) -> Evidence | None:
        """Which instructions it counted; None where it came to none."""
        return self.result.evidence if isinstance(self.result, Judgement) else None

    @property
    def ran(self) -> bool:
        """Whether the emulator could run it: all forms known, within the budget."""
        return self.status not in (Status.NOT_EMULATED, Status.BUDGET, Status.INFRA)


def signature(plan: LaunchPlan) -> Signature:
    """Return what plans of one kernel for different sizes share: which operations, kernels and blocks, in order."""
    return tuple(
        (one.kernel, one.block, one.cluster, one.cooperative) if isinstance(one, Launch) else (one.kind,)
        for one in plan.operations
    )


@dataclass(frozen=True)
class Outcome:
    """What the judge process says: the parts of a verdict that it decides."""

    result: Judgement | Failure
    case: str = ""
    """The draw on which a failure came, where it is not the first."""
    printed: str = ""
    durations_s: Mapping[str, float] = field(default_factory=dict)
    timing: Timing | None = None
    profile: tuple[KernelProfile, ...] = ()
    lock_held_s: float | None = None
    notes: tuple[str, ...] = ()
    libraries: Mapping[str, str] = field(default_factory=dict)
