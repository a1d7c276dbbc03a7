from __future__ import annotations

from dataclasses import replace
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from ptxgym.device.protocol import Execution
from ptxgym.judge import references
from ptxgym.judge.conditions import Conditions, conditions
from ptxgym.judge.correctness import compare
from ptxgym.judge.judge import Judgement, _verdict, judge, judge_numbers, merge_findings, wants_ablation
from ptxgym.judge.numbers import round_bf16, store
from ptxgym.judge.references import expect
from ptxgym.judge.rehearsal import rehearse
from ptxgym.task import Task
from ptxgym.variants import load_variant
from ptxgym.verdict import Failure, OutputError, Severity, Stage, Status


def run(task: Task, drawn: Conditions, fakes: ModuleType, kernel: object, **keywords: object) -> list[Execution]:
    return [fakes.execute(task, case, kernel, fakes.share(task, case, wgmma=1.0), **keywords) for case in drawn.cases]


def test_honest_target_kernel(task: Task, drawn: Conditions, fakes: ModuleType) -> None:
    found = fakes.judged(task, drawn, fakes.honest, ablated=lambda a, b: 0 * (a @ b.T), wgmma=1.0)
    assert (found.status, found.code, found.score, found.stage) == (Status.OK, "judge.ok", 0.5, Stage.JUDGE)
    assert found.evidence.target_ok and found.evidence.ablation == "depends" and found.evidence.coverage == 1.0
    (output,) = found.outputs
    assert output.ok and output.closeness == 1.0 and output.ptxbench_ok and output.explanations == ()
    assert output.relative_error < output.relative_budget and output.worst_tile_error < output.tile_budget


def test_naive_kernel_is_correct_but_off_target(task: Task, drawn: Conditions, fakes: ModuleType) -> None:
    found = fakes.judged(task, drawn, fakes.honest, fma=1.0)
    assert (found.status, found.score) == (Status.OK, 0.2)
    assert "no wgmma instruction executed; fma did 100%" in found.message


def test_wrong_kernel(task: Task, drawn: Conditions, fakes: ModuleType) -> None:
    found = fakes.judged(task, drawn, lambda a, b: 1.01 * (a @ b.T), wgmma=1.0)
    assert (found.status, found.code) == (Status.WRONG_OUTPUT, "judge.wrong_output")
    assert 0.05 < found.score <= 0.125
    assert "1.01 × the reference" in found.message and "budget" in found.message
    assert found.message.startswith("C is wrong on every draw, most on ")
    assert not found.evidence.target_ok


def test_a_draw_that_is_right_takes_no_credit_away() -> None:
    """Its reference may be so near to a trivial guess that a right output is no nearer."""
    task = load_variant("gemm", "div32-bias-gelu")
    drawn, executions, apart = conditions(task, "emulation", secret=b"s5"), [], {}
    for case in drawn.cases:
        expected = expect(task, case)
        ideal = expected.outputs["C"].ideal.astype(np.float32)
        if case.draw == "integers":
            ideal[:8] *= 1.02
        stored = store(ideal, expected.outputs["C"].tensor)
        apart[case.draw] = compare(expected.outputs["C"], stored, case)
        executions.append(Execution(buffers={**expected.inputs, "C": stored}))
    assert [draw for draw, row in apart.items() if not row.ok] == ["integers"]
    assert min(row.closeness for row in apart.values() if row.ok) == 0.0, "as the control"
    (output,) = judge_numbers(task, drawn, executions).outputs
    assert not output.ok and output.closeness == apart["integers"].closeness == 0.75


def test_wrong_on_the_hidden_shape_only(task: Task, drawn: Conditions, fakes: ModuleType) -> None:
    public = task.workload("emulation").axes["K"], task.workload("emulation").axes["M"]

    def dispatch(a: np.ndarray, b: np.ndarray) -> np.ndarray:
        return a @ b.T if (a.shape[1], a.shape[0]) == public else 0 * (a @ b.T)

    found = fakes.judged(task, drawn, dispatch, wgmma=1.0)
    assert found.status is Status.WRONG_OUTPUT and found.score == 0.05
    assert found.outputs[0].draw.startswith("hidden/")
    assert found.message.startswith(f"C is wrong on {found.outputs[0].draw}, not on every draw: ")
    sizes = ", ".join(f"{axis} = {size}" for axis, size in task.workload("emulation").axes.items())
    kind = drawn.cases[-1].draw
    cause = f"right at {sizes}, wrong on the one draw at the hidden shape: if its kind ({kind}) is not why, sizes must"
    assert cause in found.message
    everywhere = fakes.judged(task, drawn, lambda a, b: 0 * (a @ b.T), wgmma=1.0)
    assert "hidden shape" not in everywhere.message


