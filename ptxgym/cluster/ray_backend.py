"""Workers as Ray actors: each holds a worker process on its node, so that what runs there is the same without Ray.

An actor is not restarted by Ray: the scheduler hires another, here as on one machine, and learns of every death. What a
build leaves stays in Ray's object store until a worker on any node fetches it; it never passes through the driver.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import ray
import ray.exceptions

from ptxgym.cluster.fleet import ACCELERATORS, Fleet
from ptxgym.cluster.process import START_LIMIT_S, WorkerProcess
from ptxgym.cluster.protocol import Kind, ServiceStatus
from ptxgym.cluster.ray_metrics import BOARD, NAMESPACE, Metrics, StatusBoard
from ptxgym.cluster.station import Description, Handover, StationConfig
from ptxgym.cluster.work import Built, HandoverLost, Outcome, Role, Step, WorkerGone
from ptxgym.errors import InfrastructureError, ResourcesMissing, UsageError

PREFLIGHT_LIMIT_S = 8.0
"""For the cluster to say what it has."""
SCHEDULE_LIMIT_S = 60.0
"""For Ray to place an actor whose resources are free on paper."""
HIRE_POLL_S = 0.5
CLOSE_LIMIT_S = 5.0

T = TypeVar("T")


class Host:
    """What runs in an actor: a worker process, and the way to it."""

    def __init__(self, config: StationConfig, name: str) -> None:
        self._process = WorkerProcess(config, name)

    def describe(self) -> Description:
        """Return what the worker says of itself, under Ray's name of the node."""
        node = f"{self._process.description.node}/{ray.get_runtime_context().get_node_id()[:8]}"
        return replace(self._process.description, node=node)

    def build(self, step: Step) -> tuple[Outcome | Exception, Mapping[str, bytes] | None]:
        """Build; return the outcome without the files, and the files, which stay in the object store."""
        outcome = self.step(step)
        if isinstance(outcome, Built) and isinstance(outcome.handover, Handover):
            return Built(replace(outcome.handover, files=None)), outcome.handover.files
        return outcome, None

    def step(self, step: Step, files: Mapping[str, bytes] | None = None) -> Outcome | Exception:
        """Do a step; an error is a value, so that it arrives as it is."""
        if isinstance(step.handover, Handover) and files is not None:
            step = replace(step, handover=replace(step.handover, files=files))
        return _tried(lambda: self._process.run(step).result())

    def ended(self) -> str:
        """Return when the worker process has ended: why."""
        return self._process.gone.result()

    def probe(self) -> Exception | None:
        """Try the GPU."""
        return _tried(lambda: self._process.probe().result())


@dataclass(frozen=True)
class _Remote:
    """A build whose files lie in the object store."""

    handover: Handover
    files: Any
    """Ray's reference."""


class RayWorker:
    """An actor, as the scheduler sees it."""

    def __init__(self, actor: Any, name: str, description: Description) -> None:
        """Wrap an actor that has described itself."""
        self.name, self.description, self.place = name, description, description.place
        self.pid = description.pid
        self._actor = actor
        self.gone: Future[str] = Future()
        """Resolved when the actor, or the process that it holds, has ended: why."""
        _later(actor.ended.remote(), name, str).add_done_callback(self._ended)

    def run(self, step: Step) -> Future[Outcome]:
        """Do a step; see `work.Worker`."""
        if step.kind is Kind.BUILD:
            said, files = self._actor.build.options(num_returns=2).remote(step)
            return _later(said, self.name, lambda value: _referring(value, files))
        if isinstance(step.handover, _Remote):
            plain = replace(step, handover=step.handover.handover)
            return _later(self._actor.step.remote(plain, step.handover.files), self.name, _value)
        return _later(self._actor.step.remote(step), self.name, _value)

    def probe(self) -> Future[None]:
        """Try the GPU; see `work.Worker`."""
        return _later(self._actor.probe.remote(), self.name, _value)

    def _ended(self, done: Future[str]) -> None:
        self.gone.set_result(str(done.exception() or done.result()))

    def kill(self) -> None:
        """End the actor; its worker process ends with it."""
        with contextlib.suppress(ray.exceptions.RayError):
            ray.kill(self._actor, no_restart=True)


