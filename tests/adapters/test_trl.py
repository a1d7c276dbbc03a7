"""The adapter for TRL, against its GRPOTrainer, a tiny model and answers by script."""

from __future__ import annotations

import asyncio
import copy
import importlib.util
import json
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from ptxgym.adapters.group import Member, MixedConditionsError
from ptxgym.errors import UsageError
from ptxgym.evaluator import Evaluator
from ptxgym.submission import extract
from tests.adapters.conftest import DOOMED, NOTHING, RIGHT
from tests.adapters.tiny_policy import tiny_model, tiny_tokenizer

pytestmark = [
    pytest.mark.skipif(
        not importlib.util.find_spec("trl"), reason="TRL is not installed: ptxgym[trl] (it needs torch)"
    ),
    pytest.mark.filterwarnings("ignore"),  # what the libraries warn of is not ours
]
PROMPT = "Write the kernel."
ROW = {"env": "PTX-Gemm-H100", "options": {"variant": "k64", "turns": 2}, "prompt": PROMPT}
SCRIPTS = ((NOTHING, NOTHING), (RIGHT, NOTHING), (RIGHT, NOTHING), (NOTHING, DOOMED))
EARNED = (0.0, 0.2, 0.2)


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    from ptxgym.episode import Episode

    with Evaluator("emulator") as evaluator:
        prompt = Episode("PTX-Gemm-H100", evaluator, variant="k64").prompt()
    return tiny_tokenizer([prompt, RIGHT, NOTHING])


def grpo(tokenizer: Any, folder: Path, row: Any = ROW, **parts: Any) -> Any:
    """A trainer that keeps the last batch that it scored."""
    from datasets import Dataset
    from trl import GRPOConfig, GRPOTrainer

    from ptxgym.adapters.trl import kernel_reward

    class Watched(GRPOTrainer):  # type: ignore[misc]
        def _generate_and_score_completions(self, inputs: Any) -> Any:
            self.scored = super()._generate_and_score_completions(inputs)
            return self.scored

    settings = GRPOConfig(
        output_dir=str(folder), per_device_train_batch_size=4, num_generations=4, max_steps=1, report_to=[],
        max_completion_length=4000, use_cpu=True, save_strategy="no", logging_steps=1, bf16=False,
        disable_tqdm=True,
    )  # fmt: skip
    return parts.pop("kind", Watched)(
        model=tiny_model(tokenizer), args=settings, processing_class=tokenizer, reward_funcs=[kernel_reward],
        train_dataset=Dataset.from_list([row] * 4), **parts,
    )  # fmt: skip


def stopping(tokenizer: Any, room: int) -> Any:
    """What `KernelRollouts` reads of a trainer."""
    return SimpleNamespace(
        processing_class=tokenizer, max_completion_length=room, eos_token_ids=[tokenizer.eos_token_id]
    )


def scripted(tokenizer: Any) -> Any:
    """A policy whose n-th rollout answers by the n-th script."""
    turns = {"next": 0}

    def sample(conversations: Sequence[Sequence[int]], trainer: Any) -> list[tuple[list[int], list[float]]]:
        turn = turns["next"]
        turns["next"] += 1
        assert len(conversations) == 4
        answers = [[*tokenizer(script[turn])["input_ids"], tokenizer.eos_token_id] for script in SCRIPTS]
        return [(ids, [-1.0] * len(ids)) for ids in answers]

    return sample


def expected_advantages() -> list[float]:
    """Those of the group without the rollout that was lost."""
    earned = np.array(EARNED)
    return [*((earned - earned.mean()) / (earned.std(ddof=1) + 1e-4)), 0.0]


