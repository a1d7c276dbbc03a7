"""Which way into the vendor's libraries is fastest for a GEMM, and whether timing a kernel against itself says 1.

`python benchmarks/vendor_routes.py [M N K]` on a machine with torch and a Hopper GPU. Uses the product's own baselines
and race, in one process: routes beside those of `tasks/gemm/baselines.py` are added here, and everything races against
cuBLAS through torch.
"""

from __future__ import annotations

import random
import sys
import time
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch

from ptxgym.device.cuda import roofline
from ptxgym.device.cuda.baselines import Baselines
from ptxgym.device.cuda.timing import PROTOCOLS, Race, race
from ptxgym.task import load_task


def linear(tensors: Mapping[str, Any], axes: Mapping[str, int]) -> Any:
    def call() -> None:
        tensors["C"].copy_(torch.nn.functional.linear(tensors["A"], tensors["B"]))

    return call


def addmm(tensors: Mapping[str, Any], axes: Mapping[str, int]) -> Any:
    a, b, c = (tensors[name] for name in "ABC")

    def call() -> None:
        torch.addmm(c, a, b.T, beta=0, out=c)

    return call


def preferring(library: str) -> Any:
    def prepare(tensors: Mapping[str, Any], axes: Mapping[str, int]) -> Any:
        a, b, c = (tensors[name] for name in "ABC")

        def call() -> None:
            before = torch.backends.cuda.preferred_blas_library()
            torch.backends.cuda.preferred_blas_library(library)
            torch.matmul(a, b.T, out=c)
            torch.backends.cuda.preferred_blas_library(before)

        return call

    return prepare


class Study:
    """A task with more baselines than it declares."""

    def __init__(self, task: Any, extra: Mapping[str, Any]) -> None:
        self._task, self._extra = task, dict(extra)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._task, name)

    def baselines(self) -> Any:
        return SimpleNamespace(BASELINES={**self._task.baselines().BASELINES, **self._extra})


def draw(axes: Mapping[str, int]) -> dict[str, Any]:
    sizes = {"A": axes["M"] * axes["K"], "B": axes["N"] * axes["K"]}
    made = {name: torch.randn(size, device="cuda", dtype=torch.bfloat16) for name, size in sizes.items()}
    return {name: data.view(torch.uint8) for name, data in made.items()}


def main() -> None:
    task = load_task("gemm")
    sizes = [int(text) for text in sys.argv[1:4]]
    axes = dict(zip("MNK", sizes, strict=True)) if sizes else dict(task.workload("hardware").axes)
    draws = [draw(axes) for _ in range(2)]

    def reference(index: int) -> torch.Tensor:
        a = draws[index]["A"].view(torch.bfloat16).view(axes["M"], axes["K"])
        b = draws[index]["B"].view(torch.bfloat16).view(axes["N"], axes["K"])
        return a.float() @ b.float().T

    expected = [reference(index) for index in range(len(draws))]

    def check(index: int, outputs: Mapping[str, Any]) -> bool:
        found = outputs["C"].view(torch.bfloat16).view(axes["M"], axes["N"]).float()
        return bool((found - expected[index]).norm() < 5e-3 * expected[index].norm())

    extra = {
        "F.linear and copy": linear,
        "torch.addmm": addmm,
        "torch.matmul, cuBLASLt preferred": preferring("cublaslt"),
        "cuBLAS again": task.baselines().cublas,
    }
    began = time.perf_counter()
    lines = Baselines(Study(task, extra), axes, draws, check)  # type: ignore[arg-type]
    print(f"{torch.cuda.get_device_name()}, {axes}; prepared in {time.perf_counter() - began:.2f} s")
    for name, why in lines.skipped.items():
        print(f"  without {name}: {why}")
    print("cuBLASLt's choice:", getattr(task.baselines(), "_FASTEST", None), lines.versions)
    peak = roofline.peak_of(torch.cuda.get_device_name())
    if peak:
        print(f"roofline {roofline.roofline_us(task, axes, peak):.1f} µs")
    others = {name: call for name, call in lines.calls.items() if name != "cuBLAS"}
    for tier in ("standard", "publish"):
        began = time.perf_counter()
        results = race({"cuBLAS": lines.calls["cuBLAS"]}, others, PROTOCOLS[tier], draws=len(draws))
        print(f"{tier}: {time.perf_counter() - began:.2f} s")
        for name, result in results.items():
            if isinstance(result, Race):
                ends = f"{result.speedup.low:.4f} … {result.speedup.high:.4f}"
                print(
                    f"  {name:34} {result.candidate_us:8.1f} µs  {result.speedup.median:.4f} ({ends}) "
                    f"{len(result.ratios)} pairs, {result.stopped}"
                )
            else:
                print(f"  {name:34} {result}")
    inside = within = 0
    began = time.perf_counter()
    widths = []
    for _ in range(20):
        result = race(
            {"cuBLAS": lines.calls["cuBLAS"]},
            {"cuBLAS again": lines.calls["cuBLAS again"]},
            PROTOCOLS["standard"],
            draws=len(draws),
            rng=random.Random(),
        )["cuBLAS again"]
        assert isinstance(result, Race), result
        inside += result.speedup.low <= 1 <= result.speedup.high
        within += abs(result.speedup.median - 1) <= 0.005
        widths.append(result.speedup.width)
    took = (time.perf_counter() - began) / 20
    print(f"A/A, 20 races of {took:.2f} s: within 0.5 % {within}, 1 inside {inside}, width {np.median(widths):.4f}")


if __name__ == "__main__":
    main()
