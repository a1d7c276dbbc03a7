"""Agents that hand in a proven kernel of the task: the anchors of every table."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from ptxgym.agent.config import SolutionConfig
from ptxgym.agent.prompting import Prompting, fenced
from ptxgym.agent.protocol import Reply, TurnContext
from ptxgym.store.records import Message, Usage
from ptxgym.task import expected, oracle


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
        chosen = oracle(turn.task, turn.arch) if self.config.which == "oracle" else expected(turn.task, turn.arch)[0]
        return Reply(fenced(turn.task.source(chosen)) + "\n", model=self.name, usage=Usage(cost_usd=0.0))

    def describe(self) -> dict[str, Any]:
        """Return the settings."""
        return self.config.model_dump(mode="json")
