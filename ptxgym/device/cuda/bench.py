"""What a judge process works with: executors, profiler, sanitizers, memory, clock and lock of one real GPU.

This is the only place that knows all of them; only the judge process imports it. Whoever computes or copies on the GPU
holds the device lock, shared or exclusive, *before* he takes any other lock but a place in a queue for it, so that
nobody who waits for the GPU keeps another one from leaving it. What takes seconds holds it as long work, so that a race
that waits for it to end keeps nobody else waiting.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any

from ptxgym.device.cuda import ncu
from ptxgym.device.cuda.clock import RaceClock
from ptxgym.device.cuda.executor import Executor
from ptxgym.device.cuda.gpu import Gpu
from ptxgym.device.cuda.health import Health
from ptxgym.device.cuda.judging import NumberJudge
from ptxgym.device.cuda.lock import DeviceLock
from ptxgym.device.cuda.memory import GpuMemory
from ptxgym.device.cuda.model import Announced, Request
from ptxgym.device.cuda.placed import PlacedExecutor
from ptxgym.device.cuda.regions import RegionPool
from ptxgym.device.cuda.sanitizer import sanitize
from ptxgym.device.cuda.tools import Handles, Profiled, SanitizerTool, Tools, Unusable
from ptxgym.device.cuda.warm import Warm
from ptxgym.errors import InfrastructureError
from ptxgym.judge.conditions import Case, inputs
from ptxgym.judge.correctness import passes
from ptxgym.judge.numbers import POISON
from ptxgym.judge.references import expect
from ptxgym.plan.model import LaunchPlan
from ptxgym.task import Task
from ptxgym.verdict import Failure, Finding

STARTS_AT_ONCE = 2
"""Executors that make their contexts: the driver lets them do most of it one by one, and a race waits for all."""
WARM_PROFILERS = 2
PROFILERS_AT_ONCE = 2
"""Nsight Compute lets one process profile at a time; beside it another makes its context, or ends."""
QUIET_S = 1.0
"""How long nobody must have been at work before profilers are started that nobody has asked for yet."""
REGIONS_SHARE = 0.15
"""Of the GPU's memory, for idle regions: what eight evaluations of attention forward leave fits in an H200's."""
AT_ONCE = 8
"""Evaluations that hold GPU memory at a time: each has an executor's context, private buffers and results."""


