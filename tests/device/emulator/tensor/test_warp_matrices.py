"""ldmatrix, stmatrix, movmatrix and mma.sync against definitions and CuTe layouts in numpy."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.device.emulator.tensor import reference
from tests.device.emulator.tensor.harness import Kernels, succeeded
from tests.gpu.cases import MMA_FORMS, Case, mma, product_cases, random_bytes, warp_cases
from tests.gpu.cases.products import WMMA

MOVES = [c for c in warp_cases() if c.kernel not in MMA_FORMS]


@pytest.mark.parametrize("case", MOVES, ids=lambda c: c.name)
def test_matrix_moves(conformance: Kernels, case: Case) -> None:
    run = conformance.run(case)
    assert succeeded(run)
    want = getattr(reference, case.kernel.split("_")[0])(case)
    np.testing.assert_array_equal(run.output, want)


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.sampled_from((1, 2, 4)),
    st.booleans(),
    st.integers(1, 9),
    st.sampled_from(range(1, 32, 2)),
    st.integers(0, 2**32),
)
def test_ldmatrix_takes_rows_from_anywhere(
    conformance: Kernels, num: int, trans: bool, pitch: int, multiplier: int, seed: int
) -> None:
    size = 32 * 16 * pitch
    case = Case(
        "any", f"ldmatrix_{num}{'t' * trans}", 32, random_bytes(size, seed), 128 * num, (16 * pitch, multiplier, size)
    )
    np.testing.assert_array_equal(conformance.run(case).output, reference.ldmatrix(case))


@pytest.mark.parametrize("kernel", MMA_FORMS)
def test_mma_sync_is_exact_for_whole_numbers(conformance: Kernels, kernel: str) -> None:
    for seed in range(30, 36):
        case = mma(kernel, seed)
        run = conformance.run(case)
        assert succeeded(run)
        np.testing.assert_array_equal(run.output, reference.mma(case, MMA_FORMS[kernel]))


@pytest.mark.parametrize("case", [c for c in warp_cases() if "accumulation" in c.name], ids=lambda c: c.name)
def test_sums_are_truncated_as_hardware_does(conformance: Kernels, case: Case) -> None:
    np.testing.assert_array_equal(conformance.run(case).output, reference.mma_bits(case, MMA_FORMS[case.kernel]))


@pytest.mark.parametrize("sign", [1, -1])
def test_an_fp16_result_is_rounded_once(conformance: Kernels, sign: int) -> None:
    """As of wgmma: 2^-20 above a tie. No record tells, so this holds mma.sync to the rule of the same tensor core."""
    a, b, c = np.full((16, 16), 1.5), np.full((8, 16), 1.5), np.full((16, 8), 0.5 * sign)
    a[:, 14:], b[:, 14:] = (2.0**-6, 2.0**-10), (1, 2.0**-10)
    a_threads, a_values, b_threads, b_values = reference.MMA_LAYOUTS[16, 16]
    parts = [
        matrix.astype(np.float16)[reference.thread_values((reference.WARP, threads), values, matrix.shape[0])]
        for matrix, threads, values in (
            (a * sign, a_threads, a_values),
            (b, b_threads, b_values),
            (c, (32, 1), ((2, 2), (16, 8))),
        )
    ]
    case = Case("once", "mma_half_k16", 32, np.concatenate(parts, axis=1).tobytes(), 256)
    assert (conformance.run(case).output.view(np.float16) == sign * 32.03125).all()


def test_the_small_integer_shape(faulty: Kernels) -> None:
    """m8n8k16 (PTX ISA 9.7.14.5.3): lane l holds row l / 4 of A and of Bᵀ, columns 4 (l % 4) …; two columns of C."""
    rng = np.random.default_rng(4)
    a, b = rng.integers(-128, 128, (8, 16), np.int8), rng.integers(0, 256, (8, 16), np.uint8)
    c = rng.integers(-1000, 1000, (8, 8)).astype(np.int32)
    words = np.concatenate(
        [a.view(np.uint32).reshape(32, 1), b.view(np.uint32).reshape(32, 1), c.view(np.uint32).reshape(32, 2)], axis=1
    )
    case = Case("m8n8k16", "mma_m8n8k16", 32, words.tobytes(), 256)
    want = c + a.astype(np.int32) @ b.astype(np.int32).T
    np.testing.assert_array_equal(faulty.run(case).output.view(np.int32).reshape(8, 8), want)


def test_mma_fragments_cover_each_element_once() -> None:
    for (k, bits), (a_threads, a_values, b_threads, b_values) in reference.MMA_LAYOUTS.items():
        for rows, threads, values in ((16, a_threads, a_values), (8, b_threads, b_values)):
            where = reference.thread_values((reference.WARP, threads), values, rows)
            places = set(map(tuple, np.stack(where, axis=-1).reshape(-1, 2).tolist()))
            assert places == {(r, c) for r in range(rows) for c in range(k)}, (k, bits)


WHOLE = [case for case in product_cases() if case.name.partition("wmma/")[2] in WMMA]


@pytest.mark.parametrize("case", [c for c in WHOLE if WMMA[c.name[5:]].result == "s32"], ids=lambda c: c.name)
def test_wmma_of_bytes(conformance: Kernels, case: Case) -> None:
    """PTX ISA 9.7.14.4: matrices lie in memory by rows or by columns; sums wrap or, with .satfinite, are limited."""
    wmma = WMMA[case.name[5:]]
    m, rest = wmma.shape[1:].split("n")
    n, k = rest.split("k")
    sizes = [(int(m), int(k)), (int(k), int(n)), (int(m), int(n))]
    data, at, matrices = np.frombuffer(case.input, np.uint8), 0, []
    for shape, layout, kind in zip(sizes, wmma.layouts, (wmma.factor, wmma.factor, "s32"), strict=True):
        element = np.dtype({"s8": np.int8, "u8": np.uint8, "s32": np.int32}[kind])
        count = shape[0] * shape[1] * element.itemsize
        values = data[at : at + count].view(element).astype(np.int64)
        matrices.append(values.reshape(shape) if layout == "row" else values.reshape(shape[::-1]).T)
        at += count
    a, b, c = matrices
    exact = c + a @ b
    wrapped = exact.astype(np.int32)
    want = np.clip(exact, -(2**31), 2**31 - 1).astype(np.int32) if wmma.limit else wrapped
    assert bool(wmma.limit) == bool((wrapped != exact).any())
    run = conformance.run(case)
    assert succeeded(run)
    lines = want if wmma.layouts[2] == "row" else want.T
    np.testing.assert_array_equal(run.output.view(np.int32), lines.reshape(-1))
