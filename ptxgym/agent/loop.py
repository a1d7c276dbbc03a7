"""An agent plays an episode: messages, answer, kernel, verdict, record, turn by turn."""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections.abc import Callable
from datetime import UTC, datetime

from ptxgym.agent.events import Answered, Event, Judged, Started, Text, Trouble
from ptxgym.agent.prompting import Exchange, Opening
from ptxgym.agent.protocol import Agent, Identity, NoMoreAnswers, Reply, TurnContext
from ptxgym.agent.withheld import without_text
from ptxgym.episode import Episode, Turn
from ptxgym.errors import InfrastructureError, UsageError
from ptxgym.judging import Overdue
from ptxgym.store.records import EpisodeRecord, EpisodeStatus, Message, TurnRecord, Usage

JUDGE_PAUSES_S = (1.0, 5.0)
"""Before each repetition of an evaluation that the machine failed at."""


async def run_episode(
    episode: Episode, agent: Agent, identity: Identity, on_event: Callable[[Event], None] = lambda event: None
) -> tuple[EpisodeRecord, tuple[TurnRecord, ...]]:
    """Let `agent` play `episode` from its start to its end.

    An answer without a kernel file, cut off or refused, is a turn like any other. An evaluation that the machine
    failed at is repeated twice, unless it was not over by its deadline; where that fails too, or the model's endpoint
    does, the episode ends as `infra` with the turns played so far. An agent that has no more answers ends it as `done`,
    with what was played.

    Args:
        episode: Not yet begun.
        agent: Who answers.
        identity: Names the records.
        on_event: Called in the event loop's thread with all that happens; `Judged` as soon as a turn is complete.

    Raises:
        UsageError: if the episode has begun, or the agent is set up wrongly or has no answer at all.
    """
    if episode.turns:
        raise UsageError(f"the episode has {len(episode.turns)} turns already; start a new one")
    started_at, problem, ended = _now(), "", ""
    opening = await _opening(episode, identity)
    history: list[Exchange] = []
    records: list[TurnRecord] = []
    while not (episode.done or problem or ended):
        try:
            record, exchange = await _play(episode, agent, identity, opening, history, on_event)
        except InfrastructureError as error:
            problem = f"{type(error).__name__}: {error}"
        except NoMoreAnswers as error:
            if not records:
                raise UsageError(f"agent {agent.name}: {error}") from error
            ended = str(error)
        else:
            records.append(record)
            history.append(exchange)
            on_event(Judged(record))
    return _summary(episode, identity, records, started_at, problem, ended), tuple(records)


async def opening_messages(episode: Episode, agent: Agent, identity: Identity) -> tuple[Message, ...]:
    """Return what `agent` reads before the first turn of `episode`."""
    return agent.prompting.messages(await _opening(episode, identity), ())


def prompt_sha256(messages: tuple[Message, ...]) -> str:
    """Return the hex SHA-256 of messages, roles included."""
    return hashlib.sha256("\0".join(f"{each.role}\0{each.content}" for each in messages).encode()).hexdigest()


async def _opening(episode: Episode, identity: Identity) -> Opening:
    prompt = await asyncio.to_thread(episode.prompt)
    return Opening(prompt, episode.config.turns, episode.opening(), identity.canary)


async def _play(
    episode: Episode,
    agent: Agent,
    identity: Identity,
    opening: Opening,
    history: list[Exchange],
    on_event: Callable[[Event], None],
) -> tuple[TurnRecord, Exchange]:
    """Play the next turn."""
    number = len(history) + 1
    messages = agent.prompting.messages(opening, history)
    context = TurnContext(
        env=episode.config,
        task=episode.task,
        arch=episode.config.arch,
        number=number,
        turns_left=episode.turns_left,
        identity=identity,
        last_verdict=history[-1].turn.verdict if history else None,
        on_trouble=lambda message: on_event(Trouble(number, message)),
    )
    on_event(Started(number, messages))
    started_at, start = _now(), time.monotonic()
    reply = await agent.reply(messages, context, lambda text: on_event(Text(number, text)))
    answered = time.monotonic()
    on_event(Answered(number, reply))
    turn = await _judge(episode, reply, context.on_trouble)
    if reply.solution:
        reply, turn = without_text(reply, turn, episode.config.feedback_bytes)
    record = TurnRecord(
        episode=identity.id,
        turn=number,
        parent_turn=number - 1 if history else None,
        messages=messages,
        response=reply.text,
        reasoning=reply.reasoning,
        finish_reason=reply.finish_reason,
        refused=reply.refused,
        model=reply.model,
        source=turn.source,
        notes=turn.notes,
        solution=reply.solution,
        verdict=turn.verdict,
        feedback=turn.feedback,
        score=turn.score,
        reward=turn.reward,
        terms=turn.terms,
        best_score=turn.best_score,
        done=turn.done,
        usage=reply.usage,
        tokens=reply.tokens,
        started_at=started_at,
        model_s=answered - start,
        evaluate_s=time.monotonic() - answered,
        attempts=reply.attempts,
        tags=dict(identity.tags),
    )
    return record, Exchange(reply.text, turn)


async def _judge(episode: Episode, reply: Reply, on_trouble: Callable[[str], None]) -> Turn:
    """Judge an answer; again, where the machine failed."""
    cut_off = reply.finish_reason == "length"
    for pause_s in JUDGE_PAUSES_S:
        try:
            return await episode.aanswer(reply.text, cut_off=cut_off)
        except Overdue:  # it may still be running, and hold this episode
            raise
        except InfrastructureError as error:
            on_trouble(f"the evaluation failed and is repeated in {pause_s:g} s: {error}")
            await asyncio.sleep(pause_s)
    return await episode.aanswer(reply.text, cut_off=cut_off)


def _summary(
    episode: Episode, identity: Identity, records: list[TurnRecord], started_at: str, problem: str, ended: str
) -> EpisodeRecord:
    status: EpisodeStatus = "infra" if problem else "done"
    if not problem and records and all(record.refused for record in records):
        status, problem = "refused", f"the model refused all {len(records)} turns"
    best = max(records, key=lambda record: (record.score, -record.turn), default=None)
    return EpisodeRecord(
        id=identity.id,
        env=identity.env,
        variant=identity.variant,
        agent=identity.agent,
        arm=identity.arm,
        trajectory=identity.trajectory,
        seed=identity.seed,
        status=status,
        turns=len(records),
        best_score=episode.best_score,
        best_turn=None if best is None else best.turn,
        usage=_total([record.usage for record in records]),
        started_at=started_at,
        ended_at=_now(),
        problem=problem,
        ended=ended,
        tags=dict(identity.tags),
    )


def _total(usages: list[Usage]) -> Usage:
    """Return the sum; of none, an unknown cost."""
    return sum(usages[1:], usages[0]) if usages else Usage()


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds")
