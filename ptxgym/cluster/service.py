"""`EvaluationService`: the evaluator's interface over many workers, here or on a Ray cluster."""

from __future__ import annotations

import asyncio
import hashlib
import threading
import time
import weakref
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, Literal, Self

from ptxgym.availability import check_tier, default_workload, unmeasured_tier
from ptxgym.cache import Cache
from ptxgym.cluster.backend import Backend, LocalBackend
from ptxgym.cluster.engine import Described, Engine
from ptxgym.cluster.fleet import Fleet
from ptxgym.cluster.jobs import Work
from ptxgym.cluster.protocol import Kind, Request, ServiceStatus, Ticket
from ptxgym.cluster.results import Results
from ptxgym.cluster.scheduler import Limits
from ptxgym.cluster.station import StationConfig, build_key, package_versions
from ptxgym.cluster.wants import wanted
from ptxgym.cluster.work import Role
from ptxgym.device.cuda.gpu import Gpu
from ptxgym.device.cuda.model import Tier
from ptxgym.dossier import Dossier
from ptxgym.errors import DeadlineExceeded, InfrastructureError, UsageError
from ptxgym.evaluator import Evaluator
from ptxgym.judge.conditions import conditions
from ptxgym.submission import check_text
from ptxgym.task import Task, load_arch, task_sha256
from ptxgym.threads import started
from ptxgym.variants import asked_for, load_variant
from ptxgym.verdict import Verdict

CAPACITY = 512
"""Evaluations that a service accepts and has not finished, by default."""
DEADLINE_S = 3600.0
RETRIES = 2
START_LIMIT_S = 330.0
"""How long the first evaluation waits for a first worker."""


