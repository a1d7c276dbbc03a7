"""A few CTAs of a plan that is too large to be executed whole: what a device that can do so is asked, and answers."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from ptxgym.build.model import Build
from ptxgym.device.protocol import Bytes
from ptxgym.plan.model import Launch, LaunchPlan
from ptxgym.verdict import Failure

End = Literal["ok", "budget", "hang", "runtime_fault"]


@dataclass(frozen=True, eq=False)
class Written:
    """Bytes of an output that were written."""

    offsets: NDArray[np.int64]
    """[count] from the start of the output, ascending."""
    data: Bytes
    """[count]"""


@dataclass(frozen=True, eq=False)
class SampledUnit:
    """What one CTA or cluster did that was not idle."""

    unit: int
    end: End = "ok"
    message: str = ""
    """What it faulted with, or how it hangs."""
    stuck: bool = False
    """Of a hang: nothing can happen any more. Otherwise a loop went on for longer than any work takes."""
    looked: bool = True
    """Whether it read global memory that others may write: neither an input nor const."""
    loaded: bool = True
    """Whether it read global memory, inputs too, other than by copies of the async proxy."""
    stored: bool = True
    """Whether it stored to global memory."""
    instead: bool = False
    """Whether it stands for one of the only launch that was drawn before, ran for long and stored nothing."""
    forms: frozenset[str] = frozenset()
    """PTX opcodes that it executed."""
    elsewhere_bytes: int = 0
    """Bytes of memory that is no output which it, and those before it, have stored to; of variables, have changed."""
    multiply_adds: int = 0
    """What it has computed, by whatever instructions."""
    warp_instructions: int = 0
    outputs: Mapping[str, Written] = field(default_factory=dict)
    """What it has written; of a plan with one launch."""


@dataclass(frozen=True, eq=False)
class SampledLaunch:
    """What the CTAs of one launch did that ran by themselves. A unit is a CTA, or a cluster."""

    kernel: str
    units: int
    """Of the whole launch."""
    ran: int
    """Drawn from all, and run at least for a moment."""
    idle: int
    """Those that ended without a store to global memory; of the only launch, at once."""
    blind: int = 0
    """Those of the idle that had not even read global memory: nothing that another CTA wrote made them idle."""
    worked: tuple[SampledUnit, ...] = ()
    """The first that was not idle, and more of a plan with one launch; the others were left once seen to work."""

    @property
    def idle_share(self) -> float:
        """Share of the units that ran and had nothing to do."""
        return self.idle / self.ran if self.ran else 0.0

    @property
    def blind_share(self) -> float:
        """Share of the units that ran and had nothing to do, whatever memory holds."""
        return self.blind / self.ran if self.ran else 0.0


@dataclass(frozen=True, eq=False)
class Sample:
    """What the sampled CTAs of a plan did."""

    launches: tuple[SampledLaunch, ...]


@runtime_checkable
class Sampler(Protocol):
    """A device that can run some CTAs of a plan without the others."""

    def sample(
        self,
        build: Build,
        plan: LaunchPlan,
        patterns: Mapping[str, Bytes],
        units: Sequence[Sequence[int]],
        budgets: Sequence[int],
        more: Sequence[Sequence[int]] = (),
    ) -> Sample | Failure:
        """Run units of each launch one after the other until one works, then look whether some others start to.

        Args:
            build: The compiled submission.
            plan: Its plan. Memsets run, copies do not: only what is known without them can be relied on.
            patterns: By input, its bytes, or those that it repeats from its start: a multiple of `PERIOD_STEP_BYTES`.
            units: For each launch, those to try, in order.
            budgets: For each launch, warp instructions that its units may execute until one has worked.
            more: Of a plan with one launch whose first working unit ended: for each further one, those to try.

        Raises:
            InfrastructureError: if the device itself failed.
        """
        ...


PERIOD_STEP_BYTES = 4096
"""A page of host memory: repeated inputs are mapped, not copied."""


def units_of(launch: Launch) -> int:
    """Return how many CTAs, or clusters, a launch has."""
    return math.prod(launch.grid) // math.prod(launch.cluster or (1, 1, 1))
