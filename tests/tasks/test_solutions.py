"""The proven kernels at every shape of the emulation workload, beyond the one hidden shape of a verdict."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest

from ptxgym.build import build
from ptxgym.build.model import Build
from ptxgym.cache import Cache
from ptxgym.device.emulator.device import EmulatorDevice
from ptxgym.device.protocol import Execution, RunOptions
from ptxgym.judge.conditions import Case, buffers
from ptxgym.judge.correctness import compare, expect
from ptxgym.plan import Argument, DeviceProfile, LaunchPlan, device_profile, record
from ptxgym.task import Axes, Solution, Task, expected, load_arch, load_task
from ptxgym.verdict import Severity

GEMM = load_task("gemm")
EMULATION = GEMM.workload("emulation")
SHAPES = [EMULATION.axes, *EMULATION.hidden, GEMM.workload("schedules").axes, {"M": 128, "N": 256, "K": 64}]


@pytest.fixture(scope="module")
def device() -> Iterator[EmulatorDevice]:
    emulator = EmulatorDevice()
    yield emulator
    emulator.close()


def built(task: Task, solution: Solution) -> Build:
    found = build(
        task.source(solution), declaration=task.signature.declaration(), arch=load_arch("h100").code, cache=Cache()
    )
    assert isinstance(found, Build), found
    return found


def planned(task: Task, kernel: Build, axes: Axes, profile: DeviceProfile) -> LaunchPlan:
    sizes = task.sizes_bytes(axes)
    arguments = [Argument(tensor.name, "input", sizes[tensor.name]) for tensor in task.inputs]
    arguments += [Argument(tensor.name, "output", sizes[tensor.name]) for tensor in task.outputs]
    plan = record(kernel, arguments, axes, profile)
    assert isinstance(plan, LaunchPlan), plan
    return plan


def check(
    task: Task, device: EmulatorDevice, solution: Solution, axes: Axes, profile: DeviceProfile, options: RunOptions
) -> LaunchPlan:
    """Run `solution` at `axes` and assert that it is right, clean and does the stated share on target."""
    kernel = built(task, solution)
    plan = planned(task, kernel, axes, profile)
    case = Case("test/integers", axes, "integers", 12345 + axes["K"], False)
    execution = device.run(kernel, plan, buffers(task, case), options)
    assert isinstance(execution, Execution), execution
    assert not [finding for finding in execution.findings if finding.severity is Severity.ERROR]
    comparison = compare(expect(task, case).outputs["C"], execution.buffers["C"], case)
    assert comparison.ok, comparison.excess
    on_target = sum(count.multiply_adds for count in execution.counts if count.family == "wgmma")
    assert on_target == (solution.coverage or 0.0) * task.required_multiply_adds(axes)
    return plan


@pytest.mark.parametrize("axes", SHAPES, ids=lambda axes: "x".join(map(str, axes.values())))
@pytest.mark.parametrize("solution", expected(GEMM, "h100"), ids=lambda solution: solution.file.split("/")[-1])
def test_right_at_every_shape(device: EmulatorDevice, solution: Solution, axes: Axes) -> None:
    check(GEMM, device, solution, axes, device_profile("h100"), RunOptions())


@pytest.mark.parametrize("schedule", ["fair", "lazy", "random"])
def test_oracle_walks_many_tiles_with_few_ctas(device: EmulatorDevice, schedule: str) -> None:
    """On 132 SMs every tile of a small shape has its own CTA; on three the ring and the store buffers run on."""
    profile = replace(device_profile("h100"), sm_count=3)
    (oracle,) = [solution for solution in expected(GEMM, "h100") if solution.oracle]
    options = RunOptions(schedule=schedule, seed=7)  # type: ignore[arg-type]
    plan = check(GEMM, device, oracle, {"M": 2176, "N": 512, "K": 192}, profile, options)
    assert plan.launches[0].grid == (3, 1, 1)
