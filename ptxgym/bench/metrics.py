"""Turns on record → what a table of models says: rates within k turns, speed, failures, tokens and cost.

The definitions are PTXBench's (arXiv 2608.17379) where it has one: a trajectory counts as correct within k turns if one
of its first k kernels is right, and as target-correct if one is right and runs on the target instructions. Speed is
that of target-correct kernels only. What the machine failed at is in no number here; a refusal is a failure.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from ptxgym.bench.statistics import Count, Interval, best_of, bootstrap_ratio, compare, holm, wilson
from ptxgym.errors import ContentError
from ptxgym.store.reader import StoredRun
from ptxgym.store.records import EpisodeRecord, RunRecord, TurnRecord
from ptxgym.verdict import Status, Verdict

HORIZONS = (1, 4, 8)
"""Turns within which rates are told."""
FAST = (0.25, 0.5, 0.75, 1.0)
"""Speed-ups of `fast_p` (KernelBench, arXiv 2502.10517): the share of trajectories with a kernel above p."""
Metric = Literal["correct", "target"]


@dataclass(frozen=True)
class Outcome:
    """What a turn came to."""

    turn: int
    failure: str
    """Empty where the kernel is right, else its status; `no_code`, `truncated` or `refused` where there was none."""
    target: bool = False
    """Right, on target instructions."""
    speedup: float | None = None
    """Of a right kernel over the best library; None where it was not measured."""
    score: float = 0.0

    @property
    def correct(self) -> bool:
        """Whether the kernel is right."""
        return not self.failure


@dataclass(frozen=True)
class Trajectory:
    """An episode that was played to its end."""

    id: str
    task: str
    """Pinned id of the environment, with the variant behind it where it is not the base."""
    arch: str
    agent: str
    arm: str
    outcomes: tuple[Outcome, ...]
    tokens: int | None = 0
    """None where the endpoint tells none."""
    cost_usd: float | None = None
    emulated: bool = True
    """Whether its kernels were emulated, so that no speed was measured."""
    again: Outcome | None = None
    """The best kernel under new conditions, where it was judged once more."""
    given: int | None = None
    """How many turns it might play. None where more would change nothing, as of an anchor, or where nothing says it."""

    def within(self, turns: int, metric: Metric) -> bool:
        """Return whether one of the first `turns` kernels is right, or right on target instructions."""
        first = (outcome for outcome in self.outcomes if outcome.turn <= turns)
        return any(outcome.target if metric == "target" else outcome.correct for outcome in first)

    def fastest(self, turns: int) -> float:
        """Return the best speed-up of a target-correct kernel within `turns`; 0 where there is none."""
        found = (each.speedup or 0.0 for each in self.outcomes if each.turn <= turns and each.target)
        return max(found, default=0.0)


@dataclass(frozen=True)
class Rate:
    """Trajectories that succeeded, of all."""

    successes: int
    total: int

    @property
    def interval(self) -> Interval:
        """Rate with its 95 % interval (Wilson)."""
        return wilson(self.successes, self.total)


@dataclass(frozen=True)
class Cell:
    """What some trajectories came to together."""

    trajectories: int
    turns: int
    correct: Mapping[int, Rate]
    """By number of turns, as far as each trajectory was given so many."""
    target: Mapping[int, Rate]
    correct_turns: Interval
    """Share of all turns, with the interval of a bootstrap over trajectories."""
    target_turns: Interval
    failures: Mapping[str, int]
    """Turns by what was wrong, the most frequent first."""
    tokens_per_solved: float | None
    """All tokens ÷ target-correct trajectories; None where there is none, or an endpoint tells no tokens."""
    cost_per_solved_usd: float | None
    """None also where a price is not known."""
    fast: Mapping[float, Rate] | None
    """Share of trajectories with a target-correct kernel faster than p; None where nothing was measured."""
    confirmed: Rate | None
    """Best kernels that kept what they had reached (right, on target instructions) under new conditions."""


def trajectories(stored: StoredRun) -> tuple[Trajectory, ...]:
    """Return the trajectories of a run that ended; those that the machine failed at are left out."""
    turns: dict[str, list[TurnRecord]] = {}
    for turn in sorted(stored.turns, key=lambda turn: turn.turn):
        turns.setdefault(turn.episode, []).append(turn)
    again = {found.episode: found for found in stored.remeasured}
    result = []
    for episode in stored.episodes:
        played = turns.get(episode.id, [])
        if episode.status == "infra" or not played:
            continue
        found = again.get(episode.id)
        given = _given(stored.record, episode.agent)
        arch = played[0].verdict.provenance.arch
        second = outcome_of(found.verdict, found.turn) if found else None
        result.append(_trajectory(episode, played, arch, second, emulated(stored.record, episode.id, played), given))
    return tuple(result)


def emulated(record: RunRecord, episode: str, played: Sequence[TurnRecord]) -> bool:
    """Return whether the kernels of an episode were emulated, as its verdicts say.

    Where none came so far as to be executed, the front matter says what would have executed it.

    Raises:
        ContentError: if verdicts contradict each other, or neither says it.
    """
    ran = [turn.verdict.provenance for turn in played if turn.verdict.provenance.device is not None]
    kinds = {one.tier is None for one in ran}
    if len(kinds) > 1:
        names = ", ".join(sorted({str(one.device) for one in ran}))
        raise ContentError(f"{episode}: its kernels were judged on {names}; emulated and measured are never mixed")
    if kinds:
        return kinds.pop()
    arch = played[0].verdict.provenance.arch
    device = record.devices.get(arch, record.device)
    if ", " in device:
        raise ContentError(
            f"{episode}: no record says where kernels for {arch} were executed: add it to `devices` in run.json, as "
            f'"{arch}": one of {device}'
        )
    return device == "emulator"


def outcome_of(verdict: Verdict, turn: int, refused: bool = False) -> Outcome:
    """Return what a verdict means for the metrics."""
    correct = verdict.status is Status.OK
    timing = verdict.measured.timing
    return Outcome(
        turn=turn,
        failure="" if correct else _failure(verdict, refused),
        target=correct and verdict.evidence is not None and verdict.evidence.target_ok,
        speedup=timing.speedup if correct and timing is not None else None,
        score=verdict.score,
    )


def horizons(turns: int) -> tuple[int, ...]:
    """Return the numbers of turns that a table of a run with `turns` turns has columns for."""
    return tuple(sorted({*(each for each in HORIZONS if each < turns), turns}))


def comparable(found: Iterable[Trajectory], turns: int) -> int:
    """Return within how many turns trajectories can be compared: `turns`, or as many as each of them was given."""
    return min([turns, *(one.given for one in found if one.given is not None)])


def cell(found: Sequence[Trajectory], within: Sequence[int]) -> Cell:
    """Summarise trajectories of one model.

    Args:
        found: At least one, of any tasks.
        within: Numbers of turns; those that a trajectory was not given have no rate.

    Raises:
        ValueError: if there is no trajectory.
    """
    if not found:
        raise ValueError("no trajectory ended, so there is nothing to summarise")
    played = [len(one.outcomes) for one in found]
    last = max(within)
    told = [turns for turns in within if turns <= comparable(found, turns)]
    solved = sum(one.within(last, "target") for one in found)
    prices = [one.cost_usd for one in found]
    cost = None if None in prices else sum(price for price in prices if price is not None)
    spent = [one.tokens for one in found]
    tokens = None if None in spent else sum(count for count in spent if count is not None)
    failures = Counter(each.failure for one in found for each in one.outcomes if each.failure)
    return Cell(
        trajectories=len(found),
        turns=sum(played),
        correct={turns: rate(found, turns, "correct") for turns in told},
        target={turns: rate(found, turns, "target") for turns in told},
        correct_turns=bootstrap_ratio([sum(each.correct for each in one.outcomes) for one in found], played),
        target_turns=bootstrap_ratio([sum(each.target for each in one.outcomes) for one in found], played),
        failures=dict(failures.most_common()),
        tokens_per_solved=tokens / solved if solved and tokens is not None else None,
        cost_per_solved_usd=cost / solved if solved and cost is not None else None,
        fast=None if all(one.emulated for one in found) else fast(found, last),
        confirmed=confirmed(found),
    )


def confirmed(found: Sequence[Trajectory]) -> Rate | None:
    """Return how many best kernels are as good under new conditions; None where none was judged again."""
    judged = [(one.within(len(one.outcomes), "target"), one.again) for one in found if one.again is not None]
    held = sum(again.target if target else again.correct for target, again in judged)
    return Rate(held, len(judged)) if judged else None


def rate(found: Sequence[Trajectory], turns: int, metric: Metric) -> Rate:
    """Return how many trajectories succeed within `turns`."""
    return Rate(sum(one.within(turns, metric) for one in found), len(found))


def fast(found: Sequence[Trajectory], turns: int) -> dict[float, Rate]:
    """Return, for each p of `FAST`, how many trajectories have a target-correct kernel faster than p."""
    speeds = [one.fastest(turns) for one in found]
    return {p: Rate(sum(speed > p for speed in speeds), len(speeds)) for p in FAST}


def best_speedup(found: Sequence[Trajectory], drawn: int, turns: int) -> float | None:
    """Return the expected best speed-up of `drawn` trajectories, as it was measured again; None before it was.

    The kernel of a trajectory is chosen by the first measurement. A trajectory without a target-correct kernel is 0.
    """
    first = [one.fastest(turns) for one in found]
    if any(value > 0 and one.again is None for value, one in zip(first, found, strict=True)):
        return None
    shown = [one.again.speedup or 0.0 if one.again is not None and one.again.target else 0.0 for one in found]
    return best_of(first, drawn, shown) if any(first) else None


def grouped(
    found: Iterable[Trajectory], key: Callable[[Trajectory], tuple[str, ...]]
) -> dict[tuple[str, ...], tuple[Trajectory, ...]]:
    """Return trajectories by key, in the order in which keys are first met."""
    groups: dict[tuple[str, ...], list[Trajectory]] = {}
    for one in found:
        groups.setdefault(key(one), []).append(one)
    return {name: tuple(group) for name, group in groups.items()}


def failures_by_turn(found: Iterable[Trajectory]) -> dict[int, dict[str, int]]:
    """Return the failure mix of every turn: how many kernels of turn 1, 2 … failed for which reason, or were right."""
    mix: dict[int, Counter[str]] = {}
    for one in found:
        for each in one.outcomes:
            mix.setdefault(each.turn, Counter())[each.failure or "ok"] += 1
    return {turn: dict(mix[turn].most_common()) for turn in sorted(mix)}


@dataclass(frozen=True)
class Shift:
    """What one model gains or loses between two environments."""

    turns: int
    """Within which success counts."""
    before: Rate
    after: Rate
    difference: float
    p_value: float
    """Exact permutation test, two-sided; see `compare`."""


def shift(before: Sequence[Trajectory], after: Sequence[Trajectory], turns: int, metric: Metric = "target") -> Shift:
    """Compare the same model on two environments, such as an operator on two GPU generations.

    Args:
        before: On the first.
        after: On the second.
        turns: Within which success counts, as far as both were given so many.
        metric: What counts as success.

    Raises:
        ValueError: if it has no trajectory on one of them.
    """
    turns = comparable([*before, *after], turns)
    one, other = rate(before, turns, metric), rate(after, turns, metric)
    if not one.total or not other.total:
        raise ValueError("a shift needs trajectories on both environments")
    found = compare({"": Count(other.successes, other.total)}, {"": Count(one.successes, one.total)})
    return Shift(turns, one, other, found.difference, found.p_value)


@dataclass(frozen=True)
class Contrast:
    """Two rows of a table, compared task by task."""

    first: tuple[str, ...]
    second: tuple[str, ...]
    metric: Metric
    emulated: bool
    """Whether trajectories on the emulator are compared, or those that were measured: never one with the other."""
    turns: int
    """Within which success counts: no more than either was given."""
    tasks: int
    difference: float
    p_value: float
    corrected: float
    """Holm's p-value over all contrasts of the table."""


