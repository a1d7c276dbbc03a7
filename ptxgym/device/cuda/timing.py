"""Baselines and candidates, timed call by call in turns.

A *round* calls everybody once, on one draw, in an order drawn anew; a *pair* is what one candidate and one baseline
took in the same round. Heat, power and clocks change over rounds and hardly within one, so ratios within rounds are
results and times are leads (docs/timing.md has the study). The caller holds the device lock alone.
"""

from __future__ import annotations

import random
import statistics
import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from ptxgym.device.cuda.statistics import Interval, interval
from ptxgym.errors import InfrastructureError
from ptxgym.verdict import BaselineTime, Failure, Timing

TimedCall = Callable[[int], "float | Failure"]
"""Makes one cold call on draw i and returns what it took on the device in µs, or how the submission failed."""

DUTY = 0.4
"""Share of the time that a timed kernel may occupy the GPU. Without rests the H200 ran into its power limit, its clock
fell from 1980 to 1550 MHz, and the ratio of two unlike kernels moved by 1 % (docs/timing.md)."""
MAX_REST_S = 0.005
SLOW_FACTOR = 8.0
"""A candidate that many times slower than the best baseline needs no narrow interval."""
SLOW_PAIRS = 6
LEAST_CALLS = 3
"""Fewer are made only of candidates that are hopelessly slow: one call that the host noticed late says nothing."""
BEHIND = 1.1
"""A baseline that much slower than the best one after `BEHIND_ROUNDS` rounds leaves the race."""
BEHIND_ROUNDS = 6
GROWTH = 1.25
"""Interval widths are looked at when the pairs have grown by that factor: looking after each pair would stop at lucky
moments."""


@dataclass(frozen=True)
class Protocol:
    """How long a tier measures."""

    warm_s: float
    """Rounds before that do not count; the first round never does."""
    min_pairs: int
    max_pairs: int
    width: float
    """Relative width of the interval at which measuring ends."""
    limit_s: float
    """Time for one candidate; each further one in a batch adds half of it. Calls of far slower ones do not count."""

    def limit_of(self, candidates: int) -> float:
        """Return the time in s for a batch of that many."""
        return self.limit_s * (1 + candidates) / 2


PROTOCOLS: Mapping[str, Protocol] = {
    "rl": Protocol(warm_s=0.01, min_pairs=8, max_pairs=48, width=0.01, limit_s=0.5),
    "standard": Protocol(warm_s=0.03, min_pairs=16, max_pairs=160, width=0.005, limit_s=0.8),
    "publish": Protocol(warm_s=0.2, min_pairs=64, max_pairs=600, width=0.003, limit_s=4.0),
}
"""By tier."""


@dataclass(frozen=True)
class Race:
    """How one candidate did against the best baseline of its rounds."""

    speedup: Interval
    """Baseline ÷ candidate."""
    candidate_us: float
    baseline: str
    baselines_us: Mapping[str, float]
    """Medians of all, also of those that left early."""
    ratios: tuple[float, ...]
    """In the order of measuring; `statistics.interval` of them, with the seed of the race, is `speedup`."""
    stopped: str
    """`narrow`, `pairs`, `time` or `slow`."""

    def timing(self, versions: Mapping[str, str], flops: int | None = None, roofline_us: float | None = None) -> Timing:
        """Return it as a verdict holds it.

        Args:
            versions: of the baselines, by name.
            flops: that the operator takes.
            roofline_us: least time that the GPU's peak rates allow.
        """
        return Timing(
            speedup=self.speedup.median,
            speedup_low=self.speedup.low,
            speedup_high=self.speedup.high,
            candidate_us=self.candidate_us,
            baseline_us=self.baselines_us[self.baseline],
            baseline=self.baseline,
            pairs=len(self.ratios),
            stopped=self.stopped,
            tflops=None if flops is None else flops / self.candidate_us / 1e6,
            roofline_us=roofline_us,
            baselines=tuple(
                BaselineTime(name=name, time_us=time_us, version=versions.get(name, ""))
                for name, time_us in sorted(self.baselines_us.items(), key=lambda item: item[1])
            ),
        )


