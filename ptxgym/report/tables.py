"""Tables of a report: rates with their intervals, emulated and measured apart, anchors in every one of them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from ptxgym.bench.metrics import (
    Cell,
    Contrast,
    Trajectory,
    best_speedup,
    cell,
    contrasts,
)
from ptxgym.report.runs import Group, Run


@dataclass(frozen=True)
class Side:
    """What was judged in one way, on the emulator or on a GPU."""

    summary: Cell
    speedup: str = ""
    """Best of equally many trajectories, or why there is no number."""


@dataclass(frozen=True)
class Row:
    """One agent under one arm."""

    run: str
    arm: str
    agent: str
    anchor: bool
    emulated: Side | None
    measured: Side | None


@dataclass(frozen=True)
class Part:
    """Rows under a common heading: a GPU generation, or an environment."""

    title: str
    rows: tuple[Row, ...]
    missing: tuple[str, ...]
    """Anchors that were not played there."""


@dataclass(frozen=True)
class Block:
    """Parts that were judged in the same ways, as one table with a group of columns for each."""

    emulated: bool
    measured: bool
    parts: tuple[Part, ...]

    @property
    def name(self) -> str:
        """`emulated`, `measured` or both words."""
        return "-".join(["emulated"] * self.emulated + ["measured"] * self.measured)


def by_arch(groups: Sequence[Group], within: Sequence[int]) -> tuple[Block, ...]:
    """Return a part for each GPU generation, over all its environments."""
    names = sorted({one.arch for group in groups for one in group.found})
    titles = {"h100": "Hopper (h100)", "b200": "Blackwell (b200)"}
    return _blocks(
        _part(titles.get(name, name), [(each, [one for one in each.found if one.arch == name]) for each in groups],
              within, alone=False)
        for name in names
    )  # fmt: skip


def by_task(groups: Sequence[Group], within: Sequence[int]) -> tuple[Block, ...]:
    """Return a part for each environment and variant."""
    names = sorted({one.task for group in groups for one in group.found})
    return _blocks(
        _part(name, [(each, [one for one in each.found if one.task == name]) for each in groups], within, alone=True)
        for name in names
    )


def by_turns(groups: Sequence[Group]) -> tuple[Row, ...]:
    """Return a row for each agent and arm whose cells tell of turns: rates with bootstrap intervals, failures."""
    return tuple(_row(group, group.found, (1,), 0) for group in groups)


def reasons(rows: Sequence[Row], order: Sequence[str]) -> dict[str, tuple[str, ...]]:
    """Return for what turns failed, on the emulator and on a GPU, in the given order."""
    sides = {"emulated": [row.emulated for row in rows], "measured": [row.measured for row in rows]}
    return {
        name: tuple(reason for reason in order if any(side and reason in side.summary.failures for side in found))
        for name, found in sides.items()
    }


def _blocks(parts: Iterable[Part]) -> tuple[Block, ...]:
    """Put parts together that need the same columns; so no column is empty for a whole part."""
    found: dict[tuple[bool, bool], list[Part]] = {}
    for part in parts:
        sides = any(row.emulated for row in part.rows), any(row.measured for row in part.rows)
        found.setdefault(sides, []).append(part)
    return tuple(Block(*sides, tuple(members)) for sides, members in sorted(found.items()))


def _part(title: str, found: Sequence[tuple[Group, list[Trajectory]]], within: Sequence[int], alone: bool) -> Part:
    played = [(group, members) for group, members in found if members]
    measured = [sum(not one.emulated for one in members) for group, members in played if not group.anchor]
    drawn = min(filter(None, measured), default=1) if alone else 0
    rows = tuple(_row(group, members, within, drawn) for group, members in played)
    agents = {row.agent for row in rows}
    return Part(title, rows, tuple(name for name in ("oracle", "naive") if name not in agents))


def _row(group: Group, members: Sequence[Trajectory], within: Sequence[int], drawn: int) -> Row:
    emulated = [one for one in members if one.emulated]
    measured = [one for one in members if not one.emulated]
    return Row(
        group.run,
        "" if group.anchor else group.arm,
        group.agent,
        group.anchor,
        Side(cell(emulated, within)) if emulated else None,
        Side(cell(measured, within), _speedup(measured, drawn, max(within))) if measured else None,
    )


def _speedup(found: Sequence[Trajectory], drawn: int, turns: int) -> str:
    """Return the best speed-up at equal n; speeds of several operators have no best of their own."""
    if not drawn:
        return ""
    if not any(one.fastest(turns) for one in found):
        return "none"
    size = min(drawn, len(found))
    best = best_speedup(found, size, turns)
    return "not re-measured" if best is None else f"{best:.3f} (best of {size})"


@dataclass(frozen=True)
class Versus:
    """Two models compared, with labels."""

    first: str
    second: str
    emulated: Contrast | None
    measured: Contrast | None


def versus(groups: Sequence[Group], turns: int) -> tuple[Versus, ...]:
    """Compare every two models and arms within tasks; anchors are in no test."""
    models: dict[tuple[str, ...], tuple[Trajectory, ...]] = {
        (group.run, group.agent, group.arm): group.found for group in groups if not group.anchor
    }
    one_run = len({group.run for group in groups}) == 1
    one_arm = len({arm for _, _, arm in models}) == 1

    def label(name: tuple[str, ...]) -> str:
        run, agent, arm = name
        return " · ".join([*([] if one_run else [run]), agent, *([] if one_arm else [arm])])

    found: dict[tuple[str, str], dict[bool, Contrast]] = {}
    for each in contrasts(models, turns):
        found.setdefault((label(each.first), label(each.second)), {})[each.emulated] = each
    return tuple(Versus(*names, sides.get(True), sides.get(False)) for names, sides in found.items())


@dataclass(frozen=True)
class LeftOut:
    """What of an agent's episodes and turns is in no rate, or was no kernel."""

    run: str
    agent: str
    episodes: int
    infra: int
    refused_episodes: int
    unfinished: int
    """Episodes with turns on record that have not ended."""
    turns: int
    refused: int
    truncated: int
    no_code: int
    retried: int
    """Model calls beyond the first of a turn."""


def left_out(runs: Sequence[Run]) -> tuple[LeftOut, ...]:
    """Return the counts for each agent of each run."""
    rows = []
    for run in runs:
        ended = {episode.id: episode for episode in run.stored.episodes}
        open_ = {turn.episode for turn in run.stored.turns if turn.episode not in ended}
        agent_of = {identifier: identifier.split("/")[-3] for identifier in open_} | {
            identifier: episode.agent for identifier, episode in ended.items()
        }
        for agent in sorted(set(agent_of.values()), key=lambda name: run.place(name, "")):
            episodes = [episode for episode in ended.values() if episode.agent == agent]
            turns = [turn for turn in run.stored.turns if agent_of[turn.episode] == agent]
            codes = [turn.verdict.code for turn in turns if not turn.refused]
            rows.append(
                LeftOut(
                    run=run.name,
                    agent=agent,
                    episodes=len(episodes),
                    infra=sum(episode.status == "infra" for episode in episodes),
                    refused_episodes=sum(episode.status == "refused" for episode in episodes),
                    unfinished=sum(agent_of[identifier] == agent for identifier in open_),
                    turns=len(turns),
                    refused=sum(turn.refused for turn in turns),
                    truncated=sum(
                        turn.finish_reason in ("length", "context_length")
                        or turn.verdict.code == "submission.truncated_response"
                        for turn in turns
                    ),
                    no_code=codes.count("submission.no_code"),
                    retried=sum(turn.attempts - 1 for turn in turns),
                )
            )
    return tuple(rows)
