"""What the scheduler keeps of evaluations and workers."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field

from ptxgym.cluster.protocol import Kind, Ticket, WorkerState, WorkerStatus
from ptxgym.cluster.work import Role, Worker


@dataclass(frozen=True)
class Work:
    """What is to be evaluated, with the names under which it is done only once."""

    key: str
    build_key: str
    """Equal for evaluations that share a build."""
    arch: str
    last: Kind
    """The kind of the step that follows the build."""
    task_sha256: str


@dataclass(eq=False)
class Asker:
    """Somebody who waits for a verdict, first perhaps for room in the queue."""

    ticket: Ticket
    work: Work
    deadline: float
    """By the scheduler's clock, as all times here."""
    admit_by: float
    settled: threading.Event = field(default_factory=threading.Event)
    """Set once the asker has been admitted or refused."""
    refused: Exception | None = None

    @property
    def started(self) -> bool:
        """Whether its episode has begun."""
        return self.ticket.request.started


@dataclass(eq=False)
class Job:
    """One evaluation that was admitted, whoever waits for it."""

    work: Work
    number: int
    """In order of admission."""
    askers: list[Asker]
    kind: Kind = Kind.BUILD
    """Of the step in work, or the next."""
    handover: object = None
    hand: Hand | None = None
    """Who works on it."""
    failures: int = 0
    losses: int = 0
    """Of what was built."""
    alone: bool = False
    """Was aboard when a worker with several steps died: runs by itself until it is known whether it was the cause."""
    not_before: float = 0.0
    avoid: str = ""
    """The place where it failed."""
    abandoned_at: float | None = None

    @property
    def started(self) -> bool:
        """Whether the episode of any asker has begun."""
        return any(asker.started for asker in self.askers)

    @property
    def order(self) -> tuple[bool, bool, int, int]:
        """What must run alone first, since others would take each worker before it is idle; then started episodes.

        Of these what feeds a GPU, what is half done, what is new; then who came first.
        """
        measured = self.work.last is Kind.MEASURE
        urgency = 1 if self.kind is not Kind.BUILD else 0 if measured else 2
        return (not self.alone, not self.started, urgency, self.number)


@dataclass(eq=False)
class Hand:
    """A worker that was hired, and what it is doing."""

    role: Role
    worker: Worker
    hired_at: float
    state: WorkerState = WorkerState.IDLE
    """`IDLE` where it takes steps, whether or not it has any."""
    running: dict[int, Job] = field(default_factory=dict)
    """By the step's number."""
    strikes: int = 0
    """Failures of the machine in a row."""
    quarantines: int = 0
    probe_at: float | None = None
    """When the quarantine ends with another probe."""
    done: int = 0
    busy_s: float = 0.0
    busy_since: float | None = None
    trouble: str = ""

    @property
    def free(self) -> int:
        """Steps that it could take now."""
        lonely = any(job.alone for job in self.running.values())
        return 0 if self.state is not WorkerState.IDLE or lonely else self.role.slots - len(self.running)

    def take(self, number: int, job: Job, now: float) -> None:
        """Begin a step."""
        if not self.running:
            self.busy_since = now
        self.running[number] = job
        job.hand = self

    def leave(self, number: int, now: float) -> Job | None:
        """End a step; None if it was not in work."""
        job = self.running.pop(number, None)
        if job is None:
            return None
        job.hand = None
        if not self.running and self.busy_since is not None:
            self.busy_s += now - self.busy_since
            self.busy_since = None
        return job

    def status(self, now: float) -> WorkerStatus:
        """Return what it is doing."""
        working = self.state is WorkerState.IDLE and self.running
        return WorkerStatus(
            name=self.worker.name,
            kinds=tuple(sorted(self.role.kinds)),
            place=self.worker.place,
            pid=self.worker.pid,
            state=WorkerState.BUSY if working else self.state,
            running=len(self.running),
            slots=self.role.slots,
            done=self.done,
            busy_s=self.busy_s + (now - self.busy_since if self.busy_since is not None else 0.0),
            age_s=now - self.hired_at,
            trouble=self.trouble,
        )
