"""Kernels as numpy functions and their executions, for tests that need no compiler and no emulator."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ptxgym.device.protocol import Execution, InstructionCount
from ptxgym.judge import conditions as conditioning
from ptxgym.judge import numbers
from ptxgym.judge.conditions import Case, Conditions
from ptxgym.judge.judge import Judgement, judge
from ptxgym.task import Task
from ptxgym.verdict import Finding, Provenance, Severity, Verdict

SECRET = b"a secret of the tests"
Kernel = Callable[[Any, Any], Any]
"""(A [M, K], B [N, K]) as float32 → C [M, N]; NaN from `unwritten` stays poison."""
UNWRITTEN = numbers.POISON["bf16"]


def honest(a: Any, b: Any) -> Any:
    """FP32 accumulation, one rounding."""
    return a @ b.T


def count(family: str, multiply_adds: int, *, form: str = "", thread: int = 0, line: int = 1) -> InstructionCount:
    return InstructionCount("gemm", form or family, family, line, max(1, thread // 32), max(32, thread), multiply_adds)


def share(task: Task, case: Case, **families: float) -> tuple[InstructionCount, ...]:
    """Counts in which each family did a share of the required multiply-adds; `mma_sync` stands for `mma.sync`."""
    required = task.required_multiply_adds(case.axes)
    return tuple(count(name.replace("_", "."), round(part * required)) for name, part in families.items())


def execute(
    task: Task,
    case: Case,
    kernel: Kernel,
    counts: Sequence[InstructionCount] = (),
    findings: Sequence[Finding] = (),
    touch: str | None = None,
) -> Execution:
    """Run `kernel` on the case's inputs; `touch` names an input of which one byte is changed."""
    buffers = conditioning.buffers(task, case)
    values = {t.name: numbers.decode(buffers[t.name], t, case.axes) for t in task.inputs}
    result = np.asarray(kernel(values["A"], values["B"]))
    bits = result if result.dtype == np.uint16 else numbers.bf16_bits(result.astype(np.float32))
    buffers["C"] = bits.reshape(-1).view(np.uint8).copy()
    if touch is not None:
        buffers[touch] = buffers[touch].copy()
        buffers[touch][7] ^= 1
    return Execution(buffers=buffers, counts=tuple(counts), findings=tuple(findings))


def judged(
    task: Task,
    conditions: Conditions,
    kernel: Kernel,
    ablated: Kernel | None = None,
    findings: Sequence[Finding] = (),
    **families: float,
) -> Judgement:
    """Judge `kernel` on all cases; `families` are shares of the multiply-adds, `ablated` its results without wgmma."""
    runs = [execute(task, case, kernel, share(task, case, **families), findings) for case in conditions.cases]
    ablation = execute(task, conditions.cases[0], ablated) if ablated is not None else None
    return judge(task, "h100", conditions, runs, ablation=ablation)


def verdict(judgement: Judgement, source: str = "text") -> Verdict:
    """Wrap a judgement as the evaluator would."""
    provenance = Provenance(ptxgym="0", task="gemm", task_revision=1, arch="h100", source_sha256=source)
    return Verdict(**{name: getattr(judgement, name) for name in type(judgement).model_fields}, provenance=provenance)


def finding(severity: Severity, code: str = "proxy.missing_fence", line: int = 12) -> Finding:
    return Finding(code=code, severity=severity, message="wgmma reads what warp 4 stored without a fence", line=line)
