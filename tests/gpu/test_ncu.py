"""Nsight Compute around the executor on a Hopper GPU: `pytest -m gpu tests/gpu/test_ncu.py -s`."""
# ruff: noqa: T201

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ptxgym.build import Build, build
from ptxgym.device.cuda.gpu import Gpu, profile_of
from ptxgym.device.cuda.ncu import (
    MOST_OBSERVED_LAUNCHES,
    Profiled,
    ProfiledExecutor,
    Unavailable,
    find_ncu,
    ncu_permission,
    profile,
    start,
)
from ptxgym.device.cuda.observe import profile_lines
from ptxgym.device.emulator.device import EmulatorDevice
from ptxgym.device.protocol import Execution, InstructionCount
from ptxgym.judge.evidence import family_counts
from ptxgym.judge.numbers import bf16_bits, bf16_values
from ptxgym.plan import Argument, LaunchPlan, record
from ptxgym.task import load_task
from ptxgym.verdict import FamilyCount

pytestmark = [pytest.mark.gpu, pytest.mark.filterwarnings("default")]

SMALL, BIG = (256, 512, 576), (8192, 7168, 5120)
CONFLICTS = """#include <cuda_runtime.h>
__global__ void columns(float* c, int stride) {
  __shared__ float tile[32 * 33];
  for (int i = threadIdx.x; i < 32 * 33; i += 32) tile[i] = i;
  __syncthreads();
  float sum = 0;
  for (int i = 0; i < 1000; ++i) sum += reinterpret_cast<volatile float*>(tile)[(threadIdx.x * stride + i) % 1056];
  c[threadIdx.x] = sum;
}
extern "C" void run(const float* A, float* C, int stride, int launches, cudaStream_t stream) {
  for (int i = 0; i < launches; ++i) columns<<<132, 32, 0, stream>>>(C, stride);
}
"""
CONFLICTS_DECLARATION = 'extern "C" void run(const float* A, float* C, int stride, int launches, cudaStream_t stream)'


@pytest.fixture(scope="module", autouse=True)
def tool() -> None:
    """Skip where NVIDIA's profiler, which pip cannot install, is missing; recorded reports stand in elsewhere."""
    if find_ncu() is None:
        pytest.skip("no Nsight Compute")


def solution(name: str) -> Build:
    task = load_task("gemm")
    (found,) = (one for one in task.solutions["h100"] if Path(one.file).stem == name)
    made = build(task.source(found), declaration=task.signature.declaration(), arch="sm_90a")
    assert isinstance(made, Build), made
    return made


def planned(gpu: Gpu, built: Build, shape: tuple[int, int, int]) -> LaunchPlan:
    m, n, k = shape
    sizes = {"A": 2 * m * k, "B": 2 * n * k, "C": 2 * m * n}
    arguments = [Argument(name, "output" if name == "C" else "input", size) for name, size in sizes.items()]
    plan = record(built, arguments, {"M": m, "N": n, "K": k}, profile_of(gpu), confined=False)
    assert isinstance(plan, LaunchPlan), plan
    return plan


def drawn(shape: tuple[int, int, int]) -> dict[str, np.ndarray]:
    """Inputs; the large ones repeat a part, as only counts and times matter there."""
    m, n, k = shape
    part = bf16_bits(np.random.default_rng(5).standard_normal((256, k), np.float32))
    return {name: np.resize(part, (rows, k)) for name, rows in (("A", m), ("B", n))}


def profiled(*arguments: Any, **more: Any) -> Profiled:
    started = time.monotonic()
    found = profile(*arguments, **more)
    print(f"\nprofiled in {time.monotonic() - started:.2f} s")
    assert isinstance(found, Profiled), found
    return found


def waiting(gpu: Gpu) -> ProfiledExecutor:
    found = start(gpu)
    assert not isinstance(found, Unavailable), found
    started = time.monotonic()
    found._executor.ready()
    print(f"\nready after {time.monotonic() - started:.2f} s")
    return found


def multiply_adds(counts: tuple[InstructionCount, ...]) -> dict[str, int]:
    return {name: row.multiply_adds for name, row in family_counts(counts).items() if row.multiply_adds}


def emulated(built: Build, plan: LaunchPlan, inputs: Mapping[str, Any]) -> dict[str, FamilyCount]:
    device = EmulatorDevice()
    try:
        buffers = {name: array.reshape(-1).view(np.uint8) for name, array in inputs.items()}
        done = device.run(built, plan, {**buffers, "C": np.full(plan.axes["M"] * plan.axes["N"] * 2, 0xFF, np.uint8)})
        assert isinstance(done, Execution), done
        return family_counts(done.counts)
    finally:
        device.close()


def test_permission(gpu: Gpu) -> None:
    assert ncu_permission(gpu) is None


