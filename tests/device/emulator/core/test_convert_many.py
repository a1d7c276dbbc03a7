"""Stochastic rounding and cvt.pack, from the words of the PTX ISA (9.7.9.21, 9.7.9.22) in integers and tables."""

from __future__ import annotations

from fractions import Fraction
from functools import lru_cache

import numpy as np
import pytest
from numpy.typing import NDArray

from tests.device.emulator.core.harness import apply
from tests.device.emulator.core.numbers import BF16, E4M3, E5M2, F16, F32, Format

Bits = NDArray[np.uint32]
SMALL = {"e2m1": Format(1, 2, 7), "e2m3": Format(3, 2, 31), "e3m2": Format(2, 3, 31)}
FOUR = {"e4m3": E4M3, "e5m2": E5M2, **SMALL}
RANDOM_BITS = {"f16": 13}
"""Of one element; 16 for the others."""


NUMBERS = {"f16": F16, "bf16": BF16, **FOUR}


@lru_cache
def finite(kind: str) -> list[Fraction]:
    """Return the finite magnitudes by code; formats below eight bits have no others (PTX ISA 5.2.3)."""
    number = NUMBERS[kind]
    if kind in SMALL:
        fields = (divmod(code, 1 << number.mantissa) for code in range(1 << number.mantissa + number.exponent))
        return [
            (Fraction(f, 1 << number.mantissa) + (1 if e else 0)) * Fraction(2) ** (max(e, 1) - number.bias)
            for e, f in fields
        ]
    largest = (number.nan if number.finite_only else number.infinity) - 1
    return [Fraction(number.value(code)) for code in range(largest + 1)]


@lru_cache
def floats(kind: str) -> NDArray[np.float64]:
    return np.array([float(value) for value in finite(kind)])


def rounded(kind: str, x: int, random: int, saturate: bool, relu: bool) -> int:
    """The carry of random bits and discarded bits chooses between the neighbours of a value."""
    number, table, value = NUMBERS[kind], finite(kind), F32.value(x)
    if value != value:
        return number.nan
    if relu and x >> 31:
        return 0
    sign = 1 << number.mantissa + number.exponent if x >> 31 else 0
    beyond = len(table) - 1 if saturate else number.infinity
    magnitude = abs(value)
    if isinstance(magnitude, float):
        return sign | beyond
    below = int(np.searchsorted(floats(kind), float(magnitude), side="right")) - 1
    above = table[below + 1] if below + 1 < len(table) else 2 * table[-1] - table[-2]
    width = RANDOM_BITS.get(kind, 16)
    discarded = (magnitude - table[below]) / (above - table[below])
    if discarded >= 1:
        return sign | beyond
    carry = (int(discarded * (1 << width)) + random) >> width
    code = below + carry
    return sign | (beyond if code >= len(table) else code)


