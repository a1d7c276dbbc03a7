"""Turns and episodes on record → numbers and rows of tables.

Only what records hold is told: a proven solution goes out by its name and hash alone, draws and hidden shapes not at
all.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping

from ptxgym.episode import Turn
from ptxgym.reward import TARGET_SCORE
from ptxgym.store.records import EpisodeRecord, TurnRecord, Usage
from ptxgym.track.lines import Cell, Row
from ptxgym.verdict import Severity, Stage, Status, Verdict

ATTEMPTS = "attempts"
"""The table with a row for each turn."""
EPISODES = "episodes"
TURN_AXIS = "turns"
"""How many turns the run has had, in whichever order its episodes had them."""
EPISODE_AXIS = "episodes_ended"
_COMPILED = frozenset({Stage.PLAN, Stage.EXECUTE, Stage.JUDGE})


def turn_values(record: TurnRecord) -> dict[str, float]:
    """Return the numbers of a turn on record; those that there is no measurement of are left out."""
    more = {"turn/model_s": record.model_s, "turn/evaluate_s": record.evaluate_s}
    return {**judged_values(record.turn, record), **more, **_known(_usage_values("turn", record.usage))}


def judged_values(number: int, turn: Turn | TurnRecord) -> dict[str, float]:
    """Return what the judge's word on turn `number` of an episode comes to."""
    values: dict[str, float | None] = {
        "turn/number": number,
        "turn/score": turn.score,
        "turn/best_score": turn.best_score,
        "turn/compiled": turn.verdict.stage in _COMPILED,
        "turn/correct": turn.verdict.status is Status.OK,
        "reward/total": turn.reward,
        **{f"reward/{name}": value for name, value in turn.terms.items()},
        **dict(_verdict_values(turn.verdict)),
    }
    return _known(values)


def turn_row(record: TurnRecord) -> Row:
    """Return a turn on record as a row: kernel and feedback whole."""
    more = {"solution": record.solution, "model": record.model, "finish_reason": record.finish_reason}
    return Row(table=ATTEMPTS, cells={**judged_cells(record.episode, record.turn, record), **more})


def judged_cells(episode: str, number: int, turn: Turn | TurnRecord) -> dict[str, Cell]:
    """Return the cells of turn `number` of an episode."""
    verdict = turn.verdict
    return {
        "episode": episode,
        "turn": number,
        "status": str(verdict.status),
        "code": verdict.code,
        "message": verdict.message,
        "score": turn.score,
        "reward": turn.reward,
        "correct": verdict.status is Status.OK,
        "target_ok": _target_ok(verdict),
        "speedup": verdict.measured.timing.speedup if verdict.measured.timing is not None else None,
        "kernel": turn.source,
        "feedback": turn.feedback,
        "source_sha256": verdict.provenance.source_sha256,
        "device": verdict.provenance.device,
    }


def episode_values(record: EpisodeRecord) -> dict[str, float]:
    """Return the numbers of an episode that has ended."""
    values: dict[str, float | None] = {
        "episode/best_score": record.best_score,
        "episode/best_turn": record.best_turn,
        "episode/turns": record.turns,
        "episode/solved": solved(record),
        "episode/refused": record.status == "refused",
        **_usage_values("episode", record.usage),
    }
    return _known(values)


def episode_row(record: EpisodeRecord) -> Row:
    """Return an episode as a row."""
    named = ("id", "env", "variant", "agent", "arm", "trajectory", "status", "turns", "best_score", "best_turn")
    cells: dict[str, Cell] = {name: getattr(record, name) for name in named}
    return Row(table=EPISODES, cells={**cells, "problem": record.problem, "ended": record.ended})


def solved(record: EpisodeRecord) -> bool:
    """Return whether a kernel of the episode is right and runs on the target instructions."""
    return record.best_score >= TARGET_SCORE


def _known(values: Mapping[str, float | None]) -> dict[str, float]:
    return {name: float(value) for name, value in values.items() if value is not None and math.isfinite(value)}


def _usage_values(group: str, usage: Usage) -> dict[str, float | None]:
    if not usage.told:
        return {}
    names = ("prompt_tokens", "completion_tokens", "cost_usd")
    return {f"{group}/{name}": getattr(usage, name) for name in names}


def _verdict_values(verdict: Verdict) -> Iterator[tuple[str, float | None]]:
    found = verdict.findings
    yield from ((f"findings/{each}", sum(one.severity is each for one in found)) for each in Severity)
    errors = [output.relative_error for output in verdict.outputs]
    yield "check/relative_error", max(errors, default=None)
    yield "check/closeness", min((output.closeness for output in verdict.outputs), default=None)
    if verdict.evidence is not None:
        yield "evidence/coverage", verdict.evidence.coverage
        yield "evidence/target_ok", _target_ok(verdict)
        yield "evidence/tma_bytes", verdict.evidence.tma_bytes
    timing = verdict.measured.timing
    if timing is not None:
        for name in ("speedup", "speedup_low", "speedup_high", "candidate_us", "baseline_us", "tflops", "roofline_us"):
            yield f"time/{name}", getattr(timing, name)
    if verdict.measured.profile:
        longest = verdict.measured.profile[0].model_dump(exclude={"kernel", "stalls", "hot_lines", "occupancy_limiter"})
        yield from ((f"ncu/{name}", value) for name, value in longest.items())
    yield from ((f"stage/{name}_s", seconds) for name, seconds in verdict.measured.durations_s.items())


def _target_ok(verdict: Verdict) -> bool:
    return verdict.status is Status.OK and verdict.evidence is not None and verdict.evidence.target_ok
