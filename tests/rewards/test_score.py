from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ptxgym.reward import COVERAGE_SCORES, credited_coverage, score, speed_share
from ptxgym.verdict import Evidence, Finding, OutputError, Severity, Status, Timing

REQUIRED = 1000
FAULTS = [s for s in Status if s not in (Status.OK, Status.WRONG_OUTPUT, Status.INFRA)]


def evidence(coverage: float, other: float = 0.0, target_ok: bool = False, ablation: str | None = None) -> Evidence:
    return Evidence(
        source="emulator",
        workload="emulation",
        required_multiply_adds=REQUIRED,
        target_multiply_adds=int(coverage * REQUIRED),
        other_multiply_adds=int(other * REQUIRED),
        coverage=coverage,
        target_ok=target_ok,
        families={},
        ablation=ablation,
    )


def output(closeness: float, ok: bool = False) -> OutputError:
    return OutputError(
        name="C",
        ok=ok,
        relative_error=0.1,
        relative_budget=0.01,
        worst_tile_error=0.1,
        tile_budget=0.01,
        closeness=closeness,
    )


def unwritten() -> OutputError:
    return output(0.0).model_copy(update={"written": False})


def timing(low: float, high: float | None = None) -> Timing:
    return Timing(
        speedup=low, speedup_low=low, speedup_high=high or low, candidate_us=1, baseline_us=1, baseline="cuBLAS"
    )


def finding(severity: Severity) -> Finding:
    return Finding(code="x", severity=severity, message="x")


shares = st.floats(0, 1)
evidences = st.builds(
    evidence,
    coverage=shares,
    other=st.floats(0, 3),
    target_ok=st.just(False),
    ablation=st.sampled_from([None, "depends", "independent"]),
)
timings = st.builds(lambda low, width: timing(low, low * 2**width), st.floats(2**-9, 2.0**3), st.floats(0, 2))
closenesses = st.sampled_from([0.0, 0.25, 0.5, 0.75, 1.0])


@pytest.mark.parametrize(
    ("status", "parts", "expected"),
    [
        (Status.COMPILE_ERROR, {}, 0.0),
        (Status.HAZARD, {"outputs": [output(1.0, ok=True)], "findings": [finding(Severity.ERROR)]}, 0.0),
        (Status.WRONG_OUTPUT, {"outputs": [output(0.0)]}, 0.05),
        (Status.WRONG_OUTPUT, {"outputs": [output(0.5)]}, 0.10),
        (Status.WRONG_OUTPUT, {"outputs": [output(1.0)]}, 0.15),
        (Status.WRONG_OUTPUT, {"outputs": [output(1.0), output(0.25)]}, 0.075),
        (Status.WRONG_OUTPUT, {"outputs": [output(1.0)], "findings": [finding(Severity.ERROR)]}, 0.0),
        (Status.WRONG_OUTPUT, {"outputs": [output(1.0)], "findings": [finding(Severity.WARNING)]}, 0.15),
        (Status.WRONG_OUTPUT, {"outputs": [unwritten()]}, 0.0),
        (Status.WRONG_OUTPUT, {"outputs": [unwritten(), output(0.0)]}, 0.05),
        (Status.OK, {}, 0.20),
        (Status.OK, {"evidence": evidence(0.0, 1.0)}, 0.20),
        (Status.OK, {"evidence": evidence(0.09, 0.9)}, 0.20),
        (Status.OK, {"evidence": evidence(0.1, 0.9)}, 0.30),
        (Status.OK, {"evidence": evidence(0.5, 0.5)}, 0.40),
        (Status.OK, {"evidence": evidence(0.89, 0.11)}, 0.40),
        (Status.OK, {"evidence": evidence(1.0, 0.15)}, 0.45),
        (Status.OK, {"evidence": evidence(1.0, 1.0)}, 0.20),
        (Status.OK, {"evidence": evidence(1.0, 0.0, ablation="independent")}, 0.20),
        (Status.OK, {"evidence": evidence(1.0, target_ok=True)}, 0.50),
        (Status.OK, {"evidence": evidence(1.0, target_ok=True), "timing": timing(1.0)}, 1.0),
        (Status.OK, {"evidence": evidence(1.0, target_ok=True), "timing": timing(0.5)}, 0.9),
        (Status.OK, {"evidence": evidence(1.0, target_ok=True), "timing": timing(2.0)}, 1.0),
        (Status.OK, {"evidence": evidence(1.0, target_ok=True), "timing": timing(2.0**-5)}, 0.5),
        (Status.OK, {"evidence": evidence(1.0, target_ok=True), "timing": timing(2.0**-7)}, 0.5),
        (Status.OK, {"evidence": evidence(0.5, 0.5), "timing": timing(4.0)}, 0.40),
    ],
)
def test_ladder(status: Status, parts: dict[str, object], expected: float) -> None:
    assert score(status, **parts) == expected  # type: ignore[arg-type]


