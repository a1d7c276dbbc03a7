from __future__ import annotations

import dataclasses
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from ptxgym.judge import correctness, misreadings, numbers, references
from ptxgym.judge.conditions import Case, Conditions
from ptxgym.judge.explain import explain
from ptxgym.judge.pattern import pattern
from ptxgym.task import Task, Tensor, load_task
from ptxgym.variants import load_variant


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


def wide_bf16_sums(a: Any, b: Any) -> Any:
    """The running sum goes through BF16 after every 64 of K."""
    total = np.zeros((len(a), len(b)), np.float32)
    for k in range(0, a.shape[1], 64):
        total = numbers.round_bf16(total + a[:, k : k + 64] @ b[:, k : k + 64].T)
    return total


def half_strides(x: Any) -> Any:
    """The rows of BF16 that begin every K bytes."""
    flat, length = x.reshape(-1), x.shape[1]
    return np.stack([flat[row * length // 2 :][:length] for row in range(len(x))])


def as_fp16(x: Any) -> Any:
    return numbers.bf16_bits(x).view(np.float16).astype(np.float32)


def bf16_chain(products: Any) -> Any:
    """Every product is added in BF16; `products` rounds them before or leaves that to the addition (fma)."""

    def kernel(a: Any, b: Any) -> Any:
        total = np.zeros((len(a), len(b)), np.float32)
        for k in range(a.shape[1]):
            total = numbers.round_bf16(total + products(np.outer(a[:, k], b[:, k])))
        return total

    return kernel


def accumulator_as_rows(c: Any) -> None:
    """A warp stores what lane l holds of an 8×8 block (row l / 4, columns 2 (l % 4) and one more) at row l % 8."""
    rows, columns = c.shape
    blocks = c.reshape(rows // 8, 8, columns // 8, 8).transpose(0, 2, 1, 3)
    right = blocks.copy()
    for lane in range(32):
        blocks[:, :, lane % 8, lane // 8 * 2 :][:, :, :2] = right[:, :, lane // 4, lane % 4 * 2 :][:, :, :2]
    c[:] = blocks.transpose(0, 2, 1, 3).reshape(rows, columns)


def swapped_registers(c: Any) -> None:
    """Of a 16×16 block the lower left and the upper right 8×8 change places: two registers of the fragment."""
    rows, columns = c.shape
    blocks = c.reshape(rows // 16, 2, 8, columns // 16, 2, 8)
    c[:] = blocks.transpose(0, 4, 2, 3, 1, 5).reshape(rows, columns)


def swapped_columns_of_64(c: Any) -> None:
    """In every 64×8 block of a wgmma fragment odd rows have their two halves of four columns exchanged."""
    rows, columns = c.shape
    blocks = c.reshape(rows, columns // 8, 2, 4)
    blocks[1::2] = blocks[1::2, :, ::-1].copy()


def transpose_large_tiles(c: Any) -> None:
    for row in range(0, c.shape[0], 128):
        for column in range(0, c.shape[1], 128):
            tile = c[row : row + 128, column : column + 128]
            tile[:] = tile.T.copy()


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
    "wide bf16 sums": (wide_bf16_sums, "after every step such as k 0:16 … k 48:64: keep partial sums in FP32", None),
    "all NaN": (
        lambda a, b: np.nan * (a @ b.T),
        "all 131,072 elements are NaN (the inputs held none): uninitialised accumulators",
        "nearly every element",
    ),
    "toward zero": (toward_zero, "rounded toward zero", None),
    "other major B": (lambda a, b: a @ b.reshape(b.shape[::-1]), "B is read as [K, N], but it lies in memory as", None),
    "other major A": (lambda a, b: a.reshape(a.shape[::-1]).T @ b.T, "A is read as [K, M], but", None),
    "strides of B": (lambda a, b: a @ half_strides(b).T, "B is read with rows half as far apart", None),
    "strides": (lambda a, b: half_strides(a) @ half_strides(b).T, "A, B are read with rows half as far", None),
    "FP16": (lambda a, b: as_fp16(a) @ as_fp16(b).T, "A, B are read as FP16, but they hold BF16", None),
    "FP16 of A": (lambda a, b: as_fp16(a) @ b.T, "A is read as FP16, but it holds BF16", None),
    "bf16 fma": (bf16_chain(lambda products: products), "rounded to BF16 after every product", None),
    "bf16 mul and add": (bf16_chain(numbers.round_bf16), "rounded to BF16 after every product", None),
    "wrong fragment": (edited(accumulator_as_rows), "of every 8×8 block are rearranged alike, [0, 2] holds", None),
    "wrong registers": (edited(swapped_registers), "of every 16×16 block are rearranged alike, [0, 8] holds", None),
    "wrong halves": (
        edited(swapped_columns_of_64),
        "block are rearranged alike, [1, 0] holds what belongs to [1, 4]",
        None,
    ),
    "transposed": (lambda a, b: np.ascontiguousarray((a @ b.T).T).reshape(len(a), len(b)), "transposed result", None),
    "transposed large tiles": (edited(transpose_large_tiles), "transposed: larger tiles are stored transposed", None),
}


@pytest.mark.parametrize("name", CASES)
def test_the_cause_is_named(task: Task, drawn: Conditions, fakes: ModuleType, name: str) -> None:
    kernel, cause, where = CASES[name]
    case = drawn.cases[0]
    expected = references.expect(task, case)
    execution = fakes.execute(task, case, kernel)
    comparison = correctness.compare(expected.outputs["C"], execution.buffers["C"], case)
    assert not comparison.ok
    found = explain(comparison, expected, task.reference())
    assert len(found) >= 1 and cause in found[0], found
    if where is not None:
        assert where in (pattern(comparison) or ""), pattern(comparison)


@pytest.mark.parametrize("factor", [0.0, 5.0, 20.0])
@pytest.mark.parametrize("draw", [0, -1])
def test_a_factor_leaves_little_of_the_error(
    task: Task, drawn: Conditions, fakes: ModuleType, factor: float, draw: int
) -> None:
    """Beside noise as large as a third of the result, no factor is named; without it, one is."""
    case = drawn.cases[draw]
    expected = references.expect(task, case)
    output = expected.outputs["C"]
    noise = np.random.default_rng(3).standard_normal(output.values.shape)
    noise *= max(factor, 1.0) / 3 * output.scale / np.linalg.norm(noise)

    def causes(sums: Any) -> tuple[str, ...]:
        execution = fakes.execute(task, case, lambda a, b: sums.astype(np.float32))
        return explain(correctness.compare(output, execution.buffers["C"], case), expected, task.reference())

    assert not [cause for cause in causes(factor * output.values + noise) if "× the reference" in cause]
    if factor:
        assert f"{factor:.4g} × the reference" in causes(factor * output.values)[0]


def test_gross_errors_on_integers_are_no_lost_bits(task: Task, drawn: Conditions, fakes: ModuleType) -> None:
    case = next(case for case in drawn.cases if case.draw == "integers")
    expected = references.expect(task, case)
    output = expected.outputs["C"]
    shuffled = np.random.default_rng(4).permutation(output.values.reshape(-1)).reshape(output.values.shape)
    execution = fakes.execute(task, case, lambda a, b: shuffled.astype(np.float32))
    assert explain(correctness.compare(output, execution.buffers["C"], case), expected, task.reference()) == ()


@pytest.mark.parametrize(("name", "output"), [("attn_fwd", "O"), ("attn_fwd_causal", "LSE"), ("attn_bwd", "dK")])
def test_misread_inputs_of_attention(name: str, output: str) -> None:
    task, axes = load_task(name), {"B": 1, "H": 2, "S": 128, "D": 128}
    case = Case("emulation/normal", axes, "normal", 1, hidden=False)
    expected = references.expect(task, case)
    seen = {**expected.values, "K": misreadings.exchanged(expected.values["K"])}
    wrong = task.reference().reference(np, seen, axes)[output].astype(np.float32)
    held = expected.outputs[output]
    comparison = correctness.compare(held, numbers.encode(wrong, held.tensor.dtype), case)
    assert not comparison.ok
    assert explain(comparison, expected, task.reference())[0].startswith("K is read as [D, S], but it lies in memory")


def test_misread_inputs_of_a_variant_are_misread_as_they_lie_in_memory() -> None:
    task, axes = load_variant("gemm", "nn"), {"M": 128, "N": 256, "K": 64}
    case = Case("emulation/normal", axes, "normal", 1, hidden=False)
    expected = references.expect(task, case)
    assert task.inputs[0].shape == ("K", "M")
    memory = np.ascontiguousarray(expected.values["A"].T).reshape(-1)
    half = memory[np.arange(64)[:, None] * 64 + np.arange(128)].T
    for seen, cause in (
        (memory.reshape(128, 64), "A is read as [M, K], but it lies in memory as [K, M]: exchange the strides"),
        (half, "A is read with rows half as far apart"),
    ):
        wrong = numbers.encode(seen @ expected.values["B"].T, "bf16")
        comparison = correctness.compare(expected.outputs["C"], wrong, case)
        assert explain(comparison, expected, task.reference())[0].startswith(cause)


def test_large_cases_are_not_computed_again(task: Task, monkeypatch: pytest.MonkeyPatch, drawn: Conditions) -> None:
    monkeypatch.setattr(misreadings, "MOST_ELEMENTS", 1)
    case = drawn.cases[0]
    expected = references.expect(task, case)
    a, b = expected.values["A"], expected.values["B"]
    wrong = numbers.encode(a @ b.reshape(b.shape[::-1]), "bf16")
    comparison = correctness.compare(expected.outputs["C"], wrong, case)
    assert explain(comparison, expected, task.reference()) == ()


def test_a_right_output_needs_no_explanation(task: Task, drawn: Conditions, fakes: ModuleType) -> None:
    case = drawn.cases[0]
    expected = references.expect(task, case)
    execution = fakes.execute(task, case, fakes.honest)
    comparison = correctness.compare(expected.outputs["C"], execution.buffers["C"], case)
    assert explain(comparison, expected, task.reference()) == ()
    assert pattern(comparison) is None


def test_nan_that_came_in_is_told(task: Task) -> None:
    case = Case("x/x", {"M": 128, "N": 256, "K": 64}, "normal", 1, hidden=False)
    a, b = np.ones((128, 64), np.float32), np.full((256, 64), np.nan, np.float32)
    good = {"A": numbers.encode(a, "bf16"), "B": numbers.encode(np.nan_to_num(b, nan=2.0), "bf16")}
    expected = references.compute(task, case, good)
    data = numbers.encode(np.full((128, 256), np.nan, np.float32), "bf16")
    comparison = correctness.compare(expected.outputs["C"], data, case)
    held = dataclasses.replace(expected, inputs={**good, "B": numbers.encode(b, "bf16")})
    (cause,) = explain(comparison, held, task.reference())
    assert "are NaN (B held NaN, too)" in cause


def test_a_displaced_tile_is_found_beside_smaller_ones(task: Task) -> None:
    """At the edge tiles are smaller; they neither match nor hide the tile that does."""
    tensor, axes = Tensor(name="X", dtype="fp32", shape=("M", "N")), {"M": 150, "N": 200}
    values = np.random.default_rng(2).standard_normal((150, 200))
    output = references.ExpectedOutput(
        tensor=tensor,
        axes=axes,
        values=values,
        ideal_data=numbers.encode(values.astype(np.float32), "fp32"),
        accumulation=np.zeros((150, 200), np.float32),
        must_be_exact=False,
        scale=float(np.linalg.norm(values)),
        lost=1e-6,
        relative_budget=1e-5,
        tile_budgets=np.full((3, 4), 1e-4),
        predictor_error=1.0,
        predictor="zeros",
    )
    case = Case("x/x", axes, "normal", 0, hidden=False)
    expected = references.Expected(case, (), {}, {"X": output})
    found = values.astype(np.float32)
    found[64:128, 128:192] = found[0:64, 64:128]
    comparison = correctness.compare(output, numbers.encode(found, "fp32"), case)
    (cause,) = explain(comparison, expected, task.reference())
    assert cause.startswith("X[64:128, 128:192] holds the values of X[0:64, 64:128]")
    edge = values.astype(np.float32)
    edge[128:150, 192:200] = 0
    comparison = correctness.compare(output, numbers.encode(edge, "fp32"), case)
    assert explain(comparison, expected, task.reference()) == ("X[128:150, 192:200] is all zeros",)


def test_a_wrong_vector_is_explained(task: Task) -> None:
    tensor, axes = Tensor(name="L", dtype="fp32", shape=("M",)), {"M": 200}
    values = np.random.default_rng(2).standard_normal(200)
    output = references.ExpectedOutput(
        tensor=tensor,
        axes=axes,
        values=values,
        ideal_data=numbers.encode(values.astype(np.float32), "fp32"),
        accumulation=np.zeros(200, np.float32),
        must_be_exact=False,
        scale=float(np.linalg.norm(values)),
        lost=1e-6,
        relative_budget=1e-5,
        tile_budgets=np.full(4, 1e-4),
        predictor_error=1.0,
        predictor="zeros",
    )
    case = Case("x/x", axes, "normal", 0, hidden=False)
    expected = references.Expected(case, (), {}, {"L": output})
    data = numbers.encode(values.astype(np.float32), "fp32")
    data.view(np.uint32)[150:170] = numbers.POISON["fp32"]
    comparison = correctness.compare(output, data, case)
    assert explain(comparison, expected, task.reference()) == (
        "20 of 200 elements were never written, exactly L[150:170]",
    )


def test_noise_gets_no_false_explanation(task: Task, drawn: Conditions, fakes: ModuleType) -> None:
    noise = np.random.default_rng(3).standard_normal((256, 512)).astype(np.float32)
    case = drawn.cases[0]
    expected = references.expect(task, case)
    execution = fakes.execute(task, case, lambda a, b: a @ b.T + 8 * noise)
    comparison = correctness.compare(expected.outputs["C"], execution.buffers["C"], case)
    assert not comparison.ok
    assert explain(comparison, expected, task.reference()) == ()


def test_inexact_integers_are_explained(task: Task, drawn: Conditions) -> None:
    case = next(case for case in drawn.cases if case.draw == "integers")
    expected = references.expect(task, case)
    output = expected.outputs["C"]
    assert output.exact is not None
    wrong = output.ideal.copy()
    row, column = np.argwhere(output.exact & (output.values > 16) & (output.values < 64))[0]
    wrong[row, column] += 0.25
    comparison = correctness.compare(output, numbers.encode(wrong.astype(np.float32), "bf16"), case)
    (cause,) = explain(comparison, expected, task.reference())
    assert "1 elements are not exact" in cause and "FP32" in cause


@pytest.mark.parametrize("draw", ["normal", "shifted"])
@pytest.mark.parametrize(
    ("kernel", "said"),
    [
        (lambda a, b: a[:, -64:] @ b[:, -64:].T, "alone: the accumulator starts anew in between"),
        (lambda a, b: a[:, :64] @ b[:, :64].T, "alone: what follows is not added"),
        (lambda a, b: 0.2 * (a @ b.T), "0.2 × the reference: a scale factor is wrong"),
    ],
    ids=["last slice", "first slice", "factor"],
)
def test_a_part_of_a_sum_is_no_scale_factor(
    task: Task, drawn: Conditions, fakes: ModuleType, draw: str, kernel: Any, said: str
) -> None:
    """Where inputs have a mean, a fifth of the terms is nearly a fifth of the sum."""
    case = dataclasses.replace(drawn.cases[0], draw=draw)
    execution = fakes.execute(task, case, kernel)
    expected = references.expect(task, case)
    compared = correctness.compare(expected.outputs["C"], execution.buffers["C"], case)
    assert said in explain(compared, expected, task.reference())[0]
