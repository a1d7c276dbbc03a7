"""What happens while an episode is played, for whoever shows or stores it."""

from __future__ import annotations

from dataclasses import dataclass

from ptxgym.agent.protocol import Reply
from ptxgym.store.records import Message, TurnRecord


@dataclass(frozen=True)
class Started:
    """A turn begins: the model is asked."""

    turn: int
    messages: tuple[Message, ...]


@dataclass(frozen=True)
class Text:
    """A piece of reasoning or answer; an attempt that breaks off sends its pieces again."""

    turn: int
    text: str


@dataclass(frozen=True)
class Trouble:
    """Something failed that is not the submission's fault, and is tried again."""

    turn: int
    message: str


@dataclass(frozen=True)
class Answered:
    """The model has answered; its kernel is judged next."""

    turn: int
    reply: Reply


@dataclass(frozen=True)
class Judged:
    """A turn is complete; nothing of it will change."""

    record: TurnRecord


Event = Started | Text | Trouble | Answered | Judged
