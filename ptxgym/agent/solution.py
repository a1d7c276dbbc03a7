"""Agents that hand in a proven kernel of the task: the anchors of every table. No record holds that kernel's text."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from ptxgym.agent.config import SolutionConfig
from ptxgym.agent.prompting import Prompting, fenced
from ptxgym.agent.protocol import Identity, Reply, TurnContext
from ptxgym.errors import UsageError
from ptxgym.store.records import Message, Usage
from ptxgym.task import Solution, Task, expected, oracle


class SolutionAgent:
    """Answers every turn with the same proven kernel, at no cost."""

    prompting = Prompting()

    def __init__(self, config: SolutionConfig) -> None:
        self.config = config
        self.name = config.name

    async def reply(self, messages: Sequence[Message], turn: TurnContext, on_text: Callable[[str], None]) -> Reply:
        """Answer with the kernel.

        Raises:
            UsageError: if the task has none for the architecture (variants have no oracle), or this is no checkout.
        """
        chosen = self._chosen(turn.task, turn.arch)
        text = fenced(turn.task.source(chosen)) + "\n"
        return Reply(text, model=self.name, usage=Usage(cost_usd=0.0), solution=f"{turn.task.name}/{chosen.file}")

    def check(self, identity: Identity, task: Task, arch: str) -> None:
        """Accept an episode.

        Raises:
            UsageError: if the task has no such kernel, or it is not here.
        """
        try:
            task.source(self._chosen(task, arch))
        except UsageError as error:
            raise UsageError(
                f"agent {self.name} cannot play {identity.env}, variant {task.variant}: {error}"
            ) from error

    def describe(self) -> dict[str, Any]:
        """Return the settings."""
        return self.config.model_dump(mode="json")

    def _chosen(self, task: Task, arch: str) -> Solution:
        return oracle(task, arch) if self.config.which == "oracle" else expected(task, arch)[0]
