"""How an actor is hired, with a Ray that the test plays; `test_ray.py` hires on a cluster."""

from __future__ import annotations

import itertools
import threading
from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any

import pytest

from ptxgym.cluster.station import StationConfig
from tests.cluster.fakes import CPU

pytest.importorskip("ray", reason='needs Ray: pip install "ptxgym[cluster]"')


def test_an_actor_that_waited_for_room_waits_no_more_when_it_is_placed(monkeypatch: pytest.MonkeyPatch) -> None:
    from ptxgym.cluster import ray_backend

    placed: Future[str] = Future()
    started: Future[str] = Future()
    said: list[str] = []
    before_start: list[str] = []

    def starts() -> Any:
        before_start.extend(said)
        started.set_result("described")
        return SimpleNamespace(future=lambda: started)

    def call(function: Any) -> Any:
        return SimpleNamespace(remote=function)

    actor = SimpleNamespace(where=call(lambda: SimpleNamespace(future=lambda: placed)), start=call(starts))
    host = SimpleNamespace(options=lambda **options: call(lambda config, name: actor))
    monkeypatch.setattr("ray.remote", lambda kind: host)
    monkeypatch.setattr("ray.available_resources", lambda: {"CPU": 0.0})
    monkeypatch.setattr(ray_backend, "alive_nodes", list)
    monkeypatch.setattr(ray_backend, "resources", lambda nodes: {"CPU": 6})
    monkeypatch.setattr(ray_backend, "RayWorker", lambda *parts: parts)
    monkeypatch.setattr(ray_backend, "PLACE_LIMIT_S", 0.0)
    monkeypatch.setattr(ray_backend, "HIRE_POLL_S", 0.01)
    backend: Any = object.__new__(ray_backend.RayBackend)
    backend._workers, backend._shunned, backend._closed = itertools.count(), {}, threading.Event()
    backend._head = SimpleNamespace(silent_s=0.0)

    def tell(what: str) -> None:
        said.append(what)
        if len(said) == 2:
            placed.set_result("node")

    assert backend._started(CPU, StationConfig, tell) == (actor, "cpu 0 #0", "node", "described")
    assert before_start == said and [what.partition(":")[0] for what in said] == ["waits for room"] * 2 + [""]
