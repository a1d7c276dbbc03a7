"""Oracles of attention forward for sm_100a: right at every shape, one result under every schedule, mistakes named.

Inputs are `sharp`, so that maxima grow and O is corrected in tensor memory.
"""

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
from ptxgym.task import Axes, Task, load_arch, load_task, oracle
from ptxgym.verdict import Failure, Finding, Severity

TASKS = ("attn_fwd", "attn_fwd_causal")
PROFILE = device_profile("b200")
TILE = 128


def sizes(batches: int, heads: int, length: int) -> Axes:
    return {"B": batches, "H": heads, "S": length, "D": 128}


WALKS = {"attn_fwd": sizes(1, 3, 384), "attn_fwd_causal": sizes(1, 2, 640)}
"""An odd number of query tiles: items with two sides and with one. Causal ones have two, four and five steps."""


@pytest.fixture(scope="module")
def device() -> Iterator[EmulatorDevice]:
    emulator = EmulatorDevice()
    yield emulator
    emulator.close()


def planned(task: Task, text: str, axes: Axes, profile: DeviceProfile) -> tuple[Build, LaunchPlan]:
    kernel = build(text, declaration=task.signature.declaration(), arch=load_arch("b200").code, cache=Cache())
    assert isinstance(kernel, Build), kernel
    size = task.sizes_bytes(axes)
    arguments = [Argument(tensor.name, "input", size[tensor.name]) for tensor in task.inputs]
    arguments += [Argument(tensor.name, "output", size[tensor.name]) for tensor in task.outputs]
    plan = record(kernel, arguments, axes, profile)
    assert isinstance(plan, LaunchPlan), plan
    return kernel, plan


def faults(findings: tuple[Finding, ...]) -> set[str]:
    return {finding.code for finding in findings if finding.severity is not Severity.NOTE}


def case_at(axes: Axes) -> Case:
    return Case("test/sharp", axes, "sharp", 12345 + sum(axes.values()), False)


def right(task: Task, execution: Execution, axes: Axes) -> bool:
    case = case_at(axes)
    wanted = expect(task, case).outputs
    return all(compare(wanted[output.name], execution.buffers[output.name], case).ok for output in task.outputs)


def run(
    task: Task, device: EmulatorDevice, text: str, axes: Axes, profile: DeviceProfile, *schedules: RunOptions
) -> list[Execution | Failure]:
    kernel, plan = planned(task, text, axes, profile)
    given = buffers(task, case_at(axes))
    return [device.run(kernel, plan, given, options) for options in schedules]


def shapes() -> Iterator[tuple[str, Axes]]:
    """Yield both tasks with every shape of their workloads, and the smallest."""
    for name in TASKS:
        task = load_task(name)
        small = task.workload("emulation")
        for axes in (small.axes, *small.hidden, task.workload("schedules").axes, sizes(1, 1, TILE)):
            yield name, axes


@pytest.mark.parametrize(("name", "axes"), list(shapes()), ids=lambda v: v if isinstance(v, str) else str(v["S"]))
def test_right_at_every_shape(device: EmulatorDevice, name: str, axes: Axes) -> None:
    task = load_task(name)
    (execution,) = run(task, device, task.source(oracle(task, "b200")), axes, PROFILE, RunOptions())
    assert isinstance(execution, Execution), execution
    assert right(task, execution, axes)
    assert not execution.findings
    tiles = axes["S"] // TILE
    pairs = tiles * (tiles + 1) // 2 if name == "attn_fwd_causal" else tiles * tiles  # of queries and keys
    on_target = sum(count.multiply_adds for count in execution.counts if count.family == "tcgen05")
    assert on_target == axes["B"] * axes["H"] * pairs * 2 * TILE**3
    others = sum(count.multiply_adds for count in execution.counts if count.family != "tcgen05")
    assert others <= 0.01 * on_target


@pytest.mark.parametrize("name", TASKS)
def test_same_bits_under_every_schedule(device: EmulatorDevice, name: str) -> None:
    """Two CTAs walk all items: the ring and every barrier come round several times, and each sum has one order."""
    task, axes = load_task(name), WALKS[name]
    schedules = [RunOptions(), RunOptions(schedule="lazy")]
    schedules += [RunOptions(schedule="random", seed=seed) for seed in range(20)]
    profile = replace(PROFILE, sm_count=2)
    found = set()
    for execution in run(task, device, task.source(oracle(task, "b200")), axes, profile, *schedules):
        assert isinstance(execution, Execution), execution
        assert not execution.findings
        assert right(task, execution, axes)
        found.add(tuple(execution.buffers[tensor.name].tobytes() for tensor in task.outputs))
    assert len(found) == 1


