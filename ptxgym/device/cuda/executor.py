"""One context per submission, which replays its plans on a GPU, as the trusted side sees it.

Its process (`ptxgym/native/executor`) holds the candidate's module, its inputs, outputs and workspaces, and nothing
else. It says in the end what the driver said; what that means for the submission is decided here. The same program runs
under `ncu` and `compute-sanitizer`, given as `wrapper`.
"""

from __future__ import annotations

import fcntl
import itertools
import mmap
import os
import time
import weakref
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from ptxgym import native
from ptxgym.build.model import Build
from ptxgym.device.cuda import job, wire
from ptxgym.device.cuda.executor_failure import (
    Reported,
    ends_context,
    failure_of,
    hang_failure,
    heap_failure,
    overrun_failure,
)
from ptxgym.device.cuda.executor_process import ExecutorProcess, TooSlow
from ptxgym.device.cuda.gpu import Gpu
from ptxgym.device.cuda.job_cubin import uses_device_heap
from ptxgym.errors import InfrastructureError, UsageError, WorkerDied
from ptxgym.plan.model import LaunchPlan
from ptxgym.verdict import Failure

PREPARATION_LIMIT_S = 120.0
"""For what is not the candidate's: loading, allocation, copies of inputs, a wrapper's own work before the launch."""

WARM_PROFILER = {"PTXGYM_EXECUTOR_WARM_PROFILER": "1"}
"""Variables for `start`: before it is ready, the process launches `WARM_KERNEL` for the profiler to see."""
WARM_KERNEL = "ptxgym_warm_profiler"
UNFILLED = {"PTXGYM_EXECUTOR_UNFILLED": "1"}
"""Variables for `start`: outputs and workspaces stay as allocated, so that initcheck sees what nobody wrote."""
EXACT = {"PTXGYM_EXECUTOR_EXACT": "1"}
"""Variables for `start`: buffers are plain allocations of their exact size, whose bounds memcheck knows to the byte."""

Poison = np.uint8 | np.uint16 | np.uint32
"""What an output holds before a call: a value, as wide as its elements."""
MOST_SUBMISSIONS = 100
"""For one process after another, each in a context of its own; what a driver leaks with a context stays little."""
_DEFAULT_POISON = np.uint8(0xFF)
_DEVICE, _HOST = 0, 1
_ONE_QUEUE = {"CUDA_DEVICE_MAX_CONNECTIONS": "1", "CUDA_DEVICE_MAX_COPY_CONNECTIONS": "1"}
"""Making hardware queues is most of making a context, which has twenty of them by default, counted on an H200. Source:
CUDA Programming Guide, CUDA environment variables."""


class Exported(Protocol):
    """Device memory of this process that an executor may map; see `regions.Region`."""

    @property
    def serial(self) -> int:
        """Never the same for two allocations of this process."""

    @property
    def fd(self) -> int:
        """The exported handle."""

    @property
    def size_bytes(self) -> int:
        """Bytes asked for."""

    @property
    def mapped_bytes(self) -> int:
        """Bytes allocated: a multiple of the granularity."""


Memory = Exported | NDArray[Any]
_ALIGNMENT_BYTES = 512


