"""Judge the best kernel of each trajectory again, under conditions that it was not chosen on.

The best of many measurements is the luckiest too. So what a table shows comes from a second one: other draws, another
hidden shape, on a GPU another timing. On the emulator it says whether what was reached holds.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable
from datetime import UTC, datetime

from ptxgym import judging
from ptxgym.bench.metrics import outcome_of
from ptxgym.bench.runner import concurrently
from ptxgym.envs import load_env
from ptxgym.errors import InfrastructureError
from ptxgym.evaluator import Evaluator
from ptxgym.store.records import EpisodeRecord, Remeasurement, TurnRecord
from ptxgym.store.solutions import kernel_of, unquoted
from ptxgym.store.writer import RunWriter
from ptxgym.task import BASE, Task
from ptxgym.variants import load_variant
from ptxgym.verdict import Verdict

EPOCH = 1


def best_turn(turns: tuple[TurnRecord, ...]) -> TurnRecord | None:
    """Return the first turn with the fastest target-correct kernel, else the best right one; None without any."""
    found = [(outcome_of(turn.verdict, turn.turn), turn) for turn in turns]
    right = [(each.target, each.speedup or 0.0, each.score, -each.turn, turn) for each, turn in found if each.correct]
    return max(right, key=lambda item: item[:4])[4] if right else None


def chosen(run: RunWriter) -> list[tuple[EpisodeRecord, TurnRecord]]:
    """Return the kernels that are still to be judged again."""
    done = {found.episode for found in run.stored.remeasured if found.epoch == EPOCH}
    turns: dict[str, list[TurnRecord]] = {}
    for turn in sorted(run.stored.turns, key=lambda turn: turn.turn):
        turns.setdefault(turn.episode, []).append(turn)
    found = []
    for episode in run.stored.episodes:
        best = best_turn(tuple(turns.get(episode.id, ())))
        if episode.status != "infra" and episode.id not in done and best is not None:
            found.append((episode, best))
    return found


def remeasure(
    run: RunWriter,
    evaluator: Evaluator,
    limit: int,
    on_progress: Callable[[Remeasurement | None], None] = lambda found: None,
) -> None:
    """Judge and store what `chosen` returns.

    Args:
        run: Opened after its last episode ended.
        evaluator: Of epoch `EPOCH`, with the run's secret.
        limit: How many kernels are judged at once.
        on_progress: Takes each result; None where the machine failed three times, or a proven solution is another
            one now.

    Raises:
        InfrastructureError: if the records cannot be written.
    """

    def judge(episode: EpisodeRecord, turn: TurnRecord, task: Task, arch: str) -> None:
        source = kernel_of(turn)
        verdict = None if source is None else _persistent(evaluator, source, task, arch)
        found = None
        if verdict is not None:
            if turn.solution:
                verdict = unquoted(verdict)
            now = datetime.now(UTC).isoformat(timespec="milliseconds")
            found = Remeasurement(episode=episode.id, turn=turn.turn, epoch=EPOCH, verdict=verdict, measured_at=now)
            judging.check_awaited()
            run.remeasured(found)
        on_progress(found)

    work = []
    for episode, turn in chosen(run):
        config = load_env(episode.env)
        task = load_variant(config.task, episode.variant or BASE)
        work.append(functools.partial(judge, episode, turn, task, config.arch))
    concurrently(work, limit)


def _persistent(evaluator: Evaluator, source: str, task: Task, arch: str) -> Verdict | None:
    """Judge a kernel; None where the machine failed three times."""
    for _ in range(3):
        with contextlib.suppress(InfrastructureError):
            return evaluator.evaluate(source, task, arch)
    return None
