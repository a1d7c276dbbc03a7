"""SFT and GRPO by TRL and PEFT themselves, with a tiny model and a tokenizer that is trained in place."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from ptxgym.adapters.rollout import Rollout
from ptxgym.agent.prompting import fenced
from ptxgym.curriculum import State
from ptxgym.episode import Episode
from ptxgym.errors import UsageError
from ptxgym.evaluator import Evaluator
from ptxgym.fixit.build import Built, answer
from ptxgym.fixit.pack import JSONL, write_set
from ptxgym.fixit.recipe import FixitRecipe
from ptxgym.fixit.records import Row
from ptxgym.fixit.workshop import Front
from ptxgym.store.records import Message
from ptxgym.submission import extract
from ptxgym.train.grpo import grpo
from ptxgym.train.recipe import Band, GrpoRecipe, Lora, SftRecipe
from ptxgym.train.run import CHECKPOINTS
from ptxgym.train.sft import sft
from tests.adapters.tiny_policy import tiny_model, tiny_tokenizer
from tests.bad_kernels import host
from tests.scripted import ScriptedDevice

pytestmark = [
    pytest.mark.skipif(
        not (importlib.util.find_spec("trl") and importlib.util.find_spec("peft")),
        reason="TRL and PEFT are not installed: ptxgym[trl] (they need torch)",
    ),
    pytest.mark.filterwarnings("ignore"),  # what the libraries warn of is not ours
]
RIGHT = host("")
QUIET: dict[str, Any] = {"use_cpu": True, "bf16": False, "disable_tqdm": True, "logging_steps": 1}
ENV = "PTX-Gemm-H100"


def row(number: int) -> Row:
    wrong = host(f"  int wrong_{number};")
    prompt = ("Write the kernel.", fenced(wrong), f"wrong_{number} is not used.")
    return Row(
        id=f"{number:04}", recipe="test", env=ENV, task="gemm", variant="bias", arch="h100", split="train",
        kind="numerical", code="wrong_output", turn=1, score=0.5, tokens=1, source_run="r",
        prompt=tuple(
            Message(role=role, content=text) for role, text in zip(("user", "assistant", "user"), prompt, strict=True)
        ),
        completion=(Message(role="assistant", content=answer(f"I leave wrong_{number} out.", RIGHT)),),
    )  # fmt: skip


@pytest.fixture(scope="module", autouse=True)
def _one_thread() -> Iterator[None]:
    """Threads that wait for each other take many times as long where cores are shared."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("set")
    front = Front(ptxgym="0", recipe=FixitRecipe(name="test", summary=""), seed=0, runs=("r",), canaries=())
    rows = tuple(map(row, range(6)))
    write_set(folder, front, Built(rows, {}, {}), ["teacher"], direct=False, parquet=False)
    return folder


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder, as a user names one."""
    folder = tmp_path_factory.mktemp("model")
    with Evaluator("emulator") as evaluator:
        prompt = Episode(ENV, evaluator, variant="k64").prompt()
    texts = [message.content for number in range(6) for message in (*row(number).prompt, *row(number).completion)]
    tokenizer = tiny_tokenizer([prompt, *texts])
    tokenizer.save_pretrained(folder)
    tiny_model(tokenizer).save_pretrained(folder)
    return folder


def sft_recipe(model: Path, data: Path, **changes: Any) -> SftRecipe:
    trainer = {**QUIET, "save_strategy": "no", **changes.pop("trainer", {})}
    return SftRecipe(name="test", summary="", model=str(model), data=str(data), trainer=trainer, **changes)


class Stop(Exception):
    pass


def stopping_at(step: int) -> Any:
    def log(at: int, values: Mapping[str, float]) -> None:
        if at == step:
            raise Stop

    return log


def test_sft_lowers_the_loss_and_greedy_answers_hold_a_kernel(model: Path, data: Path, tmp_path: Path) -> None:
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    trainer = {"per_device_train_batch_size": 4, "max_steps": 120, "learning_rate": 3e-2, "eval_strategy": "steps"}
    recipe = sft_recipe(model, data, held_out=2, trainer={**trainer, "eval_steps": 60})
    done = sft(recipe, tmp_path)
    losses = [line.values["loss"] for line in done.metrics if "loss" in line.values]
    held_out = [line.values["eval_loss"] for line in done.metrics if "eval_loss" in line.values]
    assert (done.steps, done.rows, len(losses), len(held_out)) == (120, 4, 120, 2)
    assert losses[-1] < 0.1 * losses[0] and held_out[-1] < 0.5 * losses[0]
    tokenizer, trained = AutoTokenizer.from_pretrained(done.model), AutoModelForCausalLM.from_pretrained(done.model)
    chat = [{"role": message.role, "content": message.content} for message in row(0).prompt]
    ids = tokenizer.apply_chat_template(chat, add_generation_prompt=True, return_tensors="pt", return_dict=True)
    with torch.no_grad():
        said = trained.generate(**ids, do_sample=False, max_new_tokens=600)[0, ids["input_ids"].shape[1] :]
    found = extract(tokenizer.decode(said, skip_special_tokens=True))
    assert found.failure is None and found.text.strip() == RIGHT.strip()


def test_lora_goes_on_where_it_was_killed_and_leaves_a_whole_model(model: Path, data: Path, tmp_path: Path) -> None:
    import torch
    from transformers import AutoModelForCausalLM

    trainer = {"max_steps": 5, "save_strategy": "steps", "save_steps": 2, "learning_rate": 1e-2}
    recipe = sft_recipe(model, data, lora=Lora(rank=2, alpha=4), trainer=trainer)
    with pytest.raises(Stop):
        sft(recipe, tmp_path, logs=[stopping_at(4)])
    with pytest.raises(UsageError, match=r"another lora\.rank, trainer\.max_steps"):
        other = recipe.model_copy(update={"lora": Lora(rank=1, alpha=4), "trainer": {**recipe.trainer, "max_steps": 9}})
        sft(other, tmp_path, resume=True)
    seen: list[int] = []
    done = sft(recipe, tmp_path, resume=True, logs=[lambda step, values: seen.append(step)])
    assert seen[0] == 3, "the run did not go on from its checkpoint at step 2"
    assert [line.step for line in done.metrics if "loss" in line.values] == [1, 2, 3, 4, 5]
    base, trained = (AutoModelForCausalLM.from_pretrained(each) for each in (model, done.model))
    changed = {
        name for (name, before), after in zip(base.named_parameters(), trained.parameters(), strict=True)
        if not torch.equal(before, after)
    }  # fmt: skip
    assert changed and all("proj" in name for name in changed), "adapters are in the linear layers, and merged"


def test_rows_that_are_too_long_are_left_out_whole(model: Path, data: Path, tmp_path: Path) -> None:
    said: list[str] = []
    with pytest.raises(UsageError, match="no row is left to train on: 6 in the set, 6 of more than most_tokens = 5"):
        sft(sft_recipe(model, data, most_tokens=5), tmp_path, on_note=said.append)
    assert said == ["6 of 6 rows have more than 5 tokens; left out"] and not any(tmp_path.iterdir())


def test_what_does_not_fit_is_told_before_a_run_begins(model: Path, data: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    with pytest.raises(UsageError, match="setting of SFTConfig 'learning_rat'; did you mean 'learning_rate'"):
        sft(sft_recipe(model, data, trainer={"learning_rat": 1.0}), run)
    with pytest.raises(UsageError, match=r"\[trainer\]: SFTConfig does not accept these settings: .*sometimes"):
        sft(sft_recipe(model, data, trainer={"save_strategy": "sometimes"}), run)
    with pytest.raises(UsageError, match=r"model '/no/model' cannot be loaded; it must be a folder"):
        sft(sft_recipe(Path("/no/model"), data), run)
    changed = tmp_path / "changed"
    changed.mkdir()
    for file in data.iterdir():
        text = file.read_text()
        (changed / file.name).write_text(text.replace("not used", "used") if file.name == JSONL else text)
    with pytest.raises(UsageError, match=r"is not as its manifest says: rows\.jsonl"):
        sft(sft_recipe(model, changed), run)
    with pytest.raises(UsageError, match="options 'turn' is unknown"):
        options = {"turn": 2}
        grpo(GrpoRecipe(name="t", summary="", model=str(model), envs=(ENV,), options=options, trainer=QUIET), run)
    assert not run.exists()


def test_grpo_trains_on_episodes_and_goes_on(model: Path, tmp_path: Path) -> None:
    recipe = GrpoRecipe(
        name="test", summary="", model=str(model), envs=(ENV,), variants=("k64",), options={"turns": 1},
        trainer={
            **QUIET, "per_device_train_batch_size": 2, "num_generations": 2, "max_completion_length": 8,
            "max_steps": 3, "save_strategy": "steps", "save_steps": 1,
        },
    )  # fmt: skip
    with Evaluator(ScriptedDevice()) as evaluator:
        with pytest.raises(Stop):
            grpo(recipe, tmp_path, evaluator=evaluator, logs=[stopping_at(2)])
        played: list[Rollout] = []
        done = grpo(recipe, tmp_path, evaluator=evaluator, resume=True, on_rollout=played.append)
    assert {len(each.episode.turns) for each in played} == {1} and len(played) in (2, 4), "two a step"
    steps = [line.step for line in done.metrics if "reward" in line.values]
    assert (done.steps, done.rows, steps) == (3, 1, [1, 2, 3])
    assert all(line.values["reward"] == 0.0 for line in done.metrics if "reward" in line.values)
    assert (done.model / "config.json").is_file() and (done.model / "tokenizer.json").is_file()


def test_a_curriculum_draws_what_groups_play_and_goes_on(model: Path, tmp_path: Path) -> None:
    recipe = GrpoRecipe(
        name="test", summary="", model=str(model), envs=(ENV,), variants=("k64", "nn", "bias"), options={"turns": 1},
        curriculum=Band(), seed=1,
        trainer={
            **QUIET, "per_device_train_batch_size": 4, "num_generations": 2, "max_completion_length": 4,
            "max_steps": 2, "save_strategy": "steps", "save_steps": 1,
        },
    )  # fmt: skip
    with Evaluator(ScriptedDevice()) as evaluator:
        with pytest.raises(Stop):
            grpo(recipe, tmp_path, evaluator=evaluator, logs=[stopping_at(2)])
        grpo(recipe, tmp_path, evaluator=evaluator, resume=True)
    first, last = (
        State.model_validate_json((tmp_path / CHECKPOINTS / f"checkpoint-{step}" / "curriculum.json").read_bytes())
        for step in (1, 2)
    )
    assert (first.draws, last.draws) == (2, 4), "two groups a step, and the second step came after the first"
    assert set(last.outcomes) == {f"{ENV}/k64"}, "nothing succeeds, so nothing harder is opened"
    assert last.outcomes[f"{ENV}/k64"] == "0" * 8
