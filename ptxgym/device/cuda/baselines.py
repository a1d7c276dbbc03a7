"""The vendor libraries to beat, prepared in the judge process and timed as candidates are.

A baseline runs on torch tensors over memory of its own: one of several slots, drawn for each call, into which the
inputs of the draw are copied first, outputs poisoned. Copies, L2 flush, events and call are enqueued behind a gate on
the same stream, so that no gap of the host is measured.

`baselines.py` prepares a call without arguments; a library that cannot write into given tensors adds a second one,
which hands its results over before they are checked and is never timed.
"""

from __future__ import annotations

import importlib.metadata
import random
import statistics
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from ptxgym.device.cuda.gate import Gate
from ptxgym.device.cuda.timing import TimedCall
from ptxgym.errors import InfrastructureError, NotApplicableError
from ptxgym.task import Axes, Task, Tensor

SLOTS = 3
"""Sets of buffers; where a buffer lies moved no ratio by more than 0.1 % in the study, and none should."""
FLUSH_BYTES = 256 << 20
"""Several times the L2 of any Hopper GPU."""
POISON = 0xFF
"""NaN in every floating-point type."""
MOST_WAITED = 3
"""So many calls of a baseline in a row may be found to wait for the GPU; then it is not enqueued ahead for a while,"""
AGAIN_AFTER = 100
"""namely for so many calls: the host may have been busy with other things."""
HOST_US = 100.0
"""Where nothing is enqueued ahead, the host may take so long from event to event: the flushes in front take longer."""
TRIES = 5
"""So often is a call made for which the host took longer; of these the one counts for which it took least."""
FIRST_CALLS = 5
"""Untimed or roughly timed calls in preparation: handles, heuristics and code are loaded by the first."""

Check = Callable[[int, Mapping[str, Any]], bool]
"""Whether these outputs (device bytes by name) are right on draw i."""


@dataclass(frozen=True)
class Clocked:
    """One call between two events."""

    time_us: float
    """Between the events."""
    host_us: float
    """That the host took from before it enqueued the first event until it had enqueued the second."""
    ahead: bool
    """Whether nothing began before all was enqueued; then it is all one what the host took."""


class Board(Protocol):
    """What baselines need of a GPU's array library."""

    def copied(self, data: Any) -> Any:
        """Return device bytes equal to `data`, an array of bytes on the host or the device."""

    def empty(self, size_bytes: int) -> Any:
        """Return uninitialised device bytes."""

    def typed(self, data: Any, tensor: Tensor, axes: Axes) -> Any:
        """Return `data` seen as the tensor."""

    def copy(self, target: Any, source: Any) -> None:
        """Enqueue a copy of bytes."""

    def fill(self, target: Any, value: int) -> None:
        """Enqueue filling with a byte."""

    def clocked(self, call: Callable[[], None], ahead: bool) -> Clocked:
        """Enqueue flush, event, call, event; wait; return what that took.

        Args:
            call: Enqueues the call.
            ahead: Let nothing begin before all is enqueued. Not for first calls, which may wait for the GPU, nor
                while other threads may.
        """

    def versions(self) -> Mapping[str, str]:
        """Return versions of libraries by name."""


class Baselines:
    """All baselines of a task on one shape; `calls` are ready for a race."""

    def __init__(
        self,
        task: Task,
        axes: Axes,
        draws: Sequence[Mapping[str, Any]],
        check: Check,
        board: Board | None = None,
        slots: int = SLOTS,
    ) -> None:
        """Copy the draws, prepare every baseline on every slot, and check its output on every draw.

        Args:
            task: its `baselines.py` is loaded.
            axes: the shape.
            draws: inputs by name, as bytes.
            check: the judge.
            board: torch's by default.
            slots: sets of buffers.

        Raises:
            InfrastructureError: if no baseline could be prepared, or none is right.
        """
        self._board = board or TorchBoard()
        self._draws = [{name: self._board.copied(data) for name, data in draw.items()} for draw in draws]
        self._slots = [{n: self._board.empty(size) for n, size in task.sizes_bytes(axes).items()} for _ in range(slots)]
        self._outputs = [tensor.name for tensor in task.outputs]
        self._random = random.Random()
        self.skipped: dict[str, str] = {}
        """Baselines that do not count, with the reason."""
        self.time_us: dict[str, float] = {}
        """Rough medians, from preparing."""
        self.calls: dict[str, TimedCall] = {}
        self._waited = Counter[str]()
        """How often a baseline could not be enqueued ahead, since it last could; later calls count on."""
        tensors = [
            {
                tensor.name: self._board.typed(slot[tensor.name], tensor, axes)
                for tensor in (*task.inputs, *task.outputs)
            }
            for slot in self._slots
        ]
        for name, prepare in task.baselines().BASELINES.items():
            if problem := self._prepare(name, [(prepare, each, axes) for each in tensors], check):
                self.skipped[name] = problem
        if not self.calls:
            reasons = "; ".join(f"{name}: {why}" for name, why in self.skipped.items()) or "the task names none"
            raise InfrastructureError(f"no baseline of task {task.label} can be timed here: {reasons}")
        self.versions = {name: version_of(name, self._board.versions()) for name in self.calls}

    @property
    def best_us(self) -> float:
        """Rough time of the best baseline, good enough for limits."""
        return min(self.time_us.values())

    def _prepare(self, name: str, slots: Sequence[tuple[Any, Any, Axes]], check: Check) -> str | None:
        """Prepare one baseline; return why it does not count, or None."""
        try:
            prepared = [prepare(tensors, axes) for prepare, tensors, axes in slots]
        except ImportError as error:
            return f"not installed ({error})"
        except NotApplicableError as error:
            return str(error)
        pairs = [each if isinstance(each, tuple) else (each, _nothing) for each in prepared]
        functions = [function for function, _ in pairs]

        def call(draw: int) -> float:
            index = self._random.randrange(len(functions))
            while self._waited[name] < MOST_WAITED:
                clocked = self._once(functions[index], index, draw, ahead=True)
                if clocked.ahead:
                    self._waited[name] = 0
                    return clocked.time_us
                self._waited[name] += 1
            self._waited[name] += 1
            if self._waited[name] == MOST_WAITED + AGAIN_AFTER:
                self._waited[name] = MOST_WAITED - 1
            return self._undisturbed_us(functions[index], index, draw)

        for draw in range(len(self._draws)):
            for index, (function, hand_over) in enumerate(pairs):
                self._once(function, index, draw, ahead=False)
                hand_over()
                if not check(draw, {output: self._slots[index][output] for output in self._outputs}):
                    return f"its output is wrong on draw {draw}"

        first = [self._once(functions[0], 0, 0, ahead=False) for _ in range(FIRST_CALLS)]
        self.time_us[name] = statistics.median(clocked.time_us for clocked in first)
        self.calls[name] = call
        return None

    def _undisturbed_us(self, function: Callable[[], None], index: int, draw: int) -> float:
        """Return the time of a call that is not enqueued ahead, but without a gap of the host where one can be had."""
        calls: list[Clocked] = []
        while len(calls) < TRIES:
            calls.append(self._once(function, index, draw, ahead=False))
            if calls[-1].host_us <= HOST_US:
                break
        return min(calls, key=lambda clocked: clocked.host_us).time_us

    def _once(self, function: Callable[[], None], index: int, draw: int, *, ahead: bool) -> Clocked:
        slot = self._slots[index]
        for name, data in self._draws[draw].items():
            self._board.copy(slot[name], data)
        for name in self._outputs:
            self._board.fill(slot[name], POISON)
        return self._board.clocked(function, ahead)


