"""Runs → what tables and charts share: trajectories under labels that tell them apart."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from pydantic import ValidationError

from ptxgym.bench.metrics import Trajectory, grouped, trajectories
from ptxgym.bench.recipe import Recipe
from ptxgym.errors import ContentError, UsageError
from ptxgym.report.drawing import Series
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
        UsageError: if a run is there twice; each of its trajectories would count twice.
        ContentError: if the front matter of one holds no recipe, or records contradict each other.
    """
    _distinct(stored)
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
    """Return groups as charts name them: run and arm only where there are several, emulated and measured apart."""
    arms = {group.arm for group in found if not group.anchor}
    many_runs = len({group.run for group in found}) > 1

    def condition(group: Group) -> str:
        if group.anchor:
            return ""
        return " · ".join([*([group.run] if many_runs else []), *([group.arm] if len(arms) > 1 else [])])

    return tuple(
        Series(group.agent, condition(group), group.anchor, members)
        for emulated in (True, False)
        for group in _merged(found)
        if (members := tuple(one for one in group.found if one.emulated is emulated))
    )


def _distinct(stored: Sequence[StoredRun]) -> None:
    """Refuse a run that is there twice, under one name of its folder or two, or as a copy."""
    seen: dict[object, StoredRun] = {}
    for one in stored:
        record = one.record
        marks = (one.folder.resolve(), (record.sweep_sha256, record.conditions_sha256, record.created_at))
        for first in (seen[mark] for mark in marks if mark in seen):
            raise UsageError(
                f"{first.folder} and {one.folder} hold the same run, begun {record.created_at}: its trajectories would "
                "count twice; name it once"
            )
        seen |= dict.fromkeys(marks, one)


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
