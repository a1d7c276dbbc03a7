"""Verdicts as numbers, by verdicts made by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest

from ptxgym.knobs import Knob, KnobTemplate
from ptxgym.knobs.features import KINDS, MEASURES, STAGES, STATUSES, features, ladder, names
from ptxgym.verdict import (
    Evidence,
    Finding,
    Measured,
    OutputError,
    Provenance,
    Severity,
    Stage,
    Status,
    Timing,
    Verdict,
)

TEMPLATE = KnobTemplate(
    name="t",
    summary="",
    env="PTX-Gemm-H100",
    knobs=(Knob(name="kA", choices=(1, 2, 3)), Knob(name="kB", choices=(False, True))),
    text="// ptxgym: knobs\nkA kB",
)
PROVENANCE = Provenance(ptxgym="0", task="gemm", task_revision=1, arch="h100", source_sha256="0")


def verdict(stage: Stage = Stage.JUDGE, status: Status = Status.OK, score: float = 0.5, **more: object) -> Verdict:
    return Verdict.model_validate(
        {
            "stage": stage, "status": status, "code": "c", "message": "", "score": score, "provenance": PROVENANCE,
            **more,
        }
    )  # fmt: skip


def output(name: str, error: float, budget: float = 0.001, tile: float = 0.0, **more: object) -> OutputError:
    return OutputError.model_validate(
        {
            "name": name, "ok": error <= budget, "relative_error": error, "relative_budget": budget,
            "worst_tile_error": tile, "tile_budget": budget, **more,
        }
    )  # fmt: skip


def seen(
    verdict_: Verdict | None,
    action: tuple[int, ...] | None = (2, 0),
    best_score: float = 0.0,
    turns_left: float = 0.0,
) -> dict[str, float]:
    numbers = features(TEMPLATE, action, verdict_, best_score, turns_left)
    assert numbers.dtype == np.float32
    assert np.all(np.abs(numbers) <= 1)
    return dict(zip(names(TEMPLATE), map(float, numbers), strict=True))


def test_each_number_has_a_name_of_its_own() -> None:
    found = names(TEMPLATE)
    assert len(set(found)) == len(found) == 5 + len(STAGES) + len(STATUSES) + len(KINDS) + len(MEASURES)
    assert found[:5] == ("kA=1", "kA=2", "kA=3", "kB=False", "kB=True")
    assert "status=infra" not in found


def test_before_the_first_turn_nothing_is_seen_but_turns() -> None:
    numbers = seen(None, None, turns_left=1.0)
    assert numbers.pop("turns_left") == 1.0
    assert set(numbers.values()) == {0.0}


def test_what_was_chosen_and_what_became_of_it() -> None:
    numbers = seen(verdict(Stage.EXECUTE, Status.HANG, 0.0), (2, 0), best_score=0.25, turns_left=0.75)
    ones = {name for name, value in numbers.items() if value == 1.0}
    assert ones == {"kA=3", "kB=False", "stage=execute", "status=hang", "judged"}
    assert (numbers["ladder"], numbers["best_score"], numbers["turns_left"]) == (0.75, 0.25, 0.75)


def test_the_ladder_has_the_stages_for_rungs() -> None:
    assert [ladder(verdict(stage)) for stage in STAGES] == [0.0, 0.25, 0.5, 0.75, 1.0]


def test_a_verdict_that_is_missing_keeps_the_choice() -> None:
    numbers = seen(None, (0, 1))
    assert {name for name, value in numbers.items() if value} == {"kA=1", "kB=True"}


@pytest.mark.parametrize(
    ("error", "expected"),
    [(0.0005, 0.0), (0.001, 0.0), (0.01, 1 / 6), (1.0, 0.5), (1e9, 1.0), (math.inf, 1.0), (math.nan, 1.0)],
)
def test_errors_are_decades_above_the_budget(error: float, expected: float) -> None:
    numbers = seen(verdict(status=Status.WRONG_OUTPUT, outputs=(output("C", error),)))
    assert numbers["relative_error"] == pytest.approx(expected, abs=1e-6)


def test_the_worst_output_counts() -> None:
    better = output("O", 0.01, closeness=0.75)
    worse = output("LSE", 0.1, tile=10.0, closeness=0.25, written=False)
    right = output("M", 0.0)
    numbers = seen(verdict(status=Status.WRONG_OUTPUT, outputs=(right, better, worse)))
    assert numbers["relative_error"] == pytest.approx(2 / 6, abs=1e-6)
    assert numbers["worst_tile_error"] == pytest.approx(4 / 6, abs=1e-6)
    assert (numbers["closeness"], numbers["unwritten"]) == (0.25, 1.0)
    assert seen(verdict(outputs=(right,)))["unwritten"] == 0.0


def test_findings_count_by_kind_and_notes_do_not() -> None:
    def finding(code: str, severity: Severity, count: int) -> Finding:
        return Finding(code=code, severity=severity, message="", count=count)

    found = (
        finding("async.overwrite", Severity.ERROR, 600),
        finding("async.read_early", Severity.WARNING, 399),
        finding("descriptor.unread", Severity.NOTE, 190),
        finding("racecheck.hazard", Severity.ERROR, 9),
        finding("tma.box_outside", Severity.ERROR, 10**9),
    )
    numbers = seen(verdict(status=Status.HAZARD, score=0.0, findings=found))
    counts = {name: value for name, value in numbers.items() if name.startswith("findings=") and value}
    assert counts == {
        "findings=async": pytest.approx(0.5),
        "findings=other": pytest.approx(1 / 6),
        "findings=tma": 1.0,
    }


@pytest.mark.parametrize(("speedup", "expected"), [(1.0, 0.0), (0.5, -0.2), (2.0, 0.2), (1 / 64, -1.0), (64.0, 1.0)])
def test_speed_is_in_powers_of_two(speedup: float, expected: float) -> None:
    timing = Timing(
        speedup=speedup, speedup_low=speedup, speedup_high=speedup, candidate_us=1.0, baseline_us=1.0, baseline="b"
    )
    evidence = Evidence(
        source="ncu", workload="w", required_multiply_adds=2, target_multiply_adds=1, other_multiply_adds=1,
        coverage=0.5, target_ok=True, families={},
    )  # fmt: skip
    numbers = seen(verdict(evidence=evidence, measured=Measured(timing=timing)))
    assert numbers["speedup"] == pytest.approx(expected, abs=1e-6)
    assert (numbers["coverage"], numbers["target_ok"]) == (0.5, 1.0)
