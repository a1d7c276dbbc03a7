"""verl: an agent loop that plays episodes of fenced answers, under the name `ptxgym`.

An agent loop rather than a tool: verl makes and releases a tool per call, and turns what a tool raises into a reward of
0. verl has no field for a missing reward, and its advantages take in every row of a group. Where the machine keeps
failing the loop therefore raises `InfrastructureError`, which ends that step of training: no sibling is compared with a
number that is none.
"""

from __future__ import annotations

import asyncio
from typing import Any
from uuid import uuid4

from ptxgym.adapters.conversation import Conversation
from ptxgym.adapters.rollout import Rollout
from ptxgym.errors import InfrastructureError
from ptxgym.evaluator import Evaluator
from ptxgym.extras import missing

try:
    from verl.experimental.agent_loop.agent_loop import AgentLoopBase, AgentLoopMetrics, AgentLoopOutput, register
except ImportError as error:
    raise missing("verl", "this adapter needs", "verl") from error


NEWEST = "max_global_steps"
"""Where verl's servers say which version of the weights wrote an answer."""


@register("ptxgym")
class KernelAgentLoop(AgentLoopBase):  # type: ignore[misc]
    """Plays one episode; a row's columns `env` and `options` say which, `agent_name` is `ptxgym`."""

    evaluator: Evaluator | None = None
    """Shared by all loops of a worker; by default that of the process."""

    async def run(self, sampling_params: dict[str, Any], **row: Any) -> AgentLoopOutput:
        """Play an episode.

        Raises:
            UsageError: if the row has no environment, or the tokenizer no chat template that only appends.
            InfrastructureError: if the machine keeps failing; the rollout has no reward.
        """
        rollout = await Rollout.aof_row(row, self.evaluator or Evaluator.shared())
        play = await asyncio.to_thread(Conversation, rollout, "", self.tokenizer, self.rollout_config.response_length)
        request = uuid4().hex  # one for all turns: the server finds their common prefix in its cache
        about = dict[str, Any]()
        while play.open:
            said = await self.server_manager.generate(
                request_id=request, prompt_ids=play.ids, sampling_params=sampling_params
            )
            newest = {NEWEST: said.extra_fields[NEWEST]} if NEWEST in said.extra_fields else {}
            about = {**said.extra_fields, **about, **newest}  # as verl's own loops: of the first turn, but the newest
            await play.answer((said.token_ids, said.log_probs), policy=str(newest.get(NEWEST, "")))
        if rollout.lost:
            raise InfrastructureError(f"a rollout of {play.member.task} has no reward: {rollout.lost}")
        member = rollout.member
        return AgentLoopOutput(
            prompt_ids=play.prompt_ids,
            response_ids=play.completion_ids,
            response_mask=play.mask,
            response_logprobs=play.logprobs,
            reward_score=rollout.reward,
            num_turns=2 * len(member.texts),
            metrics=AgentLoopMetrics(),
            extra_fields={
                **about,
                "ptxgym": rollout.metrics,
                "circumstances": dict(member.circumstances),
                "policies": member.policies,
            },
        )
