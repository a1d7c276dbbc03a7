"""The judge of numbers where the arrays lie: in GPU memory (cupy), or in a test's (numpy)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ptxgym.device.cuda.model import Request
from ptxgym.device.cuda.tools import Handle, Handles
from ptxgym.device.protocol import Execution
from ptxgym.judge.conditions import Case
from ptxgym.judge.correctness import equal_bytes, passes
from ptxgym.judge.judge import Judgement, judge_numbers
from ptxgym.judge.references import expect
from ptxgym.judge.rehearsal import rehearse
from ptxgym.task import Task


class NumberJudge:
    """Compares outputs with references that are computed once per case."""

    def __init__(self, xp: Any) -> None:
        """Judge arrays of `xp`: cupy or numpy."""
        self._xp = xp
        self._rehearsed: set[str] = set()

    def rehearse(self, task: Task) -> None:
        """Have kernels compiled before a submission waits for them; does nothing the second time."""
        if task.label not in self._rehearsed:
            self._rehearsed.add(task.label)
            rehearse(task, self._xp)

    def judge(self, request: Request, executions: Sequence[Execution]) -> Judgement:
        """Judge one execution per case of the request; buffers are regions or arrays of bytes."""
        seen = [Execution(buffers={name: data(one) for name, one in run.buffers.items()}) for run in executions]
        return judge_numbers(request.task, request.conditions, seen, xp=self._xp)

    def right(self, request: Request, case: Case, outputs: Handles) -> bool:
        """Return whether the outputs of one more call on `case` are within their budgets."""
        expected = expect(request.task, case, self._xp)
        return all(passes(expected.outputs[name], self._xp.asarray(data(one))) for name, one in outputs.items())

    def equal(self, first: Handle, second: Handle) -> bool:
        """Return whether two ranges hold the same bytes."""
        return equal_bytes(data(first), data(second))


def data(handle: Handle) -> Any:
    """Return the bytes that a handle stands for: a region's array, or the array itself."""
    return getattr(handle, "array", handle)
