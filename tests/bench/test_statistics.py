"""Statistics against scipy, closed forms, enumeration and simulation."""

from __future__ import annotations

import itertools
import math
import random
import tracemalloc

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from ptxgym.bench.statistics import SEED, Count, best_of, bootstrap_ratio, compare, holm, wilson


@given(st.integers(1, 500).flatmap(lambda n: st.tuples(st.integers(0, n), st.just(n))))
def test_wilson_is_scipys(counts: tuple[int, int]) -> None:
    successes, total = counts
    expected = stats.binomtest(successes, total).proportion_ci(0.95, method="wilson")
    found = wilson(successes, total)
    assert (found.value, found.low, found.high) == pytest.approx((successes / total, expected.low, expected.high))


def test_wilson_at_the_ends_and_at_another_confidence() -> None:
    assert wilson(0, 12).low == 0.0
    assert wilson(0, 12).high == pytest.approx(0.2425, abs=5e-5)  # 1.96² ÷ (12 + 1.96²)
    assert wilson(12, 12).high == 1.0
    narrow = wilson(5, 12, confidence=0.5)
    expected = stats.binomtest(5, 12).proportion_ci(0.5, method="wilson")
    assert (narrow.low, narrow.high) == pytest.approx((expected.low, expected.high))
    with pytest.raises(ValueError, match="no rate"):
        wilson(3, 2)
    with pytest.raises(ValueError, match="no rate"):
        wilson(0, 0)


def test_wilson_covers_what_it_promises() -> None:
    """At n = 12 the chance that the interval holds the truth, summed over all outcomes, is near 95 %."""
    for rate in (0.05, 0.26, 0.5, 0.9):
        covered = sum(
            stats.binom.pmf(k, 12, rate) for k in range(13) if wilson(k, 12).low <= rate <= wilson(k, 12).high
        )
        assert 0.90 < covered < 0.995


def test_bootstrap_draws_trajectories_not_turns() -> None:
    """All turns of a trajectory agree: the interval is that of 12 independent trials, not of 96."""
    parts = [8] * 3 + [0] * 9
    found = bootstrap_ratio(parts, [8] * 12)
    independent = stats.bootstrap(
        (np.array(parts) / 8,), np.mean, method="percentile", n_resamples=10_000, random_state=1
    ).confidence_interval
    assert found.value == 0.25
    assert (found.low, found.high) == pytest.approx((independent.low, independent.high), abs=0.02)
    assert found.high - found.low > 1.5 * (wilson(24, 96).high - wilson(24, 96).low)


def test_bootstrap_of_unequal_trajectories_weighs_turns() -> None:
    found = bootstrap_ratio([1, 4], [2, 8])
    assert (found.value, found.low, found.high) == (0.5, 0.5, 0.5)
    assert bootstrap_ratio([2, 0], [2, 8]).value == 0.2
    assert bootstrap_ratio([1, 5, 3], [8, 8, 8]) == bootstrap_ratio([1, 5, 3], [8, 8, 8])
    with pytest.raises(ValueError, match="whole above 0"):
        bootstrap_ratio([0], [0])


def test_a_bootstrap_of_many_trajectories_takes_little_memory() -> None:
    parts, wholes = [1, 0, 3, 2] * 1500, [8, 4, 8, 2] * 1500
    tracemalloc.start()
    try:
        found = bootstrap_ratio(parts, wholes, resamples=1000)
        most = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert most < 50e6 < 1000 * 6000 * 8 * 2, "all draws and their numbers would be 96 MB"
    drawn = np.random.default_rng(SEED).integers(0, 6000, (1000, 6000))  # as if all were drawn at once
    ratios = np.array(parts)[drawn].sum(axis=1) / np.array(wholes)[drawn].sum(axis=1)
    assert (found.low, found.high) == tuple(np.quantile(ratios, (0.025, 0.975)))