Result = Race | Failure | Exception
"""An exception is what a candidate's call raised; it is its owner's affair."""


def race(
    baselines: Mapping[str, TimedCall],
    candidates: Mapping[str, TimedCall],
    protocol: Protocol,
    *,
    draws: int = 1,
    seed: bytes = b"",
    rng: random.Random | None = None,
    clock: Callable[[], float] = time.perf_counter,
    sleep: Callable[[float], None] = time.sleep,
) -> dict[str, Result]:
    """Time `candidates` against `baselines` in turns and return each one's result by name.

    A candidate that fails or raises leaves, and the others go on. Each leaves when its interval is narrow enough, or at
    the limits of the protocol.

    Args:
        baselines: at least one; names differ from those of candidates.
        candidates: calls by name.
        protocol: how long to measure.
        draws: how many draws the calls know.
        seed: of the conditions, for the bootstrap.
        rng: for orders; the operating system's by default, so that no submission learns them from another's output.
        clock: in s.
        sleep: for rests.

    Raises:
        InfrastructureError: if a baseline fails.
        ValueError: if there is no baseline, no draw, or a name is on both sides.
    """
    if not baselines or draws < 1 or set(baselines) & set(candidates):
        raise ValueError(f"a race needs baselines {list(baselines)} and draws ({draws}), and differing names")
    course = _Course(dict(baselines), dict(candidates), protocol, seed, clock, sleep)
    order = _Draws(draws, rng or random.SystemRandom())
    while course.running:
        course.round(order.next(), order.random)
    return course.results


class _Draws:
    """Every draw once, in random order, then all again in another."""

    def __init__(self, count: int, rng: random.Random) -> None:
        self.random = rng
        self._count, self._bag = count, list[int]()

    def next(self) -> int:
        if not self._bag:
            self._bag = self.random.sample(range(self._count), self._count)
        return self._bag.pop()


