from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import pytest

from ptxgym.device.cuda.statistics import interval
from ptxgym.device.cuda.timing import (
    BEHIND_ROUNDS,
    DUTY,
    LEAST_CALLS,
    PROTOCOLS,
    SLOW_PAIRS,
    Protocol,
    Race,
    Result,
    TimedCall,
    race,
)
from ptxgym.errors import InfrastructureError
from ptxgym.verdict import Failure, Stage, Status

FAILED = Failure(stage=Stage.EXECUTE, status=Status.RUNTIME_FAULT, code="run.fault", message="it faulted")
QUICK = Protocol(warm_s=0.0, min_pairs=16, max_pairs=64, width=0.005, limit_s=10.0)


@dataclass
class Chip:
    """A GPU that gets slower while it works, and a clock that only it moves."""

    noise: float = 0.002
    heating: float = 0.0
    """Relative slow-down per call."""
    now_s: float = 0.0
    busy_s: float = 0.0
    calls: list[tuple[str, int]] = field(default_factory=list)
    random: np.random.Generator = field(default_factory=lambda: np.random.default_rng(5))

    def kernel(self, name: str, time_us: float, overhead_us: float = 50.0) -> TimedCall:
        def call(draw: int) -> float:
            slower = 1 + self.heating * len(self.calls)
            self.calls.append((name, draw))
            took = time_us * slower * float(np.exp(self.random.normal(0, self.noise)))
            self.now_s += (took + overhead_us) / 1e6
            self.busy_s += took / 1e6
            return took

        return call

    def race(
        self, baselines: dict[str, TimedCall], candidates: dict[str, TimedCall], protocol: Protocol, draws: int = 1
    ) -> dict[str, Result]:
        def sleep(seconds: float) -> None:
            self.now_s += seconds

        return race(
            baselines, candidates, protocol, draws=draws, clock=lambda: self.now_s, sleep=sleep, rng=random.Random(1)
        )

    def times(self, name: str) -> int:
        return sum(called == name for called, _ in self.calls)


def won(result: Result) -> Race:
    assert isinstance(result, Race), result
    return result


def failing(call: TimedCall, after: int, how: Callable[[], float | Failure]) -> TimedCall:
    count = iter(range(10**6))
    return lambda draw: how() if next(count) >= after else call(draw)


def test_ratio_is_found_while_the_chip_heats_up() -> None:
    chip = Chip(heating=0.002)
    result = won(chip.race({"lib": chip.kernel("lib", 700)}, {"c": chip.kernel("c", 875)}, QUICK)["c"])
    assert result.speedup.median == pytest.approx(0.8, rel=0.003)
    assert result.speedup.low < 0.8 < result.speedup.high
    assert result.stopped == "narrow"
    assert result.speedup == interval(result.ratios, b"")
    assert len(result.ratios) >= QUICK.min_pairs


def test_a_kernel_against_itself_in_twenty_races() -> None:
    chip = Chip(heating=0.0005, noise=0.0019)
    races = [
        won(chip.race({"lib": chip.kernel("lib", 740)}, {"c": chip.kernel("c", 740)}, PROTOCOLS["standard"])["c"])
        for _ in range(20)
    ]
    assert sum(abs(one.speedup.median - 1) <= 0.005 for one in races) >= 19
    assert sum(one.speedup.low <= 1 <= one.speedup.high for one in races) >= 18


def test_the_best_baseline_counts_and_all_are_reported() -> None:
    chip = Chip()
    libraries = {name: chip.kernel(name, us) for name, us in {"good": 700, "near": 735, "poor": 1500}.items()}
    result = won(chip.race(libraries, {"c": chip.kernel("c", 1000)}, QUICK)["c"])
    assert result.baseline == "good"
    assert result.speedup.median == pytest.approx(0.7, rel=0.005)
    assert set(result.baselines_us) == set(libraries)
    assert chip.times("poor") == BEHIND_ROUNDS < chip.times("near") == chip.times("good")
    timing = result.timing({"good": "1.2"}, flops=700_000_000_000, roofline_us=600.0)
    assert (timing.baseline, timing.baseline_us) == ("good", pytest.approx(700, rel=0.01))
    assert [(one.name, one.version) for one in timing.baselines] == [("good", "1.2"), ("near", ""), ("poor", "")]
    assert timing.tflops == pytest.approx(700, rel=0.01)  # 700 G operations in a millisecond
    assert (timing.pairs, timing.roofline_us, timing.stopped) == (len(result.ratios), 600.0, "narrow")