def contrasts(
    groups: Mapping[tuple[str, ...], Sequence[Trajectory]], turns: int, metrics: Sequence[Metric] = ("target",)
) -> tuple[Contrast, ...]:
    """Compare every two groups, such as models, paired by task; corrected for the number of comparisons.

    Groups that share no task are not compared, nor what is emulated with what is measured.

    Args:
        groups: Trajectories by name; anchors are better left out.
        turns: Within which success counts; fewer where one of the two was given fewer.
        metrics: What counts as success.
    """
    found: list[Contrast] = []
    for metric, kind, (one, other) in itertools.product(metrics, (True, False), itertools.combinations(groups, 2)):
        first, second = ([each for each in groups[name] if each.emulated is kind] for name in (one, other))
        both = comparable([*first, *second], turns)
        result = compare(_counts(first, both, metric), _counts(second, both, metric))
        if result.tasks:
            found.append(Contrast(one, other, metric, kind, both, result.tasks, result.difference, result.p_value, 1.0))
    corrected = holm([each.p_value for each in found])
    return tuple(replace(each, corrected=after) for each, after in zip(found, corrected, strict=True))


def _given(record: RunRecord, agent: str) -> int | None:
    recipe: Any = record.sweep.get("recipe") or {}
    spec: Any = next((each for each in recipe.get("agents", ()) if each.get("label") == agent), {})
    turns: int | None = spec.get("turns") or recipe.get("turns")
    return None if spec.get("anchor") else turns  # an anchor always answers the same


def _trajectory(
    episode: EpisodeRecord,
    played: Sequence[TurnRecord],
    arch: str,
    again: Outcome | None,
    emulated: bool,
    given: int | None,
) -> Trajectory:
    usage = episode.usage
    variant = episode.variant or "base"
    return Trajectory(
        id=episode.id,
        task=episode.env if variant == "base" else f"{episode.env}/{variant}",
        arch=arch,
        agent=episode.agent,
        arm=episode.arm,
        outcomes=tuple(outcome_of(turn.verdict, turn.turn, turn.refused) for turn in played),
        tokens=usage.prompt_tokens + usage.completion_tokens if usage.told else None,
        cost_usd=usage.cost_usd,
        emulated=emulated,
        again=again,
        given=given,
    )


def _failure(verdict: Verdict, refused: bool) -> str:
    if refused:
        return "refused"
    known = {"submission.no_code": "no_code", "submission.truncated_response": "truncated"}
    return known.get(verdict.code, str(verdict.status))


def _counts(found: Sequence[Trajectory], turns: int, metric: Metric) -> dict[str, Count]:
    return {
        task: Count(sum(one.within(turns, metric) for one in group), len(group))
        for (task,), group in grouped(found, lambda one: (one.task,)).items()
    }
