"""How much more do several GPUs measure than one, how busy are they, and what does the death of a GPU worker cost?

    python benchmarks/two_gpus.py [--gpus 2] [--task gemm] [--kernels 64] [--tier rl] [--slots 8]
                                  [--backend local] [--out FILE]
    python benchmarks/two_gpus.py --gpus 1                   # busy share of one GPU, and the death of its worker
    python benchmarks/two_gpus.py --rehearse [--gpus 2]      # without a GPU: workers that only wait

Needs Hopper GPUs, the `gpu` extra and nvcc; for `--backend ray` also Ray. Kernels of one task that differ in a
comment are compiled before the clock starts, so that what is timed is what a GPU worker does: record, run, emulate
beside it, time, judge. Services in turn, each in an epoch of its own, whose conditions no verdict has met:

- one GPU (where there are several);
- all GPUs;
- all GPUs, where one GPU worker is killed when a third of the verdicts is there.

For each: evaluations a minute; per GPU the share of its time that it ran kernels (`nvidia-smi`'s utilization, five
times a second), and the seconds that races had a GPU alone; how long an evaluation spent in each stage; the share of
all CPU cores that was busy, since the emulator that witnesses each evaluation runs there. Aims: two GPUs at least 1.9
times one; the death loses no verdict and repeats only what its worker had in work. A rehearsal proves the harness and
the service, and measures nothing.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, Self

sys.path.insert(0, str(Path(__file__).parents[1]))

from ptxgym.build import build
from ptxgym.cluster import EvaluationService, Fleet, Request
from ptxgym.cluster.backend import Backend, LocalBackend
from ptxgym.cluster.fleet import cores, local_gpus
from ptxgym.cluster.process import WorkerProcess
from ptxgym.cluster.protocol import Kind, WorkerState, WorkerStatus
from ptxgym.cluster.station import Description, StationConfig, package_versions
from ptxgym.cluster.work import Built, Outcome, Role, Step
from ptxgym.content import find
from ptxgym.device.cuda.gpu import Gpu
from ptxgym.device.cuda.model import TIERS
from ptxgym.task import load_arch, load_task
from ptxgym.verdict import Failure, Measured, Provenance, Stage, Status, Verdict

SOLUTIONS = ("oracle", "wgmma")
SAMPLE_MS = 200
START_LIMIT_S = 180.0
LIMIT_S = 540.0
REHEARSED = "H200"
REHEARSED_CPU_S, REHEARSED_GPU_S = 0.4, 0.06


def texts_of(task: str, count: int, run: str) -> list[str]:
    """Return kernels that differ in a comment: the solutions of a task that use target instructions, in turns."""
    folder = find("tasks")[task].parent / "solutions" / "h100"
    solutions = [path.read_text(encoding="utf-8") for path in sorted(folder.glob("*.cu")) if path.stem in SOLUTIONS]
    return [f"{solutions[number % len(solutions)]}\n// {run} {number}\n" for number in range(count)]


def compile_all(task: str, texts: list[str]) -> None:
    """Compile texts into the user's cache."""
    declaration, code = load_task(task).signature.declaration(), load_arch("h100").code
    with ThreadPoolExecutor(cores()) as threads:
        for built in threads.map(lambda text: build(text, declaration=declaration, arch=code), texts):
            assert not isinstance(built, Failure), built


class Watch:
    """Samples how busy GPUs and CPU cores are."""

    def __init__(self) -> None:
        self.gpu_percent: dict[str, float] = {}
        self.cpu_share = 0.0

    def __enter__(self) -> Self:
        query = ["nvidia-smi", "--query-gpu=uuid,utilization.gpu", "--format=csv,noheader,nounits", f"-lms={SAMPLE_MS}"]
        there = shutil.which(query[0]) is not None
        self._process = subprocess.Popen(query, stdout=subprocess.PIPE, text=True) if there else None
        self._cpu = _cpu_times()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        busy, total = (now - before for now, before in zip(_cpu_times(), self._cpu, strict=True))
        self.cpu_share = busy / max(total, 1)
        if self._process is None:
            return
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


