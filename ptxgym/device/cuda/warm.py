"""Processes that are made ready before they are needed: as many as evaluations are expected, or a few."""

from __future__ import annotations

import contextlib
import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from typing import Generic, TypeVar

from ptxgym.errors import InfrastructureError

T = TypeVar("T")


class Warm(Generic[T]):
    """A pool of things that are used by one at a time; safe to share among threads.

    A start that failed is told to whoever waits for it. Nobody else hears of it: the machine may be well again.
    """

    def __init__(self, start: Callable[[], T], end: Callable[[T], object], most: int) -> None:
        """Make a pool; nothing is started yet.

        Args:
            start: Starts one and returns it when it is ready; runs on a thread of the pool.
            end: Ends one that nobody took.
            most: So many wait at most.
        """
        self._start, self._end, self._most = start, end, most
        self._waiting: deque[Future[T]] = deque()
        self._expected = 0
        self._closed = False
        self._mutex = threading.Lock()

    def expect(self, more: int, coming: int = 0) -> None:
        """Be told that so many more will be taken (negative: fewer); starts what is missing.

        Args:
            more: How many.
            coming: So many are in use and will be `put` here, so that they need not be started.
        """
        with self._mutex:
            self._expected = max(0, self._expected + more)
            wanted = min(self._expected, self._most) - coming
        self._start_missing(wanted)

    @property
    def expected(self) -> int:
        """How many will be taken, as far as is known."""
        return self._expected

    def take_waiting(self) -> T | None:
        """Return one that is ready, else one that is starting; None where none waits.

        Raises:
            InfrastructureError: if it does not start.
        """
        with self._mutex:
            if self._closed:
                raise InfrastructureError("the judge process is ending")
            self._expected = max(0, self._expected - 1)
            self._forget_failed()
            first = min(self._waiting, key=lambda one: not one.done(), default=None)
            if first is not None:
                self._waiting.remove(first)
        return None if first is None else first.result()

    def fill(self) -> None:
        """Start as many as may wait, though nobody is expected."""
        self._start_missing(self._most)

    def take(self) -> T:
        """Return one that was started, or start one now.

        Raises:
            InfrastructureError: if it does not start.
        """
        waiting = self.take_waiting()
        return self._start() if waiting is None else waiting

    def put(self, renew: Callable[[], T]) -> bool:
        """Have `renew` make one that waits out of one that was used, on this thread.

        Returns:
            Whether it was called: not where enough wait.
        """
        one: Future[T] = Future()
        with self._mutex:
            self._forget_failed()
            if self._closed or len(self._waiting) >= self._most:
                return False
            self._waiting.append(one)
        self._run(one, renew)
        return True

    def close(self) -> None:
        """End those that wait, and those that are starting when they have."""
        with self._mutex:
            self._closed = True
            waiting, self._waiting = list(self._waiting), deque()
        for one in waiting:
            one.add_done_callback(self._end_one)

    def _end_one(self, one: Future[T]) -> None:
        with contextlib.suppress(Exception):  # it never started
            self._end(one.result())

    def _start_missing(self, wanted: int) -> None:
        with self._mutex:
            self._forget_failed()
            missing = 0 if self._closed else wanted - len(self._waiting)
            started: list[Future[T]] = [Future() for _ in range(missing)]
            self._waiting.extend(started)
        for one in started:
            threading.Thread(target=self._run, args=(one, self._start), daemon=True).start()

    def _forget_failed(self) -> None:
        failed = [one for one in self._waiting if one.done() and one.exception() is not None]
        for one in failed:
            self._waiting.remove(one)

    @staticmethod
    def _run(one: Future[T], start: Callable[[], T]) -> None:
        try:
            one.set_result(start())
        except BaseException as error:  # whoever takes it is told
            one.set_exception(error)
