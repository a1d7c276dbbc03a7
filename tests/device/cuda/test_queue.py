from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from ptxgym.device.cuda import lock as locks
from ptxgym.device.cuda.lock import DeviceLock
from ptxgym.device.cuda.queue import MAX_BATCH, Field, Timed, TimingQueue
from ptxgym.device.cuda.timing import Protocol, TimedCall
from ptxgym.errors import InfrastructureError
from ptxgym.verdict import Failure, Stage, Status

QUICK = Protocol(warm_s=0.0, min_pairs=6, max_pairs=6, width=0.01, limit_s=30.0)
FAILED = Failure(stage=Stage.EXECUTE, status=Status.HANG, code="run.hang", message="it hung")


@pytest.fixture
def lock(tmp_path: Path) -> DeviceLock:
    return DeviceLock("GPU-test", tmp_path)


@pytest.fixture
def queue(lock: DeviceLock) -> Iterator[TimingQueue]:
    with TimingQueue(lock, timeout_s=10) as queue:
        yield queue


def place(key: str = "gemm", baselines: Callable[[], Mapping[str, TimedCall]] | None = None) -> Field:
    return Field(key, baselines or (lambda: {"lib": lambda draw: 10.0}), QUICK, draws=1, seed=b"")


def timed(answer: Timed | Failure) -> Timed:
    assert isinstance(answer, Timed), answer
    return answer


def test_one_candidate_is_timed_alone_on_the_gpu(lock: DeviceLock, queue: TimingQueue) -> None:
    seen: list[list[str]] = []

    def call(draw: int) -> float:
        seen.append(lock.holders())
        return 20.0

    answer = timed(queue.time(place(), call))
    assert answer.race.speedup.median == 0.5
    assert answer.batch == 1
    assert {len(holders) for holders in seen} == {1}
    assert all("exclusive" in holders[0] for holders in seen)
    assert answer.lock_held_s > 0
    assert lock.holders() == []


def test_who_waits_for_the_lock_races_in_one_batch(lock: DeviceLock, queue: TimingQueue) -> None:
    calls: list[int] = []
    other: list[int] = []

    def library(draw: int) -> float:
        calls.append(draw)
        return 10.0

    def unlike(draw: int) -> float:
        other.append(draw)
        return 10.0

    fields = [place("gemm", lambda: {"lib": library}), place("attention", lambda: {"lib": unlike})]
    with lock.shared():
        futures = [queue.submit(fields[0], lambda draw, us=us: us) for us in (10.0, 20.0, 40.0)]
        futures.insert(1, queue.submit(fields[1], lambda draw: 5.0))
        time.sleep(0.05)
        assert not any(future.done() for future in futures)
    answers = [timed(future.result(timeout=10)) for future in futures]
    assert [answer.race.speedup.median for answer in answers] == [1.0, 2.0, 0.5, 0.25]
    assert [answer.batch for answer in answers] == [3, 1, 3, 3]
    assert len({answers[index].lock_held_s for index in (0, 2, 3)}) == 1
    assert answers[0].lock_waited_s > 0.04
    assert len(calls) < 3 * 6  # the three shared the baseline's calls
    assert len(other) >= 6


def test_a_batch_has_a_limit(lock: DeviceLock, queue: TimingQueue) -> None:
    with lock.shared():
        futures = [queue.submit(place(), lambda draw: 10.0) for _ in range(MAX_BATCH + 3)]
        time.sleep(0.02)
    batches = [timed(future.result(timeout=10)).batch for future in futures]
    assert batches == [MAX_BATCH] * MAX_BATCH + [3] * 3


def test_failures_and_errors_go_to_their_owners(lock: DeviceLock, queue: TimingQueue) -> None:
    def die(draw: int) -> float:
        raise ZeroDivisionError("a bug in a call")

    with lock.shared():
        futures = [queue.submit(place(), call) for call in (lambda draw: FAILED, die, lambda draw: 10.0)]
        time.sleep(0.02)
    assert futures[0].result(timeout=10) == FAILED
    with pytest.raises(ZeroDivisionError, match="a bug in a call"):
        futures[1].result(timeout=10)
    assert timed(futures[2].result(timeout=10)).race.speedup.median == 1.0


def test_baselines_that_cannot_be_prepared_fail_the_batch_and_not_the_queue(queue: TimingQueue) -> None:
    def broken() -> Mapping[str, TimedCall]:
        raise InfrastructureError("no library here")

    with pytest.raises(InfrastructureError, match="no library here"):
        queue.time(place("broken", broken), lambda draw: 10.0)
    assert timed(queue.time(place(), lambda draw: 10.0)).batch == 1


def test_a_busy_gpu_is_an_infrastructure_failure(lock: DeviceLock) -> None:
    release = threading.Event()

    def hold(held: threading.Event) -> None:
        with lock.shared():
            held.set()
            release.wait()

    held = threading.Event()
    holder = threading.Thread(target=hold, args=(held,))
    holder.start()
    held.wait()
    try:
        with (
            TimingQueue(lock, timeout_s=0.05) as queue,
            pytest.raises(InfrastructureError, match=r"not free within 0\.05"),
        ):
            queue.time(place(), lambda draw: 10.0)
    finally:
        release.set()
        holder.join()


def test_who_holds_the_lock_is_told(lock: DeviceLock, queue: TimingQueue) -> None:
    with lock.shared(), pytest.raises(RuntimeError, match="release the device lock"):
        queue.time(place(), lambda draw: 10.0)


def test_closing_answers_who_waits(lock: DeviceLock) -> None:
    queue = TimingQueue(lock, timeout_s=10)
    with lock.shared():
        first = queue.submit(place("a"), lambda draw: 10.0)
        while not locks._holders(lock._short.turnstile):  # until the queue waits for the lock with it
            time.sleep(0.001)
        second = queue.submit(place("b"), lambda draw: 10.0)
        closing = threading.Thread(target=queue.close)
        closing.start()
        while not queue._closed:
            time.sleep(0.001)
    closing.join()
    assert timed(first.result(timeout=1)).batch == 1
    with pytest.raises(InfrastructureError, match="closed"):
        second.result(timeout=1)
    with pytest.raises(InfrastructureError, match="closed"):
        queue.submit(place(), lambda draw: 10.0)


def test_a_cancelled_candidate_is_left_out(lock: DeviceLock, queue: TimingQueue) -> None:
    calls: list[Any] = []
    with lock.shared():
        future = queue.submit(place(), lambda draw: calls.append(draw) or 1.0)
        other = queue.submit(place(), lambda draw: 10.0)
        assert future.cancel()
    assert timed(other.result(timeout=10)).batch == 1
    assert not calls
