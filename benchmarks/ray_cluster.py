"""Does a Ray cluster that loses nodes and workers come to the same verdicts as one machine that loses nothing?

    python benchmarks/ray_cluster.py [--evaluations 300] [--nodes 3] [--out FILE]

Needs nvcc, g++ and Ray (`pip install "ptxgym[cluster]"`); no GPU. Some eighty distinct texts of three tasks for both
generations: kernels that are right, wrong, do not compile, fault, hang or break rules. Each is asked for several times,
in a fixed random order, first of the local backend, then of a Ray cluster on this machine: a head that does no work,
and nodes of one core each, with a cache of builds each, so that builds travel. There, worker processes, an actor and a
node are killed while evaluations are under way, and a node joins.

Aims: every ticket is answered, once; the deterministic part of every verdict equals the local backend's; what was done
beyond that is one step per death, failure or lost build. Neither backend finds anything compiled.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from ptxgym import native
from ptxgym.cache import Cache, default_root
from ptxgym.cluster import EvaluationService, Fleet, Request, Ticket
from ptxgym.content import find
from ptxgym.verdict import Verdict
from tests.bad_kernels import BAD, EMPTY_KERNEL, HEAD, SIGNATURE, device, host

SECRET = "cluster"
LIMIT_S = 3600.0
RETRIES = 4
"""As many as there are deaths: one that runs for long may be hit by each."""
WORKLOAD = "schedules"
NATIVE = ("native", "object")
"""Kinds of the cache's entries that hold the emulator and the recorder, which no node need compile again."""


def distinct() -> list[Request]:
    """Return the requests that all others repeat."""
    gemm, forward, backward = (find("tasks")[name].parent / "solutions" for name in ("gemm", "attn_fwd", "attn_bwd"))
    naive, attention = (text(path) for path in (gemm / "h100" / "naive.cu", forward / "naive.cu"))
    found: list[tuple[str, str, str]] = []
    for arch in ("h100", "b200"):
        found += [(text(path), "gemm", arch) for path in sorted((gemm / arch).glob("*.cu"))]
        found += [(text(path), "attn_fwd", arch) for path in (forward / "naive.cu", forward / arch / "oracle.cu")]
        found += [(text(backward / "naive.cu"), "attn_bwd", arch)]
    found += [(wrong, "attn_fwd", "h100") for wrong in (attention.replace("fmaxf", "fminf", 1), attention + "}")]
    texts = [f"{naive}\n// copy {number}\n" for number in range(4)]
    texts += [naive.replace("+=", "-=", 1), naive.replace("K", "(K / 2)", 1)]
    texts += [host(f"  int wrong = {number}; (void)wrong;") for number in range(3)]
    texts += [device(f"  C[threadIdx.x] = __float2bfloat16({number}.0f);") for number in range(3)]
    texts += [device("  while (true) { __nanosleep(100); }"), device("  *(volatile int*)nullptr = 1;")]
    texts += [f"{HEAD}{EMPTY_KERNEL}{SIGNATURE} {{ int x = ; }} // {number}" for number in range(3)]
    texts += [
        bad for name, bad in BAD.items() if isinstance(bad, str) and name not in ("ten_megabytes", "lone_surrogate")
    ]
    found += [(each, "gemm", "h100") for each in texts]
    return [Request(text=each, task=task, arch=arch, workload=WORKLOAD) for each, task, arch in dict.fromkeys(found)]


def text(path: Path) -> str:
    """Return a file's text."""
    return path.read_text(encoding="utf-8")


def asked(service: EvaluationService, requests: list[Request]) -> tuple[list[Verdict], float, dict[str, float]]:
    """Ask for all at once; return the verdicts in order, the seconds, and the service's counters."""
    service.versions()  # a worker is there
    began = time.perf_counter()
    tickets: list[Ticket] = [service.submit(request) for request in requests]
    verdicts = [ticket.result(LIMIT_S) for ticket in tickets]
    return verdicts, time.perf_counter() - began, service.status().counters


class Nodes:
    """A Ray cluster on this machine: a head that does no work, and nodes of one core with a cache each."""

    def __init__(self, count: int, folder: Path) -> None:
        import ray
        from ray.cluster_utils import Cluster

        self._folder, self._numbers = folder, iter(range(1000))
        self.cluster: Any = Cluster(initialize_head=True, head_node_args={"num_cpus": 0, "include_dashboard": False})
        self.nodes = [self.add() for _ in range(count)]
        ray.init(address=self.cluster.address, log_to_driver=False)

    def add(self) -> Any:
        """Add a node."""
        root = self._folder / f"node {next(self._numbers)}"
        for kind in NATIVE:
            shutil.copytree(default_root() / kind, root / kind)
        root.chmod(0o700)
        return self.cluster.add_node(num_cpus=1, env_vars={"PTXGYM_CACHE": str(root)})

    def close(self) -> None:
        """End all nodes."""
        import ray

        ray.shutdown()
        self.cluster.shutdown()