class Bench:
    """See `role.Bench`."""

    def __init__(self, gpu: Gpu) -> None:
        """Make what starts nothing; the rest comes with the first use."""
        self._gpu = gpu
        self._lock = DeviceLock(gpu.uuid)
        self._executors: Warm[Executor] = Warm(self._start_executor, Executor.kill, AT_ONCE)
        self._regions = RegionPool(int(REGIONS_SHARE * gpu.memory_bytes))
        """For inputs and outputs of executors, and for what is kept of them."""
        self._profilers: Warm[ncu.ProfiledExecutor | ncu.Unavailable] = Warm(
            self._start_profiler, _end_profiler, WARM_PROFILERS
        )
        self._profiles = False
        """Whether evaluations come that need a profiler."""
        self._at_work = 0
        """Evaluations with an executor."""
        self._running: set[Executor] = set()
        """That evaluations have."""
        self._closed = False
        self._profilers_at_once = threading.BoundedSemaphore(PROFILERS_AT_ONCE)
        self._places = threading.BoundedSemaphore(AT_ONCE)
        self._starting = threading.BoundedSemaphore(STARTS_AT_ONCE)
        self._mutex = threading.Lock()
        self._tools: Tools | None = None
        self._closing: list[Any] = []

    def expect(self, announced: Announced, more: int) -> None:
        """Count an evaluation that has begun, or ended early; start processes for it, and wait for nothing."""
        self._executors.expect(more, coming=self._at_work)
        if announced.tier != "rl":
            self._profiles = True
            if more < 0 or self._executors.expected + self._at_work <= WARM_PROFILERS:
                self._profilers.expect(more)  # where more come, none profiles an empty kernel first
        if more < 0:
            self._prepare_when_quiet()

    def make_ready(self, announced: Announced) -> None:
        """Load the GPU's packages, draw inputs, compute references."""
        tools = self.tools()
        for case in announced.cases:
            with self._lock.shared():
                tools.memory.inputs(announced.task, case)
        with self._lock.shared():
            tools.judging.rehearse(announced.task)

    def tools(self) -> Tools:
        """Return the tools; the first call imports packages and makes the judge's CUDA context.

        Raises:
            InfrastructureError: if a package is missing or the GPU cannot be used.
        """
        with self._mutex:
            if self._tools is None:
                self._tools = self._made()
            return self._tools

    def close(self) -> None:
        """End all processes that were started, and the queue."""
        self._closed = True
        self._executors.close()
        self._profilers.close()
        with self._mutex:
            running = list(self._running)
        for executor in running:  # in a session of its own, so that it does not end with this process's group
            with contextlib.suppress(InfrastructureError):
                executor.kill()
        for one in (*self._closing, self._regions):
            one.close()

    def _made(self) -> Tools:
        try:
            import cupy
        except ImportError as error:
            raise InfrastructureError(f'{error}; pip install "ptxgym[gpu]"') from error
        try:
            cupy.cuda.Device(0).use()
            health = Health(self._gpu, _probe)
            memory = GpuMemory(self._gpu.memory_bytes, self._regions)
        except cupy.cuda.runtime.CUDARuntimeError as error:
            raise InfrastructureError(f"{self._gpu.name} cannot be used: {error}; see `nvidia-smi`") from error
        threading.Thread(target=importlib.import_module, args=("torch",), daemon=True).start()  # seconds, ahead of need
        clock = RaceClock(self._lock, self._gpu.name, _inputs, _right)
        self._closing += [clock, memory]
        return Tools(
            executor=self._executor,
            forgo=self._forgo,
            memory=memory,
            judging=NumberJudge(cupy),
            profile=functools.partial(self._profile, memory),
            sanitize=self._sanitize,
            clock=clock,
            shared=self._shared,
            alone=self._lock.exclusive,
            check_health=health.check,
            memory_bytes=self._gpu.memory_bytes,
            libraries=functools.cache(_libraries),
        )

    # Processes

    @contextmanager
    def _executor(self, plans: Sequence[LaunchPlan]) -> Iterator[PlacedExecutor]:
        self._places.acquire()
        self._came()
        one_stream = not any(plan.has_side_streams for plan in plans)
        try:
            if one_stream:
                running = self._executors.take()
                while not running.usable:  # it has waited, and its process has ended meanwhile
                    running.kill()
                    running = self._executors.take()
            else:
                self._forgo()  # what waits has one queue
                running = self._start_executor(side_streams=True)
        except BaseException:
            self._places.release()
            self._left()
            raise
        with self._mutex:
            self._running.add(running)
        placed = PlacedExecutor(running, self._regions)
        try:
            yield placed
        finally:  # taking a context down takes a tenth of a second, for which no verdict has to wait
            threading.Thread(target=self._end_executor, args=(placed, one_stream), daemon=True).start()

    def _forgo(self) -> None:
        self._executors.expect(-1, coming=self._at_work)

    def _end_executor(self, placed: PlacedExecutor, again: bool) -> None:
        """End the executor, or, `again`, have its process make a context for the next submission, where few wait.

        What a process costs the driver beside its context, it costs the driver of all GPUs of the machine.
        """
        running = placed.executor
        try:
            if again and running.renewable and self._executors.put(lambda: self._renewed(running)):
                return
            with contextlib.suppress(InfrastructureError), self._lock.shared(long=True):
                running.kill()
            running.kill()  # where the lock was not granted; the dead stay dead
        finally:
            try:
                with contextlib.suppress(InfrastructureError), self._lock.shared():  # unmapping disturbs a race
                    placed.release()
                placed.release()  # where the lock was not granted
            finally:
                with self._mutex:
                    self._running.discard(running)
                self._places.release()
                self._left()

    def _renewed(self, running: Executor) -> Executor:
        with contextlib.suppress(Exception), self._starting, self._lock.shared(long=True):
            return running.renewed()
        with contextlib.suppress(InfrastructureError):
            running.kill()
        return self._start_executor()  # whoever waits for it must not suffer for what the last submission left

    def _came(self) -> None:
        with self._mutex:
            self._at_work += 1

    def _left(self) -> None:
        with self._mutex:
            self._at_work -= 1
        self._prepare_when_quiet()

    def _prepare_when_quiet(self) -> None:
        """Start profilers for an evaluation whose build is cached, which leaves no time to start one.

        Not while others are at work: their races would wait for that.
        """
        if self._profiles and self._quiet and not self._closed:
            later = threading.Timer(QUIET_S, lambda: self._profilers.fill() if self._quiet else None)
            later.daemon = True
            later.start()

    @property
    def _quiet(self) -> bool:
        return self._at_work == 0 and self._executors.expected == 0

    def _start_executor(self, side_streams: bool = False) -> Executor:
        running = Executor.start(self._gpu, side_streams=side_streams)
        try:
            running.connected()
            with self._starting, self._lock.shared(long=True):
                running.ready()
        except BaseException:
            running.kill()
            raise
        return running

    def _start_profiler(self) -> ncu.ProfiledExecutor | ncu.Unavailable:
        profiler = ncu.start(self._gpu)
        if isinstance(profiler, ncu.ProfiledExecutor):
            profiler.connected()
            with self._profiling():
                profiler.ready()
        return profiler

    def _profile(
        self, memory: GpuMemory, request: Request, case: Case, results: Handles, observe: bool, alone: bool
    ) -> Profiled | Failure | Unusable:
        with self._lock.shared():
            given = memory.inputs(request.task, case)
        profiler = self._profilers.take_waiting()
        if isinstance(profiler, ncu.Unavailable):
            return _unusable(profiler)
        poison = {one.name: POISON[one.dtype] for one in request.task.outputs}
        seen = ncu.profile(
            self._gpu, request.build, request.plan(case.axes), given, results, observe=observe,
            prewarmed=profiler, poison=poison, on_gpu=self._lock.exclusive if alone else self._profiling,
        )  # fmt: skip
        return _unusable(seen) if isinstance(seen, ncu.Unavailable) else seen

    @contextmanager
    def _profiling(self) -> Iterator[None]:
        """Hold the GPU for a profiler; few at a time, since a race waits for all of them."""
        with self._profilers_at_once, self._lock.shared(long=True):
            yield

    def _sanitize(
        self, request: Request, case: Case, tools: tuple[SanitizerTool, ...]
    ) -> tuple[Finding, ...] | Unusable:
        with self._lock.shared(long=True):
            found = sanitize(self._gpu, request.build, request.plan(case.axes), inputs(request.task, case), tools)
        return _unusable(found) if isinstance(found, ncu.Unavailable) else found

    def _shared(self) -> AbstractContextManager[Any]:
        return self._lock.shared()