class EvaluationService(Evaluator):
    """Judges kernel texts on many workers. It is an `Evaluator` for episodes, and a `protocol.Service` for servers.

    Equal texts under equal conditions are evaluated once, whoever asks and whenever. Use it as a context manager, or
    `close()` it; what is forgotten ends with the process. Safe to share among threads, not among processes.

    Example:
        >>> with EvaluationService() as service:                               # doctest: +SKIP
        ...     tickets = [service.submit(Request(text=text, task="gemm")) for text in texts]
        ...     verdicts = [ticket.result() for ticket in tickets]
    """

    queues: ClassVar[bool] = True

    def __init__(
        self,
        backend: Literal["local", "ray"] | Backend = "local",
        *,
        device: str = "auto",
        fleet: Fleet | None = None,
        tier: Tier = "standard",
        secret: bytes | str | None = None,
        epoch: int = 0,
        results: Path | str | None = None,
        cache: Cache | None = None,
        capacity: int = CAPACITY,
        deadline_s: float = DEADLINE_S,
        retries: int = RETRIES,
        maker: str = StationConfig.maker,
    ) -> None:
        """Make a service; workers start with the first evaluation, or `start()`.

        Args:
            backend: `local` (processes on this machine), `ray` (actors of the cluster that `ray.init` finds), or one
                of the caller's.
            device: Chooses the fleet where none is given: `auto`, `emulator` or `cuda`.
            fleet: Workers of each kind; by default what uses the machine well, or the cluster, also nodes that join.
            tier: How GPUs measure: `rl`, `standard` or `publish`.
            secret: From which inputs and hidden shapes are drawn; by default that of `results`, else the run's.
            epoch: Evaluations of one epoch share their conditions.
            results: Folder that keeps verdicts, so that a later process finds them; by default they are kept in memory.
            cache: Where builds are kept, on a machine of its own each; by default the user's.
            capacity: Evaluations that are accepted and not finished; who asks for more waits.
            deadline_s: How long an evaluation is waited for, queues included, where its request does not say.
            retries: How often an evaluation is tried again after failures of the machine.
            maker: What does the steps in each worker: `module:callable`; for tests.

        Raises:
            UsageError: if a value is not acceptable.
            ResourcesMissing: if the fleet cannot be had; names what is there.
        """
        for name, number in {"capacity": capacity, "deadline_s": deadline_s}.items():
            if not number > 0:
                raise UsageError(f"{name} must be positive, not {number}")
        if retries < 0:
            raise UsageError(f"retries must not be negative, but is {retries}")
        self._results = Results(Path(results).expanduser().absolute() if results is not None else None)
        given = secret.encode() if isinstance(secret, str) else secret
        super().__init__("emulator", secret=self._results.secret(given), epoch=epoch)
        self._tier = check_tier(tier)
        self._backend = _backend(backend)
        self.fleet = fleet if fleet is not None else self._backend.fleet(device)
        self._follows = device if fleet is None and self._backend.ships else None
        if self._tier != "standard" and not any(self.fleet.gpus.values()):
            raise unmeasured_tier(self._tier, f"the fleet ({self.fleet}) has no GPU")
        self._backend.check(self.fleet)
        self._service_limits, self._deadline_s = Limits(capacity, retries), deadline_s
        self._config = StationConfig(
            self._secret,
            epoch=epoch,
            tier=self._tier,
            cache=None if cache is None else str(cache.root),
            ship=self._backend.ships,
            maker=maker,
        )
        self._engine: Engine | None = None
        self._ending: Callable[[], object] | None = None

    @classmethod
    def shared(cls, device: str = "auto", tier: Tier = "standard") -> EvaluationService:
        """Return this process's local service for `device` and `tier`; it lives as long as someone holds it.

        One that was closed, or has failed, is followed by another.
        """
        with _SHARED_LOCK:
            service = _SHARED.get((device, tier))
            if service is None or service._closed or (service._engine is not None and service._engine.failed):
                service = _SHARED[device, tier] = cls(device=device, tier=tier)
            return service

    def start(self) -> Self:
        """Start the workers, and return without waiting for them; calling it again does nothing.

        Raises:
            UsageError: if the service is closed.
        """
        self._engine_started()
        return self

    def submit(self, request: Request, *, wait_s: float | None = None) -> Ticket:
        """Accept an evaluation; see `protocol.Service.submit`."""
        task = load_variant(request.task, request.variant)
        load_arch(request.arch)
        engine = self._engine_started()
        waiting = _Waiting(self._deadline_s if request.deadline_s is None else request.deadline_s)
        with waiting:
            gpu = self._gpu(request.arch, waiting.until)
        workload = request.workload or default_workload(task, gpu)
        self.check_workload(task, workload, request.arch)
        request = request.model_copy(update={"workload": workload})
        with waiting:
            versions = engine.versions(max(waiting.until - time.monotonic(), 0.0))
        drawn = conditions(task, workload, self._epoch, self._secret)
        measured = () if gpu is None else (gpu.name, gpu.driver, self._tier)
        digest = task_sha256(task)
        parts = (
            hashlib.sha256(request.text.encode()).hexdigest(),
            digest,
            request.arch,
            workload,
            drawn.hash,
            *measured,
            *(f"{name} {version}" for name, version in sorted(versions.items())),
        )
        key = hashlib.sha256("\0".join(parts).encode()).hexdigest()
        last = Kind.EMULATE if gpu is None else Kind.MEASURE
        work = Work(key, build_key(request.text, task, request.arch), request.arch, last, digest)
        ticket = Ticket(request, key, engine.withdraw)
        engine.ask(ticket, work, waiting.deadline - time.monotonic(), wait_s)
        return ticket

    def versions(self, limit_s: float = START_LIMIT_S) -> Mapping[str, str]:
        """Wait for the first worker, and return on what versions all verdicts depend.

        Raises:
            InfrastructureError: if none has come up in time; says why.
            UsageError: if none ever will, or the service is closed.
        """
        return self._engine_started().versions(limit_s)

    @property
    def deadline_s(self) -> float:
        """How long an evaluation is waited for where its request does not say."""
        return self._deadline_s

    def finished(self, key: str) -> Verdict | None:
        """Return a verdict by key; see `protocol.Service.finished`."""
        return self._engine_started().finished(key)

    def status(self) -> ServiceStatus:
        """Return queues, workers and counters; see `protocol.Service.status`."""
        return self._engine_started().status()

    def evaluate(
        self,
        text: str,
        task: Task | str,
        arch: str = "h100",
        workload: str | None = None,
        *,
        variant: str | None = None,
    ) -> Verdict:
        """Judge `text`; see `Evaluator.evaluate`, and `asking` for deadlines.

        Raises:
            UsageError: if a task is passed that no content folder holds as it is.
        """
        request = self._request(text, task, arch, workload, variant)
        return request if isinstance(request, Verdict) else self.submit(request).result()

    async def aevaluate(
        self,
        text: str,
        task: Task | str,
        arch: str = "h100",
        workload: str | None = None,
        *,
        variant: str | None = None,
    ) -> Verdict:
        """Judge `text` without blocking the event loop, and without a thread while it waits; see `evaluate`."""
        request = self._request(text, task, arch, workload, variant)
        if isinstance(request, Verdict):
            return request
        submitting = started(lambda: self.submit(request), "ptxgym-submit")  # it may wait for a worker, or for room
        try:
            ticket = await asyncio.wrap_future(submitting)
        except asyncio.CancelledError:
            submitting.add_done_callback(_withdraw)
            raise
        return await ticket.aresult()

    def gpu(self, arch: str) -> Gpu | None:
        """Return a GPU that measures kernels for `arch`, wherever it is; None where they are emulated.

        Raises:
            InfrastructureError: if none of the fleet's has come up yet.
        """
        return self._gpu(arch, time.monotonic() + START_LIMIT_S)

    def _gpu(self, arch: str, until: float) -> Gpu | None:
        """Return the GPU; waits for its worker up to a time by `time.monotonic`."""
        if not self.fleet.measures(arch):
            return None
        return self._engine_started().measuring(arch, max(until - time.monotonic(), 0.0)).gpu

    def close(self) -> None:
        """End the workers; whoever still waits gets an `InfrastructureError`."""
        with self._lock:
            self._closed = True
            ending, self._ending = self._ending, None
        if ending is not None:
            ending()

    def __reduce__(self) -> tuple[Callable[..., Evaluator], tuple[Any, ...]]:
        """Refuse to be pickled.

        Raises:
            TypeError: always.
        """
        raise TypeError("an evaluation service stays in its process; others ask it over HTTP (`ptxgym serve`)")

    def _engine_started(self) -> Engine:
        with self._lock:
            if self._closed:
                raise UsageError("the evaluation service is closed; make a new one")
            if self._engine is None:
                backend = self._backend
                self._engine = Engine(
                    self.fleet.roles(),
                    self._service_limits,
                    self._results,
                    backend,
                    _Hiring(backend, self._config),
                    package_versions(),
                    None if self._follows is None else _Growing(backend, self.fleet, self._follows),
                )
                self._ending = weakref.finalize(self, _end, self._engine, backend)
            return self._engine

    def _request(
        self, text: str, task: Task | str, arch: str, workload: str | None, variant: str | None
    ) -> Request | Verdict:
        """Return what is to be submitted, or the verdict on a text that cannot even travel."""
        if not isinstance(text, str):
            raise UsageError(f"a submission is a str, not {type(text).__name__}")
        asked = asked_for(task, variant)
        if not isinstance(task, str) and task_sha256(load_variant(asked.name, asked.variant)) != task_sha256(asked):
            raise UsageError(
                f"task {asked.label} is not what the content folders say; workers read tasks from there: put it into a "
                "folder of its own and name that by PTXGYM_CONTENT"
            )
        load_arch(arch)
        how = wanted()
        try:
            text.encode()
        except UnicodeEncodeError:
            with _Waiting(self._deadline_s if how.deadline_s is None else how.deadline_s) as waiting:
                gpu = self._gpu(arch, waiting.until)
            name = workload or default_workload(asked, gpu)
            self.check_workload(asked, name, arch)
            refused = check_text(text)
            assert refused is not None
            drawn = conditions(asked, name, self._epoch, self._secret)
            return Dossier(text, asked, arch, drawn.hash).failed(refused)
        return Request(
            text=text,
            task=asked.name,
            variant=asked.variant,
            arch=arch,
            workload=workload,
            started=how.started,
            deadline_s=how.deadline_s,
        )

    def _forget_after_fork(self) -> None:
        """Keep the engine, which tells the child that it is the parent's."""
        self._lock = threading.Lock()