def samples(kind: str) -> Bits:
    """Values on, between and beyond those of a format, as f32 bits; a multiple of 32."""
    table = finite(kind)
    places = np.unique([*range(12), *np.linspace(0, len(table) - 2, 60).astype(int)]) % (len(table) - 1)
    some = [float(table[i] + (table[i + 1] - table[i]) * Fraction(n, 8)) for i in places for n in (0, 1, 3, 4, 7)]
    top = float(table[-1])
    some += [top, min(top * 1.01, 3.4e38), min(top * 1.5, 3.4e38), 3e38, np.inf, np.nan, 1e-40, 1e-30]
    both = np.array([*some, *(-x for x in some)], np.float64).astype(np.float32)
    return np.resize(both, -(-both.size // 32) * 32).view(np.uint32)


def random_words(count: int) -> Bits:
    words = np.random.default_rng(11).integers(0, 2**32, count, dtype=np.uint32)
    words[:8] = (0, 0xFFFFFFFF, 0x00010001, 0x80008000, 0x1FFF1FFF, 0xE000E000, 0x0000FFFF, 0xFFFF0000)
    return words


@pytest.mark.parametrize("kind", ["f16", "bf16"])
@pytest.mark.parametrize("words", ["", ".relu", ".satfinite", ".relu.satfinite"])
def test_pairs_are_rounded_by_their_half_of_the_random_bits(kind: str, words: str) -> None:
    high = samples(kind)
    low, random = np.roll(high, 13), np.resize(random_words(97), high.size)
    got = apply(f"cvt.rs{words}.{kind}x2.f32 %d, %a, %b, %c;", "b32", ["f32", "f32", "b32"], high, low, random)
    cut = 0x1FFF if kind == "f16" else 0xFFFF
    want = [
        rounded(kind, int(a), int(r) >> 16 & cut, "sat" in words, "relu" in words) << 16
        | rounded(kind, int(b), int(r) & cut, "sat" in words, "relu" in words)
        for a, b, r in zip(high, low, random, strict=True)
    ]
    np.testing.assert_array_equal(got, np.array(want, np.uint32))


def test_both_neighbours_come_out_as_often_as_their_distance_says() -> None:
    """All 65,536 random numbers: a quarter of the way up, a quarter is rounded up."""
    x = np.full(1 << 16, 1.0 + 2.0**-9, np.float32)  # bf16: a quarter of its unit above one
    got = apply("cvt.rs.bf16x2.f32 %d, %a, %a, %b;", "b32", ["f32", "b32"], x, np.arange(1 << 16, dtype=np.uint32))
    assert np.unique(got & 0xFFFF, return_counts=True)[1].tolist() == [3 << 14, 1 << 14]
    assert set((got >> 16).tolist()) == {0x3F80}


def backwards(sixteen: int) -> int:
    return int(f"{sixteen:016b}"[::-1], 2)


@pytest.mark.parametrize("kind", FOUR)
@pytest.mark.parametrize("relu", ["", ".relu"])
def test_four_elements_share_two_numbers(kind: str, relu: str) -> None:
    a = samples(kind)
    sources = [np.roll(a, n) for n in (0, 5, 17, 29)]
    index = np.arange(a.size, dtype=np.uint64)
    random = (index * 0x9E3779B1 + 0x7F4A7C15 & 0xFFFFFFFF).astype(np.uint32)
    result = "b16" if kind == "e2m1" else "b32"
    drawn = "mad.lo.u32 %t0, %r3, 0x9E3779B1, 0x7F4A7C15;"
    body = f"{drawn} cvt.rs{relu}.satfinite.{kind}x4.f32 %d, {{%a, %b, %c, %e}}, %t0;"
    got = apply(body, result, ["f32"] * 4, *sources)
    width, want = (4 if kind == "e2m1" else 8), []
    for r, *elements in zip(random.tolist(), *(s.tolist() for s in sources), strict=True):
        if kind == "e2m1":
            upper, lower = r >> 24 << 8 | r >> 8 & 0xFF, (r >> 16 & 0xFF) << 8 | r & 0xFF
        else:
            upper, lower = r >> 16, r & 0xFFFF
        word = 0
        for x, own in zip(elements, (backwards(upper), upper, backwards(lower), lower), strict=True):
            word = word << width | rounded(kind, x, own, True, bool(relu))
        want.append(word)
    np.testing.assert_array_equal(got, np.array(want, got.dtype))


def test_the_first_of_a_pair_reads_the_shared_number_backwards() -> None:
    """By hand: 1 + 1/16 lies in the middle of two e4m3 numbers, and half of the 65,536 random numbers carry."""
    x = np.full(32, 1.0625, np.float32)
    got = apply("cvt.rs.satfinite.e4m3x4.f32 %d, {%a, %a, %a, %a}, 0x80000001;", "b32", ["f32"], x)
    assert set(got.tolist()) == {0x38393938}


# ---- cvt.pack


@pytest.mark.parametrize("kind", ["u16", "s16", "u8", "s8", "u4", "s4", "u2", "s2"])
def test_integers_are_clamped_and_packed(kind: str) -> None:
    size, signed = int(kind[1:]), kind[0] == "s"
    low, high = (-(1 << size - 1), (1 << size - 1) - 1) if signed else (0, (1 << size) - 1)
    near = [n + d for n in (low, high, 0, -(2**31) + 2, 2**31 - 3) for d in (-2, -1, 0, 1, 2)]
    rng = np.random.default_rng(5)
    a = np.resize(np.array([*near, *rng.integers(-(2**31), 2**31, 39)], np.int64), 64)
    b, c = rng.permutation(a), rng.integers(0, 2**32, 64, dtype=np.int64)
    words = [(x & 0xFFFFFFFF).astype(np.uint32) for x in (a, b, c)]
    field = (1 << size) - 1
    want = (np.clip(a, low, high) & field) << size | np.clip(b, low, high) & field
    if size == 16:
        got = apply(f"cvt.pack.sat.{kind}.s32 %d, %a, %b;", "u32", ["s32", "s32"], *words[:2])
    else:
        got = apply(f"cvt.pack.sat.{kind}.s32.b32 %d, %a, %b, %c;", "u32", ["s32", "s32", "b32"], *words)
        want |= c << 2 * size & 0xFFFFFFFF
    np.testing.assert_array_equal(got, want)


def test_four_bytes_are_packed_by_two_instructions() -> None:
    """The ISA's example: the result of the first is the third operand of the second."""
    a = np.full(32, 300, np.uint32)
    body = "cvt.pack.sat.u8.s32.b32 %t0, 3, 4, 0; cvt.pack.sat.u8.s32.b32 %d, %a, -7, %t0;"
    assert set(apply(body, "u32", ["s32"], a).tolist()) == {0x0304FF00}
