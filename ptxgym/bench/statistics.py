"""Intervals, tests and order statistics for rates over trajectories. Plain functions of numbers; nothing is drawn
without a seed.

Trajectories are independent given their task; turns of one trajectory are not. So rates over trajectories get Wilson's
interval, rates over turns a bootstrap that draws whole trajectories, and two models are compared within each task.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np

CONFIDENCE = 0.95
RESAMPLES = 10_000
SEED = 20_260_801
"""Of every bootstrap, so that the same run prints the same intervals."""
DRAWN_AT_ONCE = 1_000_000
"""Trajectories that a bootstrap draws at once: 8 MB, whatever their number."""
EXACT_DIGITS, COARSE_DIGITS = 10, 4
"""To which sums of differences of rates are told apart, and to which where trajectories left out make them too many; a
p-value is then too large rather than too small."""
MOST_SUMS = 20_000


@dataclass(frozen=True)
class Interval:
    """An estimate with its interval."""

    value: float
    low: float
    high: float


def wilson(successes: int, total: int, confidence: float = CONFIDENCE) -> Interval:
    """Return a rate with Wilson's score interval (E. B. Wilson, JASA 22, 1927), which stays in [0, 1] at 0 and 1 too.

    Raises:
        ValueError: if there are fewer trials than successes, or none.
    """
    if not 0 <= successes <= total or total == 0:
        raise ValueError(f"{successes} successes of {total} trials are no rate")
    z = NormalDist().inv_cdf(0.5 + confidence / 2)
    rate, spread = successes / total, z * z / total
    centre = (rate + spread / 2) / (1 + spread)
    half = z / (1 + spread) * math.sqrt(rate * (1 - rate) / total + spread / (4 * total))
    low = 0.0 if successes == 0 else max(0.0, centre - half)
    high = 1.0 if successes == total else min(1.0, centre + half)
    return Interval(rate, low, high)


def bootstrap_ratio(
    parts: Sequence[float], wholes: Sequence[float], confidence: float = CONFIDENCE, resamples: int = RESAMPLES
) -> Interval:
    """Return Σ parts ÷ Σ wholes with the percentile interval of a bootstrap that draws trajectories.

    Args:
        parts: One number a trajectory, such as its correct turns.
        wholes: One number a trajectory, such as its turns.
        confidence: Of the interval.
        resamples: How many samples are drawn.

    Raises:
        ValueError: if there is nothing to draw from, or the wholes sum to 0.
    """
    part, whole = np.asarray(parts, float), np.asarray(wholes, float)
    if part.shape != whole.shape or part.size == 0 or whole.sum() <= 0:
        raise ValueError("a ratio needs as many parts as wholes, and a whole above 0")
    generator, block = np.random.default_rng(SEED), max(1, DRAWN_AT_ONCE // part.size)
    sums, ratios = np.empty(resamples), np.empty(resamples)
    for start in range(0, resamples, block):
        drawn = generator.integers(0, part.size, (min(block, resamples - start), part.size))
        sums[start : start + block] = whole[drawn].sum(axis=1)
        ratios[start : start + block] = part[drawn].sum(axis=1)
    ratios = ratios[sums > 0] / sums[sums > 0]
    tail = (1 - confidence) / 2
    low, high = np.quantile(ratios, (tail, 1 - tail))
    return Interval(float(part.sum() / whole.sum()), float(low), float(high))


@dataclass(frozen=True)
class Count:
    """Trajectories of one model on one task, and how many of them succeeded."""

    successes: int
    total: int


@dataclass(frozen=True)
class Comparison:
    """Two models on the tasks that both played."""

    tasks: int
    difference: float
    """Mean over tasks of the first's rate less the second's."""
    p_value: float
    """Two-sided; 1 where they share no task."""


def compare(first: Mapping[str, Count], second: Mapping[str, Count]) -> Comparison:
    """Compare success rates within each task, exactly.

    The test permutes trajectories between the two models within each task: given how many succeeded there, the first's
    share is hypergeometric. The statistic is the mean difference over tasks: as extreme is what differs as much. With
    one task and equally many trajectories this is Fisher's exact test, which asks what is as unlikely; with unequal
    numbers the two differ.

    Args:
        first: Counts by task.
        second: The same of the other; tasks that only one of them played are left out.
    """
    tasks = sorted(task for task in first.keys() & second.keys() if first[task].total and second[task].total)
    if not tasks:
        return Comparison(0, 0.0, 1.0)
    observed, chances, digits = 0.0, {0.0: 1.0}, EXACT_DIGITS
    for task in tasks:
        a, b = first[task], second[task]
        observed += a.successes / a.total - b.successes / b.total
        if len(chances) > MOST_SUMS:
            digits = COARSE_DIGITS
        chances = _convolved(chances, _differences(a, b), digits)
    extreme = abs(observed) - len(tasks) * 10.0**-digits
    p_value = sum(chance for difference, chance in chances.items() if abs(difference) >= extreme)
    return Comparison(len(tasks), observed / len(tasks), min(1.0, p_value))


def holm(p_values: Sequence[float]) -> tuple[float, ...]:
    """Return p-values that are corrected for their number (S. Holm, Scand. J. Stat. 6, 1979), in the same order."""
    corrected = [0.0] * len(p_values)
    largest = 0.0
    for rank, index in enumerate(sorted(range(len(p_values)), key=lambda i: p_values[i])):
        largest = max(largest, min(1.0, (len(p_values) - rank) * p_values[index]))
        corrected[index] = largest
    return tuple(corrected)


def best_of(chosen_by: Sequence[float], drawn: int, shown: Sequence[float] | None = None) -> float:
    """Return the expected value of the best of `drawn` trajectories, drawn without replacement; unbiased.

    The i-th smallest of n is the best of the draw in C(i − 1, k − 1) of C(n, k) cases; of zeros and ones it is pass@k
    (M. Chen and others, arXiv 2107.03374, §2.1). With `shown`, the best is chosen by the one measurement and its value
    taken from the other, so that luck in the first is not shown.

    Args:
        chosen_by: One number a trajectory; 0 where nothing was reached.
        drawn: How many trajectories are drawn; the same for models that are compared.
        shown: What each came to when it was measured again; by default the numbers that it is chosen by.

    Raises:
        ValueError: if more are drawn than there are, or the two differ in length.
    """
    values = chosen_by if shown is None else shown
    if len(values) != len(chosen_by):
        raise ValueError(f"{len(chosen_by)} numbers to choose by, {len(values)} to show")
    if not 1 <= drawn <= len(chosen_by):
        raise ValueError(f"{drawn} of {len(chosen_by)} trajectories cannot be drawn")
    ranked = sorted(zip(chosen_by, values, strict=True))
    total = 0.0
    for _, tied in itertools.groupby(enumerate(ranked), key=lambda item: item[1][0]):
        group = list(tied)
        weight = sum(math.comb(rank, drawn - 1) for rank, _ in group)
        total += weight * sum(value for _, (_, value) in group) / len(group)
    return total / math.comb(len(ranked), drawn)


def _differences(a: Count, b: Count) -> dict[float, float]:
    """Chances of each difference of rates, given how many of both succeeded."""
    succeeded, everything = a.successes + b.successes, a.total + b.total
    ways = math.comb(everything, succeeded)
    found = {}
    for mine in range(max(0, succeeded - b.total), min(a.total, succeeded) + 1):
        difference = mine / a.total - (succeeded - mine) / b.total
        found[difference] = math.comb(a.total, mine) * math.comb(b.total, succeeded - mine) / ways
    return found


def _convolved(one: Mapping[float, float], other: Mapping[float, float], digits: int) -> dict[float, float]:
    """Chances of sums; sums that agree to so many digits are one."""
    found: dict[float, float] = {}
    for (x, p), (y, q) in itertools.product(one.items(), other.items()):
        total = round(x + y, digits)
        found[total] = found.get(total, 0.0) + p * q
    return found
