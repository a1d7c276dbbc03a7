"""Hiring, and a fleet that follows its cluster, on a backend that is none."""

from __future__ import annotations

import dataclasses
import queue
import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future
from typing import Any

import pytest

from ptxgym.cluster import engine
from ptxgym.cluster.jobs import Work
from ptxgym.cluster.protocol import Kind, Request, Ticket
from ptxgym.cluster.results import Results
from ptxgym.cluster.scheduler import Limits
from ptxgym.cluster.station import Description
from ptxgym.cluster.work import Outcome, Role, Step
from ptxgym.errors import InfrastructureError, ResourcesMissing, UsageError
from ptxgym.verdict import Verdict
from tests.cluster.fakes import CPU, GPU, FakeWorker


class Nowhere:
    name = "nowhere"

    def trouble(self) -> str:
        return ""

    def publish(self, status: object) -> None:
        pass

    def close(self) -> None:
        pass


class Hired(FakeWorker):
    """A fake worker that has described itself."""

    description = Description("here", {"ptxgym": "1"})

    def __init__(self, name: str, place: str) -> None:
        super().__init__(name, place)
        self.ended = threading.Event()

    def kill(self) -> None:
        super().kill()
        self.ended.set()


def looks(*errors: Exception) -> Iterator[Any]:
    """What a cluster says at each look: first these errors, then that there is room for one worker."""
    yield from errors
    while True:
        yield [CPU]


