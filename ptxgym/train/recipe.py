"""What a training run is: one file of `configs/train/`."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Self, TypeVar

from pydantic import (
    Field,
    JsonValue,
    StrictBool,
    StrictInt,
    StrictStr,
    ValidationError,
    field_validator,
    model_validator,
)

from ptxgym import content
from ptxgym.device.cuda.model import Tier
from ptxgym.errors import ContentError, UnknownNameError, UsageError
from ptxgym.verdict import Value

_OWN = {
    "output_dir": "the option --out",
    "resume_from_checkpoint": "the option --resume",
    "seed": "the key seed",
    "data_seed": "the key seed",
    "report_to": "callbacks of ptxgym.train",
    "max_length": "the key most_tokens",
    "dataset_text_field": "the rows of a Fixit set",
    "completion_only_loss": "the rows of a Fixit set",
}
"""Settings of TRL that something else decides."""
_OWN_OF_PPO = {
    "env": "the key template",
    "env_config": "the table env",
    "seed": "the key seed",
    "framework": "ptxgym: PyTorch",
    "callbacks": "ptxgym.train.rllib",
    "restart_failed_sub_environments": "ptxgym.train.runner: an episode that the machine failed at is dropped",
    "gym_env_vectorize_mode": "ptxgym.train.runner; num_env_runners evaluates in several processes",
    "model": "the table model",
    "model_config": "the table model",
}
"""Settings of RLlib that something else decides."""


class Lora(Value):
    """Adapters of low rank in place of all weights (PEFT)."""

    rank: int = Field(default=16, ge=1)
    alpha: int = Field(default=32, ge=1)
    dropout: float = Field(default=0.0, ge=0, lt=1)
    targets: str | tuple[str, ...] = "all-linear"
    """Names of modules, or what PEFT takes for all linear ones but the last."""


class RunRecipe(Value):
    """What all recipes have in common."""

    name: str
    summary: str
    seed: int = Field(default=0, ge=0)
    """Of weights that are new, of the order of rows, and of sampling."""
    trainer: dict[str, JsonValue] = Field(default_factory=dict)
    """Settings of TRL's `SFTConfig` or `GRPOConfig`, or of RLlib's `PPOConfig`, under their own names."""


class TrainRecipe(RunRecipe):
    """What SFT and GRPO have in common."""

    model: str = ""
    """A folder, or a name on the Hugging Face hub; the recipes that ship name none."""
    lora: Lora | None = None
    """None trains all weights."""

    @field_validator("trainer")
    @classmethod
    def _free(cls, trainer: dict[str, JsonValue]) -> dict[str, JsonValue]:
        for key in trainer:
            if key in _OWN:
                raise ValueError(f"{key} is decided by {_OWN[key]}")
        return trainer


class SftRecipe(TrainRecipe):
    """Fine-tuning on the completions of a Fixit set."""

    data: str = ""
    """Folder that `ptxgym fixit build` has written."""
    most_tokens: int = Field(default=65_536, ge=1)
    """Of a conversation, by the model's tokenizer; longer ones are left out, never cut off."""
    held_out: int = Field(default=0, ge=0)
    """Rows that are not trained on; the loss on them is `eval_loss`."""


class Band(Value):
    """Rates of success that a curriculum keeps to (`ptxgym.curriculum`)."""

    low: float = Field(default=0.2, ge=0, lt=1)
    high: float = Field(default=0.8, gt=0, le=1)
    success: float = Field(default=0.2, gt=0)
    """Reward from which a rollout counts as one: under `reward = "final"` 0.2 is right, 0.5 on target instructions."""

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        if self.low >= self.high:
            raise ValueError(f"low {self.low} must be below high {self.high}")
        return self


class GrpoRecipe(TrainRecipe):
    """Group-relative policy optimisation on episodes, on variants to train on."""

    envs: tuple[str, ...] = ()
    """Plain ids; by default all."""
    variants: tuple[str, ...] = ()
    """Of the environments' tasks; by default all that are to be trained on."""
    options: dict[str, JsonValue] = Field(default_factory=dict)
    """For every episode, what `Episode` takes, such as `turns`, `knowledge` or `reward`."""
    curriculum: Band | None = None
    """Draws which variant a group plays, by how rollouts went; by default all come up alike. For one process."""
    device: str = "auto"
    """Where kernels are judged: `auto`, `emulator` or `cuda`."""
    tier: Tier = "standard"
    """How a GPU measures; `rl` is the quickest."""


class Turning(Value):
    """An episode of `ptxgym.knobs.KnobEnv`; its arguments document the keys."""

    turns: int = Field(default=1, ge=1)
    reward: str = "shaped"
    ladder: float = Field(default=0.0, ge=0, allow_inf_nan=False)


