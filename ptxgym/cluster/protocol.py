"""What callers and the evaluation service say to each other: a request goes in, a ticket comes back, then a verdict.

Everything here is plain data or an interface, without Ray and without a GPU, so that an HTTP server, a trainer and a
test speak to any backend alike. A request names its task and variant instead of carrying them: the workers read them
from their own content, and refuse where it differs.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import CancelledError, Future
from enum import StrEnum
from typing import Protocol, Self

from pydantic import Field, ValidationError

from ptxgym import judging
from ptxgym.errors import DeadlineExceeded
from ptxgym.task import BASE
from ptxgym.verdict import Value, Verdict


class Kind(StrEnum):
    """What a worker does in one step of an evaluation."""

    BUILD = "build"
    """Compile; a text that does not compile ends here."""
    EMULATE = "emulate"
    """Record, execute on the CPU, judge."""
    MEASURE = "measure"
    """Record, run and time on a GPU, judge."""


class Request(Value):
    """One evaluation that somebody asks for."""

    text: str
    """A whole kernel file, or whatever an agent wrote instead."""
    task: str
    """Name of the task, such as `gemm`."""
    variant: str = BASE
    arch: str = "h100"
    workload: str | None = None
    """By default the device's own: `hardware` where a GPU measures, `emulation` on the emulator."""
    started: bool = False
    """Whether its episode has begun, so that others wait: its evaluation goes before those of episodes to come."""
    deadline_s: float | None = None
    """Seconds from now after which the asker no longer waits; by default the service's."""


class Ticket:
    """An evaluation that was accepted; equal requests hold tickets of the same work, each with a deadline of its own.

    Example:
        >>> ticket = service.submit(Request(text=text, task="gemm"))          # doctest: +SKIP
        >>> verdict = ticket.result()                                          # doctest: +SKIP
    """

    def __init__(self, request: Request, key: str, withdraw: Callable[[Ticket], None]) -> None:
        """Make a ticket; services do.

        Args:
            request: What was asked for.
            key: Of the work, equal for equal requests under equal conditions.
            withdraw: Tells the service that nobody waits here any more.
        """
        self.request = request
        self.key = key
        self.future: Future[Verdict] = Future()
        """Resolved once; for `concurrent.futures.wait` and `asyncio.wrap_future`. Cancel the ticket, not the future."""
        self._withdraw = withdraw

    def result(self, timeout_s: float | None = None) -> Verdict:
        """Wait for the verdict.

        Args:
            timeout_s: How long to wait here; the ticket stays valid afterwards.

        Raises:
            DeadlineExceeded: if the request's deadline passed, or `timeout_s`.
            InfrastructureError: if the machine failed as often as the service tries.
            UsageError: if no worker can evaluate the request at all.
            concurrent.futures.CancelledError: if the ticket was cancelled, as it is where nobody waits any more for
                the call of `ptxgym.judging` that waits here.
        """
        try:
            with judging.withdrawing(self.cancel):
                return self.future.result(timeout_s)
        except TimeoutError:
            if self.future.done():
                raise
            raise DeadlineExceeded(f"no verdict within {timeout_s:g} s; it is still being worked on") from None

    async def aresult(self) -> Verdict:
        """Wait for the verdict without blocking the event loop; a cancelled task cancels the ticket."""
        try:
            return await asyncio.shield(asyncio.wrap_future(self.future))
        except asyncio.CancelledError:
            if self.future.cancelled():
                raise CancelledError from None
            self.cancel()
            raise

    def done(self) -> bool:
        """Whether `result` returns or raises at once."""
        return self.future.done()

    def cancel(self) -> None:
        """Wait no longer. Work that nobody else waits for is dropped; other tickets of the same work go on."""
        self._withdraw(self)


class WorkerState(StrEnum):
    """What a worker is doing."""

    IDLE = "idle"
    BUSY = "busy"
    PROBING = "probing"
    """Its GPU is being tried."""
    QUARANTINED = "quarantined"
    """Its GPU is not well; tried again later."""


class WorkerStatus(Value):
    """One worker."""

    name: str
    kinds: tuple[Kind, ...]
    place: str
    """Node, and GPU where it has one."""
    pid: int
    """On its node."""
    state: WorkerState
    running: int
    """Steps in work."""
    slots: int
    done: int
    """Steps done."""
    busy_s: float
    """Time with at least one step in work."""
    age_s: float
    trouble: str = ""
    """Last failure of its machine."""


class ServiceStatus(Value):
    """What a service has to say about itself."""

    backend: str
    waiting: dict[Kind, int]
    """Evaluations that wait for a worker, by kind of their next step."""
    lobby: int
    """Askers that wait for room in the queue."""
    capacity: int
    """Evaluations that may be accepted and not finished at a time."""
    workers: tuple[WorkerStatus, ...]
    wanted: dict[Kind, int]
    """Workers that should be there, by kind."""
    starting: dict[Kind, int] = Field(default_factory=dict)
    """Those of them that come up now, by kind: neither there nor missing."""
    missing: str = ""
    """Which workers could not be had, and why, where that is known."""
    counters: dict[str, float]
    """Since the start, where not 0: `asked`, `joined` (in flight already), `remembered` (finished before), `evaluated`,
    `failed`, `expired`, `cancelled`, `refused` (no room), `steps` (begun), `retries` (steps to be begun again after a
    failure of the machine), `displaced` (steps to be begun again since their worker was ended for another step's
    sake), `rebuilds` (builds that were lost), `hired`, `deaths`, `quarantines`, `unsaved` (not on
    disk)."""

    @classmethod
    def read(cls, written: object) -> Self | None:
        """Return what another process wrote as plain data; None where its version of ptxgym says other things."""
        try:
            return cls.model_validate(written)
        except ValidationError:
            return None


class Service(Protocol):
    """The evaluation service, whatever its backend; safe to share among threads."""

    def submit(self, request: Request, *, wait_s: float | None = None) -> Ticket:
        """Accept an evaluation.

        Args:
            request: What to evaluate.
            wait_s: How long to wait for room in the queue: 0 not at all, None until the request's deadline.

        Raises:
            Overloaded: if there was no room in time.
            UnknownNameError: if task, variant, architecture or workload does not exist.
            UsageError: if the request cannot be served here, or the service is closed.
        """
        ...

    def finished(self, key: str) -> Verdict | None:
        """Return the verdict under `Ticket.key`, also of an earlier process; None where there is none (yet)."""
        ...

    def status(self) -> ServiceStatus:
        """Return queues, workers and counters, as they are now."""
        ...

    def close(self) -> None:
        """End the workers; whoever still waits gets an `InfrastructureError`."""
        ...