def _nothing() -> None:
    """What is left to do after a call that wrote its outputs."""


class TorchBoard:
    """torch on the current device and stream."""

    def __init__(self) -> None:
        import torch

        self._torch = torch
        self._flush = torch.empty(FLUSH_BYTES, dtype=torch.uint8, device="cuda")
        self._start, self._end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        self._gate = Gate()
        self._dtypes = {"bf16": torch.bfloat16, "fp32": torch.float32}

    def copied(self, data: Any) -> Any:
        """Return device bytes equal to `data`: a numpy array, or anything that speaks DLPack."""
        source = self._torch.tensor(data) if isinstance(data, np.ndarray) else self._torch.from_dlpack(data)
        self._torch.cuda.synchronize()  # the other library's stream may still write it
        flat = source.contiguous().reshape(-1).view(self._torch.uint8)
        copy = self.empty(flat.numel())
        copy.copy_(flat)
        self._torch.cuda.synchronize()
        return copy

    def empty(self, size_bytes: int) -> Any:
        """Return uninitialised bytes, 512-byte aligned as torch's allocator makes them."""
        return self._torch.empty(size_bytes, dtype=self._torch.uint8, device="cuda")

    def typed(self, data: Any, tensor: Tensor, axes: Axes) -> Any:
        """Return a view of the tensor's type, its axes in logical order, however it lies in memory."""
        return data.view(self._dtypes[tensor.dtype]).view(tensor.sizes(axes)).permute(tensor.to_logical)

    def copy(self, target: Any, source: Any) -> None:
        """Enqueue a device copy."""
        target.copy_(source)

    def fill(self, target: Any, value: int) -> None:
        """Enqueue a fill."""
        target.fill_(value)

    def clocked(self, call: Callable[[], None], ahead: bool) -> Clocked:
        """Time one call behind two flushes: where it is not enqueued ahead, they hide short gaps of the host."""
        with ExitStack() as stack:
            held = (
                stack.enter_context(self._gate.closed(self._torch.cuda.current_stream().cuda_stream)) if ahead else None
            )
            self._flush.zero_()
            self._flush.zero_()
            began = time.perf_counter()
            self._start.record()
            call()
            self._end.record()
            host_s = time.perf_counter() - began
        self._end.synchronize()
        time_us = float(self._start.elapsed_time(self._end)) * 1e3
        return Clocked(time_us, host_s * 1e6, ahead=held is not None and not held.forced)

    def versions(self) -> Mapping[str, str]:
        """Return `library_versions`."""
        return library_versions()


def library_versions() -> dict[str, str]:
    """Return the versions of torch, of what it was built with, and of what is installed beside it."""
    import torch

    found = {"torch": str(torch.__version__), "CUDA": str(torch.version.cuda)}
    if cudnn := torch.backends.cudnn.version():
        found["cuDNN"] = f"{cudnn // 10000}.{cudnn % 10000 // 100}.{cudnn % 100}"
    major = found["CUDA"].partition(".")[0]
    packages = {"cuBLAS": ("nvidia-cublas", f"nvidia-cublas-cu{major}"), "FlashInfer": ("flashinfer-python",)}
    for library, names in packages.items():
        for name in names:
            try:
                found[library] = importlib.metadata.version(name)
                break
            except importlib.metadata.PackageNotFoundError:
                continue
    return found


def version_of(baseline: str, versions: Mapping[str, str]) -> str:
    """Return what to print as the version of a baseline: of the library that its name starts with, and torch's.

    `cuBLAS`, `cuBLASLt (heuristic 3)` and `cuDNN, deterministic` are told by their beginning.
    """
    torch = f"torch {versions['torch']}" if "torch" in versions else ""
    own = next((name for name in versions if name != "torch" and baseline.startswith(name)), None)
    return ", ".join(part for part in (f"{own} {versions[own]}" if own else "", torch) if part)
