"""Conversions against exact rationals; `compare` and numpy's own assertions check most of them."""

from __future__ import annotations

import itertools
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from tests.device.emulator.core.harness import apply, bits_of
from tests.device.emulator.core.numbers import E4M3, E5M2, FORMATS, TF32, Format, to_integral
from tests.device.emulator.core.test_float import edges
from tests.device.emulator.core.test_integer import read

LANES = 64
QUICK = settings(max_examples=8, deadline=None)
INTEGERS = ("u8", "s8", "u16", "s16", "u32", "s32", "u64", "s64")
FLOATS = ("f16", "bf16", "f32", "f64")


def words(kind: str, extra: tuple[int, ...] = ()) -> st.SearchStrategy[np.ndarray]:
    bits = bits_of(kind)
    top = (1 << bits) - 1
    special = [0, 1, 2, top, top >> 1, (top >> 1) + 1, *extra]
    if kind in FLOATS:
        special += edges(FORMATS[kind])
    elements = st.one_of(st.sampled_from([x & top for x in special]), st.integers(0, top))
    return arrays(np.dtype(f"<u{bits // 8}"), LANES, elements=elements)


def bounds(kind: str) -> tuple[int, int]:
    bits = bits_of(kind)
    return (-(1 << bits - 1), (1 << bits - 1) - 1) if kind[0] == "s" else (0, (1 << bits) - 1)


def compare(body: str, result: str, source: str, reference, extra: tuple[int, ...] = ()) -> None:  # type: ignore[no-untyped-def]
    @QUICK
    @given(words(source, extra))
    def check(operand: np.ndarray) -> None:
        got = apply(body, result, [source], operand)
        want = [reference(int(x)) & (1 << bits_of(result)) - 1 for x in operand]
        np.testing.assert_array_equal(got, np.array(want, got.dtype), err_msg=repr(operand.tolist()))

    check()


@pytest.mark.parametrize(("result", "source"), list(itertools.permutations(INTEGERS, 2)))
def test_integers_extend_and_truncate(result: str, source: str) -> None:
    compare(f"cvt.{result}.{source} %d, %a;", result, source, lambda x: read(x, source))


@pytest.mark.parametrize(
    ("result", "source"), [("u8", "s32"), ("s8", "s32"), ("u16", "s32"), ("s32", "s64"), ("u32", "s64"), ("s32", "u32")]
)
def test_integers_saturate(result: str, source: str) -> None:
    low, high = bounds(result)
    compare(f"cvt.sat.{result}.{source} %d, %a;", result, source, lambda x: max(low, min(high, read(x, source))))


def test_narrow_results_fill_their_register() -> None:
    """A signed byte in a 32-bit register is sign-extended, an unsigned one zero-extended."""
    source = np.array([0x80, 0x17F, 0xFFFFFF01] * 32, "<u4")[:64]
    assert apply("cvt.s8.s32 %d, %a;", "u32", ["u32"], source)[:3].tolist() == [0xFFFFFF80, 0x7F, 1]
    assert apply("cvt.u8.u32 %d, %a;", "u32", ["u32"], source)[:3].tolist() == [0x80, 0x7F, 1]


@pytest.mark.parametrize("source", FLOATS)
@pytest.mark.parametrize("result", ["s32", "u32", "s64", "u64", "s16", "u8"])
@pytest.mark.parametrize("mode", ["rni", "rzi", "rmi", "rpi"])
def test_floats_become_integers(result: str, source: str, mode: str) -> None:
    form, (low, high) = FORMATS[source], bounds(result)

    def reference(bits: int) -> int:
        value = form.value(bits)
        if value != value:  # as an H200
            return -(1 << bits_of(result) - 1) if source == "f64" or result in ("s64", "u64") else 0
        if isinstance(value, float):
            return high if value > 0 else low
        return max(low, min(high, to_integral(value, mode)))

    near = tuple(form.encode(Fraction(x)) for x in (0.5, 1.5, 2.5, -0.5, -1.5, 100.75, low, high, Fraction(high) + 1))
    compare(f"cvt.{mode}.{result}.{source} %d, %a;", result, source, reference, near)