@pytest.mark.parametrize(
    ("name", "main", "equal"),
    [("naive", "fma", ("fma",)), ("mma_sync", "mma.sync", ("mma.sync", "ldmatrix")), ("wgmma", "wgmma", ("tma",)),
     ("oracle", "wgmma", ("tma+cp.async", "stmatrix"))],
)  # fmt: skip
def test_counts_of_the_solutions_are_the_emulators(gpu: Gpu, name: str, main: str, equal: tuple[str, ...]) -> None:
    built, inputs = solution(name), drawn(SMALL)
    plan = planned(gpu, built, SMALL)
    out = np.zeros(SMALL[:2], np.uint16)
    found = profiled(gpu, built, plan, inputs, {"C": out})
    exact = bf16_values(inputs["A"]).astype(np.float64) @ bf16_values(inputs["B"]).astype(np.float64).T
    assert np.linalg.norm(bf16_values(out) - exact) < 3e-3 * np.linalg.norm(exact)
    assert found.launches == tuple(launch.kernel for launch in plan.launches)
    hardware, software = family_counts(found.counts), emulated(built, plan, inputs)
    for family in sorted({*hardware, *software}):
        print(f"  {family:10} ncu {hardware.get(family)} emulator {software.get(family)}")
    assert hardware[main].multiply_adds == software[main].multiply_adds == SMALL[0] * SMALL[1] * SMALL[2]
    for families in equal:  # SASS waits for bulk groups and for those of cp.async by the same DEPBAR.LE
        of_hardware, of_software = (
            sum(counts[one].thread_instructions for one in families.split("+") if one in counts)
            for counts in (hardware, software)
        )
        assert of_hardware == of_software > 0, families
    for line in profile_lines(found.kernels[0]):
        print(f"  {line}")


def test_the_oracle_at_the_size_that_is_timed(gpu: Gpu) -> None:
    built = solution("oracle")
    plan, inputs, out = planned(gpu, built, BIG), drawn(BIG), np.zeros(BIG[:2], np.uint16)
    found = profiled(gpu, built, plan, inputs, {"C": out}, prewarmed=waiting(gpu))
    work = multiply_adds(found.counts)
    required = BIG[0] * BIG[1] * BIG[2]
    assert work["wgmma"] == required
    assert sum(work.values()) - work["wgmma"] < 1e-4 * required
    (kernel,) = found.kernels
    print("\n".join(profile_lines(kernel)))
    assert found.durations_us == (kernel.duration_us,) and 400 < kernel.duration_us < 1500
    assert kernel.tensor_pipe_percent is not None and kernel.tensor_pipe_percent > 60
    assert kernel.theoretical_occupancy_percent == 18.75 and kernel.occupancy_limiter is not None
    assert kernel.registers_per_thread == 168 and kernel.bank_conflicts == 0
    lines = built.source.read_text().split("\n")
    assert kernel.stalls and kernel.hot_lines
    assert all(lines[hot.line - 1].strip()[:120] == hot.source_line for hot in kernel.hot_lines)
    assert any("wgmma" in (hot.source_line or "") for hot in kernel.hot_lines)


def test_two_that_wait_on_one_gpu_do_not_disturb_each_other(gpu: Gpu) -> None:
    built, inputs = solution("oracle"), drawn(SMALL)
    plan = planned(gpu, built, SMALL)
    both = [waiting(gpu) for _ in range(2)]
    for one in both:
        found = profiled(gpu, built, plan, inputs, {}, prewarmed=one)
        assert multiply_adds(found.counts)["wgmma"] == SMALL[0] * SMALL[1] * SMALL[2]


def test_bank_conflicts_and_many_launches(gpu: Gpu) -> None:
    built = build(CONFLICTS, declaration=CONFLICTS_DECLARATION, arch="sm_90a")
    assert isinstance(built, Build), built

    def run(stride: int, launches: int) -> Profiled:
        arguments = [Argument("A", "input", 128), Argument("C", "output", 128)]
        plan = record(built, arguments, {"stride": stride, "launches": launches}, profile_of(gpu), confined=False)
        assert isinstance(plan, LaunchPlan), plan
        return profiled(gpu, built, plan, {"A": np.zeros(32, np.float32)}, {})

    assert (run(1, 1).kernels[0].bank_conflicts or 0) < 2000
    conflicts = run(32, 1).kernels[0]
    print("\n".join(profile_lines(conflicts)))
    assert conflicts.bank_conflicts == pytest.approx(132 * 1000 * 31, rel=0.05)
    assert any("volatile float" in (hot.source_line or "") for hot in conflicts.hot_lines)
    many = run(1, MOST_OBSERVED_LAUNCHES + 8)
    assert many.kernels[0].tensor_pipe_percent is not None and many.kernels[0].stalls == ()
    assert len(many.durations_us) == MOST_OBSERVED_LAUNCHES + 8
    assert len({count.warp for count in many.counts if count.form.startswith("STG")}) == 1
