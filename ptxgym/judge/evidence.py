"""Which instructions did the operator's arithmetic: sums of executed counts, coverage, redundancy, ablation."""

from __future__ import annotations

from collections.abc import Sequence

from ptxgym.device.protocol import Execution, InstructionCount
from ptxgym.judge.conditions import Case
from ptxgym.reward import REDUNDANCY_LIMIT, credited_coverage, uncounted_arithmetic
from ptxgym.task import Arch, Task
from ptxgym.verdict import Evidence, FamilyCount

TARGET_COVERAGE = 0.9
_MULTIPLYING = ("mul.", "mul24.", "mad.", "mad24.", "div.", "rem.")


def family_counts(counts: Sequence[InstructionCount]) -> dict[str, FamilyCount]:
    """Sum executed instructions by family, sorted by name."""
    sums: dict[str, list[int]] = {}
    for count in counts:
        row = sums.setdefault(count.family, [0, 0, 0])
        row[0] += count.warp
        row[1] += count.thread
        row[2] += multiply_adds(count)
    return {
        family: FamilyCount(warp_instructions=row[0], thread_instructions=row[1], multiply_adds=row[2])
        for family, row in sorted(sums.items())
    }


def multiply_adds(count: InstructionCount) -> int:
    """Return the multiply-adds that an instruction's executions stand for.

    A float multiplication counts as one (two where it is packed): kept apart from its addition it would otherwise hide
    arithmetic that a compiler fuses. So does an integer multiplication, with which floats can be multiplied by halves,
    and a division.
    """
    if count.multiply_adds:
        return count.multiply_adds
    if count.family == "fmul":
        packed = count.form.endswith(("f16x2", "bf16x2", "f32x2"))
        return count.thread * (2 if packed else 1)
    return count.thread if count.form.startswith(_MULTIPLYING) else 0


def gather(
    task: Task, arch: Arch, case: Case, execution: Execution, *, correct: bool, ablation: str | None, source: str
) -> Evidence:
    """Return the evidence of one run.

    Args:
        task: gives the required multiply-adds.
        arch: gives the families that count.
        case: the shape that was run.
        execution: the run.
        correct: whether outputs are right and no finding is an error; without that nothing is `target_ok`.
        ablation: `depends`, `independent` or None (not run).
        source: where the counts come from: `emulator` or `ncu`.
    """
    families = family_counts(execution.counts)
    required = task.required_multiply_adds(case.axes)
    target = sum(row.multiply_adds for name, row in families.items() if name in arch.matrix_families)
    other = sum(row.multiply_adds for name, row in families.items() if name not in arch.matrix_families)
    coverage = min(1.0, target / required)
    problem = _problem(arch, families, required, target, other, ablation)
    if problem is None and not correct:
        problem = "the kernel is not correct"
    return Evidence(
        source=source,
        workload=case.name.partition("/")[0],
        required_multiply_adds=required,
        target_multiply_adds=target,
        other_multiply_adds=other,
        coverage=coverage,
        target_ok=problem is None,
        families=families,
        tma_bytes=execution.tma_bytes,
        ablation=ablation,
        explanation=problem,
    )


def weakest(found: Sequence[Evidence]) -> Evidence:
    """Return the run that credits the target instructions least: a kernel must use them at every shape.

    Raises:
        ValueError: if there is no run.
    """
    return min(found, key=lambda evidence: (evidence.target_ok, credited_coverage(evidence)))


def _problem(
    arch: Arch, families: dict[str, FamilyCount], required: int, target: int, other: int, ablation: str | None
) -> str | None:
    names = " or ".join(arch.matrix_families)
    others = {
        name: row.multiply_adds
        for name, row in families.items()
        if row.multiply_adds and name not in arch.matrix_families
    }
    most = max(others, key=others.__getitem__) if others else None
    if target == 0:
        instead = f"; {most} did {others[most] / required:.0%} of the multiply-adds" if most else ""
        return f"no {names} instruction executed{instead}"
    if ablation == "independent":
        return f"the output does not depend on what {names} computes: with its results zeroed it stays right"
    if other > REDUNDANCY_LIMIT * required:
        return (
            f"{most} and other instructions did {other / required:.0%} of the operator's multiply-adds "
            f"(at most {REDUNDANCY_LIMIT:.0%} may lie outside {names}), so {names} is credited with what they left"
        )
    if uncounted_arithmetic(families, required, other):
        return (
            "integer and other ordinary instructions are so many that they could have done the operator's arithmetic "
            f"without a multiplication, so {names} is credited with nothing; move them out of the inner loop"
        )
    if target < TARGET_COVERAGE * required:
        return (
            f"{names} did {target / required:.1%} of the operator's multiply-adds; {TARGET_COVERAGE:.0%} are asked for"
        )
    return None
