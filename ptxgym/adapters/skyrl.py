"""SkyRL-gym: `BaseTextEnv` over an episode, under the id `ptxgym`.

`step` has no field for a missing reward. Where the machine keeps failing it raises `InfrastructureError`: the trainer
stops at its last checkpoint rather than learn from a number that is none.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ptxgym.adapters.group import check_conditions
from ptxgym.adapters.rollout import Rollout, dataset_rows
from ptxgym.evaluator import Evaluator
from ptxgym.extras import missing

try:
    from skyrl_gym import register as _register
    from skyrl_gym.envs.base_text_env import BaseTextEnv, BaseTextEnvStepOutput, ConversationType
    from skyrl_gym.envs.registration import registry
    from skyrl_gym.metrics import default_aggregate_metrics
except ImportError as error:
    raise missing("skyrl_gym", "this adapter needs", "skyrl") from error

ENV_ID = "ptxgym"


class KernelTextEnv(BaseTextEnv):  # type: ignore[misc]  # the library is untyped
    """One episode; `extras` is the row: `env`, `options`, `cumulative`, and the trainer's `max_turns`.

    With `cumulative`, `step` returns what the rollout has earned so far, with what a preset that pays at the end owes,
    not what the turn earned: for trainers that read the reward of a rollout's last step alone.
    """

    def __init__(
        self, env_config: Any = None, extras: Mapping[str, Any] | None = None, *, evaluator: Evaluator | None = None
    ) -> None:
        """Begin the episode of a row.

        Raises:
            UsageError: if the row has no environment, or an option is not acceptable.
            InfrastructureError: if the machine fails while judging a kernel to start from.
        """
        super().__init__()
        row = dict(extras or {})
        limits = {"turns": row["max_turns"]} if row.get("max_turns") else {}
        self._rollout = Rollout.of_row(row, evaluator, **limits)
        self._cumulative = bool(row.get("cumulative"))
        self.max_turns = self._rollout.episode.config.turns

    def init(self, prompt: ConversationType) -> tuple[ConversationType, dict[str, Any]]:
        """Return `prompt` with the task as its last user message; a user message of the data set is replaced by it."""
        kept = [message for message in prompt if message["role"] != "user"]
        return [*kept, {"role": "user", "content": self._rollout.opening()}], {}

    def step(self, action: str) -> BaseTextEnvStepOutput:
        """Judge the model's answer.

        Raises:
            UsageError: if the episode is over.
            InfrastructureError: if the machine keeps failing.
        """
        turn = self._rollout.answer(action)
        self.turns = turn.number
        shown = [] if turn.done else [{"role": "user", "content": turn.feedback}]
        about = {"status": str(turn.verdict.status), "code": turn.verdict.code, "score": turn.score, **turn.terms}
        reward = self._rollout.reward if self._cumulative else turn.reward
        return BaseTextEnvStepOutput(observations=shown, reward=reward, done=turn.done, metadata=about)

    def get_metrics(self) -> dict[str, Any]:
        """Return the episode's numbers, and what its group is checked by."""
        member = self._rollout.member
        return {**self._rollout.metrics, "task": member.task, "circumstances": dict(member.circumstances)}

    @staticmethod
    def aggregate_metrics(metrics: list[dict[str, Any]]) -> dict[str, Any]:
        """Average the numbers over episodes.

        Raises:
            MixedConditionsError: if episodes of one task were judged under different conditions.
        """
        check_conditions((each["task"], frozenset(each["circumstances"].items())) for each in metrics)
        averaged: dict[str, Any] = default_aggregate_metrics(metrics)
        return averaged


def register(env_id: str = ENV_ID) -> None:
    """Register the environment with SkyRL-gym; again changes nothing. Each worker process needs it."""
    if env_id not in registry:
        _register(id=env_id, entry_point="ptxgym.adapters.skyrl:KernelTextEnv")


def skyrl_rows(
    split: str = "train", envs: Sequence[str] | None = None, cumulative: bool = False
) -> list[dict[str, Any]]:
    """Return rows of a SkyRL data set, to be written as Parquet.

    Args:
        split: `train`, or `eval` for those held out.
        envs: Plain ids to keep; by default all.
        cumulative: Whether each step is rewarded with what the rollout has earned so far, as
            `generator.step_wise_trajectories` needs it.

    Raises:
        UnknownNameError: if there is no such split.
    """
    return [
        {
            "data_source": ENV_ID,
            "prompt": [{"role": "user", "content": row["prompt"]}],
            "env_class": ENV_ID,
            "env": row["env"],
            "options": row["options"],
            "cumulative": cumulative,
        }
        for row in dataset_rows(split, envs)
    ]
