"""The tables that end a sweep, as rows of texts; the command prints them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ptxgym.bench.metrics import (
    Cell,
    Rate,
    Trajectory,
    best_speedup,
    cell,
    comparable,
    contrasts,
    grouped,
    horizons,
    shift,
)
from ptxgym.bench.recipe import Recipe
from ptxgym.bench.statistics import Interval
from ptxgym.envs import load_env

NONE = "-"


@dataclass(frozen=True)
class Table:
    """Titles and rows; `notes` say how to read them."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    notes: tuple[str, ...] = ()


def tables(recipe: Recipe, found: Sequence[Trajectory]) -> tuple[Table, ...]:
    """Return all tables that say something about a sweep: rates, cost, failures, comparisons, transfers."""
    if not found:
        return ()
    every = (rates(recipe, found), totals(recipe, found), failures(recipe, found), comparisons(recipe, found))
    return tuple(table for table in (*every, transfers(recipe, found)) if table.rows)


def rates(recipe: Recipe, found: Sequence[Trajectory]) -> Table:
    """Return a row for each environment, arm and agent."""
    within, last = horizons(recipe.turns), recipe.turns
    rows = []
    for (task,), of_task in grouped(_ordered(recipe, found), lambda one: (one.task,)).items():
        drawn = _equal_count(recipe, of_task)
        for (arm, agent), group in grouped(of_task, lambda one: (one.arm, one.agent)).items():
            summary = cell(group, within)
            rows.append(
                (
                    task.removeprefix("ptxgym/"),
                    arm,
                    agent,
                    str(summary.trajectories),
                    *(_count(summary.correct.get(turns)) for turns in within),
                    *(_count(summary.target.get(turns)) for turns in within),
                    _span(summary.target[last].interval) if last in summary.target else NONE,
                    _speed(group, drawn, last),
                    _count(summary.confirmed),
                )
            )
    columns = (
        "environment", "arm", "agent", "n", *(f"right ≤{turns}" for turns in within),
        *(f"target ≤{turns}" for turns in within), f"95 % of ≤{last}", "best speed-up", "holds",
    )  # fmt: skip
    return Table("Trajectories that succeed within so many turns", columns, tuple(rows), _reading(recipe, found))


def totals(recipe: Recipe, found: Sequence[Trajectory]) -> Table:
    """Return a row for each GPU generation, arm and agent, over all operators."""
    within, last = horizons(recipe.turns), recipe.turns
    rows = []
    for (arch, arm, agent), group in grouped(
        _ordered(recipe, found), lambda one: (one.arch, one.arm, one.agent)
    ).items():
        summary = cell(group, within)
        rows.append(
            (
                arch,
                arm,
                agent,
                _count(summary.correct.get(last)),
                _count(summary.target.get(last)),
                _share(summary.correct_turns),
                _share(summary.target_turns),
                _fast(summary),
                NONE if summary.tokens_per_solved is None else f"{summary.tokens_per_solved:,.0f}",
                NONE if summary.cost_per_solved_usd is None else f"{summary.cost_per_solved_usd:.2f}",
            )
        )
    columns = (
        "arch", "arm", "agent", f"right ≤{last}", f"target ≤{last}", "right turns", "target turns",
        "faster than ¼, ½, ¾, 1", "tokens/solved", "USD/solved",
    )  # fmt: skip
    return Table("All operators", columns, tuple(rows))


def failures(recipe: Recipe, found: Sequence[Trajectory]) -> Table:
    """Return, for each GPU generation, arm and agent, how many turns failed for which reason."""
    groups = grouped(_ordered(recipe, found), lambda one: (one.arch, one.arm, one.agent))
    cells = {name: cell(group, (1,)) for name, group in groups.items()}
    reasons = sorted({reason for summary in cells.values() for reason in summary.failures})
    rows = tuple(
        (*name, str(summary.turns), *(str(summary.failures.get(reason, 0) or NONE) for reason in reasons))
        for name, summary in cells.items()
    )
    return Table("Failed turns", ("arch", "arm", "agent", "turns", *reasons), rows if reasons else ())


def comparisons(recipe: Recipe, found: Sequence[Trajectory]) -> Table:
    """Return every two models and arms, compared task by task; anchors are in no test."""
    models = [one for one in found if one.agent not in recipe.anchors]
    groups = grouped(_ordered(recipe, models), lambda one: (one.agent, one.arm))
    rows = tuple(
        (
            " / ".join(each.first),
            " / ".join(each.second),
            "emulated" if each.emulated else "measured",
            str(each.tasks),
            str(each.turns),
            f"{each.difference:+.0%}",
            f"{each.p_value:.2g}",
            f"{each.corrected:.2g}",
        )
        for each in contrasts(groups, recipe.turns)
    )
    columns = ("agent / arm", "against", "judged", "tasks", "turns", "difference", "p", "p corrected")
    notes = ("Target within so many turns, exact permutation test within tasks, two-sided; Holm over all rows.",)
    return Table("Comparisons, paired by task", columns, rows, notes)


