"""A few CTAs of a plan that is too large to be executed whole: what a device that can do so is asked, and answers."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from ptxgym.build.model import Build
from ptxgym.device.protocol import Bytes
from ptxgym.plan.model import Launch, LaunchPlan
from ptxgym.verdict import Failure

End = Literal["ok", "budget", "hang", "runtime_fault"]


@dataclass(frozen=True)
class SampledLaunch:
    """What the CTAs of one launch did that ran by themselves. A unit is a CTA, or a cluster."""

    kernel: str
    units: int
    """Of the whole launch."""
    ran: int
    idle: int
    """Those that ended without a store to global memory."""
    end: End = "ok"
    """How the first that was not idle ended; the others were left as soon as they were seen to work."""
    unit: int = -1
    """Its index; -1 where all were idle."""
    message: str = ""
    """What it faulted with."""

    @property
    def idle_share(self) -> float:
        """Share of the units that ran and had nothing to do."""
        return self.idle / self.ran if self.ran else 0.0


@dataclass(frozen=True, eq=False)
class Written:
    """Bytes of an output that were written."""

    offsets: NDArray[np.int64]
    """[count] from the start of the output, ascending."""
    data: Bytes
    """[count]"""


@dataclass(frozen=True, eq=False)
class Sample:
    """What the sampled CTAs of a plan did."""

    launches: tuple[SampledLaunch, ...]
    outputs: Mapping[str, Written]
    """What the one that worked has written; of a plan with one launch."""


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
    ) -> Sample | Failure:
        """Run units of each launch one after the other until one works, then look whether some others start to.

        Args:
            build: The compiled submission.
            plan: Its plan. Memsets run, copies do not: only what is known without them can be relied on.
            patterns: By input, its bytes, or those that it repeats from its start: a multiple of `PERIOD_STEP_BYTES`.
            units: For each launch, those to try, in order.
            budgets: For each launch, warp instructions that its units may execute until one has worked.

        Raises:
            InfrastructureError: if the device itself failed.
        """
        ...


PERIOD_STEP_BYTES = 4096
"""A page of host memory: repeated inputs are mapped, not copied."""


def units_of(launch: Launch) -> int:
    """Return how many CTAs, or clusters, a launch has."""
    return math.prod(launch.grid) // math.prod(launch.cluster or (1, 1, 1))
