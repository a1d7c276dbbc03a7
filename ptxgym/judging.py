"""Where the evaluations of many rollouts run: threads of their own, some at once, each up to a deadline.

asyncio's default pool is a handful of threads for everybody, and a loop that ends waits for all of them: evaluations
that never end would starve every other rollout of the process, and then keep it alive. Here a call that is not over by
its deadline gives up its place. Its thread cannot be ended from outside and goes on, but nothing waits for it any more.
A call whose caller leaves before, as a cancelled task does, keeps its place until it has ended or is overdue, since it
goes on taking what it takes; what it waits for at a service is let go at once.

Whoever waits for an evaluation in an event loop comes here: `Evaluator.aevaluate`, `Episode.aanswer`, the agents' loop,
the adapters. `of` says where; a service queues and ends evaluations by itself, so that all its callers wait at once.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import os
import sys
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator
from concurrent.futures import Future
from contextvars import Context, ContextVar, copy_context
from typing import Any, Generic, TypeVar

from ptxgym.errors import InfrastructureError, UsageError
from ptxgym.threads import started

T = TypeVar("T")

DEADLINE_S = 900.0
"""Longest that an evaluation may take once it has begun. The stages have limits of their own, which are shorter; this
one is for what hangs in spite of them."""
LEAST_AT_ONCE = 8
"""An evaluation waits for a compiler, an emulator or a GPU in turn, so that few cores serve more than one each."""


class Overdue(InfrastructureError):
    """Raised when an evaluation was not over by its deadline. It is not repeated: it may still be running."""


class _Call(Generic[T]):
    """Something to run, and where it stands."""

    def __init__(self, work: Callable[[], T]) -> None:
        self.work = work
        self.context: Context = copy_context()
        self.begun: Future[None] = Future()
        self.ended: Future[T] = Future()
        self.placed = False
        """Whether it takes one of the places."""
        self.until = math.inf
        """Its deadline, by `time.monotonic`, once it has begun."""
        self.overdue = False
        self.left = False
        """Whether nobody waits for it any more."""
        self._lock = threading.Lock()
        self._held: list[_Held] = []
        """Of gates; given back once it is overdue."""
        self._waits: list[Callable[[], None]] = []
        """End what it waits for elsewhere, where nobody waits for it any more."""

    def hold(self, held: _Held) -> bool:
        """Note an entry of a gate; False where nobody waits any more, who would have to give it back."""
        with self._lock:
            self._held.append(held)
            return not self.overdue

    def wait(self, end: Callable[[], None]) -> None:
        """Note how to end a wait elsewhere; end it where nobody waits for the call any more."""
        with self._lock:
            self._waits.append(end)
            left = self.left
        if left:
            end()

    def waited(self, end: Callable[[], None]) -> None:
        """Forget a wait that is over."""
        with self._lock:
            self._waits.remove(end)

    def leave(self) -> None:
        """Wait for it no longer, and end what it waits for elsewhere."""
        with self._lock:
            waits = [] if self.left else list(self._waits)
            self.left = True
        for end in waits:
            end()

    def give_up(self) -> None:
        """Leave it; give back what it holds of gates, and let it hold nothing any more."""
        self.leave()
        with self._lock:
            self.overdue = True
            for held in self._held:
                held.give_back()


class _Held:
    """One of the entries of a gate, until it is given back, once."""

    def __init__(self, entries: threading.BoundedSemaphore) -> None:
        self._entries, self._lock, self._over = entries, threading.Lock(), False

    def give_back(self) -> None:
        with self._lock:
            over, self._over = self._over, True
        if not over:
            self._entries.release()


class Gate:
    """Lets so many threads in at once; a call that is overdue does not keep others out. Not to be entered twice."""

    def __init__(self, limit: int) -> None:
        """Make a gate for `limit` threads, at least 1."""
        self._entries = threading.BoundedSemaphore(limit)
        self._mine = threading.local()

    def __enter__(self) -> None:
        """Wait for an entry.

        Raises:
            Overdue: on the thread of a call that nobody waits for any more.
        """
        self._entries.acquire()
        self._mine.held = _Held(self._entries)
        call = _RUNNING.get()
        if call is not None and not call.hold(self._mine.held):
            self._mine.held.give_back()
            raise Overdue("an evaluation that is not waited for any more came to a gate")

    def __exit__(self, *error: object) -> None:
        """Give it back."""
        self._mine.held.give_back()


class Judging:
    """Runs calls in threads, some at once and the others in the order in which they came."""

    def __init__(self, at_once: int | None = None, deadline_s: float | None = DEADLINE_S) -> None:
        """Make it; no thread is started yet.

        Args:
            at_once: Calls that run at the same time; by default as many as there are cores, and at least 8.
            deadline_s: Longest that each may take, waiting not included; None where something else ends them.

        Raises:
            UsageError: if either is not positive.
        """
        if at_once is not None and at_once < 1:
            raise UsageError(f"at_once must be at least 1, not {at_once}: nothing would ever be judged")
        if deadline_s is not None and deadline_s <= 0:
            raise UsageError(f"deadline_s must be positive, not {deadline_s}: nothing would ever be judged in time")
        self._at_once = self._free = at_once or max(LEAST_AT_ONCE, len(os.sched_getaffinity(0)))
        self._deadline_s = deadline_s
        self._waiting: deque[_Call[Any]] = deque()
        self._lock = threading.Lock()
        _ALIVE.add(self)

    def call(self, work: Callable[[], T]) -> T:
        """Run `work` in a thread and return what it returns.

        Raises:
            Overdue: if it was not over by the deadline.
        """
        call = self._queued(work)
        try:
            call.begun.result()
            return call.ended.result(self._deadline_s)
        except TimeoutError:
            return self._late(call)
        finally:
            self._part(call)

    async def acall(self, work: Callable[[], T]) -> T:
        """Run `work` in a thread without blocking the event loop; see `call`.

        A task that is cancelled leaves at once; the place is free once the call has ended, or is overdue.
        """
        call = self._queued(work)
        try:
            await asyncio.wrap_future(call.begun)
            return await asyncio.wait_for(asyncio.wrap_future(call.ended), self._deadline_s)
        except TimeoutError:
            return self._late(call)
        finally:
            self._part(call)

    def each(self, works: Iterable[Callable[[], T]]) -> Generator[T, None, None]:
        """Run all in threads and yield what they return, in their order; see `call`.

        The first error ends it, as does who closes the iterator: no other begins then, and nothing waits for those that
        run.
        """
        calls = [self._queued(work) for work in works]
        try:
            for call in calls:
                call.begun.result()
                try:
                    result = call.ended.result(self._deadline_s)
                except TimeoutError:
                    result = self._late(call)
                yield result
        finally:
            for call in calls:
                call.begun.cancel()
            for call in calls:
                self._part(call)

    def _part(self, call: _Call[Any]) -> None:
        """Give back the place of a call that has ended or is overdue; of another one, once it has or is."""
        if not call.placed or call.overdue or call.ended.done():
            self._leave(call)
            return
        call.leave()
        if self._deadline_s is None:
            return
        try:
            started(lambda: self._outwait(call), "ptxgym-judging")
        except RuntimeError:  # there is no thread to be had: better one too many at once than a place that is lost
            self._leave(call)

    def _outwait(self, call: _Call[Any]) -> None:
        try:
            call.ended.exception(max(call.until - time.monotonic(), 0.0))
        except TimeoutError:
            call.give_up()
        self._leave(call)

    def _late(self, call: _Call[T]) -> T:
        """Return, or raise, what a call came to after all: it may have raised a TimeoutError of its own."""
        if call.ended.done():
            return call.ended.result()
        call.give_up()
        raise Overdue(
            f"an evaluation was not over after {self._deadline_s:g} s, and is no longer waited for; if the machine is "
            "only slow, allow more: deadline_s of ptxgym.judging.configure, or of the vector environment that set one"
        )

    def _queued(self, work: Callable[[], T]) -> _Call[T]:
        call = _Call(work)
        with self._lock:
            self._waiting.append(call)
        self._begin_next()
        return call

    def _begin_next(self) -> None:
        """Begin waiting calls for as long as there are places."""
        while (call := self._next()) is not None:
            thread = threading.Thread(target=self._run, args=(call,), name="ptxgym-judging", daemon=True)
            try:
                thread.start()
            except RuntimeError as error:
                call.begun.set_exception(InfrastructureError(f"no thread could be started for an evaluation: {error}"))
                self._vacate(call)
            else:
                call.begun.set_result(None)

    def _next(self) -> _Call[Any] | None:
        with self._lock:
            while self._free and self._waiting:
                call = self._waiting.popleft()
                if call.begun.set_running_or_notify_cancel():  # else nobody waits for it any more
                    self._free -= 1
                    call.placed = True
                    if self._deadline_s is not None:
                        call.until = time.monotonic() + self._deadline_s
                    return call
        return None

    def _run(self, call: _Call[Any]) -> None:
        call.ended.set_running_or_notify_cancel()  # from here on a waiter that leaves cannot cancel it
        try:
            call.context.run(_RUNNING.set, call)
            result = call.context.run(call.work)
        except BaseException as error:
            call.ended.set_exception(error)
        else:
            call.ended.set_result(result)
        self._leave(call)

    def _leave(self, call: _Call[Any]) -> None:
        """Give back a call's place, and begin the next."""
        self._vacate(call)
        self._begin_next()

    def _vacate(self, call: _Call[Any]) -> None:
        with self._lock:
            if call.placed:
                call.placed = False
                self._free += 1
            elif call in self._waiting:
                self._waiting.remove(call)

    def _renew(self) -> None:
        """Begin anew in a forked process: the parent's threads are not there."""
        self._lock, self._free = threading.Lock(), self._at_once
        self._waiting.clear()


