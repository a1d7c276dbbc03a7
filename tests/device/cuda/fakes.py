"""A GPU that is numpy: executors, profiler, sanitizer, clock and lock that do what a script says, and count."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from ptxgym.build import Build
from ptxgym.device.cuda.gpu import Gpu
from ptxgym.device.cuda.judging import NumberJudge
from ptxgym.device.cuda.model import Announced, Request, Tier, Witness, signature
from ptxgym.device.cuda.tools import Timed, TimedCall, Tools, Unusable
from ptxgym.device.protocol import InstructionCount
from ptxgym.errors import InfrastructureError
from ptxgym.judge import numbers
from ptxgym.judge.conditions import Case, conditions, inputs
from ptxgym.judge.judge import Judgement
from ptxgym.plan import LaunchPlan
from ptxgym.plan.model import Buffer, Launch
from ptxgym.task import Task, load_task
from ptxgym.verdict import Evidence, Failure, Finding, KernelProfile, Stage, Status, Timing

SECRET = b"a secret of the tests"
GPU = Gpu("GPU-fake", 0, "NVIDIA H200", (9, 0), 141 << 30, "580.95")
KERNEL = "gemm"


class OutOfMemoryError(MemoryError):
    """As cupy and torch call theirs."""


@dataclass(frozen=True)
class FakeCall:
    time_us: float = 100.0
    wall_us: float = 400.0
    device_wall_us: float = 150.0
    printed: str = ""
    launches: tuple[str, ...] = (KERNEL,)


@dataclass(frozen=True)
class FakeProfile:
    counts: tuple[InstructionCount, ...]
    kernels: tuple[KernelProfile, ...]
    outputs: Mapping[str, Any]
    durations_us: tuple[float, ...] = (98.0,)
    launches: tuple[str, ...] = (KERNEL,)


def failure(status: Status, code: str, message: str = "It failed.") -> Failure:
    return Failure(stage=Stage.EXECUTE, status=status, code=code, message=message)


def multiply(task: Task, axes: dict[str, int], given: Mapping[str, Any]) -> Any:
    """The bytes of C, as an honest kernel computes them."""
    a, b = (numbers.decode(given[t.name], t, axes) for t in task.inputs)
    return numbers.bf16_bits((a @ b.T).astype(np.float32)).reshape(-1).view(np.uint8)


@dataclass
class FakeGpu:
    """What all tools of one test share; each field may be scripted."""

    task: Task
    answer: Callable[[int, FakeCall], FakeCall | Failure | Exception] = lambda number, call: call
    """By the number of the call, from 0, over all executors."""
    output: Callable[[int, Any], Any] = lambda number, output: output
    loaded: Failure | None = None
    profiled: Callable[[FakeProfile], FakeProfile | Failure | Unusable] = lambda profile: profile
    found: Mapping[str, tuple[Finding, ...]] | Unusable | Exception = field(default_factory=dict)
    """By tool of the sanitizer."""
    raced: Callable[[Timed], Timed | Failure] = lambda timed: timed
    health: Exception | None = None
    rounds: int = 4
    baseline: float | None = 88.0
    calls: list[tuple[int, bool, float]] = field(default_factory=list)
    """Plan, whether L2 was flushed, limit in seconds."""
    sanitized: list[tuple[str, tuple[str, ...]]] = field(default_factory=list)
    probes: int = 0
    profiles: int = 0
    loads: int = 0
    observed: bool | None = None
    profiled_alone: bool | None = None
    races: int = 0
    prepared: threading.Event = field(default_factory=threading.Event)
    open_executors: int = 0
    forgone: int = 0
    spoilt: int = 0
    open_slots: int = 0
    most_shared: int = 0
    alone: int = 0
    """How often something ran alone that is not a race."""
    _sharers: Counter[int] = field(default_factory=Counter)
    """By thread."""
    _mutex: threading.Lock = field(default_factory=threading.Lock)

    def tools(self) -> Tools:
        return Tools(
            executor=self._executor,
            forgo=self._forgo,
            memory=self,
            judging=NumberJudge(np),
            profile=self._profile,
            sanitize=self._sanitize,
            clock=self,
            shared=self._sharing,
            alone=self._being_alone,
            check_health=self._probe,
            memory_bytes=GPU.memory_bytes,
            libraries=lambda: {"cuBLAS": "13.1"},
        )

    # Executor

    def _forgo(self) -> None:
        self.forgone += 1

    @contextlib.contextmanager
    def _executor(self, plans: Sequence[LaunchPlan]) -> Iterator[FakeGpu]:
        self.open_executors += 1
        try:
            yield self
        finally:
            self.open_executors -= 1

    def load(self, build: Build, plans: Sequence[LaunchPlan]) -> Failure | None:
        self.plans = plans
        self.loads += 1
        return self.loaded

    def call(
        self,
        plan: int,
        inputs: Mapping[str, Any],
        results: Mapping[str, Any],
        *,
        timeout_s: float,
        flush: bool = False,
        profile: bool = False,
        poison: Mapping[str, Any] = {},
    ) -> FakeCall | Failure:
        number = len(self.calls)
        self.calls.append((plan, flush, timeout_s))
        answer = self.answer(number, FakeCall())
        if isinstance(answer, Exception):
            raise answer
        if isinstance(answer, Failure):
            return answer
        after = {**inputs, "C": self.output(number, multiply(self.task, self.plans[plan].axes, inputs))}
        for name, result in results.items():
            result[:] = after[name]
        return answer

    def spoil(self) -> None:
        self.spoilt += 1

    # Memory

    def inputs(self, task: Task, case: Case) -> Mapping[str, Any]:
        return inputs(task, case)

    @contextlib.contextmanager
    def slot(self, sizes_bytes: Mapping[str, int]) -> Iterator[Mapping[str, Any]]:
        self.open_slots += 1
        try:
            yield {name: np.zeros(size, np.uint8) for name, size in sizes_bytes.items()}
        finally:
            self.open_slots -= 1

    # Profiler, sanitizer, clock

    def _profile(
        self, request: Request, case: Case, results: Mapping[str, Any], observe: bool, alone: bool
    ) -> FakeProfile | Failure | Unusable:
        assert not self._sharers[threading.get_ident()], "the profiler asks for the lock itself"
        self.profiles += 1
        self.profiled_alone = alone
        self.observed = observe
        required = request.task.required_multiply_adds(case.axes)
        count = InstructionCount(KERNEL, "HGMMA", "wgmma", 1, 4, 128, required)
        profile = KernelProfile(kernel=KERNEL, launches=1, duration_us=98.0)
        results["C"][:] = multiply(self.task, case.axes, inputs(self.task, case))
        return self.profiled(FakeProfile((count,), (profile,), results))

    def _sanitize(self, request: Request, case: Case, tools: tuple[str, ...]) -> tuple[Finding, ...] | Unusable:
        if isinstance(self.found, Exception):
            raise self.found
        if isinstance(self.found, Unusable):
            return self.found
        self.sanitized.append((case.name, tools))
        return tuple(finding for tool in tools for finding in self.found.get(tool, ()))

    def baseline_us(self, task: Task, case: Case) -> float | None:
        return self.baseline

    def prepare(self, request: Request, draws: Sequence[Case]) -> None:
        self.prepared.set()

    def race(self, request: Request, draws: Sequence[Case], candidate: TimedCall) -> Timed | Failure:
        assert not self._sharers[threading.get_ident()], "the exclusive lock is asked for while the shared one is held"
        self.races += 1
        times: list[float] = []
        for number in range(self.rounds):
            time_us = candidate(number % len(draws))
            if isinstance(time_us, Failure):
                return time_us
            times.append(time_us)
        median = float(np.median(times))
        timing = Timing(
            speedup=88.0 / median, speedup_low=87.5 / median, speedup_high=88.5 / median, candidate_us=median,
            baseline_us=88.0, baseline="cuBLAS", pairs=len(times), stopped="narrow", tflops=830.0 * 88.0 / median,
        )  # fmt: skip
        return self.raced(Timed(timing, 0.02))

    @contextlib.contextmanager
    def _sharing(self) -> Iterator[None]:
        mine = threading.get_ident()
        with self._mutex:  # the profiler's thread shares the GPU beside the one that races
            self._sharers[mine] += 1
            self.most_shared = max(self.most_shared, self.shared)
        try:
            yield
        finally:
            with self._mutex:
                self._sharers[mine] -= 1

    @property
    def shared(self) -> int:
        return self._sharers.total()

    @contextlib.contextmanager
    def _being_alone(self) -> Iterator[None]:
        assert not self._sharers[threading.get_ident()], "the exclusive lock is asked for while the shared one is held"
        self.alone += 1
        yield

    def _probe(self) -> None:
        self.probes += 1
        if self.health is not None:
            raise self.health


def plan_for(task: Task, axes: dict[str, int], block: int = 384) -> LaunchPlan:
    """A plan with one launch, as a recorder would make it."""
    sizes = task.sizes_bytes(axes)
    roles = {tensor.name: "input" for tensor in task.inputs} | {tensor.name: "output" for tensor in task.outputs}
    return LaunchPlan(
        build_key="0" * 64,
        device_profile="h200",
        axes=axes,
        buffers=tuple(Buffer(name=name, role=roles[name], size_bytes=size) for name, size in sizes.items()),  # type: ignore[arg-type]
        operations=(
            Launch(kernel=KERNEL, grid=(axes["M"] // 128, 1, 1), block=(block, 1, 1), dynamic_smem_bytes=0, params=()),
        ),
        isolation="full",
        recorder_revision=1,
    )


def fake_build() -> Build:
    nowhere = Path("/nowhere")
    return Build(
        key="0" * 64, arch="sm_90a", folder=nowhere, source=nowhere, library=nowhere, cubin=nowhere, ptx=nowhere,
        sass=nowhere, compiler="nvcc", flags=(), kernels=(), diagnostics=(),
    )  # fmt: skip


def request(tier: Tier = "standard") -> Request:
    """A request that measures at the emulator's sizes, which numpy can follow."""
    task = load_task("gemm")
    drawn = conditions(task, "emulation", 0, SECRET)
    stress = conditions(task, "schedules", 0, SECRET).cases[0]
    shapes = {tuple(case.axes.items()): case.axes for case in (*drawn.cases, stress)}
    plans = tuple(plan_for(task, axes) for axes in shapes.values())
    timing = tuple(case for case in drawn.cases if case.draw in task.workload("emulation").draws)
    return Request(task, "h100", tier, drawn, timing, stress, fake_build(), plans)