@pytest.mark.parametrize("source", ["s32", "u32", "s64", "u64", "u8", "s16"])
@pytest.mark.parametrize("result", ["f16", "f32", "f64"])
@pytest.mark.parametrize("mode", ["rn", "rz", "rm", "rp"])
def test_integers_become_floats(result: str, source: str, mode: str) -> None:
    form = FORMATS[result]
    ties = (
        0x1000001,
        0x1000003,
        0x20000000000001,
        0x20000000000003,
        0x8000008000000001,
        0x8000000000000400,
        0x801,
        2049,
    )
    compare(
        f"cvt.{mode}.{result}.{source} %d, %a;",
        result,
        source,
        lambda x: form.encode(Fraction(read(x, source)), mode),
        ties,
    )


NARROWING = [("f32", "f64", m) for m in ("rn", "rz", "rm", "rp")] + [("f16", "f32", m) for m in ("rn", "rz")]
NARROWING += [("bf16", "f32", m) for m in ("rn", "rz")] + [("f16", "f64", "rn")]


@pytest.mark.parametrize(("result", "source", "mode"), NARROWING)
def test_floats_narrow(result: str, source: str, mode: str) -> None:
    wide, narrow = FORMATS[source], FORMATS[result]
    ties = tuple(
        wide.encode(narrow.value(x) + (narrow.value(x + 1) - narrow.value(x)) / 2 + d)  # type: ignore[operator]
        for x in (0, 1, narrow.encode(Fraction(1)), narrow.encode(Fraction(1)) + 1)
        for d in (Fraction(0), Fraction(1, 2**20) * narrow.value(1))  # type: ignore[operator]
    )
    compare(
        f"cvt.{mode}.{result}.{source} %d, %a;", result, source,
        lambda x: narrow.encode(wide.value(x), mode, wide.negative(x)), ties,
    )  # fmt: skip


@pytest.mark.parametrize(("result", "source"), [("f32", "f16"), ("f32", "bf16"), ("f64", "f32"), ("f64", "f16")])
def test_floats_widen_exactly(result: str, source: str) -> None:
    narrow, wide = FORMATS[source], FORMATS[result]
    compare(
        f"cvt.{result}.{source} %d, %a;",
        result,
        source,
        lambda x: wide.encode(narrow.value(x), "rn", narrow.negative(x)),
    )


@pytest.mark.parametrize("mode", ["rni", "rzi", "rmi", "rpi"])
def test_floats_round_to_integral_values(mode: str) -> None:
    form = FORMATS["f32"]

    def reference(bits: int) -> int:
        value = form.value(bits)
        if isinstance(value, float):
            return form.encode(value)
        return form.encode(Fraction(to_integral(value, mode)), "rn", form.negative(bits))

    compare(f"cvt.{mode}.f32.f32 %d, %a;", "f32", "f32", reference, (0x3F000000, 0x3FC00000, 0x40200000, 0xBF000000))


def test_flushing_and_saturation() -> None:
    tiny = np.array([1, 0x80000001, 0x7F800000, 0xC0000000, 0x3F000000, 0x7FC00000] * 16, "<u4")[:64]
    assert apply("cvt.ftz.f32.f32 %d, %a;", "f32", ["f32"], tiny)[:2].tolist() == [0, 0x80000000]
    assert apply("cvt.sat.f32.f32 %d, %a;", "f32", ["f32"], tiny)[2:6].tolist() == [0x3F800000, 0, 0x3F000000, 0]
    assert apply("cvt.rn.relu.bf16.f32 %d, %a;", "bf16", ["f32"], tiny)[1:6].tolist() == [0, 0x7F80, 0, 0x3F00, 0x7FFF]


