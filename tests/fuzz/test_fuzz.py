"""A short run of the fuzzer on fixed seeds; `python -m tests.fuzz` is the long one."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.fuzz.campaign import Report, run_seeds
from tests.fuzz.check import check
from tests.fuzz.forms import FORMS
from tests.fuzz.generate import program
from tests.fuzz.program import Access, Exchange, Fuzzed, If, Loop, Op, Shape
from tests.fuzz.shrink import shrink

PROGRAMS, DAMAGED = 25, 60


@pytest.fixture(scope="module")
def programs() -> Report:
    report = Report()
    run_seeds("programs", 0, PROGRAMS, (), report)
    return report


def test_the_emulator_agrees_with_the_interpreter(programs: Report) -> None:
    assert programs.faults == []
    assert programs.outcomes == {"agree": PROGRAMS}


def test_the_short_run_reaches_many_forms(programs: Report) -> None:
    assert len(FORMS) > 1900
    assert len(programs.executed) > 300


def test_damaged_modules_are_refused_or_run() -> None:
    report = Report()
    run_seeds("damage", 0, DAMAGED, (), report)
    assert report.faults == []
    assert report.outcomes.total() == DAMAGED
    assert {"PtxSyntaxError", "NotEmulated", "RUNTIME_FAULT"} <= set(report.outcomes)


def test_programs_come_from_their_seed_alone() -> None:
    assert program(5) == program(5) != program(6)


# ---- would it notice?


WRONG = Op("mul.hi.s32 s32 <- s32 s32", ("%r1",), ("%r2", "%r3"))


def test_a_wrong_meaning_is_found_and_made_small(monkeypatch: pytest.MonkeyPatch) -> None:
    """The interpreter is made to take mul.hi.s32 for mul.hi.u32, deep inside a long program."""
    form = FORMS[WRONG.form]
    monkeypatch.setitem(FORMS, WRONG.form, replace(form, meaning=lambda a, b: a * b >> 32))
    long = program(11)
    inner = If("%p0", (Loop(2, (WRONG,)),), ())
    whole = replace(long, body=(*long.body[:10], inner, *long.body[10:12], WRONG), shape=Shape(block=64))
    found, _ = check(whole)
    assert found is not None

    def shows(candidate: Fuzzed) -> bool:
        disagreement, _ = check(candidate)
        return disagreement is not None and disagreement.kind == found.kind

    small = shrink(whole, shows)
    assert small.body == (WRONG,) and small.shape == Shape()


@pytest.mark.parametrize(
    "statement",
    [
        Op("add.rn.f32 f32 <- f32 f32", ("%r0",), ("%r1", "%r2")),
        Access(True, "shared", "s8", ("%r0",), 5),
        Exchange("%r0", "%r1", "%r2", "bar", "bar"),
    ],
    ids=["arithmetic", "load", "exchange"],
)
def test_a_result_in_the_wrong_register_is_found(statement: Op | Access | Exchange) -> None:
    shape = Shape(block=64)
    right = Fuzzed((statement,), shape, 3)
    assert check(right)[0] is None
    from tests.fuzz.check import difference, emulate
    from tests.fuzz.interpreter import Machine, inputs

    memory = inputs(right)
    machine = Machine(Fuzzed((), shape, 3), memory)
    machine.run()
    found = difference(right, machine, emulate(right, memory))
    assert found is not None and found.kind == "registers" and "%r0" in found.detail