# What is changed, into what, the finding, and what stands in a line that it names.
HAZARDS = {
    "scores not waited for": (
        "    s_full.wait(shared.s_full, side);\n",
        "",
        "tmem.read_early",
        "load_columns(scores + column, s + column)",
    ),
    "P not waited for": ("    p_full.wait(shared.p_full, side);\n", "", "tmem.read_early", "multiply_values("),
    "correction not waited for": (
        "p_full[side], 2 * kWarpgroup);",
        "p_full[side], kWarpgroup);",
        "tmem.read_early",
        "multiply_values(",
    ),
    "product not waited for": (
        "    o_full.wait(shared.o_full, side);\n",
        "",
        "tmem.read_early",
        "load_columns(output + side * kRows + half",
    ),
    "product committed too early": (
        "    if (last) tensor_commit(&shared.o_full[side]);",
        "    if (first) tensor_commit(&shared.o_full[side]);",
        "tmem.read_early",
        "load_columns(output + side * kRows + half",
    ),
    "queries not waited for": (
        "      q_full.wait(shared.q_full, side);\n",
        "",
        "async.read_early",
        "multiply(tensor_memory + kScores",
    ),
    "queries overwritten": (
        "        q_empty.wait(shared.q_empty, side);\n",
        "",
        "async.read_early",
        "multiply(tensor_memory + kScores",
    ),
    "stage refilled at once": (
        "int row) {\n    barrier_wait(&shared.empty[cursor.slot], cursor.parity ^ 1);\n",
        "int row) {\n",
        "async.overwrite",
        "next(map_v",
    ),
    "commits that come after the end": (
        "      producer.finish();\n",
        "",
        "cluster.exited_cta",
        "tensor_commit(&shared.empty[values])",
    ),
    "factor not waited for": ("    f_full.wait(shared.f_full, side);\n", "", "smem.race", "shared.factor[side][row]"),
    "factor overwritten": ("    f_empty.wait(shared.f_empty, side);\n", "", "smem.race", "shared.factor[side][row] = "),
    "scores not in registers yet": ("    wait_loads(s);\n", "", "tmem.overwrite", "store_columns(scores + part, p)"),
    "P on its way": ("    wait_stores();\n    fence_before", "    fence_before", "tmem.read_early", "multiply_values("),
    "O on its way": ("    wait_stores();\n  }\n", "  }\n", "tmem.overwrite", "multiply_values("),
    "no fence after the wait for P": (
        "    p_full.wait(shared.p_full, side);\n    fence_after_sync();\n",
        "    p_full.wait(shared.p_full, side);\n",
        "tcgen05.missing_fence",
        "multiply_values(",
    ),
    "first product accumulates": ("!first || key > 0", "true", "tmem.uninitialised", "multiply_values("),
}


@pytest.mark.parametrize(("old", "new", "code", "place"), HAZARDS.values(), ids=HAZARDS)
def test_hazards_in_the_oracle_are_named(device: EmulatorDevice, old: str, new: str, code: str, place: str) -> None:
    task = load_task("attn_fwd")
    text = task.source(oracle(task, "b200"))
    assert text.count(old) == 1
    schedules = RunOptions(), RunOptions(schedule="lazy"), RunOptions(schedule="random", seed=1)
    found = run(task, device, text.replace(old, new), WALKS[task.name], replace(PROFILE, sm_count=2), *schedules)
    named = [finding for execution in found for finding in execution.findings if finding.code == code]
    lines = [finding.source_line or "" for finding in named]
    lines += [party.source_line or "" for finding in named for party in finding.parties]
    assert any(place in line for line in lines), lines


WRONG = {
    "O is never corrected": ("attn_fwd", "rescale(side, factor);  // before", ";  // before"),
    "the sum keeps its old maximum": ("attn_fwd", "    sum *= factor;\n", ""),
    "V taken as K-major": ("attn_fwd", "kProduct | 1u << 16", "kProduct"),
    "diagonal hidden": ("attn_fwd_causal", "if (column > row)", "if (column >= row)"),
    "tile on the diagonal seen whole": ("attn_fwd_causal", "step(index == count - 1)", "step(false)"),
}


@pytest.mark.parametrize(("name", "old", "new"), WRONG.values(), ids=WRONG)
def test_mistakes_in_the_numbers_are_wrong(device: EmulatorDevice, name: str, old: str, new: str) -> None:
    task = load_task(name)
    text = task.source(oracle(task, "b200"))
    assert text.count(old) == 1
    axes = sizes(1, 1, 384)
    (execution,) = run(task, device, text.replace(old, new), axes, PROFILE, RunOptions())
    assert isinstance(execution, Execution), execution
    assert not right(task, execution, axes)
    assert not faults(execution.findings)