class PpoRecipe(RunRecipe):
    """PPO, by RLlib, over the settings of a kernel template."""

    template: str
    """A name, or a file that ends in `.toml` (`ptxgym.knobs.load_template`)."""
    keep: dict[str, StrictBool | StrictInt | StrictStr] = Field(default_factory=dict)
    """Knobs that are not turned, and their values."""
    env: Turning = Turning()
    device: str = "auto"
    """Where kernels are judged: `auto`, `emulator`, `cuda`, or the address of a service."""
    tier: Tier = "standard"
    """How a GPU measures; `rl` is the quickest."""
    iterations: int = Field(ge=1)
    """Each samples `train_batch_size_per_learner` turns, then learns from them."""
    evaluations: int | None = Field(default=None, ge=1)
    """Ends the run earlier, once so many different settings have been evaluated; others cost nothing again."""
    save_iterations: int = Field(default=10, ge=1)
    """From one checkpoint to the next."""
    model: dict[str, JsonValue] = Field(default_factory=dict)
    """Settings of RLlib's `DefaultModelConfig`, under their own names."""

    @field_validator("trainer")
    @classmethod
    def _free(cls, trainer: dict[str, JsonValue]) -> dict[str, JsonValue]:
        for key in trainer:
            if key in _OWN_OF_PPO:
                raise ValueError(f"{key} is decided by {_OWN_OF_PPO[key]}")
        return trainer


Recipe = TypeVar("Recipe", bound=RunRecipe)


def load_train_recipe(name: str, kind: type[Recipe], settings: Mapping[str, JsonValue] | None = None) -> Recipe:
    """Load a recipe: a file, or the name of one in `configs/train/`.

    Args:
        name: Ends in `.toml` if it is a file.
        kind: `SftRecipe`, `GrpoRecipe` or `PpoRecipe`.
        settings: Replace what the file says; a dot names a key within a table, such as `trainer.learning_rate`.

    Raises:
        UnknownNameError: if there is none; suggests the nearest.
        ContentError: if the file is malformed, or is a recipe of the other kind.
        UsageError: if a setting does not fit.
    """
    path = Path(name) if name.endswith(".toml") else _known(name)
    recipe = content.load(path, kind, name=path.stem)
    if not settings:
        return recipe
    data = recipe.model_dump(exclude_unset=True)
    for key, value in settings.items():
        _set(data, key, value)
    try:
        return kind.model_validate(data)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"])
        if first["type"] == "extra_forbidden" and len(first["loc"]) == 1:
            raise UsageError(f"--set {where}: {content.unknown('key', where, kind.model_fields)}") from error
        raise UsageError(f"--set {where}: {first['msg'].removeprefix('Value error, ')}") from error


def check_trainer(trainer: Mapping[str, JsonValue], known: Iterable[str], kind: str, table: str = "trainer") -> None:
    """Accept settings of a library by name.

    Args:
        trainer: The recipe's table.
        known: What there is in the version that is installed.
        kind: Name of the library's class.
        table: The name of the recipe's table.

    Raises:
        UsageError: if one is unknown; suggests the nearest.
    """
    names = set(known)
    for key in trainer:
        if key not in names:
            near = names - set(_OWN) - set(_OWN_OF_PPO)
            raise UsageError(f"[{table}]: {content.unknown(f'setting of {kind}', key, near)}")


def differing(one: RunRecipe, other: RunRecipe) -> tuple[str, ...]:
    """Return the keys, with dots, in which two recipes differ."""
    return tuple(_differing(one.model_dump(mode="json"), other.model_dump(mode="json"), ""))


def _differing(one: Any, other: Any, place: str) -> Iterable[str]:
    if isinstance(one, dict) and isinstance(other, dict):
        for key in sorted(one.keys() | other.keys()):
            yield from _differing(one.get(key), other.get(key), f"{place}.{key}" if place else key)
    elif one != other:
        yield place


def _known(name: str) -> Path:
    known = {
        path.stem: path for root in content.roots() for path in sorted((root / "configs" / "train").glob("*.toml"))
    }
    if name not in known:
        raise UnknownNameError(content.unknown("training recipe", name, known))
    return known[name]


def _set(data: dict[str, Any], key: str, value: JsonValue) -> None:
    *tables, last = key.split(".")
    place = data
    for table in tables:
        inner = place.setdefault(table, {})
        if not isinstance(inner, dict):
            raise ContentError(f"--set {key}: {table} is no table, so it has no key {last!r}")
        place = inner
    place[last] = copy.copy(value)
