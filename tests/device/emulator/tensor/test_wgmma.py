"""wgmma against CuTe layouts in numpy: both majors, all swizzles and types, A in registers, accumulation."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.device.emulator.tensor import reference
from tests.device.emulator.tensor.harness import SCHEDULES, Kernels, succeeded
from tests.gpu.cases import (
    B_START,
    IMAGE,
    SPREADS,
    SWIZZLES,
    Case,
    accumulation_cases,
    accumulation_rows,
    dense,
    descriptor,
    shape_cases,
    spread_words,
    wgmma,
    wgmma_cases,
)

CASES = [c for c in wgmma_cases() if not c.probe or c.name == "wgmma/base_offset/aligned"]
CASES += shape_cases()


@pytest.mark.parametrize("case", CASES, ids=lambda c: c.name)
def test_results_are_exact_for_whole_numbers(conformance: Kernels, case: Case) -> None:
    run = conformance.run(case)
    assert succeeded(run)
    assert not run.codes(severity=1)
    np.testing.assert_array_equal(run.output, reference.wgmma(case))


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("name", ["wgmma/steps", "wgmma/n256/mm/128B", "wgmma/reg/n64/k", "wgmma/half/kk"])
def test_schedules_do_not_change_results(conformance: Kernels, name: str, schedule: str) -> None:
    case = next(c for c in CASES if c.name == name)
    for seed in range(3):
        np.testing.assert_array_equal(conformance.run(case, schedule, seed=seed).output, reference.wgmma(case))


@st.composite
def operands(draw: st.DrawFn, mn_major: bool, start: int) -> int:
    """Any descriptor of up to 64 rows whose bytes lie within 16 KiB of `start`."""
    swizzle = draw(st.sampled_from(SWIZZLES))
    offset = 16 * draw(st.integers(0, 128))
    base_offset = draw(st.integers(0, 7))
    if mn_major and swizzle != "NONE":
        leading, stride = draw(st.integers(0, 80)), draw(st.integers(0, 400))
    elif mn_major or swizzle == "NONE":
        leading, stride = draw(st.integers(0, 90)), draw(st.integers(0, 90))
    else:
        leading, stride = draw(st.integers(0, 0x3FFF)), draw(st.integers(0, 90))
    return descriptor(start + offset, 16 * leading, 16 * stride, swizzle, base_offset)


@settings(max_examples=80, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_any_descriptor_reads_what_the_canonical_layout_says(conformance: Kernels, data: st.DataObject) -> None:
    major = data.draw(st.sampled_from(("kk", "km", "mk", "mm")))
    a = data.draw(operands(major[0] == "m", 0))
    b = data.draw(operands(major[1] == "m", B_START))
    case = wgmma("any", f"wgmma_bf16_n64_{major}", a, b, registers=32, seed=data.draw(st.integers(0, 2**32)))
    run = conformance.run(case)
    assert succeeded(run), run.launch.records
    np.testing.assert_array_equal(run.output, reference.wgmma(case))


# ---- arithmetic


def same_numbers(got: np.ndarray, want: np.ndarray, kind: type[np.floating]) -> None:
    """Bit for bit."""
    word = np.uint16 if kind is np.float16 else np.uint32
    np.testing.assert_array_equal(got.view(word), want.view(word))


@pytest.mark.parametrize("case", list(accumulation_cases()), ids=lambda c: c.name)
def test_sums_are_truncated_as_hardware_does(conformance: Kernels, case: Case) -> None:
    kind = np.float16 if "half" in case.kernel else np.float32
    same_numbers(conformance.run(case).output, reference.wgmma_bits(case), kind)


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.sampled_from(("bf16", "f16")), st.sampled_from(SPREADS), st.sampled_from(SPREADS), st.integers(0, 2**32))
def test_any_operands_add_as_in_rational_arithmetic(
    conformance: Kernels, kind: str, spread_a: str, spread_b: str, seed: int
) -> None:
    image = np.zeros(IMAGE // 2, np.uint16)
    image[:1024] = spread_words(spread_a, kind, (1024,), seed)
    image[B_START // 2 :][:1024] = spread_words(spread_b, kind, (1024,), seed + 1)
    case = wgmma("sum", f"wgmma_{kind}_n8" + "_kk" * (kind == "bf16"), *UNSWIZZLED, image=image.tobytes(), kind=kind)
    accumulators = spread_words(spread_a, "f32", (128, 4), seed + 2)
    case = replace(case, input=case.input[:IMAGE] + accumulators.tobytes())
    same_numbers(conformance.run(case).output, reference.wgmma_bits(case), np.float32)


def test_probes_tell_models_apart() -> None:
    """Rounded sums differ from truncated ones on the probe rows, so that the tests above can fail."""
    rows = accumulation_rows()
    bits = (rows.view(np.uint32) >> 16).astype(np.uint16)
    ones = np.full((1, 16), 0x3F80, np.uint16)
    zeros = np.zeros((64, 1), np.uint32)
    truncated = reference.product(bits, ones, zeros, "bf16", "f32").view(np.float32)[:, 0]
    assert np.count_nonzero(truncated != rows.astype(np.float64).sum(axis=1).astype(np.float32)) >= 8
    assert np.count_nonzero(truncated != rows.cumsum(axis=1, dtype=np.float32)[:, -1]) >= 8


UNSWIZZLED = (descriptor(0, 128, 256, "NONE"), descriptor(B_START, 128, 256, "NONE"))
SPECIAL_HALVES = np.array([0, 1, 0x3FF, 0x400, 0x7BFF, 0x7C00, 0x7C01, 0x7E00, 0x7FFF, 0x3555, 0x0155], np.uint16)


def test_every_half_precision_number_is_read_exactly(conformance: Kernels) -> None:
    """A holds numbers, B the unit matrix: columns of D are columns of A."""
    signs = np.concatenate([SPECIAL_HALVES, SPECIAL_HALVES | 0x8000])
    numbers = np.concatenate([signs, np.random.default_rng(3).integers(0, 2**16, 512 - signs.size).astype(np.uint16)])
    halves = numbers.view(np.float16).reshape(64, 8).astype(np.float32)
    finite = np.isfinite(halves)
    image = np.zeros(IMAGE // 2, np.uint16)
    for row in range(64):  # unswizzled K-major: k 0 … 7 of A
        image[(row // 8 * 256 + row % 8 * 16) // 2 :][:8] = (
            np.where(finite, halves, 0)[row].astype(np.float16).view(np.uint16)
        )
    for column in range(8):
        image[(B_START + column * 16) // 2 + column] = 0x3C00
    run = conformance.run(wgmma("halves", "wgmma_f16_n8", *UNSWIZZLED, scale_d=0, image=image.tobytes()))
    rows, columns = reference.accumulator_places(8)
    np.testing.assert_array_equal(
        run.output.view(np.float32).reshape(128, 4), np.where(finite, halves, 0)[rows, columns]
    )


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.integers(0, 2**32))
def test_half_precision_results_are_rounded_to_nearest_even(conformance: Kernels, seed: int) -> None:
    """Any accumulator plus one product, rounded once."""
    rng = np.random.default_rng(seed)
    image = np.zeros(IMAGE // 2, np.uint16)
    scale = np.float16(2.0 ** rng.integers(-14, 12))
    factors = (rng.standard_normal(64).astype(np.float16) * scale).astype(np.float16)
    for row in range(64):
        image[(row // 8 * 256 + row % 8 * 16) // 2] = factors[row : row + 1].view(np.uint16)[0]
    for column in range(8):
        image[(B_START + column * 16) // 2] = 0x3C00  # 1
    case = wgmma(
        "round", "wgmma_half_n8", *(descriptor(s, 128, 256, "NONE") for s in (0, B_START)), registers=2, half=True
    )
    before = rng.integers(0, 2**16, (128, 4)).astype(np.uint16).view(np.float16)
    before = np.where(np.isfinite(before), before, np.float16(0)).astype(np.float16)
    case = Case(case.name, case.kernel, 128, image.tobytes() + before.tobytes(), case.out_bytes, case.args, case.wide)
    same_numbers(conformance.run(case).output, reference.wgmma_bits(case), np.float16)


@pytest.mark.parametrize("sign", [1, -1])
@pytest.mark.parametrize("kind", ["finite", "infinite"])
def test_an_fp16_result_is_rounded_once(conformance: Kernels, sign: int, kind: str) -> None:
    """32 + 2^-6 lies halfway between two numbers of fp16; what is 2^-20 above it fp32 would cut.

    An infinity in another row keeps all of A from the fast path.
    """
    a, b = np.full((64, 16), 1.5), np.full((8, 16), 1.5)
    a[:, 14:], b[:, 14:] = (2.0**-6, 2.0**-10), (1, 2.0**-10)
    above = a @ b.T + 0.5
    if kind == "infinite":
        a[63] = np.inf
    image = np.zeros(IMAGE // 2, np.float16)
    for start, rows in ((0, a * sign), (B_START, b)):
        for row, k in np.ndindex(rows.shape):
            image[(start + row // 8 * 256 + k // 8 * 128 + row % 8 * 16) // 2 + k % 8] = rows[row, k]
    case = wgmma("once", "wgmma_half_n8", *UNSWIZZLED, registers=2, half=True, image=image.tobytes())
    case = replace(case, input=image.tobytes() + np.full(512, 0.5 * sign, np.float16).tobytes())
    got = conformance.run(case).output.view(np.float16).reshape(128, 4)
    want = np.full((64, 8), 32.03125)
    assert (above == 32 + 2.0**-6 + 2.0**-20).all() and np.float16(32 + 2.0**-6) == 32, "no tie, or nothing above it"
    if kind == "infinite":
        want[63] = np.inf
    np.testing.assert_array_equal(got, sign * want[reference.accumulator_places(8)])


def test_the_ablation_delivers_zeros(conformance: Kernels) -> None:
    case = wgmma("zero", "wgmma_bf16_n64_kk", dense(0, "128B", False), dense(B_START, "128B", False), registers=32)
    assert conformance.run(case).output.any()
    assert not conformance.run(case, zero_target_results=True).output.any()
