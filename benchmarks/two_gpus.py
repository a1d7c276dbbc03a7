"""How much more do two GPUs measure than one, and what does the death of a GPU worker cost?

    python benchmarks/two_gpus.py [--kernels 64] [--tier rl] [--slots 8] [--gpus 2] [--backend local] [--out FILE]

Needs Hopper GPUs, the `gpu` extra and nvcc; for `--backend ray` also Ray. Kernels of PTX-Gemm-H100 that differ in a
comment are compiled before the clock starts, so that what is timed is what a GPU worker does: record, run, emulate
beside it, time, judge. Three services in turn, each in an epoch of its own, whose conditions no verdict has met:

- one GPU;
- all GPUs;
- all GPUs, where one GPU worker is killed when a third of the verdicts is there.

For each: evaluations a minute; per GPU the share of its time that it ran kernels (`nvidia-smi`'s utilization, five
times a second), and the seconds that races had a GPU alone, summed over evaluations; the share of all CPU cores that
was busy, since the emulator that witnesses each evaluation runs there. Aims: two GPUs at least 1.9 times one; the death
loses no verdict and repeats only what its worker had in work.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from types import TracebackType
from typing import Any, Self

sys.path.insert(0, str(Path(__file__).parents[1]))

from ptxgym.build import build
from ptxgym.cluster import EvaluationService, Fleet, Request
from ptxgym.cluster.fleet import cores, local_gpus
from ptxgym.cluster.protocol import Kind, WorkerStatus
from ptxgym.content import find
from ptxgym.device.cuda.model import TIERS
from ptxgym.task import load_arch, load_task
from ptxgym.verdict import Failure, Verdict

SOLUTIONS = ("oracle", "wgmma")
SAMPLE_MS = 200
LIMIT_S = 540.0


def kernels(count: int, run: str) -> list[str]:
    """Return kernels that differ in a comment, compiled into the user's cache."""
    task, code = load_task("gemm"), load_arch("h100").code
    folder = find("tasks")["gemm"].parent / "solutions" / "h100"
    texts = [
        (folder / f"{SOLUTIONS[number % len(SOLUTIONS)]}.cu").read_text(encoding="utf-8") + f"\n// {run} {number}\n"
        for number in range(count)
    ]
    with ThreadPoolExecutor(cores()) as threads:
        for built in threads.map(lambda text: build(text, declaration=task.signature.declaration(), arch=code), texts):
            assert not isinstance(built, Failure), built
    return texts


class Watch:
    """Samples how busy GPUs and CPU cores are."""

    def __init__(self) -> None:
        self.gpu_percent: dict[str, float] = {}
        self.cpu_share = 0.0

    def __enter__(self) -> Self:
        query = ["nvidia-smi", "--query-gpu=uuid,utilization.gpu", "--format=csv,noheader,nounits", f"-lms={SAMPLE_MS}"]
        self._process = subprocess.Popen(query, stdout=subprocess.PIPE, text=True)
        self._cpu = _cpu_times()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        busy, total = (now - before for now, before in zip(_cpu_times(), self._cpu, strict=True))
        self.cpu_share = busy / max(total, 1)
        self._process.terminate()
        samples: dict[str, list[float]] = {}
        for line in self._process.communicate()[0].splitlines():
            uuid, _, percent = line.partition(", ")
            if percent.strip().isdigit():
                samples.setdefault(uuid, []).append(float(percent))
        self.gpu_percent = {uuid: sum(seen) / len(seen) for uuid, seen in samples.items()}


def _cpu_times() -> tuple[int, int]:
    """Return busy and all ticks of all cores since boot."""
    values = [int(word) for word in Path("/proc/stat").read_text(encoding="ascii").split("\n")[0].split()[1:9]]
    return sum(values) - values[3] - values[4], sum(values)


