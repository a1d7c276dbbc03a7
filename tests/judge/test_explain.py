from __future__ import annotations

from types import ModuleType
from typing import Any

import numpy as np
import pytest

from ptxgym.judge import correctness, numbers
from ptxgym.judge.conditions import Conditions
from ptxgym.judge.explain import explain, pattern
from ptxgym.task import Task


def edited(edit: Any) -> Any:
    """A kernel that computes C rightly and then edits it."""

    def kernel(a: Any, b: Any) -> Any:
        c = a @ b.T
        edit(c)
        return c

    return kernel


def transpose_tile(c: Any) -> None:
    c[64:128, 128:192] = c[64:128, 128:192].T.copy()


def transpose_blocks(c: Any) -> None:
    """Every 8×8 block transposed: stmatrix with a wrong `.trans`."""
    rows, columns = c.shape
    c[:] = c.reshape(rows // 8, 8, columns // 8, 8).transpose(0, 3, 2, 1).reshape(rows, columns)


def swap_rows(c: Any) -> None:
    c[0:8], c[8:16] = c[8:16].copy(), c[0:8].copy()


def swap_columns(c: Any) -> None:
    c[:, 0:2], c[:, 2:4] = c[:, 2:4].copy(), c[:, 0:2].copy()


def stale_tile(c: Any) -> None:
    c[128:192, 64:128] = c[0:64, 64:128]


def zero_tile(c: Any) -> None:
    c[64:128, 192:256] = 0


def nan_column(c: Any) -> None:
    c[:, 5] = np.nan


def infinite_element(c: Any) -> None:
    c[3, 4] = np.inf


def repeated_slice(a: Any, b: Any) -> Any:
    return a @ b.T + a[:, 64:80] @ b[:, 64:80].T


def unwritten(rows: slice, columns: slice) -> Any:
    def kernel(a: Any, b: Any) -> Any:
        bits = numbers.bf16_bits(a @ b.T)
        bits[rows, columns] = numbers.POISON["bf16"]
        return bits

    return kernel


def bf16_sums(a: Any, b: Any) -> Any:
    total = np.zeros((len(a), len(b)), np.float32)
    for k in range(0, a.shape[1], 16):
        total = numbers.round_bf16(total + a[:, k : k + 16] @ b[:, k : k + 16].T)
    return total


def toward_zero(a: Any, b: Any) -> Any:
    return (np.ascontiguousarray(a @ b.T).view(np.uint32) >> 16).astype(np.uint16)


CASES = {
    "zeros": (edited(lambda c: c.fill(0)), "every element is zero", "nearly every element"),
    "constant": (edited(lambda c: c.fill(3)), "every element is 3", "nearly every element"),
    "gain": (lambda a, b: 0.5 * (a @ b.T), "0.5 × the reference", None),
    "small gain": (lambda a, b: 1.01 * (a @ b.T), "1.01 × the reference", None),
    "offset": (lambda a, b: a @ b.T + 64, "reference + 64", None),
    "transposed tile": (edited(transpose_tile), "64×64 block is transposed", "1 of 32"),
    "transposed blocks": (edited(transpose_blocks), "8×8 block is transposed", None),
    "exchanged rows": (
        edited(swap_rows),
        "16 rows are exchanged: row 0 holds what belongs to row 8",
        "whole rows: 0 … 15",
    ),
    "exchanged columns": (edited(swap_columns), "4 columns are exchanged: column 0", "whole columns: 0 … 3"),
    "stale tile": (edited(stale_tile), "C[128:192, 64:128] holds the values of C[0:64, 64:128]", "1 of 32"),
    "zero tile": (edited(zero_tile), "C[64:128, 192:256] is all zeros", "whole 64×64 tiles: 1 of 32"),
    "lost slice": (lambda a, b: a[:, 16:] @ b[:, 16:].T, "lacks k 0:16", None),
    "lost last slices": (
        lambda a, b: a[:, :-64] @ b[:, :-64].T,
        "lacks k 512:528, k 528:544, k 544:560 and 1 more",
        None,
    ),
    "repeated slice": (repeated_slice, "counts k 64:80 more than once", None),
    "unwritten rows": (
        unwritten(slice(-16, None), slice(None)),
        "8,192 of 131,072 elements were never written, exactly C[240:256, 0:512]",
        "whole rows: 240 … 255 of 256, the last 16",
    ),
    "unwritten corner": (unwritten(slice(0, 8), slice(0, 8)), "never written, exactly C[0:8, 0:8]", None),
    "nan": (edited(nan_column), "256 elements are NaN, first C[0, 5], exactly C[0:256, 5:6]", "column 5 of 512"),
    "inf": (edited(infinite_element), "1 elements are infinite, first C[3, 4]", "single elements: C[3, 4]"),
    "bf16 sums": (bf16_sums, "the running sum is rounded to BF16 after every step such as k 0:16: keep", None),
    "toward zero": (toward_zero, "rounded toward zero", None),
}


@pytest.mark.parametrize("name", CASES)
def test_the_cause_is_named(task: Task, drawn: Conditions, fakes: ModuleType, name: str) -> None:
    kernel, cause, where = CASES[name]
    case = drawn.cases[0]
    expected = correctness.expect(task, case)
    execution = fakes.execute(task, case, kernel)
    comparison = correctness.compare(expected.outputs["C"], execution.buffers["C"], case)
    assert not comparison.ok
    found = explain(comparison, expected, task.reference())
    assert len(found) >= 1 and cause in found[0], found
    if where is not None:
        assert where in (pattern(comparison) or ""), pattern(comparison)


def test_a_right_output_needs_no_explanation(task: Task, drawn: Conditions, fakes: ModuleType) -> None:
    case = drawn.cases[0]
    expected = correctness.expect(task, case)
    execution = fakes.execute(task, case, fakes.honest)
    comparison = correctness.compare(expected.outputs["C"], execution.buffers["C"], case)
    assert explain(comparison, expected, task.reference()) == ()
    assert pattern(comparison) is None


def test_noise_gets_no_false_explanation(task: Task, drawn: Conditions, fakes: ModuleType) -> None:
    noise = np.random.default_rng(3).standard_normal((256, 512)).astype(np.float32)
    case = drawn.cases[0]
    expected = correctness.expect(task, case)
    execution = fakes.execute(task, case, lambda a, b: a @ b.T + 8 * noise)
    comparison = correctness.compare(expected.outputs["C"], execution.buffers["C"], case)
    assert not comparison.ok
    assert explain(comparison, expected, task.reference()) == ()


def test_inexact_integers_are_explained(task: Task, drawn: Conditions) -> None:
    case = drawn.cases[-1]
    expected = correctness.expect(task, case)
    output = expected.outputs["C"]
    assert output.exact is not None
    wrong = output.ideal.copy()
    row, column = np.argwhere(output.exact & (output.values > 16) & (output.values < 64))[0]
    wrong[row, column] += 0.25
    comparison = correctness.compare(output, numbers.encode(wrong.astype(np.float32), "bf16"), case)
    (cause,) = explain(comparison, expected, task.reference())
    assert "1 elements are not exact" in cause and "FP32" in cause