def test_every_round_draws_order_and_input_anew() -> None:
    chip = Chip()
    chip.race({"lib": chip.kernel("lib", 700)}, {"c": chip.kernel("c", 900)}, QUICK, draws=3)
    pairs = list(zip(chip.calls[::2], chip.calls[1::2], strict=True))
    assert {first for (first, _), _ in pairs} == {"lib", "c"}
    assert all(one == two for (_, one), (_, two) in pairs)  # both on the same draw
    draws = [draw for (_, draw), _ in pairs]
    assert all(sorted(draws[at : at + 3]) == [0, 1, 2] for at in range(0, len(draws) - 2, 3))
    assert len({tuple(draws[at : at + 3]) for at in range(0, len(draws) - 2, 3)}) > 1


def test_orders_differ_from_race_to_race() -> None:
    orders = []
    for _ in range(2):
        chip = Chip()
        race({"lib": chip.kernel("lib", 700)}, {"c": chip.kernel("c", 900)}, QUICK, draws=8, sleep=lambda _: None)
        orders.append([draw for _, draw in chip.calls])
    assert orders[0] != orders[1]


def test_rounds_of_the_warm_up_do_not_count() -> None:
    chip = Chip(noise=0.001)
    cold, warm = chip.kernel("cold", 5000), chip.kernel("c", 1000)
    protocol = Protocol(warm_s=0.04, min_pairs=8, max_pairs=64, width=0.005, limit_s=10.0)

    def candidate(draw: int) -> float | Failure:
        return cold(draw) if chip.now_s < 0.035 else warm(draw)

    result = won(chip.race({"lib": chip.kernel("lib", 1000)}, {"c": candidate}, protocol)["c"])
    assert chip.times("cold") >= 3
    assert chip.times("lib") > len(result.ratios) + chip.times("cold") - 1
    assert all(ratio == pytest.approx(1, abs=0.02) for ratio in result.ratios)
    unwarmed = Protocol(warm_s=0.0, min_pairs=8, max_pairs=64, width=0.005, limit_s=10.0)
    chip.now_s = 0.0
    assert min(won(chip.race({"lib": chip.kernel("lib", 1000)}, {"c": candidate}, unwarmed)["c"]).ratios) < 0.3


def test_a_noisy_kernel_stops_at_the_limit_of_pairs_with_an_honest_width() -> None:
    chip = Chip(noise=0.05)
    result = won(chip.race({"lib": chip.kernel("lib", 700)}, {"c": chip.kernel("c", 700)}, QUICK)["c"])
    assert (result.stopped, len(result.ratios)) == ("pairs", QUICK.max_pairs)
    assert result.speedup.width > QUICK.width
    assert result.speedup.low < 1 < result.speedup.high


def test_time_ends_a_race() -> None:
    chip = Chip(noise=0.05)
    protocol = Protocol(warm_s=0.0, min_pairs=4, max_pairs=10_000, width=0.001, limit_s=0.2)
    result = won(chip.race({"lib": chip.kernel("lib", 700)}, {"c": chip.kernel("c", 700)}, protocol)["c"])
    assert result.stopped == "time"
    assert 0.2 <= chip.now_s < 0.21


def test_far_slower_candidates_stop_early_and_do_not_narrow_those_beside_them() -> None:
    chip = Chip()
    candidates = {"slow": chip.kernel("slow", 20_000), "c": chip.kernel("c", 800)}
    results = chip.race({"lib": chip.kernel("lib", 700)}, candidates, QUICK)
    slow, other = won(results["slow"]), won(results["c"])
    assert (slow.stopped, len(slow.ratios)) == ("slow", SLOW_PAIRS)
    assert slow.speedup.median == pytest.approx(0.035, rel=0.02)
    assert other.stopped == "narrow"
    assert len(other.ratios) > SLOW_PAIRS


def test_a_candidate_of_seconds_is_called_once() -> None:
    chip = Chip()
    result = won(chip.race({"lib": chip.kernel("lib", 700)}, {"c": chip.kernel("c", 3e6)}, PROTOCOLS["rl"])["c"])
    assert chip.times("c") == 1
    assert result.speedup.width >= 0.05  # one pair proves little
    assert result.speedup.median == pytest.approx(700 / 3e6, rel=0.02)


@pytest.mark.parametrize("beside", [[1.3e6], [0.55e6] * 7, [0.1e6] * 7], ids=["hopeless", "hopeless seven", "slow"])
def test_slow_candidates_take_no_time_from_those_beside_them(beside: list[float]) -> None:
    chip = Chip(noise=0.003)
    cold, warm = chip.kernel("cold", 1482), chip.kernel("c", 741)
    first = iter([cold])
    candidates: dict[str, TimedCall] = {"c": lambda draw: next(first, warm)(draw)}
    candidates |= {f"slow{index}": chip.kernel(f"slow{index}", us) for index, us in enumerate(beside)}
    results = chip.race({"lib": chip.kernel("lib", 722)}, candidates, PROTOCOLS["standard"])
    fast = won(results["c"])
    assert fast.stopped == "narrow" and len(fast.ratios) >= 16
    assert fast.speedup.low < 722 / 741 < fast.speedup.high, "the first call, which is cold, does not count"
    assert all(won(results[name]).stopped == "slow" for name in candidates if name != "c")
    assert all(chip.times(name) <= 1 + SLOW_PAIRS for name in candidates if name != "c")


