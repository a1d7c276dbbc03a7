"""`ptxgym bench`: a sweep with live progress, and the tables at its end."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table as RichTable

from ptxgym.agent import Event, Judged, Trouble
from ptxgym.bench.metrics import trajectories
from ptxgym.bench.recipe import Recipe
from ptxgym.bench.runner import Watcher
from ptxgym.bench.session import Sweep
from ptxgym.bench.sweep import Planned
from ptxgym.bench.tables import Table, tables
from ptxgym.cli.console import err, out, plain
from ptxgym.cli.tracking import JSONL, show_where, told
from ptxgym.reward import TARGET_SCORE
from ptxgym.store.reader import StoredRun
from ptxgym.store.records import EpisodeRecord, Remeasurement
from ptxgym.track.runs import TrackedRun, Watchers


def run_bench(recipe: Recipe, folder: Path, *, resume: bool, remeasure: bool, track: str = JSONL) -> bool:
    """Play a sweep, print its tables, and return whether every episode was played to its end."""
    sweep = Sweep(recipe, folder, resume=resume, remeasure=remeasure)
    out.print(plain(f"{recipe.name}: {recipe.summary}"))
    out.print(plain(f"run {folder}, sweep {sweep.record.sweep_sha256[:16]}, device {sweep.record.device}", "dim"))
    with TrackedRun(folder, track, told) as tracked:
        stored = _played(sweep, tracked)
        if remeasure:
            stored = _remeasured(sweep)
        show_tables(tables(recipe, trajectories(stored)))
    show_where(tracked.where)
    return _complete(stored)


def show_tables(found: Sequence[Table]) -> None:
    """Print tables with what is to be known to read them."""
    for table in found:
        shown = RichTable(
            *table.columns, title=table.title, title_justify="left", box=None, header_style="bold", title_style="bold"
        )
        for row in table.rows:
            shown.add_row(*map(plain, row))
        out.print(shown)
        for note in table.notes:
            out.print(plain(note, "dim"))
        out.print()


class _Live(Watcher):
    """Shows progress: a bar on a terminal, else a line for each episode."""

    def __init__(self, progress: Progress, done: int, total: int) -> None:
        self._progress = progress
        self._task = progress.add_task("episodes", total=total, completed=done, said="")
        self._turns = self._solved = self._infra = self._tokens = 0
        self._cost = 0.0

    def on_event(self, planned: Planned, event: Event) -> None:
        """Count turns, tokens and cost."""
        if isinstance(event, Trouble):
            self._say(f"{planned.id} turn {event.turn}: {event.message}")
        if not isinstance(event, Judged):
            return
        usage = event.record.usage
        self._turns += 1
        self._tokens += usage.prompt_tokens + usage.completion_tokens
        self._cost += usage.cost_usd or 0.0
        self._update()

    def on_end(self, planned: Planned, record: EpisodeRecord) -> None:
        """Count the episode."""
        self._solved += record.best_score >= TARGET_SCORE
        self._infra += record.status == "infra"
        self._progress.advance(self._task)
        self._update()
        if record.status == "infra":
            self._say(f"{record.id}: {record.problem}")
        elif not err.is_terminal:
            err.print(plain(f"{record.id}: {record.status}, best {record.best_score:.2f} in {record.turns} turns"))

    def on_retry(self, planned: Planned, record: EpisodeRecord) -> None:
        """Say what failed."""
        self._say(f"{record.id}: {record.problem}; it goes on in a moment")

    def _update(self) -> None:
        cost = f", {self._cost:.2f} USD" if self._cost else ""
        infra = f", {self._infra} failed by the machine" if self._infra else ""
        tokens = f", {self._tokens:,} tokens" if self._tokens else ""
        said = f"{self._turns} turns, {self._solved} on target{tokens}{cost}{infra}"
        self._progress.update(self._task, said=said)

    def _say(self, message: str) -> None:
        self._progress.console.print(plain(message, "yellow"))


def _progress() -> Progress:
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    return Progress(*columns, TextColumn("{task.fields[said]}"), console=err, transient=True)


def _played(sweep: Sweep, tracked: TrackedRun) -> StoredRun:
    left, total = len(sweep.left()), len(sweep.planned)
    if left < total:
        err.print(plain(f"{total - left} of {total} episodes are on record", "dim"))
    with _progress() as progress:
        return sweep.play(Watchers(_Live(progress, total - left, total), tracked))


def _remeasured(sweep: Sweep) -> StoredRun:
    with _progress() as progress:
        task = progress.add_task("best kernels, new conditions", total=None, said="")

        def on_progress(found: Remeasurement | None) -> None:
            progress.advance(task)
            if found is None:
                progress.console.print(plain("a kernel could not be judged again: the machine failed", "yellow"))

        return sweep.remeasure(on_progress)


def _complete(stored: StoredRun) -> bool:
    """Say what is in no rate; return whether nothing failed by the machine."""
    infra = [episode for episode in stored.episodes if episode.status == "infra"]
    refused = sum(episode.status == "refused" for episode in stored.episodes)
    if refused:
        out.print(plain(f"{refused} episodes were refused by the model; they count as failures.", "yellow"))
    for episode in infra:
        out.print(plain(f"{episode.id}: {episode.problem}", "red"))
    if infra:
        out.print(plain(f"{len(infra)} episodes failed by the machine are in no rate; --resume plays them.", "red"))
    return not infra
