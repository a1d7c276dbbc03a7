"""The adapter for verl, against the library's agent loop, with a server that answers by script."""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from ptxgym.errors import InfrastructureError, UsageError
from ptxgym.evaluator import Evaluator
from tests.adapters.conftest import DOOMED, NOTHING, RIGHT
from tests.adapters.tiny_policy import tiny_tokenizer

pytestmark = [
    pytest.mark.skipif(not importlib.util.find_spec("verl"), reason="not installed: ptxgym[verl] (torch, ray)"),
    pytest.mark.filterwarnings("ignore"),  # what the library warns of is not ours
]
ROW = {"env": "PTX-Gemm-H100", "options": {"variant": "k64", "turns": 2}}


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    return tiny_tokenizer([RIGHT, NOTHING, "The task and its contract, feedback and all."])


def play(
    tokenizer: Any,
    evaluator: Evaluator,
    script: tuple[str, ...],
    row: Any = ROW,
    logprobs: bool = True,
    steps: tuple[int, ...] = (),
    room: int = 6000,
) -> Any:
    """Have verl make the loop that is registered, and run it."""
    import hydra
    from omegaconf import OmegaConf
    from verl.experimental.agent_loop.agent_loop import DictConfigWrap, _agent_loop_registry
    from verl.workers.rollout.replica import TokenOutput

    import ptxgym.adapters.verl  # noqa: F401 - registers

    class Server:
        def __init__(self) -> None:
            self.asked: list[str] = []

        async def generate(self, *, request_id: str, prompt_ids: list[int], sampling_params: Any) -> TokenOutput:
            turn = len(self.asked)
            ids = [*tokenizer(script[turn])["input_ids"], tokenizer.eos_token_id]
            about = {f"{end}_global_steps": steps[turn] for end in ("min", "max")} if steps else {}
            self.asked.append(tokenizer.decode(prompt_ids))
            return TokenOutput(token_ids=ids, log_probs=[-1.0] * len(ids) if logprobs else None, extra_fields=about)

    server = Server()

    async def run() -> Any:
        config = OmegaConf.create({"actor_rollout_ref": {"rollout": {"response_length": room}}, "data": {}})
        loop = hydra.utils.instantiate(
            config=_agent_loop_registry["ptxgym"], trainer_config=DictConfigWrap(config=config), server_manager=server,
            tokenizer=tokenizer, processor=None, dataset_cls=None, data_config=DictConfigWrap(config.data),
        )  # fmt: skip
        loop.evaluator = evaluator
        return await loop.run({"temperature": 1.0}, **row, raw_prompt=[{"role": "user", "content": "unused"}])

    return asyncio.run(run()), server


def test_a_conversation_of_two_turns(tokenizer: Any, evaluator: Evaluator) -> None:
    output, server = play(tokenizer, evaluator, (NOTHING, RIGHT))
    assert output.reward_score == pytest.approx(0.2) and output.num_turns == 4
    assert "You have 2 turns" in server.asked[0] and "no kernel file" in server.asked[1]
    pairs = list(zip(output.response_ids, output.response_mask, output.response_logprobs, strict=True))
    assert tokenizer.decode([token for token, own, _ in pairs if own]) == f"{NOTHING}<|im_end|>{RIGHT}<|im_end|>"
    assert all(logprob == (-1.0 if own else 0.0) for _, own, logprob in pairs)
    assert server.asked[0] == tokenizer.decode(output.prompt_ids)
    assert output.as_dict()["rm_scores"].sum().item() == pytest.approx(0.2)


def test_without_logprobs_there_are_none(tokenizer: Any, evaluator: Evaluator) -> None:
    output, _ = play(tokenizer, evaluator, (RIGHT, RIGHT), logprobs=False)
    assert output.response_logprobs is None and output.reward_score == pytest.approx(0.2)


