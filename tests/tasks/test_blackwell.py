"""Solutions for sm_100a on the emulator: right at every shape, clean under every schedule, and what a few edits do."""

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
from ptxgym.task import Axes, Solution, Task, expected, load_arch, load_task, oracle
from ptxgym.verdict import Failure, Finding, Severity

TASK = load_task("gemm")
SMALL: Axes = {"M": 128, "N": 256, "K": 320}
PROFILE = device_profile("b200")


@pytest.fixture(scope="module")
def device() -> Iterator[EmulatorDevice]:
    emulator = EmulatorDevice()
    yield emulator
    emulator.close()


def planned(text: str, axes: Axes, profile: DeviceProfile = PROFILE) -> tuple[Build, LaunchPlan]:
    kernel = build(text, declaration=TASK.signature.declaration(), arch=load_arch("b200").code, cache=Cache())
    assert isinstance(kernel, Build), kernel
    sizes = TASK.sizes_bytes(axes)
    arguments = [Argument(tensor.name, "input", sizes[tensor.name]) for tensor in TASK.inputs]
    arguments += [Argument(tensor.name, "output", sizes[tensor.name]) for tensor in TASK.outputs]
    plan = record(kernel, arguments, axes, profile)
    assert isinstance(plan, LaunchPlan), plan
    return kernel, plan


def faults(findings: tuple[Finding, ...]) -> set[str]:
    return {finding.code for finding in findings if finding.severity is not Severity.NOTE}


def run(
    device: EmulatorDevice, text: str, axes: Axes, options: RunOptions, profile: DeviceProfile = PROFILE
) -> tuple[Execution | Failure, bool]:
    """Return what came of it, and whether C is right."""
    kernel, plan = planned(text, axes, profile)
    case = Case("test/integers", axes, "integers", 12345 + sum(axes.values()), False)
    execution = device.run(kernel, plan, buffers(TASK, case), options)
    if not isinstance(execution, Execution):
        return execution, False
    return execution, bool(compare(expect(TASK, case).outputs["C"], execution.buffers["C"], case).ok)


def shapes(task: Task) -> list[Axes]:
    small = task.workload("emulation")
    return [small.axes, *small.hidden, SMALL, {"M": 128, "N": 256, "K": 64}]


@pytest.mark.parametrize("solution", expected(TASK, "b200"), ids=lambda s: s.file.split("/")[-1])
@pytest.mark.parametrize("axes", shapes(TASK), ids=lambda a: "x".join(map(str, a.values())))
def test_right_at_every_shape(device: EmulatorDevice, solution: Solution, axes: Axes) -> None:
    execution, right = run(device, TASK.source(solution), axes, RunOptions())
    assert isinstance(execution, Execution), execution
    assert right
    assert not faults(execution.findings)
    on_target = sum(count.multiply_adds for count in execution.counts if count.family == "tcgen05")
    assert on_target == (TASK.required_multiply_adds(axes) if solution.coverage else 0)


def test_oracle_is_clean_under_many_schedules(device: EmulatorDevice) -> None:
    """Two CTAs for eight tiles: both rings and both accumulators come round."""
    profile = replace(PROFILE, sm_count=2)
    axes: Axes = {"M": 512, "N": 512, "K": 192}
    schedules = [RunOptions(schedule="lazy"), *(RunOptions(schedule="random", seed=seed) for seed in range(20))]
    for options in schedules:
        execution, right = run(device, TASK.source(oracle(TASK, "b200")), axes, options, profile)
        assert isinstance(execution, Execution), execution
        assert right
        assert not faults(execution.findings)


MISTAKES = {
    "no wait for the tile": (
        "    barrier_wait(&shared.done[accumulator.slot], accumulator.parity);\n",
        "",
        "tmem.read_early",
    ),
    "slot released at once": (
        "tensor_commit(&shared.empty[stage.slot]);",
        "barrier_arrive(&shared.empty[stage.slot]);",
        "async.overwrite",
    ),
    "first product accumulates": ("slice > 0 || k > 0);", "true);", "tmem.uninitialised"),
    "never freed": ('asm volatile("tcgen05.dealloc', 'if (N < 0) asm volatile("tcgen05.dealloc', "tmem.leak"),
    "sums not waited for": (
        "    barrier_wait(&shared.drained[accumulator.slot], accumulator.parity ^ 1);\n",
        "",
        "tmem.overwrite",
    ),
    "lanes of warp 0 for all": ("(quarter * 32 << 16)", "0", "tmem.lanes"),
    "half the columns": (
        '"r"(kTensorColumns)\n                 : "memory");',
        '"r"(128)\n : "memory");',
        "tmem.not_allocated",
    ),
    "descriptor of Hopper": ("kVersion << 46", "0ull << 46", "descriptor.version"),
    "no proxy fence": (
        'asm volatile("fence.proxy.async.shared::cta;" ::: "memory");  // TMA reads',
        "// TMA reads",
        "proxy.missing_fence",
    ),
}  # fmt: skip


@pytest.mark.parametrize(("old", "new", "code"), MISTAKES.values(), ids=MISTAKES)
def test_mistakes_in_the_oracle_are_named(device: EmulatorDevice, old: str, new: str, code: str) -> None:
    text = TASK.source(oracle(TASK, "b200"))
    assert text.count(old) == 1
    profile = replace(PROFILE, sm_count=1)
    axes: Axes = {"M": 384, "N": 256, "K": 320}
    execution, _ = run(device, text.replace(old, new), axes, RunOptions(schedule="random", seed=1), profile)
    assert code in faults(execution.findings)


def test_commit_to_the_wrong_barrier_is_a_hang_that_names_it(device: EmulatorDevice) -> None:
    text = TASK.source(oracle(TASK, "b200"))
    old = "    tensor_commit(&shared.done[accumulator.slot]);"
    assert text.count(old) == 1
    execution, _ = run(device, text.replace(old, old.replace(".slot", ".slot ^ 1")), SMALL, RunOptions())
    assert isinstance(execution, Failure)
    assert execution.code == "emulator.deadlock"
    assert "tcgen05.commit_unseen" in faults(execution.findings)
