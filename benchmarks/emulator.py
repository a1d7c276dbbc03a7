"""Speed of the emulator with all checks on: `python benchmarks/emulator.py`.

Scalar: naive SGEMM in thread-instructions per second. Tensor: the task's wgmma GEMM at 1024³ in seconds. One and two
host threads, best of a few runs, and ratios between lines of the same run, since the machine may be shared.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import numpy as np

from ptxgym.build import Build, build
from ptxgym.device.emulator.device import EmulatorDevice
from ptxgym.device.protocol import Bytes, Execution, RunOptions
from ptxgym.plan import Argument, LaunchPlan, device_profile, record
from ptxgym.task import load_task
from ptxgym.verdict import Failure

SGEMM = Path(__file__).with_name("sgemm.cu")
SGEMM_DECLARATION = 'extern "C" void run(const float* A, const float* B, float* C, int N, cudaStream_t stream)'


def prepared(text: str, declaration: str, sizes: dict[str, int], axes: dict[str, int]) -> tuple[Build, LaunchPlan]:
    """Build and record; C is the output."""
    built = build(text, declaration=declaration, arch="sm_90a")
    if isinstance(built, Failure):
        sys.exit(f"{built.code}: {built.message}")
    arguments = [Argument(name, "output" if name == "C" else "input", size) for name, size in sizes.items()]
    plan = record(built, arguments, axes, device_profile("h100"))
    if isinstance(plan, Failure):
        sys.exit(f"{plan.code}: {plan.message}")
    return built, plan


def best(
    device: EmulatorDevice, built: Build, plan: LaunchPlan, buffers: dict[str, Bytes], threads: int, runs: int
) -> Execution:
    """Return the fastest of `runs` executions after one that warms up."""
    executions = []
    for _ in range(runs + 1):
        execution = device.run(built, plan, buffers, RunOptions(threads=threads))
        if isinstance(execution, Failure):
            sys.exit(f"{execution.code}: {execution.message}")
        executions.append(execution)
    return min(executions[1:], key=lambda execution: execution.wall_s)


def scalar_case(size: int) -> tuple[Build, LaunchPlan, dict[str, Bytes]]:
    rng = np.random.default_rng(0)
    a, b = (rng.standard_normal((size, size), np.float32) for _ in range(2))
    buffers = {"A": a.view(np.uint8).reshape(-1), "B": b.view(np.uint8).reshape(-1), "C": np.zeros(a.nbytes, np.uint8)}
    sizes = {name: data.size for name, data in buffers.items()}
    return *prepared(SGEMM.read_text(), SGEMM_DECLARATION, sizes, {"N": size}), buffers


def tensor_case(size: int) -> tuple[Build, LaunchPlan, dict[str, Bytes]]:
    task = load_task("gemm")
    text = next(task.source(solution) for solution in task.solutions["h100"] if solution.file.endswith("/wgmma.cu"))
    rng = np.random.default_rng(0)

    def elements() -> Bytes:
        words = rng.standard_normal(size * size, np.float32).view(np.uint32) >> 16
        return words.astype(np.uint16).view(np.uint8)

    buffers = {"A": elements(), "B": elements(), "C": np.zeros(2 * size * size, np.uint8)}
    sizes = {name: data.size for name, data in buffers.items()}
    return *prepared(text, task.signature.declaration(), sizes, {"M": size, "N": size, "K": size}), buffers


def main() -> None:
    parser = argparse.ArgumentParser(description="Measure the emulator's speed, all checks on.")
    parser.add_argument("--sgemm", type=int, default=256, help="size of the scalar matrix product")
    parser.add_argument("--wgmma", type=int, default=1024, help="size of the tensor-core matrix product")
    parser.add_argument("--runs", type=int, default=3)
    options = parser.parse_args()
    device = EmulatorDevice()
    try:
        scalar, tensor = scalar_case(options.sgemm), tensor_case(options.wgmma)
        print(f"{'work':<24}{'threads':>8}{'seconds':>10}{'G thread-instr/s':>19}{'G multiply-adds/s':>19}")
        for name, case in ((f"naive SGEMM {options.sgemm}³", scalar), (f"wgmma GEMM {options.wgmma}³", tensor)):
            seconds: dict[int, float] = {}
            for threads in (1, 2):
                execution = best(device, *case, threads, options.runs)
                seconds[threads] = execution.wall_s
                rate = sum(count.thread for count in execution.counts) / execution.wall_s / 1e9
                products = sum(count.multiply_adds for count in execution.counts) / execution.wall_s / 1e9
                print(f"{name:<24}{threads:>8}{execution.wall_s:>10.3f}{rate:>19.2f}{products:>19.2f}")
            print(f"{'':<24}{'2 : 1':>8}{seconds[1] / seconds[2]:>9.2f}×")
    finally:
        device.close()


if __name__ == "__main__":
    main()