@pytest.mark.parametrize("error", [ResourcesMissing("no GPU is there now"), InfrastructureError("the head is silent")])
def test_a_fleet_goes_on_following_though_a_look_fails(monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    monkeypatch.setattr(engine, "GROW_S", 0.01)
    hired, said = threading.Event(), looks(error, error)

    def look() -> list[Role]:
        found = next(said)
        if isinstance(found, Exception):
            raise found
        return found

    def hire(role: Role, tell: object) -> Any:
        assert role is CPU
        hired.set()
        raise InfrastructureError("nobody is to be had")

    backend: Any = Nowhere()
    made = engine.Engine([], Limits(1, 0), Results(None), backend, hire, {}, look)
    assert hired.wait(30)
    made.close()


@pytest.mark.parametrize("others", [True, False], ids=["another comes up", "nobody else"])
def test_a_role_that_can_never_be_filled_is_no_obstacle_to_the_others(others: bool) -> None:
    tried = threading.Event()

    def hire(role: Role, tell: object) -> Any:
        if role is CPU:
            assert tried.wait(30)
            if others:
                return Hired("cpu", "here")
        raise UsageError(f"no {role.name} here")

    backend: Any = Nowhere()
    made = engine.Engine([GPU, CPU], Limits(1, 0), Results(None), backend, hire, {})
    with pytest.raises(UsageError, match="no H200 0 here"):
        made.measuring("h100", 30)
    tried.set()
    if others:
        assert made.versions(30) == {"ptxgym": "1"}
    else:
        with pytest.raises(UsageError, match="no cpu 0 here"):
            made.versions(30)
    made.close()


@pytest.mark.parametrize("error", [UsageError("no such GPU"), InfrastructureError("the GPU is not well")])
def test_a_gpu_that_never_comes_up_is_no_obstacle_to_measuring_on_another(error: Exception) -> None:
    tried = threading.Event()

    def hire(role: Role, tell: object) -> Any:
        if role is GPU:
            tried.set()
            raise error
        assert tried.wait(30)
        return Hired("H200 1", "there")

    backend: Any = Nowhere()
    other = dataclasses.replace(GPU, name="H200 1")
    made = engine.Engine([GPU, other], Limits(1, 0), Results(None), backend, hire, {})
    assert made.measuring("h100", 30) == Hired.description
    made.close()


def test_a_node_that_joins_brings_what_nobody_had(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine, "GROW_S", 0.01)
    other, told = dataclasses.replace(GPU, name="H200 1"), threading.Event()

    def hire(role: Role, tell: object) -> Any:
        if role is GPU:
            raise UsageError("no such GPU")
        return Hired("H200 1", "there")

    def look() -> list[Role]:
        return [GPU, other] if told.is_set() else [GPU]

    backend: Any = Nowhere()
    made = engine.Engine([GPU], Limits(1, 0), Results(None), backend, hire, {}, look)
    with pytest.raises(UsageError, match="no such GPU"):
        made.measuring("h100", 30)
    with pytest.raises(UsageError, match="no such GPU"):
        made.versions(30)
    told.set()
    while not made.status().workers:
        time.sleep(0.01)
    assert made.measuring("h100", 30) == Hired.description and made.versions(30) == {"ptxgym": "1"}
    made.close()


def started(hire: Any) -> engine.Engine:
    """An engine that hires one worker."""
    backend: Any = Nowhere()
    return engine.Engine([CPU], Limits(1, 0), Results(None), backend, hire, {})


def test_a_worker_that_comes_up_after_the_service_was_closed_is_ended() -> None:
    worker, trying, up = Hired("cpu", "here"), threading.Event(), threading.Event()

    def hire(role: Role, tell: object) -> Hired:
        trying.set()
        assert up.wait(30)
        return worker

    made = started(hire)
    assert trying.wait(30)
    made.close()
    assert not made._thread.is_alive()  # nobody reads what comes now
    up.set()
    assert worker.ended.wait(10)


def test_a_worker_that_comes_up_while_the_service_is_closed_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    worker, up, taken = Hired("cpu", "here"), threading.Event(), threading.Event()

    class Inbox(queue.SimpleQueue):  # type: ignore[type-arg]
        """Lets the worker come up when the thread has seen that nothing is left to do."""

        def put(self, item: Any, *_: Any) -> None:
            super().put(item)
            if up.is_set():
                taken.set()

        def get_nowait(self) -> Any:
            try:
                return super().get_nowait()
            except queue.Empty:
                if made._scheduler._ended is not None and not up.is_set():
                    up.set()
                    assert taken.wait(30)
                raise

    def hire(role: Role, tell: object) -> Hired:
        assert up.wait(30)
        return worker

    monkeypatch.setattr(engine.queue, "SimpleQueue", Inbox)
    made = started(hire)
    made.close()
    assert worker.ended.wait(10)


def test_a_thread_that_wakes_up_while_it_is_closed_does_not_leave_before_all_are_told() -> None:
    worker = Hired("cpu", "here")
    made = started(lambda role, tell: worker)
    made.versions(30)

    class Over(threading.Event):
        def set(self) -> None:
            super().set()
            made._inbox.put(lambda: None)
            made._thread.join(1)  # it does not end here

    made._over = Over()
    made.close()
    assert worker.ended.wait(10)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_worker_that_comes_up_after_the_scheduler_has_failed_is_ended() -> None:
    worker, up = Hired("cpu", "here"), threading.Event()

    def hire(role: Role, tell: object) -> Hired:
        assert up.wait(30)
        return worker

    made = started(hire)
    made._inbox.put(lambda: 1 / 0)  # type: ignore[func-returns-value, arg-type]
    made._thread.join(30)
    assert made.failed
    up.set()
    assert worker.ended.wait(10)
    made.close()


def test_a_worker_that_comes_up_in_time_is_kept_until_the_end() -> None:
    worker = Hired("cpu", "here")
    made = started(lambda role, tell: worker)
    made.versions(30)
    while not made.status().workers:
        time.sleep(0.01)
    assert not worker.killed
    made.close()
    assert worker.ended.wait(10)


class Instant(Hired):
    def run(self, step: Step) -> Future[Outcome]:
        done = super().run(step)
        self.end(step.request.text)
        return done


class Failing(Results):
    """Cannot keep two verdicts: one for what may happen to a disk, one for a bug."""

    def put(self, key: str, verdict: Verdict) -> None:
        if key == "disk":
            raise InfrastructureError("the disk is full")
        if key == "bug":
            raise ValueError("lone surrogates")
        super().put(key, verdict)


def test_a_verdict_that_cannot_be_kept_is_told_all_the_same() -> None:
    backend: Any = Nowhere()
    results = Failing(None)
    made = engine.Engine([CPU], Limits(9, 0), results, backend, lambda role, tell: Instant("cpu", "here"), {})
    for unsaved, text in enumerate(["disk", "bug", "well"], start=1):
        ticket = Ticket(Request(text=text, task="gemm"), text, made.withdraw)
        made.ask(ticket, Work(text, text, "h100", Kind.EMULATE, "sha"), 60, None)
        assert ticket.result(30).message == text
        assert made.status().counters["unsaved"] == min(unsaved, 2)
    assert results.get("well") is not None and results.get("bug") is None
    made.close()


def test_a_worker_whose_thread_cannot_be_started_is_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    start, failed = threading.Thread.start, []

    def fails_once(thread: threading.Thread) -> None:
        if thread.name.startswith("ptxgym-hire") and not failed:
            failed.append(thread)
            raise RuntimeError("can't start new thread")
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", fails_once)
    made = started(lambda role, tell: Hired("cpu", "here"))
    assert made.versions(30) == {"ptxgym": "1"} and failed
    made.close()
