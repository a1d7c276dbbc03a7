"""The thread that owns a scheduler, and the hiring of its workers."""

from __future__ import annotations

import contextlib
import functools
import os
import queue
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, InvalidStateError
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from ptxgym.cluster.jobs import Asker, Work
from ptxgym.cluster.protocol import ServiceStatus, Ticket
from ptxgym.cluster.results import Results
from ptxgym.cluster.scheduler import Limits, Scheduler
from ptxgym.cluster.station import Description
from ptxgym.cluster.work import Role, Worker
from ptxgym.errors import InfrastructureError, ResourcesMissing, UsageError
from ptxgym.verdict import Verdict

if TYPE_CHECKING:
    from ptxgym.cluster.backend import Backend

GROW_S = 10.0
"""How often a fleet that follows its cluster looks for nodes that have joined."""
PUBLISH_S = 5.0
"""How often the status is published."""
CLOSE_LIMIT_S = 10.0

T = TypeVar("T")


class Described(Worker, Protocol):
    """A worker that has said where it is, and with what versions."""

    description: Description


class Engine:
    """Runs a scheduler on a thread of its own; safe to share among threads, useless after a fork."""

    def __init__(
        self,
        roles: Sequence[Role],
        limits: Limits,
        results: Results,
        backend: Backend,
        hire: Callable[[Role, Callable[[str], None]], Described],
        expected: Mapping[str, str],
        grown: Callable[[], Sequence[Role]] | None = None,
    ) -> None:
        """Start the thread and the hiring.

        Args:
            roles: The fleet.
            limits: How much is taken on.
            results: What is remembered.
            backend: Where workers live.
            hire: Starts a worker there and waits for it, and tells what for; called on threads of their own.
            expected: Versions that workers must have; of what else they name, they must have the same.
            grown: Returns the roles that there might be by now; asked every few seconds. None: those at the start.
        """
        self._results, self._backend, self._hire_one, self._grown = results, backend, hire, grown
        self._expected = dict(expected)
        self._known = {role.name: role for role in roles}
        self._denied: set[str] = set()
        """Roles that no try will ever fill."""
        self._measuring: defaultdict[str, Future[Description]] = defaultdict(Future)
        """The first worker that measures for each architecture."""
        self._accepting = threading.Lock()
        self._owner = os.getpid()
        self._inbox: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._closed = False
        self._over = threading.Event()
        """Set with `_closed`, for who waits."""
        self._broken: BaseException | None = None
        self._left = False
        """Whether all have been told that it is closed, on the scheduler's thread."""
        self._deaf = False
        """Whether the inbox is read no longer."""
        self._handing = threading.Lock()
        """Held where a worker is handed over, or `_deaf` set: what lies in the inbox by then is read."""
        self._lost = ""
        """Why no worker can be reached any more."""
        self._versions: Future[Mapping[str, str]] = Future()
        self._scheduler = Scheduler(
            roles,
            limits,
            clock=time.monotonic,
            post=self._inbox.put,
            hire=self._hire,
            remembered=results.get,
            remember=self._remember,
            backend=backend.name,
        )
        self._thread = threading.Thread(target=self._serve, name="ptxgym-scheduler", daemon=True)
        self._thread.start()
        if grown is not None:
            threading.Thread(target=self._grow, name="ptxgym-fleet", daemon=True).start()

    def ask(self, ticket: Ticket, work: Work, deadline_s: float, wait_s: float | None) -> None:
        """Bring a ticket to the scheduler, and wait until it is admitted.

        Raises:
            Overloaded: if there was no room in time.
            InfrastructureError: if the service is closed meanwhile.
        """
        self._check()
        now = time.monotonic()
        asker = Asker(ticket, work, now + deadline_s, now + (deadline_s if wait_s is None else wait_s))
        self._inbox.put(lambda: self._scheduler.ask(asker))
        while not asker.settled.wait(1.0):
            self._check()
        if asker.refused is not None:
            raise asker.refused

    def withdraw(self, ticket: Ticket) -> None:
        """Let an asker go."""
        self._inbox.put(lambda: self._scheduler.withdraw(ticket))

    def finished(self, key: str) -> Verdict | None:
        """Return the verdict under a key."""
        return self._call(lambda: self._results.get(key))

    def status(self) -> ServiceStatus:
        """Return the scheduler's status."""
        return self._call(self._scheduler.status)

    def versions(self, limit_s: float) -> Mapping[str, str]:
        """Wait for the first worker, and return on what versions all verdicts depend.

        Raises:
            InfrastructureError: if none has come up in time; says why.
            UsageError: if none ever will.
        """
        return self._wait(self._versions, limit_s)

    def measuring(self, arch: str, limit_s: float) -> Description:
        """Wait for the first worker that measures for `arch`; return what it says of itself, or raise as `versions`."""
        with self._accepting:
            first = self._measuring[arch]
        return self._wait(first, limit_s)

    @property
    def failed(self) -> bool:
        """Whether nothing will be evaluated any more, though nobody has closed it: a bug, or no way to any worker."""
        return self._broken is not None or bool(self._lost)

    def close(self) -> None:
        """End the workers; whoever still waits is told."""
        if os.getpid() != self._owner or self._closed:
            return
        self._closed = True
        self._over.set()
        self._inbox.put(self._leave)
        if threading.current_thread() is not self._thread:
            self._thread.join(CLOSE_LIMIT_S)

    def _leave(self) -> None:
        self._scheduler.fail_all(InfrastructureError("the evaluation service was closed"))
        self._left = True

    def _check(self) -> None:
        if os.getpid() != self._owner:
            raise UsageError(
                f"the evaluation service belongs to process {self._owner}, this is a fork of it: make a service here, "
                "or ask that one over HTTP"
            )
        if self._closed:
            raise UsageError("the evaluation service is closed; make a new one")
        if self._broken is not None:
            raise RuntimeError("the scheduler has failed") from self._broken

    def _wait(self, future: Future[T], limit_s: float) -> T:
        until = time.monotonic() + limit_s
        while True:
            self._check()
            with contextlib.suppress(TimeoutError):
                return future.result(min(1.0, max(until - time.monotonic(), 0.0)))
            if self._lost:
                raise InfrastructureError(self._lost)
            late = time.monotonic() >= until
            if late or self._call(self._scheduler.hopeless):
                why = self._call(self._scheduler.troubles)
                when = f"within {limit_s:.0f} s" if late else "though each was tried several times"
                raise InfrastructureError(f"no worker came up {when}{': ' + why if why else ''}")

    def _call(self, function: Callable[[], T]) -> T:
        """Call a function on the scheduler's thread."""
        self._check()
        answer: Future[T] = Future()

        def run() -> None:
            answer.set_result(function())

        self._inbox.put(run)
        while True:
            with contextlib.suppress(TimeoutError):
                return answer.result(1.0)
            self._check()

    def _serve(self) -> None:
        published = 0.0
        try:
            while not self._left:
                if not self._lost and (trouble := self._backend.trouble()):
                    self._lost = trouble
                    self._scheduler.fail_all(InfrastructureError(trouble))
                    self._backend.give_up()
                self._scheduler.advance()
                now = time.monotonic()
                if now >= published + PUBLISH_S:
                    published = now
                    self._backend.publish(self._scheduler.status())
                wake_at = self._scheduler.wake_at()
                until = published + PUBLISH_S if wake_at is None else min(wake_at, published + PUBLISH_S)
                with contextlib.suppress(queue.Empty):
                    self._inbox.get(timeout=max(until - now, 0.001))()
                    while True:  # all that has happened, before anything is decided
                        self._inbox.get_nowait()()
        except BaseException as error:  # a bug: better told to all than waited for for ever
            self._broken = error
            self._scheduler.fail_all(RuntimeError(f"the scheduler has failed: {type(error).__name__}: {error}"))
            raise
        finally:
            with self._handing:
                self._deaf = True
            with contextlib.suppress(queue.Empty):
                while True:  # workers that have come up, which are ended, and askers, who are told
                    self._inbox.get_nowait()()

    def _grow(self) -> None:
        """Add the roles of nodes that have joined."""
        assert self._grown is not None
        while not self._over.wait(GROW_S) and not self._lost:
            with contextlib.suppress(InfrastructureError, ResourcesMissing):  # a node that went may come back
                fresh = [role for role in self._grown() if role.name not in self._known]
                with self._accepting:
                    self._known |= {role.name: role for role in fresh}
                    for role in fresh:  # who was told that nobody will ever come up was told too early
                        if _failed(self._versions):
                            self._versions = Future()
                        if role.arch is not None and _failed(self._measuring[role.arch]):
                            self._measuring[role.arch] = Future()
                if fresh:
                    self._inbox.put(functools.partial(self._scheduler.enlist, fresh))

    def _hire(self, role: Role) -> Future[Worker]:
        """Start a worker on a thread of its own."""
        coming: Future[Worker] = Future()

        def hire() -> None:
            try:
                worker = self._accepted(role)
            except BaseException as error:
                if not isinstance(error, InfrastructureError):
                    self._deny(role, error)
                coming.set_exception(error)
            else:
                with self._handing:
                    if self._deaf:
                        worker.kill()
                    else:
                        coming.set_result(worker)

        try:
            threading.Thread(target=hire, name=f"ptxgym-hire-{role.name}", daemon=True).start()
        except RuntimeError as error:  # the machine has no room for another
            coming.set_exception(InfrastructureError(f"no thread could be started to hire a worker: {error}"))
        return coming

    def _accepted(self, role: Role) -> Worker:
        """Hire a worker whose versions, and GPU, are those of this process and of the others."""
        worker = self._hire_one(role, lambda what: self._inbox.put(lambda: self._scheduler.awaited(role, what)))
        with self._accepting:
            if differ := self._differences(role, worker.description):
                worker.kill()
                self._backend.shun(worker)
                raise InfrastructureError(
                    f"{worker.place} has {', '.join(differ)}; verdicts would differ: install the same on all nodes"
                )
            _settle(self._versions, dict(worker.description.versions))
            if role.arch is not None:
                _settle(self._measuring[role.arch], worker.description)
        return worker

    def _deny(self, role: Role, error: BaseException) -> None:
        """Note that a role will never be filled; tell who waits for a first worker, where nobody else might come up."""
        with self._accepting:
            self._denied.add(role.name)
            left = [other for other in self._known.values() if other.name not in self._denied]
            if role.arch is not None and not any(other.arch == role.arch for other in left):
                _settle(self._measuring[role.arch], error)
            if not left:
                _settle(self._versions, error)

    def _differences(self, role: Role, found: Description) -> list[str]:
        """Say where a worker differs from what is expected, and from the first that was accepted."""
        known = self._versions.done() and not _failed(self._versions)
        first = self._versions.result() if known else {}
        wanted = {**first, **self._expected}
        mine = dict(found.versions)
        if role.arch is not None and self._measuring[role.arch].done() and found.gpu is not None:
            measuring = self._measuring[role.arch].result().gpu
            assert measuring is not None
            wanted |= {"GPU": measuring.name, "driver": measuring.driver}
            mine |= {"GPU": found.gpu.name, "driver": found.gpu.driver}
        return [
            f"{name} {mine.get(name)} instead of {value}" for name, value in wanted.items() if mine.get(name) != value
        ]

    def _remember(self, key: str, verdict: Verdict) -> None:
        try:
            self._results.put(key, verdict)
        except Exception:  # a full disk, or what cannot be written: whoever asked gets it all the same
            self._scheduler.counters["unsaved"] += 1


def _failed(future: Future[Any]) -> bool:
    return future.done() and future.exception() is not None


def _settle(future: Future[T], value: T | BaseException) -> None:
    """Resolve a future, unless another thread has done so."""
    with contextlib.suppress(InvalidStateError):
        if isinstance(value, BaseException):
            future.set_exception(value)
        else:
            future.set_result(value)