def test_with_unequal_totals_the_comparison_is_of_differences_not_of_likelihoods() -> None:
    """6 of 10 against 0 of 5: differences of 0.6 and more, either way, are C(10, k)·C(5, 6 − k) of C(15, 6) deals."""
    found = compare({"t": Count(6, 10)}, {"t": Count(0, 5)})
    assert found.p_value == pytest.approx((210 * 1 + 10 * 1 + 45 * 5) / 5005)
    assert stats.fisher_exact([[6, 4], [0, 5]]).pvalue == pytest.approx((210 * 1 + 10 * 1) / 5005)


@given(st.integers(1, 15), st.integers(1, 15), st.data())
def test_with_one_task_the_comparison_is_fishers(n: int, m: int, data: st.DataObject) -> None:
    """For equal totals scipy's two-sided rule (less likely tables) and ours (larger differences) agree."""
    a = data.draw(st.integers(0, n))
    b = data.draw(st.integers(0, n))
    found = compare({"t": Count(a, n)}, {"t": Count(b, n)})
    assert found.p_value == pytest.approx(stats.fisher_exact([[a, n - a], [b, n - b]]).pvalue)
    assert found.difference == pytest.approx((a - b) / n)
    unequal = compare({"t": Count(a, n)}, {"t": Count(min(b, m), m)})
    assert 0 < unequal.p_value <= 1


def test_comparison_over_tasks_is_a_permutation_within_tasks() -> None:
    """Against all ways to deal the trajectories of each task to the two models."""
    first = {"x": Count(3, 3), "y": Count(2, 3), "only first": Count(0, 9)}
    second = {"x": Count(1, 3), "y": Count(0, 2), "only second": Count(5, 5)}
    pools = {"x": ([1, 1, 1, 1, 0, 0], 3), "y": ([1, 1, 0, 0, 0], 3)}
    observed = (3 / 3 - 1 / 3) + (2 / 3 - 0 / 2)
    hits = tries = 0
    deals = [list(itertools.combinations(range(len(pool)), mine)) for pool, mine in pools.values()]
    for choice in itertools.product(*deals):
        total = 0.0
        for chosen, (pool, mine) in zip(choice, pools.values(), strict=True):
            won = sum(pool[index] for index in chosen)
            total += won / mine - (sum(pool) - won) / (len(pool) - mine)
        tries += 1
        hits += abs(total) >= abs(observed) - 1e-12
    found = compare(first, second)
    assert found.p_value == pytest.approx(hits / tries)
    assert (found.tasks, found.difference) == (2, pytest.approx(observed / 2))


def test_pairing_by_task_sees_what_pooling_hides() -> None:
    """Easy and hard tasks: pooled, 13 against 8 of 24 proves nothing; within tasks it does."""
    first = {"easy": Count(12, 12), "hard": Count(1, 12)}
    second = {"easy": Count(6, 12), "hard": Count(0, 12)}
    pooled = stats.fisher_exact([[13, 11], [6, 18]]).pvalue
    assert compare(first, second).p_value < 0.02 < 0.05 < pooled
    assert compare(first, first).p_value == 1.0
    assert compare(first, {"other": Count(1, 2)}).p_value == 1.0


def test_many_unequal_tasks_end_soon_and_near_a_permutation_by_chance() -> None:
    """Sums of unlike fractions are too many to be told apart all; a random permutation says what to expect."""
    draw = np.random.default_rng(2)
    totals = [(12 + i, 13 + 2 * i) for i in range(10)]
    first = {str(i): Count(int(draw.binomial(n, 0.5)), n) for i, (n, _) in enumerate(totals)}
    second = {str(i): Count(int(draw.binomial(m, 0.35)), m) for i, (_, m) in enumerate(totals)}
    observed, permuted = 0.0, np.zeros(200_000)
    for task, a in first.items():
        b = second[task]
        observed += a.successes / a.total - b.successes / b.total
        won = a.successes + b.successes
        mine = draw.hypergeometric(won, a.total + b.total - won, a.total, permuted.size)
        permuted += mine / a.total - (won - mine) / b.total
    expected = np.mean(np.abs(permuted) >= abs(observed) - 1e-9)
    assert 0.0005 < expected < 0.2
    assert compare(first, second).p_value == pytest.approx(expected, rel=0.1, abs=0.001)


