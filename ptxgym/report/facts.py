"""Front matter: what was fixed before the run, who answered, what judged, and what can be checked of it."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ptxgym.agent.loop import prompt_sha256
from ptxgym.report.origin import Likeness, likeness
from ptxgym.report.runs import Run
from ptxgym.store.records import CANARY, TurnRecord
from ptxgym.verdict import Status


@dataclass(frozen=True)
class AgentFacts:
    """An agent as the sweep fixed it, and what answered in its name."""

    label: str
    anchor: bool
    provider: str
    models: tuple[str, ...]
    """As the provider named what answered."""
    sampling: str
    settings: str
    """All settings, as JSON."""


@dataclass(frozen=True)
class RunFacts:
    """Front matter of one run."""

    name: str
    created_at: str
    ended_at: str
    sweep_sha256: str
    sweep_holds: bool
    """Whether the recipe on record still has that hash."""
    fixed_first: bool
    """Whether it was written before the first turn began."""
    prompts: tuple[tuple[str, str], ...]
    device: str
    tiers: tuple[str, ...]
    judges: tuple[str, ...]
    """Revisions that stand in verdicts."""
    emulators: tuple[str, ...]
    versions: tuple[tuple[str, str], ...]
    conditions_sha256: str
    canary: str
    canary_in: int
    """First messages that hold it, of `first_messages`."""
    first_messages: int
    prompts_kept: int
    """First messages that are, but for the canary, those whose hash was fixed before the run."""
    agents: tuple[AgentFacts, ...]
    turns: int
    stop: str


def facts(run: Run) -> RunFacts:
    """Return the front matter of a run."""
    record, stored = run.stored.record, run.stored
    first = [turn for turn in stored.turns if turn.turn == 1]
    provenances = [turn.verdict.provenance for turn in stored.turns]
    return RunFacts(
        name=run.name,
        created_at=record.created_at,
        ended_at=max((episode.ended_at for episode in stored.episodes), default=""),
        sweep_sha256=record.sweep_sha256,
        sweep_holds=hashlib.sha256(json.dumps(record.sweep, sort_keys=True).encode()).hexdigest()
        == record.sweep_sha256,
        fixed_first=all(record.created_at[:19] <= turn.started_at[:19] for turn in stored.turns),
        prompts=tuple(sorted(record.prompts_sha256.items())),
        device=record.device,
        tiers=tuple(sorted({one.tier for one in provenances if one.tier is not None})),
        judges=tuple(sorted({str(one.judge_revision) for one in provenances if one.judge_revision is not None})),
        emulators=tuple(sorted({one.emulator_revision for one in provenances if one.emulator_revision is not None})),
        versions=tuple(sorted(record.versions.items())),
        conditions_sha256=record.conditions_sha256,
        canary=record.canary,
        canary_in=sum(bool(record.canary) and any(record.canary in m.content for m in turn.messages) for turn in first),
        first_messages=len(first),
        prompts_kept=sum(_as_fixed(run, turn) for turn in first),
        agents=_agents(run),
        turns=run.recipe.turns,
        stop=run.recipe.stop,
    )


def _as_fixed(run: Run, turn: TurnRecord) -> bool:
    """Whether a first prompt has the hash that the front matter names for its environment, variant, agent and arm."""
    record = run.stored.record
    if not record.canary:
        return False
    plain = tuple(
        each.model_copy(update={"content": each.content.replace(record.canary, CANARY)}) for each in turn.messages
    )
    return record.prompts_sha256.get(turn.episode.rpartition("/")[0]) == prompt_sha256(plain)


def differences(runs: Sequence[Run]) -> tuple[str, ...]:
    """Return what keeps the numbers of several runs from being compared as they are."""
    found = []
    described: tuple[tuple[str, set[str]], ...] = (
        ("numbers of turns", {str(run.recipe.turns) for run in runs}),
        ("devices", {run.stored.record.device for run in runs}),
        ("tiers", {run.recipe.tier for run in runs}),
        ("stop rules", {run.recipe.stop for run in runs}),
        ("draws and hidden shapes", {run.stored.record.conditions_sha256[:12] for run in runs}),
        *(
            (f"versions of {name}", {run.stored.record.versions.get(name, "none") for run in runs})
            for name in sorted({name for run in runs for name in run.stored.record.versions})
        ),
    )
    for what, values in described:
        if len(values) > 1:
            found.append(f"{what}: {', '.join(sorted(values))}")
    return tuple(found)


@dataclass(frozen=True)
class Origin:
    """The best kernel of a trajectory, compared with texts that hold an answer."""

    episode: str
    run: str
    agent: str
    turn: int
    score: float
    likeness: Likeness


def origins(run: Run) -> tuple[Origin, ...]:
    """Compare the best kernel of every trajectory that ran, the most similar first; anchors are left out."""
    turns = {(turn.episode, turn.turn): turn for turn in run.stored.turns}
    found = []
    for episode in run.stored.episodes:
        if episode.agent in run.recipe.anchors or episode.status == "infra" or episode.best_turn is None:
            continue
        best = turns.get((episode.id, episode.best_turn))
        if best is None or best.verdict.status is not Status.OK or best.solution:
            continue
        origin = best.verdict.provenance
        found.append(
            Origin(
                episode.id,
                run.name,
                episode.agent,
                best.turn,
                best.score,
                likeness(best.source, origin.task, origin.arch),
            )
        )
    return tuple(sorted(found, key=lambda one: -max(one.likeness.oracle or 0.0, one.likeness.templates or 0.0)))


def _agents(run: Run) -> tuple[AgentFacts, ...]:
    described: Any = run.stored.record.sweep.get("agents") or {}
    answered: dict[str, Counter[str]] = {}
    agent_of = {episode.id: episode.agent for episode in run.stored.episodes}
    for turn in run.stored.turns:
        answered.setdefault(agent_of.get(turn.episode, ""), Counter())[turn.model] += 1
    found = []
    for spec in run.recipe.agents:
        settings = described.get(spec.label) or {}
        sampling = settings.get("sampling") or {}
        found.append(
            AgentFacts(
                label=spec.label,
                anchor=spec.anchor,
                provider=str(settings.get("base_url") or f"none ({settings.get('kind', spec.use)})"),
                models=tuple(name for name, _ in answered.get(spec.label, Counter()).most_common() if name),
                sampling=", ".join(f"{name} = {value}" for name, value in sampling.items()) or "–",
                settings=json.dumps(settings, indent=2, ensure_ascii=False, sort_keys=True),
            )
        )
    return tuple(found)
