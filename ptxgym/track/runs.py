"""`ptxgym run` and `ptxgym bench`, tracked: what a tracker gets is what is on record, in the order in which it came."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from pydantic import JsonValue

from ptxgym.agent import Answered, Event, Judged
from ptxgym.bench.metrics import outcome_of
from ptxgym.bench.runner import Watcher
from ptxgym.bench.sweep import Planned
from ptxgym.reward import TARGET_SCORE
from ptxgym.store.reader import EPISODES as EPISODES_FILE
from ptxgym.store.reader import REMEASURED, RUN, TURNS, read_record, read_run
from ptxgym.store.records import EpisodeRecord, RunRecord, TurnRecord
from ptxgym.store.writer import stored_secret
from ptxgym.track.lines import FOLDER, Logged
from ptxgym.track.tracker import JsonlTracker, WandbTracker, check_tracker, open_tracker
from ptxgym.track.turns import (
    ATTEMPTS,
    EPISODE_AXIS,
    EPISODES,
    TURN_AXIS,
    episode_row,
    episode_values,
    solved,
    turn_row,
    turn_values,
)

KERNELS = "kernels"
"""Folder of the best kernels, in the tracker's."""


class TrackedRun(Watcher):
    """Tells a tracker what happens in a run, as it happens; at the end, what was missed in sittings that were killed.

    The tracker is opened at the first answer: a run that a wrong setting ends before leaves no trace.
    """

    def __init__(self, folder: Path, tracker: str, on_problem: Callable[[str], None]) -> None:
        """Watch the run in `folder`; see `open_tracker`.

        Raises:
            UsageError: if there is no such tracker, or wandb is not installed.
        """
        self._folder = folder
        self._name = check_tracker(tracker)
        self._on_problem = on_problem
        self._tracker: JsonlTracker | None = None
        self._turns: set[tuple[str, int]] = set()
        self._episodes: set[str] = set()
        self._ended: Counter[str] = Counter()
        self._solved: Counter[str] = Counter()

    @property
    def where(self) -> str:
        """Where wandb's run is to be seen; empty without one."""
        return self._tracker.where if isinstance(self._tracker, WandbTracker) else ""

    def on_event(self, planned: Planned, event: Event) -> None:
        """Take a turn that is complete."""
        if isinstance(event, Answered | Judged):
            tracker = self._opened()
            if isinstance(event, Judged):
                self._take_turn(tracker, event.record)

    def on_end(self, planned: Planned, record: EpisodeRecord) -> None:
        """Take an episode that has ended."""
        self._take_episode(self._opened(), record)

    def close(self, *, failed: bool = False) -> None:
        """Tell what is on record and was not told, and the artefacts; then end the sitting."""
        if self._tracker is None and (failed or not _filled(self._folder / TURNS)):
            return
        tracker = self._opened()
        try:
            if not failed:
                self._catch_up(tracker)
                self._artifacts(tracker)
        finally:
            tracker.close(failed=failed)

    def _opened(self) -> JsonlTracker:
        if self._tracker is None:
            record = read_record(self._folder)
            self._tracker = open_tracker(
                self._name,
                self._folder,
                self._folder.name,
                _config(record),
                secrets=_secrets(self._folder, record),
                on_problem=self._on_problem,
            )
            for line in self._tracker.before:
                if isinstance(line, Logged) and line.row is not None:
                    self._remember(line.row.table, line.row.cells)
            self._catch_up(self._tracker)
        return self._tracker

    def _remember(self, table: str, cells: dict[str, Any]) -> None:
        if table == ATTEMPTS:
            self._turns.add((cells["episode"], cells["turn"]))
        elif table == EPISODES:
            self._episodes.add(cells["id"])
            self._count(cells["agent"], cells["best_score"] >= TARGET_SCORE)

    def _count(self, agent: str, solved: bool) -> None:
        self._ended[agent] += 1
        self._solved[agent] += solved

    def _catch_up(self, tracker: JsonlTracker) -> None:
        stored = read_run(self._folder)
        for turn in stored.turns:
            self._take_turn(tracker, turn)
        for episode in stored.episodes:
            self._take_episode(tracker, episode)

    def _take_turn(self, tracker: JsonlTracker, record: TurnRecord) -> None:
        key = record.episode, record.turn
        if key not in self._turns:
            self._turns.add(key)
            tracker.log(turn_values(record), axis=TURN_AXIS, step=len(self._turns), row=turn_row(record))

    def _take_episode(self, tracker: JsonlTracker, record: EpisodeRecord) -> None:
        """Take how an episode ended; what the machine failed at is played again, and in no rate."""
        if record.id in self._episodes or record.status == "infra":
            return
        self._episodes.add(record.id)
        self._count(record.agent, solved(record))
        rate = self._solved[record.agent] / self._ended[record.agent]
        values = {**episode_values(record), f"solved/{record.agent}": rate}
        tracker.log(values, axis=EPISODE_AXIS, step=len(self._episodes), row=episode_row(record))

    def _artifacts(self, tracker: JsonlTracker) -> None:
        """Tell of the records, and of the best kernel for each environment and variant."""
        names = (RUN, EPISODES_FILE, TURNS, REMEASURED)
        records = {name: self._folder / name for name in names if _filled(self._folder / name)}
        tracker.artifact(f"records-{_slug(self._folder.name)}", "records", records)
        stored = read_run(self._folder)
        best = dict(_best(stored.episodes, stored.turns))
        folder = self._folder / FOLDER / KERNELS
        folder.mkdir(exist_ok=True)
        files: dict[str, Path] = {}
        scores: dict[str, JsonValue] = {}
        for cell, turn in best.items():
            path = folder / f"{_slug(cell)}.cu"
            path.write_text(turn.source, encoding="utf-8", errors="backslashreplace")
            files[path.name], scores[path.name] = path, turn.score
        if files:
            tracker.artifact(f"kernels-{_slug(self._folder.name)}", "kernels", files, {"scores": scores})

    def __enter__(self) -> Self:
        """Return the watcher."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End the sitting."""
        self.close(failed=kind is not None)


