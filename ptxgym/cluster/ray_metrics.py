"""What a Ray cluster shows of a service: metrics for Prometheus, and a board for `ptxgym cluster status`."""

from __future__ import annotations

import time
from typing import Any

from ray.util.metrics import Counter, Gauge

from ptxgym.cluster.protocol import Kind, ServiceStatus, WorkerState

NAMESPACE = "ptxgym"
BOARD = "ptxgym-status-1"
"""Its number is raised when what it holds changes, since it outlives services, of other versions, too."""
FORGET_S = 120.0
"""After which the status of a service that writes no more is dropped: its process was killed."""


class Metrics:
    """Exports a service's status as Ray metrics, whose names begin with `ptxgym_`."""

    def __init__(self, service: str) -> None:
        """Declare the metrics of one service."""
        self._service = {"service": service}
        self._waiting = Gauge("ptxgym_waiting", "Evaluations that wait for a worker.", ("service", "kind"))
        self._lobby = Gauge("ptxgym_lobby", "Askers that wait for room in the queue.", ("service",))
        self._workers = Gauge("ptxgym_workers", "Workers, by kind and state.", ("service", "kind", "state"))
        self._wanted = Gauge("ptxgym_workers_wanted", "Workers that should be there.", ("service", "kind"))
        self._starting = Gauge("ptxgym_workers_starting", "Those of them that come up now.", ("service", "kind"))
        self._busy = Gauge(
            "ptxgym_busy_share", "Share of its life that a worker had work.", ("service", "worker", "place")
        )
        self._events = Counter("ptxgym_events", "What became of evaluations and workers.", ("service", "event"))
        self._before: dict[str, float] = {}
        self._places: set[tuple[str, str]] = set()

    def export(self, status: ServiceStatus) -> None:
        """Set gauges, and add to counters what came since the last call."""
        self._lobby.set(status.lobby, self._service)
        for kind in Kind:
            self._waiting.set(status.waiting[kind], self._service | {"kind": kind})
            self._wanted.set(status.wanted[kind], self._service | {"kind": kind})
            self._starting.set(status.starting.get(kind, 0), self._service | {"kind": kind})
            states = [worker.state for worker in status.workers if kind in worker.kinds]
            for state in WorkerState:  # also those that nobody is in any more
                self._workers.set(states.count(state), self._service | {"kind": kind, "state": state})
        shares = {
            (worker.name.partition(" #")[0], worker.place): worker.busy_s / worker.age_s if worker.age_s > 0 else 0.0
            for worker in status.workers
        }
        for worker, place in self._places | shares.keys():
            share = shares.get((worker, place), 0.0)  # nobody is there any more
            self._busy.set(share, self._service | {"worker": worker, "place": place})
        self._places |= shares.keys()
        for event, count in status.counters.items():
            more = count - self._before.get(event, 0.0)
            if more > 0:
                self._events.inc(more, self._service | {"event": event})
        self._before = dict(status.counters)


class StatusBoard:
    """A detached actor that holds the last status of every service on the cluster."""

    def __init__(self) -> None:
        self._statuses: dict[str, tuple[float, dict[str, Any]]] = {}

    def write(self, service: str, status: dict[str, Any]) -> None:
        """Put up a service's status."""
        self._statuses[service] = (time.monotonic(), status)

    def remove(self, service: str) -> None:
        """Take a service's status down."""
        self._statuses.pop(service, None)

    def read(self) -> dict[str, tuple[float, dict[str, Any]]]:
        """Return how many seconds old each service's status is, and the status."""
        now = time.monotonic()
        self._statuses = {name: kept for name, kept in self._statuses.items() if now - kept[0] < FORGET_S}
        return {name: (now - at, status) for name, (at, status) in self._statuses.items()}