class RayBackend:
    """Actors on the cluster that this process is connected to, or that `ray.init()` finds or starts."""

    name = "ray"
    ships = True

    def __init__(self) -> None:
        if not ray.is_initialized():
            ray.init(namespace=NAMESPACE, log_to_driver=False)
        self._numbers = itertools.count()
        self._metrics = Metrics()
        self._board: Any = None
        self._closed = threading.Event()
        self._hiring = 0
        self._hired = threading.Condition()

    def fleet(self, device: str) -> Fleet:
        """Return the fleet that uses the cluster well; see `Backend.fleet`."""
        if device not in ("auto", "emulator", "cuda"):
            raise UsageError(f"device must be 'auto', 'emulator' or 'cuda', not {device!r}")
        there = resources(alive_nodes())
        cpus = int(there["CPU"])
        gpus = {name: int(there[name]) for name in ACCELERATORS if there[name] >= 1} if device != "emulator" else {}
        if device == "cuda" and not gpus:
            raise ResourcesMissing(f"device 'cuda': no GPU on this cluster can be used; it has {described(there)}")
        if not gpus:
            return Fleet(cpu=max(1, cpus))
        return Fleet(cpu=max(1, cpus // 4), build=max(1, cpus // 2), gpus=gpus)

    def check(self, fleet: Fleet) -> None:
        """Accept a fleet that the cluster can hold now; see `Backend.check`."""
        there = resources(alive_nodes())
        lacks = [
            f"{count} × {name} (it has {int(there[name])})" for name, count in fleet.gpus.items() if count > there[name]
        ]
        cpus = fleet.cpu + fleet.build
        if cpus > there["CPU"]:
            lacks.append(f"{cpus} CPU cores (it has {int(there['CPU'])})")
        if lacks:
            raise ResourcesMissing(
                f"the Ray cluster cannot hold {', '.join(lacks)}. There: {described(there)}. Ask for what is there, or "
                "add nodes (`ray status` shows them)"
            )

    def hire(self, role: Role, config: StationConfig) -> RayWorker:
        """Start an actor; see `Backend.hire`."""
        with self._hired:
            self._hiring += 1
        try:
            return self._started(role, config)
        finally:
            with self._hired:
                self._hiring -= 1
                self._hired.notify_all()

    def _started(self, role: Role, config: StationConfig) -> RayWorker:
        name = f"{role.name} #{next(self._numbers)}"
        options: dict[str, Any] = {
            "num_cpus": 1, "max_restarts": 0, "max_task_retries": 0, "max_concurrency": role.slots + 3,
        }  # fmt: skip
        if role.accelerator:
            options |= {"num_gpus": 1, "num_cpus": 0, "accelerator_type": role.accelerator}
        actor: Any = ray.remote(Host).options(**options).remote(config, name)
        said: Any = actor.describe.remote()
        try:
            until = time.monotonic() + SCHEDULE_LIMIT_S + START_LIMIT_S
            while not ray.wait([said], timeout=HIRE_POLL_S)[0]:
                if self._closed.is_set():
                    raise InfrastructureError("the evaluation service was closed")
                if time.monotonic() > until:
                    raise InfrastructureError(f"Ray has not placed worker {name}; `ray status` shows what it waits for")
            return RayWorker(actor, name, ray.get(said))
        except ray.exceptions.RayTaskError as error:
            _kill(actor)
            cause = error.cause
            raise (
                cause
                if isinstance(cause, UsageError | InfrastructureError)
                else InfrastructureError(f"worker {name} did not start: {error}")
            ) from error
        except ray.exceptions.RayError as error:
            _kill(actor)
            raise InfrastructureError(f"worker {name} did not start: {_first_line(error)}") from error
        except BaseException:
            _kill(actor)
            raise

    def publish(self, status: ServiceStatus) -> None:
        """Export metrics, and show the status on the cluster's board."""
        self._metrics.export(status)
        with contextlib.suppress(ray.exceptions.RayError, ValueError):
            if self._board is None:
                options = {"name": BOARD, "namespace": NAMESPACE, "lifetime": "detached", "get_if_exists": True}
                self._board = ray.remote(StatusBoard).options(num_cpus=0, **options).remote()
            self._board.write.remote(os.getpid(), time.time(), status.model_dump(mode="json"))

    def close(self) -> None:
        """Take the status off the board; the connection to the cluster stays the caller's.

        Waits for hires to end: a call that comes after the caller's `ray.shutdown()` would connect again.
        """
        self._closed.set()
        with self._hired:
            self._hired.wait_for(lambda: not self._hiring, CLOSE_LIMIT_S)
        with contextlib.suppress(ray.exceptions.RayError):
            if self._board is not None and ray.is_initialized():
                self._board.remove.remote(os.getpid())


def alive_nodes(limit_s: float = PREFLIGHT_LIMIT_S) -> list[Mapping[str, Any]]:
    """Return the cluster's nodes that are alive.

    Raises:
        InfrastructureError: if the cluster does not answer in time.
    """
    answer: Future[list[Mapping[str, Any]]] = Future()

    def ask() -> None:
        try:
            nodes: Any = ray.nodes  # untyped
            answer.set_result([node for node in nodes() if node["Alive"]])
        except Exception as error:
            answer.set_exception(error)

    threading.Thread(target=ask, daemon=True).start()
    try:
        return answer.result(limit_s)
    except TimeoutError as error:
        raise InfrastructureError(f"the Ray cluster did not answer within {limit_s:g} s; see `ray status`") from error


def resources(nodes: Sequence[Mapping[str, Any]]) -> Counter[str]:
    """Return what nodes have: `CPU`, `GPU`, `nodes`, and GPUs by accelerator."""
    total: Counter[str] = Counter(nodes=len(nodes))
    for node in nodes:
        has = node["Resources"]
        total.update({"CPU": int(has.get("CPU", 0)), "GPU": int(has.get("GPU", 0))})
        for name in has:
            if name.startswith("accelerator_type:"):
                total[name.removeprefix("accelerator_type:")] += int(has.get("GPU", 0))
    return total


def described(there: Mapping[str, int]) -> str:
    """Return what is there, in words."""
    names = [name for name in there if name not in ("CPU", "GPU", "nodes") and there[name]]
    gpus = ", ".join(f"{there[name]} × {name}" for name in sorted(names)) or "no GPU"
    return f"{there['nodes']} node{'s' if there['nodes'] != 1 else ''}, {there['CPU']} CPU cores, {gpus}"


def _tried(function: Callable[[], T]) -> T | Exception:
    try:
        return function()
    except Exception as error:
        return error


def _value(value: Any) -> Any:
    """Return a value, or raise it where it is an error."""
    if isinstance(value, Exception):
        raise value
    return value


def _referring(value: Any, files: Any) -> Outcome:
    """Return a build that refers to its files in the object store."""
    outcome: Outcome = _value(value)
    if isinstance(outcome, Built) and isinstance(outcome.handover, Handover):
        return Built(_Remote(outcome.handover, files))
    return outcome


def _later(reference: Any, worker: str, take: Callable[[Any], T]) -> Future[T]:
    """Return a future of what a reference will hold, with Ray's errors as ours."""
    answer: Future[T] = Future()

    def done(source: Future[Any]) -> None:
        try:
            answer.set_result(take(source.result()))
        except (ray.exceptions.ObjectLostError, ray.exceptions.ObjectFetchTimedOutError) as error:
            answer.set_exception(HandoverLost(f"a build was lost with its node: {_first_line(error)}"))
        except ray.exceptions.RayTaskError as error:
            lost = isinstance(error.cause, ray.exceptions.ObjectLostError)
            answer.set_exception(
                HandoverLost(f"a build was lost with its node: {_first_line(error)}") if lost else error
            )
        except ray.exceptions.RayError as error:
            answer.set_exception(WorkerGone(f"worker {worker} ended: {_first_line(error)}"))
        except Exception as error:
            answer.set_exception(error)

    reference.future().add_done_callback(done)
    return answer


def _kill(actor: Any) -> None:
    with contextlib.suppress(ray.exceptions.RayError):
        ray.kill(actor, no_restart=True)


def _first_line(error: BaseException) -> str:
    return str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
