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
from ptxgym.judge.correctness import compare
from ptxgym.judge.references import expect
from ptxgym.plan import Argument, DeviceProfile, LaunchPlan, device_profile, record
from ptxgym.task import Axes, Solution, Task, expected, load_arch, load_task, oracle
from ptxgym.verdict import Failure, Finding, Severity

TASK = load_task("gemm")
SMALL: Axes = {"M": 128, "N": 256, "K": 320}
PROFILE = device_profile("b200")
PAIR = next(solution for solution in expected(TASK, "b200") if solution.file.endswith("pair.cu"))


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


def executed(solution: Solution, axes: Axes) -> int:
    """Multiply-adds on target: pairs multiply whole tiles of 256 rows."""
    rows = -(-axes["M"] // 256) * 256 if solution == PAIR else axes["M"]
    return TASK.required_multiply_adds(axes | {"M": rows}) if solution.coverage else 0


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
    assert on_target == executed(solution, axes)


@pytest.mark.parametrize("solution", [oracle(TASK, "b200"), PAIR], ids=lambda s: s.file.split("/")[-1])
def test_clean_under_many_schedules(device: EmulatorDevice, solution: Solution) -> None:
    """Two CTAs for eight tiles, or four of a pair: both rings and both accumulators come round."""
    profile = replace(PROFILE, sm_count=2)
    axes: Axes = {"M": 512, "N": 512, "K": 192}
    schedules = [RunOptions(schedule="lazy"), *(RunOptions(schedule="random", seed=seed) for seed in range(20))]
    for options in schedules:
        execution, right = run(device, TASK.source(solution), axes, options, profile)
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


PAIR_MISTAKES = {
    "bytes of one CTA": ("kPair * kStageBytes", "kStageBytes", "mbarrier.tx_overflow"),
    "epilogue of one CTA": ("kPair * kEpilogueWarps);", "kEpilogueWarps);", "tmem.overwrite"),
    "sums of the odd CTA not waited for": (
        "    barrier_wait(&shared.done[accumulator.slot], accumulator.parity);\n",
        "    if (first_row == 0) barrier_wait(&shared.done[accumulator.slot], accumulator.parity);\n",
        "tmem.read_early",
    ),
    "slot of the odd CTA not waited for": (
        "      barrier_wait(&shared.empty[stage.slot], stage.parity ^ 1);\n",
        "      if (rank == 0) barrier_wait(&shared.empty[stage.slot], stage.parity ^ 1);\n",
        "async.overwrite",
    ),
    "commit to the even CTA only": ("kBoth = 0b11;", "kBoth = 0b01;", "tcgen05.commit_unseen"),
    "freed by one CTA": (
        'if (warp == kMultiplier) {\n    asm volatile("tcgen05.dealloc',
        'if (warp == kMultiplier && cluster_rank() == 0) {\n    asm volatile("tcgen05.dealloc',
        "emulator.deadlock",
    ),
    "no barrier before the other's are signalled": (
        "  cluster_sync();  // the barriers of both CTAs exist",
        "  __syncthreads();  // the barriers of both CTAs exist",
        "mbarrier.init_not_visible",
    ),
    "freed while the other loads": (
        "  cluster_sync();  // neither CTA leaves",
        "  __syncthreads();  // neither CTA leaves",
        "tmem.dealloc_in_use",
    ),
}  # fmt: skip


@pytest.mark.parametrize(("old", "new", "code"), PAIR_MISTAKES.values(), ids=PAIR_MISTAKES)
def test_mistakes_of_a_pair_are_named(device: EmulatorDevice, old: str, new: str, code: str) -> None:
    text = TASK.source(PAIR)
    assert text.count(old) == 1
    profile = replace(PROFILE, sm_count=2)
    axes: Axes = {"M": 768, "N": 256, "K": 320}
    execution, _ = run(device, text.replace(old, new), axes, RunOptions(schedule="random", seed=1), profile)
    assert code in faults(execution.findings), faults(execution.findings)
