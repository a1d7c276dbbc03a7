"""The service on a Ray cluster of several nodes, all on this machine; skipped where Ray is not installed."""

from __future__ import annotations

import contextlib
import re
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ptxgym.cluster import EvaluationService, Fleet, Request
from ptxgym.cluster.protocol import Kind, ServiceStatus, WorkerState
from ptxgym.errors import InfrastructureError, ResourcesMissing
from ptxgym.verdict import Status
from tests.cluster.conftest import steps
from tests.cluster.stations import MAKER

ray = pytest.importorskip("ray", reason='needs Ray: pip install "ptxgym[cluster]"')
pytestmark = pytest.mark.filterwarnings(
    "ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::ResourceWarning"
)


@pytest.fixture(scope="module")
def cluster_log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("log")


@pytest.fixture(scope="module")
def cluster(cluster_log: Path) -> Iterator[Any]:
    """A head without CPUs for workers, two plain nodes, and one that says that it has an H200."""
    from tests.cluster.clusters import add_node, new_cluster

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PTXGYM_TEST_LOG", str(cluster_log))
        made = new_cluster()
        for more in ({}, {}, {"num_gpus": 1, "resources": {"accelerator_type:H200": 1}}):
            made.mortal = add_node(made, num_cpus=2, **more)
        ray.init(address=made.address, log_to_driver=False)
        yield made
        ray.shutdown()
        made.shutdown()


@pytest.fixture(scope="module")
def service(cluster: Any, cluster_log: Path) -> Iterator[EvaluationService]:
    """Five workers that build and emulate, and one on the GPU."""
    fleet = Fleet(cpu=5, gpus={"H200": 1})
    with EvaluationService("ray", fleet=fleet, secret="s", maker=MAKER) as made:
        yield made


def eventually(condition) -> None:
    for _ in range(600):
        if condition():
            return
        time.sleep(0.1)
    raise AssertionError("it did not happen")


def test_asking_for_a_gpu_that_is_not_there_names_what_is(cluster):
    began = time.monotonic()
    with pytest.raises(ResourcesMissing, match=r"2 × B200 \(it has 0\).*4 nodes, 6 CPU cores, 1 × H200"):
        EvaluationService("ray", fleet=Fleet(cpu=1, gpus={"B200": 2}))
    assert time.monotonic() - began < 10
    with pytest.raises(ResourcesMissing, match=r"100 CPU cores \(it has 6\)"):
        EvaluationService("ray", fleet=Fleet(cpu=100))


def test_the_fleet_follows_from_the_cluster(cluster):
    assert EvaluationService("ray", maker=MAKER).fleet == Fleet(cpu=1, build=3, gpus={"H200": 1})
    assert EvaluationService("ray", device="emulator", maker=MAKER).fleet == Fleet(cpu=6)


def test_evaluations_go_to_the_nodes_and_the_status_shows_them(service, cluster_log):
    from ptxgym.cluster.ray_metrics import BOARD, NAMESPACE

    tickets = [service.submit(Request(text=f"// {n % 10}", task="gemm", arch="b200")) for n in range(30)]
    tickets += [service.submit(Request(text="// measured", task="gemm"))]
    assert [ticket.result(120).status for ticket in tickets] == [Status.OK] * 31
    kinds = [kind for kind, _ in steps(cluster_log)]
    assert (kinds.count("build"), kinds.count("emulate"), kinds.count("measure")) == (11, 10, 1)
    assert service.gpu("h100").name == "NVIDIA H200" and service.gpu("b200") is None
    eventually(lambda: len(service.status().workers) == 6)
    workers = service.status().workers
    assert len({worker.place.split()[0] for worker in workers}) == 3
    assert [worker.done for worker in workers if Kind.MEASURE in worker.kinds] == [1]
    board = ray.get_actor(BOARD, namespace=NAMESPACE)

    def shown() -> list[ServiceStatus]:
        return [ServiceStatus.model_validate(one) for _, one in ray.get(board.read.remote()).values()]

    eventually(lambda: any(one.counters.get("evaluated") == 11 for one in shown()))
    ray.kill(board, no_restart=False)  # as its node may be

    def shown_again() -> bool:
        with contextlib.suppress(ray.exceptions.RayError):
            return any(one.counters.get("evaluated") == 11 for one in shown())
        return False

    eventually(shown_again)


