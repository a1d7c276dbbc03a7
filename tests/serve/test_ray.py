"""`ptxgym serve --backend ray`: the same server over a Ray cluster; skipped where Ray is not installed."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from ptxgym.cluster import Fleet
from ptxgym.cluster.protocol import ServiceStatus
from ptxgym.errors import InfrastructureError, UsageError
from ptxgym.evaluator import Evaluator
from tests.serve.test_serve import call, steps

ray = pytest.importorskip("ray", reason='needs Ray: pip install "ptxgym[cluster]"')
pytestmark = pytest.mark.filterwarnings(
    "ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::ResourceWarning"
)


@pytest.fixture
def cluster(log: Path) -> Iterator[Any]:
    """Two nodes on this machine."""
    from ray.cluster_utils import Cluster

    made = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False})
    made.add_node(num_cpus=1)
    ray.init(address=made.address, log_to_driver=False)
    yield made
    ray.shutdown()
    made.shutdown()


def status(address: str) -> ServiceStatus:
    return ServiceStatus.model_validate_json(call(address, "GET", "/v1/service/status")[2])


def test_a_server_over_ray_answers_all_though_a_worker_is_killed_and_the_server_starts_anew(cluster, start, log):
    address, _, _ = start(backend="ray", fleet=Fleet(cpu=2))
    texts = [f"// ok {number}" for number in range(12)]
    with Evaluator(address) as evaluator, ThreadPoolExecutor(16) as threads:
        until = time.monotonic() + 60
        while len(status(address).workers) < 2 and time.monotonic() < until:
            time.sleep(0.1)  # a worker joins once its node has started a process for it
        slow = threads.submit(evaluator.evaluate, "// sleep 2", "gemm")
        while ("emulate", "// sleep 2") not in steps(log):
            time.sleep(0.05)
        found = status(address)
        assert found.backend == "ray" and len({worker.place for worker in found.workers}) == 2
        (busy,) = [worker for worker in found.workers if worker.running]
        os.kill(busy.pid, signal.SIGKILL)
        verdicts = list(threads.map(lambda text: evaluator.evaluate(text, "gemm"), texts))
        assert [verdict.message for verdict in verdicts] == texts and slow.result(60).message == "// sleep 2"
        assert status(address).counters["deaths"] == 1
        with pytest.raises(UsageError, match="other content"):
            evaluator.evaluate("// usage", "gemm")
        with pytest.raises(InfrastructureError, match="the disk is full"):
            evaluator.evaluate("// infra", "gemm")
    start.end()
    before = steps(log)
    again, _, _ = start(backend="ray", fleet=Fleet(cpu=2))
    with Evaluator(again) as evaluator:
        assert [evaluator.evaluate(text, "gemm") for text in texts] == verdicts
    assert steps(log) == before
