from __future__ import annotations

from types import ModuleType

import pytest

from ptxgym.device.protocol import Execution
from ptxgym.judge import evidence as counting
from ptxgym.judge.conditions import Conditions
from ptxgym.reward import credited_coverage
from ptxgym.task import Task, load_arch
from ptxgym.verdict import Evidence

ARCH = load_arch("h100")


def gather(
    task: Task,
    drawn: Conditions,
    fakes: ModuleType,
    *,
    correct: bool = True,
    ablation: str | None = None,
    **shares: float,
) -> Evidence:
    case = drawn.cases[0]
    execution = Execution(buffers={}, counts=fakes.share(task, case, **shares), tma_bytes=99)
    return counting.gather(task, ARCH, case, execution, correct=correct, ablation=ablation, source="emulator")


@pytest.mark.parametrize(
    ("shares", "correct", "ablation", "target_ok", "why"),
    [
        ({"wgmma": 1.0}, True, None, True, None),
        ({"wgmma": 1.0}, True, "depends", True, None),
        ({"wgmma": 0.9}, True, None, True, None),
        ({"wgmma": 0.89}, True, None, False, "89.0% of the operator's multiply-adds"),
        ({"wgmma": 1.0, "fma": 0.1}, True, None, True, None),
        ({"wgmma": 1.0, "fma": 0.11}, True, None, False, "fma and other instructions did 11%"),
        ({"wgmma": 1.0, "mma_sync": 1.0}, True, None, False, "mma.sync and other instructions did 100%"),
        ({"wgmma": 1.0}, False, None, False, "the kernel is not correct"),
        ({"wgmma": 1.0}, True, "independent", False, "does not depend on what wgmma computes"),
        ({"mma_sync": 1.0}, True, None, False, "no wgmma instruction executed; mma.sync did 100%"),
        ({"fma": 1.0}, True, None, False, "no wgmma instruction executed; fma did 100%"),
        ({}, True, None, False, "no wgmma instruction executed"),
    ],
)
def test_target_ok(
    task: Task,
    drawn: Conditions,
    fakes: ModuleType,
    shares: dict[str, float],
    correct: bool,
    ablation: str | None,
    target_ok: bool,
    why: str | None,
) -> None:
    found = gather(task, drawn, fakes, correct=correct, ablation=ablation, **shares)
    assert found.target_ok is target_ok
    assert (why is None) == (found.explanation is None)
    if why is not None:
        assert why in (found.explanation or "")


def test_coverage_is_exact_and_capped(task: Task, drawn: Conditions, fakes: ModuleType) -> None:
    axes = drawn.cases[0].axes
    assert gather(task, drawn, fakes, wgmma=0.5).coverage == pytest.approx(0.5)
    over = gather(task, drawn, fakes, wgmma=1.5)
    assert over.coverage == 1.0
    assert over.target_multiply_adds == pytest.approx(1.5 * axes["M"] * axes["N"] * axes["K"], abs=1)
    assert over.required_multiply_adds == axes["M"] * axes["N"] * axes["K"]
    assert over.tma_bytes == 99 and over.workload == "emulation"


def test_families_are_summed(fakes: ModuleType) -> None:
    counts = [
        fakes.count("wgmma", 10, thread=128),
        fakes.count("wgmma", 5, thread=256),
        fakes.count("tma", 0, thread=32),
    ]
    sums = counting.family_counts(counts)
    assert list(sums) == ["tma", "wgmma"]
    assert (sums["wgmma"].multiply_adds, sums["wgmma"].thread_instructions, sums["wgmma"].warp_instructions) == (
        15,
        384,
        12,
    )


@pytest.mark.parametrize(
    ("form", "thread", "expected"),
    [("mul.f32", 64, 64), ("mul.rn.bf16x2", 64, 128), ("mul.f16x2", 32, 64), ("mul.ftz.f32", 96, 96)],
)
def test_unfused_multiplications_count(fakes: ModuleType, form: str, thread: int, expected: int) -> None:
    assert counting.multiply_adds(fakes.count("fmul", 0, form=form, thread=thread)) == expected


@pytest.mark.parametrize(
    ("form", "expected"),
    [("mul.lo.s32", 64), ("mad.wide.u16", 64), ("div.rn.f32", 64), ("add.s32", 0), ("shl.b32", 0), ("max.f32", 0)],
)
def test_integer_multiplications_and_divisions_count(fakes: ModuleType, form: str, expected: int) -> None:
    assert counting.multiply_adds(fakes.count("alu", 0, form=form, thread=64)) == expected


@pytest.mark.parametrize(
    ("ordinary", "fma", "credited", "target_ok"),
    [(0.9, 0.0, 1.0, True), (1.1, 0.0, 0.0, False), (1.1, 0.05, 1.0, True), (2.0, 0.05, 0.0, False)],
)
def test_ordinary_instructions_that_could_do_the_arithmetic(
    task: Task, drawn: Conditions, fakes: ModuleType, ordinary: float, fma: float, credited: float, target_ok: bool
) -> None:
    case = drawn.cases[0]
    thread = round(ordinary * task.required_multiply_adds(case.axes))
    counts = (*fakes.share(task, case, wgmma=1.0, fma=fma), fakes.count("alu", 0, form="shl.b32", thread=thread))
    execution = Execution(buffers={}, counts=counts)
    found = counting.gather(task, ARCH, case, execution, correct=True, ablation="depends", source="emulator")
    assert (credited_coverage(found), found.target_ok) == (credited, target_ok)
    assert target_ok or "ordinary instructions" in str(found.explanation)


def test_the_weakest_shape_decides(task: Task, drawn: Conditions, fakes: ModuleType) -> None:
    strong, weak = gather(task, drawn, fakes, wgmma=1.0), gather(task, drawn, fakes, fma=1.0)
    assert counting.weakest([strong, weak, strong]) is weak
    redundant = gather(task, drawn, fakes, wgmma=1.0, fma=1.0)
    half = gather(task, drawn, fakes, wgmma=0.5, fma=0.5)
    assert counting.weakest([half, redundant]) is redundant
