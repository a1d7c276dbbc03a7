"""`ptxgym train …`: SFT on a Fixit set, GRPO on the environment, PPO over the knobs of a kernel template."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeVar

import typer

from ptxgym.cli.console import out, plain
from ptxgym.cli.tracking import JSONL, TrackOption, show_where, told

if TYPE_CHECKING:
    from ptxgym.track.training import TrackedTraining
    from ptxgym.train.recipe import GrpoRecipe, PpoRecipe, SftRecipe
    from ptxgym.train.sft import Trained

R = TypeVar("R", "SftRecipe", "GrpoRecipe", "PpoRecipe")

train = typer.Typer(
    help="Train models, by TRL and PEFT (the extra trl), and policies over knobs, by RLlib (the extra ray).",
    no_args_is_help=True,
)

RecipeArgument = Annotated[
    str, typer.Argument(metavar="RECIPE", help="A TOML file, or the name of one in configs/train/.")
]
OutOption = Annotated[Path | None, typer.Option("--out", metavar="DIR", help="For the run; by default runs/<recipe>.")]
ResumeOption = Annotated[
    bool, typer.Option("--resume", metavar="", help="Go on from the last checkpoint of the run that is there.")
]
SetOption = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="Such as model=NAME or trainer.learning_rate=1e-5; repeatable."),
]


@train.command()
def sft(
    recipe: RecipeArgument,
    folder: OutOption = None,
    resume: ResumeOption = False,
    set_: SetOption = None,
    track: TrackOption = JSONL,
) -> None:
    """Fine-tune a model on a set that `ptxgym fixit build` has written."""
    from ptxgym.train.recipe import SftRecipe
    from ptxgym.train.sft import sft as run

    with _training(recipe, SftRecipe, folder, set_, track) as (chosen, target, tracked):
        _tell(run(chosen, target, resume=resume, logs=[tracked.log], on_note=told), "loss")


@train.command()
def grpo(
    recipe: RecipeArgument,
    folder: OutOption = None,
    resume: ResumeOption = False,
    set_: SetOption = None,
    track: TrackOption = JSONL,
) -> None:
    """Train a model by GRPO on episodes of variants to train on."""
    from ptxgym.train.grpo import grpo as run
    from ptxgym.train.recipe import GrpoRecipe

    with _training(recipe, GrpoRecipe, folder, set_, track) as (chosen, target, tracked):
        _tell(run(chosen, target, resume=resume, logs=[tracked.log], on_rollout=tracked.rollout), "reward")


@train.command()
def rllib(
    recipe: RecipeArgument,
    folder: OutOption = None,
    resume: ResumeOption = False,
    set_: SetOption = None,
    track: TrackOption = JSONL,
) -> None:
    """Search the settings of a kernel template by PPO."""
    from ptxgym.train.recipe import PpoRecipe
    from ptxgym.train.rllib import ppo

    with _training(recipe, PpoRecipe, folder, set_, track) as (chosen, target, tracked):
        searched = ppo(chosen, target, resume=resume, logs=[tracked.log])
        best = ", ".join(f"{name} = {value}" for name, value in searched.best.setting.items())
        out.print(
            plain(
                f"{searched.iterations} iterations, {searched.evaluations} settings; the best scores "
                f"{searched.best.score:.3g}: {best}; it is in {searched.kernel}"
            )
        )


@contextmanager
def _training(
    recipe: str, kind: type[R], folder: Path | None, settings: list[str] | None, track: str
) -> Iterator[tuple[R, Path, TrackedTraining]]:
    """Give the recipe, the folder of its run, and what follows it; say at the end where that is to be seen."""
    from ptxgym.cli.settings import parse_settings
    from ptxgym.track.training import TrackedTraining
    from ptxgym.train.recipe import load_train_recipe

    chosen = load_train_recipe(recipe, kind, parse_settings(settings or ()))
    target = folder or Path("runs") / chosen.name
    with TrackedTraining(target, track, told) as tracked:
        yield chosen, target, tracked
    show_where(tracked.where)


def _tell(trained: Trained, name: str) -> None:
    values = [line.values[name] for line in trained.metrics if name in line.values]
    went = f", {name} {values[0]:.4g} at first and {values[-1]:.4g} at last" if values else ""
    out.print(plain(f"{trained.steps} steps on {trained.rows} rows{went}; the model is in {trained.model}"))
