"""Oracles of attention backward for sm_100a: right at every shape, one result under every schedule, mistakes named."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import pytest

from ptxgym.build import build
from ptxgym.build.model import Build
from ptxgym.cache import Cache
from ptxgym.device.emulator.device import EmulatorDevice
from ptxgym.device.protocol import Execution, RunOptions
from ptxgym.judge.conditions import Case, buffers
from ptxgym.judge.correctness import compare
from ptxgym.judge.references import expect
from ptxgym.plan import Argument, LaunchPlan, device_profile, record
from ptxgym.task import Axes, Draw, Task, load_arch, load_task, oracle
from ptxgym.verdict import Failure, Finding, Severity

TASKS = ("attn_bwd", "attn_bwd_causal")
TILE = 128
WRAPS: Axes = {"B": 1, "H": 1, "S": 512, "D": 128}
"""Four blocks of 128 tokens: every slot of the ring of two is filled twice, every barrier sees four phases."""


@pytest.fixture(scope="module")
def device() -> Iterator[EmulatorDevice]:
    emulator = EmulatorDevice()
    yield emulator
    emulator.close()


def planned(task: Task, text: str, axes: Axes) -> tuple[Build, LaunchPlan]:
    kernel = build(text, declaration=task.signature.declaration(), arch=load_arch("b200").code, cache=Cache())
    assert isinstance(kernel, Build), kernel
    sizes = task.sizes_bytes(axes)
    arguments = [Argument(tensor.name, "input", sizes[tensor.name]) for tensor in task.inputs]
    arguments += [Argument(tensor.name, "output", sizes[tensor.name]) for tensor in task.outputs]
    plan = record(kernel, arguments, axes, device_profile("b200"))
    assert isinstance(plan, LaunchPlan), plan
    return kernel, plan


def drawn(axes: Axes, draw: Draw = "normal") -> Case:
    return Case(f"test/{draw}", axes, draw, 12345 + sum(axes.values()), False)


def wrong_outputs(task: Task, case: Case, execution: Execution) -> list[str]:
    wanted = expect(task, case).outputs
    return [t.name for t in task.outputs if not compare(wanted[t.name], execution.buffers[t.name], case).ok]


def multiply_adds(task: Task, axes: Axes) -> int:
    """Of seven products, on every block of 128 queries and keys of which any pair counts."""
    tiles = axes["S"] // TILE
    blocks = tiles * (tiles + 1) // 2 if task.name.endswith("causal") else tiles * tiles
    return 7 * axes["B"] * axes["H"] * blocks * TILE**3


def everything() -> Iterator[tuple[str, Axes, Draw]]:
    """Yield each shape of the workload with one draw: `verify` takes all draws at one shape."""
    draws: tuple[Draw, ...] = ("normal", "shifted", "cancelling", "sharp")
    for name in TASKS:
        small = load_task(name).workload("emulation")
        for axes, draw in zip((WRAPS, *small.hidden, small.axes), itertools.cycle(draws), strict=False):
            yield name, axes, draw


@pytest.mark.parametrize(
    ("name", "axes", "draw"),
    list(everything()),
    ids=lambda value: "x".join(map(str, value.values())) if isinstance(value, dict) else value,
)
def test_right_at_every_shape(device: EmulatorDevice, name: str, axes: Axes, draw: Draw) -> None:
    task = load_task(name)
    kernel, plan = planned(task, task.source(oracle(task, "b200")), axes)
    case = drawn(axes, draw)
    execution = device.run(kernel, plan, buffers(task, case), RunOptions())
    assert isinstance(execution, Execution), execution
    assert not execution.findings
    assert not wrong_outputs(task, case, execution)
    on_target = sum(count.multiply_adds for count in execution.counts if count.family == "tcgen05")
    others = sum(count.multiply_adds for count in execution.counts if count.family != "tcgen05")
    required = task.required_multiply_adds(axes)
    assert on_target == multiply_adds(task, axes) >= required
    assert others <= 0.03 * required


@pytest.mark.parametrize("name", TASKS)
def test_one_result_under_every_schedule(device: EmulatorDevice, name: str) -> None:
    """No atomics: each sum has one order."""
    task = load_task(name)
    kernel, plan = planned(task, task.source(oracle(task, "b200")), WRAPS)
    given = buffers(task, drawn(WRAPS))
    schedules = [RunOptions(), RunOptions(schedule="lazy")]
    schedules += [RunOptions(schedule="random", seed=seed) for seed in range(20)]
    found = set()
    for options in schedules:
        execution = device.run(kernel, plan, given, options)
        assert isinstance(execution, Execution), execution
        assert not execution.findings
        found.add(tuple(execution.buffers[tensor.name].tobytes() for tensor in task.outputs))
    assert len(found) == 1


# What is changed, into what, the finding, and what stands in the line that it names first.
MISTAKES = {
    "P taken before S is complete": (
        "    barrier_wait(&shared.scores, block % 2);\n",
        "",
        "tmem.read_early",
        "load_columns(p, cells + kScores)",
    ),
    "arrival before dS is stored": (
        "    store_operand(cells + kDerivatives, ds);\n    warp_arrive(&shared.derivatives_used);\n",
        "    warp_arrive(&shared.derivatives_used);\n    store_operand(cells + kDerivatives, ds);\n",
        "tmem.read_early",
        "multiply_tokens(tensor_memory + kFirstSums, derivatives",
    ),
    "next dP before dS is used": (
        "    barrier_wait(&shared.derivatives_used, block % 2);\n",
        "",
        "tmem.overwrite",
        "multiply_dimensions(derivatives, shared.kept[1]",
    ),
    "stored columns not waited for": (
        '"tcgen05.wait::st.sync.aligned;"',
        '""',
        "tmem.read_early",
        "multiply_tokens(tensor_memory + kSecondSums, scores",
    ),
    "loaded columns not waited for": (
        '"tcgen05.wait::ld.sync.aligned;"',
        '""',
        "tmem.overwrite",  # a warning: all values have been used; the store that takes them is only noted
        "multiply_dimensions(scores, shared.kept[0]",
    ),
    "commit before the product": (
        "      multiply_dimensions(derivatives, shared.kept[1], shared.ring[next.slot][1]);\n"
        "      tensor_commit(&shared.derivatives);\n",
        "      tensor_commit(&shared.derivatives);\n"
        "      multiply_dimensions(derivatives, shared.kept[1], shared.ring[next.slot][1]);\n",
        "tmem.read_early",
        "load_columns(ds, cells + kDerivatives)",
    ),
    "stage released at once": (
        "tensor_commit(&shared.empty[stage.slot]);",
        "barrier_arrive(&shared.empty[stage.slot]);",
        "async.overwrite",
        "load_tile(shared.ring[stage.slot][i]",
    ),
    "memory freed before it is read": (
        "  fence_before_sync();\n  __syncthreads();\n  fence_after_sync();\n  if (warp == kMultiplier) {\n    asm",
        "  if (warp == kMultiplier) {\n    asm",
        "tmem.dealloc_in_use",
        "tcgen05.dealloc",
    ),
}  # fmt: skip


def mutated(task: Task, old: str, new: str) -> str:
    text = task.source(oracle(task, "b200"))
    assert text.count(old) == 1
    return text.replace(old, new)


def named(findings: tuple[Finding, ...], code: str) -> set[str]:
    """Return the source lines that findings with `code` name first."""
    return {(f.source_line or "") for f in findings if f.code == code and f.severity is not Severity.NOTE}


@pytest.mark.parametrize(("old", "new", "code", "line"), MISTAKES.values(), ids=MISTAKES)
def test_mistakes_are_named_at_their_line(device: EmulatorDevice, old: str, new: str, code: str, line: str) -> None:
    task = load_task("attn_bwd_causal")
    kernel, plan = planned(task, mutated(task, old, new), WRAPS)
    execution = device.run(kernel, plan, buffers(task, drawn(WRAPS)), RunOptions(schedule="random", seed=1))
    assert any(line in source for source in named(execution.findings, code)), execution.findings


def test_an_arrival_that_never_comes_is_a_hang(device: EmulatorDevice) -> None:
    task = load_task("attn_bwd_causal")
    text = mutated(task, "(&shared.derivatives_used, kRowWarps)", "(&shared.derivatives_used, kRowWarps + 1)")
    kernel, plan = planned(task, text, WRAPS)
    failure = device.run(kernel, plan, buffers(task, drawn(WRAPS)), RunOptions())
    assert isinstance(failure, Failure) and failure.code == "emulator.deadlock"
    cause = failure.findings[0]
    assert (
        cause.source_line == "barrier_init(&shared.derivatives_used, kRowWarps + 1);"
        and cause.message in failure.message
    )
    assert cause.parties[1].source_line == "barrier_wait(&shared.derivatives_used, block % 2);"


WRONG = {
    "operand without the gap": (
        "return token / kSpan * kSpan + token % kSpan / 2;",
        "return token / 2;",
        {"dQ", "dK", "dV"},
    ),
    "diagonal hidden from queries": ("first + i < row : row < first + i", "first + i < row : row <= first + i", {"dQ"}),
}


@pytest.mark.parametrize(("old", "new", "outputs"), WRONG.values(), ids=WRONG)
def test_wrong_data_is_seen_in_the_outputs(device: EmulatorDevice, old: str, new: str, outputs: set[str]) -> None:
    task = load_task("attn_bwd_causal")
    case = drawn(WRAPS)
    kernel, plan = planned(task, mutated(task, old, new), WRAPS)
    execution = device.run(kernel, plan, buffers(task, case), RunOptions())
    assert isinstance(execution, Execution), execution
    assert set(wrong_outputs(task, case, execution)) == outputs
