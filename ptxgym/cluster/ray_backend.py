"""Workers as Ray actors. One is not restarted by Ray: the scheduler hires another, as on one machine."""

from __future__ import annotations

import contextlib
import itertools
import os
import platform
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future, wait
from typing import Any

import ray
import ray.exceptions
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from ptxgym.cluster.fleet import ACCELERATORS, Fleet, most_of_each
from ptxgym.cluster.process import START_LIMIT_S
from ptxgym.cluster.protocol import ServiceStatus
from ptxgym.cluster.ray_metrics import BOARD, NAMESPACE, Metrics, StatusBoard
from ptxgym.cluster.ray_nodes import SILENCE_LIMIT_S, Head, alive_nodes, connect, described, resources
from ptxgym.cluster.ray_worker import Host, RayWorker, end, why_not_started
from ptxgym.cluster.station import StationConfig
from ptxgym.cluster.work import Role
from ptxgym.errors import InfrastructureError, ResourcesMissing, UsageError

PLACE_LIMIT_S = 30.0
"""For Ray to place an actor, before it is told what is waited for."""
HIRE_POLL_S = 1.0
CLOSE_LIMIT_S = 5.0
SHUN_S = 600.0
"""For which nobody is hired on a node whose worker was refused, while there are others."""


class _NotReady(Exception):
    """Raised where an actor has not answered in time; not a TimeoutError, which what runs in it may raise."""


