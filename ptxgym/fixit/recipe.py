"""What a training set shall hold: one file of `configs/fixit/`."""

from __future__ import annotations

from pathlib import Path
from typing import Literal, Self

from pydantic import Field, model_validator

from ptxgym import content
from ptxgym.errors import UnknownNameError
from ptxgym.fixit.records import KINDS, Kind
from ptxgym.variants import Split
from ptxgym.verdict import Value

Balance = Literal["proportional", "equal"]
"""How places are given to strata: in proportion to what there is, or as equally as what there is allows."""


class MineRules(Value):
    """Which failed kernels are sampled."""

    splits: tuple[Split, ...] = ("train",)
    """Of variants. With `eval` a set trains on what is held out: results there say nothing of new tasks any more."""
    envs: tuple[str, ...] = ()
    """Plain or pinned ids; by default all."""
    kinds: tuple[Kind, ...] = tuple(kind for kind in KINDS if kind != "no_target")
    last_turn: int | None = Field(default=None, ge=1)
    """Later turns are left out."""
    per_task: int | None = Field(default=None, ge=1)
    """Most kernels of an environment and variant."""
    size: int | None = Field(default=None, ge=1)
    """Most kernels in all."""
    balance: Balance = "proportional"
    """Over kind and turn, within a task."""


class RepairRules(Value):
    """How repairs are asked for."""

    attempts: int = Field(default=3, ge=1, le=50)
    """Answers to a failure, each with feedback on the one before."""


class RationaleRules(Value):
    """What a rationale must be."""

    attempts: int = Field(default=2, ge=1, le=20)
    """Texts that may be asked for until one can be used."""
    least_chars: int = Field(default=400, ge=0)
    most_chars: int = Field(default=190_000, ge=1)
    quiet_share: float = Field(default=0.3, ge=0, le=1)
    """In so much of the text, from its start, no line that only the repair has may stand: first comes the diagnosis."""
    quoted_share: float = Field(default=0.5, gt=0, le=1)
    """Most of the repair's kernel that the text may repeat, by shingles."""


class BuildRules(Value):
    """Which rows make the set."""

    most_tokens: int = Field(default=65_536, ge=1)
    """Of a conversation, estimated."""
    duplicate: float = Field(default=0.9, gt=0, le=1)
    """Rows are duplicates from this similarity on, of kernels and of edits."""
    solution: float = Field(default=0.6, gt=0, le=1)
    """A kernel is a copy of a proven solution of an evaluated task if it shares so much with it."""
    per_task: int | None = Field(default=None, ge=1)
    size: int | None = Field(default=None, ge=1)
    balance: Balance = "proportional"


class FixitRecipe(Value):
    """A training set."""

    name: str = Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._+-]*$")
    summary: str
    mine: MineRules = MineRules()
    repair: RepairRules = RepairRules()
    rationale: RationaleRules = RationaleRules()
    build: BuildRules = BuildRules()

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        if self.rationale.least_chars > self.rationale.most_chars:
            raise ValueError(
                f"rationale: least_chars {self.rationale.least_chars} exceeds most_chars {self.rationale.most_chars}"
            )
        return self


def load_fixit_recipe(name: str) -> FixitRecipe:
    """Load a recipe: a file, or the name of one in `configs/fixit/`.

    Raises:
        UnknownNameError: if there is none; suggests the nearest.
        ContentError: if the file is malformed.
    """
    if name.endswith(".toml"):
        return content.load(Path(name), FixitRecipe, name=Path(name).stem)
    known = {
        path.stem: path for root in content.roots() for path in sorted((root / "configs" / "fixit").glob("*.toml"))
    }
    if name not in known:
        raise UnknownNameError(content.unknown("Fixit recipe", name, known))
    return content.load(known[name], FixitRecipe, name=name)