class Rehearsed:
    """A station that waits where another would work: `REHEARSED_GPU_S` of each evaluation alone on its GPU."""

    def __init__(self, config: StationConfig) -> None:
        self._config, self._alone = config, threading.Lock()

    def describe(self) -> Description:
        """Say where this is."""
        gpu = Gpu(f"GPU-{os.getpid()}", 0, "NVIDIA H200", (9, 0), 1 << 37, "580") if self._config.arch else None
        return Description("rehearsal", package_versions(), gpu)

    def step(self, step: Step) -> Outcome:
        """Wait."""
        if step.kind is Kind.BUILD:
            return Built("a build")
        time.sleep(REHEARSED_CPU_S)
        with self._alone:
            began = time.perf_counter()
            time.sleep(REHEARSED_GPU_S)
            measured = Measured(lock_held_s=time.perf_counter() - began)
        provenance = Provenance(ptxgym="0", task="gemm", task_revision=1, arch="h100", source_sha256="")
        return Verdict(
            stage=Stage.JUDGE, status=Status.OK, code="rehearsal", message="", score=0.5, measured=measured,
            provenance=provenance,
        )  # fmt: skip

    def probe(self) -> None:
        """Be well."""


class RehearsedBackend(LocalBackend):
    """This machine, as if it had GPUs."""

    def check(self, fleet: Fleet) -> None:
        """Accept any fleet."""

    def hire(self, role: Role, config: StationConfig, tell: Callable[[str], None]) -> WorkerProcess:
        """Start a worker that sees no GPU."""
        return WorkerProcess(config, role.name)


