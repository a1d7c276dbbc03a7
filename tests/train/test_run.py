"""The folder of a training run: what is begun, gone on with, refused."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from ptxgym.cli.commands import app
from ptxgym.errors import UsageError
from ptxgym.train.grpo import front_of, grpo, training_rows
from ptxgym.train.parts import load_tokenizer
from ptxgym.train.recipe import GrpoRecipe, SftRecipe
from ptxgym.train.run import CHECKPOINTS, CURRICULUM, FRONT, Front, TrainRun, numbers
from ptxgym.train.sft import sft

RECIPE = SftRecipe(name="r", summary="", model="m", data="d", seed=1)


def front(recipe: SftRecipe | GrpoRecipe = RECIPE, data: str = "aa") -> Front:
    method = "sft" if isinstance(recipe, SftRecipe) else "grpo"
    return Front.model_validate(
        {"method": method, "recipe": recipe, "data_sha256": data, "ptxgym": "0", "packages": {"trl": "1"}}
    )


def checkpoint(folder: Path, step: int, state: str = "{}") -> Path:
    path = folder / CHECKPOINTS / f"checkpoint-{step}"
    path.mkdir(parents=True)
    (path / "trainer_state.json").write_text(state)
    return path


def test_a_run_begins_once(tmp_path: Path) -> None:
    assert TrainRun(tmp_path / "run", front(), resume=False).checkpoint is None
    assert Front.model_validate_json((tmp_path / "run" / FRONT).read_bytes()) == front()
    with pytest.raises(UsageError, match="holds a run; go on with it by --resume"):
        TrainRun(tmp_path / "run", front(), resume=False)
    with pytest.raises(UsageError, match="no run to go on with"):
        TrainRun(tmp_path / "other", front(), resume=True)


def test_a_run_goes_on_from_its_last_whole_checkpoint(tmp_path: Path) -> None:
    TrainRun(tmp_path, front(), resume=False)
    assert TrainRun(tmp_path, front(), resume=True).checkpoint is None
    last = [checkpoint(tmp_path, 2), checkpoint(tmp_path, 10)][1]
    checkpoint(tmp_path, 12, state='{"torn": ')
    assert TrainRun(tmp_path, front(), resume=True).checkpoint == last


def test_a_run_goes_on_with_its_own_recipe_and_rows(tmp_path: Path) -> None:
    TrainRun(tmp_path, front(), resume=False)
    with pytest.raises(UsageError, match=r"has another seed, trainer\.max_steps; a run goes on with its own recipe"):
        TrainRun(tmp_path, front(RECIPE.model_copy(update={"seed": 2, "trainer": {"max_steps": 1}})), resume=True)
    with pytest.raises(UsageError, match="the rows are not those"):
        TrainRun(tmp_path, front(data="bb"), resume=True)
    with pytest.raises(UsageError, match="is a run of sft, not grpo"):
        TrainRun(tmp_path, front(GrpoRecipe(name="r", summary="")), resume=True)


def test_a_checkpoint_is_whole_with_what_is_put_beside_the_trainers_state(tmp_path: Path) -> None:
    recipe = front(GrpoRecipe(name="r", summary=""))
    TrainRun(tmp_path, recipe, resume=False)
    first, second, third = (checkpoint(tmp_path, step) for step in (1, 2, 3))
    (first / CURRICULUM).write_text("{}")
    (second / CURRICULUM).write_text('{"torn": ')
    assert TrainRun(tmp_path, recipe, resume=True, beside=(CURRICULUM,)).checkpoint == first
    assert TrainRun(tmp_path, recipe, resume=True).checkpoint == third, "the control: without a curriculum"


def test_grpo_goes_on_with_the_rows_that_it_began_with(tmp_path: Path) -> None:
    recipe = GrpoRecipe(name="r", summary="", envs=("PTX-Gemm-H100",), variants=("k64", "nn"))
    rows = training_rows(recipe)
    TrainRun(tmp_path, front_of(recipe, rows), resume=False)
    TrainRun(tmp_path, front_of(recipe, training_rows(recipe)), resume=True)
    for changed in ([{**rows[0], "prompt": "Another task."}, *rows[1:]], rows[::-1], rows[1:]):
        with pytest.raises(UsageError, match="the rows are not those"):
            TrainRun(tmp_path, front_of(recipe, changed), resume=True)
    older = front_of(recipe, rows).model_copy(update={"data_sha256": None})
    TrainRun(tmp_path / "older", older, resume=False)
    TrainRun(tmp_path / "older", front_of(recipe, rows), resume=True)


def test_numbers_behind_the_checkpoint_are_logged_anew(tmp_path: Path) -> None:
    seen: list[tuple[int, float]] = []
    run = TrainRun(tmp_path, front(), resume=False)
    log = run.writer((lambda step, values: seen.append((step, values["loss"])),))
    for step in (1, 2, 3):
        log(step, {"loss": 1 / step})
    assert seen == [(1, 1.0), (2, 0.5), (3, 1 / 3)]
    checkpoint(tmp_path, 2)
    again = TrainRun(tmp_path, front(), resume=True)
    again.writer(())(3, {"loss": 0.25})
    assert [(line.step, line.values["loss"]) for line in again.metrics()] == [(1, 1.0), (2, 0.5), (3, 0.25)]


def test_other_processes_of_a_run_write_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "1")
    run = TrainRun(tmp_path / "run", front(), resume=False)
    run.writer(())(1, {"loss": 1.0})
    assert not (tmp_path / "run").exists() and run.metrics() == ()


def test_only_numbers_are_logged() -> None:
    assert numbers({"loss": 1, "note": "x", "done": True, "reward": 0.5, "none": None}) == {"loss": 1.0, "reward": 0.5}


def test_a_recipe_without_model_or_set_says_how_to_name_them(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"names no model: .* --set model=NAME"):
        load_tokenizer(GrpoRecipe(name="r", summary=""))
    with pytest.raises(UsageError, match=r"names no set: .* --set data=DIR"):
        sft(SftRecipe(name="r", summary=""), tmp_path)
    with pytest.raises(UsageError, match="holds no training set"):
        sft(RECIPE.model_copy(update={"data": str(tmp_path)}), tmp_path / "run")


def test_the_commands_say_what_is_missing(tmp_path: Path) -> None:
    run = CliRunner()
    assert "Fine-tune a model" in run.invoke(app, ["train", "sft", "--help"]).output
    assert "names no set" in str(run.invoke(app, ["train", "sft", "sft", "--out", str(tmp_path)]).exception)
    unknown = run.invoke(app, ["train", "grpo", "grpo", "--set", 'envs=["PTX-Gem-H100"]', "--out", str(tmp_path)])
    assert "did you mean 'PTX-Gemm-H100'" in str(unknown.exception)
    assert not any(tmp_path.iterdir())


def test_without_trl_the_extra_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "trl", None)
    with pytest.raises(UsageError, match=r"training needs the package trl: pip install 'ptxgym\[trl\]'"):
        grpo(GrpoRecipe(name="r", summary="", envs=("PTX-Gemm-H100",)), tmp_path)
    assert not any(tmp_path.iterdir())