class _Waiting:
    """How long an evaluation waits for workers to come up, which is part of its deadline."""

    def __init__(self, deadline_s: float) -> None:
        now = time.monotonic()
        self.deadline = now + deadline_s
        """By `time.monotonic`, of the evaluation."""
        self.until = now + min(deadline_s, START_LIMIT_S)
        """For the workers."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        """Tell who could not wait longer of the deadline.

        Raises:
            DeadlineExceeded: in place of an `InfrastructureError` that comes after it.
        """
        if isinstance(error, InfrastructureError) and time.monotonic() >= self.deadline:
            why = f"no verdict by the deadline; {error}. Nothing is said about the submission"
            raise DeadlineExceeded(why) from error


@dataclass(frozen=True)
class _Hiring:
    """Hires workers for a service, without holding it."""

    backend: Backend
    config: StationConfig

    def __call__(self, role: Role, tell: Callable[[str], None]) -> Described:
        pinned = Kind.EMULATE in role.kinds
        return self.backend.hire(role, replace(self.config, arch=role.arch, slots=role.slots, pinned=pinned), tell)


@dataclass(frozen=True)
class _Growing:
    """Says what the fleet of a service would be by now, without holding it."""

    backend: Backend
    fleet: Fleet
    device: str

    def __call__(self) -> Sequence[Role]:
        return self.fleet.grown(self.backend.fleet(self.device)).roles()


def _backend(chosen: str | Backend) -> Backend:
    if chosen == "local":
        return LocalBackend()
    if chosen == "ray":
        from ptxgym.cluster.ray_backend import RayBackend

        return RayBackend()
    if isinstance(chosen, str):
        raise UsageError(f"backend must be 'local' or 'ray', not {chosen!r}")
    return chosen


def _withdraw(submitted: Future[Ticket]) -> None:
    """Let go of an evaluation whose asker left while it was being accepted."""
    if submitted.exception() is None:
        submitted.result().cancel()


def _end(engine: Engine, backend: Backend) -> None:
    try:
        engine.close()
    finally:
        backend.close()


_SHARED: weakref.WeakValueDictionary[tuple[str, str], EvaluationService] = weakref.WeakValueDictionary()
_SHARED_LOCK = threading.Lock()