class Watchers(Watcher):
    """Tells several watchers."""

    def __init__(self, *watchers: Watcher) -> None:
        self._watchers = watchers

    def on_event(self, planned: Planned, event: Event) -> None:
        """Tell all."""
        for each in self._watchers:
            each.on_event(planned, event)

    def on_end(self, planned: Planned, record: EpisodeRecord) -> None:
        """Tell all."""
        for each in self._watchers:
            each.on_end(planned, record)

    def on_retry(self, planned: Planned, record: EpisodeRecord) -> None:
        """Tell all."""
        for each in self._watchers:
            each.on_retry(planned, record)


def _best(episodes: Iterable[EpisodeRecord], turns: Iterable[TurnRecord]) -> Iterator[tuple[str, TurnRecord]]:
    """Yield, by environment and variant, the best kernel that somebody wrote: proven solutions stay at home."""
    cells = {episode.id: f"{episode.env}-{episode.variant or 'base'}" for episode in episodes}
    found: dict[str, tuple[tuple[bool, float, float], TurnRecord]] = {}
    for turn in turns:
        cell = cells.get(turn.episode)
        if cell is None or not turn.source or turn.solution or turn.score <= 0:
            continue
        outcome = outcome_of(turn.verdict, turn.turn)
        rank = (outcome.target, outcome.speedup or 0.0, turn.score)
        if cell not in found or rank > found[cell][0]:
            found[cell] = rank, turn
    yield from ((cell, turn) for cell, (_, turn) in found.items())


def _config(record: RunRecord) -> dict[str, Any]:
    """Return what identifies a run, of its front matter."""
    told = record.model_dump(mode="json", include={"sweep_sha256", "devices", "versions", "conditions_sha256"})
    return {"run": record.name, **told, **{name: record.sweep.get(name) for name in ("recipe", "agents")}}


def _secrets(folder: Path, record: RunRecord) -> Iterator[str]:
    """Yield the run's secret, and the keys that its agents take from variables of whatever name."""
    yield stored_secret(folder) or ""
    agents = record.sweep.get("agents")
    for agent in agents.values() if isinstance(agents, dict) else ():
        yield os.environ.get(str(agent.get("api_key_env") or ""), "")


def _filled(path: Path) -> bool:
    return path.is_file() and path.stat().st_size > 0


def _slug(text: str) -> str:
    return "".join(letter if letter.isalnum() or letter in "._-" else "-" for letter in text.removeprefix("ptxgym/"))
