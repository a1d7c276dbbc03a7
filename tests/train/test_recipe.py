"""What a training recipe may say, and what is said where it is wrong; without TRL or torch."""

from __future__ import annotations

from pathlib import Path

import pytest

from ptxgym import content
from ptxgym.errors import ContentError, UnknownNameError, UsageError
from ptxgym.train.grpo import training_rows
from ptxgym.train.recipe import (
    GrpoRecipe,
    PpoRecipe,
    SftRecipe,
    TrainRecipe,
    check_trainer,
    differing,
    load_train_recipe,
)


def written(folder: Path, text: str) -> str:
    path = folder / "mine.toml"
    path.write_text(f'summary = "for tests"\n{text}')
    return str(path)


@pytest.mark.parametrize(("name", "kind"), [("sft", SftRecipe), ("grpo", GrpoRecipe)])
def test_the_recipes_that_ship_name_no_model(name: str, kind: type[TrainRecipe]) -> None:
    recipe = load_train_recipe(name, kind)
    assert recipe.model == "" and recipe.lora is not None and recipe.name == name
    assert load_train_recipe(name, kind, {"model": "mine"}).model == "mine"


def test_every_recipe_that_ships_is_of_one_kind() -> None:
    kinds = {"sft": SftRecipe, "grpo": GrpoRecipe, "ppo": PpoRecipe}
    for path in sorted((content.builtin_root() / "configs" / "train").glob("*.toml")):
        kind = kinds[next(name for name in kinds if name in path.stem)]
        load_train_recipe(str(path), kind)


def test_settings_reach_into_tables(tmp_path: Path) -> None:
    file = written(tmp_path, "[trainer]\nlearning_rate = 1e-4\nmax_steps = 5\n")
    recipe = load_train_recipe(file, GrpoRecipe, {"trainer.learning_rate": 1e-6, "lora.rank": 4, "seed": 7})
    assert recipe.trainer == {"learning_rate": 1e-6, "max_steps": 5}
    assert recipe.lora is not None and (recipe.lora.rank, recipe.lora.alpha, recipe.seed) == (4, 32, 7)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("modell = 'x'", "unknown key 'modell'; did you mean 'model'?"),
        ("held_out = -1", "held_out"),
        ("[trainer]\noutput_dir = 'x'", "output_dir is decided by the option --out"),
        ("[trainer]\nmax_length = 10", "max_length is decided by the key most_tokens"),
        ("[lora]\nrank = 0", "lora.rank"),
        ("[trainer]\ncompletion_only_loss = false", "completion_only_loss is decided by the rows"),
    ],
)
def test_wrong_keys_are_named(tmp_path: Path, text: str, said: str) -> None:
    with pytest.raises(ContentError, match=r"mine\.toml") as caught:
        load_train_recipe(written(tmp_path, text), SftRecipe)
    assert said in str(caught.value)


@pytest.mark.parametrize(
    ("key", "value", "said"),
    [
        ("dat", "x", "--set dat: unknown key 'dat'; did you mean 'data'?"),
        ("seed", "many", "--set seed: "),
        ("model.name", "x", "model is no table"),
    ],
)
def test_wrong_settings_are_named(key: str, value: str, said: str) -> None:
    with pytest.raises(UsageError) as caught:
        load_train_recipe("sft", SftRecipe, {"model": "mine", key: value})
    assert said in str(caught.value)


def test_unknown_recipes_suggest_the_nearest() -> None:
    with pytest.raises(UnknownNameError, match="unknown training recipe 'grop'; did you mean 'grpo'"):
        load_train_recipe("grop", GrpoRecipe)


def test_settings_of_trl_are_checked_by_name() -> None:
    check_trainer({"learning_rate": 1e-5}, ["learning_rate", "seed"], "SFTConfig")
    with pytest.raises(UsageError, match="unknown setting of SFTConfig 'learning_rat'; did you mean 'learning_rate'"):
        check_trainer({"learning_rat": 1e-5}, ["learning_rate", "seed"], "SFTConfig")


def test_rows_are_those_to_train_on_easier_ones_first() -> None:
    recipe = GrpoRecipe(
        name="r", summary="", envs=("PTX-Gemm-H100",), variants=("nn", "k64", "bias"), options={"turns": 3}
    )
    rows = training_rows(recipe)
    assert next(row["options"]["variant"] for row in rows) == "k64"
    assert {row["options"]["variant"] for row in rows} == {"nn", "k64", "bias"}
    assert all(row["options"]["turns"] == 3 and row["env"] == "PTX-Gemm-H100" for row in rows)


@pytest.mark.parametrize("variant", ["base", "nt-fp32", "k46"])
def test_held_out_and_unknown_variants_are_refused(variant: str) -> None:
    recipe = GrpoRecipe(name="r", summary="", envs=("PTX-Gemm-H100",), variants=(variant,))
    with pytest.raises(UnknownNameError, match="variant to train on"):
        training_rows(recipe)
    with pytest.raises(UnknownNameError, match="PTX-Gemm-H100"):
        training_rows(GrpoRecipe(name="r", summary="", envs=("PTX-Gem-H100",)))


def test_a_band_is_two_rates(tmp_path: Path) -> None:
    with pytest.raises(ContentError, match=r"curriculum: low 0\.8 must be below high 0\.5"):
        load_train_recipe(written(tmp_path, "[curriculum]\nlow = 0.8\nhigh = 0.5\n"), GrpoRecipe)


def test_recipes_that_differ_say_where() -> None:
    one = GrpoRecipe(name="r", summary="", trainer={"max_steps": 1})
    assert differing(one, one) == ()
    assert differing(one, one.model_copy(update={"seed": 1, "trainer": {"max_steps": 2}})) == (
        "seed",
        "trainer.max_steps",
    )
