from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ptxgym.errors import UsageError
from ptxgym.judge import conditions as conditioning
from ptxgym.judge import correctness, numbers, references
from ptxgym.judge.conditions import Case, Conditions
from ptxgym.task import Task

round_bf16 = numbers.round_bf16


def slices(a: Any, step: int) -> list[slice]:
    return [slice(k, k + step) for k in range(0, a.shape[1], step)]


def reversed_order(a: Any, b: Any) -> Any:
    return a[:, ::-1] @ b[:, ::-1].T


def sequential(a: Any, b: Any) -> Any:
    """One product after the other, each sum rounded to FP32: the naive kernel."""
    total = np.zeros((len(a), len(b)), np.float32)
    for k in range(a.shape[1]):
        total += a[:, k, None] * b[None, :, k]
    return total


def split_k(a: Any, b: Any) -> Any:
    half = a.shape[1] // 2
    return a[:, :half] @ b[:, :half].T + a[:, half:] @ b[:, half:].T


def truncating(bits: int) -> Callable[[Any, Any], Any]:
    """Tensor-core-like: each step of 16 products is exact, the running sum is cut to `bits` bits."""

    def kernel(a: Any, b: Any) -> Any:
        total = np.zeros((len(a), len(b)))
        for k in slices(a, 16):
            mantissa, exponent = np.frexp(total + a[:, k].astype(np.float64) @ b[:, k].T.astype(np.float64))
            total = np.ldexp(np.trunc(np.ldexp(mantissa, bits)), exponent - bits)
        return total

    return kernel


def bf16_sums(step: int) -> Callable[[Any, Any], Any]:
    def kernel(a: Any, b: Any) -> Any:
        total = np.zeros((len(a), len(b)), np.float32)
        for k in slices(a, step):
            total = round_bf16(total + a[:, k] @ b[:, k].T)
        return total

    return kernel


def split_k_bf16(a: Any, b: Any) -> Any:
    half = a.shape[1] // 2
    return round_bf16(a[:, :half] @ b[:, :half].T) + round_bf16(a[:, half:] @ b[:, half:].T)


def fp16_inputs(a: Any, b: Any) -> Any:
    return a.astype(np.float16).astype(np.float32) @ b.astype(np.float16).astype(np.float32).T


def fp16_sums(a: Any, b: Any) -> Any:
    total = np.zeros((len(a), len(b)), np.float32)
    for k in slices(a, 16):
        with np.errstate(over="ignore"):
            total = (total + a[:, k] @ b[:, k].T).astype(np.float16).astype(np.float32)
    return total


def toward_zero(a: Any, b: Any) -> Any:
    return numbers.bf16_values((np.ascontiguousarray(a @ b.T).view(np.uint32) >> 16).astype(np.uint16))


def one_wrong(a: Any, b: Any) -> Any:
    c = a @ b.T
    c[70, 130] *= -1
    return c


def transposed_tile(a: Any, b: Any) -> Any:
    c = a @ b.T
    c[64:128, 64:128] = c[64:128, 64:128].T.copy()
    return c


def identity(a: Any, b: Any) -> Any:
    return np.resize(a, (len(a), len(b)))


RIGHT = {
    "any order": reversed_order,
    "one after the other": sequential,
    "split K, FP32 partial sums": split_k,
    "truncating accumulator of 24 bits": truncating(24),
    "truncating accumulator of 22 bits": truncating(22),
}
WRONG = {
    "gain of 1 %": lambda a, b: 1.01 * (a @ b.T),
    "gain of 0.3 %": lambda a, b: 1.003 * (a @ b.T),
    "first 16 of K dropped": lambda a, b: a[:, 16:] @ b[:, 16:].T,
    "last of K dropped": lambda a, b: a[:, :-1] @ b[:, :-1].T,
    "transposed tile": transposed_tile,
    "one element": one_wrong,
    "BF16 sums each 16": bf16_sums(16),
    "BF16 sums each 64": bf16_sums(64),
    "split K, BF16 partial sums": split_k_bf16,
    "FP16 sums": fp16_sums,
    "FP16 inputs": fp16_inputs,
    "rounded toward zero": toward_zero,
    "zeros": lambda a, b: 0 * (a @ b.T),
    "constant": lambda a, b: 0 * (a @ b.T) + 3,
    "mean of the output": lambda a, b: 0 * (a @ b.T) + float((a @ b.T).mean()),
    "an input": identity,
    "row means + column means": lambda a, b: (
        (a @ b.mean(axis=0))[:, None] + (b @ a.mean(axis=0))[None, :] - a.mean(axis=0) @ b.mean(axis=0)
    ),
}
"""Every one must fail under at least one case."""