def transfers(recipe: Recipe, found: Sequence[Trajectory]) -> Table:
    """Return what each agent keeps from the first environment of a pair to the second."""
    groups = grouped(_ordered(recipe, found), lambda one: (one.agent, one.arm, one.task))
    rows = []
    for pair in recipe.transfers:
        before, after = load_env(pair.before).pinned, load_env(pair.after).pinned
        for agent, arm in dict.fromkeys((agent, arm) for agent, arm, _ in groups):
            one, other = groups.get((agent, arm, before)), groups.get((agent, arm, after))
            if one is None or other is None:
                continue
            moved = shift(one, other, recipe.turns)
            alike = len({each.emulated for each in (*one, *other)}) == 1
            rows.append(
                (
                    f"{pair.before} → {pair.after}",
                    arm,
                    agent,
                    str(moved.turns),
                    f"{_count(moved.before)} {_judged(one)}",
                    f"{_count(moved.after)} {_judged(other)}",
                    f"{moved.difference:+.0%}" if alike else NONE,
                    f"{moved.p_value:.2g}" if alike else NONE,
                )
            )
    columns = ("transfer", "arm", "agent", "turns", "before", "after", "difference", "p")
    notes = ["p: exact permutation test, two-sided, not corrected."]
    if any(row[-1] == NONE for row in rows):
        notes.append("What was emulated is not compared with what was measured.")
    return Table("Transfer, target within so many turns", columns, tuple(rows), tuple(notes))


def _ordered(recipe: Recipe, found: Sequence[Trajectory]) -> list[Trajectory]:
    """Return trajectories in the order of the recipe, whichever ended first."""
    envs = [load_env(env.id).pinned for env in recipe.envs]
    arms, agents = [arm.name for arm in recipe.arms], [agent.label for agent in recipe.agents]

    def place(one: Trajectory) -> tuple[int, str, int, int]:
        pinned, _, variant = one.task.partition("/")[2].partition("/")
        return envs.index(f"ptxgym/{pinned}"), variant, arms.index(one.arm), agents.index(one.agent)

    return sorted(found, key=place)


def _reading(recipe: Recipe, found: Sequence[Trajectory]) -> tuple[str, ...]:
    notes = [f"target: right, on target instructions. Interval: Wilson, of target ≤{recipe.turns}."]
    if comparable(found, recipe.turns) < recipe.turns:
        notes.append(
            "-: within more turns than the agent was given. Speed, turns and tokens are of all that it was given."
        )
    if any(one.emulated for one in found):
        notes.append("emulated: the emulator takes no times, so there is no speed-up.")
    if any(not one.emulated and one.again is None and one.fastest(recipe.turns) for one in found):
        notes.append("not re-measured: run with --remeasure; a best of many is shown only after a second measurement.")
    if any(one.again is not None for one in found):
        notes.append("holds: best kernels that are as good under new conditions, of those judged again.")
    if any(not one.emulated for one in found):
        notes.append(
            "best speed-up: expected best of n trajectories (in brackets, the same for all models), re-measured."
        )
    return tuple(notes)


def _equal_count(recipe: Recipe, of_task: Sequence[Trajectory]) -> int:
    """Return how many trajectories every model has on a task."""
    models = [one for one in of_task if one.agent not in recipe.anchors] or of_task
    return min(len(group) for group in grouped(models, lambda one: (one.arm, one.agent)).values())


def _judged(group: Sequence[Trajectory]) -> str:
    return "emulated" if group[0].emulated else "measured"


def _speed(group: Sequence[Trajectory], drawn: int, turns: int) -> str:
    if all(one.emulated for one in group):
        return "emulated"
    if not any(one.fastest(turns) for one in group):
        return NONE
    size = min(drawn, len(group))
    best = best_speedup(group, size, turns)
    return "not re-measured" if best is None else f"{best:.3f} ({size})"


def _fast(summary: Cell) -> str:
    if summary.fast is None:
        return "emulated"
    return ", ".join(f"{each.successes / each.total:.0%}" for each in summary.fast.values())


def _count(found: Rate | None) -> str:
    return NONE if found is None else f"{found.successes}/{found.total}"


def _span(found: Interval) -> str:
    return f"{found.low:.0%}–{found.high:.0%}"


def _share(found: Interval) -> str:
    return f"{found.value:.1%} ({found.low:.0%}–{found.high:.0%})"
