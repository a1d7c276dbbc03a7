"""What makes a sweep go on after a kill without asking or judging anything twice.

An episode that was cut off is played again from its start: answers come from the journal, verdicts from the turns on
record, and only what follows is asked and judged. Messages are a function of both, so the records come out the same.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from pathlib import Path

from ptxgym import judging
from ptxgym.agent import Agent, Prompting, Reply, TurnContext
from ptxgym.agent.loop import prompt_sha256
from ptxgym.device.cuda.model import Tier
from ptxgym.device.protocol import Device
from ptxgym.evaluator import Evaluator
from ptxgym.serve.remote import RemoteEvaluator
from ptxgym.store.lines import LineWriter, read_lines
from ptxgym.store.records import SCHEMA, Message, TurnRecord
from ptxgym.task import BASE, Task
from ptxgym.variants import asked_for
from ptxgym.verdict import Value, Verdict

REPLIES = "replies.jsonl"


class StoredReply(Value):
    """An answer as it came, on disk before it is judged: it may have cost dollars and half an hour."""

    schema_version: int = SCHEMA
    episode: str
    turn: int
    messages_sha256: str
    """To which messages it answers."""
    reply: Reply


class Journal:
    """The answers of a run."""

    def __init__(self, folder: Path) -> None:
        """Open the journal in the folder of a run that this process writes to.

        Raises:
            InfrastructureError: if it cannot be written.
            ContentError: if it was changed by someone else.
        """
        path = folder / REPLIES
        self._replies = {_key(stored): stored.reply for stored in read_lines(path, StoredReply)}
        self._file = LineWriter(path)

    def get(self, episode: str, turn: int, messages: tuple[Message, ...]) -> Reply | None:
        """Return the answer of a turn to these very messages, if there is one."""
        return self._replies.get((episode, turn, prompt_sha256(messages)))

    def put(self, episode: str, turn: int, messages: tuple[Message, ...], reply: Reply) -> None:
        """Store an answer.

        Raises:
            InfrastructureError: if it cannot be written.
        """
        stored = StoredReply(episode=episode, turn=turn, messages_sha256=prompt_sha256(messages), reply=reply)
        self._file.append(stored)
        self._replies[_key(stored)] = reply

    def close(self) -> None:
        """Close the file."""
        self._file.close()


class JournaledAgent:
    """An agent that is asked only what it has not answered yet, and by so many callers at once."""

    def __init__(self, agent: Agent, journal: Journal, calls: asyncio.Semaphore) -> None:
        self._agent = agent
        self._journal = journal
        self._calls = calls

    @property
    def name(self) -> str:
        """As content names it."""
        return self._agent.name

    @property
    def prompting(self) -> Prompting:
        """How prompt and feedback become the conversation."""
        return self._agent.prompting

    async def reply(self, messages: Sequence[Message], turn: TurnContext, on_text: Callable[[str], None]) -> Reply:
        """Answer from the journal, or ask; see `ptxgym.agent.Agent`."""
        asked = tuple(messages)
        known = self._journal.get(turn.identity.id, turn.number, asked)
        if known is not None:
            return known
        async with self._calls:
            reply = await self._agent.reply(asked, turn, on_text)
        if not reply.solution:  # costs nothing to ask again, and must not be on record
            self._journal.put(turn.identity.id, turn.number, asked, reply)
        return reply

    def describe(self) -> dict[str, object]:
        """Return the settings of the agent."""
        return self._agent.describe()


class RecordedEvaluator(Evaluator):
    """An evaluator that remembers the verdicts of a run, over as many sittings as it took."""

    def __init__(
        self,
        device: str | Device,
        turns: Iterable[TurnRecord] = (),
        *,
        tier: Tier = "standard",
        secret: str | None = None,
        builds: int | None = None,
        runs: int | None = None,
    ) -> None:
        """Make an evaluator; see `Evaluator`.

        Args:
            device: As `Evaluator` takes it.
            turns: Those on record.
            tier: How a GPU measures.
            secret: Of the run; None where the device is a service, which has its own.
            builds: How many submissions may compile at once.
            runs: How many may be executed at once.
        """
        super().__init__(device, tier=tier, secret=secret, builds=builds, runs=runs)
        self._recorded = {_place(turn.verdict): turn.verdict for turn in turns if turn.verdict.provenance.conditions}

    def evaluate(
        self,
        text: str,
        task: Task | str,
        arch: str = "h100",
        workload: str | None = None,
        *,
        variant: str | None = None,
    ) -> Verdict:
        """Return the verdict on record, or judge; see `Evaluator.evaluate`."""
        asked = asked_for(task, variant)
        source = hashlib.sha256(text.encode(errors="surrogatepass")).hexdigest()
        if workload is not None:
            return super().evaluate(text, asked, arch, workload)
        place = source, asked.label, arch
        if place not in self._recorded:  # a second timing would be another verdict, and another conversation
            self._recorded.setdefault(place, super().evaluate(text, asked, arch))
        return self._recorded[place]

    async def aevaluate(
        self,
        text: str,
        task: Task | str,
        arch: str = "h100",
        workload: str | None = None,
        *,
        variant: str | None = None,
    ) -> Verdict:
        """Return the verdict on record, or judge, without blocking the event loop; see `evaluate`."""
        return await judging.of(self).acall(partial(self.evaluate, text, task, arch, workload, variant=variant))


class RecordedRemote(RecordedEvaluator, RemoteEvaluator):
    """The same over a service."""


def _key(stored: StoredReply) -> tuple[str, int, str]:
    return stored.episode, stored.turn, stored.messages_sha256


def _place(verdict: Verdict) -> tuple[str, str, str]:
    """Return on what a verdict of a run depends."""
    found = verdict.provenance
    label = found.task if found.variant == BASE else f"{found.task}/{found.variant}"
    return found.source_sha256, label, found.arch