def announced(tier: Tier = "standard") -> Announced:
    """What is said of `request(tier)` before it comes."""
    whole = request(tier)
    return Announced(tier, whole.task, whole.conditions.cases)


def evidence(**changes: Any) -> Evidence:
    required = 75_497_472
    fields: dict[str, Any] = {
        "source": "emulator", "workload": "emulation", "required_multiply_adds": required,
        "target_multiply_adds": required, "other_multiply_adds": 0, "coverage": 1.0, "target_ok": True,
        "families": {}, "ablation": "depends",
    }  # fmt: skip
    return Evidence(**{**fields, **changes})


def witness(result: Judgement | Failure | None = None, block: int = 384, **changes: Any) -> Future[Witness]:
    """What the emulator says: by default, that all is well."""
    task = load_task("gemm")
    if result is None:
        result = Judgement(
            status=Status.OK, code="judge.ok", message="all outputs are right", score=0.5, evidence=evidence(**changes)
        )
    seen: Future[Witness] = Future()
    seen.set_result(Witness(result, signature(plan_for(task, task.workload("emulation").axes, block))))
    return seen


class ProcessBench:
    """A bench for a judge process of its own; what its requests do hangs on the kernel name of the request's build."""

    def __init__(self, gpu: Gpu) -> None:
        self._gpu = gpu
        self._children: list[subprocess.Popen[bytes]] = []
        self._expected = 0
        self._mutex = threading.Lock()

    def tools(self) -> Tools:
        fake = FakeGpu(load_task("gemm"))
        fake.answer = self._answer
        if "unprofiled" in self._words():
            fake.profiled = lambda profile: Unusable("this user may not profile")
        return replace(fake.tools(), libraries=self._libraries)

    def _libraries(self) -> dict[str, str]:
        switch_s = str(sys.getswitchinterval())
        return {"pid": str(os.getpid()), "expected": str(self._expected), "switch_s": switch_s}

    def _answer(self, number: int, call: FakeCall) -> FakeCall | Failure | Exception:
        behaviour, words = self._behaviour(), self._words()
        if "child" in words:
            with self._mutex:
                child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
                self._children.append(child)
                (behaviour.parent / "child").write_text(str(child.pid))
        if "die" in words:
            behaviour.unlink()
            os.abort()
        if "sleep" in words:
            with (behaviour.parent / "sleeping").open("a") as file:
                file.write("z")  # one letter for each that sleeps
            time.sleep(600)
        if "infrastructure" in words:
            return InfrastructureError("no room left")
        if "bug" in words:
            return ZeroDivisionError("a bug")
        if "region" in words:
            said = "<CUresult.CUDA_ERROR_OUT_OF_MEMORY: 2>"
            return InfrastructureError(f"the CUDA driver refuses a memory region: {said}")
        if "memory" in words:
            return OutOfMemoryError("Out of memory allocating 512 bytes")
        if "context" in words:
            behaviour.unlink()
            return RuntimeError("CUDARuntimeError: an illegal memory access was encountered")
        return call

    def _behaviour(self) -> Path:
        return Path(os.environ["TMPDIR"]) / "behaviour"

    def _words(self) -> list[str]:
        behaviour = self._behaviour()
        return behaviour.read_text().split() if behaviour.exists() else []

    def expect(self, announced: Announced, more: int) -> None:
        self._expected += more

    def make_ready(self, announced: Announced) -> None:
        pass

    def close(self) -> None:
        pass
