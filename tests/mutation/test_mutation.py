"""A part of the campaign on every run: some mutants of the wgmma solutions, and the solutions unchanged."""

from __future__ import annotations

import dataclasses
from functools import cache
from pathlib import Path

import pytest

from ptxgym.device.protocol import RunOptions
from tests.mutation.campaign import DEVICE, Result, Target, campaign, operators, seeds
from tests.mutation.equivalent import EQUIVALENCES
from tests.mutation.plans import plan_mutants
from tests.mutation.sites import KernelText
from tests.mutation.targets import BLACKWELL, HOPPER, SOLUTIONS, STAGE_BYTES, load

TESTED = (*(name for name in HOPPER if name != "attn_bwd"), "gemm_b200")
"""The causal kernels hold all that `attn_bwd` does, in the same words; attention on Blackwell would take minutes."""
STEPS = {"attn_bwd_causal": 6}
"""Every how many mutants: its three kernels have most."""
STEP = 3


@cache
def target(name: str) -> Target:
    return load(name)


@cache
def results(name: str) -> tuple[Result, ...]:
    step = STEPS.get(name, STEP)
    return tuple(campaign(target(name), lambda number: number % step == SOLUTIONS.index(name) % step))


@pytest.mark.parametrize(
    ("name", "count"),
    [*((name, 4) for name in HOPPER), *((name, 1) for name in BLACKWELL), ("mma_sync", 1), ("naive", 0)],
)
def test_the_solution_is_clean(name: str, count: int) -> None:
    """No finding of any severity, and right numbers, under fair, lazy and random schedules."""
    assert list(seeds(target(name), count)) == []


@pytest.mark.parametrize("name", TESTED)
def test_survivors_are_justified(name: str) -> None:
    survivors = [result for result in results(name) if result.outcome == "survived"]
    assert [r for r in survivors if r.reason is None] == []
    assert len(survivors) <= len(results(name)) / 6


@pytest.mark.parametrize("name", TESTED)
def test_ordering_faults_are_named_at_their_line(name: str) -> None:
    """What only the numbers can tell (sizes, signs, the grid) aside, every mutant is named, and at the right line.

    So it is with a descriptor that leads to other data which is there: the next row or tile of the same stage.
    """
    data = ("map.", "launch.", "bounds.", "idesc.")
    noticed = [r for r in results(name) if r.outcome != "survived"]
    ordering = [r for r in noticed if not r.operator.startswith(data)]
    ordering = [r for r in ordering if "descriptor." not in r.operator or r.outcome != "wrong"]
    assert [r for r in ordering if r.outcome != "named"] == []
    assert sum(r.outcome == "named" for r in noticed) >= 0.9 * len(noticed)


def test_every_operator_has_a_site() -> None:
    kernels = [KernelText(target(name).build.ptx.read_text()) for name in SOLUTIONS]
    absent = {o.name for o in operators(STAGE_BYTES) if not any(next(o.mutants(kernel), None) for kernel in kernels)}
    assert absent == set()
    assert {m.operator for m in plan_mutants(target("wgmma").plan)} == {
        "map.swizzle", "map.box", "map.bounds", "map.stride", "launch.smem", "launch.grid", "launch.block",
    }  # fmt: skip


def test_mutants_differ_from_the_kernel() -> None:
    kernel = KernelText(target("wgmma").build.ptx.read_text())
    original = "\n".join(kernel.lines)
    mutants = [m for operator in operators(STAGE_BYTES) for m in operator.mutants(kernel)]
    assert len(mutants) > 50
    assert all(m.text != original for m in mutants)
    assert all(m.line for m in mutants)


def test_equivalences_are_about_known_operators() -> None:
    names = {operator.name for operator in operators(STAGE_BYTES)} | {"launch.smem"}
    assert {known.operator for known in EQUIVALENCES} <= names


@pytest.mark.parametrize("options", [RunOptions(), RunOptions(schedule="random", seed=2)], ids=lambda o: o.schedule)
def test_findings_do_not_depend_on_host_threads(tmp_path: Path, options: RunOptions) -> None:
    subject = target("wgmma")
    kernel = KernelText(subject.build.ptx.read_text())
    wanted = ("drop.wgmma_wait", "bytes.less", "stage.arrive", "descriptor.start.B", "count.init_more")
    for operator in operators(STAGE_BYTES):
        mutant = next(operator.mutants(kernel), None)
        if operator.name not in wanted or mutant is None:
            continue
        ptx = tmp_path / f"{operator.name}.ptx"
        ptx.write_text(mutant.text)
        build = dataclasses.replace(subject.build, ptx=ptx, key=operator.name)
        one, two = (
            DEVICE.run(build, subject.plan, subject.buffers, dataclasses.replace(options, threads=threads))
            for threads in (1, 2)
        )
        assert one.findings
        assert one.findings == two.findings
