"""What an evaluator has judged already, and who waits for what is being judged: equal questions are answered once."""

from __future__ import annotations

import contextlib
import threading
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import CancelledError, Future

from ptxgym.verdict import Verdict

VERDICTS_KEPT = 1024

Key = tuple[str, ...]
"""Everything that a verdict depends on."""


class Memory:
    """The last verdicts by key; safe to share among threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._known: OrderedDict[Key, Verdict] = OrderedDict()
        self._running: dict[Key, Future[Verdict]] = {}

    def answer(self, key: Key, judge: Callable[[], Verdict]) -> Verdict:
        """Return the verdict of `key`: from memory, from the thread that is just judging it, or by `judge`.

        What `judge` raises is raised for all who wait; an interrupt ends one thread alone, and another takes over.
        """
        while True:
            with self._lock:
                if key in self._known:
                    self._known.move_to_end(key)
                    return self._known[key]
                running = self._running.get(key)
                if running is None:
                    mine = self._running[key] = Future[Verdict]()
                    break
            with contextlib.suppress(CancelledError):  # whoever judged it was interrupted: that was not meant for us
                return running.result()
        try:
            verdict = judge()
        except BaseException as error:
            with self._lock:
                self._running.pop(key, None)
            if isinstance(error, Exception):
                mine.set_exception(error)
            else:
                mine.cancel()
            raise
        with self._lock:
            self._running.pop(key, None)
            self._known[key] = verdict
            while len(self._known) > VERDICTS_KEPT:
                self._known.popitem(last=False)
        mine.set_result(verdict)
        return verdict

    def forget(self) -> None:
        """Drop what was judged."""
        with self._lock:
            self._known.clear()

    def forked(self) -> None:
        """Go on in a forked child, where the parent's threads neither hold the lock nor will answer."""
        self._lock = threading.Lock()
        self._running = {}