@dataclass
class _Course:
    """A race under way."""

    baselines: dict[str, TimedCall]
    candidates: dict[str, TimedCall]
    protocol: Protocol
    seed: bytes
    clock: Callable[[], float]
    sleep: Callable[[float], None]
    results: dict[str, Result] = field(default_factory=dict)
    rounds: list[dict[str, float]] = field(default_factory=list)
    """µs by name, of everybody who ran."""
    warm_rounds: int = 0
    spent_s: defaultdict[str, float] = field(default_factory=lambda: defaultdict(float))
    """In the calls of each candidate."""
    slow: set[str] = field(default_factory=set)
    """Candidates that are far slower than the best baseline, or failed: those beside them have no less time for it."""

    def __post_init__(self) -> None:
        self.running = dict(self.candidates)
        self.kept = dict(self.baselines)
        self.began = self.clock()
        self.limit_s = self.protocol.limit_of(len(self.candidates))
        self.next_look = dict.fromkeys(self.candidates, self.protocol.min_pairs)

    def round(self, draw: int, rng: random.Random) -> None:
        """Call everybody once, then see who is done."""
        if not self.rounds or self.clock() - self.began < min(self.protocol.warm_s, self.limit_s / 2):
            self.warm_rounds = len(self.rounds) + 1
        names = [*self.kept, *self.running]
        rng.shuffle(names)
        times: dict[str, float] = {}
        for name in names:
            started = self.clock()
            answer = self._call(name, draw)
            if name in self.running:
                self.spent_s[name] += self.clock() - started
            if isinstance(answer, float):
                times[name] = answer
            else:
                self.results[name] = answer
                self.slow.add(name)  # it may have hung
                del self.running[name]
        self.rounds.append(times)
        for name in self.running:
            (self.slow.add if self._ratio(name, self._rows(name)) < 1 / SLOW_FACTOR else self.slow.discard)(name)
        self._drop_baselines()
        for name in list(self.running):
            self._consider(name)

    def _call(self, name: str, draw: int) -> float | Failure | Exception:
        started = self.clock()
        if name in self.kept:
            time_us = self.kept[name](draw)
            if isinstance(time_us, Failure):
                raise InfrastructureError(f"baseline {name} failed: {time_us.message}")
        else:
            try:
                time_us = self.running[name](draw)
            except Exception as error:  # its owner is told; the others race on
                return error
            if isinstance(time_us, Failure):
                return time_us
        took_s = float(time_us) / 1e6
        rest_s = min(took_s * (1 / DUTY - 1), MAX_REST_S) - (self.clock() - started - took_s)
        if rest_s > 0:
            self.sleep(rest_s)
        return float(time_us)

    def _drop_baselines(self) -> None:
        if len(self.kept) > 1 and len(self.rounds) == BEHIND_ROUNDS:
            medians = self._medians(self.kept, self.rounds)
            best = min(medians.values())
            self.kept = {name: call for name, call in self.kept.items() if medians[name] <= BEHIND * best}

    def _consider(self, name: str) -> None:
        """End a candidate's race if it is over."""
        mine = [row for row in self.rounds[self.warm_rounds :] if name in row]
        if not mine:
            if self._hopeless(name):
                self._finish(name, self.rounds, "slow")
            return
        late = self._counted_s(name) >= self.limit_s and len(self._rows(name)) >= LEAST_CALLS
        enough = len(mine) >= self.next_look[name]
        full = len(mine) >= self.protocol.max_pairs
        if len(mine) == SLOW_PAIRS and self._ratio(name, mine) < 1 / SLOW_FACTOR:
            self._finish(name, mine, "slow")
        elif enough or full or late:
            self.next_look[name] = max(len(mine) + 1, int(len(mine) * GROWTH))
            speedup, _ = self._speedup(name, mine)
            narrow = len(mine) >= self.protocol.min_pairs and speedup.width <= self.protocol.width
            if narrow or full or late:
                self._finish(name, mine, "narrow" if narrow else "pairs" if full else "time")

    def _counted_s(self, name: str) -> float:
        """Return the time that counts against a candidate's limit."""
        beside = sum(spent_s for other, spent_s in self.spent_s.items() if other in self.slow and other != name)
        return self.clock() - self.began - beside

    def _hopeless(self, name: str) -> bool:
        """Whether the first calls say that a few more would take longer than there is time for one candidate."""
        return name in self.slow and self.rounds[-1][name] / 1e6 * SLOW_PAIRS > self.protocol.limit_s

    def _rows(self, name: str) -> list[dict[str, float]]:
        return [row for row in self.rounds if name in row]

    def _finish(self, name: str, rows: Sequence[Mapping[str, float]], stopped: str) -> None:
        rows = [row for row in rows if name in row]
        speedup, best = self._speedup(name, rows)
        self.results[name] = Race(
            speedup=speedup,
            candidate_us=statistics.median(row[name] for row in rows),
            baseline=best,
            baselines_us=self._medians(self.baselines, self.rounds) | self._medians(self.kept, rows),
            ratios=self._ratios(name, best, rows),
            stopped=stopped,
        )
        del self.running[name]

    def _speedup(self, name: str, rows: Sequence[Mapping[str, float]]) -> tuple[Interval, str]:
        best = self._best(rows)
        return interval(self._ratios(name, best, rows), self.seed), best

    def _ratio(self, name: str, rows: Sequence[Mapping[str, float]]) -> float:
        return statistics.median(self._ratios(name, self._best(rows), rows))

    def _best(self, rows: Sequence[Mapping[str, float]]) -> str:
        medians = self._medians(self.kept, rows)
        return min(medians, key=medians.__getitem__)

    @staticmethod
    def _ratios(name: str, baseline: str, rows: Sequence[Mapping[str, float]]) -> tuple[float, ...]:
        return tuple(row[baseline] / row[name] for row in rows)

    @staticmethod
    def _medians(names: Mapping[str, TimedCall], rows: Sequence[Mapping[str, float]]) -> dict[str, float]:
        return {name: statistics.median(row[name] for row in rows if name in row) for name in names}
