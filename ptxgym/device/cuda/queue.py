"""Candidates that wait for being timed: those of one field race together, under one hold of the device lock.

Callers block on futures. While a batch waits for the GPU to be free of others, more candidates join it, so that the
busier a GPU is, the more of them share the calls of the baselines.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Self

from ptxgym.device.cuda.lock import TIMEOUT_S, DeviceLock
from ptxgym.device.cuda.timing import Protocol, Race, Result, TimedCall, race
from ptxgym.errors import InfrastructureError
from ptxgym.verdict import Failure

MAX_BATCH = 8
"""Candidates in one race: a round of it lasts some 20 ms at the task's hardware size, and all wait for the last."""
CLOSE_S = 10.0


@dataclass(frozen=True)
class Field:
    """What candidates must share to race together: the operator, its size, its draws, the tier."""

    key: Hashable
    """Equal keys mean equal fields."""
    baselines: Callable[[], Mapping[str, TimedCall]] = field(compare=False)
    """Prepares the baselines, before the lock is taken."""
    protocol: Protocol = field(compare=False)
    draws: int = field(compare=False)
    seed: bytes = field(compare=False)
    """Of the conditions."""


@dataclass(frozen=True)
class Timed:
    """A candidate's race, and what it cost others."""

    race: Race
    lock_held_s: float
    """By the whole batch."""
    lock_waited_s: float
    batch: int
    """How many raced."""


@dataclass(frozen=True, eq=False)
class _Entry:
    place: Field
    call: TimedCall
    future: Future[Timed | Failure]


class TimingQueue:
    """Times what is handed in, batch by batch, on a thread of its own; `close` ends it."""

    def __init__(self, lock: DeviceLock, timeout_s: float = TIMEOUT_S) -> None:
        """Start the thread.

        Args:
            lock: of the GPU; taken alone for each batch.
            timeout_s: how long a batch may wait for it.
        """
        self._lock, self._timeout_s = lock, timeout_s
        self._waiting: list[_Entry] = []
        self._changed = threading.Condition()
        self._closed = False
        self._thread = threading.Thread(target=self._serve, name="ptxgym-timing", daemon=True)
        self._thread.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def time(self, place: Field, call: TimedCall) -> Timed | Failure:
        """Time a candidate; returns when its race is over.

        Args:
            place: whom it may race with, and against what.
            call: runs on the queue's thread, under the lock.

        Raises:
            InfrastructureError: if the GPU was not free in time, a baseline failed or the queue is closed.
            RuntimeError: if this thread holds the device lock, which the race would wait for.
            Exception: what `call` raised.
        """
        if self._lock.mine:
            raise RuntimeError("release the device lock before timing: the race takes it alone")
        return self.submit(place, call).result()

    def submit(self, place: Field, call: TimedCall) -> Future[Timed | Failure]:
        """Queue a candidate, and return at once.

        Raises:
            InfrastructureError: if the queue is closed.
        """
        entry = _Entry(place, call, Future())
        with self._changed:
            if self._closed:
                raise InfrastructureError("the timing queue is closed; its judge process is ending")
            self._waiting.append(entry)
            self._changed.notify()
        return entry.future

    def close(self) -> None:
        """End after the batch in flight; what still waits gets an InfrastructureError.

        A batch that has not even got the lock after `CLOSE_S` is left to end with the process.
        """
        with self._changed:
            self._closed = True
            self._changed.notify()
        self._thread.join(CLOSE_S)

    def _serve(self) -> None:
        while place := self._next_field():
            batch: list[_Entry] = []
            try:
                self._run(place, batch)
            except Exception as error:  # every caller learns of it; the next batch may fare better
                for entry in batch or self._take(place):
                    if not entry.future.done():
                        entry.future.set_exception(error)

    def _next_field(self) -> Field | None:
        """Wait for the oldest candidate and return its field, or None at the end."""
        with self._changed:
            self._changed.wait_for(lambda: self._waiting or self._closed)
            if not self._closed:
                return self._waiting[0].place
            for entry in self._waiting:
                entry.future.set_exception(InfrastructureError("the timing queue was closed before this race"))
            self._waiting.clear()
            return None

    def _take(self, place: Field) -> list[_Entry]:
        """Remove and return the oldest waiting candidates of `place`."""
        with self._changed:
            taken = [entry for entry in self._waiting if entry.place == place][:MAX_BATCH]
            self._waiting = [entry for entry in self._waiting if entry not in taken]
        return [entry for entry in taken if entry.future.set_running_or_notify_cancel()]

    def _run(self, place: Field, batch: list[_Entry]) -> None:
        """Time the waiting candidates of `place`; fills `batch` with those that it took."""
        baselines = place.baselines()
        with self._lock.exclusive(self._timeout_s) as hold:
            batch += self._take(place)
            calls = {f"candidate {index}": entry.call for index, entry in enumerate(batch)}
            results = race(baselines, calls, place.protocol, draws=place.draws, seed=place.seed) if calls else {}
        for entry, name in zip(batch, calls, strict=True):
            _answer(entry.future, results[name], hold.held_s, hold.waited_s, len(batch))


def _answer(future: Future[Timed | Failure], result: Result, held_s: float, waited_s: float, batch: int) -> None:
    if isinstance(result, Race):
        future.set_result(Timed(result, held_s, waited_s, batch))
    elif isinstance(result, Failure):
        future.set_result(result)
    else:
        future.set_exception(result)