def test_a_call_that_hangs_takes_no_time_from_those_beside_it() -> None:
    chip = Chip()

    def hang() -> Failure:
        chip.now_s += 10.0
        return FAILED

    candidates = {"bad": failing(chip.kernel("bad", 700), 0, hang), "c": chip.kernel("c", 800)}
    assert won(chip.race({"lib": chip.kernel("lib", 700)}, candidates, PROTOCOLS["rl"])["c"]).stopped == "narrow"


def test_time_that_no_event_shows_ends_no_race_before_the_third_call() -> None:
    """Who forges events is found by three calls; those of one second that say 100 µs would end it at the first."""
    chip = Chip()
    result = won(
        chip.race({"lib": chip.kernel("lib", 700)}, {"c": chip.kernel("c", 100, overhead_us=1e6)}, PROTOCOLS["rl"])["c"]
    )
    assert chip.times("c") == LEAST_CALLS and result.stopped == "time"


@pytest.mark.parametrize("after", [0, 1, 9])
def test_a_failing_candidate_leaves_and_the_others_go_on(after: int) -> None:
    chip = Chip()
    candidates = {
        "bad": failing(chip.kernel("bad", 700), after, lambda: FAILED),
        "c": chip.kernel("c", 800),
    }
    results = chip.race({"lib": chip.kernel("lib", 700)}, candidates, QUICK)
    assert results["bad"] == FAILED
    assert won(results["c"]).speedup.median == pytest.approx(0.875, rel=0.005)
    assert chip.times("bad") == after


def test_what_a_candidate_raises_is_its_own_result() -> None:
    chip, error = Chip(), RuntimeError("its executor died")

    def die() -> float:
        raise error

    candidates = {"bad": failing(chip.kernel("bad", 700), 3, die), "c": chip.kernel("c", 800)}
    results = chip.race({"lib": chip.kernel("lib", 700)}, candidates, QUICK)
    assert results["bad"] is error
    assert won(results["c"]).stopped == "narrow"


def test_a_failing_baseline_is_the_machine_s_failure() -> None:
    chip = Chip()
    broken = failing(chip.kernel("lib", 700), 2, lambda: FAILED)
    with pytest.raises(InfrastructureError, match="baseline lib failed: it faulted"):
        chip.race({"lib": broken}, {"c": chip.kernel("c", 800)}, QUICK)


def test_the_gpu_rests_between_short_calls() -> None:
    chip = Chip()
    chip.race({"lib": chip.kernel("lib", 700, overhead_us=0)}, {"c": chip.kernel("c", 700, overhead_us=0)}, QUICK)
    assert chip.busy_s / chip.now_s == pytest.approx(DUTY, rel=0.01)


def test_no_rest_where_overheads_fill_the_time() -> None:
    chip = Chip()
    chip.race({"lib": chip.kernel("lib", 700, overhead_us=2000)}, {"c": chip.kernel("c", 700, overhead_us=2000)}, QUICK)
    assert chip.now_s == pytest.approx(chip.busy_s + len(chip.calls) * 0.002)


def test_a_batch_shares_the_baseline_s_calls() -> None:
    chip = Chip()
    candidates = {f"c{index}": chip.kernel(f"c{index}", 700 + 50 * index) for index in range(5)}
    results = chip.race({"lib": chip.kernel("lib", 700)}, candidates, QUICK)
    for index in range(5):
        assert won(results[f"c{index}"]).speedup.median == pytest.approx(700 / (700 + 50 * index), rel=0.005)
    assert chip.times("lib") == max(chip.times(name) for name in candidates)


@pytest.mark.parametrize(
    ("baselines", "draws"), [({}, 1), ({"lib": lambda draw: 1.0}, 0), ({"c": lambda draw: 1.0}, 1)]
)
def test_a_race_needs_baselines_draws_and_differing_names(baselines: dict[str, TimedCall], draws: int) -> None:
    with pytest.raises(ValueError, match="a race needs"):
        race(baselines, {"c": lambda draw: 1.0}, QUICK, draws=draws)


def test_tiers_ask_for_more_from_rl_to_publish() -> None:
    rl, standard, publish = (PROTOCOLS[name] for name in ("rl", "standard", "publish"))
    assert rl.min_pairs < standard.min_pairs < publish.min_pairs
    assert rl.width > standard.width > publish.width
    assert standard.limit_of(1) == standard.limit_s < 1.0
    assert standard.limit_of(3) == 2 * standard.limit_s