def shared() -> Judging:
    """Return this process's: all rollouts share it."""
    return _SHARED[-1]


def of(evaluator: object) -> Judging:
    """Return where evaluations of an evaluator wait: this process's, what `using` chose, or all of them at once."""
    if getattr(evaluator, "queues", False):
        return _ELSEWHERE
    return _CHOSEN.get() or shared()


def configure(*, at_once: int | None = None, deadline_s: float = DEADLINE_S) -> None:
    """Replace this process's, for evaluations that begin from here on; see `Judging`.

    Raises:
        UsageError: if a value is not positive.
    """
    _SHARED[:] = [Judging(at_once, deadline_s)]


@contextlib.contextmanager
def using(judging: Judging) -> Iterator[None]:
    """Let the evaluations of a block of code, and of the tasks that it starts, run in a `Judging` of their own."""
    token = _CHOSEN.set(judging)
    try:
        yield
    finally:
        _CHOSEN.reset(token)


@contextlib.contextmanager
def withdrawing(end: Callable[[], None]) -> Iterator[None]:
    """Have a wait inside a block of code ended where nobody waits any more for the call that runs it.

    Args:
        end: Called at most once, by whoever leaves, who must not be kept waiting.
    """
    call = _RUNNING.get()
    if call is None:
        yield
        return
    call.wait(end)
    try:
        yield
    finally:
        call.waited(end)


def check_awaited() -> None:
    """Return where someone still waits for what this thread runs.

    Raises:
        Overdue: if nobody does, so that what comes of it must not count any more.
    """
    call = _RUNNING.get()
    if call is not None and call.left:
        raise Overdue("nobody waits for this evaluation any more")


def _after_fork() -> None:
    for judging in list(_ALIVE):
        judging._renew()


_ALIVE: weakref.WeakSet[Judging] = weakref.WeakSet()
_SHARED = [Judging()]
_ELSEWHERE = Judging(sys.maxsize, None)
_RUNNING: ContextVar[_Call[Any] | None] = ContextVar("ptxgym_judging_call", default=None)
_CHOSEN: ContextVar[Judging | None] = ContextVar("ptxgym_judging", default=None)
os.register_at_fork(after_in_child=_after_fork)