def measured(
    texts: list[str], warm: list[str], gpus: int, epoch: int, chosen: argparse.Namespace, *, kill: bool
) -> dict[str, Any]:
    """Evaluate texts on so many GPUs, and return what came of it."""
    name = next(iter(local_gpus()))
    fleet = Fleet(build=max(1, cores() // 4), gpus={name: gpus}, gpu_slots=chosen.slots)
    with EvaluationService(chosen.backend, fleet=fleet, tier=chosen.tier, secret="gpus", epoch=epoch) as service:
        while len(_gpu_workers(service)) < gpus:
            time.sleep(0.2)
        first = [service.submit(Request(text=text, task="gemm")) for text in warm[: 2 * gpus * chosen.slots]]
        for ticket in first:
            ticket.result(LIMIT_S)
        before = service.status().counters
        held: list[float] = []
        with Watch() as watch:
            began = time.perf_counter()
            tickets = [service.submit(Request(text=text, task="gemm")) for text in texts]
            killed = None
            for number, future in enumerate(as_completed([ticket.future for ticket in tickets]), 1):
                held.append(future.result().measured.lock_held_s or 0.0)
                if kill and killed is None and number >= len(texts) // 3:
                    killed = _kill(service)
            seconds = time.perf_counter() - began
        verdicts: list[Verdict] = [ticket.result(0) for ticket in tickets]
        counters = {key: value - before.get(key, 0) for key, value in service.status().counters.items()}
    speedups = [verdict.measured.timing.speedup for verdict in verdicts if verdict.measured.timing]
    return {
        "gpus": gpus,
        "evaluations": len(texts),
        "seconds": seconds,
        "per_minute": 60 * len(texts) / seconds,
        "statuses": {status: sum(v.status == status for v in verdicts) for status in {v.status for v in verdicts}},
        "gpu_busy_percent": watch.gpu_percent,
        "timing_alone_s": sum(held),
        "cpu_share": watch.cpu_share,
        "speedup_least_most": [min(speedups), max(speedups)] if speedups else None,
        "killed": killed,
        "counters": counters,
    }


def _gpu_workers(service: EvaluationService) -> list[WorkerStatus]:
    return [worker for worker in service.status().workers if Kind.MEASURE in worker.kinds and worker.state != "probing"]


def _kill(service: EvaluationService) -> dict[str, Any] | None:
    """Kill the GPU worker that has most in work."""
    worker = max(_gpu_workers(service), key=lambda worker: worker.running)
    os.kill(worker.pid, signal.SIGKILL)
    return {"worker": worker.name, "in_work": worker.running}


def main() -> int:
    """Measure, print and judge."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kernels", type=int, default=64)
    parser.add_argument("--tier", choices=TIERS, default="rl")
    parser.add_argument("--slots", type=int, default=8, help="evaluations in work at a time per GPU")
    parser.add_argument("--gpus", type=int, default=2)
    parser.add_argument("--backend", choices=("local", "ray"), default="local")
    parser.add_argument("--out", type=Path)
    chosen = parser.parse_args()
    there = local_gpus()
    if sum(map(len, there.values())) < chosen.gpus:
        print(f"{chosen.gpus} GPUs are needed; here: {there or 'none that measures'}", file=sys.stderr)
        return 2
    run = f"{os.getpid()}-{int(time.time())}"
    texts = kernels(chosen.kernels, run)
    warm = kernels(2 * chosen.gpus * chosen.slots, f"warm {run}")
    epoch = int(time.time())
    report: dict[str, Any] = {"tier": chosen.tier, "slots": chosen.slots, "backend": chosen.backend, "cores": cores()}
    report["one"] = measured(texts, warm, 1, epoch, chosen, kill=False)
    report["all"] = measured(texts, warm, chosen.gpus, epoch + 1, chosen, kill=False)
    report["killed"] = measured(texts, warm, chosen.gpus, epoch + 2, chosen, kill=True)
    report["ratio"] = report["all"]["per_minute"] / report["one"]["per_minute"]
    print(json.dumps(report, indent=2))
    if chosen.out:
        chosen.out.write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")
    after = report["killed"]["counters"]
    again = after["steps"] - 2 * len(texts)
    lost = report["killed"]["statuses"] != report["all"]["statuses"]
    good = report["ratio"] >= 0.95 * chosen.gpus and not lost and again == after.get("retries", 0) <= chosen.slots
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
