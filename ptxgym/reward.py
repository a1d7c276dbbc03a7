"""Score of a verdict, and the rewards that presets pay for it over an episode.

The score has no memory: equal verdicts score alike in every episode. A reward is what a preset pays for the *best* so
far, so that nothing is paid twice within an episode: neither a resubmitted text, nor a text that is right again after a
wrong one, nor the kernel that an episode starts from.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal, Self

from pydantic import Field, model_validator

from ptxgym import content
from ptxgym.verdict import Evidence, FamilyCount, Finding, OutputError, Severity, Status, Timing, Value, Verdict

RAN_SCORE = 0.05
CLOSE_SCORE = 0.10
"""On top of `RAN_SCORE`, times the closeness, which is below 1 for every wrong output."""
SCORE_DECIMALS = 6
CORRECT_SCORE = 0.20
COVERAGE_SCORES = ((0.9, 0.45), (0.5, 0.40), (0.1, 0.30))
"""(share of the operator's multiply-adds that target instructions are credited with, score from there on)."""
TARGET_SCORE = 0.50
SPEED_GRID_LOG2 = 0.05
SPEED_FLOOR_LOG2 = -5.0
"""A speed-up of 1/32 pays nothing beyond `TARGET_SCORE`; parity with the best library pays all."""
REDUNDANCY_LIMIT = 0.1
"""Other multiply-adds, as a share of the required, that a kernel may do beside target instructions."""
ORDINARY_FAMILIES = ("alu", "cvt", "ld", "atom")
ORDINARY_PER_REQUIRED = 1.0
ORDINARY_PER_OTHER = 16.0
"""Ordinary thread instructions that a kernel may execute for each required, and each other, multiply-add."""

TermName = Literal["score", "correct", "target", "speedup"]
Terms = Mapping[TermName, float]
TERM_NAMES: tuple[TermName, ...] = ("score", "correct", "target", "speedup")


def score(
    status: Status,
    outputs: Sequence[OutputError] = (),
    evidence: Evidence | None = None,
    findings: Sequence[Finding] = (),
    timing: Timing | None = None,
) -> float:
    """Return the score in [0, 1] of a verdict with these parts.

    0 agent's fault, an error-severity finding, or no element of any output written; 0.05 ran clean but wrong; up to
    0.125 close; 0.20 correct; 0.30, 0.40 and 0.45 correct with a credited coverage of 0.1, 0.5 and 0.9; 0.50
    `target_ok`; up to 1 with speed on top of that. Rounded to six decimals, so that it prints as it is meant.

    Raises:
        ValueError: if the status is `infra`: the machine failed, and that is never a number.
    """
    if status is Status.INFRA:
        raise ValueError("an infrastructure failure has no score; retry the evaluation or truncate the episode")
    if any(finding.severity is Severity.ERROR and finding.source is None for finding in findings):
        return 0.0
    if status is Status.WRONG_OUTPUT:
        if outputs and not any(output.written for output in outputs):
            return 0.0
        closeness = min((output.closeness for output in outputs if not output.ok), default=0.0)
        return round(RAN_SCORE + CLOSE_SCORE * min(1.0, max(0.0, closeness)), SCORE_DECIMALS)
    if status is not Status.OK:
        return 0.0
    if evidence is None:
        return CORRECT_SCORE
    if evidence.target_ok:
        share = speed_share(timing) if timing else 0.0
        return round(TARGET_SCORE + (1.0 - TARGET_SCORE) * share, SCORE_DECIMALS)
    credited = credited_coverage(evidence)
    return next((value for least, value in COVERAGE_SCORES if credited >= least), CORRECT_SCORE)


def credited_coverage(evidence: Evidence) -> float:
    """Return the coverage that counts: what target instructions did, at most what other instructions left to be done.

    A kernel that does all its arithmetic on CUDA cores and repeats it on scratch data with target instructions is
    credited with nothing; one that splits the work is credited with its share.
    """
    required, other = evidence.required_multiply_adds, evidence.other_multiply_adds
    if evidence.denied or evidence.ablation == "independent" or required == 0:
        return 0.0
    if uncounted_arithmetic(evidence.families, required, other):
        return 0.0
    others = other / required
    left = max(0.0, 1.0 - others) / (1.0 - REDUNDANCY_LIMIT)
    return min(evidence.coverage, left)


def uncounted_arithmetic(families: Mapping[str, FamilyCount], required: int, other: int) -> bool:
    """Return whether ordinary instructions are so many that they may have replaced the operator's multiply-adds.

    A product can be had from shifts and additions, tables, or logarithms; a test of the target's results then hides
    from ablation that nothing depends on them. All of these take at least three thread instructions for a multiply-add.
    A kernel on matrix instructions takes 0.01 to 0.1; one that does a part on CUDA cores in the open takes up to some
    16 for every multiply-add there.

    Args:
        families: executed instructions by family.
        required: multiply-adds of the operator.
        other: multiply-adds outside of target instructions.
    """
    ordinary = sum(families[name].thread_instructions for name in ORDINARY_FAMILIES if name in families)
    return ordinary > ORDINARY_PER_REQUIRED * required + ORDINARY_PER_OTHER * other


def speed_share(timing: Timing) -> float:
    """Return clip((log2 s + 5) / 5, 0, 1), s the lower end of the interval, floored to a grid as wide as the interval.

    The grid is 0.05 in log2, or the multiple of it that holds the interval, so that no two scores differ by less than
    their noise.
    """
    low = math.log2(timing.speedup_low)
    width = max(0.0, math.log2(timing.speedup_high) - low)
    cells = max(1, math.ceil(width / SPEED_GRID_LOG2 - 1e-9))
    grid = cells * SPEED_GRID_LOG2
    on_grid = math.floor(low / grid + 1e-9) * grid
    return min(1.0, max(0.0, (on_grid - SPEED_FLOOR_LOG2) / -SPEED_FLOOR_LOG2))


def terms(verdict: Verdict) -> dict[TermName, float]:
    """Return what presets can pay for: `score`; `correct` and `target` as 0 or 1; `speedup` (0 where not measured).

    Raises:
        ValueError: if the verdict is an infrastructure failure.
    """
    if verdict.status is Status.INFRA:
        raise ValueError("an infrastructure failure earns no terms; retry the evaluation or truncate the episode")
    correct = verdict.status is Status.OK
    target = correct and verdict.evidence is not None and verdict.evidence.target_ok
    timing = verdict.measured.timing
    return {
        "score": verdict.score,
        "correct": float(correct),
        "target": float(target),
        "speedup": timing.speedup if correct and timing else 0.0,
    }


def bounds(verdict: Verdict) -> tuple[dict[TermName, float], dict[TermName, float]]:
    """Return the least and the most that each term may be worth, by the interval of the timing.

    The score lies on a grid below the interval, so that it is the least itself; the median that `speedup` pays lies
    within.

    Raises:
        ValueError: if the verdict is an infrastructure failure.
    """
    least, most, timing = terms(verdict), terms(verdict), verdict.measured.timing
    if verdict.status is not Status.OK or timing is None:
        return least, most
    least["speedup"], most["speedup"] = timing.speedup_low, timing.speedup_high
    if verdict.evidence is not None and verdict.evidence.target_ok:
        share = (math.log2(timing.speedup_high) - SPEED_FLOOR_LOG2) / -SPEED_FLOOR_LOG2
        exact = TARGET_SCORE + (1.0 - TARGET_SCORE) * min(1.0, max(0.0, share))
        most["score"] = max(most["score"], exact)
    return least, most


class RewardPreset(Value):
    """How an episode pays, read from `rewards/<name>.toml`."""

    name: str
    summary: str
    pay: Literal["increments", "end"]
    """`increments`: at every turn, what the best so far has gained; `end`: the same sum at the last turn."""
    weights: dict[TermName, float] = Field(min_length=1)
    """Weight of each term; terms that are not named weigh nothing."""

    @model_validator(mode="after")
    def _paying(self) -> Self:
        if any(weight < 0 for weight in self.weights.values()) or not any(self.weights.values()):
            raise ValueError("weights must not be negative, and one must be positive")
        return self


def _nothing() -> dict[TermName, float]:
    return dict.fromkeys(TERM_NAMES, 0.0)


@dataclass(frozen=True)
class Payment:
    """What one turn paid."""

    reward: float
    terms: dict[str, float]
    """The reward by term, weighted; it sums to `reward`."""


@dataclass(frozen=True)
class Ledger:
    """What an episode has reached and what of it is paid: an immutable value, one per turn."""

    preset: RewardPreset
    best: Terms = field(default_factory=_nothing)
    paid: Terms = field(default_factory=_nothing)
    seen: frozenset[str] = frozenset()
    """SHA-256 of the texts that were judged in this episode."""

    @classmethod
    def start(cls, preset: RewardPreset, init: Verdict | None = None) -> Ledger:
        """Open the ledger of an episode; what the kernel `init` reaches counts as paid."""
        if init is None:
            return cls(preset)
        reached = terms(init)
        return cls(preset, best=reached, paid=reached, seen=frozenset({init.provenance.source_sha256}))

    @property
    def due(self) -> float:
        """What is reached and not yet paid: what an episode that ends here, without another turn, still owes."""
        return sum(weight * (self.best[name] - self.paid[name]) for name, weight in self.preset.weights.items())

    def settle(self, verdict: Verdict, last: bool) -> tuple[Payment, Ledger]:
        """Return what the turn with `verdict` pays, and the ledger after it.

        A text that was judged before in this episode changes nothing, even if it was measured faster this time.

        Args:
            verdict: the turn's verdict.
            last: whether the episode ends with this turn; presets that pay at the end pay now.

        Raises:
            ValueError: if the verdict is an infrastructure failure.
        """
        reached = terms(verdict)
        text = verdict.provenance.source_sha256
        best = self.best
        if text not in self.seen:
            best = {name: max(self.best[name], reached[name]) for name in TERM_NAMES}
        after = replace(self, best=best, seen=self.seen | {text})
        if self.preset.pay == "end" and not last:
            return Payment(0.0, {str(name): 0.0 for name in self.preset.weights}), after
        gains = {name: weight * (best[name] - self.paid[name]) for name, weight in self.preset.weights.items()}
        return Payment(sum(gains.values()), {str(name): gain for name, gain in gains.items()}), replace(
            after, paid=best
        )


def load_reward(name: str) -> RewardPreset:
    """Load the preset `name` from the content folders.

    Raises:
        UnknownNameError: if there is none; suggests the nearest.
        ContentError: if its file is malformed.
    """
    return content.load(content.locate("rewards", name), RewardPreset, name=name)