def test_ray_s_own_endpoint_exports_the_metrics(service):
    pytest.importorskip(
        "prometheus_client", reason='Ray exports metrics with ray[default]: pip install "ptxgym[cluster]"'
    )
    service.evaluate("// counted", "gemm", "b200")
    name = r'service="[^"]+/\d+/\d+"'

    def exported() -> str:
        found = ""
        for node in ray.nodes():
            with contextlib.suppress(OSError):
                place = f"http://{node['NodeManagerAddress']}:{node['MetricsExportPort']}/metrics"
                found += urllib.request.urlopen(place, timeout=10).read().decode()
        return found

    def value(metric: str, labels: str) -> float | None:
        """Of the newest service; labels come in the order of their names."""
        lines = re.findall(rf"^ray_{metric}\{{(.*)\}} ([\d.e+]+)$", exported(), re.MULTILINE)
        matching = [float(number) for said, number in lines if labels in said and re.search(name, said)]
        return matching[-1] if matching else None

    eventually(lambda: (value("ptxgym_events_total", 'event="evaluated"') or 0) >= 1)
    assert value("ptxgym_workers_wanted", 'kind="measure"') == 1
    eventually(lambda: value("ptxgym_workers_starting", 'kind="measure"') == 0)
    eventually(lambda: value("ptxgym_workers", 'state="quarantined"') == 0)  # what nobody is in is told, too
    eventually(lambda: value("ptxgym_busy_share", 'worker="H200 0"') is not None)  # once it has joined


def test_two_services_share_a_cluster_and_one_that_finds_no_room_says_so(service, monkeypatch):
    from ptxgym.cluster import ray_backend
    from ptxgym.cluster.ray_metrics import BOARD, NAMESPACE

    monkeypatch.setattr(ray_backend, "PLACE_LIMIT_S", 2.0)
    eventually(lambda: len(service.status().workers) == 6)
    with EvaluationService("ray", fleet=Fleet(cpu=2), secret="s", maker=MAKER) as other:
        assert other.evaluate("// of another", "gemm").status is Status.OK
        eventually(lambda: "all 6 CPU cores of the cluster are taken" in other.status().missing)
        board = ray.get_actor(BOARD, namespace=NAMESPACE)
        eventually(lambda: len(ray.get(board.read.remote())) == 2)
    eventually(lambda: len(ray.get(board.read.remote())) == 1)


def test_failures_are_those_of_one_machine(service):
    with pytest.raises(InfrastructureError, match=r"failed 3 times .*: the disk is full"):
        service.evaluate("// infra", "gemm", "b200")
    assert service.evaluate("// die once x", "gemm", "b200").status is Status.OK
    assert service.status().counters["deaths"] == 1


def test_a_node_and_its_workers_may_end_meanwhile(service, cluster, cluster_log):
    (cluster_log / "steps").unlink()
    before = service.status().counters
    tickets = [service.submit(Request(text=f"// sleep 0.3 {n}", task="gemm", arch="b200")) for n in range(40)]
    eventually(lambda: len(steps(cluster_log)) > 8)
    cluster.remove_node(cluster.mortal)  # with its workers, and the builds that they made
    assert [ticket.result(180).message for ticket in tickets] == [f"// sleep 0.3 {n}" for n in range(40)]
    counters = {name: count - before.get(name, 0) for name, count in service.status().counters.items()}
    assert counters["evaluated"] == 40 and 1 <= counters["deaths"] <= 3
    assert counters["steps"] == 80 + counters["retries"] + counters.get("rebuilds", 0)  # nothing twice without cause
    assert len(steps(cluster_log)) <= counters["steps"]


def test_a_gpu_that_is_not_well_takes_nothing(service, cluster, cluster_log):
    from tests.cluster.clusters import add_node

    add_node(cluster, num_cpus=2, num_gpus=1, resources={"accelerator_type:H200": 1})
    assert service.evaluate("// measured again", "gemm").status is Status.OK  # after the end of its node
    (cluster_log / "unwell").touch()
    ticket = service.submit(Request(text="// infra once y", task="gemm"))
    eventually(lambda: any(worker.state is WorkerState.QUARANTINED for worker in service.status().workers))
    (worker,) = [worker for worker in service.status().workers if Kind.MEASURE in worker.kinds]
    assert worker.trouble == "Xid 79" and not ticket.done()
    ticket.cancel()
