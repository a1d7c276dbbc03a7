"""What the evaluations of a block of code ask of a service, wherever the service is."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from contextvars import ContextVar
from dataclasses import dataclass


@dataclass(frozen=True)
class Asking:
    """What the evaluations of a block of code ask for."""

    started: bool = False
    deadline_s: float | None = None


_ASKING: ContextVar[Asking | None] = ContextVar("ptxgym_asking", default=None)


@contextlib.contextmanager
def asking(*, started: bool = False, deadline_s: float | None = None) -> Iterator[None]:
    """Say for all evaluations inside whether their episode has begun, and how long they are waited for."""
    token = _ASKING.set(Asking(started, deadline_s))
    try:
        yield
    finally:
        _ASKING.reset(token)


def wanted() -> Asking:
    """Return what the code around asks for."""
    return _ASKING.get() or Asking()
