"""wgmma on u8 and s8 against numpy's 64-bit integers: both types of both operands, wrapping, .satfinite."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from tests.device.emulator.tensor.reference import accumulator_places
from tests.device.emulator.tensor.test_wgmma_elements import image, launched, text

Matrix = NDArray[np.int64]
RANGE = {"u8": (0, 256), "s8": (-128, 128)}
LEAST, GREATEST = -(2**31), 2**31 - 1


def multiplied(
    kinds: tuple[str, str], a: Matrix, b: Matrix, c: Matrix | None = None, *, registers: bool = False, words: str = ""
) -> Matrix:
    """D of one wgmma, [64, n]: zero, or `c`, plus A Bᵀ."""
    n = b.shape[0]
    rows, columns = accumulator_places(n)
    data = (np.full((128, n // 2), 77) if c is None else c[rows, columns]).astype(np.int32)
    form = f"m64n{n}k32{words}.s32.{kinds[0]}.{kinds[1]}"
    body = text(form, n // 2, registers=registers, signs="", scale=int(c is not None))
    matrix = np.zeros((64, n), np.int64)
    matrix[rows, columns] = launched(body, image(a.astype(np.uint8), b.astype(np.uint8)), data)
    return matrix


def drawn(kind: str, rows: int, seed: int) -> Matrix:
    values = np.random.default_rng(seed).integers(*RANGE[kind], (rows, 32))
    values[0], values[1] = RANGE[kind][0], RANGE[kind][1] - 1  # whole rows of both ends
    return values


PAIRS = [(x, y) for x in RANGE for y in RANGE]


@pytest.mark.parametrize("registers", [False, True], ids=["shared", "registers"])
@pytest.mark.parametrize("kinds", PAIRS, ids="-".join)
def test_products_are_exact(kinds: tuple[str, str], registers: bool) -> None:
    a, b = drawn(kinds[0], 64, 1), drawn(kinds[1], 24, 2)
    c = np.random.default_rng(3).integers(-(2**30), 2**30, (64, 24))
    np.testing.assert_array_equal(multiplied(kinds, a, b, registers=registers), a @ b.T)
    np.testing.assert_array_equal(multiplied(kinds, a, b, c, registers=registers), c + a @ b.T)


@pytest.mark.parametrize("n", [8, 48, 128])
def test_every_column_has_its_place(n: int) -> None:
    a, b = drawn("s8", 64, 4), drawn("u8", n, 5)
    np.testing.assert_array_equal(multiplied(("s8", "u8"), a, b), a @ b.T)


@pytest.mark.parametrize("kinds", PAIRS, ids="-".join)
def test_overflow_wraps_or_is_limited(kinds: tuple[str, str]) -> None:
    a, b = drawn(kinds[0], 64, 6), drawn(kinds[1], 8, 7)
    c = np.where(np.arange(64 * 8).reshape(64, 8) % 2, GREATEST - 1000, LEAST + 1000)
    exact = c + a @ b.T
    assert (exact > GREATEST).any() and (kinds == ("u8", "u8") or (exact < LEAST).any())
    np.testing.assert_array_equal(multiplied(kinds, a, b, c), exact.astype(np.int32))
    limited = multiplied(kinds, a, b, c, words=".satfinite")
    np.testing.assert_array_equal(limited, np.clip(exact, LEAST, GREATEST))
