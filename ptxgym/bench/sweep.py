"""Recipe → episodes to play and front matter: what is fixed, and hashed, before the first answer."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import ptxgym
from ptxgym.agent import Agent, Identity
from ptxgym.bench.recipe import AgentSpec, Arm, Recipe
from ptxgym.build import find_toolchain
from ptxgym.envs import EnvConfig, load_env
from ptxgym.episode import Episode
from ptxgym.evaluator import Evaluator, emulator_revision
from ptxgym.judge.conditions import secret_hash
from ptxgym.judge.judge import JUDGE_REVISION
from ptxgym.plan.record import RECORDER_REVISION
from ptxgym.store.records import RunRecord

LIBRARIES = ("gymnasium", "numpy", "pydantic", "openai", "jinja2", "torch", "cupy-cuda13x")
"""Whose versions a run records, where they are installed."""


@dataclass(frozen=True)
class Planned:
    """One episode to play."""

    identity: Identity
    env: EnvConfig
    """With variant, turns, stop rule and knowledge of the sweep."""
    label: str
    """Of the agent."""

    @property
    def id(self) -> str:
        """The episode's id in the records."""
        return self.identity.id


def plan(recipe: Recipe, canary: str = "") -> tuple[Planned, ...]:
    """Return every episode of a sweep: trajectory by trajectory, so that a part of them is a part of every cell.

    Raises:
        UnknownNameError: if an environment or a variant does not exist.
        UsageError: if a part of the knowledge does not exist for an architecture.
    """
    cells = [
        (_config(recipe, agent, arm, env), agent, arm)
        for env in _configs(recipe)
        for arm in recipe.arms
        for agent in recipe.agents
        if agent.arms is None or arm.name in agent.arms
    ]
    return tuple(
        Planned(
            Identity(
                env=env.pinned,
                variant=env.variant,
                agent=agent.label,
                arm=arm.name,
                trajectory=number,
                seed=_seed(recipe.seed, env, number),
                canary=canary,
            ),
            env,
            agent.label,
        )
        for number in range(recipe.trajectories)
        for env, agent, arm in cells
        if number < (agent.trajectories or recipe.trajectories)
    )


def front_matter(recipe: Recipe, agents: Mapping[str, Agent], evaluator: Evaluator, secret: str) -> RunRecord:
    """Return what is written before the first episode.

    Args:
        recipe: The sweep.
        agents: By label.
        evaluator: That will judge.
        secret: Of the run; only its hash is recorded.

    Raises:
        UnknownNameError: if an environment, a variant or a part of knowledge does not exist.
        UsageError: if the device cannot be had.
    """
    configs = tuple(_configs(recipe))
    prompts = dict(_prompts(recipe, configs, evaluator))
    sweep: dict[str, Any] = {
        "recipe": recipe.model_dump(mode="json", exclude={"limits", "summary"}),
        "environments": {f"{env.pinned}/{env.variant}": env.model_dump(mode="json") for env in configs},
        "agents": {label: agent.describe() for label, agent in agents.items()},
        "prompts": prompts,
    }
    digest = hashlib.sha256(json.dumps(sweep, sort_keys=True).encode()).hexdigest()
    conditions = secret_hash(secret.encode())
    return RunRecord(
        name=recipe.name,
        created_at=datetime.now(UTC).isoformat(timespec="seconds"),
        sweep_sha256=digest,
        sweep=sweep,
        prompts_sha256=prompts,
        device=", ".join(sorted({_device(evaluator, env.arch) for env in configs})),
        versions=_versions(configs, evaluator),
        conditions_sha256=conditions,
        canary=f"ptxgym-canary-{hashlib.sha256(f'canary {digest} {secret}'.encode()).hexdigest()[:32]}",
        tags={"summary": recipe.summary},
    )


def differences(before: RunRecord, now: RunRecord) -> list[str]:
    """Return in what a run on record differs from what would be played now; empty if it can go on."""
    found = []
    one, other = _without_limits(before.sweep), _without_limits(now.sweep)
    for part in ("recipe", "environments", "agents", "prompts"):
        if changed := _changed(one.get(part), other[part]):
            found.append(f"{part}: {', '.join(changed)}")
    for name in sorted(before.versions.keys() | now.versions.keys()):
        if before.versions.get(name) != now.versions.get(name):
            found.append(f"{name} was {before.versions.get(name)} and is {now.versions.get(name)}")
    if before.device != now.device:
        found.append(f"device was {before.device} and is {now.device}")
    if before.conditions_sha256 != now.conditions_sha256:
        found.append("the secret is another one")
    return found


def _configs(recipe: Recipe) -> Iterator[EnvConfig]:
    for spec in recipe.envs:
        for variant in spec.variants:
            yield load_env(spec.id).of_variant(variant)


def _config(recipe: Recipe, agent: AgentSpec, arm: Arm, env: EnvConfig) -> EnvConfig:
    return env.override(turns=agent.turns or recipe.turns, stop=recipe.stop, knowledge=arm.knowledge)


def _prompts(recipe: Recipe, configs: tuple[EnvConfig, ...], evaluator: Evaluator) -> Iterator[tuple[str, str]]:
    for env in configs:
        for arm in recipe.arms:
            episode = Episode(env, evaluator, turns=recipe.turns, stop=recipe.stop, knowledge=arm.knowledge)
            digest = hashlib.sha256(episode.prompt().encode()).hexdigest()
            yield f"{env.pinned}/{env.variant}/{arm.name}", digest


def _seed(seed: int, env: EnvConfig, number: int) -> int:
    """Return 31 bits that agents and arms of a task share, so that they can be compared pair by pair."""
    text = f"{seed} {env.pinned} {env.variant} {number}"
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:4], "little") >> 1


def _device(evaluator: Evaluator, arch: str) -> str:
    gpu = evaluator.gpu(arch)
    return "emulator" if gpu is None else gpu.name


def _versions(configs: tuple[EnvConfig, ...], evaluator: Evaluator) -> dict[str, str]:
    found = {
        "ptxgym": ptxgym.__version__,
        "compiler": find_toolchain().name,
        "emulator": emulator_revision(),
        "recorder": str(RECORDER_REVISION),
        "judge": str(JUDGE_REVISION),
    }
    gpus = [gpu for env in configs if (gpu := evaluator.gpu(env.arch)) is not None]
    if gpus:
        found["driver"] = gpus[0].driver
    for name in LIBRARIES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found


def _without_limits(sweep: Mapping[str, Any]) -> dict[str, Any]:
    """Leave out the agents' patience: who waits longer for a provider that was down plays the same sweep."""
    agents = {label: {**told, "limits": None} for label, told in sweep.get("agents", {}).items()}
    recipe = {**sweep.get("recipe", {})}
    recipe["agents"] = [
        {**agent, "settings": {k: v for k, v in agent["settings"].items() if k.partition(".")[0] != "limits"}}
        for agent in recipe.get("agents", ())
    ]
    return {**sweep, "recipe": recipe, "agents": agents}


def _changed(before: object, now: object) -> list[str]:
    """Return the keys under which two tables differ."""
    one, other = (value if isinstance(value, Mapping) else {} for value in (before, now))
    return sorted(str(name) for name in one.keys() | other.keys() if one.get(name) != other.get(name))
