"""What a Ray cluster shows of a service: metrics for Prometheus, and a board for `ptxgym cluster status`."""

from __future__ import annotations

from typing import Any

from ray.util.metrics import Counter, Gauge

from ptxgym.cluster.protocol import Kind, ServiceStatus

NAMESPACE = "ptxgym"
BOARD = "ptxgym-status"


class Metrics:
    """Exports a service's status as Ray metrics, whose names begin with `ptxgym_`."""

    def __init__(self) -> None:
        self._waiting = Gauge("ptxgym_waiting", "Evaluations that wait for a worker.", ("kind",))
        self._lobby = Gauge("ptxgym_lobby", "Askers that wait for room in the queue.")
        self._workers = Gauge("ptxgym_workers", "Workers, by kind and state.", ("kind", "state"))
        self._wanted = Gauge("ptxgym_workers_wanted", "Workers that should be there.", ("kind",))
        self._busy = Gauge("ptxgym_busy_share", "Share of its life that a worker had work.", ("worker", "place"))
        self._events = Counter("ptxgym_events", "What became of evaluations and workers.", ("event",))
        self._before: dict[str, float] = {}

    def export(self, status: ServiceStatus) -> None:
        """Set gauges, and add to counters what came since the last call."""
        self._lobby.set(status.lobby)
        for kind in Kind:
            self._waiting.set(status.waiting[kind], {"kind": kind})
            self._wanted.set(status.wanted[kind], {"kind": kind})
            states = [worker.state for worker in status.workers if kind in worker.kinds]
            for state in set(states):
                self._workers.set(states.count(state), {"kind": kind, "state": state})
        for worker in status.workers:
            share = worker.busy_s / worker.age_s if worker.age_s > 0 else 0.0
            self._busy.set(share, {"worker": worker.name, "place": worker.place})
        for event, count in status.counters.items():
            more = count - self._before.get(event, 0.0)
            if more > 0:
                self._events.inc(more, {"event": event})
        self._before = dict(status.counters)


class StatusBoard:
    """A detached actor that holds the last status of every service on the cluster."""

    def __init__(self) -> None:
        self._statuses: dict[int, tuple[float, dict[str, Any]]] = {}

    def write(self, pid: int, at: float, status: dict[str, Any]) -> None:
        """Put up a service's status, written at `at` by the driver's clock."""
        self._statuses[pid] = (at, status)

    def remove(self, pid: int) -> None:
        """Take a service's status down."""
        self._statuses.pop(pid, None)

    def read(self) -> dict[int, tuple[float, dict[str, Any]]]:
        """Return all statuses, by process."""
        return self._statuses
