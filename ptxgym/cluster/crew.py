"""The workers of a fleet, as the scheduler has them: hired, probed, quarantined, replaced."""

from __future__ import annotations

import functools
import heapq
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Protocol, TypeVar

from ptxgym.cluster.jobs import Hand, Job
from ptxgym.cluster.protocol import Kind, WorkerState
from ptxgym.cluster.work import Role, Worker, WorkerGone
from ptxgym.errors import InfrastructureError, UsageError

HIRE_PAUSE_S = 1.0
"""Before a worker that ended is replaced for a second time in a row; doubles each time."""
HIRE_PAUSE_MOST_S = 30.0
HOPELESS = 3
"""Failed hires in a row for every role, without any worker, after which nobody is made to wait."""
STRIKES = 3
"""Failures in a row after which a worker is not trusted, even if its GPU seems well."""
QUARANTINE_S = 60.0
"""Before a GPU that is not well is tried again; doubles each time."""
QUARANTINE_MOST_S = 3600.0

T = TypeVar("T")
Post = Callable[[Callable[[], None]], None]


class Owner(Protocol):
    """Who is told what becomes of work when workers come and go."""

    def orphaned(self, jobs: Sequence[Job], hand: Hand, error: WorkerGone, now: float) -> None:
        """Take back what a worker was doing when it ended."""

    def displaced(self, jobs: Sequence[Job]) -> None:
        """Take back what a worker was doing that was ended for no fault of theirs."""

    def unserved(self) -> None:
        """Learn that workers of one role will never come; `Crew.denial` says what is left."""


@dataclass
class _Vacancy:
    """A role without a worker."""

    role: Role
    hire_at: float
    hiring: bool = False
    trouble: str = ""
    """Why the last worker ended, or could not be had."""
    waits: str = ""
    """What its next worker waits for, as for room, before it comes up."""
    failures: int = 0
    """Hires in a row."""
    again: bool = False
    """Whether it had a worker before, so that it may have one again."""
    denied: BaseException | None = None
    """Why it will never have one."""

    @property
    def starts(self) -> bool:
        """Whether its worker comes up now, as far as nothing has kept it from that yet."""
        return self.hiring and not self.waits and not self.failures


