"""The campaigns of this folder without a GPU: what they plan, how they go on, what they make of answers."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from threading import Event

import pytest

from ptxgym.device.protocol import Execution, InstructionCount
from ptxgym.evaluator import Evaluator
from ptxgym.task import Task, load_task
from ptxgym.verdict import Status
from tests.gpu.agreement import compared
from tests.gpu.exploits import EMULATION, exploit_task
from tests.gpu.mixed import HARDWARE, judged, order, speeds
from tests.gpu.mutation import summary, without_false_alarms
from tests.gpu.oracles import judged as oracle_row
from tests.gpu.report import Report, table
from tests.gpu.small import new_text, shrunk
from tests.gpu.submissions import templates


def test_a_mixed_load_is_random_but_fixed_and_a_third_of_it_goes_wrong() -> None:
    first, again, other = order(200, 1), order(200, 1), order(200, 2)
    assert first == again and [t for _, t in first] != [t for _, t in other]
    kinds = Counter(template.kind for _, template in first)
    assert {template.name for _, template in first} == {template.name for template in templates()}
    assert kinds["wrong"] + kinds["fault"] + kinds["hang"] >= 0.25 * 200
    assert kinds["hang"] == 3, "each costs seconds"
    assert len({key for key, _ in first}) == 200


@pytest.mark.parametrize("name", ["side_stream", "last_slice_missing", "write_past_the_end"])
def test_templates_get_their_verdict(evaluator: Evaluator, name: str) -> None:
    template = next(template for template in templates() if template.name == name)
    task = shrunk(load_task("gemm"), HARDWARE, {"M": 64, "N": 64, "K": 64})
    row = judged(evaluator, task, "emulator", template, "of these tests")
    assert row["good"], row
    assert row["status"] == template.expected[0]


def test_no_two_texts_are_the_same() -> None:
    assert len({new_text("x", "same") for _ in range(3)}) == 3


def test_sizes_of_a_campaign_are_those_of_its_workloads(gemm: Task) -> None:
    task = exploit_task()
    assert task.workload("emulation").axes == EMULATION
    assert task.workload("hardware").hidden and gemm.workload("emulation").axes != EMULATION
    assert set(task.workload("hardware").draws) == {"normal", "shifted"}


def test_a_campaign_goes_on_where_it_stopped(tmp_path: Path) -> None:
    file, made = tmp_path / "rows.json", []

    def make(item: int) -> dict[str, object]:
        made.append(item)
        if item == 2:
            raise RuntimeError("broken")
        return {"good": True}

    Report("numbers", file, limit_s=100).each([(str(i), i) for i in range(2)], make)
    report = Report("numbers", file, limit_s=100)
    report.each([(str(i), i) for i in range(4)], make, workers=2)
    assert sorted(made) == [0, 1, 2, 3]
    assert report.rows["2"] == {**report.rows["2"], "good": False, "problem": "RuntimeError: broken"}
    assert [row["key"] for row in json.loads(file.read_text())["rows"]] == list(report.rows)
    with pytest.raises(SystemExit, match="of the campaign 'numbers'"):
        Report("letters", file, limit_s=100)


def test_nothing_is_begun_when_the_time_is_up(tmp_path: Path) -> None:
    report = Report("late", tmp_path / "rows.json", limit_s=0)
    report.each([("one", 1)], lambda item: {"good": True})
    assert report.rows == {} and report.facts["not_begun"] == 1


def test_speeds_are_held_against_their_median() -> None:
    rows = [
        {"template": "oracle", "kind": "good", "speedup": s, "low": s - 0.01, "high": s + 0.01}
        for s in (0.90, 0.905, 0.91, 0.98)
    ]
    ((name, timed, middle, farthest, held, near),) = speeds(rows)
    assert (name, timed, held, near) == ("oracle", 4, 3, False)
    assert middle == pytest.approx(0.9075) and farthest == pytest.approx(100 * (0.98 / 0.9075 - 1))


def test_counts_agree_or_are_named() -> None:
    def counted(form: str, family: str, warp: int) -> InstructionCount:
        return InstructionCount("k", form, family, None, warp, 32 * warp, multiply_adds=warp * 1024)

    emulated = Execution({}, (counted("wgmma.mma_async.sync.aligned.m64n256k16", "wgmma", 8), counted("add", "alu", 5)))
    same = Execution({}, (counted("HGMMA.64x256x16.F32.BF16", "wgmma", 8), counted("IADD3", "alu", 9)))
    less = Execution({}, (counted("HGMMA.64x256x16.F32.BF16", "wgmma", 7),))
    rows = {row["name"]: row for row in compared(emulated, same, 8192)}
    assert rows["wgmma"]["agrees"] and rows["coverage"]["ncu"] == 1.0
    assert rows["family alu"] == {**rows["family alu"], "exact": False, "agrees": False, "ratio": 9 / 5}
    assert [row["name"] for row in compared(emulated, less, 8192) if row["exact"] and not row["agrees"]] == [
        "wgmma",
        "coverage",
    ]


def test_mutants_are_summed_by_operator_without_false_alarms() -> None:
    def row(operator: str, numbers: str, race: list[str] | None, emulated: str = "") -> dict[str, object]:
        return {
            "operator": operator,
            "numbers": numbers,
            "memcheck": [],
            "racecheck": race,
            "emulated": emulated,
            "line": 1,
        }

    rows = {
        "oracle/original": row("(unchanged)", "right", ["sanitizer.racecheck.false"]),
        "oracle/000": row("drop.wait", "right", ["sanitizer.racecheck.false"], "named"),
        "oracle/001": row("drop.wait", "wrong", ["sanitizer.racecheck.false", "sanitizer.racecheck.hazard"], "named"),
        "oracle/002": row("drop.wait", "cuda.hang", None, "survived"),
        "oracle/003": {"problem": "ptxas: no"},
    }
    expected = ["drop.wait", 3, 2, 0, 1, 1, 0, 1, 1, 1]
    assert summary(without_false_alarms(rows).values()) == [expected, ["all", *expected[1:]]]


def test_tables_align_numbers_to_the_right() -> None:
    assert table(["name", "n"], [["a", 1], ["bb", 20.5], ["c", None]]).splitlines() == [
        "name     n", "----  ----", "a        1", "bb    20.5", "c        -",
    ]  # fmt: skip


def test_status_of_every_template_is_one_of_the_closed_list() -> None:
    assert all(isinstance(status, Status) for t in templates() for status in (*t.expected, *t.emulated))


def test_an_item_that_never_ends_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tests.gpu.report.GRACE_S", 0.1)
    never = Event()
    report = Report("stuck", None, limit_s=0.2)
    report.each([("quick", 0), ("stuck", 1)], lambda item: {"good": not item or never.wait()}, workers=2)
    assert report.rows["quick"]["good"] and "did not end" in report.rows["stuck"]["problem"]
    assert report.stuck
    never.set()


def test_an_oracle_that_is_right_meets_the_aims_and_another_kernel_does_not(evaluator: Evaluator, gemm: Task) -> None:
    naive = next(one for one in gemm.solutions["h100"] if one.family == "fma")
    row = oracle_row(evaluator, gemm, "emulator")
    assert row["good"] and row["coverage"] == 1.0 and row["counted_by"] == "emulator", row
    slow = gemm.model_copy(update={"solutions": {"h100": (naive.model_copy(update={"oracle": True}),)}})
    row = oracle_row(evaluator, slow, "emulator")
    assert row["code"] == "judge.ok" and row["coverage"] == 0.0 and not row["good"]
