"""Who does which step when: plain code without threads, processes or Ray, driven by events and a clock.

One thread at a time may call it. An evaluation is a build step, then a step on the emulator or a GPU. Equal work is
done once, whoever asks; it goes on while anybody waits. What the machine fails at is tried again elsewhere; what a
submission does is a verdict, and ends it.
"""

from __future__ import annotations

import functools
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass

from ptxgym.cluster.crew import Able, Crew, Post, then
from ptxgym.cluster.jobs import Asker, Hand, Job, Work
from ptxgym.cluster.protocol import Kind, ServiceStatus, Ticket
from ptxgym.cluster.work import HandoverLost, Outcome, Role, Step, Worker, WorkerGone
from ptxgym.errors import DeadlineExceeded, InfrastructureError, Overloaded
from ptxgym.verdict import Status, Verdict

READY_PER_SLOT = 2
"""Built evaluations that wait per slot of those that run them; beyond that, builds wait."""
RETRY_PAUSE_S = 0.5
"""Before a second try; doubles each time."""
LINGER_S = {Kind.BUILD: 2.0, Kind.EMULATE: 2.0, Kind.MEASURE: 60.0}
"""How long a step that nobody waits for any more may go on before its worker is ended."""


NAMED = 3
"""Roles that a message names where many are in the same trouble."""


@dataclass(frozen=True)
class Limits:
    """How much a service takes on."""

    capacity: int
    """Evaluations that may be accepted and not finished at a time."""
    retries: int
    """How often an evaluation is tried again after failures of the machine."""


