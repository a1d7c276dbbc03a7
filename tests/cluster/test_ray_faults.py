"""What goes wrong with whole nodes, drivers and the head of a Ray cluster; skipped where Ray is not installed."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import ptxgym
from ptxgym.cluster import EvaluationService, Fleet
from ptxgym.errors import InfrastructureError
from ptxgym.verdict import Status
from tests.cluster.stations import MAKER

ray = pytest.importorskip("ray", reason='needs Ray: pip install "ptxgym[cluster]"')
pytestmark = pytest.mark.filterwarnings(
    "ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::ResourceWarning"
)
ROOT = Path(__file__).parents[2]


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """A head without CPUs for workers, to which tests add nodes; this process is connected to it."""
    from tests.cluster.clusters import new_cluster

    monkeypatch.setenv("PTXGYM_TEST_LOG", str(tmp_path))
    made = new_cluster()
    monkeypatch.setenv("RAY_ADDRESS", made.address)
    yield made
    ray.shutdown()
    with contextlib.suppress(Exception):  # a head that was killed
        made.shutdown()


@pytest.fixture
def drive(cluster: Any) -> Iterator[Callable[[str], subprocess.Popen[str]]]:
    """Starts a driver of `drivers.py`."""
    started: list[subprocess.Popen[str]] = []

    def drive(name: str) -> subprocess.Popen[str]:
        command = [sys.executable, "-m", "tests.cluster.drivers", name]
        started.append(subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True))
        return started[-1]

    yield drive
    for process in started:
        process.kill()
        process.communicate()


def said(driver: subprocess.Popen[str]) -> dict[str, Any]:
    """Return what a driver says next; Ray's own lines are no JSON."""
    assert driver.stdout is not None
    for line in driver.stdout:
        with contextlib.suppress(ValueError):
            return dict(json.loads(line))
    raise AssertionError(f"it ended without a word: {driver.wait()}")


def add_node(cluster: Any, **what: Any) -> Any:
    from tests.cluster import clusters

    return clusters.add_node(cluster, **what)


def eventually(condition: Callable[[], object]) -> None:
    for _ in range(900):
        if condition():
            return
        time.sleep(0.1)
    raise AssertionError("it did not happen")


def alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def test_a_driver_that_has_yet_to_connect_is_told_within_ten_seconds_what_there_is(cluster, drive):
    add_node(cluster, num_cpus=2, num_gpus=3, resources={"accelerator_type:H100": 1})
    add_node(cluster, num_cpus=2, num_gpus=1)
    answer = said(drive("asks_for_a_b200"))
    assert answer["seconds"] < 10  # from the call, the connection to the cluster included
    assert "cannot hold 1 × B200 (it has 0)" in answer["said"]
    assert "There: 3 nodes, 4 CPU cores, 3 × H100, 1 GPU whose type Ray does not know. Ask for" in answer["said"]


def test_a_head_that_is_not_there_is_told_at_once(monkeypatch):
    monkeypatch.setenv("RAY_ADDRESS", "127.0.0.1:1")
    began = time.monotonic()
    with pytest.raises(InfrastructureError, match=r"no Ray head answers at 127\.0\.0\.1:1: start one"):
        EvaluationService("ray")
    assert time.monotonic() - began < 10


def test_a_node_with_another_version_is_refused_and_one_that_joins_is_used(cluster):
    other = add_node(cluster, num_cpus=2, env_vars={"PTXGYM_TEST_VERSION": "2"})
    with EvaluationService("ray", fleet=Fleet(cpu=1), secret="s", maker=MAKER) as service:
        service.start()
        eventually(lambda: f"has ptxgym 2 instead of {ptxgym.__version__}" in service.status().missing)
        good = add_node(cluster, num_cpus=2)
        eventually(lambda: service.status().workers)
        assert service.evaluate("// ok", "gemm").status is Status.OK
        (worker,) = service.status().workers
        assert worker.place.endswith(good.node_id[:8]) and not worker.place.endswith(other.node_id[:8])


def test_a_fleet_that_follows_the_cluster_grows_with_it(cluster, monkeypatch):
    monkeypatch.setattr("ptxgym.cluster.engine.GROW_S", 0.5)
    add_node(cluster, num_cpus=1)
    with EvaluationService("ray", secret="s", maker=MAKER) as service:
        assert service.evaluate("// ok", "gemm").status is Status.OK
        add_node(cluster, num_cpus=2)
        eventually(lambda: len(service.status().workers) == 3)
        assert len({worker.place for worker in service.status().workers}) == 2


def test_a_driver_that_is_killed_leaves_nothing_behind(cluster, drive):
    add_node(cluster, num_cpus=1)
    driver = drive("holds")
    worker = said(driver)["pid"]
    ray.init(log_to_driver=False)
    assert alive(worker) and ray.available_resources().get("CPU", 0) == 0
    driver.send_signal(signal.SIGKILL)
    eventually(lambda: not alive(worker))
    eventually(lambda: ray.available_resources().get("CPU") == 1)


def test_the_death_of_the_head_is_told_to_who_waits(cluster, drive):
    add_node(cluster, num_cpus=1)
    driver = drive("loses_its_head")
    said(driver)
    address = cluster.address
    cluster.head_node.kill_gcs_server()
    for _ in range(2):  # who waits, and who asks then
        assert f"the head of the Ray cluster, {address}, has not answered for" in said(driver)["said"]
    assert said(driver) == {"left": True} and driver.wait(60) == 0


def test_a_timeout_within_a_worker_that_starts_is_told_as_such_at_once() -> None:
    from ptxgym.cluster.ray_backend import RayBackend, _NotReady

    class Reference:
        def __init__(self) -> None:
            self.found: Future[str] = Future()

        def future(self) -> Future[str]:
            return self.found

    backend: Any = SimpleNamespace(_closed=threading.Event())
    raised, silent = Reference(), Reference()
    raised.found.set_exception(TimeoutError("the compiler did not start in time"))
    with pytest.raises(TimeoutError, match="the compiler"):
        RayBackend._answer(backend, raised, time.monotonic() + 300.0)
    with pytest.raises(_NotReady):
        RayBackend._answer(backend, silent, time.monotonic() + 0.1)
