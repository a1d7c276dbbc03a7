from __future__ import annotations

import math
import struct
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from ptxgym.judge import numbers
from ptxgym.task import Tensor

FLOATS = st.floats(width=32, allow_nan=False, allow_infinity=False)


def nearest_even(value: float) -> float:
    """BF16 by exact rational arithmetic: the nearer neighbour, the one with an even last bit on a tie."""
    (bits,) = struct.unpack("<I", struct.pack("<f", value))
    low, high = bits & 0xFFFF0000, (bits & 0xFFFF0000) + 0x10000

    def as_fraction(word: int) -> Fraction:
        exponent, mantissa = word >> 23 & 0xFF, word & 0x7FFFFF
        if exponent == 255:
            return Fraction(2) ** 128 * (-1 if word >> 31 else 1)
        magnitude = (Fraction(mantissa | 0x800000) if exponent else Fraction(mantissa)) * Fraction(2) ** (
            max(exponent, 1) - 150
        )
        return -magnitude if word >> 31 else magnitude

    down, up = abs(as_fraction(bits) - as_fraction(low)), abs(as_fraction(high & 0xFFFFFFFF) - as_fraction(bits))
    chosen = low if down < up or (down == up and not low >> 16 & 1) else high
    return float(struct.unpack("<f", struct.pack("<I", chosen))[0])


@given(FLOATS)
@example(1.00390625)  # a tie: 1 + 2⁻⁸
@example(1.01171875)  # a tie that goes up: 1 + 3·2⁻⁸
@example(3.4e38)  # overflows
@example(1e-45)
def test_rounding_is_to_nearest_even(value: float) -> None:
    got = float(numbers.round_bf16(np.float32([value]))[0])
    assert got == nearest_even(value)
    assert math.copysign(1, got) == math.copysign(1, value)


def test_nan_and_infinity_survive() -> None:
    got = numbers.round_bf16(np.float32([np.nan, np.inf, -np.inf]))
    assert np.isnan(got[0]) and got[1] == np.inf and got[2] == -np.inf


@given(st.integers(0, 0xFFFF))
def test_bits_and_values_are_inverse(bits: int) -> None:
    word = np.array([bits], dtype=np.uint16)
    value = numbers.bf16_values(word)
    if not np.isnan(value[0]):
        assert numbers.bf16_bits(value)[0] == bits


def test_bytes_go_both_ways_and_sizes_are_checked() -> None:
    tensor, axes = Tensor(name="X", dtype="bf16", shape=("M", "N")), {"M": 2, "N": 3}
    values = np.arange(6, dtype=np.float32).reshape(2, 3)
    data = numbers.encode(values, "bf16")
    assert data.dtype == np.uint8 and data.nbytes == 12
    assert (numbers.decode(data, tensor, axes) == values).all()
    with pytest.raises(ValueError, match="X holds 11 bytes, its shape needs 12"):
        numbers.decode(data[:-1], tensor, axes)


@pytest.mark.parametrize("dtype", ["bf16", "fp32"])
def test_poison_is_nan_and_marks_what_was_not_written(dtype: str) -> None:
    tensor, axes = Tensor(name="X", dtype=dtype, shape=("M",)), {"M": 5}
    data = numbers.poisoned(tensor, axes)
    assert np.isnan(numbers.decode(data, tensor, axes)).all()
    assert numbers.unwritten(data, tensor, axes).all()
    item = len(data) // 5
    data[item : 2 * item] = numbers.encode(np.float32([np.nan]), dtype)  # a computed NaN is not the poison
    assert numbers.unwritten(data, tensor, axes).tolist() == [True, False, True, True, True]
