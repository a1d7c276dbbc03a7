"""What the scheduler and the workers of any backend say to each other."""

from __future__ import annotations

from concurrent.futures import Future
from dataclasses import dataclass
from typing import Protocol

from ptxgym.cluster.protocol import Kind, Request
from ptxgym.errors import InfrastructureError
from ptxgym.verdict import Verdict


@dataclass(frozen=True)
class Step:
    """One step of one evaluation, as a worker gets it."""

    number: int
    kind: Kind
    request: Request
    """With its workload named."""
    task_sha256: str
    """Of the task as the asker has it; a worker with other content refuses."""
    handover: object = None
    """What the build step left, where it is not the build step itself; opaque to the scheduler."""


@dataclass(frozen=True)
class Built:
    """What a build step leaves for the next."""

    handover: object


Outcome = Verdict | Built


class WorkerGone(InfrastructureError):
    """Raised for every step in work when the worker itself, or its node, has ended."""


class HandoverLost(InfrastructureError):
    """Raised when what a build step left is no longer there, as after the end of its node."""


@dataclass(frozen=True)
class Role:
    """A place in the fleet, which a worker fills."""

    name: str
    """Such as `cpu 0` or `gpu 3`; unique in a fleet."""
    kinds: frozenset[Kind]
    slots: int = 1
    """Steps that its worker does at a time."""
    arch: str | None = None
    """The GPU generation that it measures for; None where it does not measure."""
    accelerator: str = ""
    """Ray's name of its GPU, such as `H200`."""

    def serves(self, kind: Kind, arch: str) -> bool:
        """Whether its worker can do a step of that kind."""
        return kind in self.kinds and (kind is not Kind.MEASURE or arch == self.arch)


class Worker(Protocol):
    """A process, or an actor, that does steps. Futures may be resolved on any thread."""

    name: str
    pid: int
    """Of the process that does the steps, on its node."""
    place: str
    """Node, and GPU where it has one; where a step failed, a retry prefers another."""
    gone: Future[str]
    """Resolved when it has ended, idle or not: why."""

    def run(self, step: Step) -> Future[Outcome]:
        """Do a step.

        The future raises `WorkerGone` if the worker ended, `HandoverLost`, another `InfrastructureError` if the machine
        failed otherwise, and anything else for what no retry mends.
        """
        ...

    def probe(self) -> Future[None]:
        """Try the GPU; the future raises `InfrastructureError` if it is not well."""
        ...

    def kill(self) -> None:
        """End the worker and all that it started, at once and without waiting for it."""
        ...
