"""Runs → what tables and charts share: trajectories under labels that tell them apart."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from pydantic import ValidationError

from ptxgym.bench.metrics import Trajectory, grouped, trajectories
from ptxgym.bench.recipe import Recipe
from ptxgym.errors import ContentError, UsageError
from ptxgym.report.charts import Series
from ptxgym.store.reader import StoredRun


@dataclass(frozen=True)
class Run:
    """One run as a report reads it."""

    name: str
    """Tells it from the others of the report."""
    stored: StoredRun
    recipe: Recipe
    found: tuple[Trajectory, ...]
    """Those that ended, without those that the machine failed at."""

    def place(self, agent: str, arm: str) -> tuple[int, int, str, str]:
        """Return where an agent and an arm stand in the recipe: tables do not depend on which episode ended first."""
        agents, arms = [each.label for each in self.recipe.agents], [each.name for each in self.recipe.arms]
        return _index(agents, agent), _index(arms, arm), agent, arm


@dataclass(frozen=True)
class Group:
    """Trajectories of one agent under one arm of one run."""

    run: str
    arm: str
    agent: str
    anchor: bool
    found: tuple[Trajectory, ...]


def as_runs(stored: Sequence[StoredRun]) -> tuple[Run, ...]:
    """Return runs with names that differ.

    Raises:
        ContentError: if the front matter of one holds no recipe.
    """
    names = [one.record.name for one in stored]
    return tuple(
        Run(
            one.record.name if names.count(one.record.name) == 1 else f"{one.record.name} ({one.folder.name})",
            one,
            _recipe(one),
            trajectories(one),
        )
        for one in stored
    )


def groups(runs: Sequence[Run]) -> tuple[Group, ...]:
    """Return all agents and arms of all runs: anchors first, then as the recipes name them.

    Raises:
        UsageError: if no trajectory of any run has ended.
    """
    found = [
        Group(run.name, arm, agent, agent in run.recipe.anchors, members)
        for run in runs
        for (agent, arm), members in sorted(
            grouped(run.found, lambda one: (one.agent, one.arm)).items(), key=lambda item: run.place(*item[0])
        )
    ]
    if not found:
        folders = ", ".join(str(run.stored.folder) for run in runs)
        raise UsageError(f"{folders}: no episode has ended yet, so there is nothing to report; let the run go on")
    return tuple(sorted(found, key=lambda group: not group.anchor))


def as_series(found: Sequence[Group]) -> tuple[Series, ...]:
    """Return groups as charts name them: run and arm only where there are several."""
    arms = {group.arm for group in found if not group.anchor}
    many_runs = len({group.run for group in found}) > 1
    return tuple(
        Series(
            group.agent,
            ""
            if group.anchor
            else " · ".join([*([group.run] if many_runs else []), *([group.arm] if len(arms) > 1 else [])]),
            group.anchor,
            group.found,
        )
        for group in _merged(found)
    )


def _merged(found: Sequence[Group]) -> list[Group]:
    """An anchor reads no prompt and never varies: its arms and runs are one group."""
    merged: dict[tuple[str, ...], Group] = {}
    for group in found:
        key = (group.agent,) if group.anchor else (group.run, group.agent, group.arm)
        before = merged.get(key)
        members = group.found if before is None else before.found + group.found
        merged[key] = Group(group.run, group.arm, group.agent, group.anchor, members)
    return list(merged.values())


def _index(names: list[str], name: str) -> int:
    return names.index(name) if name in names else len(names)


def _recipe(stored: StoredRun) -> Recipe:
    data: Any = stored.record.sweep.get("recipe")
    try:
        return Recipe.model_validate({**(data or {}), "summary": stored.record.tags.get("summary", "")})
    except (ValidationError, TypeError) as error:
        raise ContentError(f"{stored.folder}: run.json: sweep.recipe is no recipe of a sweep: {error}") from error
