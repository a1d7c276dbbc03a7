from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ptxgym.judge import numbers, tiles

SIZES = st.lists(st.integers(1, 150), min_size=1, max_size=2) | st.tuples(
    st.integers(1, 3), st.integers(1, 150), st.integers(1, 150)
)


def words(values: Any, dtype: str) -> Any:
    flat = numbers.encode(np.asarray(values, np.float32), dtype)  # type: ignore[arg-type]
    return flat.view(numbers.POISON[dtype].dtype).reshape(values.shape)  # type: ignore[index]


@settings(max_examples=40, deadline=None)
@given(SIZES, st.integers(0, 2**32 - 1))
def test_tile_sums_are_those_of_slices(sizes: Any, seed: int) -> None:
    values = np.random.default_rng(seed).integers(-9, 10, tuple(sizes))
    sums = tiles.tile_sums(values)
    assert sums.shape == tiles.tile_grid(tuple(sizes))
    for tile in np.ndindex(sums.shape):
        inner = min(2, len(sizes))
        ranges = [slice(64 * i, 64 * i + 64) for i in tile[len(sizes) - inner :]]
        assert sums[tile] == values[(*tile[: len(sizes) - inner], *ranges)].sum()


@pytest.mark.parametrize("dtype", ["bf16", "fp32"])
def test_measure_counts_each_kind_of_element(dtype: str) -> None:
    """One element of each kind in another tile, against figures worked out by hand."""
    reference = np.full((130, 130), 3.0)
    reference[5, 6] = 1.0 + 2.0**-30  # neither type holds it
    values = reference.astype(np.float32)
    values[0, 0] = 3.5
    values[0, 70] = np.nan
    values[70, 0] = -np.inf
    values[129, 129] = 3.0078125 if dtype == "fp32" else 3.015625
    found = words(values, dtype)
    found[70, 70] = numbers.POISON[dtype]  # type: ignore[index]
    sums = tiles.measure(found, reference, words(np.full((130, 130), 3.0), dtype))
    last = 0.0078125 if dtype == "fp32" else 0.015625
    assert sums.squares[0, 0] == pytest.approx(0.25 + 2.0**-60, rel=1e-15)
    assert sums.squares[2, 2] == last**2 and sums.squares.sum() == pytest.approx(0.25 + last**2)
    assert sums.not_finite.tolist() == [[0, 1, 0], [1, 1, 0], [0, 0, 0]]
    assert sums.unwritten == 1
    assert sums.inexact == 5  # all that was changed; not [5, 6]
    # 3.5 and 1.0 against 3.0 are far; 0.0078 is within 1e-2 absolutely, 0.0156 within 1 % relatively
    assert sums.far == 2
    assert tiles.measure(found, reference, None).far == 0


def test_ptxbench_needs_both_bounds_broken() -> None:
    vendor = np.array([0.0, 0.0, 100.0, 100.0, 1.0])
    found = np.array([0.009, 0.02, 100.9, 102.0, 1.0])
    assert tiles.ptxbench_far(found, vendor).tolist() == [False, True, False, True, False]


@given(st.floats(width=32, allow_nan=False, allow_infinity=False))
def test_what_a_type_holds(value: float) -> None:
    mantissa, _ = math.frexp(value)
    in_bf16 = float(mantissa * 2**8).is_integer() and (value == 0.0 or abs(value) >= 2.0**-126)
    array = np.array([value])
    assert bool(tiles.holds_exactly(array, 4)[0])
    if value == 0.0 or abs(value) >= 2.0**-126:  # below, BF16 holds fewer bits
        assert bool(tiles.holds_exactly(array, 2)[0]) == in_bf16
    assert not tiles.holds_exactly(np.array([1.0 + 2.0**-24]), 4)[0]


def test_the_kernel_states_the_limits_of_the_formula() -> None:
    assert "off > LIMIT_ABSOLUTE && off / (fabs(vendor) + 1e-8) > LIMIT_RELATIVE" in tiles._SOURCE