def test_answers_by_fenced_text(tokenizer: Any, evaluator: Evaluator, tmp_path: Path) -> None:
    from ptxgym.adapters.trl import KernelRollouts

    rollouts = KernelRollouts([ROW], scripted(tokenizer), evaluator)
    trainer = grpo(tokenizer, tmp_path, rollout_func=rollouts)
    trainer.train()
    assert trainer.scored["advantages"].tolist() == pytest.approx(expected_advantages(), abs=1e-4)
    assert trainer.state.log_history[0]["reward"] == pytest.approx(np.mean(EARNED), abs=1e-6)
    ids, mask = trainer.scored["completion_ids"][1].tolist(), trainer.scored["tool_mask"][1].tolist()
    written = [token for token, own in zip(ids, mask, strict=True) if own]
    assert tokenizer.decode(written) == f"{RIGHT}<|im_end|>{NOTHING}<|im_end|>"
    said = tokenizer.decode([token for token, own in zip(ids, mask, strict=True) if not own])
    assert said.startswith("\n<|im_start|>user\nCorrect.") and "<|im_start|>assistant\n" in said
    assert "You have 2 turns" in tokenizer.decode(trainer.scored["prompt_ids"][0])


def test_transformers_samples_by_default(tokenizer: Any, evaluator: Evaluator, tmp_path: Path) -> None:
    from ptxgym.adapters.trl import KernelRollouts

    trainer = grpo(tokenizer, tmp_path, rollout_func=KernelRollouts([ROW], evaluator=evaluator))
    trainer.max_completion_length = trainer.generation_config.max_new_tokens = 8
    played = KernelRollouts([ROW], evaluator=evaluator)([PROMPT] * 2, trainer)
    assert [member.reward for member in played["member"]] == [0.0, 0.0]
    assert played["logprobs"] is None, "as where TRL itself samples by transformers"
    for ids, mask in zip(played["completion_ids"], played["env_mask"], strict=True):
        assert len(ids) == len(mask) <= 8
    with pytest.raises(UsageError, match="of none of the rows"):
        KernelRollouts([ROW], evaluator=evaluator)(["another"], trainer)


def test_each_token_is_sampled_with_what_stands_before_it(tokenizer: Any, tmp_path: Path) -> None:
    """Also with gradient checkpointing, which keeps no cache in training mode up to transformers 5.22."""
    import torch

    from ptxgym.adapters.trl import generate

    trainer = grpo(tokenizer, tmp_path)
    model = trainer.model
    trainer.generation_config.do_sample, trainer.generation_config.max_new_tokens = False, 24
    trainer.generation_config.temperature = trainer.generation_config.top_p = trainer.generation_config.top_k = None
    model.gradient_checkpointing_enable()
    model.train()
    asked = [tokenizer(NOTHING)["input_ids"], tokenizer("Hm.")["input_ids"]]
    sampled = generate(asked, trainer)
    assert model.is_gradient_checkpointing and model.training, "it goes on as it was"
    model.gradient_checkpointing_disable()
    for ids, (found, _) in zip(asked, sampled, strict=True):
        said = list(ids)
        with torch.no_grad():  # the whole conversation anew for each token
            while len(said) < len(ids) + 24 and (said == ids or said[-1] not in trainer.eos_token_ids):
                said.append(int(model(torch.tensor([said])).logits[0, -1].argmax()))
        assert found == said[len(ids) :]


def test_a_rollout_that_cannot_begin_has_no_reward(tokenizer: Any, evaluator: Evaluator) -> None:
    from ptxgym.adapters.trl import KernelEnvironment, KernelRollouts, kernel_reward

    row = {**ROW, "options": {**ROW["options"], "init": extract(DOOMED).text}}
    trainer = stopping(tokenizer, room=100)
    answer = (tokenizer(NOTHING)["input_ids"], [-1.0] * len(tokenizer(NOTHING)["input_ids"]))
    played = KernelRollouts([row], lambda conversations, _: [answer for _ in conversations], evaluator)(
        [PROMPT], trainer
    )
    assert played["completion_ids"] == [answer[0]] and kernel_reward(member=played["member"]) == [None]
    environment = KernelEnvironment(evaluator)
    assert environment.reset(**row) is None
    assert "does not count" in asyncio.run(environment.submit_kernel(RIGHT))
    assert kernel_reward(environments=[environment]) == [None]