def test_comparison_of_equals_rejects_as_often_as_it_says() -> None:
    """Simulation: of models with the same rates, at most 5 % differ at p ≤ 0.05."""
    draw = random.Random(3)
    rates = (0.1, 0.3, 0.5, 0.7, 0.9)

    def played() -> dict[str, Count]:
        return {str(rate): Count(sum(draw.random() < rate for _ in range(12)), 12) for rate in rates}

    rejected = sum(compare(played(), played()).p_value <= 0.05 for _ in range(600))
    assert 5 <= rejected <= 45  # 30 expected of a test that is exact; a discrete one may stay below


def test_holm_by_hand_and_in_any_order() -> None:
    assert holm([0.01, 0.04, 0.03]) == pytest.approx((0.03, 0.06, 0.06))
    assert holm([0.04, 0.03, 0.01]) == pytest.approx((0.06, 0.06, 0.03))
    assert holm([0.9, 0.8]) == (1.0, 1.0)
    assert holm([]) == ()


@given(st.lists(st.floats(0, 1), min_size=1, max_size=8))
def test_holm_rejects_what_the_step_down_rule_rejects(p_values: list[float]) -> None:
    corrected, level = holm(p_values), 0.05
    rejected, left = set(), len(p_values)
    for index in sorted(range(len(p_values)), key=lambda i: p_values[i]):
        if p_values[index] > level / left:
            break
        rejected.add(index)
        left -= 1
    near = [index for index in range(len(p_values)) if abs(corrected[index] - level) < 1e-12]
    assert {index for index, p in enumerate(corrected) if p <= level} - set(near) == rejected - set(near)
    assert all(after >= before for before, after in zip(p_values, corrected, strict=True))


@given(
    st.lists(st.integers(0, 5), min_size=1, max_size=7).flatmap(lambda v: st.tuples(st.just(v), st.integers(1, len(v))))
)
def test_best_of_is_the_mean_over_all_draws(case: tuple[list[int], int]) -> None:
    values, drawn = case
    every = [max(chosen) for chosen in itertools.combinations(values, drawn)]
    assert best_of(values, drawn) == pytest.approx(sum(every) / len(every))
    solved = [float(value >= 3) for value in values]
    n, c = len(values), round(sum(solved))
    assert best_of(solved, drawn) == pytest.approx(1 - math.comb(n - c, drawn) / math.comb(n, drawn))  # pass@k


def test_best_of_chooses_by_one_measurement_and_shows_the_other() -> None:
    assert best_of([0.9, 0.5, 0.0], 3, shown=[0.7, 0.6, 0.0]) == pytest.approx(0.7)
    assert best_of([0.9, 0.5, 0.0], 1, shown=[0.7, 0.6, 0.0]) == pytest.approx(1.3 / 3)
    assert best_of([1.0, 1.0], 2, shown=[0.4, 0.6]) == pytest.approx(0.5)  # a tie is broken by nobody
    for wrong in (0, 4):
        with pytest.raises(ValueError, match="cannot be drawn"):
            best_of([1, 2, 3], wrong)
    with pytest.raises(ValueError, match="to show"):
        best_of([1.0], 1, shown=[])


def test_choosing_and_showing_apart_takes_the_luck_out() -> None:
    """Equal kernels under noise: the best of twelve looks fast, and is not when it is measured again."""
    noise = np.random.default_rng(5).normal(1.0, 0.1, (2000, 2, 12))
    biased = np.mean([best_of(first, 12) for first, _ in noise])
    fair = np.mean([best_of(first, 12, shown=again) for first, again in noise])
    assert biased == pytest.approx(1.0 + 0.1 * 1.6292, abs=0.005)  # the largest of 12 standard normals, on average
    assert fair == pytest.approx(1.0, abs=0.01)
