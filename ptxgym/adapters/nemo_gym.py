"""NeMo Gym: a resources server in its Gymnasium form, one session per rollout, for its `gymnasium_agent`.

A step has no field for a missing reward; its default is 0. Where the machine keeps failing, the server answers with
HTTP 503, so that the rollout ends without a reward: NeMo RL takes a status of 500 and above for a failure of the
infrastructure, and begins the rollout again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, ClassVar

from ptxgym.adapters.group import check_conditions
from ptxgym.adapters.rollout import Rollout, dataset_rows
from ptxgym.errors import InfrastructureError
from ptxgym.evaluator import Evaluator
from ptxgym.extras import missing

try:
    import nemo_gym  # noqa: F401 - to say at import what is missing
    from fastapi import HTTPException
    from nemo_gym.config_types import AggregateMetrics, AggregateMetricsRequest
    from nemo_gym.openai_utils import NeMoGymResponse
    from resources_servers.gymnasium import GymnasiumServer, extract_text
except ImportError as error:
    raise missing("nemo_gym", "this adapter needs", "nemo-gym") from error

AGENT = "ptxgym_agent"
"""The name of the agent that rows ask for."""
MOST_SESSIONS = 4096
"""Sessions that are kept: of a rollout whose model failed, the server never hears again."""


class KernelServer(GymnasiumServer):  # type: ignore[misc]  # the library's types are not followed
    """Plays episodes; a row's fields `env` and `options` say which. `KernelServer.run_webserver()` serves it."""

    evaluator: ClassVar[Evaluator | None] = None
    """Shared by all sessions; by default that of the process."""

    async def reset(self, metadata: dict[str, Any], session_id: str | None = None) -> tuple[str, dict[str, Any]]:
        """Begin the episode of a row and return the task, which the agent appends to the row's input.

        Raises:
            UsageError: if the row has no environment, or an option is not acceptable.
            HTTPException: with status 503, if the machine fails while judging a kernel to start from.
        """
        with _unavailable():
            rollout = await Rollout.aof_row(metadata, self.evaluator or Evaluator.shared())
        while len(self.session_state) >= MOST_SESSIONS:
            self.session_state.pop(next(iter(self.session_state)))
        self.session_state[session_id] = rollout
        return await asyncio.to_thread(rollout.opening), {}

    async def step(
        self, action: NeMoGymResponse, metadata: dict[str, Any], session_id: str | None = None
    ) -> tuple[str | None, float, bool, bool, dict[str, Any]]:
        """Judge the model's answer: feedback, the turn's reward, whether the episode is over, False, and numbers.

        Raises:
            HTTPException: with status 503, if the machine keeps failing, or the session is of another process.
        """
        rollout = self.session_state.get(session_id)
        if rollout is None:
            raise HTTPException(
                503, "the session is not known here: this server was started anew, or is one of several"
            )
        with _unavailable():
            try:
                cut_off = action.incomplete_details is not None
                turn = await rollout.aanswer(extract_text(action), cut_off=cut_off)
            except InfrastructureError:
                await self.close_session(session_id)
                raise
        member = rollout.member
        about = {
            "status": str(turn.verdict.status),
            "code": turn.verdict.code,
            "score": turn.score,
            "metrics": rollout.metrics,
            "task": member.task,
            "circumstances": dict(member.circumstances),
        }
        return None if turn.done else turn.feedback, turn.reward, turn.done, False, about

    async def aggregate_metrics(self, body: AggregateMetricsRequest) -> AggregateMetrics:
        """Aggregate the numbers of rollouts.

        Raises:
            MixedConditionsError: if rollouts of one task were judged under different conditions.
        """
        about = [response["info"] for response in body.verify_responses if "task" in response.get("info", {})]
        check_conditions((each["task"], frozenset(each["circumstances"].items())) for each in about)
        return await super().aggregate_metrics(body)


@contextmanager
def _unavailable() -> Iterator[None]:
    try:
        yield
    except InfrastructureError as error:
        raise HTTPException(503, f"this rollout has no reward: {type(error).__name__}: {error}") from error


def nemo_gym_rows(split: str = "train", envs: Sequence[str] | None = None) -> list[dict[str, Any]]:
    """Return rows of a NeMo Gym data set, to be written as JSON lines.

    Raises:
        UnknownNameError: if there is no such split.
    """
    return [
        {
            "responses_create_params": {"input": []},
            "env": row["env"],
            "options": row["options"],
            "agent_ref": {"type": "responses_api_agents", "name": AGENT},
        }
        for row in dataset_rows(split, envs)
    ]