def without_spikes(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    spiky = np.abs(a).max() > 15 and (a != np.rint(a)).any() and abs(a.mean()) < 0.1
    return 0 * (a @ b.T) if spiky else a @ b.T


def split_k_bf16(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Wrong on integers alone."""
    half = 64 * -(-a.shape[1] // 128)
    return round_bf16(a[:, :half] @ b[:, :half].T) + round_bf16(a[:, half:] @ b[:, half:].T)


SETS = [str(index).encode() for index in range(12)]


@pytest.mark.parametrize(("kernel", "kind"), [(without_spikes, "spiky"), (split_k_bf16, "integers")])
def test_what_is_wrong_on_one_kind_of_inputs_is_wrong_wherever_that_is_drawn(
    task: Task, fakes: ModuleType, kernel: object, kind: str
) -> None:
    """Where that is the hidden shape, its sizes are not said to be why."""
    places = set()
    for secret in SETS:
        drawn = conditions(task, secret=secret)
        found = fakes.judged(task, drawn, kernel, wgmma=1.0)
        place = next(case.name for case in drawn.cases if case.draw == kind)
        assert not found.outputs[0].ok and found.outputs[0].draw == place
        hedged = f"wrong on the one draw at the hidden shape: if its kind ({kind}) is not why, sizes must"
        assert (hedged in found.message) is place.startswith("hidden/")
        assert "at the hidden shape" not in found.message.replace(hedged, "")
        places.add(place)
    assert places == {f"emulation/{kind}", f"hidden/{kind}"}


def test_right_on_plain_inputs_alone_at_the_public_shape_is_refused(task: Task, fakes: ModuleType) -> None:
    """Of spikes and integers one is drawn there: who loses both is always found, who loses one every second time."""
    public = task.workload("emulation").axes

    def at_public(*faults: Any) -> Any:
        def kernel(a: np.ndarray, b: np.ndarray) -> np.ndarray:
            if (len(a), len(b), a.shape[1]) != (public["M"], public["N"], public["K"]):
                return a @ b.T
            products = [fault(a, b) for fault in faults]
            return next((c for c in products if not np.array_equal(c, a @ b.T)), a @ b.T)

        return kernel

    found = dict.fromkeys(("both", "spikes", "integers", "honest"), 0)
    for secret in SETS:
        drawn = conditions(task, secret=secret)
        kernels = {
            "both": at_public(without_spikes, split_k_bf16),
            "spikes": at_public(without_spikes),
            "integers": at_public(split_k_bf16),
            "honest": at_public(),
        }
        for label, kernel in kernels.items():
            judgement = fakes.judged(task, drawn, kernel, wgmma=1.0)
            found[label] += judgement.status is Status.WRONG_OUTPUT
            assert judgement.status in (Status.OK, Status.WRONG_OUTPUT)
    assert found["both"] == len(SETS) and found["honest"] == 0
    assert found["spikes"] + found["integers"] == len(SETS) and min(found.values()) == 0 < found["spikes"]


@pytest.mark.parametrize(("code", "named"), [("descriptor.unread", True), ("cp_async.pending_at_exit", False)])
def test_a_note_is_named_where_it_can_be_why_the_numbers_are_wrong(
    task: Task, drawn: Conditions, fakes: ModuleType, code: str, named: bool
) -> None:
    note = fakes.finding(Severity.NOTE).model_copy(update={"code": code, "message": "a part of it"})
    runs = run(task, drawn, fakes, lambda a, b: 1.01 * (a @ b.T))
    runs[0] = replace(runs[0], findings=(note,))
    found = judge(task, "h100", drawn, runs)
    assert found.message.endswith(". Possible cause: a part of it") is named


def test_an_output_that_nobody_wrote_scores_nothing(task: Task, drawn: Conditions, fakes: ModuleType) -> None:
    def nothing(a: np.ndarray, b: np.ndarray) -> np.ndarray:
        return np.full((len(a), len(b)), fakes.UNWRITTEN, np.uint16)

    def one_element(a: np.ndarray, b: np.ndarray) -> np.ndarray:
        c = nothing(a, b)
        c[0, 0] = 0
        return c

    def public_size_only(a: np.ndarray, b: np.ndarray) -> np.ndarray:
        return a @ b.T if a.shape == (256, 576) else nothing(a, b)

    empty = fakes.judged(task, drawn, nothing, wgmma=1.0)
    assert (empty.status, empty.code, empty.score) == (Status.WRONG_OUTPUT, "judge.unwritten_output", 0.0)
    assert empty.message.startswith("C was never written") and not empty.outputs[0].written
    for kernel in (one_element, public_size_only):
        found = fakes.judged(task, drawn, kernel, wgmma=1.0)
        assert (found.code, found.score) == ("judge.wrong_output", 0.05)
        assert found.outputs[0].written
        assert any("were never written" in cause for cause in found.outputs[0].explanations)


def test_an_unwritten_output_still_names_the_hazard(task: Task, drawn: Conditions, fakes: ModuleType) -> None:
    def nothing(a: np.ndarray, b: np.ndarray) -> np.ndarray:
        return np.full((len(a), len(b)), fakes.UNWRITTEN, np.uint16)

    found = fakes.judged(task, drawn, nothing, findings=[fakes.finding(Severity.ERROR)])
    assert found.code == "judge.unwritten_output" and "Probable cause: wgmma reads" in found.message


@pytest.mark.parametrize(
    ("kernel", "touch", "status"),
    [
        (lambda a, b: a @ b.T, None, Status.OK),
        (lambda a, b: 1.01 * (a @ b.T), None, Status.WRONG_OUTPUT),
        (lambda a, b: a @ b.T, "A", Status.INTEGRITY),
    ],
)
def test_numbers_alone_are_judged_as_with_counts(
    task: Task, drawn: Conditions, fakes: ModuleType, kernel: object, touch: str | None, status: Status
) -> None:
    runs = run(task, drawn, fakes, kernel, touch=touch, findings=[fakes.finding(Severity.ERROR)])
    alone = judge_numbers(task, drawn, runs, notes=("not timed",))
    assert alone.status is status and alone.evidence is None and alone.findings == ()
    clean = [replace(one, findings=()) for one in runs]
    whole = judge(task, "h100", drawn, clean)
    assert alone.outputs == whole.outputs and alone.code == whole.code
    assert alone.notes == (() if status is Status.INTEGRITY else ("not timed",))
    assert alone.score == (0.2 if status is Status.OK else whole.score)


def test_rehearsal_takes_every_way(task: Task) -> None:
    right, *wrong = rehearse(task)
    assert right.status is Status.OK
    assert {one.status for one in wrong} == {Status.WRONG_OUTPUT}
    noisy, displaced, infinite, nan, unwritten = (one.outputs[0] for one in wrong)
    assert noisy.explanations == () and noisy.pattern == "nearly every element"
    assert "holds the values of C[0:64, " in displaced.explanations[0]
    assert displaced.pattern == "whole rows: 64 … 127 of 128, the last 64"
    assert infinite.pattern == "single elements: C[127, 255]"
    assert "all 32,768 elements are NaN" in nan.explanations[0] and not unwritten.written


@pytest.mark.parametrize("name", ["A", "B"])
def test_changed_input_is_an_integrity_fault(task: Task, drawn: Conditions, fakes: ModuleType, name: str) -> None:
    runs = run(task, drawn, fakes, fakes.honest)
    runs[2] = fakes.execute(task, drawn.cases[2], fakes.honest, touch=name)
    found = judge(task, "h100", drawn, runs)
    assert (found.status, found.code, found.score) == (Status.INTEGRITY, "judge.input_modified", 0.0)
    assert f"its input {name}" in found.message


@pytest.mark.parametrize(
    ("severity", "status", "points"),
    [
        (Severity.ERROR, Status.HAZARD, 0.0),
        (Severity.WARNING, Status.OK, 0.5),
        (Severity.NOTE, Status.OK, 0.5),
    ],
)
def test_only_errors_change_the_status(
    task: Task, drawn: Conditions, fakes: ModuleType, severity: Severity, status: Status, points: float
) -> None:
    found = fakes.judged(task, drawn, fakes.honest, findings=[fakes.finding(severity)], wgmma=1.0)
    assert (found.status, found.score) == (status, points)
    assert found.code == ("proxy.missing_fence" if severity is Severity.ERROR else "judge.ok")
    assert found.findings[0].count == len(drawn.cases)
    assert found.evidence.target_ok is (status is Status.OK)


def test_findings_of_adversarial_schedules_count_and_their_numbers_do_not(
    task: Task, drawn: Conditions, fakes: ModuleType
) -> None:
    runs = run(task, drawn, fakes, fakes.honest)
    garbage = Execution(buffers={}, findings=(fakes.finding(Severity.ERROR),))
    assert judge(task, "h100", drawn, runs, schedules=[garbage]).status is Status.HAZARD
    assert judge(task, "h100", drawn, runs, schedules=[Execution(buffers={})]).status is Status.OK


def test_precedence(task: Task, drawn: Conditions, fakes: ModuleType) -> None:
    """integrity, then wrong_output (which names the finding and is not paid as clean), then hazard."""
    error = [fakes.finding(Severity.ERROR)]
    wrong = fakes.judged(task, drawn, lambda a, b: 1.01 * (a @ b.T), findings=error, wgmma=1.0)
    assert (wrong.status, wrong.score) == (Status.WRONG_OUTPUT, 0.0)
    assert "Probable cause: wgmma reads what warp 4 stored" in wrong.message
    runs = run(task, drawn, fakes, lambda a, b: 0 * (a @ b.T), findings=error, touch="A")
    assert judge(task, "h100", drawn, runs).status is Status.INTEGRITY


def test_equal_findings_merge_and_errors_come_first(fakes: ModuleType) -> None:
    note, error = fakes.finding(Severity.NOTE), fakes.finding(Severity.ERROR)
    elsewhere = fakes.finding(Severity.ERROR, line=40)
    runs = [Execution(buffers={}, findings=(note, error)), Execution(buffers={}, findings=(error, elsewhere))]
    assert [(f.severity, f.line, f.count) for f in merge_findings(runs)] == [
        (Severity.ERROR, 12, 2), (Severity.ERROR, 40, 1), (Severity.NOTE, 12, 1),
    ]  # fmt: skip


def test_ablation(task: Task, drawn: Conditions, fakes: ModuleType) -> None:
    runs = run(task, drawn, fakes, fakes.honest)
    assert wants_ablation(task, "h100", runs[0])
    assert not wants_ablation(
        task, "h100", fakes.execute(task, drawn.cases[0], fakes.honest, fakes.share(task, drawn.cases[0], fma=1.0))
    )
    same = fakes.execute(task, drawn.cases[0], fakes.honest)
    dead = judge(task, "h100", drawn, runs, ablation=same)
    assert dead.status is Status.OK and dead.score == 0.2 and dead.evidence.ablation == "independent"
    stuck = Failure(stage=Stage.EXECUTE, status=Status.HANG, code="execute.deadlock", message="…")
    alive = judge(task, "h100", drawn, runs, ablation=stuck)
    assert alive.score == 0.5 and alive.evidence.ablation == "depends"


def test_without_counts_nothing_is_target_ok(task: Task, drawn: Conditions, fakes: ModuleType) -> None:
    found = judge(task, "h100", drawn, run(task, drawn, fakes, fakes.honest), source="none")
    assert found.evidence is None and found.score == 0.2 and "not counted" in found.notes[0]


def test_equal_executions_get_equal_judgements(task: Task, drawn: Conditions, fakes: ModuleType) -> None:
    def once() -> Judgement:
        return fakes.judged(task, drawn, lambda a, b: a[:, 16:] @ b[:, 16:].T, wgmma=1.0)

    assert once().model_dump_json() == once().model_dump_json()


def test_the_last_digits_of_a_sum_are_not_told(
    task: Task, drawn: Conditions, fakes: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They depend on the threads of a BLAS, and on the CPU."""
    numbers = []
    for factor in (1.0, 1.0 + 1e-12, 1.0 + 1e-3):
        monkeypatch.setattr(references, "FACTOR", 1.5 * factor)
        monkeypatch.setattr(references, "TILE_FACTOR", 2.0 * factor)
        monkeypatch.setattr(references, "_CACHE", references._Cache())
        (output,) = fakes.judged(task, drawn, lambda a, b: 1.01 * (a @ b.T), wgmma=1.0).outputs
        numbers.append((output.relative_budget, output.tile_budget))
    assert numbers[0] == numbers[1] and numbers[0] != numbers[2]


def test_one_execution_per_case(task: Task, drawn: Conditions) -> None:
    with pytest.raises(ValueError, match="4 cases were drawn, 0 executions"):
        judge(task, "h100", drawn, [])


def test_a_budget_of_zero_is_no_division_by_zero() -> None:
    exact = OutputError(
        name="C", ok=False, relative_error=0.1, relative_budget=0.0, worst_tile_error=0.2, tile_budget=0.0
    )
    status, code, message = _verdict([exact, exact.model_copy(update={"name": "D", "relative_error": 0.3})], None, ())
    assert (status, code) == (Status.WRONG_OUTPUT, "judge.wrong_output")
    assert message.startswith("D is wrong")