class Crew:
    """All workers, and the roles that wait for one."""

    def __init__(
        self,
        roles: Sequence[Role],
        owner: Owner,
        counters: Counter[str],
        *,
        clock: Callable[[], float],
        post: Post,
        hire: Callable[[Role], Future[Worker]],
    ) -> None:
        """Make a crew without workers; `advance` hires them. See `Scheduler` for the arguments."""
        self._owner, self._counters = owner, counters
        self._clock, self._post, self._hire = clock, post, hire
        self._vacancies = {role.name: _Vacancy(role, 0.0) for role in roles}
        self._ends_in_row: Counter[str] = Counter()
        self._denials: dict[tuple[Kind, str], BaseException | None] = {}
        """What `denial` has found; forgotten where roles come or go."""
        self.hands: list[Hand] = []

    def enlist(self, roles: Sequence[Role], now: float) -> None:
        """Add roles to the fleet."""
        for role in roles:
            self._vacancies[role.name] = _Vacancy(role, now)
        self._denials.clear()

    def advance(self, now: float) -> None:
        """Begin the hires and probes that are due."""
        for vacancy in self._vacancies.values():
            if not vacancy.hiring and vacancy.hire_at <= now:
                vacancy.hiring = True
                then(self._hire(vacancy.role), self._post, functools.partial(self._hired, vacancy.role))
        for hand in self.hands:
            if hand.probe_at is not None and hand.probe_at <= now:
                self._probe(hand)

    def wake_times(self) -> list[float]:
        """Return when hires and probes are due."""
        times = [hand.probe_at for hand in self.hands if hand.probe_at is not None]
        return times + [vacancy.hire_at for vacancy in self._vacancies.values() if not vacancy.hiring]

    def denial(self, kind: Kind, arch: str) -> BaseException | None:
        """Return why no worker, present or to come, takes such steps; None where one does."""
        if (kind, arch) not in self._denials:
            self._denials[kind, arch] = self._denial(kind, arch)
        return self._denials[kind, arch]

    def _denial(self, kind: Kind, arch: str) -> BaseException | None:
        able = [vacancy for vacancy in self._vacancies.values() if vacancy.role.serves(kind, arch)]
        hired = any(hand.role.serves(kind, arch) for hand in self.hands)
        if hired or any(vacancy.denied is None for vacancy in able):
            return None
        return able[0].denied if able else UsageError(f"no worker of this fleet does step {kind} for {arch}")

    def slots(self, kind: Kind, arch: str) -> int:
        """Return how many such steps the workers that are there take at a time."""
        return sum(hand.role.slots for hand in self.hands if hand.role.serves(kind, arch))

    def able(self, kind: Kind, arch: str, kept: set[Hand]) -> Able:
        """Return those that could take such a step now; see `Able` for `kept`."""
        return Able((hand for hand in self.hands if hand.role.serves(kind, arch)), kept)

    def troubles(self) -> dict[str, list[str]]:
        """Return which roles are vacant, and not about to be filled, by why, where that is known."""
        found: dict[str, list[str]] = {}
        for name, vacancy in self._vacancies.items():
            why = vacancy.waits or vacancy.trouble
            if why and not vacancy.starts:
                found.setdefault(why, []).append(name)
        return found

    def starting(self) -> list[Role]:
        """Return the roles whose worker comes up now, as far as nothing has kept it from that yet."""
        return [vacancy.role for vacancy in self._vacancies.values() if vacancy.starts]

    def awaited(self, role: Role, what: str) -> None:
        """Note what a worker that is being hired waits for; nothing any more, if that is empty."""
        if (vacancy := self._vacancies.get(role.name)) is not None:
            vacancy.waits = what

    def hopeless(self) -> bool:
        """Whether there is no worker, and hiring for each role has failed several times in a row."""
        return not self.hands and all(
            vacancy.denied is not None or vacancy.failures >= HOPELESS for vacancy in self._vacancies.values()
        )

    def did_well(self, hand: Hand) -> None:
        """Note that a worker has come to an outcome."""
        hand.strikes = 0
        self._ends_in_row[hand.role.name] = 0

    def struck(self, hand: Hand, trouble: str, now: float) -> None:
        """Note that a worker's machine failed; try its GPU, or replace it if that is not the first time."""
        hand.strikes += 1
        hand.trouble = trouble
        if Kind.MEASURE in hand.role.kinds:
            if hand.state is WorkerState.IDLE:
                self._probe(hand)
        elif hand.strikes >= STRIKES and hand in self.hands:
            hand.worker.kill()
            jobs = self._vacate(hand, trouble, now)
            for job in jobs:
                job.avoid = hand.worker.place
            self._owner.displaced(jobs)

    def lost(self, hand: Hand, error: WorkerGone, now: float) -> None:
        """Replace a worker that ended."""
        if hand not in self.hands:
            return
        self._counters["deaths"] += 1
        hand.worker.kill()  # of an actor, only what it holds may have ended
        self._owner.orphaned(self._vacate(hand, str(error), now), hand, error, now)

    def dismiss(self, hand: Hand, why: str, now: float) -> None:
        """End a worker that has done nothing wrong, and hire another at once."""
        hand.worker.kill()
        jobs = self._vacate(hand, why, now)
        self._vacancies[hand.role.name].hire_at = now
        self._owner.displaced(jobs)

    def end_all(self) -> None:
        """End all workers; nobody is hired any more."""
        self._vacancies.clear()
        for hand in self.hands:
            hand.worker.kill()
            hand.running.clear()  # a step that has just ended is still to be told
        self.hands.clear()

    def _hired(self, role: Role, done: Future[Worker]) -> None:
        vacancy = self._vacancies.get(role.name)
        error = done.exception()
        if vacancy is None:  # closed meanwhile
            if error is None:
                done.result().kill()
            return
        now = self._clock()
        vacancy.hiring, vacancy.waits = False, ""
        if error is None:
            del self._vacancies[role.name]
            hand = Hand(role, done.result(), now)
            self.hands.append(hand)
            self._counters["hired"] += 1
            then(hand.worker.gone, self._post, functools.partial(self._left, hand))
            if Kind.MEASURE in role.kinds:
                self._probe(hand)
        elif isinstance(error, InfrastructureError) or vacancy.again:  # as from a machine that has lost its GPU
            vacancy.trouble = str(error)
            vacancy.failures += 1
            vacancy.hire_at = now + self._pause(role)
        else:  # no try will ever succeed
            vacancy.trouble, vacancy.hire_at, vacancy.denied = str(error), float("inf"), error
            self._denials.clear()
            self._owner.unserved()

    def _pause(self, role: Role) -> float:
        self._ends_in_row[role.name] += 1
        return min(HIRE_PAUSE_S * 2.0 ** (self._ends_in_row[role.name] - 2), HIRE_PAUSE_MOST_S)

    def _left(self, hand: Hand, done: Future[str]) -> None:
        """Take that a worker has ended, which its steps may not have told, or it had none."""
        self.lost(hand, WorkerGone(done.result()), self._clock())

    def _vacate(self, hand: Hand, trouble: str, now: float) -> list[Job]:
        """Take a worker off the crew; return what it was doing."""
        self.hands.remove(hand)
        pause = 0.0 if self._ends_in_row[hand.role.name] == 0 else self._pause(hand.role)
        self._ends_in_row[hand.role.name] = max(self._ends_in_row[hand.role.name], 1)
        self._vacancies[hand.role.name] = _Vacancy(hand.role, now + pause, trouble=trouble, again=True)
        jobs = [hand.leave(number, now) for number in list(hand.running)]
        return [job for job in jobs if job is not None]

    def _probe(self, hand: Hand) -> None:
        hand.state, hand.probe_at = WorkerState.PROBING, None
        then(hand.worker.probe(), self._post, functools.partial(self._probed, hand))

    def _probed(self, hand: Hand, done: Future[None]) -> None:
        error = done.exception()
        now = self._clock()
        if hand not in self.hands:
            return
        if isinstance(error, WorkerGone):
            self.lost(hand, error, now)
        elif error is not None or hand.strikes >= STRIKES:
            hand.trouble = str(error) if error is not None else hand.trouble
            hand.state = WorkerState.QUARANTINED
            hand.probe_at = now + min(QUARANTINE_S * 2.0**hand.quarantines, QUARANTINE_MOST_S)
            hand.quarantines += 1
            hand.strikes = 0
            self._counters["quarantines"] += 1
        else:
            hand.state = WorkerState.IDLE


