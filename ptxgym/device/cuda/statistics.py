"""What pairs of times say: the median of their ratios, and an interval that holds the truth.

Nothing is removed: a median ignores the few pairs that an interrupt or a time slice has spoilt, however far off they
are. A drift that both sides of a pair share cancels in their ratio. What is left is resampled in blocks of neighbours,
so that a slow wander of the ratio itself widens the interval.
"""

from __future__ import annotations

import hashlib
import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

CONFIDENCE = 0.95
RESAMPLES = 2000
FLOOR = 0.0010
"""Least half width, relative. Processes, allocations and slots moved the ratio of two kernels by up to 0.1 % in the
variance study (docs/timing.md), which no number of pairs within one process shows."""
FEW = 6
"""Below this, even the least and the greatest ratio may miss the median too often: 2 · ½ⁿ > 1 − `CONFIDENCE`."""
FEW_FLOOR = 0.03
"""Least half width of a single pair, relative; n < `FEW` pairs have an n-th of it."""


@dataclass(frozen=True)
class Interval:
    """A median with the ends of its interval."""

    median: float
    low: float
    high: float

    @property
    def width(self) -> float:
        """Relative to the median."""
        return (self.high - self.low) / self.median


def interval(ratios: Sequence[float], seed: bytes = b"") -> Interval:
    """Return the median of `ratios` and its 95 % interval.

    The interval spans two: of a block bootstrap of the median, and of the order statistics that hold the median of any
    distribution (the binomial bound; the bootstrap alone is too narrow for few pairs), stretched where neighbours are
    alike. Equal ratios and seeds give equal intervals, so that a stored series can be checked.

    Args:
        ratios: baseline ÷ candidate, in the order in which they were measured; all positive.
        seed: of the conditions under which they were measured.

    Raises:
        ValueError: if there are none, or one is not a positive finite number.
    """
    values = np.asarray(ratios, dtype=np.float64)
    if values.size == 0 or not np.all(np.isfinite(values) & (values > 0)):
        raise ValueError(f"ratios must be positive finite numbers and at least one, got {list(ratios)[:5]}")
    middle = float(statistics.median(ratios))
    least = middle * (FLOOR if values.size >= FEW else FEW_FLOOR / values.size)
    tail = (1 - CONFIDENCE) / 2
    ends = np.quantile(_medians(values, seed), [tail, 1 - tail])
    ordered, rank, stretch = np.sort(values), order_rank(values.size), likeness_stretch(values)
    low = min(float(ends[0]), middle - stretch * (middle - float(ordered[rank])), middle - least)
    high = max(float(ends[1]), middle + stretch * (float(ordered[-1 - rank]) - middle), middle + least)
    return Interval(middle, max(low, float(ordered[0]) / 2), high)


def order_rank(count: int) -> int:
    """Return the greatest k for which the k-th least and greatest of `count` (from 0) hold the median at `CONFIDENCE`.

    The median lies below the k-th least with probability P(Binomial(count, ½) ≤ k).
    """
    tail, k = 0.5**count, 0
    while tail + math.comb(count, k + 1) * 0.5**count <= (1 - CONFIDENCE) / 2:
        k += 1
        tail += math.comb(count, k) * 0.5**count
    return k


def likeness_stretch(values: NDArray[np.float64]) -> float:
    """Return by how much neighbours that are alike widen the scatter of the median, at least 1.

    With r the correlation of the signs of neighbours' deviations from the median, √((1 + r) / (1 − r)): what a chain
    of signs with that correlation does to their mean.
    """
    signs = np.sign(values - np.median(values))
    alike = float(np.mean(signs[1:] * signs[:-1])) if values.size >= FEW else 0.0
    alike = min(0.9, max(0.0, alike))
    return math.sqrt((1 + alike) / (1 - alike))


def block_length(count: int) -> int:
    """Return how many neighbours are drawn together: the cube root of `count`."""
    return max(1, round(float(count ** (1 / 3))))


def _medians(values: NDArray[np.float64], seed: bytes) -> NDArray[np.float64]:
    """Return medians of `RESAMPLES` series made of blocks of `values`, which is read as a ring."""
    count, block = values.size, block_length(values.size)
    random = np.random.default_rng(int.from_bytes(hashlib.sha256(b"ptxgym bootstrap:" + seed).digest()[:16], "little"))
    starts = random.integers(0, count, size=(RESAMPLES, math.ceil(count / block)))
    places = (starts[:, :, None] + np.arange(block)) % count
    return np.asarray(np.median(values[places.reshape(RESAMPLES, -1)[:, :count]], axis=1))
