"""A scheduler with a clock and workers that do what the test says, on one thread."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field

from ptxgym.cluster.jobs import Asker, Work
from ptxgym.cluster.protocol import Kind, Request, Ticket
from ptxgym.cluster.scheduler import Limits, Scheduler
from ptxgym.cluster.work import Built, Outcome, Role, Step, Worker, WorkerGone
from ptxgym.verdict import Provenance, Stage, Status, Verdict

BOTH = frozenset({Kind.BUILD, Kind.EMULATE})
CPU = Role("cpu 0", BOTH)
GPU = Role("H200 0", frozenset({Kind.MEASURE}), slots=2, arch="h100", accelerator="H200")
BUILDER = Role("build 0", frozenset({Kind.BUILD}))


def verdict(text: str, status: Status = Status.OK, conditions: str = "") -> Verdict:
    """Return a verdict that tells for which text it is."""
    provenance = Provenance(
        ptxgym="0", task="gemm", task_revision=1, arch="h100", source_sha256=text, conditions=conditions
    )
    return Verdict(stage=Stage.JUDGE, status=status, code="test", message=text, score=0.5, provenance=provenance)


@dataclass(eq=False)
class FakeWorker:
    """Keeps the steps that it is given until the test ends them."""

    name: str
    place: str
    steps: list[tuple[Step, Future[Outcome]]] = field(default_factory=list)
    probes: list[Future[None]] = field(default_factory=list)
    killed: bool = False
    pid: int = 0
    gone: Future[str] = field(default_factory=Future)

    def run(self, step: Step) -> Future[Outcome]:
        assert not self.killed
        future: Future[Outcome] = Future()
        self.steps.append((step, future))
        return future

    def probe(self) -> Future[None]:
        future: Future[None] = Future()
        self.probes.append(future)
        return future

    def kill(self) -> None:
        self.killed = True
        self.die()

    @property
    def texts(self) -> list[str]:
        """Texts in work."""
        return [step.request.text for step, future in self.steps if not future.done()]

    def end(self, text: str, outcome: Outcome | Exception | None = None) -> None:
        """End the step in work on a text: by default a build is handed over, and a run comes to a verdict."""
        step, future = next(
            (step, future) for step, future in self.steps if not future.done() and step.request.text == text
        )
        if isinstance(outcome, Exception):
            future.set_exception(outcome)
        elif outcome is None:
            future.set_result(Built(f"build of {text}") if step.kind is Kind.BUILD else verdict(text))
        else:
            future.set_result(outcome)

    def die(self, why: str = "killed") -> None:
        """End, with all that is in work."""
        for future in [future for _, future in self.steps] + self.probes:
            if not future.done():
                future.set_exception(WorkerGone(why))
        if not self.gone.done():
            self.gone.set_result(why)


class Bench:
    """A scheduler on the test's thread."""

    def __init__(
        self,
        roles: Sequence[Role],
        capacity: int = 100,
        retries: int = 2,
        remembered: Callable[[str], Verdict | None] | None = None,
    ) -> None:
        self.now = 100.0
        self.inbox: deque[Callable[[], None]] = deque()
        self.hires: list[tuple[Role, Future[Worker]]] = []
        self.workers: list[FakeWorker] = []
        self.memory: dict[str, Verdict] = {}
        self.scheduler = Scheduler(
            roles,
            Limits(capacity, retries),
            clock=lambda: self.now,
            post=self.inbox.append,
            hire=self._hire,
            remembered=remembered or self.memory.get,
            remember=self.memory.__setitem__,
            backend="fake",
        )
        self.scheduler.advance()

    def _hire(self, role: Role) -> Future[Worker]:
        future: Future[Worker] = Future()
        self.hires.append((role, future))
        return future

    def staff(self, *places: str) -> list[FakeWorker]:
        """Fill all vacancies that are being hired for; return the new workers."""
        fresh = []
        for index, (role, future) in enumerate(self.hires):
            place = places[index] if index < len(places) else f"node {len(self.workers)}"
            worker = FakeWorker(f"{role.name} #{len(self.workers)}", place)
            self.workers.append(worker)
            fresh.append(worker)
            future.set_result(worker)
        self.hires.clear()
        self.settle()
        return fresh

    def settle(self) -> None:
        """Handle all events, and what follows from them."""
        self.scheduler.advance()
        while self.inbox:
            self.inbox.popleft()()
            self.scheduler.advance()
        self.check()

    def check(self) -> None:
        """Raise if the scheduler holds what cannot be, as a job that nobody waits for, works on, or will end."""
        jobs = self.scheduler._jobs
        sharing = [job for same in self.scheduler._by_build.values() for job in same]
        assert sorted(map(id, sharing)) == sorted(map(id, jobs.values())), "jobs and builds tell of different jobs"
        for key, job in jobs.items():
            assert job.work.key == key
            assert bool(job.askers) == (job.abandoned_at is None), f"{key}: abandoned, or else somebody waits"
            assert job.askers or job.hand is not None, f"{key}: nobody waits for it, and nobody will end it"
        for hand in self.scheduler._crew.hands:
            for job in hand.running.values():
                assert job.hand is hand and jobs.get(job.work.key) is job, f"{job.work.key}: in work, but forgotten"

    def wait(self, seconds: float) -> None:
        """Let time pass, waking up whenever the scheduler asks to be."""
        end = self.now + seconds
        while (at := self.scheduler.wake_at()) is not None and at <= end:
            self.now = max(self.now, at)
            self.scheduler.advance()
            self.settle()
            if at == self.scheduler.wake_at():
                raise AssertionError(f"advance at {at} left something due then: it would spin")
        self.now = end
        self.scheduler.advance()
        self.settle()

    def ask(
        self,
        text: str,
        *,
        last: Kind = Kind.EMULATE,
        started: bool = False,
        deadline_s: float = 1000.0,
        wait_s: float | None = None,
        key: str | None = None,
        arch: str = "h100",
    ) -> Ticket:
        """Ask for a text; its key and its build are named by the text unless `key` says otherwise."""
        request = Request(text=text, task="gemm", arch=arch, workload="emulation", started=started)
        ticket = Ticket(request, key or text, lambda ticket: self.scheduler.withdraw(ticket))
        admit_by = self.now + (deadline_s if wait_s is None else wait_s)
        asker = Asker(ticket, Work(key or text, text, arch, last, "sha"), self.now + deadline_s, admit_by)
        self.scheduler.ask(asker)
        self.settle()
        return ticket

    @property
    def counters(self) -> dict[str, float]:
        """What happened so far."""
        return self.scheduler.status().counters


def one_worker(**limits):
    bench = Bench([CPU], **limits)
    (worker,) = bench.staff()
    return bench, worker