class Reaper:
    """Kills worker processes, an actor and a node while evaluations are under way, and adds a node."""

    def __init__(self, service: EvaluationService, nodes: Nodes, total: int) -> None:
        self._service, self._nodes, self._total = service, nodes, total
        self.killed: list[str] = []

    def run(self) -> None:
        """Do something after each seventh of the work; on the main thread, since Ray starts nodes on no other."""
        self._after(1)
        self._kill("worker process of", os.kill)
        self._after(2)
        self._nodes.cluster.remove_node(self._nodes.nodes[-1], allow_graceful=False)
        self.killed.append("a node with a worker")
        self._after(3)
        self._kill("actor of", lambda pid, sign: os.kill(_parent(pid), sign))
        self._after(4)
        self._nodes.add()
        self._after(5)
        self._kill("worker process of", os.kill)

    def _after(self, sevenths: int) -> None:
        while self._service.status().counters.get("evaluated", 0) < sevenths / 7 * self._total:
            time.sleep(0.05)

    def _kill(self, what: str, kill: Any) -> None:
        """Kill a worker that is busy."""
        for _ in range(200):
            if busy := [worker for worker in self._service.status().workers if worker.running]:
                kill(busy[0].pid, signal.SIGKILL)
                self.killed.append(f"{what} {busy[0].name} on {busy[0].place}")
                return
            time.sleep(0.05)


def _parent(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()[1])


def differences(one: Any, other: Any, where: str = "") -> Iterator[str]:
    """Yield where two verdicts differ."""
    if isinstance(one, dict) and isinstance(other, dict):
        for key in sorted({*one, *other}):
            yield from differences(one.get(key), other.get(key), f"{where}.{key}")
    elif isinstance(one, list) and isinstance(other, list) and len(one) == len(other):
        for index, pair in enumerate(zip(one, other, strict=True)):
            yield from differences(*pair, f"{where}[{index}]")
    elif one != other:
        yield f"{where}: {str(one)[:80]} / {str(other)[:80]}"


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
    native.library("emulator")
    native.program("recorder")

    with tempfile.TemporaryDirectory() as folder:
        cache = Cache(Path(folder) / "local")
        with EvaluationService(fleet=Fleet(cpu=2), secret=SECRET, cache=cache) as local:
            expected, local_s, local_counters = asked(local, requests)
        nodes = Nodes(chosen.nodes, Path(folder))
        fleet = Fleet(cpu=chosen.nodes)
        with EvaluationService("ray", fleet=fleet, secret=SECRET, retries=RETRIES) as remote:
            reaper = Reaper(remote, nodes, len(once))
            with ThreadPoolExecutor(1) as thread:
                asking = thread.submit(asked, remote, requests)
                reaper.run()
                found, ray_s, ray_counters = asking.result()
        nodes.close()

    compared = [
        (request, list(differences(one.deterministic(), other.deterministic())))
        for request, one, other in zip(requests, expected, found, strict=True)
    ]
    different = {f"{request.task} {request.arch} {request.text[:40]!r}": where for request, where in compared if where}
    statuses: dict[str, int] = {}
    for verdict in expected:
        statuses[verdict.status] = statuses.get(verdict.status, 0) + 1
    report = {
        "evaluations": len(requests),
        "distinct": len(once),
        "statuses": statuses,
        "killed": reaper.killed,
        "equal": sum(not where for _, where in compared),
        "different": different,
        "steps_beyond_local": ray_counters["steps"] - local_counters["steps"],
        "steps_with_a_cause": ray_counters.get("retries", 0) + ray_counters.get("rebuilds", 0),
        "local_s": local_s,
        "ray_s": ray_s,
        "local": local_counters,
        "ray": ray_counters,
    }
    print(json.dumps(report, indent=2))
    if chosen.out:
        chosen.out.write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")
    caused = report["steps_beyond_local"] == report["steps_with_a_cause"] and local_counters.get("retries", 0) == 0
    kills = len(reaper.killed) == 4 == ray_counters.get("deaths", 0)
    return 0 if not different and caused and kills and ray_counters["evaluated"] == len(once) else 1


if __name__ == "__main__":
    sys.exit(main())
