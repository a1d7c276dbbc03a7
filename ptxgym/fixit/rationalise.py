"""The way from a failure to its repair, written by a teacher and kept only if it gives nothing away."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

from ptxgym.agent import Agent, Identity, Reply, TurnContext
from ptxgym.bench.journal import JournaledAgent
from ptxgym.envs import EnvConfig, load_env
from ptxgym.errors import UsageError
from ptxgym.fixit.leaks import leaks
from ptxgym.fixit.recipe import RationaleRules
from ptxgym.fixit.records import FailedKernel, Rationale, Repair
from ptxgym.fixit.teaching import direct_messages, path_messages, settle_all
from ptxgym.fixit.workshop import RATIONALES, Workshop
from ptxgym.prompt import render_prompt
from ptxgym.store.records import Message, Usage
from ptxgym.variants import load_variant


@dataclass(frozen=True)
class Pair:
    """A failure and the kernel that passed."""

    failure: FailedKernel
    repair: Repair

    @property
    def config(self) -> EnvConfig:
        """The environment, for the failure's variant."""
        return load_env(self.failure.env).of_variant(self.failure.variant)

    def task_prompt(self) -> str:
        """What an agent reads of the task."""
        return render_prompt(self.config)


def pairs(workshop: Workshop, direct: bool = False) -> tuple[Pair, ...]:
    """Return the failures that were repaired, in the order in which they were mined.

    Args:
        workshop: Where they lie.
        direct: Whether only the first of those counts that were repaired to the same kernel.

    Raises:
        UsageError: if there are none.
    """
    repairs = workshop.repairs()
    found = tuple(
        Pair(failure, repairs[failure.id])
        for failure in workshop.mined
        if failure.id in repairs and repairs[failure.id].status == "repaired"
    )
    if not found:
        raise UsageError(
            f"{workshop.folder}: of {len(workshop.mined)} failures {len(repairs)} are settled and none is repaired; "
            "run `ptxgym fixit repair`, perhaps with another teacher"
        )
    if not direct:
        return found
    first: dict[tuple[str, str, str], Pair] = {}
    for pair in found:
        first.setdefault((pair.failure.env, pair.failure.variant, pair.repair.source), pair)
    return tuple(first.values())


async def rationalise_all(
    workshop: Workshop,
    teacher: Agent,
    *,
    direct: bool = False,
    at_once: int = 4,
    on_rationale: Callable[[Rationale], None] = lambda rationale: None,
    on_trouble: Callable[[str], None] = lambda message: None,
) -> int:
    """Have a rationale written for every repair that has none yet.

    Args:
        workshop: Where the repairs lie and results go.
        teacher: Who writes.
        direct: Whether to write the way from the task to the kernel, for the comparison data.
        at_once: Texts that are asked for at the same time.
        on_rationale: Takes each result as soon as it is on disk.
        on_trouble: Takes what the endpoint failed at.

    Returns:
        How many stay open, for another sitting.

    Raises:
        UsageError: if nothing is repaired, or the teacher is set up wrongly.
    """
    known = workshop.rationales(direct)
    open_ = [pair for pair in pairs(workshop, direct) if pair.failure.id not in known]
    front = workshop.front
    with workshop.writing(RATIONALES, "rationale-direct" if direct else "rationale") as (lines, journal):
        agent = JournaledAgent(teacher, journal, asyncio.Semaphore(at_once))

        async def settle(pair: Pair) -> None:
            result = await rationalise(pair, agent, front.recipe.rationale, front.canaries, direct=direct)
            lines.append(result)
            on_rationale(result)

        return await settle_all(open_, settle, at_once, on_trouble)


async def rationalise(
    pair: Pair, agent: Agent, rules: RationaleRules, canaries: tuple[str, ...], *, direct: bool = False
) -> Rationale:
    """Have one rationale written; asked again, without being told why, where a text cannot be used.

    Raises:
        ModelError: if the teacher's endpoint failed.
        UsageError: if the teacher is set up wrongly.
    """
    failure, kernel = pair.failure, pair.repair.source
    task = pair.task_prompt()
    messages = (
        direct_messages(task, kernel) if direct else path_messages(task, failure.source, failure.feedback, kernel)
    )
    rejected: list[str] = []
    usage = None
    for attempt in range(1, rules.attempts + 1):
        reply = await _ask(pair, agent, messages, attempt, rules.attempts)
        usage = reply.usage if usage is None else usage + reply.usage
        why = _unusable(reply) or rationale_leaks(pair, reply.text, rules, canaries, task=task, direct=direct)
        if not why:
            return Rationale(
                row=failure.id,
                direct=direct,
                text=reply.text.strip(),
                rejected=tuple(rejected),
                teacher=agent.name,
                model=reply.model,
                usage=usage,
            )
        rejected += why
    return Rationale(
        row=failure.id, direct=direct, rejected=tuple(rejected), teacher=agent.name, usage=usage or Usage()
    )


def rationale_leaks(
    pair: Pair, text: str, rules: RationaleRules, canaries: tuple[str, ...], *, task: str, direct: bool
) -> tuple[str, ...]:
    """Return why a rationale of a repair, or a direct one, cannot be used; see `ptxgym.fixit.leaks`."""
    if direct:
        return leaks(text, rules, repair=pair.repair.source, canaries=canaries)
    shown = f"{task}\n{pair.failure.feedback}"
    return leaks(text, rules, repair=pair.repair.source, wrong=pair.failure.source, shown=shown, canaries=canaries)


def _unusable(reply: Reply) -> tuple[str, ...]:
    if reply.refused:
        return ("refused",)
    return ("cut_off",) if reply.finish_reason in ("length", "context_length") else ()


async def _ask(pair: Pair, agent: Agent, messages: tuple[Message, ...], attempt: int, attempts: int) -> Reply:
    failure = pair.failure
    turn = TurnContext(
        env=pair.config,
        task=load_variant(failure.task, failure.variant),
        arch=failure.arch,
        number=attempt,
        turns_left=attempts - attempt + 1,
        identity=Identity(env=failure.env, agent=agent.name, variant=failure.variant, arm=failure.id),
    )
    return await agent.reply(messages, turn, lambda text: None)