def test_a_machine_that_keeps_failing_raises(tokenizer: Any, evaluator: Evaluator) -> None:
    with pytest.raises(InfrastructureError, match="PTX-Gemm-H100/k64 has no reward: WorkerDied: gone"):
        play(tokenizer, evaluator, (RIGHT, DOOMED))
    assert play(tokenizer, evaluator, (RIGHT, NOTHING))[0].reward_score == pytest.approx(0.2)


def advantages(outputs: list[Any]) -> list[float]:
    """What verl makes of a group."""
    import torch
    from verl.trainer.ppo.core_algos import compute_grpo_outcome_advantage

    longest = max(len(output.response_ids) for output in outputs)
    rewards, mask = torch.zeros(len(outputs), longest), torch.zeros(len(outputs), longest)
    for row, output in enumerate(outputs):
        mask[row, : len(output.response_mask)] = torch.tensor(output.response_mask)
        rewards[row, : len(output.response_mask)] = output.as_dict()["rm_scores"]
    found, _ = compute_grpo_outcome_advantage(rewards, mask, np.array(["task"] * len(outputs), dtype=object))
    return [float(row[own.bool()][0]) for row, own in zip(found, mask, strict=True)]


def test_a_lost_rollout_is_no_row_and_changes_no_siblings_advantage(tokenizer: Any, evaluator: Evaluator) -> None:
    outputs = []
    for script in ((NOTHING, NOTHING), (DOOMED, NOTHING), (RIGHT, NOTHING), (NOTHING, RIGHT)):
        with contextlib.suppress(InfrastructureError):
            outputs.append(play(tokenizer, evaluator, script)[0])
    assert [output.reward_score for output in outputs] == pytest.approx([0.0, 0.2, 0.2])
    earned = np.array([0.0, 0.2, 0.2])
    found = advantages(outputs)
    assert found == pytest.approx((earned - earned.mean()) / earned.std(ddof=1), abs=1e-4)
    zero = outputs[0].model_copy(update={"reward_score": 0.0})  # the control: as a row of 0 it would have changed them
    assert advantages([*outputs, zero])[2] > found[2] + 0.1


@pytest.mark.parametrize("room", [0, 30])
def test_a_reward_is_seen_where_room_runs_out_within_feedback(tokenizer: Any, evaluator: Evaluator, room: int) -> None:
    """GAE, verl's default, and REINFORCE++ skip tokens that the policy did not write, and what lies on them."""
    import torch
    from verl.trainer.ppo.core_algos import (
        compute_gae_advantage_return,
        compute_reinforce_plus_plus_outcome_advantage,
    )

    answer = len(tokenizer(RIGHT)["input_ids"]) + 1
    output, server = play(tokenizer, evaluator, (RIGHT, NOTHING), room=answer + room)
    assert len(server.asked) == 1 and output.response_mask == [1] * answer
    rewards, mask = output.as_dict()["rm_scores"][None], torch.tensor([output.response_mask])
    _, returns = compute_gae_advantage_return(rewards, torch.zeros_like(rewards), mask, 1.0, 1.0)
    _, plus = compute_reinforce_plus_plus_outcome_advantage(rewards, mask, config=SimpleNamespace(gamma=1.0))
    assert returns[0].tolist() == plus[0].tolist() == pytest.approx([0.2] * answer)


def test_which_weights_wrote_an_answer_is_kept(tokenizer: Any, evaluator: Evaluator) -> None:
    output, _ = play(tokenizer, evaluator, (NOTHING, RIGHT), steps=(7, 9))
    assert (output.extra_fields["min_global_steps"], output.extra_fields["max_global_steps"]) == (7, 9)
    assert output.extra_fields["policies"] == ("7", "9")
    assert output.reward_score == pytest.approx(0.2)  # it changes no reward
    assert play(tokenizer, evaluator, (RIGHT, NOTHING))[0].extra_fields["policies"] == ("", "")


def test_a_row_names_its_environment(tokenizer: Any, evaluator: Evaluator) -> None:
    with pytest.raises(UsageError, match="in 'env'"):
        play(tokenizer, evaluator, (), row={})
