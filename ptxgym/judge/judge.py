"""The last stage: executions against the task, as the parts of a verdict.

Precedence of statuses: `integrity` (an input was changed: nothing else can be trusted), `wrong_output`, `hazard` (right
numbers, but an error-severity finding), `ok`. A wrong kernel that also has error findings stays `wrong_output`; its
message names the first finding, and it scores 0 because it did not run clean. So does a kernel that wrote nothing.

`judge` decides on emulated runs, whose counts and findings come with them. On a GPU `judge_numbers` decides on the
outputs, wherever they lie; what was counted and timed joins its judgement later.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ptxgym.device.protocol import Execution
from ptxgym.judge import evidence as counting
from ptxgym.judge.conditions import Case, Conditions
from ptxgym.judge.correctness import Comparison, changed_input, compare, passes, region, tile_slices
from ptxgym.judge.explain import explain
from ptxgym.judge.full_size import FullSize
from ptxgym.judge.pattern import pattern
from ptxgym.judge.references import Expected, expect, free, norm
from ptxgym.reward import score
from ptxgym.task import Task, load_arch
from ptxgym.verdict import Evidence, Failure, Finding, OutputError, Severity, Stage, Status, Value

JUDGE_REVISION = 28
"""Part of every verdict's key: raise it when equal executions would be judged differently."""

MIN_BUDGET = 1e-30
"""Stands for a budget of 0, which an output has whose every sum is exact."""

DIGITS = 6
"""Of the errors and budgets that a verdict tells: the last ones of a sum depend on how many threads a BLAS has, and on
which CPU."""

_SEVERITIES = (Severity.ERROR, Severity.WARNING, Severity.NOTE)


class Judgement(Value):
    """The parts of a verdict that the judge decides."""

    stage: Stage = Stage.JUDGE
    status: Status
    code: str
    message: str
    score: float
    outputs: tuple[OutputError, ...] = ()
    evidence: Evidence | None = None
    findings: tuple[Finding, ...] = ()
    notes: tuple[str, ...] = ()


def wants_ablation(task: Task, arch: str, execution: Execution) -> bool:
    """Return whether zeroing target results can tell anything: whether any target instruction did arithmetic."""
    families = load_arch(arch).matrix_families
    return any(count.multiply_adds and count.family in families for count in execution.counts)


def judge(
    task: Task,
    arch: str,
    conditions: Conditions,
    executions: Sequence[Execution],
    *,
    schedules: Sequence[Execution] = (),
    ablation: Execution | Failure | None = None,
    source: str = "emulator",
) -> Judgement:
    """Judge one submission.

    Args:
        task: what was asked for.
        arch: for which GPU generation.
        conditions: the cases that were run.
        executions: one per case, in order, on a fair schedule; their numbers and counts decide.
        schedules: executions under adversarial schedules; they add findings only.
        ablation: the first case again with target results zeroed, or how that run failed; None if it was not run.
        source: where instruction counts come from: `emulator`, `ncu`, or `none`.

    Raises:
        ValueError: if there is not one execution per case.
    """
    cases = _cases(task, conditions, executions, np)
    findings = merge_findings([*executions, *schedules])
    numbers = _compare(task, cases, executions, findings)
    if isinstance(numbers, Judgement):
        return numbers
    outputs, right = numbers
    clean = not any(finding.severity is Severity.ERROR for finding in findings)
    correct = clean and all(output.ok for output in outputs)
    evidence, notes = None, []
    if source == "none":
        notes.append("executed instructions were not counted, so nothing says which did the arithmetic")
    else:
        outcome = _ablation(cases[0], ablation) if right[0] else None
        evidence = counting.weakest(
            [
                counting.gather(
                    task, load_arch(arch), case, execution, correct=correct, ablation=outcome, source=source
                )
                for case, execution in zip(conditions.cases, executions, strict=True)
            ]
        )
    return _conclude(outputs, evidence, findings, notes)


def judge_numbers(
    task: Task, conditions: Conditions, executions: Sequence[Execution], *, xp: Any = np, notes: Sequence[str] = ()
) -> Judgement:
    """Judge the outputs of one submission and nothing else: no instruction was counted, no hazard looked for.

    Args:
        task: what was asked for.
        conditions: the cases that were run.
        executions: one per case, in order; buffers are bytes, by numpy or by `xp`.
        xp: numpy, or cupy on a GPU: where references are kept and outputs compared.
        notes: what the judgement shall say about what was not run.

    Raises:
        ValueError: if there is not one execution per case.
    """
    cases = _cases(task, conditions, executions, xp)
    numbers = _compare(task, cases, executions, ())
    if isinstance(numbers, Judgement):
        return numbers
    outputs, right = numbers
    if not all(right):
        free(xp)  # explaining takes some arrays of the output's size
    return _conclude(outputs, None, (), notes)


