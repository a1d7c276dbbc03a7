"""verifiers (and prime-rl, the Environments Hub): a taskset and the environment that plays its tasks.

verifiers finds a taskset as a top-level module: put one that imports `KernelEnv` and `KernelTaskset` from here, and
names both in its `__all__`, on the path; the module's name is the taskset's id. The environment is the user of the
conversation: it judges each answer on this machine and replies with the feedback; the model needs no tools and no
sandbox.

Where the machine keeps failing, the error ends the episode (`episode.ok` False, no reward on the trace): verifiers
retries it under `retries`, trainers drop it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any, Literal

from pydantic import Field

from ptxgym.adapters.group import Member
from ptxgym.adapters.rollout import Rollout, dataset_rows
from ptxgym.evaluator import Evaluator
from ptxgym.extras import missing

try:
    import verifiers.v1 as vf
except ImportError as error:
    raise missing("verifiers", "this adapter needs", "verifiers") from error

__all__ = ["KernelEnv", "KernelTaskset"]

REWARD = "ptxgym"


class KernelTasksetConfig(vf.TasksetConfig):  # type: ignore[misc]  # the library's types are not followed
    """Which rows the taskset yields."""

    split: Literal["train", "eval"] = "train"
    envs: list[str] | None = None
    """Plain ids to keep; by default all."""
    options: dict[str, Any] = Field(default_factory=dict)
    """For all rows, what `Episode` takes, such as `turns`, `knowledge` or `reward`."""


class KernelData(vf.TaskData):  # type: ignore[misc]
    """One row."""

    env: str
    options: dict[str, Any]


class KernelTask(vf.Task[KernelData, vf.State, vf.TaskConfig]):  # type: ignore[misc]
    """A row as a task; the environment rewards it."""


class KernelTaskset(vf.Taskset[KernelTask, KernelTasksetConfig]):  # type: ignore[misc]
    """Rows of ptxgym as tasks."""

    def load(self) -> Iterator[KernelTask]:
        """Yield a task for each environment and variant of the split."""
        chosen = self.config
        for row in dataset_rows(chosen.split, chosen.envs):
            options = {**chosen.options, **row["options"]}
            name = f"{row['env']}/{options['variant']}"
            yield KernelTask(KernelData(name=name, env=row["env"], options=options), chosen.task)


class KernelEnvConfig(vf.EnvConfig):  # type: ignore[misc]
    """The model is the only agent, and has no tools."""

    agent: vf.AgentConfig = vf.AgentConfig(harness={"id": "null"})


class KernelEnv(vf.Env[KernelEnvConfig]):  # type: ignore[misc]
    """Plays the user: the task first, then feedback on each answer."""

    evaluator: Evaluator | None = None
    """Shared by all episodes of the process; by default that of the process."""

    async def run(self, task: KernelTask, agents: Any) -> None:
        """Play one episode and record its reward.

        Raises:
            InfrastructureError: if the machine keeps failing; the episode then has no reward.
        """
        row = {"env": task.data.env, "options": task.data.options}
        evaluator = self.evaluator or Evaluator.shared()
        rollout = await Rollout.aof_row(row, evaluator)
        message = await asyncio.to_thread(rollout.opening)
        async with agents.agent.interaction(task) as interaction:
            while not (segment := await interaction.turn(message)).terminated:
                turn = await rollout.aanswer(segment.last_reply)
                if turn.done:
                    break
                message = turn.feedback
        if not interaction.trace.errors:  # where the model's endpoint failed there is no reward either
            _record(interaction.trace, rollout)


def _record(trace: Any, rollout: Rollout) -> None:
    trace.record_reward(REWARD, rollout.reward)
    trace.record_metrics(rollout.metrics)
    member: Member = rollout.member
    trace.info["ptxgym"] = {
        "task": member.task,
        "circumstances": dict(member.circumstances),
        "turns": [{"score": turn.score, "code": turn.verdict.code} for turn in rollout.episode.turns],
    }
