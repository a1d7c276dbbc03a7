"""What an environment id stands for: a task, a GPU generation, turns and a reward, read from `envs/<id>.toml`."""

from __future__ import annotations

import re
from typing import Annotated, Any

from pydantic import BeforeValidator, Field, ValidationError

from ptxgym import content
from ptxgym.arguments import as_whole, hint
from ptxgym.content import unknown
from ptxgym.errors import UnknownNameError, UsageError
from ptxgym.knowledge import expand
from ptxgym.registration import pinned_id
from ptxgym.task import BASE
from ptxgym.variants import load_variant
from ptxgym.verdict import Value, Verdict

_PINNED = re.compile(r"ptxgym/(.+)-v\d+")


class StopRule(Value):
    """When an episode may end before its last turn."""

    text: str
    speedup: float | None = None

    @classmethod
    def parse(cls, text: str) -> StopRule:
        """Parse `never`, `target_ok` or `speedup:<x>`.

        Raises:
            UsageError: if `text` is none of them.
        """
        if text in ("never", "target_ok"):
            return cls(text=text)
        name, _, value = text.partition(":") if isinstance(text, str) else ("", "", "")
        try:
            speedup = float(value)
        except ValueError:
            speedup = 0.0
        if name != "speedup" or not 0 < speedup < float("inf"):
            raise UsageError(f"stop must be 'never', 'target_ok' or 'speedup:<number above 0>', not {text!r}")
        return cls(text=text, speedup=speedup)

    def reached(self, verdict: Verdict) -> bool:
        """Return whether `verdict` ends the episode."""
        if self.text == "never" or verdict.evidence is None or not verdict.evidence.target_ok:
            return False
        if self.speedup is None:
            return verdict.score > 0
        timing = verdict.measured.timing
        return timing is not None and timing.speedup_low >= self.speedup


def _stop(text: str) -> str:
    return StopRule.parse(text).text


class EnvConfig(Value):
    """One file of `envs/`."""

    name: str
    """The plain id: the file's name."""
    revision: int = Field(ge=1)
    """Raised whenever a verdict or a prompt changes its meaning; the pinned id carries it."""
    task: str
    variant: str = BASE
    """Of the task (`ptxgym.variants`); `base` is the task itself."""
    arch: str
    turns: int = Field(default=8, ge=1, le=1000)
    reward: str = "shaped"
    stop: Annotated[str, BeforeValidator(_stop)] = "never"
    """`never`, `target_ok` or `speedup:<x>`."""
    feedback_bytes: int = Field(default=12_000, ge=1000, le=100_000)
    knowledge: Annotated[tuple[str, ...], BeforeValidator(expand)] = ()
    """Parts of the architecture's knowledge pack that the prompt holds (`ptxgym.knowledge.PARTS`); `all` expands."""

    @property
    def pinned(self) -> str:
        """The id that keeps its meaning, such as `ptxgym/Gemm-H100-v1`."""
        return pinned_id(self.name, self.revision)

    def of_variant(self, name: str | None) -> EnvConfig:
        """Return this configuration for the variant `name` of its task; for its own where that is None.

        Raises:
            UnknownNameError: if the task has no such variant; suggests the nearest.
        """
        if name is None:
            return self
        return self.override(variant=load_variant(self.task, name).variant)

    def override(self, **changes: Any) -> EnvConfig:
        """Return this configuration with some values changed.

        Raises:
            UsageError: if a value is not acceptable; names it and what is expected.
        """
        whole = {name: as_whole(value) for name, value in changes.items()}
        if (strange := next((name for name in whole if name not in EnvConfig.model_fields), None)) is not None:
            raise UsageError(unknown(f"setting of environment {self.name}", strange, EnvConfig.model_fields))
        try:
            return EnvConfig.model_validate({**self.model_dump(), **whole}, strict=True)
        except ValidationError as error:
            raise UsageError(f"environment {self.name}: {'; '.join(map(_problem, error.errors()))}") from error


_EXPECTED = {
    "turns": "a whole number from 1 to 1000",
    "feedback_bytes": "a whole number of bytes from 1000 to 100000",
    "reward": "the name of a preset, such as 'shaped' (`ptxgym list`)",
    "variant": "the name of a variant (`ptxgym list --variants`)",
}


def _problem(item: Any) -> str:
    """Say what is wrong with one value, and what is accepted."""
    name, value = str(item["loc"][0]), item["input"]
    if name in _EXPECTED:
        return f"{name} must be {_EXPECTED[name]}, not {value!r}{hint(value)}"
    said = str(item["msg"]).removeprefix("Value error, ")
    return said if said.startswith(name) else f"{name}={value!r}: {said}"


def env_names() -> tuple[str, ...]:
    """Return the plain ids of all environments, sorted."""
    return tuple(content.find("envs"))


def load_env(name: str) -> EnvConfig:
    """Load an environment by its plain or its pinned id.

    Raises:
        UnknownNameError: if there is none; suggests the nearest.
        ContentError: if its file is malformed.
    """
    found = content.find("envs")
    plain = name
    if name not in found and (pinned := _PINNED.fullmatch(name)):
        plain = next((known for known in (f"PTX-{pinned[1]}", pinned[1]) if known in found), name)
    if plain not in found:
        raise UnknownNameError(content.unknown("environment", name, found))
    config = content.load(found[plain], EnvConfig, name=plain)
    if name not in (config.name, config.pinned):
        raise UnknownNameError(f"environment {name!r} is not of this version, which has {config.pinned!r}")
    return config
