"""What the flow of one evaluation needs of a GPU, as protocols: the real things, or fakes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

from ptxgym.build.model import Build
from ptxgym.device.cuda.model import Request
from ptxgym.device.cuda.timing import TimedCall
from ptxgym.device.protocol import Execution, InstructionCount
from ptxgym.judge.conditions import Case
from ptxgym.judge.judge import Judgement
from ptxgym.plan.model import LaunchPlan
from ptxgym.task import Task
from ptxgym.verdict import Failure, Finding, KernelProfile, Timing

Handle = Any
"""A region of GPU memory with an `array`, or a numpy array of bytes."""
SanitizerTool = Literal["memcheck", "racecheck", "synccheck", "initcheck"]
Handles = Mapping[str, Handle]


class Called(Protocol):
    """One call of a plan, as the executor saw it; see `executor.Call`."""

    @property
    def time_us(self) -> float:
        """Between the two events around the call."""

    @property
    def wall_us(self) -> float:
        """By the judge's clock, around everything."""

    @property
    def device_wall_us(self) -> float:
        """By the executor's clock, from the first launch until the GPU was idle."""

    @property
    def printed(self) -> str:
        """What the kernels printed."""

    @property
    def launches(self) -> tuple[str, ...]:
        """Kernels that were launched, in order."""


class Running(Protocol):
    """A process that holds one submission; see `executor.Executor`."""

    def load(self, build: Build, plans: Sequence[LaunchPlan]) -> Failure | None:
        """Load module and plans."""

    def call(
        self,
        plan: int,
        inputs: Handles,
        results: Handles,
        *,
        timeout_s: float,
        flush: bool = False,
        poison: Mapping[str, Any] = {},
    ) -> Called | Failure:
        """Call a plan once, cold."""

    def spoil(self) -> None:
        """Have the process take no other submission."""


class Profiled(Protocol):
    """What a profiler saw of one call; see `ncu.Profiled`."""

    @property
    def counts(self) -> tuple[InstructionCount, ...]:
        """Executed instructions."""

    @property
    def kernels(self) -> tuple[KernelProfile, ...]:
        """Per kernel, the longest first."""

    @property
    def outputs(self) -> Handles:
        """The results that were passed, filled by the profiled call."""

    @property
    def durations_us(self) -> tuple[float, ...]:
        """Of each launch."""

    @property
    def launches(self) -> tuple[str, ...]:
        """Kernels that were launched, in order."""


@dataclass(frozen=True)
class Unusable:
    """Why Nsight Compute, or a sanitizer, could not be used."""

    reason: str
    """A clause, such as `this user may not profile (ERR_NVGPUCTRPERM)`."""
    by_kernel: bool = False
    """Whether the machine could: the submission's kernels failed or did not end there, though they do elsewhere."""


@dataclass(frozen=True)
class Timed:
    """What timing found, and how long it kept the GPU to itself."""

    timing: Timing
    lock_held_s: float
    skipped: Mapping[str, str] = field(default_factory=dict)
    """Baselines that were not timed, with the reason."""


class CallFailedError(Exception):
    """Raised out of a timed call that the submission failed."""

    def __init__(self, case: Case, failure: Failure) -> None:
        super().__init__(failure.message)
        self.case, self.failure = case, failure


class Clock(Protocol):
    """Baselines, and the queue of what waits for being timed."""

    def baseline_us(self, task: Task, case: Case) -> float | None:
        """Return the best baseline's time, if it is known."""

    def prepare(self, request: Request, draws: Sequence[Case]) -> None:
        """Prepare the baselines of a request ahead of its race."""

    def race(self, request: Request, draws: Sequence[Case], candidate: TimedCall) -> Timed | Failure:
        """Time `candidate` against the baselines on the same draws, under the exclusive lock."""


class Judging(Protocol):
    """The judge, bound to where arrays live."""

    def rehearse(self, task: Task) -> None:
        """Prepare for `task`."""

    def judge(self, request: Request, executions: Sequence[Execution]) -> Judgement:
        """Judge without counts."""

    def right(self, request: Request, case: Case, outputs: Handles) -> bool:
        """Return whether the outputs of one more call on `case` are right."""

    def equal(self, first: Handle, second: Handle) -> bool:
        """Return whether two ranges hold the same bytes."""


class Memory(Protocol):
    """Pristine inputs and slots for results."""

    def inputs(self, task: Task, case: Case) -> Handles:
        """Return the inputs of `case` by name, drawn once."""

    def slot(self, sizes_bytes: Mapping[str, int]) -> AbstractContextManager[Handles]:
        """Lend memory for results."""


@dataclass(frozen=True)
class Tools:
    """What a judge process has."""

    executor: Callable[[Sequence[LaunchPlan]], AbstractContextManager[Running]]
    """Lends a process with a fresh CUDA context for plans; takes it back afterwards."""
    forgo: Callable[[], None]
    """Says that an evaluation, which was announced, lends none."""
    memory: Memory
    judging: Judging
    profile: Callable[[Request, Case, Handles, bool, bool], Profiled | Failure | Unusable]
    """Runs one call in another fresh process, under the profiler; its outputs go to the handles. Whether to observe
    everything, or to count executed instructions alone, which takes a quarter of the passes; and whether to have the
    GPU alone meanwhile, which who shares it must not ask for."""
    sanitize: Callable[[Request, Case, tuple[SanitizerTool, ...]], tuple[Finding, ...] | Unusable]
    """Runs one call under each of the tools named."""
    clock: Clock
    shared: Callable[[], AbstractContextManager[None]]
    """The device lock, shared: while one is timed, nobody holds it."""
    alone: Callable[[], AbstractContextManager[object]]
    """The device lock, exclusive; not to be asked for by who shares it."""
    check_health: Callable[[], None]
    """Raises InfrastructureError where the GPU is not well after a fault."""
    memory_bytes: int
    """Of the GPU."""
    libraries: Callable[[], Mapping[str, str]]
    """Versions of what measures."""
