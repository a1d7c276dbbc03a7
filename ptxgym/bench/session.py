"""A sweep from its recipe to its records, in one sitting or in many."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from ptxgym.agent import Agent, MissingSetting, load_agent
from ptxgym.bench.journal import RecordedEvaluator, RecordedRemote
from ptxgym.bench.recipe import AgentSpec, Recipe
from ptxgym.bench.remeasure import EPOCH, remeasure
from ptxgym.bench.runner import Watcher, left, play
from ptxgym.bench.sweep import Planned, differences, front_matter, plan, playable
from ptxgym.errors import UsageError
from ptxgym.evaluator import Evaluator
from ptxgym.judge.conditions import run_secret
from ptxgym.serve.connection import is_address
from ptxgym.store.lines import read_lines
from ptxgym.store.reader import EPISODES, RUN, StoredRun, read_record, read_run
from ptxgym.store.records import EpisodeRecord, Remeasurement
from ptxgym.store.writer import RunWriter, stored_secret


class Sweep:
    """A recipe and the folder of its run.

    Example:
        >>> sweep = Sweep(load_recipe("smoke"), Path("runs/smoke"))           # doctest: +SKIP
        >>> stored = sweep.play()                                              # doctest: +SKIP
    """

    def __init__(
        self,
        recipe: Recipe,
        folder: Path,
        *,
        resume: bool = False,
        remeasure: bool = False,
        setting: str = "{label}.{key}",
    ) -> None:
        """Fix what is played, before the first answer: write the front matter, or compare with the one that is there.

        Args:
            recipe: What to play.
            folder: Of the run; made if it is missing.
            resume: Whether a run that is there goes on.
            remeasure: Whether `remeasure` is to follow.
            setting: How the caller's `--set` spells the setting `key` of the agent `label`, for messages.

        Raises:
            UnknownNameError: if the recipe names something that does not exist.
            UsageError: if the folder holds a run and `resume` was not asked for, the run is of another sweep, or an
                agent lacks a setting or an answer.
        """
        self.recipe = recipe
        self.folder = folder
        begun = (folder / RUN).exists()
        if begun and not resume:
            raise UsageError(f"{folder} holds a run already; go on with --resume, or choose another folder by --out")
        one_epoch = remeasure and is_address(recipe.device)
        if one_epoch and not begun:
            raise _two_epochs(recipe.device)
        self.agents: dict[str, Agent] = _loaded(recipe.agents, setting)
        self._secret = (stored_secret(folder) if begun else None) or run_secret().decode()
        with Evaluator(recipe.device, **self._settings) as evaluator:
            front = front_matter(recipe, self.agents, evaluator, self._secret)
        if not begun:
            RunWriter.begin(folder, front, self._secret).close()
        elif different := differences(read_record(folder), front):
            raise UsageError(
                f"the run in {folder} cannot go on, it would mix two sweeps: {'; '.join(different)}; undo that, or "
                "choose another folder by --out"
            )
        self.record = read_record(folder)
        planned = plan(recipe, self.record.canary)
        self.planned: tuple[Planned, ...] = playable(planned, self.agents, recipe.anchors)
        if one_epoch and self.left():
            raise _two_epochs(recipe.device)

    @property
    def _settings(self) -> dict[str, Any]:
        """Those of the evaluator; the secret and the limits of a service are its own."""
        if is_address(self.recipe.device):
            return {"tier": self.recipe.tier}
        limits = self.recipe.limits
        return {
            "tier": self.recipe.tier, "secret": self._secret, "builds": limits.builds, "runs": limits.evaluations,
        }  # fmt: skip

    def left(self) -> tuple[Planned, ...]:
        """Return the episodes that have not ended yet."""
        return left(self.planned, read_lines(self.folder / EPISODES, EpisodeRecord))

    def play(self, watcher: Watcher | None = None) -> StoredRun:
        """Play what is left, and return all that is on record.

        Raises:
            UsageError: if an agent is set up wrongly, or another process plays the run. One without an answer on record
                is gone then.
            InfrastructureError: if the records cannot be written; what the machine does to an episode is recorded.
        """
        recorded = RecordedRemote if is_address(self.recipe.device) else RecordedEvaluator
        with (
            RunWriter(self.folder) as run,
            recorded(self.recipe.device, run.stored.turns, **self._settings) as evaluator,
        ):
            limits, to_play = self.recipe.limits, left(self.planned, run.stored.episodes)
            try:
                if to_play:
                    evaluator.check_epoch()
                play(to_play, run, evaluator, self.agents, limits, watcher)
            except UsageError:
                run.discard()
                raise
        return read_run(self.folder)

    def remeasure(self, on_progress: Callable[[Remeasurement | None], None] = lambda found: None) -> StoredRun:
        """Judge the best kernel of each trajectory under new conditions, and return all that is on record.

        Raises:
            UsageError: if a service judges, and under the conditions of another epoch.
            InfrastructureError: if the records cannot be written.
        """
        with (
            RunWriter(self.folder) as run,
            Evaluator(self.recipe.device, epoch=EPOCH, **self._settings) as evaluator,
        ):
            evaluator.check_epoch()
            remeasure(run, evaluator, self.recipe.limits.evaluations, on_progress)
        return read_run(self.folder)


def _two_epochs(address: str) -> UsageError:
    return UsageError(
        f"{address} judges one epoch, and --remeasure needs another than what is played: play without it; then start "
        f"the server again with --epoch {EPOCH} and the same --results, and go on with --resume --remeasure"
    )


def _loaded(specs: Iterable[AgentSpec], setting: str) -> dict[str, Agent]:
    """Return the agents by label; what several of them lack is told at once."""
    agents: dict[str, Agent] = {}
    problems: list[UsageError] = []
    for spec in specs:
        try:
            agents[spec.label] = load_agent(spec.use, **spec.settings)
        except MissingSetting as missing:
            given = setting.format(label=spec.label, key=missing.setting)
            problems.append(UsageError(f"{missing}, such as with --set {given}={missing.example}"))
        except UsageError as problem:
            problems.append(problem)
    if len(problems) == 1:
        raise problems[0]
    if problems:
        raise UsageError("; ".join(map(str, problems)))
    return agents
