"""Mistakes of everyday CUDA: each is named at its line as what it is, and its twin without the fault is clean."""

from __future__ import annotations

from pathlib import Path

import pytest

from ptxgym.device.protocol import Execution, RunOptions
from ptxgym.verdict import Severity
from tests.device.emulator.hazards.harness import SCHEDULES, Kernels, compile_ptx, launch, lines_of

BAD = [
    ("skipped_barrier", "barrier.divergent", Severity.ERROR),
    ("one_barrier_too_few", "barrier.divergent", Severity.ERROR),
    ("skipped_after_writing", "barrier.divergent", Severity.ERROR),
    ("overrun", "smem.out_of_array", Severity.ERROR),
    ("read_behind", "smem.out_of_array", Severity.WARNING),
    ("unset", "register.uninitialised", Severity.WARNING),
    ("lanes_disagree", "memory.lane_conflict", Severity.WARNING),
]


@pytest.fixture(scope="module")
def mistakes(tmp_path_factory: pytest.TempPathFactory) -> Kernels:
    return compile_ptx(Path(__file__).with_name("mistakes.cu"), tmp_path_factory.mktemp("mistakes"))


@pytest.mark.parametrize("options", SCHEDULES[:3], ids=lambda o: o.schedule)
@pytest.mark.parametrize(("name", "code", "severity"), BAD, ids=[name for name, _, _ in BAD])
def test_the_cause_is_named_first_and_at_its_line(
    mistakes: Kernels, name: str, code: str, severity: Severity, options: RunOptions
) -> None:
    first = launch(mistakes, mistakes.mangled(name, "b0"), inputs=name == "unset", options=options).findings[0]
    assert (first.code, first.severity) == (code, severity), first
    marked = mistakes.marked(name, code)
    assert marked and marked & lines_of(first)
    assert first.message and first.remedy and first.parties


@pytest.mark.parametrize("options", SCHEDULES, ids=lambda o: f"{o.schedule}{o.seed}")
@pytest.mark.parametrize("name", dict.fromkeys(name for name, _, _ in BAD))
def test_twin_is_clean(mistakes: Kernels, name: str, options: RunOptions) -> None:
    result = launch(mistakes, mistakes.mangled(name, "b1"), inputs=name == "unset", options=options)
    assert [(f.code, f.message) for f in result.findings] == []


def test_a_variable_that_is_set_where_it_is_used_may_hold_anything(mistakes: Kernels) -> None:
    (name,) = [kernel.name for kernel in mistakes.build.kernels if "set_where_used" in kernel.name]
    ran = launch(mistakes, name, inputs=True)
    assert isinstance(ran, Execution) and ran.findings == ()
    assert set(ran.buffers["out"].view("<i4")[4:64].tolist()) == {-1}


def test_a_skipped_barrier_names_who_met_and_who_left(mistakes: Kernels) -> None:
    first = launch(mistakes, mistakes.mangled("skipped_barrier", "b0"), block=128).findings[0]
    assert [party.who for party in first.parties] == ["warp 0", "warps 1-3"]
    assert "after warps 1-3 had exited; they race" in first.message
    mixed = launch(mistakes, mistakes.mangled("one_barrier_too_few", "b0"), block=128).findings[0]
    assert "warp 0 waited at the barrier of line" in mixed.message and "while warps 1-3 waited at" in mixed.message


def test_an_overrun_names_the_array_and_the_byte(mistakes: Kernels) -> None:
    found = launch(mistakes, mistakes.mangled("read_behind", "b0")).findings
    assert "array first (256 bytes) at byte 256" in found[0].message