class Scheduler:
    """Queues, workers and who waits for what.

    Its owner calls `ask` and `withdraw` for askers, and whatever it is given to `post`; then, and when `wake_at` has
    come, `advance`, once for all that has happened. All on one thread.
    """

    def __init__(
        self,
        roles: Sequence[Role],
        limits: Limits,
        *,
        clock: Callable[[], float],
        post: Post,
        hire: Callable[[Role], Future[Worker]],
        remembered: Callable[[str], Verdict | None],
        remember: Callable[[str, Verdict], None],
        backend: str = "",
    ) -> None:
        """Make a scheduler; workers are hired at the first `advance`.

        Args:
            roles: The fleet.
            limits: How much is taken on.
            clock: Seconds.
            post: Takes a function that is to be called on the owner's thread; may be called on any.
            hire: Begins to start a worker for a role.
            remembered: Returns the verdict that an earlier evaluation came to, by key.
            remember: Keeps a verdict by key.
            backend: Shown in the status.
        """
        self._limits, self._clock, self._post = limits, clock, post
        self._remembered, self._remember, self._backend = remembered, remember, backend
        self._roles = tuple(roles)
        self._jobs: dict[str, Job] = {}
        self._by_build: defaultdict[str, list[Job]] = defaultdict(list)
        self._lobby: list[Asker] = []
        self._numbers = 0
        self._steps = 0
        self._ended: Exception | None = None
        self.counters: Counter[str] = Counter()
        self._crew = Crew(roles, self, self.counters, clock=clock, post=post, hire=hire)

    def ask(self, asker: Asker) -> None:
        """Take an asker: answer from memory, join work in flight, queue it, or let it wait for room."""
        if self._ended is not None:
            _refuse(asker, self._ended)
            return
        self.counters["asked"] += 1
        if not self._admit(asker):
            self._lobby.append(asker)

    def withdraw(self, ticket: Ticket) -> None:
        """Let an asker go who no longer waits."""
        if ticket.future.cancel():
            self.counters["cancelled"] += 1
        for asker in [asker for asker in self._lobby if asker.ticket is ticket]:
            self._lobby.remove(asker)
            asker.settled.set()
        job = self._jobs.get(ticket.key)
        if job is not None:
            self._leave(job, [asker for asker in job.askers if asker.ticket is ticket])

    def enlist(self, roles: Sequence[Role]) -> None:
        """Add roles to the fleet."""
        if self._ended is None:
            self._roles = (*self._roles, *roles)
            self._crew.enlist(roles, self._clock())

    def advance(self) -> None:
        """Do what is due: deadlines, admissions, hires, probes, and steps for whoever is free."""
        now = self._clock()
        self._expire(now)
        self._end_abandoned(now)
        self._let_in()
        self._crew.advance(now)
        self._dispatch(now)

    def wake_at(self) -> float | None:
        """Return when `advance` is due next; None if only an event can change anything."""
        times = self._crew.wake_times()
        times += [min(asker.deadline, asker.admit_by) for asker in self._lobby]
        now = self._clock()
        for job in self._jobs.values():
            times += [asker.deadline for asker in job.askers]
            if job.hand is None and job.not_before > now:
                times.append(job.not_before)
            if job.abandoned_at is not None:
                times.append(job.abandoned_at + LINGER_S[job.kind])
        return min(times, default=None)

    def fail_all(self, error: Exception) -> None:
        """Tell all who wait, now and later, and end all workers."""
        self._ended = error
        for asker in [*self._lobby, *(asker for job in self._jobs.values() for asker in job.askers)]:
            _refuse(asker, error)
        self._lobby.clear()
        self._jobs.clear()
        self._by_build.clear()
        self._crew.end_all()

    def status(self) -> ServiceStatus:
        """Return queues, workers and counters."""
        now = self._clock()
        waiting = Counter(job.kind for job in self._jobs.values() if job.hand is None)
        wanted = Counter(kind for role in self._roles for kind in role.kinds)
        starting = Counter(kind for role in self._crew.starting() for kind in role.kinds)
        return ServiceStatus(
            backend=self._backend,
            waiting={kind: waiting[kind] for kind in Kind},
            lobby=len(self._lobby),
            capacity=self._limits.capacity,
            workers=tuple(hand.status(now) for hand in self._crew.hands),
            wanted={kind: wanted[kind] for kind in Kind},
            starting={kind: starting[kind] for kind in Kind},
            missing=self.troubles(),
            counters=dict(self.counters),
        )

    def troubles(self) -> str:
        """Return why roles are vacant, and not about to be filled, where that is known."""
        said = []
        for trouble, names in self._crew.troubles().items():
            others = f" and {len(names) - NAMED} others" if len(names) > NAMED else ""
            said.append(f"{', '.join(names[:NAMED])}{others}: {trouble}")
        return "; ".join(said)

    def awaited(self, role: Role, what: str) -> None:
        """Note what a worker that is being hired waits for; nothing any more, if that is empty."""
        self._crew.awaited(role, what)

    def hopeless(self) -> bool:
        """Whether no worker has come up, nor is likely to soon."""
        return self._crew.hopeless()

    # Askers

    def _admit(self, asker: Asker) -> bool:
        """Find the asker a place, or tell why there will never be one; False if there is no room."""
        job = self._jobs.get(asker.work.key)
        if job is None and (known := self._remembered(asker.work.key)) is not None:
            self.counters["remembered"] += 1
            _resolve(asker.ticket.future, known)
        elif (denial := self._denial(asker.work, Kind.BUILD if job is None else job.kind)) is not None:
            _refuse(asker, denial)
        elif job is not None:
            self.counters["joined"] += 1
            job.askers.append(asker)
            job.abandoned_at = None
        elif self._room():
            self._numbers += 1
            job = self._jobs[asker.work.key] = Job(asker.work, self._numbers, [asker])
            self._by_build[asker.work.build_key].append(job)
        else:
            return False
        asker.settled.set()
        return True

    def _room(self) -> bool:
        return len(self._jobs) < self._limits.capacity

    def _let_in(self) -> None:
        """Admit who waits for room, as far as there is any; started episodes first."""
        waiting = []
        for asker in sorted(self._lobby, key=lambda asker: not asker.started):
            if self._room() or asker.work.key in self._jobs:
                self._admit(asker)
            else:  # nor looked for in memory, as whenever something happens: each look may open a file
                waiting.append(asker)
        self._lobby = waiting

    def _denial(self, work: Work, first: Kind) -> BaseException | None:
        """Return why no worker, present or to come, can do this work from a step on; None where they can."""
        return self._crew.denial(first, work.arch) or self._crew.denial(work.last, work.arch)

    def _expire(self, now: float) -> None:
        """Let those go whose deadline has passed."""
        for asker in [asker for asker in self._lobby if min(asker.deadline, asker.admit_by) <= now]:
            self._lobby.remove(asker)
            self.counters["refused"] += 1
            _refuse(asker, self._no_room(asker.deadline <= now))
        for job in list(self._jobs.values()):
            late = [asker for asker in job.askers if asker.deadline <= now]
            for asker in late:
                self.counters["expired"] += 1
                _fail(asker.ticket.future, DeadlineExceeded(self._why_late(job, asker)))
            self._leave(job, late)

    def _no_room(self, late: bool) -> InfrastructureError:
        full = f"the service has no room: {self._limits.capacity} evaluations are accepted and not finished"
        if late:
            return DeadlineExceeded(f"no verdict by the deadline; {full}. Nothing is said about the submission")
        return Overloaded(f"{full}; try again later, or ask for fewer at a time")

    def _why_late(self, job: Job, asker: Asker) -> str:
        doing = f"in step {job.kind} on {job.hand.worker.name}" if job.hand else f"waiting for step {job.kind}"
        there = ""
        if job.hand is None:
            if any(role.serves(job.kind, job.work.arch) for role in self._crew.starting()):
                there = ", whose workers are still starting"
            if missing := self.troubles():
                there += f"; workers are missing: {missing}"
        return f"no verdict by the deadline; the evaluation was {doing}{there}. Nothing is said about the submission"

    def _leave(self, job: Job, leaving: Sequence[Asker]) -> None:
        """Take askers off a job; one that nobody waits for is dropped, or ends soon."""
        if not leaving:
            return
        job.askers = [asker for asker in job.askers if asker not in leaving]
        if job.askers:
            return
        if job.hand is None:
            self._drop(job)
        else:
            job.abandoned_at = self._clock()

    def _end_abandoned(self, now: float) -> None:
        """End workers that go on with what nobody waits for."""
        for job in list(self._jobs.values()):
            if job.abandoned_at is None or now < job.abandoned_at + LINGER_S[job.kind] or job.hand is None:
                continue
            self._crew.dismiss(job.hand, f"was ended: nobody waited any more for its step {job.kind}", now)

    # Steps

    def _dispatch(self, now: float) -> None:
        """Give steps to whoever is free, the most urgent first.

        Nobody builds what is being built, nor for a queue that is long already: that would only fill memory.
        """
        free = sum(hand.free for hand in self._crew.hands)
        if not free:
            return
        jobs = self._jobs.values()
        building = {job.work.build_key for job in jobs if job.hand is not None and job.kind is Kind.BUILD}
        ready = Counter((job.kind, job.work.arch) for job in jobs if job.hand is None)
        slots = {last: self._crew.slots(*last) for last in {(job.work.last, job.work.arch) for job in jobs}}
        able: dict[tuple[Kind, str], Able] = {}
        kept: set[Hand] = set()
        waiting = [job for job in jobs if job.hand is None and job.not_before <= now]
        for job in sorted(waiting, key=lambda job: job.order):
            need, after = (job.kind, job.work.arch), (job.work.last, job.work.arch)
            if job.kind is Kind.BUILD and (
                job.work.build_key in building or ready[after] >= READY_PER_SLOT * max(slots[after], 1)
            ):
                continue
            if need not in able:
                able[need] = self._crew.able(*need, kept)
            hand = able[need].choose(job)
            if hand is None:
                continue
            self._start(job, hand, now)
            if job.kind is Kind.BUILD:
                building.add(job.work.build_key)
            free -= 1
            if not free:
                return

    def _start(self, job: Job, hand: Hand, now: float) -> None:
        self._steps += 1
        self.counters["steps"] += 1
        number = self._steps
        hand.take(number, job, now)
        request = job.askers[0].ticket.request
        step = Step(number, job.kind, request, job.work.task_sha256, job.handover)
        then(hand.worker.run(step), self._post, functools.partial(self._stepped, hand, number))

    def _stepped(self, hand: Hand, number: int, done: Future[Outcome]) -> None:
        """Take what came of a step."""
        now = self._clock()
        error = done.exception()
        if isinstance(error, WorkerGone):
            self._crew.lost(hand, error, now)
        elif (job := hand.leave(number, now)) is not None:
            hand.done += 1
            if error is None:
                self._came(job, hand, done.result(), now)
            elif isinstance(error, HandoverLost):
                self._rebuild(job, error, now)
            elif isinstance(error, InfrastructureError):
                self._crew.struck(hand, str(error), now)
                self._retry(job, error, hand.worker.place, now)
            else:
                self._end(job, error)

    def _came(self, job: Job, hand: Hand, outcome: Outcome, now: float) -> None:
        if isinstance(outcome, Verdict) and outcome.status is Status.INFRA:
            self._crew.struck(hand, outcome.message, now)
            self._retry(job, InfrastructureError(outcome.message), hand.worker.place, now)
            return
        self._crew.did_well(hand)
        if isinstance(outcome, Verdict):
            self._remember(job.work.key, outcome)
            self.counters["evaluated"] += 1
            self._end(job, outcome)
            return
        if job.abandoned_at is not None:
            self._drop(job)  # the build stays in the worker's cache
            return
        for other in self._by_build[job.work.build_key]:
            if other is job or (other.kind is Kind.BUILD and other.hand is None):
                other.kind, other.handover = other.work.last, outcome.handover

    def _retry(self, job: Job, error: InfrastructureError, place: str, now: float) -> None:
        """Put a job back that the machine failed at, or give it up."""
        job.failures += 1
        job.avoid = place
        if job.abandoned_at is not None:
            self._drop(job)
            return
        if job.failures > self._limits.retries:
            times = "once" if job.failures == 1 else f"{job.failures} times"
            self.counters["failed"] += 1
            self._end(
                job, InfrastructureError(f"the machine failed {times} at this evaluation, last on {place}: {error}")
            )
            return
        self._again(job, job.failures, now)

    def _rebuild(self, job: Job, error: HandoverLost, now: float) -> None:
        """Have a job built again; neither it nor who should go on with it is to blame, unless that has no end."""
        job.losses += 1
        if job.abandoned_at is not None:
            self._drop(job)
        elif job.losses > self._limits.retries:
            self.counters["failed"] += 1
            self._end(job, InfrastructureError(f"what was built was lost {job.losses} times, last: {error}"))
        else:
            job.kind, job.handover = Kind.BUILD, None
            self.counters["rebuilds"] += 1
            self._again(job, job.losses, now)

    def _again(self, job: Job, times: int, now: float) -> None:
        self.counters["retries"] += 1
        job.not_before = now + RETRY_PAUSE_S * 2.0 ** (times - 1)

    def _drop(self, job: Job) -> None:
        """Forget a job that has ended, or that nobody waits for."""
        del self._jobs[job.work.key]
        sharing = self._by_build[job.work.build_key]
        sharing.remove(job)
        if not sharing:
            del self._by_build[job.work.build_key]

    def _end(self, job: Job, result: Verdict | BaseException) -> None:
        """Answer all who wait for a job."""
        self._drop(job)
        for asker in job.askers:
            if isinstance(result, Verdict):
                _resolve(asker.ticket.future, result)
            else:
                _fail(asker.ticket.future, result)

    # What the crew tells: see `crew.Owner`

    def orphaned(self, jobs: Sequence[Job], hand: Hand, error: WorkerGone, now: float) -> None:
        """Try again what a worker had when it ended: one thing alone is to blame; of several nobody is, yet."""
        aboard = [job for job in jobs if job.work.key in self._jobs]
        for job in aboard:
            if len(aboard) == 1:
                self._retry(job, error, hand.worker.place, now)
            elif job.abandoned_at is not None:
                self._drop(job)
            else:
                job.alone, job.avoid = True, hand.worker.place
                self.counters["retries"] += 1

    def displaced(self, jobs: Sequence[Job]) -> None:
        """Begin again what was aboard a worker that was ended for another reason; what nobody waits for is over."""
        for job in jobs:
            if job.abandoned_at is not None:
                self._drop(job)
            else:
                self.counters["displaced"] += 1

    def unserved(self) -> None:
        """Tell those who wait for what no worker, present or to come, can do; a step in work may end."""
        for asker in list(self._lobby):
            if (denial := self._denial(asker.work, Kind.BUILD)) is not None:
                self._lobby.remove(asker)
                _refuse(asker, denial)
        for job in list(self._jobs.values()):
            if (denial := self._denial(job.work, job.kind)) is not None:
                for asker in job.askers:
                    _fail(asker.ticket.future, denial)
                self._leave(job, job.askers)


def _refuse(asker: Asker, error: BaseException) -> None:
    asker.refused = error if isinstance(error, Exception) else RuntimeError(repr(error))
    _fail(asker.ticket.future, error)
    asker.settled.set()


def _resolve(future: Future[Verdict], verdict: Verdict) -> None:
    if not future.done():
        future.set_result(verdict)


def _fail(future: Future[Verdict], error: BaseException) -> None:
    if not future.done():
        future.set_exception(error if isinstance(error, Exception) else RuntimeError(repr(error)))
