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
from ptxgym.judge.correctness import compare
from ptxgym.judge.references import expect
from ptxgym.plan import Argument, DeviceProfile, LaunchPlan, device_profile, record
from ptxgym.task import Axes, Draw, Solution, Task, expected, load_arch, load_task, oracle
from ptxgym.verdict import Severity

TASKS = ("gemm", "attn_fwd", "attn_fwd_causal", "attn_bwd", "attn_bwd_causal")
SMALLEST = {
    "gemm": {"M": 128, "N": 256, "K": 64},
    "attn_fwd": {"B": 1, "H": 1, "S": 128, "D": 128},
    "attn_fwd_causal": {"B": 1, "H": 1, "S": 128, "D": 128},
    "attn_bwd": {"B": 1, "H": 1, "S": 128, "D": 128},
    "attn_bwd_causal": {"B": 1, "H": 1, "S": 128, "D": 128},
}
WALKS = {
    "gemm": {"M": 2176, "N": 512, "K": 192},
    "attn_fwd": {"B": 1, "H": 3, "S": 384, "D": 128},
    "attn_fwd_causal": {"B": 1, "H": 3, "S": 640, "D": 128},
}
"""More tiles than a GPU with three SMs takes at once; an odd number of query tiles leaves one without its pair."""


def everything() -> Iterator[tuple[str, Solution, Axes]]:
    """Yield every task and solution with every shape of its workloads, and the smallest."""
    for name in TASKS:
        task = load_task(name)
        small = task.workload("emulation")
        for axes in (small.axes, *small.hidden, task.workload("schedules").axes, SMALLEST[name]):
            yield from ((name, solution, axes) for solution in expected(task, "h100"))


def label(value: object) -> str | None:
    """Name a task by its name, a solution by its file and a shape by its sizes."""
    if isinstance(value, Solution):
        return value.file.split("/")[-1]
    return "x".join(map(str, value.values())) if isinstance(value, dict) else None


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
    draw: Draw = "integers" if task.name == "gemm" else "normal"
    case = Case(f"test/{draw}", axes, draw, 12345 + sum(axes.values()), False)
    execution = device.run(kernel, plan, buffers(task, case), options)
    assert isinstance(execution, Execution), execution
    assert not [finding for finding in execution.findings if finding.severity is not Severity.NOTE]
    wanted = expect(task, case).outputs
    for output in task.outputs:
        comparison = compare(wanted[output.name], execution.buffers[output.name], case)
        assert comparison.ok, (output.name, comparison.excess)
    required = task.required_multiply_adds(axes)
    on_target = sum(count.multiply_adds for count in execution.counts if count.family == "wgmma")
    others = sum(count.multiply_adds for count in execution.counts if count.family != "wgmma")
    assert min(1.0, on_target / required) == (solution.coverage or 0.0)
    if solution.coverage:
        # Most: causal backward at S = 128, seven products for five, on three of four blocks for half of the scores.
        assert on_target <= 2.1 * required and others <= 0.03 * required
    return plan


@pytest.mark.parametrize(("name", "solution", "axes"), list(everything()), ids=label)
def test_right_at_every_shape(device: EmulatorDevice, name: str, solution: Solution, axes: Axes) -> None:
    check(load_task(name), device, solution, axes, device_profile("h100"), RunOptions())


@pytest.mark.parametrize("schedule", ["fair", "lazy", "random"])
@pytest.mark.parametrize("name", WALKS)
def test_oracle_walks_many_tiles_with_few_ctas(device: EmulatorDevice, name: str, schedule: str) -> None:
    """On 132 SMs every tile of a small shape has its own CTA; on three the ring and the store buffers run on."""
    profile = replace(device_profile("h100"), sm_count=3)
    task = load_task(name)
    options = RunOptions(schedule=schedule, seed=7)  # type: ignore[arg-type]
    plan = check(task, device, oracle(task, "h100"), WALKS[name], profile, options)
    assert plan.launches[0].grid == (3, 1, 1)


@pytest.mark.parametrize("name", ["attn_bwd", "attn_bwd_causal"])
def test_backward_gives_the_same_bits_under_every_schedule(device: EmulatorDevice, name: str) -> None:
    """No atomics: each sum has one order. Six blocks of 64 wrap the ring of three stages."""
    task = load_task(name)
    axes: Axes = {"B": 1, "H": 1, "S": 384, "D": 128}
    kernel = built(task, oracle(task, "h100"))
    plan = planned(task, kernel, axes, device_profile("h100"))
    given = buffers(task, Case("test/normal", axes, "normal", 11, False))
    schedules = [RunOptions(), RunOptions(schedule="lazy")]
    schedules += [RunOptions(schedule="random", seed=seed) for seed in range(20)]
    found = set()
    for options in schedules:
        execution = device.run(kernel, plan, given, options)
        assert isinstance(execution, Execution), execution
        assert not execution.findings
        found.add(tuple(execution.buffers[tensor.name].tobytes() for tensor in task.outputs))
    assert len(found) == 1