def service(gpus: int, epoch: int, chosen: argparse.Namespace) -> EvaluationService:
    """Return a service on so many GPUs."""
    name = REHEARSED if chosen.rehearse else next(iter(local_gpus()))
    backend: Literal["local", "ray"] | Backend = chosen.backend
    if chosen.rehearse and backend == "local":
        backend = RehearsedBackend()
    builders = 2 if chosen.rehearse else max(1, cores() // 4)
    return EvaluationService(
        backend,
        fleet=Fleet(build=builders, gpus={name: gpus}, gpu_slots=chosen.slots),
        tier=chosen.tier,
        secret="gpus",
        epoch=epoch,
        maker=f"benchmarks.two_gpus:{Rehearsed.__name__}" if chosen.rehearse else StationConfig.maker,
    )


def measured(
    texts: list[str], warm: list[str], gpus: int, epoch: int, chosen: argparse.Namespace, *, kill: bool
) -> dict[str, Any]:
    """Evaluate texts on so many GPUs, and return what came of it."""
    with service(gpus, epoch, chosen) as served:
        _wait_for(served, gpus)
        for ticket in [served.submit(Request(text=text, task=chosen.task)) for text in warm[: 2 * gpus * chosen.slots]]:
            ticket.result(LIMIT_S)
        before = served.status().counters
        lost: list[str] = []
        with Watch() as watch:
            began = time.perf_counter()
            tickets = [served.submit(Request(text=text, task=chosen.task, deadline_s=LIMIT_S)) for text in texts]
            killed = None
            for number, future in enumerate(as_completed([ticket.future for ticket in tickets]), 1):
                if (error := future.exception()) is not None:
                    lost.append(str(error))
                if kill and killed is None and number >= len(texts) // 3:
                    killed = _kill(served)
            seconds = time.perf_counter() - began
        verdicts = [ticket.result(0) for ticket in tickets if ticket.future.exception() is None]
        counters = {key: value - before.get(key, 0) for key, value in served.status().counters.items()}
    alone = {verdict.measured.lock_held_s or 0.0 for verdict in verdicts}  # a batch tells the same to each of its own
    stages = {stage for verdict in verdicts for stage in verdict.measured.durations_s}
    speedups = [verdict.measured.timing.speedup for verdict in verdicts if verdict.measured.timing]
    return {
        "gpus": gpus,
        "evaluations": len(texts),
        "seconds": seconds,
        "per_minute": 60 * len(texts) / seconds,
        "lost": lost,
        "statuses": {status: sum(v.status == status for v in verdicts) for status in {v.status for v in verdicts}},
        "gpu_busy_percent": watch.gpu_percent,
        "timing_alone_share": sum(alone) / seconds / gpus,
        "cpu_share": watch.cpu_share,
        "stages_s": {
            stage: round(statistics.mean(verdict.measured.durations_s.get(stage, 0.0) for verdict in verdicts), 3)
            for stage in sorted(stages)
        },
        "speedup_least_most": [min(speedups), max(speedups)] if speedups else None,
        "killed": killed,
        "repeated": counters.get("steps", 0) - 2 * len(texts),
        "counters": counters,
    }


def _gpu_workers(served: EvaluationService) -> list[WorkerStatus]:
    return [worker for worker in served.status().workers if Kind.MEASURE in worker.kinds]


def _wait_for(served: EvaluationService, gpus: int) -> None:
    """Wait until all GPUs take work."""
    served.start()
    until = time.monotonic() + START_LIMIT_S
    ready = (WorkerState.IDLE, WorkerState.BUSY)
    while len([worker for worker in _gpu_workers(served) if worker.state in ready]) < gpus:
        if time.monotonic() > until:
            raise SystemExit(f"not all GPUs take work after {START_LIMIT_S:g} s: {served.status()}")
        time.sleep(0.2)


def _kill(served: EvaluationService) -> dict[str, Any] | None:
    """Kill the GPU worker that has most in work."""
    worker = max(_gpu_workers(served), key=lambda worker: worker.running, default=None)
    if worker is None:
        return None
    os.kill(worker.pid, signal.SIGKILL)
    return {"worker": worker.name, "in_work": worker.running}


def good(report: dict[str, Any], chosen: argparse.Namespace) -> bool:
    """Whether nothing was lost or done twice without cause, and several GPUs did what they should."""
    death = report["killed"]
    fine = all(set(run["statuses"]) == {Status.OK} for run in (report["all"], death)) and not death["lost"]
    caused = death["repeated"] == death["counters"].get("retries", 0) <= chosen.slots
    once = death["counters"].get("deaths", 0) == 1 and report["all"]["repeated"] == 0
    return fine and caused and once and report.get("ratio", chosen.gpus) >= 0.95 * chosen.gpus


def main() -> int:
    """Measure, print and judge."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--task", default="gemm", help="the longer its kernels run, the less the driver matters")
    parser.add_argument("--kernels", type=int, default=64)
    parser.add_argument("--tier", choices=TIERS, default="rl")
    parser.add_argument("--slots", type=int, default=8, help="evaluations in work at a time per GPU")
    parser.add_argument("--gpus", type=int, default=2)
    parser.add_argument("--backend", choices=("local", "ray"), default="local")
    parser.add_argument("--rehearse", action="store_true", help="without a GPU, by workers that only wait")
    parser.add_argument("--out", type=Path)
    chosen = parser.parse_args()
    there = local_gpus()
    if not chosen.rehearse and sum(map(len, there.values())) < chosen.gpus:
        print(f"{chosen.gpus} GPUs are needed; here: {there or 'none that measures'}", file=sys.stderr)
        return 2
    run = f"{os.getpid()}-{int(time.time())}"
    texts = texts_of(chosen.task, chosen.kernels, run)
    warm = texts_of(chosen.task, 2 * chosen.gpus * chosen.slots, f"warm {run}")
    began = time.perf_counter()
    if not chosen.rehearse:
        compile_all(chosen.task, [*texts, *warm])
    epoch = int(time.time())
    report: dict[str, Any] = {
        "rehearsal": chosen.rehearse, "task": chosen.task, "tier": chosen.tier, "slots": chosen.slots,
        "backend": chosen.backend, "cores": cores(), "compiled_s": time.perf_counter() - began,
    }  # fmt: skip
    if chosen.rehearse and chosen.backend == "ray":
        import ray

        ray.init("local", num_cpus=2, num_gpus=chosen.gpus, resources={f"accelerator_type:{REHEARSED}": chosen.gpus})
    if chosen.gpus > 1:
        report["one"] = measured(texts, warm, 1, epoch, chosen, kill=False)
    report["all"] = measured(texts, warm, chosen.gpus, epoch + 1, chosen, kill=False)
    report["killed"] = measured(texts, warm, chosen.gpus, epoch + 2, chosen, kill=True)
    if chosen.gpus > 1:
        report["ratio"] = report["all"]["per_minute"] / report["one"]["per_minute"]
    print(json.dumps(report, indent=2))
    if chosen.out:
        chosen.out.write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")
    return 0 if good(report, chosen) else 1


if __name__ == "__main__":
    sys.exit(main())
