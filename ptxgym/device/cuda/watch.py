"""How long the stages of an evaluation took, that run in several threads."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field


@dataclass
class Watch:
    """Seconds by stage; safe to share among threads."""

    durations_s: dict[str, float] = field(default_factory=dict)
    """By name."""
    _mutex: threading.Lock = field(default_factory=threading.Lock)

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        """Add the time within to `name`."""
        start = time.perf_counter()
        try:
            yield
        finally:
            with self._mutex:
                self.durations_s[name] = self.durations_s.get(name, 0.0) + time.perf_counter() - start
