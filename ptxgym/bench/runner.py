"""Play what is left of a sweep: many episodes at once, each limit kept, every turn on disk once it is complete."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial

from ptxgym import judging
from ptxgym.agent import Agent, Event, Judged, run_episode
from ptxgym.bench.journal import Journal, JournaledAgent
from ptxgym.bench.recipe import Limits
from ptxgym.bench.sweep import Planned
from ptxgym.episode import Episode
from ptxgym.evaluator import Evaluator
from ptxgym.store.records import EpisodeRecord
from ptxgym.store.writer import RunWriter

INFRA_PAUSE_S = 2.0
"""Before an episode that the machine failed at goes on; doubles each time."""


class Watcher:
    """Is told what happens, in the event loop's thread; by default looks away."""

    def on_event(self, planned: Planned, event: Event) -> None:
        """Take something that happened within an episode."""

    def on_end(self, planned: Planned, record: EpisodeRecord) -> None:
        """Take how an episode ended; it is on disk."""

    def on_retry(self, planned: Planned, record: EpisodeRecord) -> None:
        """Take that the machine failed at an episode, which will go on."""


def left(planned: Sequence[Planned], episodes: Iterable[EpisodeRecord]) -> tuple[Planned, ...]:
    """Return the episodes that have not ended yet; what the machine failed at is tried again."""
    over = {episode.id for episode in episodes if episode.status != "infra"}
    return tuple(one for one in planned if one.id not in over)


def play(
    planned: Sequence[Planned],
    run: RunWriter,
    evaluator: Evaluator,
    agents: Mapping[str, Agent],
    limits: Limits,
    watcher: Watcher | None = None,
) -> None:
    """Play episodes and store them.

    Args:
        planned: What is left to play.
        run: Takes turns and episodes.
        evaluator: Judges; keeps its own limits.
        agents: By label.
        limits: How many calls go out at once, and how often the machine may fail.
        watcher: Is told of progress.

    Raises:
        UsageError: if an agent is set up wrongly.
        InfrastructureError: if the records cannot be written.
    """
    journal = Journal(run.folder)
    try:
        asyncio.run(_Sitting(run, evaluator, agents, limits, watcher or Watcher(), journal).play(planned))
    except BaseExceptionGroup as errors:
        raise _first(errors) from None
    finally:
        journal.close()


class _Sitting:
    """What the episodes of one sitting share."""

    def __init__(
        self,
        run: RunWriter,
        evaluator: Evaluator,
        agents: Mapping[str, Agent],
        limits: Limits,
        watcher: Watcher,
        journal: Journal,
    ) -> None:
        self._run = run
        self._evaluator = evaluator
        self._limits = limits
        self._watcher = watcher
        self._narrowest = min(limits.builds, limits.evaluations)
        """How many evaluations pass at once; the others wait for them within their deadline."""
        calls = asyncio.Semaphore(limits.model_calls)
        self._agents = {label: JournaledAgent(agent, journal, calls) for label, agent in agents.items()}

    async def play(self, planned: Sequence[Planned]) -> None:
        """Play them all. An episode waits for one thing at a time, so this many keep all limits busy."""
        busy = self._limits.model_calls + self._limits.builds + self._limits.evaluations
        players = min(len(planned), busy)
        if not players:
            return
        waiting = iter(planned)
        places = judging.Judging(players, judging.DEADLINE_S * (1 + players // self._narrowest))
        with judging.using(places):
            async with asyncio.TaskGroup() as group:
                for _ in range(players):
                    group.create_task(self._player(waiting))

    async def _player(self, waiting: Iterator[Planned]) -> None:
        for planned in waiting:
            record = await self._episode(planned)
            self._run.episode(record)
            self._watcher.on_end(planned, record)

    async def _episode(self, planned: Planned) -> EpisodeRecord:
        """Play an episode, again from its last complete turn where the machine failed.

        Not where an evaluation was overdue: it may still be running, and would be waited for as long again. The next
        sitting tries it anew.
        """
        record = await self._attempt(planned)
        for number in range(self._limits.infra_retries):
            if record.status != "infra" or record.problem.startswith(f"{judging.Overdue.__name__}: "):
                break
            self._watcher.on_retry(planned, record)
            await asyncio.sleep(INFRA_PAUSE_S * 2**number)
            record = await self._attempt(planned)
        return record

    async def _attempt(self, planned: Planned) -> EpisodeRecord:
        def on_event(event: Event) -> None:
            if isinstance(event, Judged) and not self._run.turn(event.record):
                return  # played before, by this sitting or another
            self._watcher.on_event(planned, event)

        episode = await judging.of(self._evaluator).acall(partial(Episode, planned.env, self._evaluator))
        record, _ = await run_episode(episode, self._agents[planned.label], planned.identity, on_event)
        return record


def concurrently(work: Iterable[Callable[[], None]], limit: int) -> None:
    """Run functions, `limit` at once; the first error ends it, or an interrupt, without waiting for those that run.

    Raises:
        Exception: whatever one of them raises.
    """
    with contextlib.closing(judging.Judging(limit, None).each(work)) as results:
        for _ in results:
            pass


def _first(errors: BaseExceptionGroup[BaseException]) -> BaseException:
    """Return the error that ended it all; the others follow from it."""
    found: BaseException = errors
    while isinstance(found, BaseExceptionGroup):
        found = found.exceptions[0]
    return found