def first_byte(place: Exported) -> int:
    """Return where a buffer begins in a region that is its place: so that it ends with it, but for its alignment."""
    return place.mapped_bytes - -(-place.size_bytes // _ALIGNMENT_BYTES) * _ALIGNMENT_BYTES


@dataclass(frozen=True)
class Call:
    """A cold call that ended."""

    time_us: float
    """Between the events around the operations; a kernel shares a context with them, so check it against a clock."""
    wall_us: float
    """This process's clock around the whole call, set-up and copies included."""
    device_wall_us: float
    """The executor's host clock, from before the flush or first operation to the end of the last."""
    printed: str
    """What kernels printed, 64 KiB at most; never trusted."""
    launches: tuple[str, ...]
    """Kernels that ran, mangled, in the plan's order."""


@dataclass(frozen=True)
class Greeting:
    """What an executor says of its GPU."""

    driver_version: int
    """As cuDriverGetVersion: 13000 for CUDA 13.0."""
    l2_bytes: int
    pageable_access: bool
    """Whether kernels reach the executor's host memory by its addresses (HMM, Grace)."""


class Executor:
    """One context for one submission; use it as a context manager, or call `close`, `kill` or `renewed` in the end."""

    def __init__(self, process: ExecutorProcess, side_streams: bool = True, submissions: int = 1) -> None:
        """Take over a process that was started, for the last of so many submissions; see `start`."""
        self._process = process
        self._side_streams = side_streams
        self._submissions = submissions
        self._flawless = True
        self._given_away = False
        self._connected = False
        self._greeting: Greeting | None = None
        self._plans: tuple[LaunchPlan, ...] | None = None
        self._kernels: tuple[str, ...] = ()
        self._numbers = itertools.count(1)
        self._regions: dict[int, int] = {}
        self._files: dict[str, _SharedFile] = {}
        self._context_ended = False
        self.reloads = False
        """Whether the module is loaded anew before each call, since the driver cannot find a variable of it."""

    @classmethod
    def start(
        cls, gpu: Gpu, *, side_streams: bool = True, wrapper: Sequence[str] = (), env: Mapping[str, str] = {}
    ) -> Executor:
        """Start the process; returns at once. It does not touch the GPU before `ready`.

        Args:
            gpu: Where to run; chosen by its UUID.
            side_streams: Whether plans may have more streams than one. Making a context for one takes half the time,
                for which the driver serves no other process of the machine (docs/cluster.md).
            wrapper: Command and options in front of the program, such as `("ncu", "--csv")`.
            env: Variables beside the few that are inherited.

        Raises:
            InfrastructureError: if the program cannot be built or started.
        """
        # Kernels are loaded with their module, not at their first launch, which may be a timed one.
        settings = {"CUDA_VISIBLE_DEVICES": gpu.uuid, "CUDA_MODULE_LOADING": "EAGER", "CUDA_CACHE_DISABLE": "1"}
        queues = {} if side_streams else _ONE_QUEUE
        return cls(ExecutorProcess(native.program("executor"), wrapper, {**settings, **queues, **env}), side_streams)

    def connected(self, timeout_s: float = 60) -> None:
        """Wait until the process runs, which takes a wrapper a second; later calls return at once.

        Raises:
            InfrastructureError: if it does not come up; the message holds what it or its wrapper said.
        """
        if not self._connected:
            self._process.accept(timeout_s)
            self._connected = True

    def ready(self, timeout_s: float = 60) -> Greeting:
        """Have the process make its context, and wait for that; later calls return at once.

        Raises:
            InfrastructureError: if it does not come up; the message holds what it or its wrapper said.
        """
        if self._greeting is None:
            self.connected(timeout_s)
            answer, body = self._ask(wire.Request.BEGIN, b"", timeout_s=timeout_s)
            if answer is wire.Answer.FAILED:
                self._failed(body, None)
            version, l2_bytes, pageable = self._expect(wire.Answer.READY, answer, body).numbers("iQB")
            self._greeting = Greeting(version, l2_bytes, bool(pageable))
        return self._greeting

    def spoil(self) -> None:
        """Have the process take no other submission: this one has done in it what it must not."""
        self._flawless = False

    @property
    def renewable(self) -> bool:
        """Whether the process may have another submission, in another context.

        Not after anything went wrong in it or `spoil`, nor where kernels reach its memory.
        """
        spared = self._greeting is not None and not self._greeting.pageable_access
        return spared and self._flawless and self.usable and self._submissions < MOST_SUBMISSIONS

    def renewed(self, timeout_s: float = 20) -> Executor:
        """Give up the submission and its context, and return an executor with a new context in the same process.

        This executor has nothing to do with the process any more then. The driver, which makes contexts one by one, is
        spared what a process costs it.

        Raises:
            InfrastructureError: if the new context does not come; the process is ended.
            UsageError: if this executor is not renewable.
        """
        if not self.renewable:
            raise UsageError("only a process in which all went well takes another submission; start another one")
        self._close_files()
        self._context_ended = self._given_away = True
        successor = Executor(self._process, self._side_streams, self._submissions + 1)
        successor._connected = True
        try:
            successor.ready(timeout_s)
        except BaseException:
            successor.kill()
            raise
        return successor

    def load(self, build: Build, plans: Sequence[LaunchPlan]) -> Failure | None:
        """Load the submission: its module, function attributes and plans. Once per executor.

        Returns:
            None, or why it is refused (`launch_error`): by the driver, or since its kernels use the device's heap.

        Raises:
            InfrastructureError: if the machine failed.
            UsageError: if something is loaded already, or a plan has side streams and this executor has none.
        """
        if self._plans is not None:
            raise UsageError("this executor has its submission; start another one")
        if not self._side_streams and any(plan.has_side_streams for plan in plans):
            raise UsageError("this executor has one queue, which side streams would share; start with `side_streams`")
        self.ready()
        if uses_device_heap(build.cubin.read_bytes()):
            return heap_failure()
        self._plans, self._kernels = tuple(plans), job.kernel_names(plans)
        answer, body = self._ask(wire.Request.LOAD, job.load_request(build, plans))
        if answer is wire.Answer.FAILED:
            return self._failed(body, None)
        self.reloads = bool(self._expect(wire.Answer.DONE, answer, body).numbers("B")[0])
        return None

    def call(
        self,
        plan: int,
        inputs: Mapping[str, Memory],
        results: Mapping[str, Memory],
        *,
        timeout_s: float,
        flush: bool = False,
        profile: bool = False,
        poison: Mapping[str, Poison] = {},
        places: Mapping[str, Exported] = {},
    ) -> Call | Failure:
        """Run one cold call.

        Args:
            plan: Index of the plan, as loaded.
            inputs: Every input by name that has no place: a region, or an array whose bytes are taken.
            results: What is wanted after the call by buffer name, inputs included: regions, or arrays to be written.
            timeout_s: For the operations and the copies of results; what comes before has a limit of its own.
            flush: Write twice the L2's size before the first event.
            profile: Put the operations between cuProfilerStart and cuProfilerStop.
            poison: What outputs hold before the call; bytes 0xFF where nothing is said.
            places: Regions that are inputs or outputs for this call, each with its bytes from `first_byte` on, where
                inputs lie already. They are mapped at fresh addresses, and nothing is copied.

        Returns:
            What was measured, or the submission's fault: `runtime_fault`, `launch_error` or `hang`.

        Raises:
            InfrastructureError: if the machine failed, or an earlier call ended the context.
            UsageError: if memory is missing or has the wrong size, or nothing is loaded.
        """
        started = time.perf_counter()
        if self._plans is None:
            raise UsageError("load a build and its plans first")
        if not self.usable:
            raise InfrastructureError("an earlier call ended this executor's context; start another one")
        replayed = self._plans[plan]
        request = self._call_request(plan, inputs, results, flush, profile, poison, places)
        answer, body = self._ask(wire.Request.CALL, request)
        if answer is wire.Answer.LAUNCHING:
            try:
                answer, body = self._process.receive(timeout_s)
            except TooSlow:
                self.kill()
                return hang_failure(replayed, timeout_s)
        try:
            if answer is wire.Answer.FAILED:
                return self._failed(body, replayed)
            if answer is wire.Answer.OVERRUN:
                self._flawless = False
                number, before, distance_bytes = body.numbers("IBQ")
                return overrun_failure(replayed, number, bool(before), distance_bytes)
            time_us, device_wall_us = self._expect(wire.Answer.CALLED, answer, body).numbers("dd")
            printed = body.text()
        except (ValueError, IndexError) as error:  # a kernel that reaches host memory may have written over it
            raise WorkerDied(f"the executor sent what is no answer ({error}): {self._process.kill()}") from error
        for name, memory in results.items():
            if isinstance(memory, np.ndarray) and f"result {name}" in self._files:
                self._files[f"result {name}"].read(memory)
        wall_us = (time.perf_counter() - started) * 1e6
        return Call(time_us, wall_us, device_wall_us, printed, tuple(launch.kernel for launch in replayed.launches))

    def forget(self, region: Exported) -> None:
        """Give up the executor's hold on a region, so that closing the region frees its memory."""
        number = self._regions.pop(region.serial, None)
        if number is not None and not self._given_away:
            self._forget(number)

    @property
    def usable(self) -> bool:
        """Whether calls can be made: the process lives, and nothing has ended its context."""
        return self._process.alive and not self._context_ended

    @property
    def ended(self) -> bool:
        """Whether the submission's context is gone, so that nothing writes to memory that was lent to it."""
        return self._given_away or not self._process.alive

    def close(self) -> str:
        """End the process in good order; return what it and its wrapper printed (what kernels print is in `Call`)."""
        self._close_files()
        return "" if self._given_away else self._process.close()

    def kill(self) -> str:
        """End the process and its group at once; return what was printed.

        Raises:
            InfrastructureError: if it does not die, since the driver hangs.
        """
        self._close_files()
        return "" if self._given_away else self._process.kill()

    def __enter__(self) -> Executor:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            self.close()
        else:
            self.kill()

    def _call_request(
        self,
        plan: int,
        inputs: Mapping[str, Memory],
        results: Mapping[str, Memory],
        flush: bool,
        profile: bool,
        poison: Mapping[str, Poison],
        places: Mapping[str, Exported],
    ) -> bytes:
        assert self._plans is not None
        buffers = self._plans[plan].buffers
        if missing := {b.name for b in buffers if b.role == "input"} - inputs.keys() - places.keys():
            raise UsageError(f"no memory for the inputs {', '.join(sorted(missing))}")
        given, taken, poisons, placed = [], [], [], []
        for number, buffer in enumerate(buffers):
            if buffer.name in places:
                placed.append((number, self._region(f"place {buffer.name}", places[buffer.name], buffer.size_bytes)))
            elif buffer.role == "input":
                memory = inputs[buffer.name]
                given.append((number, self._region(f"input {buffer.name}", memory, buffer.size_bytes)))
                if isinstance(memory, np.ndarray):
                    self._files[f"input {buffer.name}"].write(memory)
            if buffer.name in results:
                memory = results[buffer.name]
                taken.append((number, self._region(f"result {buffer.name}", memory, buffer.size_bytes)))
            if buffer.role == "output":
                value = poison.get(buffer.name, _DEFAULT_POISON)
                poisons.append((number, value.itemsize, int(value)))
        out = wire.Writer().numbers("IBB", plan, flush, profile)
        out.items(given, lambda pair: out.numbers("II", *pair))
        out.items(taken, lambda pair: out.numbers("II", *pair))
        out.items(placed, lambda pair: out.numbers("II", *pair))
        return out.items(poisons, lambda item: out.numbers("III", *item)).body

    def _region(self, use: str, memory: Memory, size_bytes: int) -> int:
        """The number by which the executor knows `memory`; it is told of it first where it does not."""
        has = memory.nbytes if isinstance(memory, np.ndarray) else memory.size_bytes
        if has != size_bytes:
            raise UsageError(f"the memory for {use} has {has} bytes; the plan wants {size_bytes}")
        if not isinstance(memory, np.ndarray):
            if memory.serial not in self._regions:
                self._regions[memory.serial] = self._import(_DEVICE, memory.mapped_bytes, memory.fd)
            return self._regions[memory.serial]
        file = self._files.get(use)
        if file is None or file.size_bytes < size_bytes:
            if file is not None:
                self._forget(file.number)
                file.close()
            file = self._files[use] = _SharedFile(size_bytes)
            file.number = self._import(_HOST, file.size_bytes, file.descriptor)
        return file.number

    def _import(self, kind: int, size_bytes: int, descriptor: int) -> int:
        number = next(self._numbers)
        body = wire.Writer().numbers("IBQ", number, kind, size_bytes).body
        answer, said = self._ask(wire.Request.REGION, body, descriptor)
        if answer is wire.Answer.FAILED:
            self._failed(said, None)
        self._expect(wire.Answer.DONE, answer, said)
        return number

    def _forget(self, number: int) -> None:
        self._expect(wire.Answer.DONE, *self._ask(wire.Request.FORGET, wire.Writer().numbers("I", number).body))

    def _ask(
        self,
        request: wire.Request,
        body: bytes,
        descriptor: int | None = None,
        timeout_s: float = PREPARATION_LIMIT_S,
    ) -> tuple[wire.Answer, wire.Reader]:
        if self._given_away:
            raise UsageError("this executor's process has another submission; use what `renewed` returned")
        try:
            self._process.send(request, body, descriptor, timeout_s)
        except TooSlow as error:
            self._process.kill()
            raise InfrastructureError(f"the executor took no request for {timeout_s:g} s") from error
        try:
            return self._process.receive(timeout_s)
        except TooSlow as error:
            said = self._process.kill()[-2000:]
            raise InfrastructureError(f"the executor did not answer within {timeout_s:g} s; it said: {said}") from error

    def _expect(self, wanted: wire.Answer, answer: wire.Answer, body: wire.Reader) -> wire.Reader:
        if answer is not wanted:
            raise WorkerDied(f"the executor answered {answer.name} instead of {wanted.name}: {self._process.kill()}")
        return body

    def _failed(self, body: wire.Reader, plan: LaunchPlan | None) -> Failure:
        self._flawless = False
        stage, (result,), name, call, (index,) = (
            body.text(), body.numbers("i"), body.text(), body.text(), body.numbers("i"),
        )  # fmt: skip
        reported = Reported(stage, result, name, call, index, body.text())
        self._context_ended = self._context_ended or ends_context(reported)
        return failure_of(reported, plan, self._kernels)

    def _close_files(self) -> None:
        while self._files:
            self._files.popitem()[1].close()


class _SharedFile:
    """Host memory that both sides map."""

    def __init__(self, size_bytes: int) -> None:
        self.size_bytes = max(size_bytes, mmap.PAGESIZE)
        self.descriptor = os.memfd_create("ptxgym-buffer", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        self.number = 0
        self.close = weakref.finalize(self, os.close, self.descriptor)
        os.ftruncate(self.descriptor, self.size_bytes)
        # The other side cannot make it smaller, which would end this process where it reads what is mapped.
        fcntl.fcntl(self.descriptor, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL)

    def write(self, array: NDArray[Any]) -> None:
        """Put the bytes of `array` at the start."""
        with mmap.mmap(self.descriptor, self.size_bytes) as mapped:
            mapped[: array.nbytes] = np.ascontiguousarray(array).reshape(-1).view(np.uint8).data

    def read(self, array: NDArray[Any]) -> None:
        """Fill `array` with the bytes at the start."""
        with mmap.mmap(self.descriptor, self.size_bytes) as mapped:
            held = np.frombuffer(mapped, np.uint8, array.nbytes).copy()
        array[...] = held.view(array.dtype).reshape(array.shape)