def _end_profiler(profiler: ncu.ProfiledExecutor | ncu.Unavailable) -> None:
    if isinstance(profiler, ncu.ProfiledExecutor):
        profiler.close()


def _unusable(seen: ncu.Unavailable) -> Unusable:
    return Unusable(f"{seen.reason}; {seen.fix}" if seen.fix else seen.reason, seen.by_kernel)


def _inputs(task: Task, case: Case) -> Mapping[str, Any]:
    import cupy

    return expect(task, case, cupy).inputs


def _right(task: Task, case: Case, outputs: Mapping[str, Any]) -> bool:
    """Judge a baseline's outputs, which are torch's."""
    import cupy

    expected = expect(task, case, cupy)
    return all(passes(expected.outputs[name], cupy.from_dlpack(data)) for name, data in outputs.items())


def _probe() -> bool:
    """Add up a million numbers on the GPU."""
    import cupy

    return int(cupy.arange(1 << 20, dtype=cupy.int64).sum()) == (1 << 19) * ((1 << 20) - 1)


def _libraries() -> dict[str, str]:
    """Return the versions of what measures."""
    import cupy

    from ptxgym.device.cuda.baselines import library_versions

    found = {**library_versions(), "cupy": cupy.__version__}
    tool = ncu.find_ncu()
    return found if tool is None else {**found, "Nsight Compute": tool.version}