def with_full_size(judgement: Judgement, whole: FullSize) -> Judgement:
    """Return the judgement on a kernel that is right at small sizes, with what its full size showed."""
    if whole.wrong is None:
        return judgement.model_copy(update={"notes": (*judgement.notes, *filter(None, [whole.note]))})
    message = f"Right at small sizes, but {whole.message}"
    where = "the kernel is not right at the size that is timed"
    return _refused(judgement, whole.wrong, "judge.wrong_at_full_size", message, where)


def with_second_call(judgement: Judgement, compared: Comparison, message: str) -> Judgement:
    """Return the judgement on a kernel that is right when called first, with an output that a second call got wrong."""
    error, budget = _told(compared.relative_error), _told(compared.expected.relative_budget)
    wrong = OutputError(
        name=compared.expected.tensor.name,
        ok=False,
        relative_error=error,
        relative_budget=budget,
        worst_tile_error=error,
        tile_budget=budget,
        closeness=compared.closeness,
        draw="second call",
    )
    return _refused(judgement, wrong, "judge.wrong_again", message, "a second call is not right")


def _refused(judgement: Judgement, wrong: OutputError, code: str, message: str, why: str) -> Judgement:
    outputs = tuple(wrong if output.name == wrong.name else output for output in judgement.outputs)
    evidence = judgement.evidence
    if evidence is not None:
        evidence = evidence.model_copy(update={"target_ok": False, "explanation": why})
    return judgement.model_copy(
        update={
            "status": Status.WRONG_OUTPUT,
            "code": code,
            "message": message,
            "score": score(Status.WRONG_OUTPUT, outputs, evidence, judgement.findings),
            "outputs": outputs,
            "evidence": evidence,
        }
    )


def merge_findings(executions: Sequence[Execution]) -> tuple[Finding, ...]:
    """Return the findings of several runs, errors first; one that recurs at its place is kept once, counts added."""
    merged: dict[tuple[object, ...], Finding] = {}
    for execution in executions:
        for finding in execution.findings:
            key = (finding.code, finding.severity, finding.kernel, finding.line, tuple(p.line for p in finding.parties))
            known = merged.get(key)
            merged[key] = finding if known is None else known.model_copy(update={"count": known.count + finding.count})
    return tuple(sorted(merged.values(), key=lambda finding: _SEVERITIES.index(finding.severity)))


def _cases(task: Task, conditions: Conditions, executions: Sequence[Execution], xp: Any) -> list[Expected]:
    if len(executions) != len(conditions.cases):
        raise ValueError(f"{len(conditions.cases)} cases were drawn, {len(executions)} executions given")
    return [expect(task, case, xp) for case in conditions.cases]


def _compare(
    task: Task, cases: Sequence[Expected], executions: Sequence[Execution], findings: tuple[Finding, ...]
) -> tuple[tuple[OutputError, ...], list[bool]] | Judgement:
    """Return how each output fared and whether each case is right, or the judgement on a changed input."""
    for expected, execution in zip(cases, executions, strict=True):
        if changed := changed_input(expected, execution.buffers):
            return _integrity(changed, expected.case, findings)
    compared = [
        {name: compare(output, execution.buffers[name], expected.case) for name, output in expected.outputs.items()}
        for expected, execution in zip(cases, executions, strict=True)
    ]
    outputs = tuple(_worst(task, tensor.name, cases, compared) for tensor in task.outputs)
    return outputs, [all(comparison.ok for comparison in row.values()) for row in compared]


def _integrity(name: str, case: Case, findings: tuple[Finding, ...]) -> Judgement:
    return Judgement(
        status=Status.INTEGRITY,
        code="judge.input_modified",
        message=f"the kernel changed its input {name} ({case.name}); inputs are read-only, write to the outputs alone",
        score=0.0,
        findings=findings,
    )


def _worst(
    task: Task, name: str, cases: Sequence[Expected], compared: Sequence[Mapping[str, Comparison]]
) -> OutputError:
    """Return how the output `name` fared on the draw where it was furthest over budget."""
    rows = [(row[name], expected) for row, expected in zip(compared, cases, strict=True)]
    comparison, expected = max(rows, key=lambda row: row[0].excess)
    tile, values = comparison.worst_tile, comparison.expected.values
    slices = tile_slices(comparison.expected.tensor, tile, values.shape)
    reference_norm = norm(values[slices]) or 1.0
    normal = [row.ptxbench_ok for row, case in rows if case.case.draw == "normal"]
    explanations = explain(comparison, expected, task.reference())
    if (cause := _only_right_at_public(rows)) is not None:
        explanations = (cause, *explanations)
    return OutputError(
        name=name,
        ok=comparison.ok,
        relative_error=_told(comparison.relative_error),
        relative_budget=_told(comparison.expected.relative_budget),
        worst_tile_error=_told(float(comparison.tile_errors[tile]) / reference_norm),
        tile_budget=_told(float(comparison.expected.tile_budgets[tile]) / reference_norm),
        worst_region=region(comparison.expected.tensor, slices),
        pattern=pattern(comparison),
        explanations=explanations,
        closeness=min((row.closeness for row, _ in rows if not row.ok), default=1.0),
        draw=expected.case.name,
        ptxbench_ok=all(normal) if normal else None,
        written=not all(row.untouched for row, _ in rows),
        always=not any(row.ok for row, _ in rows),
    )


