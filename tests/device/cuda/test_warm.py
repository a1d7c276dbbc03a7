"""Things that are started ahead: as many as expected, never more than may wait, each used once."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable

import pytest

from ptxgym.device.cuda.warm import Warm
from ptxgym.errors import InfrastructureError


class Factory:
    def __init__(self) -> None:
        self.numbers = itertools.count(1)
        self.started: list[int] = []
        self.ended: list[int] = []
        self.gate = threading.Event()
        self.gate.set()
        self.failure: Exception | None = None
        self.tried = 0
        self.pool: Warm[int] = Warm(self.start, self.ended.append, most=2)

    def start(self) -> int:
        self.gate.wait(30)
        self.tried += 1
        if self.failure is not None:
            raise self.failure
        number = next(self.numbers)
        self.started.append(number)
        return number


@pytest.fixture
def factory() -> Factory:
    return Factory()


def settle(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.002)


def test_nothing_starts_unasked_and_without_expectation_one_starts_at_once(factory: Factory) -> None:
    assert factory.started == []
    assert factory.pool.take() == 1


def test_what_is_expected_is_started_ahead_and_taken_once(factory: Factory) -> None:
    factory.pool.expect(1)
    settle(lambda: factory.started == [1])
    assert factory.pool.take() == 1
    assert factory.pool.take() == 2


def test_only_so_many_wait(factory: Factory) -> None:
    factory.pool.expect(5)
    settle(lambda: len(factory.started) == 2)
    assert sorted(factory.pool.take() for _ in range(5)) == [1, 2, 3, 4, 5]


def test_what_is_in_use_and_comes_back_is_not_started(factory: Factory) -> None:
    factory.pool.expect(1, coming=1)
    factory.pool.expect(1, coming=1)
    settle(lambda: factory.started == [1])
    assert factory.pool.take() == 1
    assert factory.pool.put(lambda: 70) and factory.pool.take() == 70
    assert factory.pool.take() == 2, "what did not come back is started when it is wanted"
    assert factory.started == [1, 2]


def test_who_uses_as_many_as_may_wait_has_no_more_started(factory: Factory) -> None:
    factory.pool.expect(20, coming=2)
    time.sleep(0.05)
    assert factory.started == []
    factory.pool.expect(1, coming=1)
    settle(lambda: factory.started == [1])
    time.sleep(0.05)
    assert factory.started == [1]


def test_expectation_that_is_taken_back_leaves_its_thing_for_the_next(factory: Factory) -> None:
    factory.pool.expect(1)
    settle(lambda: factory.started == [1])
    factory.pool.expect(-1)
    factory.pool.expect(1)
    assert factory.pool.take() == 1
    assert factory.started == [1]


def test_who_takes_waits_for_the_one_that_is_starting(factory: Factory) -> None:
    factory.gate.clear()
    factory.pool.expect(1)
    threading.Timer(0.05, factory.gate.set).start()
    assert factory.pool.take() == 1
    assert factory.started == [1]


def test_failed_start_is_told_to_who_takes_it_and_to_nobody_else(factory: Factory) -> None:
    factory.failure = InfrastructureError("no room")
    factory.pool.expect(1)
    with pytest.raises(InfrastructureError, match="no room"):
        factory.pool.take()
    factory.failure = None
    assert factory.pool.take() == 1


def test_what_was_used_is_made_ready_again_where_room_is_left(factory: Factory) -> None:
    assert factory.pool.put(lambda: 70)
    factory.gate.clear()
    factory.pool.expect(2)  # one more starts, and does not come
    assert not factory.pool.put(lambda: 71)
    assert factory.pool.take() == 70
    assert factory.pool.put(lambda: 72)
    assert factory.pool.take() == 72  # is ready, and came after the one that is starting
    factory.gate.set()
    assert factory.pool.take() == 1
    factory.pool.put(lambda: 73)
    factory.pool.close()
    assert factory.ended == [73]
    assert not factory.pool.put(lambda: 74)


def test_what_failed_before_is_told_to_nobody_and_takes_no_place(factory: Factory) -> None:
    factory.failure = InfrastructureError("no room")
    factory.pool.expect(2)
    settle(lambda: factory.tried == 2 and all(one.done() for one in factory.pool._waiting))
    factory.pool.expect(-2)  # their evaluations ended early
    factory.failure = None
    factory.pool.expect(2)
    settle(lambda: len(factory.started) == 2)
    assert sorted(factory.pool.take() for _ in range(3)) == [1, 2, 3]


def test_who_may_take_what_waits_gets_nothing_where_all_failed(factory: Factory) -> None:
    factory.failure = InfrastructureError("no room")
    factory.pool.expect(1)
    settle(lambda: factory.tried == 1 and all(one.done() for one in factory.pool._waiting))
    assert factory.pool.take_waiting() is None
    with pytest.raises(InfrastructureError, match="no room"):
        factory.pool.take()  # the control: it is tried now, and fails
    assert factory.tried == 2


def test_renewing_that_failed_takes_no_place(factory: Factory) -> None:
    def fail() -> int:
        raise InfrastructureError("no room")

    assert factory.pool.put(fail)
    assert factory.pool.put(lambda: 70) and factory.pool.put(lambda: 71) and not factory.pool.put(lambda: 72)
    assert [factory.pool.take() for _ in range(2)] == [70, 71]
    assert factory.pool.take() == 1


def test_closing_does_not_wait_for_what_is_starting(factory: Factory) -> None:
    factory.gate.clear()
    factory.pool.expect(1)
    factory.pool.close()
    assert factory.ended == []
    factory.gate.set()
    settle(lambda: factory.ended == [1])


def test_closing_ends_what_waits(factory: Factory) -> None:
    factory.pool.expect(2)
    settle(lambda: len(factory.started) == 2)
    factory.pool.close()
    assert sorted(factory.ended) == [1, 2]
    factory.pool.expect(1)
    with pytest.raises(InfrastructureError, match="ending"):
        factory.pool.take()
    assert len(factory.started) == 2


def test_as_many_as_may_wait_are_started_though_nobody_is_expected(factory: Factory) -> None:
    factory.pool.fill()
    settle(lambda: factory.started == [1, 2])
    factory.pool.fill()
    factory.pool.expect(2)  # those that wait will do
    assert factory.pool.take() == 1
    assert factory.started == [1, 2]
    factory.pool.fill()
    settle(lambda: factory.started == [1, 2, 3])
    factory.pool.close()
    assert factory.ended == [2, 3]
    factory.pool.fill()
    assert factory.started == [1, 2, 3]
