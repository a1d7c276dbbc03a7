"""The naive attention kernels serve every generation: proven on Hopper by `ptxgym verify`, on Blackwell here."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from ptxgym.evaluator import Evaluator
from ptxgym.task import expected, load_task


@pytest.fixture(scope="module")
def evaluator() -> Iterator[Evaluator]:
    with Evaluator(device="emulator", secret="naive") as running:
        yield running


@pytest.mark.parametrize("name", ["attn_fwd", "attn_fwd_causal", "attn_bwd", "attn_bwd_causal"])
def test_naive_kernels_are_right_on_blackwell(name: str, evaluator: Evaluator) -> None:
    task = load_task(name)
    solution = next(one for one in expected(task, "b200") if one.file == "solutions/naive.cu")
    assert solution.file in {one.file for one in expected(task, "h100")}
    verdict = evaluator.evaluate(task.source(solution), task, "b200")
    assert (verdict.status, verdict.score) == (solution.status, solution.score), verdict.message
    assert verdict.evidence is not None and verdict.evidence.coverage == solution.coverage
    assert not verdict.findings