def comparisons(task: Task, drawn: Conditions, fakes: ModuleType, kernel: Any) -> dict[str, correctness.Comparison]:
    found = {}
    for case in drawn.cases:
        execution = fakes.execute(task, case, kernel)
        output = references.expect(task, case).outputs["C"]
        found[case.draw] = correctness.compare(output, execution.buffers["C"], case)
    return found


@pytest.mark.parametrize("name", RIGHT)
def test_right_kernels_pass_with_room(task: Task, drawn: Conditions, fakes: ModuleType, name: str) -> None:
    for draw, comparison in comparisons(task, drawn, fakes, RIGHT[name]).items():
        assert comparison.excess < 0.8, draw
        assert comparison.closeness == 1.0


@pytest.mark.parametrize("name", WRONG)
def test_wrong_kernels_fail(task: Task, drawn: Conditions, fakes: ModuleType, name: str) -> None:
    found = comparisons(task, drawn, fakes, WRONG[name])
    assert max(comparison.excess for comparison in found.values()) > 1.02
    assert all(comparison.closeness <= 0.75 for comparison in found.values() if not comparison.ok)


def test_two_bf16_partial_sums_fail_whatever_the_hidden_shape(task: Task, fakes: ModuleType) -> None:
    """Integers show it where each sum has a slice of 64 at least; on real numbers it stays just inside."""

    def by_slices(a: Any, b: Any) -> Any:
        half = 64 * -(-a.shape[1] // 128)
        return round_bf16(a[:, :half] @ b[:, :half].T) + round_bf16(a[:, half:] @ b[:, half:].T)

    sizes = set()
    for secret in (str(index).encode() for index in range(40)):
        found = conditioning.conditions(task, secret=secret)
        size = tuple(found.cases[-1].axes.values())
        if size not in sizes:
            sizes.add(size)
            compared = comparisons(task, found, fakes, by_slices)
            assert compared["integers"].excess > 1.02, size
            assert max(compared[draw].excess for draw in ("normal", "shifted", "spiky")) < 1.05
    assert len(sizes) == len(task.workload("emulation").hidden)


@pytest.mark.parametrize("name", ["zeros", "constant", "mean of the output", "an input", "row means + column means"])
def test_trivial_kernels_are_not_close(task: Task, drawn: Conditions, fakes: ModuleType, name: str) -> None:
    found = comparisons(task, drawn, fakes, WRONG[name])
    assert min(comparison.closeness for comparison in found.values()) == 0.0


@pytest.mark.parametrize("name", ["zeros", "constant", "mean of the output", "an input"])
def test_trivial_kernels_fail_on_every_draw(task: Task, drawn: Conditions, fakes: ModuleType, name: str) -> None:
    for draw, comparison in comparisons(task, drawn, fakes, WRONG[name]).items():
        assert not comparison.ok, draw


def test_fp16_inputs_fail_only_where_fp16_cannot_hold_them(task: Task, drawn: Conditions, fakes: ModuleType) -> None:
    found = comparisons(task, drawn, fakes, fp16_inputs)
    assert [draw for draw, comparison in found.items() if not comparison.ok] == ["shifted"]
    assert found["shifted"].excess > 2


def test_errors_are_those_of_numpy_float64(task: Task, drawn: Conditions, fakes: ModuleType) -> None:
    case = drawn.cases[0]
    execution = fakes.execute(task, case, WRONG["gain of 1 %"])
    a, b, c = (numbers.decode(execution.buffers[t.name], t, case.axes) for t in (*task.inputs, *task.outputs))
    reference = a.astype(np.float64) @ b.astype(np.float64).T
    comparison = comparisons(task, drawn, fakes, WRONG["gain of 1 %"])["normal"]
    assert comparison.closeness == 0.75, "1 % from the reference is as close as a wrong output can be"
    assert comparison.relative_error == pytest.approx(np.linalg.norm(c - reference) / np.linalg.norm(reference))
    tile = np.linalg.norm((c - reference)[64:128, 128:192])
    assert comparison.tile_errors[1, 2] == pytest.approx(tile)


@pytest.mark.parametrize("kernel", [reversed_order, sequential, split_k, truncating(24)])
@pytest.mark.parametrize("positive", [False, True])
def test_heavy_cancellation_is_not_an_error(task: Task, kernel: Any, positive: bool) -> None:
    """K's second half nearly cancels the first: results are tiny beside their terms (HazyResearch/HipKittens#64)."""
    axes = task.workload("emulation").axes
    case = Case("test/cancellation", axes, "normal", 0, False)
    random = np.random.default_rng(5)
    half = axes["K"] // 2
    x, y = (random.standard_normal((rows, half)).astype(np.float32) for rows in (axes["M"], axes["N"]))
    if positive:  # sums grow to half of Σ|a·b| before they cancel
        x, y = np.abs(x), np.abs(y)
    noise = random.standard_normal((axes["N"], half)).astype(np.float32)
    a, b = np.hstack([x, x]), np.hstack([y, -y + 2.0**-6 * noise])
    drawn = {"A": numbers.encode(a, "bf16"), "B": numbers.encode(b, "bf16")}
    expected = references.compute(task, case, drawn)
    a, b = expected.values["A"], expected.values["B"]
    output = expected.outputs["C"]
    magnitude = np.abs(a) @ np.abs(b).T
    assert np.median(np.abs(output.values) / magnitude) < 1e-3
    good = correctness.compare(output, numbers.encode(np.asarray(kernel(a, b), np.float32), "bf16"), case)
    bad = correctness.compare(output, numbers.encode(1.01 * (a @ b.T), "bf16"), case)
    assert good.ok and not bad.ok


def test_near_zero_elements_would_fail_a_relative_rule(task: Task, drawn: Conditions, fakes: ModuleType) -> None:
    comparison = comparisons(task, drawn, fakes, sequential)["spiky"]
    reference = np.abs(comparison.expected.values)
    smallest = np.unravel_index(reference.argmin(), reference.shape)
    assert reference[smallest] < 1e-2
    assert comparison.ok


def test_integers_must_be_exact_where_bf16_holds_them(task: Task, drawn: Conditions, fakes: ModuleType) -> None:
    case = next(case for case in drawn.cases if case.draw == "integers")
    output = references.expect(task, case).outputs["C"]
    assert output.exact is not None and 0.3 < output.exact.mean() < 0.9
    ideal = output.ideal.copy()
    row, column = np.argwhere(output.exact & (output.values > 16) & (output.values < 64))[0]
    ideal[row, column] += 0.25  # far below every norm bound
    comparison = correctness.compare(output, numbers.encode(ideal.astype(np.float32), "bf16"), case)
    assert comparison.inexact == 1 and not comparison.ok


def test_one_nan_fails(task: Task, drawn: Conditions) -> None:
    case = drawn.cases[0]
    output = references.expect(task, case).outputs["C"]
    ideal = output.ideal.astype(np.float32)
    ideal[3, 4] = np.nan
    comparison = correctness.compare(output, numbers.encode(ideal, "bf16"), case)
    assert not comparison.ok and comparison.relative_error == float("inf") and comparison.closeness == 0.0


def test_ptxbench_tolerance_is_looser_and_stricter(task: Task, drawn: Conditions, fakes: ModuleType) -> None:
    """A gain of 0.3 % passes theirs and fails ours; two BF16 partial sums fail theirs element by element."""
    assert comparisons(task, drawn, fakes, WRONG["gain of 0.3 %"])["normal"].ptxbench_ok
    assert not comparisons(task, drawn, fakes, split_k_bf16)["normal"].ptxbench_ok
    assert comparisons(task, drawn, fakes, reversed_order)["normal"].ptxbench_ok


def test_ptxbench_rule_needs_both_bounds_broken() -> None:
    vendor = np.array([0.0, 100.0, 1.0])
    assert correctness.ptxbench_accepts(np.array([0.009, 100.9, 1.009]), vendor)
    assert not correctness.ptxbench_accepts(np.array([0.02, 100.0, 1.0]), vendor)
    assert not correctness.ptxbench_accepts(np.array([0.0, 102.0, 1.0]), vendor)
    assert not correctness.ptxbench_accepts(np.array([0.0, np.inf, 1.0]), vendor)


@settings(max_examples=30, deadline=None)
@given(st.lists(st.integers(1, 150), min_size=1, max_size=4), st.integers(0, 2**32 - 1))
def test_tile_norms_add_up(sizes: list[int], seed: int) -> None:
    sizes = sizes if len(sizes) < 3 else [2] * (len(sizes) - 2) + sizes[-2:]
    values = np.random.default_rng(seed).standard_normal(sizes)
    norms = references.tile_norms(values)
    assert np.square(norms).sum() == pytest.approx(np.square(values).sum())
    if len(sizes) > 1:
        assert norms.shape == (*sizes[:-2], -(-sizes[-2] // 64), -(-sizes[-1] // 64))


def test_passes_agrees_with_compare(task: Task, drawn: Conditions, fakes: ModuleType) -> None:
    kernels = (reversed_order, WRONG["one element"], WRONG["zeros"], bf16_sums(16), split_k_bf16)
    verdicts = set()
    for kernel in kernels:
        for case in drawn.cases:
            data = fakes.execute(task, case, kernel).buffers["C"]
            output = references.expect(task, case).outputs["C"]
            assert correctness.passes(output, data) == correctness.compare(output, data, case).ok
            verdicts.add(correctness.passes(output, data))
    assert verdicts == {True, False}


def test_flaw_names_changed_inputs_and_wrong_outputs(task: Task, drawn: Conditions, fakes: ModuleType) -> None:
    case = drawn.cases[0]
    expected = references.expect(task, case)
    assert correctness.flaw(expected, fakes.execute(task, case, reversed_order).buffers) is None
    assert correctness.flaw(expected, fakes.execute(task, case, reversed_order, touch="B").buffers) == "B"
    assert correctness.flaw(expected, fakes.execute(task, case, one_wrong).buffers) == "C"


def test_bytes_are_compared_whatever_their_number() -> None:
    for count in (16, 17):
        one = np.arange(count, dtype=np.uint8)
        other = one.copy()
        assert correctness.equal_bytes(one, other)
        other[-1] ^= 128
        assert not correctness.equal_bytes(one, other)
    assert not correctness.equal_bytes(np.zeros(16, np.uint8), np.zeros(24, np.uint8))


def test_an_output_of_another_shape_is_a_bug(task: Task, drawn: Conditions) -> None:
    output = references.expect(task, drawn.cases[0]).outputs["C"]
    with pytest.raises(ValueError, match="the reference is of"):
        correctness.compare(output, output.ideal_data, drawn.cases[-1])
    with pytest.raises(ValueError, match="buffer C holds 2 bytes"):
        correctness.passes(output, output.ideal_data[:2])


def test_cache_keeps_the_newest_within_its_bound(
    task: Task, drawn: Conditions, monkeypatch: pytest.MonkeyPatch
) -> None:
    references.release()
    first = references.expect(task, drawn.cases[0])
    elements = 256 * 512
    assert first.nbytes == elements * (8 + 4 + 2) + 2 * 576 * (256 + 512)
    assert references.expect(task, drawn.cases[0]) is first
    monkeypatch.setattr(references, "HOST_CACHE_BYTES", int(2.5 * first.nbytes))
    second = references.expect(task, drawn.cases[1])
    assert references.expect(task, drawn.cases[0]) is first  # and the newest again
    references.expect(task, drawn.cases[2])
    assert references.expect(task, drawn.cases[0]) is first
    assert references.expect(task, drawn.cases[1]) is not second
    monkeypatch.setattr(references, "HOST_CACHE_BYTES", 1)
    alone = references.expect(task, drawn.cases[3])
    assert references.expect(task, drawn.cases[3]) is alone
    references.release()
    assert references.expect(task, drawn.cases[3]) is not alone


def test_tf32_products_are_refused(task: Task, drawn: Conditions, monkeypatch: pytest.MonkeyPatch) -> None:
    case = drawn.cases[0]
    other_than_numpy = ModuleType("cupy")
    monkeypatch.setenv("CUPY_TF32", "1")
    with pytest.raises(UsageError, match="CUPY_TF32"):
        references.compute(task, case, conditioning.inputs(task, case), other_than_numpy)


def test_reference_is_computed_once(task: Task, drawn: Conditions) -> None:
    case = drawn.cases[0]
    assert references.expect(task, case) is references.expect(task, case)
    assert references.expect(task, drawn.cases[1]) is not references.expect(task, case)


def test_expected_inputs_are_those_that_a_device_gets(task: Task, drawn: Conditions) -> None:
    for case in drawn.cases:
        device = conditioning.buffers(task, case)
        for name, data in references.expect(task, case).inputs.items():
            assert (device[name] == data).all()