@given(st.one_of(closenesses, shares), timings)
def test_scores_have_few_decimals(closeness: float, time: Timing) -> None:
    wrong = score(Status.WRONG_OUTPUT, [output(closeness)])
    fast = score(Status.OK, (), evidence(1.0, target_ok=True), (), time)
    assert all(len(f"{value!r}".partition(".")[2]) <= 6 or "e" in f"{value!r}" for value in (wrong, fast))


@pytest.mark.parametrize("status", FAULTS)
def test_faults_score_nothing(status: Status) -> None:
    assert score(status, [output(1.0, ok=True)], evidence(1.0, target_ok=True), (), timing(1.0)) == 0.0


def test_infra_is_never_a_number() -> None:
    with pytest.raises(ValueError, match="infrastructure failure has no score"):
        score(Status.INFRA)


@given(closenesses, st.one_of(st.none(), evidences), st.one_of(st.none(), timings))
def test_any_correct_beats_any_wrong(closeness: float, found: Evidence | None, time: Timing | None) -> None:
    wrong = score(Status.WRONG_OUTPUT, [output(closeness)], evidence(1.0, target_ok=False), (), time)
    assert 0.0 < wrong < score(Status.OK, [output(1.0, ok=True)], found, (), time)


@given(evidences, timings, st.one_of(st.none(), timings))
def test_any_target_ok_beats_any_other(found: Evidence, fast: Timing, slow: Timing | None) -> None:
    other = score(Status.OK, (), found, (), fast)
    target = score(Status.OK, (), evidence(1.0, target_ok=True), (), slow)
    assert other < 0.5 <= target <= 1.0


@given(shares, shares, shares)
def test_more_credit_never_scores_less(a: float, b: float, other: float) -> None:
    low, high = sorted((a, b))
    less, more = evidence(low, other), evidence(high, other)
    assert credited_coverage(less) <= credited_coverage(more)
    assert score(Status.OK, (), less) <= score(Status.OK, (), more)


@given(shares, st.floats(0, 2), st.floats(0, 2))
def test_more_work_elsewhere_never_scores_more(coverage: float, a: float, b: float) -> None:
    low, high = sorted((a, b))
    assert score(Status.OK, (), evidence(coverage, low)) >= score(Status.OK, (), evidence(coverage, high))


@given(closenesses, closenesses)
def test_closer_scores_more(a: float, b: float) -> None:
    points = [score(Status.WRONG_OUTPUT, [output(value)]) for value in (a, b)]
    assert (points[0] < points[1]) == (a < b)


@given(st.floats(2**-8, 4), st.floats(2**-8, 4), st.floats(0, 1))
def test_faster_never_scores_less(a: float, b: float, width: float) -> None:
    low, high = sorted((a, b))
    assert speed_share(timing(low, low * 2**width)) <= speed_share(timing(high, high * 2**width)) + 1e-9


@given(st.floats(2**-4.9, 1.9), st.floats(0, 0.6))
def test_speed_lies_on_its_grid_and_below_what_was_measured(low: float, width: float) -> None:
    share = speed_share(timing(low, low * 2**width))
    exact = (math.log2(low) + 5) / 5
    cell = 0.05 * max(1, math.ceil(width / 0.05 - 1e-9))
    assert share <= min(1.0, exact) + 1e-6
    assert share >= min(1.0, max(0.0, exact - cell / 5)) - 1e-6
    log2 = share * 5 - 5
    assert share in (0.0, 1.0) or abs(log2 / cell - round(log2 / cell)) < 1e-6


def test_honest_sharing_is_credited_and_repetition_is_not() -> None:
    assert credited_coverage(evidence(0.5, 0.5)) == pytest.approx(0.5)
    assert credited_coverage(evidence(1.0, 1.0)) == 0.0
    assert credited_coverage(evidence(0.5, 1.0)) == 0.0
    assert COVERAGE_SCORES[0][1] < 0.5