def test_mixed_conditions_are_refused() -> None:
    from ptxgym.adapters.trl import kernel_reward

    one, other = (Member("task", (secret,), 0.2, frozenset({("conditions", secret)})) for secret in "ab")
    assert kernel_reward(member=[one, one]) == [0.2, 0.2]
    with pytest.raises(MixedConditionsError):
        kernel_reward(member=[one, other])


def test_answers_that_do_not_fit_are_cut_off(tokenizer: Any, evaluator: Evaluator) -> None:
    from ptxgym.adapters.trl import KernelRollouts

    trainer = stopping(tokenizer, room=20)
    ids = tokenizer(RIGHT)["input_ids"]
    rollouts = KernelRollouts([ROW], lambda conversations, _: [(ids, [-1.0] * len(ids))], evaluator)
    played = rollouts([PROMPT], trainer)
    assert played["completion_ids"] == [ids[:20]] and played["env_mask"] == [[1] * 20]
    assert played["member"][0].reward == 0.0 and len(played["member"][0].texts) == 1


@pytest.mark.parametrize(
    ("template", "problem"), [("", "no chat template"), ("{{ messages[-1].content }}", "rewrites earlier turns")]
)
def test_templates_that_cannot_continue_are_refused(
    tokenizer: Any, evaluator: Evaluator, template: str, problem: str
) -> None:
    from ptxgym.adapters.trl import KernelRollouts

    tokenizer = copy.deepcopy(tokenizer)
    tokenizer.chat_template = template
    trainer = stopping(tokenizer, room=2000)
    ids = [*tokenizer(NOTHING)["input_ids"], tokenizer.eos_token_id]
    with pytest.raises(UsageError, match=problem):
        KernelRollouts([ROW], lambda conversations, _: [(ids, [-1.0] * len(ids))], evaluator)([PROMPT], trainer)


def test_answers_by_tool_calls(tokenizer: Any, evaluator: Evaluator, tmp_path: Path) -> None:
    import trl
    from trl import GRPOTrainer

    from ptxgym.adapters.trl import KernelEnvironment

    tokenizer = copy.deepcopy(tokenizer)
    tokenizer.chat_template = (Path(trl.__file__).parent / "chat_templates" / "qwen3.jinja").read_text()

    class Scripted(GRPOTrainer):  # type: ignore[misc]
        """Calls the tool by script, then says that it is done."""

        def _generate_single_turn(self, prompt_ids: Any, *others: Any, **more: Any) -> Any:
            said = []
            for number, ids in zip(self.playing, prompt_ids, strict=True):
                turn = tokenizer.decode(ids).count('<tool_call>\n{"name": "submit_kernel"')
                text = "Done."
                if turn < 2:
                    call = {"name": "submit_kernel", "arguments": {"answer": SCRIPTS[number][turn]}}
                    text = f"<tool_call>\n{json.dumps(call)}\n</tool_call>"
                said.append([*tokenizer(text)["input_ids"], tokenizer.eos_token_id])
            return said, None

        def _generate_and_score_completions(self, inputs: Any) -> Any:
            self.playing = range(4)
            self.scored = super()._generate_and_score_completions(inputs)
            return self.scored

    row = {**ROW, "prompt": [{"role": "user", "content": "You write kernels. "}]}
    trainer = grpo(
        tokenizer, tmp_path, kind=Scripted, row=row, environment_factory=lambda: KernelEnvironment(evaluator)
    )
    trainer.train()
    assert trainer.scored["advantages"].tolist() == pytest.approx(expected_advantages(), abs=1e-4)
    prompt = tokenizer.decode(trainer.scored["prompt_ids"][0])
    assert "You write kernels. " in prompt and "You have 2 turns" in prompt and "submit_kernel" in prompt
    ids, mask = trainer.scored["completion_ids"][1].tolist(), trainer.scored["tool_mask"][1].tolist()
    said = tokenizer.decode([token for token, own in zip(ids, mask, strict=True) if not own])
    assert "<tool_response>\nCorrect." in said and "no kernel file" in said