def _told(number: float) -> float:
    """Return a number as verdicts tell it: equal wherever it was computed."""
    return float(f"{number:.{DIGITS}g}")


def _only_right_at_public(rows: Sequence[tuple[Comparison, Expected]]) -> str | None:
    """Say what an output that is right on every draw but the one at the hidden shape may get wrong.

    Its inputs may be why as well as its sizes: draws of their kind are made nowhere else.
    """
    if not any(expected.case.hidden for _, expected in rows):
        return None
    public = [expected.case.axes for _, expected in rows if not expected.case.hidden]
    if not public or any(row.ok == expected.case.hidden for row, expected in rows):
        return None
    sizes = ", ".join(f"{axis} = {size}" for axis, size in public[0].items())
    kind = next(expected.case.draw for _, expected in rows if expected.case.hidden)
    return (
        f"right at {sizes}, wrong on the one draw at the hidden shape: if its kind ({kind}) is not why, sizes must "
        "come from the arguments, and CTAs that stay must take all tiles, however few SMs there are"
    )


def _ablation(expected: Expected, ablated: Execution | Failure | None) -> str | None:
    """Return whether the outputs, which are right, depend on the target instructions' results.

    A run that fails with zeroed results depends on them too.
    """
    if ablated is None:
        return None
    if isinstance(ablated, Failure):
        return "depends"
    still_right = all(passes(output, ablated.buffers[name]) for name, output in expected.outputs.items())
    return "independent" if still_right else "depends"


def _conclude(
    outputs: tuple[OutputError, ...],
    evidence: Evidence | None,
    findings: tuple[Finding, ...],
    notes: Sequence[str] = (),
) -> Judgement:
    status, code, message = _verdict(outputs, evidence, findings)
    return Judgement(
        status=status,
        code=code,
        message=message,
        score=score(status, outputs, evidence, findings),
        outputs=outputs,
        evidence=evidence,
        findings=findings,
        notes=tuple(notes),
    )


def _verdict(
    outputs: Sequence[OutputError], evidence: Evidence | None, findings: Sequence[Finding]
) -> tuple[Status, str, str]:
    """Return status, code and message."""
    error = next((finding for finding in findings if finding.severity is Severity.ERROR), None)
    wrong = [output for output in outputs if not output.ok]
    if wrong:
        code, message = _wrong(outputs, wrong)
        if error is not None:
            message += f". Probable cause: {error.message}"
        elif (possible := next((finding for finding in findings if finding.explains_numbers), None)) is not None:
            message += f". Possible cause: {possible.message}"
        return Status.WRONG_OUTPUT, code, message
    if error is not None:
        return Status.HAZARD, error.code, error.message
    if evidence is None:
        return Status.OK, "judge.ok", "all outputs are right"
    if evidence.target_ok:
        share = f"{evidence.coverage:.0%} of the multiply-adds ran on target instructions"
        return Status.OK, "judge.ok", f"all outputs are right, and {share}"
    return Status.OK, "judge.ok", f"all outputs are right, but {evidence.explanation}"


def _wrong(outputs: Sequence[OutputError], wrong: Sequence[OutputError]) -> tuple[str, str]:
    """Return code and message for outputs of which some are wrong."""
    if not any(output.written for output in outputs):
        names = f"{outputs[0].name} was" if len(outputs) == 1 else f"{', '.join(o.name for o in outputs)} were"
        return "judge.unwritten_output", (
            f"{names} never written: on every draw all elements hold what they held before the call. `run` must launch "
            "a kernel that stores the result through the output pointer; a submission that writes nothing scores 0"
        )
    worst = max(wrong, key=lambda output: output.relative_error / (output.relative_budget or MIN_BUDGET))
    where = f"every draw, most on {worst.draw}" if worst.always else f"{worst.draw}, not on every draw"
    message = f"{worst.name} is wrong on {where}: {_amount(worst)}, worst in {worst.worst_region}"
    if worst.explanations:
        message += f"; {worst.explanations[0]}"
    return "judge.wrong_output", message


def _amount(output: OutputError) -> str:
    if not np.isfinite(output.relative_error):
        return "it holds elements that are unwritten, NaN or infinite"
    if output.relative_error > output.relative_budget:
        return f"relative error {output.relative_error:.2g}, budget {output.relative_budget:.2g}"
    if output.worst_tile_error > output.tile_budget:
        return f"relative error {output.worst_tile_error:.2g} in one tile, budget {output.tile_budget:.2g}"
    return "results are not exact where they must be"
