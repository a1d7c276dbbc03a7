"""What a sweep is: one file of `configs/`."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Any, Self

from pydantic import BeforeValidator, Field, JsonValue, field_validator, model_validator

from ptxgym import content
from ptxgym.device.cuda.model import Tier
from ptxgym.envs import StopRule
from ptxgym.errors import UsageError
from ptxgym.serve.connection import check_address, is_address
from ptxgym.task import BASE
from ptxgym.verdict import Value

Label = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._+-]*$")]
"""Stands in the ids of episodes."""


class EnvSpec(Value):
    """An environment, with the variants of its task that are played."""

    id: str
    variants: tuple[str, ...] = Field(default=(BASE,), min_length=1)


class AgentSpec(Value):
    """An agent of `agents/`, with settings of its own."""

    use: str
    """Name of the folder."""
    label: Label = ""
    """How records and tables call it; by default as `use`."""
    settings: dict[str, JsonValue] = Field(default_factory=dict)
    """Override those of `agent.toml`; a dot names a setting within a table."""
    anchor: bool = False
    """Whether it is there to compare with: in every table, and in no test between models."""
    trajectories: int | None = Field(default=None, ge=1)
    """Where it needs fewer than the sweep, as an agent that always answers the same."""
    turns: int | None = Field(default=None, ge=1)
    arms: tuple[str, ...] | None = None
    """By default all."""

    @model_validator(mode="before")
    @classmethod
    def _labelled(cls, data: Any) -> Any:
        return {"label": data["use"], **data} if isinstance(data, dict) and isinstance(data.get("use"), str) else data


class Arm(Value):
    """What of the architecture's knowledge pack the prompt holds."""

    name: Label
    knowledge: tuple[str, ...] = ()
    """Parts by name; `all` expands."""


class Limits(Value):
    """How much goes on at once; none of it changes a result."""

    model_calls: int = Field(default=8, ge=1)
    builds: int = Field(default=2, ge=1)
    evaluations: int = Field(default=2, ge=1)
    """Kernels that are recorded, executed and judged at once."""
    infra_retries: int = Field(default=2, ge=0, le=20)
    """How often an episode that the machine failed at goes on from its last turn."""


class Transfer(Value):
    """Two environments of one operator, the second of a later GPU generation."""

    before: str
    after: str


def _named(key: str) -> BeforeValidator:
    """Let a bare name stand for a table that holds nothing else."""
    return BeforeValidator(lambda item: {key: item} if isinstance(item, str) else item)


class Recipe(Value):
    """A sweep: the product of environments, agents, knowledge arms and trajectories."""

    name: Label
    summary: str
    envs: tuple[Annotated[EnvSpec, _named("id")], ...] = Field(min_length=1)
    agents: tuple[Annotated[AgentSpec, _named("use")], ...] = Field(min_length=1)
    arms: tuple[Arm, ...] = Field(default=(Arm(name="none"),), min_length=1)
    trajectories: int = Field(ge=1)
    turns: int = Field(default=8, ge=1, le=1000)
    stop: str = "never"
    """`never`, `target_ok` or `speedup:<x>`."""
    seed: int = 0
    """From which the seeds of trajectories follow."""
    device: str = "auto"
    """`auto`, `emulator`, `cuda`, or the address of a service (`http://host:port`)."""
    tier: Tier = "standard"
    limits: Limits = Limits()
    transfers: tuple[Transfer, ...] = ()

    @field_validator("stop")
    @classmethod
    def _parsed(cls, text: str) -> str:
        return StopRule.parse(text).text

    @field_validator("device")
    @classmethod
    def _named_device(cls, device: str) -> str:
        if is_address(device):
            return check_address(device)
        if device not in ("auto", "emulator", "cuda"):
            raise ValueError(f"must be 'auto', 'emulator', 'cuda' or http://host:port, not {device!r}")
        return device

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        _unique("envs", (env.id for env in self.envs))
        _unique("agents: label", (agent.label for agent in self.agents))
        _unique("arms: name", (arm.name for arm in self.arms))
        arms, envs = [arm.name for arm in self.arms], [env.id for env in self.envs]
        for agent in self.agents:
            for name in agent.arms or ():
                if name not in arms:
                    raise ValueError(content.unknown(f"arm of agent {agent.label}:", name, arms))
            if (agent.turns or 1) > self.turns:
                raise ValueError(f"agent {agent.label} has {agent.turns} turns, the sweep {self.turns}")
        for name in (name for pair in self.transfers for name in (pair.before, pair.after)):
            if name not in envs:
                raise ValueError(content.unknown("environment of a transfer:", name, envs))
        return self

    @property
    def anchors(self) -> frozenset[str]:
        """Labels of the agents that are there to compare with."""
        return frozenset(agent.label for agent in self.agents if agent.anchor)

    def with_settings(self, changes: Iterable[tuple[str, JsonValue]]) -> Recipe:
        """Return this recipe with settings of agents changed.

        Args:
            changes: Pairs of `<label>.<setting>` and value.

        Raises:
            UsageError: if no agent has the label.
        """
        own: dict[str, dict[str, JsonValue]] = {agent.label: {} for agent in self.agents}
        for name, value in changes:
            label = max((each for each in own if name.startswith(f"{each}.")), key=len, default=None)
            if label is None:
                raise UsageError(f"--set {name}: begin with the label of an agent: {', '.join(own)}")
            own[label][name.removeprefix(f"{label}.")] = value
        agents = tuple(
            agent.model_copy(update={"settings": {**agent.settings, **own[agent.label]}}) for agent in self.agents
        )
        return self.model_copy(update={"agents": agents})


def load_recipe(name: str | Path) -> Recipe:
    """Load a recipe: a file, or the name of one in `configs/`.

    Raises:
        UnknownNameError: if there is none; suggests the nearest.
        UsageError: if it is another file, or a folder.
        ContentError: if the file is malformed.
    """
    path = Path(name)
    if path.suffix != ".toml":
        if path.name != str(name) or path.suffix:
            raise UsageError(f"{name} is no recipe: that is a .toml file, or a name that `ptxgym list` shows")
        path = content.locate("configs", str(name))
    return content.load(path, Recipe, name=path.stem)


def _unique(what: str, names: Iterable[str]) -> None:
    seen: set[str] = set()
    for name in names:
        if name in seen:
            raise ValueError(f"{what} {name!r} is there twice; give one of them another name")
        seen.add(name)
