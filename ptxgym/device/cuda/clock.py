"""The judge process's clock: baselines kept per shape and draws, and the queue in front of the device lock."""

from __future__ import annotations

import contextlib
import importlib
import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any

from ptxgym.device.cuda import roofline
from ptxgym.device.cuda.baselines import Baselines, Check
from ptxgym.device.cuda.lock import DeviceLock, Hold
from ptxgym.device.cuda.model import Request
from ptxgym.device.cuda.queue import Field, TimingQueue
from ptxgym.device.cuda.timing import PROTOCOLS, TimedCall
from ptxgym.device.cuda.tools import Timed
from ptxgym.judge.conditions import Case
from ptxgym.task import Axes, Task
from ptxgym.verdict import Failure

KEPT = 4
"""Sets of baselines that stay prepared; one of GEMM's hardware size holds 1.5 GB."""

Bytes = Any
Prepare = Callable[[Task, Axes, Sequence[Mapping[str, Bytes]], Check], Baselines]


class RaceClock:
    """Times candidates against the baselines of their task; see `tools.Clock`."""

    def __init__(
        self,
        lock: DeviceLock,
        gpu_name: str,
        inputs: Callable[[Task, Case], Mapping[str, Bytes]],
        right: Callable[[Task, Case, Mapping[str, Bytes]], bool],
        prepare: Prepare = Baselines,
    ) -> None:
        """Start the queue.

        Args:
            lock: of the GPU.
            gpu_name: as the driver says it, for the roofline.
            inputs: bytes of the inputs of a case by name, on host or device.
            right: the judge on device bytes of a baseline's outputs (torch tensors, which speak DLPack).
            prepare: makes the baselines.
        """
        self._lock, self._inputs, self._right, self._prepare = lock, inputs, right, prepare
        self._peak = roofline.peak_of(gpu_name)
        self._queue = TimingQueue(lock)
        self._prepared: OrderedDict[Hashable, Baselines] = OrderedDict()
        self._best_us: dict[Hashable, float] = {}
        self._mutex = threading.Lock()

    def close(self) -> None:
        """End the queue."""
        self._queue.close()
        self._prepared.clear()

    def baseline_us(self, task: Task, case: Case) -> float | None:
        """Return the best baseline's time on the shape of `case`, if it was prepared or timed before."""
        return self._best_us.get(_shape(task, case.axes))

    def prepare(self, request: Request, draws: Sequence[Case]) -> None:
        """Prepare the baselines of a request ahead of its race, for instance while the submission is compiled."""
        self._baselines(request.task, tuple(draws))

    def race(self, request: Request, draws: Sequence[Case], candidate: TimedCall) -> Timed | Failure:
        """Time `candidate` against the baselines on the same draws, under the exclusive lock.

        Args:
            request: task and tier are taken from it, and the conditions' name as the seed of the interval.
            draws: cases of one shape.
            candidate: makes one cold call on draw i and returns its µs; what it raises comes back to the caller.

        Raises:
            InfrastructureError: if no baseline can be timed, or the lock was not granted in time.
        """
        task, cases = request.task, tuple(draws)
        axes = cases[0].axes
        place = Field(
            key=(task.label, task.revision, request.tier, cases),
            baselines=lambda: self._baselines(task, cases).calls,
            protocol=PROTOCOLS[request.tier],
            draws=len(cases),
            seed=request.conditions.hash.encode(),
        )
        timed = self._queue.time(place, candidate)
        if isinstance(timed, Failure):
            return timed
        won = timed.race
        self._best_us[_shape(task, axes)] = won.baselines_us[won.baseline]
        least_us = None if self._peak is None else roofline.roofline_us(task, axes, self._peak)
        if least_us is not None and (failure := roofline.too_fast(won.candidate_us, least_us)):
            return failure
        lines = self._baselines(task, cases)
        return Timed(won.timing(lines.versions, task.flops(axes), least_us), timed.lock_held_s, lines.skipped)

    def _baselines(self, task: Task, cases: tuple[Case, ...]) -> Baselines:
        key = (task.label, task.revision, cases)
        ready = self._prepared.get(key)
        if ready is None:
            with contextlib.suppress(Exception):  # preparing tells what is wrong with it
                importlib.import_module("torch")  # which takes seconds, and no GPU
            with self._held(task, cases[0].axes), self._mutex:  # in this order: who has the mutex waits for nobody
                ready = self._prepared.get(key) or self._prepare_now(task, cases)
                self._prepared[key] = ready
                while len(self._prepared) > KEPT:
                    self._prepared.popitem(last=False)
            self._best_us.setdefault(_shape(task, cases[0].axes), ready.best_us)
        else:
            with contextlib.suppress(KeyError):  # it was dropped meanwhile
                self._prepared.move_to_end(key)
        return ready

    def _held(self, task: Task, axes: Axes) -> AbstractContextManager[Hold]:
        """Hold the GPU for preparing: alone where a baseline times alternatives, to choose one for all later races."""
        chooses = getattr(task.baselines(), "CHOOSES", ()) and _shape(task, axes) not in self._best_us
        return self._lock.exclusive() if chooses else self._lock.shared(long=True)

    def _prepare_now(self, task: Task, cases: tuple[Case, ...]) -> Baselines:
        def check(draw: int, outputs: Mapping[str, Bytes]) -> bool:
            return self._right(task, cases[draw], outputs)

        return self._prepare(task, cases[0].axes, [self._inputs(task, case) for case in cases], check)


def _shape(task: Task, axes: Axes) -> Hashable:
    return task.label, task.revision, *axes.items()
