"""What an agent is: something that answers a conversation with a text that holds a kernel file."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol, runtime_checkable

from ptxgym.agent.prompting import Prompting
from ptxgym.envs import EnvConfig
from ptxgym.errors import InfrastructureError, PtxgymError, UsageError
from ptxgym.store.records import Message, TokenTrace, Usage
from ptxgym.task import Task
from ptxgym.verdict import Verdict


class ModelError(InfrastructureError):
    """Raised when a model's endpoint gave no answer, after all retries; the message says what it did instead."""


class NoMoreAnswers(PtxgymError):
    """Raised when an agent has nothing to hand in for a turn after the first; the episode ends there, as played."""


class MissingSetting(UsageError):
    """Raised when an agent needs a setting that nothing gives it a value for; callers say how theirs is given."""

    def __init__(self, agent: str, setting: str, why: str, example: str) -> None:
        super().__init__(f"agent {agent}: set `{setting}` {why}")
        self.setting = setting
        self.example = example
        """A value such as it might have."""


@dataclass(frozen=True)
class Reply:
    """One answer of an agent; goes to JSON and back through pydantic's `TypeAdapter(Reply)`."""

    text: str
    """The whole answer, in Markdown or a bare kernel file."""
    reasoning: str = ""
    """What the provider gives apart from the answer."""
    finish_reason: str = "stop"
    """The provider's word, or `context_length` where the conversation no longer fits the model."""
    model: str = ""
    """As the provider names what answered."""
    usage: Usage = field(default_factory=Usage)
    """Sums over all attempts of which the provider told it."""
    tokens: TokenTrace | None = None
    attempts: int = 1
    """Calls until one was answered."""
    refused: bool = False
    """Whether the model, or a filter of its provider, would not answer."""
    solution: str = ""
    """Name of the task's proven solution that this is; its text is judged and not put on record."""


@dataclass(frozen=True)
class Identity:
    """Which trajectory of a run an episode is; it names the records."""

    env: str
    """Pinned id."""
    agent: str
    variant: str = "base"
    arm: str = "none"
    """Name of the knowledge arm."""
    trajectory: int = 0
    seed: int = 0
    """Of the model's sampling, where it takes one."""
    canary: str = ""
    """Stands in the first message, so that leaked texts can be found."""
    tags: Mapping[str, str] = field(default_factory=dict)

    @property
    def id(self) -> str:
        """`<env>/<variant>/<agent>/<arm>/<trajectory>`: unique in a run, and the same when it is resumed."""
        return f"{self.env}/{self.variant}/{self.agent}/{self.arm}/{self.trajectory}"


@dataclass(frozen=True)
class TurnContext:
    """What an agent may know of a turn beside the conversation; models are shown the conversation only."""

    env: EnvConfig
    task: Task
    arch: str
    number: int
    """Of this turn, from 1."""
    turns_left: int
    """This turn included."""
    identity: Identity
    last_verdict: Verdict | None = None
    on_trouble: Callable[[str], None] = lambda message: None
    """Takes what went wrong and is tried again, in a sentence."""

    @property
    def seed(self) -> int:
        """Seed of the trajectory."""
        return self.identity.seed


class Agent(Protocol):
    """Answers turns. One agent may play many episodes at once, in one event loop."""

    @property
    def name(self) -> str:
        """As content names it."""

    @property
    def prompting(self) -> Prompting:
        """How prompt and feedback become the conversation; `Prompting()` shows them as they are."""

    async def reply(self, messages: Sequence[Message], turn: TurnContext, on_text: Callable[[str], None]) -> Reply:
        """Answer a conversation.

        Args:
            messages: The conversation, the user's last.
            turn: What else there is to know.
            on_text: Takes pieces of reasoning and answer as they come, for progress alone; where an attempt breaks
                off and is repeated, its pieces come again.

        Raises:
            ModelError: if there is no answer to be had, after the agent's own retries.
            NoMoreAnswers: if it has none for this turn and had one for the turns before.
            UsageError: if the agent is set up wrongly: a missing key, an unknown model.
        """

    def describe(self) -> dict[str, object]:
        """Return the resolved settings without secrets, in JSON's types, with hashes of the templates."""


@runtime_checkable
class Checking(Protocol):
    """An agent that can tell beforehand which episodes it has an answer for."""

    def check(self, identity: Identity, task: Task, arch: str) -> None:
        """Accept an episode.

        Raises:
            UsageError: if there is no answer to its first turn.
        """