class RayBackend:
    """Actors on the cluster that this process is connected to, or that `RAY_ADDRESS` names, or this machine is of."""

    name = "ray"
    ships = True

    _numbers = itertools.count()

    def __init__(self) -> None:
        self._connected_here = connect()
        self._head = Head()
        self._service = f"{platform.node()}/{os.getpid()}/{next(self._numbers)}"
        self._workers = itertools.count()
        self._metrics = Metrics(self._service)
        self._board: Any = None
        self._shunned: dict[str, float] = {}
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
        return Fleet(cpu=max(1, cpus // 4), build=max(1, cpus // 2), gpus=most_of_each(gpus))

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
                f"the Ray cluster cannot hold {', '.join(lacks)}. There: {described(there)}. Ask for what is there, "
                "emulate (a fleet without gpus), or add nodes (`ray status` shows them)"
            )

    def hire(self, role: Role, config: StationConfig, tell: Callable[[str], None]) -> RayWorker:
        """Start an actor; see `Backend.hire`."""
        with self._hired:
            self._hiring += 1
        try:
            if self._board is None:
                self._board = _board()
            return self._started(role, config, tell)
        finally:
            with self._hired:
                self._hiring -= 1
                self._hired.notify_all()

    def shun(self, worker: RayWorker) -> None:
        """Hire nobody on a worker's node for a while; see `Backend.shun`."""
        self._shunned[worker.node_id] = time.monotonic() + SHUN_S

    def trouble(self) -> str:
        """Say that the head is dead; see `Backend.trouble`."""
        silent_s = self._head.silent_s
        if silent_s < SILENCE_LIMIT_S:
            return ""
        fate = (
            "" if self._connected_here else ", and Ray ends this process 60 s after it, unless it calls ray.shutdown()"
        )
        return (
            f"the head of the Ray cluster, {self._head.address}, has not answered for {silent_s:.0f} s{fate}. Start "
            "the cluster again (`ray start --head`), then the service: what was finished is in its `results` folder, "
            "where it has one"
        )

    def give_up(self) -> None:
        """Let go of a connection that was made here: Ray would end the process; see `Backend.give_up`."""
        self._closed.set()
        self._head.close()
        if self._connected_here:
            threading.Thread(target=ray.shutdown, name="ptxgym-ray-shutdown", daemon=True).start()

    def _started(self, role: Role, config: StationConfig, tell: Callable[[str], None]) -> RayWorker:
        name = f"{role.name} #{next(self._workers)}"
        actor: Any = ray.remote(Host).options(**self._options(role)).remote(config, name)
        try:
            until = time.monotonic() + START_LIMIT_S
            node = self._answer(actor.where.remote(), until, lambda waited_s: self._tell_of_room(role, waited_s, tell))
            tell("")
            until = time.monotonic() + START_LIMIT_S
            return RayWorker(actor, name, node, self._answer(actor.start.remote(), until))
        except _NotReady:
            end(actor)
            raise InfrastructureError(
                f"worker {name} was not ready within {START_LIMIT_S:g} s; `ray status` shows whether Ray has placed it"
            ) from None
        except ray.exceptions.RayError as error:
            end(actor)
            raise why_not_started(error, name) from error
        except BaseException:
            end(actor)
            raise

    def _options(self, role: Role) -> dict[str, Any]:
        options: dict[str, Any] = {
            "num_cpus": 1, "max_restarts": 0, "max_task_retries": 0, "max_concurrency": role.slots + 3,
        }  # fmt: skip
        if role.accelerator:
            options |= {"num_gpus": 1, "num_cpus": 0, "accelerator_type": role.accelerator}
        now = time.monotonic()
        shunned = sorted(node for node, until in list(self._shunned.items()) if until > now)
        if shunned and {node["NodeID"] for node in alive_nodes() if node["Resources"].get("CPU")} - {*shunned}:
            options["label_selector"] = {"ray.io/node-id": f"!in({','.join(shunned)})"}
        return options

    def _answer(self, reference: Any, until: float, waiting: Callable[[float], None] = lambda waited_s: None) -> Any:
        """Return what an actor says, or raise what it raised; `_NotReady` if it says nothing in time."""
        began = time.monotonic()
        future: Future[Any] = reference.future()
        while True:
            if wait([future], HIRE_POLL_S).done:
                return future.result()
            if self._closed.is_set():
                raise InfrastructureError("the evaluation service was closed")
            now = time.monotonic()
            waiting(now - began)
            if now > until:
                raise _NotReady

    def _tell_of_room(self, role: Role, waited_s: float, tell: Callable[[str], None]) -> None:
        """Say that Ray has no room for an actor yet; it places it as soon as there is some."""
        if waited_s < PLACE_LIMIT_S or self._head.silent_s > 2 * CLOSE_LIMIT_S:  # Ray's calls wait for the head
            return
        available: Any = ray.available_resources  # untyped
        free: Mapping[str, float] = available()
        kind, what = ("GPU", "GPUs") if role.accelerator else ("CPU", "CPU cores")
        if free.get(kind, 0.0) < 1:
            total = resources(alive_nodes())[kind]
            tell(
                f"waits for room: all {total} {what} of the cluster are taken (`ray status` shows by what); ask for a "
                "smaller fleet, add nodes, or wait"
            )

    def publish(self, status: ServiceStatus) -> None:
        """Export metrics, and show the status on the cluster's board."""
        if self._closed.is_set():
            return
        self._metrics.export(status)
        if self._board is not None and ray.is_initialized():
            with contextlib.suppress(ray.exceptions.RayError, ValueError):
                self._board.write.remote(self._service, status.model_dump(mode="json"))

    def close(self) -> None:
        """Take the status off the board; the connection to the cluster stays the caller's.

        Waits for hires to end: a call that comes after the caller's `ray.shutdown()` would connect again.
        """
        self._closed.set()
        self._head.close()
        with self._hired:
            self._hired.wait_for(lambda: not self._hiring, CLOSE_LIMIT_S)
        with contextlib.suppress(ray.exceptions.RayError):
            if self._board is not None and ray.is_initialized():
                self._board.remove.remote(self._service)


def _board() -> Any:
    """Return the cluster's board, which outlives services, and its node; it begins where this process is."""
    here = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=True)
    options: dict[str, Any] = {
        "name": BOARD, "namespace": NAMESPACE, "lifetime": "detached", "get_if_exists": True, "num_cpus": 0,
        "max_restarts": -1, "scheduling_strategy": here,
    }  # fmt: skip
    try:
        return ray.remote(StatusBoard).options(**options).remote()
    except (ray.exceptions.RayError, ValueError):
        return None
