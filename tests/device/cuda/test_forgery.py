"""Events against the host's clock: what an honest kernel on a busy machine shows, and what only forgery does."""

from __future__ import annotations

import pytest

from ptxgym.device.cuda.forgery import EVENT_SLACK_US, contradiction
from tests.device.cuda.fakes import FakeCall

HONEST = FakeCall(time_us=700.0, device_wall_us=800.0)
LATE = FakeCall(time_us=701.0, device_wall_us=9000.0)
FORGED = FakeCall(time_us=100.0, device_wall_us=800.0)
LITTLE = FakeCall(time_us=600.0, device_wall_us=800.0)


def found(*calls: FakeCall, timed: bool = True, operations: int = 1) -> bool:
    return contradiction(calls, operations, timed=timed) is not None


def test_most_wake_ups_may_be_late() -> None:
    assert not found(*[LATE] * 5, HONEST, HONEST, HONEST)
    assert not found(HONEST)
    assert not found(LATE) and not found(LATE, LATE)
    assert found(LATE, LATE, LATE), "the control"


@pytest.mark.parametrize("honest", [[], [HONEST] * 3, [LITTLE] * 3], ids=["all", "most", "most, and the rest a little"])
def test_who_forges_the_median_is_found(honest: list[FakeCall]) -> None:
    assert found(*[FORGED] * 4, *honest)


def test_who_forges_less_than_half_moves_no_median() -> None:
    assert not found(*[FORGED] * 3, *[HONEST] * 5)


def test_judged_calls_may_be_late_but_not_longer_than_the_hosts_time() -> None:
    assert not found(LATE, timed=False)
    assert found(FakeCall(time_us=900.0, device_wall_us=800.0), timed=False)


@pytest.mark.parametrize("time_us", [0.0, -5.0, float("nan")])
def test_times_are_positive(time_us: float) -> None:
    assert found(FakeCall(time_us=time_us, device_wall_us=100.0), timed=False)


def test_many_launches_take_the_host_some_time_each() -> None:
    call = FakeCall(time_us=500.0, device_wall_us=525.0 + EVENT_SLACK_US + 90.0)
    assert found(*[call] * 3, operations=2) and not found(*[call] * 3, operations=10)
