"""Recipe → episodes to play and front matter: what is fixed, and hashed, before the first answer."""

from __future__ import annotations

import asyncio
import dataclasses
import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import ptxgym
from ptxgym.agent import Agent, Checking, Identity, opening_messages
from ptxgym.agent.loop import prompt_sha256
from ptxgym.bench.recipe import AgentSpec, Arm, Recipe
from ptxgym.build import find_toolchain
from ptxgym.device.emulator.revision import emulator_revision
from ptxgym.envs import EnvConfig, load_env
from ptxgym.episode import Episode
from ptxgym.errors import UsageError
from ptxgym.evaluator import Evaluator
from ptxgym.judge.judge import JUDGE_REVISION
from ptxgym.plan.record import RECORDER_REVISION
from ptxgym.serve.connection import is_address
from ptxgym.store.records import CANARY, RunRecord
from ptxgym.variants import load_variant

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
        UsageError: if a part of the knowledge does not exist for an architecture, or an environment is there twice.
    """
    _check_apart(recipe)
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


def playable(planned: Iterable[Planned], agents: Mapping[str, Agent], anchors: frozenset[str]) -> tuple[Planned, ...]:
    """Return the episodes that can be played: anchors are not, where they have nothing to hand in.

    Such as the oracle on a variant; tables say that it was not played there.

    Raises:
        UsageError: if an agent that is no anchor has no answer to an episode.
    """
    found, refused = [], set[tuple[str, str, str]]()
    for one in planned:
        agent, identity = agents[one.label], one.identity
        cell = one.label, identity.env, identity.variant
        if isinstance(agent, Checking) and cell not in refused:
            try:
                agent.check(identity, load_variant(one.env.task, identity.variant), one.env.arch)
            except UsageError:
                if one.label not in anchors:
                    raise
                refused.add(cell)
        if cell not in refused:
            found.append(one)
    return tuple(found)


def front_matter(recipe: Recipe, agents: Mapping[str, Agent], evaluator: Evaluator, secret: str) -> RunRecord:
    """Return what is written before the first episode.

    Args:
        recipe: The sweep.
        agents: By label.
        evaluator: That will judge.
        secret: Of the run; what is recorded is the hash of the evaluator's, the same unless that is a service.

    Raises:
        UnknownNameError: if an environment, a variant or a part of knowledge does not exist.
        UsageError: if the device cannot be had, or an agent has no answer to an episode.
    """
    configs = tuple(_configs(recipe))
    cells = [one for one in playable(plan(recipe), agents, recipe.anchors) if not one.identity.trajectory]
    prompts = asyncio.run(_prompts(cells, agents, evaluator))
    devices = {env.arch: _device(evaluator, env.arch) for env in configs}
    sweep: dict[str, Any] = {
        "recipe": recipe.model_dump(mode="json", exclude={"limits", "summary"}),
        "environments": {f"{env.pinned}/{env.variant}": env.model_dump(mode="json") for env in configs},
        "agents": {label: agent.describe() for label, agent in agents.items()},
        "prompts": prompts,
    }
    digest = hashlib.sha256(json.dumps(sweep, sort_keys=True).encode()).hexdigest()
    return RunRecord(
        name=recipe.name,
        created_at=datetime.now(UTC).isoformat(timespec="seconds"),
        sweep_sha256=digest,
        sweep=sweep,
        prompts_sha256=prompts,
        device=", ".join(sorted(set(devices.values()))),
        devices=devices,
        versions=_versions(configs, evaluator),
        conditions_sha256=evaluator.secret_hash,
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
        where = "it belongs into the file `secret` of the run, or into PTXGYM_SECRET"
        found.append(f"the secret is another one ({where})")
    return found


def _check_apart(recipe: Recipe) -> None:
    """Accept a recipe whose episodes have an id each: two of one id would be played into one trajectory."""
    seen: dict[tuple[str, str], str] = {}
    for spec in recipe.envs:
        for variant in spec.variants:
            config = load_env(spec.id).of_variant(variant)
            key = config.pinned, config.variant
            if key in seen:
                also = "" if seen[key] == spec.id else f", as {seen[key]} and as {spec.id}"
                raise UsageError(f"envs: {config.pinned}, variant {variant}, is there twice{also}; leave one out")
            seen[key] = spec.id


def _configs(recipe: Recipe) -> Iterator[EnvConfig]:
    for spec in recipe.envs:
        for variant in spec.variants:
            yield load_env(spec.id).of_variant(variant)


def _config(recipe: Recipe, agent: AgentSpec, arm: Arm, env: EnvConfig) -> EnvConfig:
    return env.override(turns=agent.turns or recipe.turns, stop=recipe.stop, knowledge=arm.knowledge)


async def _prompts(cells: Iterable[Planned], agents: Mapping[str, Agent], evaluator: Evaluator) -> dict[str, str]:
    """Return the hash of what each agent reads first, by environment, variant, agent and arm."""
    found = {}
    for one in cells:
        episode = await asyncio.to_thread(Episode, one.env, evaluator)
        identity = dataclasses.replace(one.identity, canary=CANARY)
        found[one.id.rpartition("/")[0]] = prompt_sha256(await opening_messages(episode, agents[one.label], identity))
    return found


def _seed(seed: int, env: EnvConfig, number: int) -> int:
    """Return 31 bits that agents and arms of a task share, so that they can be compared pair by pair."""
    text = f"{seed} {env.pinned} {env.variant} {number}"
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:4], "little") >> 1


def _device(evaluator: Evaluator, arch: str) -> str:
    gpu = evaluator.gpu(arch)
    return "emulator" if gpu is None else gpu.name


def _versions(configs: tuple[EnvConfig, ...], evaluator: Evaluator) -> dict[str, str]:
    served = evaluator.served_versions()
    found = (
        {**served, "ptxgym": ptxgym.__version__}
        if served is not None
        else {
            "ptxgym": ptxgym.__version__,
            "compiler": find_toolchain().name,
            "emulator": emulator_revision(),
            "recorder": str(RECORDER_REVISION),
            "judge": str(JUDGE_REVISION),
        }
    )
    gpus = [gpu for env in configs if (gpu := evaluator.gpu(env.arch)) is not None]
    if gpus:
        found["driver"] = gpus[0].driver
    if served is not None:
        return found
    for name in LIBRARIES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found


def _without_limits(sweep: Mapping[str, Any]) -> dict[str, Any]:
    """Leave out the agents' patience: who waits longer for a provider that was down plays the same sweep.

    And where a service is: it is known by its conditions, versions and GPUs.
    """
    agents = {label: {**told, "limits": None} for label, told in sweep.get("agents", {}).items()}
    recipe = {**sweep.get("recipe", {})}
    if is_address(recipe.get("device")):
        recipe["device"] = "a service"
    recipe["agents"] = [
        {**agent, "settings": {k: v for k, v in agent["settings"].items() if k.partition(".")[0] != "limits"}}
        for agent in recipe.get("agents", ())
    ]
    return {**sweep, "recipe": recipe, "agents": agents}


def _changed(before: object, now: object) -> list[str]:
    """Return the keys under which two tables differ."""
    one, other = (value if isinstance(value, Mapping) else {} for value in (before, now))
    return sorted(str(name) for name in one.keys() | other.keys() if one.get(name) != other.get(name))