class Able:
    """Workers that can do one kind of step, the least busy first."""

    def __init__(self, hands: Iterable[Hand], kept: set[Hand]) -> None:
        """Choose among `hands`, but for those in `kept`, which come free for jobs that must run alone; adds to them."""
        self._kept = kept
        self._hands = [hand for hand in hands if hand.free]
        self._heap = [(len(hand.running), index, hand) for index, hand in enumerate(self._hands)]
        heapq.heapify(self._heap)

    def choose(self, job: Job) -> Hand | None:
        """Return who takes a step of `job`: rather not where it failed, rather who has least to do.

        Where it must run alone and nobody is idle, who would be next is kept for it; ask for such jobs first.
        """
        if job.alone or job.avoid:
            able = [hand for hand in self._hands if hand.free and hand not in self._kept]
            found = min(able, key=lambda hand: _preference(job, hand), default=None)
            if found is None or not (job.alone and found.running):
                return found
            self._kept.add(found)
            return None
        while self._heap:
            busy, index, hand = self._heap[0]
            if not hand.free or hand in self._kept:
                heapq.heappop(self._heap)
            elif busy != len(hand.running):  # it has been given something since
                heapq.heapreplace(self._heap, (len(hand.running), index, hand))
            else:
                return hand
        return None


def _preference(job: Job, hand: Hand) -> tuple[bool, bool, int]:
    """Order hands for a job that has failed: idle, if it must be; elsewhere; with little to do."""
    return (job.alone and bool(hand.running), hand.worker.place == job.avoid, len(hand.running))


def then(future: Future[T], post: Post, take: Callable[[Future[T]], None]) -> None:
    """Have `take` called with the finished future on the owner's thread."""
    future.add_done_callback(lambda done: post(functools.partial(take, done)))