@pytest.mark.parametrize(("kind", "form"), [("bf16", FORMATS["bf16"]), ("f16", FORMATS["f16"])])
@QUICK
@given(high=words("f32"), low=words("f32"))
def test_pairs_of_floats_pack(kind: str, form: Format, high: np.ndarray, low: np.ndarray) -> None:
    got = apply(f"cvt.rn.{kind}x2.f32 %d, %a, %b;", "b32", ["f32", "f32"], high, low)
    f32 = FORMATS["f32"]
    for half, source in ((got >> 16, high), (got & 0xFFFF, low)):
        np.testing.assert_array_equal(
            half, [form.encode(f32.value(int(x)), "rn", f32.negative(int(x))) for x in source]
        )


@pytest.mark.parametrize(("kind", "form"), [("e4m3", E4M3), ("e5m2", E5M2)])
@QUICK
@given(high=words("f32"), low=words("f32"))
def test_pairs_of_floats_pack_into_eight_bits(kind: str, form: Format, high: np.ndarray, low: np.ndarray) -> None:
    got = apply(f"cvt.rn.satfinite.{kind}x2.f32 %d, %a, %b;", "b16", ["f32", "f32"], high, low)
    f32 = FORMATS["f32"]
    for byte, source in ((got >> 8, high), (got & 0xFF, low)):
        want = [form.encode(f32.value(int(x)), "rn", f32.negative(int(x)), saturate=True) for x in source]
        np.testing.assert_array_equal(byte, want)


@pytest.mark.parametrize(("kind", "form"), [("e4m3", E4M3), ("e5m2", E5M2)])
def test_every_eight_bit_float_widens(kind: str, form: Format) -> None:
    codes = np.arange(256, dtype="<u2")
    got = apply(f"cvt.rn.f16x2.{kind}x2 %d, %a;", "b32", ["b16"], codes | (codes[::-1] << 8))
    f16 = FORMATS["f16"]
    want = [f16.encode(form.value(x), "rn", form.negative(x)) for x in range(256)]
    np.testing.assert_array_equal(got & 0xFFFF, want)
    np.testing.assert_array_equal(got >> 16, want[::-1])


def test_tf32_rounds_ties_away() -> None:
    f32 = FORMATS["f32"]

    def reference(bits: int) -> int:
        value = f32.value(bits)
        return bits & ~0x1FFF if value != value else TF32.encode(value, "rna", f32.negative(bits)) << 13

    def saturated(bits: int) -> int:
        rounded = reference(bits)
        return rounded - 0x2000 if rounded & 0x7F800000 == 0x7F800000 else rounded

    extra = (0x3F801000, 0x3F803000, 0x3F800FFF, 0x7F7FEFFF, 0x7F7FF000)
    compare("cvt.rna.tf32.f32 %d, %a;", "b32", "f32", reference, extra)
    compare("cvt.rna.satfinite.tf32.f32 %d, %a;", "b32", "f32", saturated, extra)


def test_what_tf32_makes_of_a_nan() -> None:
    """Measured on an H200: the low bits go, and satfinite takes one unit off; some NaNs do not stay one."""
    measured = [  # operand, result, result with satfinite
        (0x7F800001, 0x7F800000, 0x7F7FE000),
        (0x7FC00000, 0x7FC00000, 0x7FBFE000),
        (0x7FFFFFFF, 0x7FFFE000, 0x7FFFC000),
        (0xFFD1EB6C, 0xFFD1E000, 0xFFD1C000),
        (0xFFFFFFFF, 0xFFFFE000, 0xFFFFC000),
        (0x7F800000, 0x7F800000, 0x7F7FE000),
        (0xFF800000, 0xFF800000, 0xFF7FE000),
        (0x7F7FFFFF, 0x7F800000, 0x7F7FE000),
    ]
    operand, plain, saturated = (np.array(column * 4, "<u4") for column in zip(*measured, strict=True))
    np.testing.assert_array_equal(apply("cvt.rna.tf32.f32 %d, %a;", "b32", ["f32"], operand), plain)
    np.testing.assert_array_equal(apply("cvt.rna.satfinite.tf32.f32 %d, %a;", "b32", ["f32"], operand), saturated)
