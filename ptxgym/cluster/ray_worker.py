"""A worker as a Ray actor, which holds a worker process on its node, so that what runs there is the same without Ray.

What a build leaves stays in Ray's object store until a worker on any node fetches it; it never passes through the
driver.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import ray
import ray.exceptions

from ptxgym.cluster.process import WorkerProcess
from ptxgym.cluster.protocol import Kind
from ptxgym.cluster.ray_nodes import first_line
from ptxgym.cluster.station import Description, Handover, StationConfig
from ptxgym.cluster.work import Built, HandoverLost, Outcome, Step, WorkerGone
from ptxgym.errors import InfrastructureError, UsageError

T = TypeVar("T")

_RAISED = re.compile(r"^\w*(?:Error|Exception): .+", re.MULTILINE)
"""The last line of a traceback."""


class Host:
    """What runs in an actor: a worker process, and the way to it."""

    def __init__(self, config: StationConfig, name: str) -> None:
        self._config, self._name = config, name

    def where(self) -> str:
        """Return the node: Ray has placed the actor."""
        return str(ray.get_runtime_context().get_node_id())

    def start(self) -> Description:
        """Start the worker process; return what it says of itself, under Ray's name of the node."""
        self._process = WorkerProcess(self._config, self._name)
        return replace(self._process.description, node=f"{self._process.description.node}/{self.where()[:8]}")

    def build(self, step: Step) -> tuple[Outcome | Exception, Mapping[str, bytes] | None]:
        """Build; return the outcome without the files, and the files, which stay in the object store."""
        outcome = self.step(step)
        if isinstance(outcome, Built) and isinstance(outcome.handover, Handover):
            return Built(replace(outcome.handover, files=None)), outcome.handover.files
        return outcome, None

    def step(self, step: Step, files: Mapping[str, bytes] | None = None) -> Outcome | Exception:
        """Do a step; an error is a value, so that it arrives as it is."""
        if isinstance(step.handover, Handover) and files is not None:
            step = replace(step, handover=replace(step.handover, files=files))
        return _tried(lambda: self._process.run(step).result())

    def ended(self) -> str:
        """Return when the worker process has ended: why."""
        return self._process.gone.result()

    def probe(self) -> Exception | None:
        """Try the GPU."""
        return _tried(lambda: self._process.probe().result())


@dataclass(frozen=True)
class _Remote:
    """A build whose files lie in the object store."""

    handover: Handover
    files: Any
    """Ray's reference."""


class RayWorker:
    """An actor, as the scheduler sees it."""

    def __init__(self, actor: Any, name: str, node_id: str, description: Description) -> None:
        """Wrap an actor that has started and described itself."""
        self.name, self.node_id = name, node_id
        self.description, self.place = description, description.place
        self.pid = description.pid
        self._actor = actor
        self.gone: Future[str] = Future()
        """Resolved when the actor, or the process that it holds, has ended: why."""
        _later(actor.ended.remote(), name, str).add_done_callback(self._ended)

    def run(self, step: Step) -> Future[Outcome]:
        """Do a step; see `work.Worker`."""
        if step.kind is Kind.BUILD:
            said, files = self._actor.build.options(num_returns=2).remote(step)
            return _later(said, self.name, lambda value: _referring(value, files))
        if isinstance(step.handover, _Remote):
            plain = replace(step, handover=step.handover.handover)
            return _later(self._actor.step.remote(plain, step.handover.files), self.name, _value)
        return _later(self._actor.step.remote(step), self.name, _value)

    def probe(self) -> Future[None]:
        """Try the GPU; see `work.Worker`."""
        return _later(self._actor.probe.remote(), self.name, _value)

    def _ended(self, done: Future[str]) -> None:
        self.gone.set_result(str(done.exception() or done.result()))

    def kill(self) -> None:
        """End the actor; its worker process ends with it."""
        end(self._actor)


def end(actor: Any) -> None:
    """End an actor, unless the connection to the cluster is gone: the call would make another."""
    with contextlib.suppress(ray.exceptions.RayError):
        if ray.is_initialized():
            ray.kill(actor, no_restart=True)


def why_not_started(error: ray.exceptions.RayError, name: str) -> Exception:
    """Return what to raise where an actor did not come up."""
    if isinstance(error, ray.exceptions.RayTaskError):
        cause = error.cause
        if isinstance(cause, UsageError | InfrastructureError):
            return cause
    raised = _RAISED.findall(str(error))
    said = raised[-1] if raised else first_line(error)
    if "ptxgym" in said and "ModuleNotFoundError" in said:
        said += " (install ptxgym on all nodes, in the environment that `ray start` runs in)"
    return InfrastructureError(f"worker {name} did not start: {said}")


def _tried(function: Callable[[], T]) -> T | Exception:
    try:
        return function()
    except Exception as error:
        return error


def _value(value: Any) -> Any:
    """Return a value, or raise it where it is an error."""
    if isinstance(value, Exception):
        raise value
    return value


def _referring(value: Any, files: Any) -> Outcome:
    """Return a build that refers to its files in the object store."""
    outcome: Outcome = _value(value)
    if isinstance(outcome, Built) and isinstance(outcome.handover, Handover):
        return Built(_Remote(outcome.handover, files))
    return outcome


def _later(reference: Any, worker: str, take: Callable[[Any], T]) -> Future[T]:
    """Return a future of what a reference will hold, with Ray's errors as ours."""
    answer: Future[T] = Future()

    def done(source: Future[Any]) -> None:
        try:
            answer.set_result(take(source.result()))
        except (ray.exceptions.ObjectLostError, ray.exceptions.ObjectFetchTimedOutError) as error:
            answer.set_exception(HandoverLost(f"a build was lost with its node: {first_line(error)}"))
        except ray.exceptions.RayTaskError as error:
            lost = isinstance(error.cause, ray.exceptions.ObjectLostError)
            answer.set_exception(
                HandoverLost(f"a build was lost with its node: {first_line(error)}") if lost else error
            )
        except ray.exceptions.RayError as error:
            answer.set_exception(WorkerGone(f"worker {worker} ended: {first_line(error)}"))
        except Exception as error:
            answer.set_exception(error)

    reference.future().add_done_callback(done)
    return answer
