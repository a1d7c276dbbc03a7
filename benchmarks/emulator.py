"""Speed of the emulator with all checks on: `python benchmarks/emulator.py`.

Seconds on one host thread (and on more with `--threads`), thread-instructions and multiply-adds per second: scalar and
tensor-core matrix products, attention forward of one head at S = 256, and kernels that do nothing but write to global
memory. Best of several runs. The machine may be shared: `--against FOLDER` runs the same on the emulator of another
checkout in turn with this one, and prints ratios.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ptxgym.build import Build, build
from ptxgym.device.emulator.device import EmulatorDevice
from ptxgym.device.protocol import Bytes, Execution, RunOptions
from ptxgym.plan import Argument, LaunchPlan, device_profile, record
from ptxgym.task import load_task
from ptxgym.verdict import Failure

FOLDER = Path(__file__).parent
SGEMM_DECLARATION = 'extern "C" void run(const float* A, const float* B, float* C, int N, cudaStream_t stream)'
WRITES_DECLARATION = 'extern "C" void run(float* C, int N, int KIND, cudaStream_t stream)'
WRITES = ("stores", "fragments", "sums", "histogram", "total")
"""The kernels of global_memory.cu, in the order of their numbers."""
WORDS_WRITTEN = 1 << 22
LEAST_S = 1.0
OUTPUTS = frozenset({"C", "O", "LSE"})
ARCHITECTURES = {"h100": "sm_90a", "b200": "sm_100a"}


@dataclass(frozen=True)
class Case:
    """What is run."""

    build: Build
    plan: LaunchPlan
    buffers: dict[str, Bytes]


def prepared(text: str, declaration: str, buffers: dict[str, Bytes], axes: dict[str, int], gpu: str = "h100") -> Case:
    """Build and record."""
    built = build(text, declaration=declaration, arch=ARCHITECTURES[gpu])
    if isinstance(built, Failure):
        sys.exit(f"{built.code}: {built.message}")
    arguments = [Argument(name, "output" if name in OUTPUTS else "input", data.size) for name, data in buffers.items()]
    plan = record(built, arguments, axes, device_profile(gpu))
    if isinstance(plan, Failure):
        sys.exit(f"{plan.code}: {plan.message}")
    return Case(built, plan, buffers)


def bfloats(count: int) -> Bytes:
    words = np.random.default_rng(count).standard_normal(count, np.float32).view(np.uint32) >> 16
    return words.astype(np.uint16).view(np.uint8)


def sgemm(size: int = 256) -> Case:
    rng = np.random.default_rng(0)
    a, b = (rng.standard_normal((size, size), np.float32) for _ in range(2))
    buffers = {"A": a.view(np.uint8).reshape(-1), "B": b.view(np.uint8).reshape(-1), "C": np.zeros(a.nbytes, np.uint8)}
    return prepared((FOLDER / "sgemm.cu").read_text(), SGEMM_DECLARATION, buffers, {"N": size})


def gemm(gpu: str, file: str, size: int) -> Case:
    task = load_task("gemm")
    text = next(task.source(solution) for solution in task.solutions[gpu] if solution.file.endswith(f"/{file}"))
    buffers = {"A": bfloats(size * size), "B": bfloats(size * size), "C": np.zeros(2 * size * size, np.uint8)}
    return prepared(text, task.signature.declaration(), buffers, {"M": size, "N": size, "K": size}, gpu)


def attention(gpu: str, length: int) -> Case:
    task = load_task("attn_fwd")
    text = next(task.source(solution) for solution in task.solutions[gpu] if solution.oracle)
    elements = length * 128
    buffers = {name: bfloats(elements) for name in "QKV"}
    buffers |= {"O": np.zeros(2 * elements, np.uint8), "LSE": np.zeros(4 * length, np.uint8)}
    return prepared(text, task.signature.declaration(), buffers, {"B": 1, "H": 1, "S": length, "D": 128}, gpu)


def writes(kind: str) -> Case:
    axes = {"N": WORDS_WRITTEN, "KIND": WRITES.index(kind)}
    text = (FOLDER / "global_memory.cu").read_text()
    return prepared(text, WRITES_DECLARATION, {"C": np.zeros(4 * WORDS_WRITTEN, np.uint8)}, axes)


CASES: dict[str, Callable[[], Case]] = {
    "naive SGEMM 256³": sgemm,
    "wgmma GEMM 1024³": lambda: gemm("h100", "wgmma.cu", 1024),
    "tcgen05 GEMM 512³": lambda: gemm("b200", "oracle.cu", 512),
    "tcgen05 GEMM 512³, pairs": lambda: gemm("b200", "pair.cu", 512),
    "attention, wgmma, S=256": lambda: attention("h100", 256),
    "attention, tcgen05, S=256": lambda: attention("b200", 256),
    "4M words: stores": lambda: writes("stores"),
    "4M words: fragments": lambda: writes("fragments"),
    "4M atomics: one tile": lambda: writes("sums"),
    "4M atomics: histogram": lambda: writes("histogram"),
    "1024 CTAs, an atomic each": lambda: writes("total"),
}


def best(device: EmulatorDevice, case: Case, threads: int, runs: int) -> Execution:
    """Return the fastest of `runs` executions, or of as many as take a second, after one that warms up."""
    executions: list[Execution] = []
    while len(executions) <= runs or sum(execution.wall_s for execution in executions) < LEAST_S:
        execution = device.run(case.build, case.plan, case.buffers, RunOptions(threads=threads))
        if isinstance(execution, Failure):
            sys.exit(f"{execution.code}: {execution.message}")
        executions.append(execution)
    return min(executions[1:], key=lambda execution: execution.wall_s)


def seconds_of(checkout: Path, case: str, runs: int) -> float:
    """Return the seconds that the emulator of `checkout` takes on one host thread."""
    command = [sys.executable, str(Path(__file__).resolve()), "--only", case, "--runs", str(runs), "--json"]
    environment = {**os.environ, "PYTHONPATH": str(checkout)}
    done = subprocess.run(command, cwd=checkout, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"{checkout}: {done.stderr or done.stdout}")
    return float(json.loads(done.stdout)[case])


def compare(other: Path, names: list[str], runs: int, turns: int) -> None:
    """Print the best seconds of both checkouts, which run in turn, and their ratio."""
    own = FOLDER.parent
    print(f"{'work':<28}{'other s':>10}{'this s':>10}{'this : other':>14}")
    for name in names:
        pairs = [(seconds_of(other, name, runs), seconds_of(own, name, runs)) for _ in range(turns)]
        before, after = (min(column) for column in zip(*pairs, strict=True))
        print(f"{name:<28}{before:>10.4f}{after:>10.4f}{after / before:>14.3f}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description="Measure the emulator's speed, all checks on.")
    parser.add_argument("--only", help="cases whose name contains this")
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--threads", type=int, nargs="+", default=[1], help="host threads")
    parser.add_argument("--json", action="store_true", help="seconds by case, and nothing else")
    parser.add_argument("--against", type=Path, help="another checkout, to be compared with")
    parser.add_argument("--turns", type=int, default=5, help="how often both checkouts run")
    options = parser.parse_args()
    names = [name for name in CASES if not options.only or options.only in name]
    if options.against:
        compare(options.against.resolve(), names, options.runs, options.turns)
        return
    device = EmulatorDevice()
    seconds: dict[str, float] = {}
    try:
        if not options.json:
            print(f"{'work':<28}{'threads':>8}{'seconds':>10}{'G thread-instr/s':>19}{'G multiply-adds/s':>19}")
        for name in names:
            case = CASES[name]()
            for threads in options.threads:
                execution = best(device, case, threads, options.runs)
                seconds[name] = execution.wall_s
                rate = sum(count.thread for count in execution.counts) / execution.wall_s / 1e9
                products = sum(count.multiply_adds for count in execution.counts) / execution.wall_s / 1e9
                if not options.json:
                    print(f"{name:<28}{threads:>8}{execution.wall_s:>10.4f}{rate:>19.2f}{products:>19.2f}")
    finally:
        device.close()
    if options.json:
        print(json.dumps(seconds))


if __name__ == "__main__":
    main()
