"""Does a Ray cluster that loses nodes and workers come to the same verdicts as one machine that loses nothing?

    python benchmarks/ray_cluster.py [--evaluations 300] [--nodes 3] [--out FILE]

Needs nvcc, g++ and Ray (`pip install "ptxgym[cluster]"`); no GPU. Some forty distinct texts for both generations:
kernels that are right, wrong, do not compile, fault, hang or break rules. Each is asked for several times, in a fixed
random order, first of the local backend, then of a Ray cluster of several nodes on this machine; there, a node and
several worker processes are killed meanwhile.

Aims: every ticket is answered, once; the deterministic part of every verdict equals the local backend's; what was done
beyond that is one step per death, failure or lost build. The verdicts are compared, so builds may be shared: both
backends use one cache of builds, and the second finds there what the first compiled.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from ptxgym.cache import Cache
from ptxgym.cluster import EvaluationService, Fleet, Request, Ticket
from ptxgym.content import find
from ptxgym.verdict import Verdict
from tests.bad_kernels import BAD, EMPTY_KERNEL, HEAD, SIGNATURE, device, host

SECRET = "cluster"
LIMIT_S = 3600.0


def distinct() -> list[Request]:
    """Return the requests that all others repeat."""
    solutions = find("tasks")["gemm"].parent / "solutions"
    found = [
        Request(text=path.read_text(encoding="utf-8"), task="gemm", arch=arch, workload="schedules")
        for arch in ("h100", "b200")
        for path in sorted((solutions / arch).glob("*.cu"))
    ]
    naive = (solutions / "h100" / "naive.cu").read_text(encoding="utf-8")
    texts = [f"{naive}\n// copy {number}\n" for number in range(6)]
    texts += [naive.replace("+=", "-=", 1), naive.replace("K", "(K / 2)", 1)]
    texts += [host(f"  int wrong = {number}; (void)wrong;") for number in range(4)]
    texts += [device(f"  C[threadIdx.x] = __float2bfloat16({number}.0f);") for number in range(4)]
    texts += [device("  while (true) { __nanosleep(100); }"), device("  *(volatile int*)nullptr = 1;")]
    texts += [f"{HEAD}{EMPTY_KERNEL}{SIGNATURE} {{ int x = ; }} // {number}" for number in range(4)]
    texts += [
        text for name, text in BAD.items() if isinstance(text, str) and name not in ("ten_megabytes", "lone_surrogate")
    ]
    found += [Request(text=text, task="gemm", workload="schedules") for text in dict.fromkeys(texts)]
    return found[:44]


def asked(service: EvaluationService, requests: list[Request]) -> tuple[list[Verdict], float, dict[str, float]]:
    """Ask for all at once; return the verdicts in order, the seconds, and the service's counters."""
    began = time.perf_counter()
    tickets: list[Ticket] = [service.submit(request) for request in requests]
    answers = []
    for ticket in tickets:
        ticket.future.add_done_callback(answers.append)
    verdicts = [ticket.result(LIMIT_S) for ticket in tickets]
    assert len(answers) == len(requests)
    return verdicts, time.perf_counter() - began, service.status().counters


class Reaper(threading.Thread):
    """Kills a node, worker processes and an actor while evaluations are under way."""

    def __init__(self, service: EvaluationService, cluster: Any, mortal: Any, total: int) -> None:
        super().__init__(daemon=True)
        self._service, self._cluster, self._mortal, self._total = service, cluster, mortal, total
        self.killed: list[str] = []

    def run(self) -> None:
        """Kill something after each sixth of the work."""
        self._wait(1 / 6)
        self._worker()
        self._wait(2 / 6)
        self._cluster.remove_node(self._mortal)
        self.killed.append("a node")
        self._wait(3 / 6)
        self._worker()
        self._wait(4 / 6)
        self._worker()

    def _wait(self, share: float) -> None:
        while self._service.status().counters.get("evaluated", 0) < share * self._total:
            time.sleep(0.05)

    def _worker(self) -> None:
        """Kill a worker that is busy."""
        for _ in range(200):
            if busy := [worker for worker in self._service.status().workers if worker.running]:
                os.kill(busy[0].pid, signal.SIGKILL)
                self.killed.append(f"{busy[0].name} on {busy[0].place}")
                return
            time.sleep(0.05)


def main() -> int:
    """Run both backends, print and judge."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--evaluations", type=int, default=300)
    parser.add_argument("--nodes", type=int, default=3)
    parser.add_argument("--out", type=Path)
    chosen = parser.parse_args()
    once = distinct()
    draw = random.Random(7)
    requests = [*once, *draw.choices(once, k=max(0, chosen.evaluations - len(once)))]
    draw.shuffle(requests)

    with tempfile.TemporaryDirectory() as folder:
        cache = Cache(Path(folder) / "cache")
        with EvaluationService(fleet=Fleet(cpu=2), secret=SECRET, cache=cache) as local:
            expected, local_s, local_counters = asked(local, requests)

        import ray
        from ray.cluster_utils import Cluster

        cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False})
        mortal = [cluster.add_node(num_cpus=1) for _ in range(chosen.nodes - 1)][-1]
        ray.init(address=cluster.address, log_to_driver=False)
        with EvaluationService("ray", fleet=Fleet(cpu=chosen.nodes), secret=SECRET, cache=cache) as remote:
            reaper = Reaper(remote, cluster, mortal, len(once))
            reaper.start()
            found, ray_s, ray_counters = asked(remote, requests)
            reaper.join(60)
        ray.shutdown()
        cluster.shutdown()

    different = [
        request.text[:60]
        for request, one, other in zip(requests, expected, found, strict=True)
        if one.deterministic() != other.deterministic()
    ]
    extra = ray_counters["steps"] - local_counters["steps"]
    caused = ray_counters.get("retries", 0) + ray_counters.get("rebuilds", 0)
    statuses: dict[str, int] = {}
    for verdict in expected:
        statuses[verdict.status] = statuses.get(verdict.status, 0) + 1
    report = {
        "evaluations": len(requests),
        "distinct": len(once),
        "statuses": statuses,
        "killed": reaper.killed,
        "different": different,
        "steps_beyond_local": extra,
        "steps_with_a_cause": caused,
        "local_s": local_s,
        "ray_s": ray_s,
        "local": local_counters,
        "ray": ray_counters,
    }
    print(json.dumps(report, indent=2))
    if chosen.out:
        chosen.out.write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")
    good = not different and extra == caused and len(reaper.killed) >= 4
    return 0 if good and ray_counters["evaluated"] == len(once) else 1


if __name__ == "__main__":
    sys.exit(main())
