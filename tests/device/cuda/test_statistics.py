from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from ptxgym.device.cuda import statistics
from ptxgym.device.cuda.statistics import interval, likeness_stretch, order_rank

TRUTH = 0.9
NOISE = 0.0027
"""What pairs of an H200 scatter by."""
SERIES = 300
Series = Callable[[np.random.Generator, int], NDArray[np.float64]]


def independent(random: np.random.Generator, count: int) -> NDArray[np.float64]:
    return random.normal(0, NOISE, count)


def heavy_tails(random: np.random.Generator, count: int) -> NDArray[np.float64]:
    return NOISE * random.standard_t(1.5, count)


def drifting(random: np.random.Generator, count: int) -> NDArray[np.float64]:
    """The ratio itself wanders by 0.6 % around the truth, as when a chip heats up."""
    return random.normal(0, NOISE, count) + random.choice([-1, 1]) * np.linspace(-0.003, 0.003, count)


def alike(random: np.random.Generator, count: int) -> NDArray[np.float64]:
    """Neighbours with a correlation of 0.4."""
    values = np.empty(count)
    values[0] = random.normal()
    for index in range(1, count):
        values[index] = 0.4 * values[index - 1] + math.sqrt(1 - 0.4**2) * random.normal()
    return NOISE * values


def outliers(random: np.random.Generator, count: int) -> NDArray[np.float64]:
    """A tenth of each side's calls are late by 8 %."""
    chance = random.random(count)
    return random.normal(0, NOISE, count) + np.where(chance < 0.1, 0.08, 0) - np.where(chance > 0.9, 0.08, 0)


def process_offset(random: np.random.Generator, count: int) -> NDArray[np.float64]:
    """All pairs of one evaluation share an offset of the size that the study could not exclude."""
    return random.normal(0, NOISE, count) + random.uniform(-1, 1) * statistics.FLOOR / 2


def covered(series: Series, count: int) -> float:
    random = np.random.default_rng(7)
    hits = 0
    for _ in range(SERIES):
        found = interval(list(TRUTH * np.exp(series(random, count))), b"seed")
        hits += found.low <= TRUTH <= found.high
    return hits / SERIES


@pytest.fixture(autouse=True)
def few_resamples(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(statistics, "RESAMPLES", 300)


@pytest.mark.parametrize("count", [6, 16, 24, 48])
@pytest.mark.parametrize("series", [independent, heavy_tails, drifting, outliers, process_offset])
def test_interval_holds_the_truth(series: Series, count: int) -> None:
    assert covered(series, count) >= 0.94  # 95 % within 2 σ of 300 series is 92.5 %


@pytest.mark.parametrize("count", [16, 24, 48])
def test_interval_widens_where_neighbours_are_alike(count: int) -> None:
    assert covered(alike, count) >= 0.92


def test_bootstrap_alone_is_too_narrow_for_few_pairs() -> None:
    """Control: why the order statistics are there."""
    random, hits = np.random.default_rng(7), 0
    for _ in range(SERIES):
        values = TRUTH * np.exp(independent(random, 6))
        low, high = np.quantile(statistics._medians(values, b""), [0.025, 0.975])
        hits += low <= TRUTH <= high
    assert hits / SERIES < 0.9


def test_interval_is_no_wider_than_it_need_be() -> None:
    random = np.random.default_rng(3)
    widths = [interval(list(np.exp(independent(random, 24)))).width for _ in range(50)]
    ideal = 2 * 1.96 * 1.2533 * NOISE / math.sqrt(24)  # of the median of normal noise
    assert ideal < np.median(widths) < 1.6 * ideal


@pytest.mark.parametrize(("count", "rank"), [(1, 0), (5, 0), (6, 0), (8, 0), (9, 1), (12, 2), (24, 6), (100, 39)])
def test_order_rank_is_the_sign_test_s(count: int, rank: int) -> None:
    """Ranks of the exact 95 % interval for a median, tables of the sign test (k least and greatest left out)."""
    assert order_rank(count) == rank
    below = [math.comb(count, k) for k in range(count + 1)]
    if count >= 6:
        assert 2 * sum(below[: rank + 1]) <= 0.05 * 2**count < 2 * sum(below[: rank + 2])


def test_signs_of_neighbours() -> None:
    assert likeness_stretch(np.array([1.0, 3.0] * 20)) == 1  # alternating: never narrower
    assert likeness_stretch(np.array([1.0] * 10 + [3.0] * 10)) > 2
    # AR(1) with 0.5: signs correlate by 2/π · asin(0.5) = 1/3, stretch √2
    random, values = np.random.default_rng(1), np.zeros(20_000)
    for index in range(1, values.size):
        values[index] = 0.5 * values[index - 1] + random.normal()
    assert likeness_stretch(values) == pytest.approx(math.sqrt(2), rel=0.03)


def test_one_far_outlier_moves_nothing() -> None:
    quiet = [0.98, 1.0, 1.02, 0.99, 1.01, 1.0, 0.995, 1.005, 1.003, 0.997, 1.001, 0.999]
    assert interval([*quiet[:-1], 9.0]).median == pytest.approx(interval(quiet).median, abs=0.002)


def test_few_pairs_are_wide() -> None:
    assert interval([0.5]).width == pytest.approx(2 * statistics.FEW_FLOOR)
    assert interval([0.5] * 3).width == pytest.approx(2 * statistics.FEW_FLOOR / 3)
    assert interval([0.5] * 6).width == pytest.approx(2 * statistics.FLOOR)


@given(st.lists(st.floats(0.01, 100), min_size=1, max_size=40), st.binary(max_size=8))
def test_interval_is_a_function_of_series_and_seed(ratios: list[float], seed: bytes) -> None:
    found = interval(ratios, seed)
    assert found == interval(ratios, seed)
    assert 0 < found.low < found.median < found.high
    assert found.median == pytest.approx(np.median(ratios))


def test_seeds_resample_differently() -> None:
    ratios = np.exp(independent(np.random.default_rng(1), 40))
    assert np.array_equal(statistics._medians(ratios, b"a"), statistics._medians(ratios, b"a"))
    assert not np.array_equal(statistics._medians(ratios, b"a"), statistics._medians(ratios, b"b"))


@pytest.mark.parametrize("ratios", [[], [1.0, 0.0], [1.0, -1.0], [float("nan")], [float("inf")]])
def test_what_is_no_ratio_is_refused(ratios: list[float]) -> None:
    with pytest.raises(ValueError, match="positive finite"):
        interval(ratios)
