"""What teachers are asked, and how their answers are kept."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

from ptxgym.agent import Agent, Prompting, Reply, TurnContext
from ptxgym.agent.prompting import fenced
from ptxgym.errors import InfrastructureError
from ptxgym.store.records import Message

Item = TypeVar("Item")

REPAIR = """\
The kernel above fails as its feedback says. Repair it: find the cause, and make the smallest change that mends \
it. Keep its structure, its names and whatever is right. It must meet the task by the required instructions; a \
rewrite that avoids them does not count. Answer with the whole file in one fenced block."""

_PATH = """\
Write down how a kernel engineer gets from this failure to that repair: a monologue in the first person, as it \
is thought before the repair is known. Read the feedback, say which part of the kernel it points at, follow what \
the hardware does there, weigh other causes and say why they do not fit, derive the cause, and only then what \
has to change.
The repair below tells you where the thought must arrive. The reader does not see it: never speak of it as \
something that you were given, and quote none of its new lines before the cause is derived. Do not repeat whole \
kernels. No headings, no fenced blocks longer than a few lines, no greeting."""

_PATH_DIRECT = """\
Write down how a kernel engineer gets from this task to that kernel: a monologue in the first person, as it is \
thought before the kernel is written. Work out tiles, stages and memory, barriers and their counts, descriptors \
and the order of operations, weigh alternatives, and decide.
The kernel below tells you where the thought must arrive. The reader does not see it: never speak of it as \
something that you were given, and do not repeat it. No headings, no fenced blocks longer than a few lines, no \
greeting."""


def path_messages(task: str, wrong: str, feedback: str, repair: str) -> tuple[Message, ...]:
    """Return what a reasoning teacher is asked about a repair. What the repair teacher said of it is not shown."""
    parts = (
        _PATH, "# The task", task.strip(), "# The kernel", fenced(wrong), "# Its feedback", feedback.strip(),
        "# The repair", fenced(repair),
    )  # fmt: skip
    return (Message(role="user", content="\n\n".join(parts) + "\n"),)


def direct_messages(task: str, kernel: str) -> tuple[Message, ...]:
    """Return what a reasoning teacher is asked about a kernel without its history."""
    parts = (_PATH_DIRECT, "# The task", task.strip(), "# The kernel to arrive at", fenced(kernel))
    return (Message(role="user", content="\n\n".join(parts) + "\n"),)


class Instructed:
    """A teacher that is told, after the task, to repair and not to rewrite."""

    def __init__(self, teacher: Agent) -> None:
        self._teacher = teacher

    @property
    def name(self) -> str:
        """As content names it."""
        return self._teacher.name

    @property
    def prompting(self) -> Prompting:
        """How prompt and feedback become the conversation."""
        return self._teacher.prompting

    async def reply(self, messages: Sequence[Message], turn: TurnContext, on_text: Callable[[str], None]) -> Reply:
        """Ask the teacher; see `ptxgym.agent.Agent`."""
        last = messages[-1]
        asked = last.model_copy(update={"content": f"{last.content.rstrip()}\n\n{REPAIR}\n"})
        return await self._teacher.reply((*messages[:-1], asked), turn, on_text)

    def describe(self) -> dict[str, object]:
        """Return the settings of the teacher."""
        return self._teacher.describe()


async def settle_all(
    items: Sequence[Item], settle: Callable[[Item], Awaitable[None]], at_once: int, on_trouble: Callable[[str], None]
) -> int:
    """Settle items, some at once; what the machine or an endpoint fails at stays open for the next sitting.

    Returns:
        How many stay open.

    Raises:
        UsageError: if a teacher is set up wrongly; nothing more is begun then.
    """
    gate = asyncio.Semaphore(at_once)
    open_ = 0

    async def one(item: Item) -> None:
        nonlocal open_
        async with gate:
            try:
                await settle(item)
            except InfrastructureError as error:
                open_ += 1
                on_trouble(f"{type(error).__name__}: {error}")

    try:
        async with asyncio.TaskGroup() as group:
            for item in items:
                group.create_task(one(item))
    except BaseExceptionGroup as ended:  # as it was raised by the first that ended the group
        raise ended.exceptions[0] from ended
    return open_
