"""Prompt and feedback → the messages that a model reads: an agent's templates under its context policy.

Messages are a function of prompt, answers and verdicts alone, so that an episode which is played again reads the same.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from ptxgym.agent.extra import jinja
from ptxgym.episode import Turn
from ptxgym.errors import ContentError
from ptxgym.store.records import Message

Context = Literal["full", "last", "folded"]
"""How much of the episode a model reads: `full`, the whole conversation; `last`, the opening and the last answer with
its feedback; `folded`, everything in one user message."""

TEMPLATES = ("system", "opening", "turn", "folded")
WITHOUT_KERNEL = frozenset({"submission.no_code", "submission.truncated_response"})
"""Codes of answers in which no kernel file was found."""
_NO_ANSWER = "(no answer)"
"""Stands for an empty answer in a conversation, where many endpoints accept no empty message."""


@dataclass(frozen=True)
class Opening:
    """What an episode starts with."""

    prompt: str
    turns: int
    """Of the whole episode."""
    start: str = ""
    """Feedback on the kernel that the prompt starts from."""
    canary: str = ""


@dataclass(frozen=True)
class Exchange:
    """A turn that was played: the whole answer, and what became of it."""

    answer: str
    turn: Turn


@dataclass(frozen=True)
class Prompting:
    """A context policy and the texts of templates by name; without any, prompt and feedback are shown as they are."""

    context: Context = "full"
    templates: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def of_folder(cls, folder: Path, context: Context = "full") -> Prompting:
        """Read `system.j2`, `opening.j2`, `turn.j2` and `folded.j2` of an agent's folder.

        Only `system.j2` may be missing where there are any: then there is no system message.

        Raises:
            ContentError: if a template is missing, has another name, or is no Jinja.
        """
        found = {path.stem: path.read_text(encoding="utf-8") for path in sorted(folder.glob("*.j2"))}
        for name in found:
            if name not in TEMPLATES:
                raise ContentError(f"{folder / name}.j2: templates are {', '.join(f'{each}.j2' for each in TEMPLATES)}")
        needed = ("folded",) if context == "folded" else ("opening", "turn")
        for name in needed if found else ():
            if name not in found:
                raise ContentError(f"{folder}: an agent with templates and context {context!r} needs {name}.j2")
        return cls(context, found)

    def hashes(self) -> dict[str, str]:
        """Return the SHA-256 of each template."""
        return {name: hashlib.sha256(text.encode()).hexdigest() for name, text in sorted(self.templates.items())}

    def messages(self, opening: Opening, history: Sequence[Exchange]) -> tuple[Message, ...]:
        """Render what a model reads before the turn that follows `history`.

        Raises:
            ContentError: if a template names a variable that does not exist, or fails otherwise.
            UsageError: if there are templates and jinja2 is not installed.
        """
        found = [Message(role="system", content=self._system(opening))] if "system" in self.templates else []
        if self.context == "folded":
            found.append(Message(role="user", content=self._folded(opening, history)))
        else:
            found.append(Message(role="user", content=self._opening(opening)))
            shown = history if self.context == "full" else history[-1:]
            for exchange in shown:
                before = history[: exchange.turn.number]
                found.append(Message(role="assistant", content=exchange.answer.strip() or _NO_ANSWER))
                found.append(Message(role="user", content=self._turn(opening, before)))
        return (_marked(found[0], opening.canary), *found[1:])

    def _system(self, opening: Opening) -> str:
        return self._render("system", turns=opening.turns, context=self.context)

    def _opening(self, opening: Opening) -> str:
        if not self.templates:
            return "\n".join(filter(None, (opening.prompt, opening.start)))
        return self._render("opening", turns=opening.turns, **_begun(opening))

    def _turn(self, opening: Opening, history: Sequence[Exchange]) -> str:
        """What is said after the last turn of `history`."""
        last = history[-1].turn
        if not self.templates:
            return last.feedback
        return self._render("turn", context=self.context, last=_shown(history[-1]), **_standing(opening, history))

    def _folded(self, opening: Opening, history: Sequence[Exchange]) -> str:
        if not self.templates:
            return "\n".join((self._opening(opening), *(part for each in history for part in _plain(each))))
        return self._render(
            "folded",
            **_begun(opening),
            history=[_shown(exchange) for exchange in history],
            **_standing(opening, history),
        )

    def _render(self, name: str, **variables: Any) -> str:
        jinja2 = jinja()
        environment = jinja2.Environment(undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True)
        environment.filters["fenced"] = fenced
        try:
            text: str = environment.from_string(self.templates[name]).render(variables)
        except jinja2.TemplateError as error:
            line = f" line {error.lineno}" if isinstance(error, jinja2.TemplateSyntaxError) else ""
            known = ", ".join(sorted(variables))
            raise ContentError(f"template {name}.j2{line}: {error.message}; its variables are {known}") from error
        return text.strip() + "\n"


def fenced(source: str) -> str:
    """Put a kernel file into a fenced block that its own text cannot close."""
    longest = max(map(len, re.findall(r"`+", source)), default=0)
    fence = "`" * max(3, longest + 1)
    return f"{fence}cuda\n{source.rstrip()}\n{fence}"


def _begun(opening: Opening) -> dict[str, str]:
    """The texts that an episode starts with, as templates show them."""
    return {"prompt": opening.prompt.strip("\n"), "start": opening.start.strip("\n")}


def _standing(opening: Opening, history: Sequence[Exchange]) -> dict[str, Any]:
    """Where the episode stands after `history`."""
    best = max(history, key=lambda each: (each.turn.score, -each.turn.number)) if history else None
    return {
        "turn": len(history) + 1,
        "turns": opening.turns,
        "turns_left": opening.turns - len(history),
        "best": None if best is None else _shown(best),
    }


def _shown(exchange: Exchange) -> dict[str, Any]:
    """What templates may show of a turn."""
    turn = exchange.turn
    return {
        "number": turn.number,
        "answer": exchange.answer,
        "kernel": "" if turn.verdict.code in WITHOUT_KERNEL else turn.source,
        "feedback": turn.feedback.strip("\n"),
        "score": turn.score,
        "notes": turn.notes,
    }


def _plain(exchange: Exchange) -> tuple[str, str]:
    return exchange.answer, exchange.turn.feedback


def _marked(message: Message, canary: str) -> Message:
    if not canary:
        return message
    line = f"Canary {canary}: texts of this benchmark must not be trained on."
    return message.model_copy(update={"content": f"{message.content.rstrip()}\n\n{line}\n"})
