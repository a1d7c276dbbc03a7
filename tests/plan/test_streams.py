"""What host code did to order its streams becomes edges; what it left open is refused, with the way out."""

from __future__ import annotations

import pytest

from ptxgym.plan import LaunchPlan, plan_table
from ptxgym.verdict import Status
from tests.plan.conftest import Recorder, failed, planned


def edges(plan: LaunchPlan) -> list[tuple[int, tuple[int, ...]]]:
    """Stream and `after` of every operation."""
    return [(operation.stream, operation.after) for operation in plan.operations]


def test_driver_events(streams: Recorder) -> None:
    assert edges(planned(streams(0))) == [(0, ()), (3, (0,)), (0, (1,))]


def test_edges_are_minimal(streams: Recorder) -> None:
    """Two launches on the left, two on the right, one more there after both, two on the given stream after that."""
    expected = [(0, ()), (3, (0,)), (3, ()), (4, (0,)), (4, ()), (4, (2,)), (0, (5,)), (0, ())]
    assert edges(planned(streams(1))) == expected


def test_an_event_stands_for_what_was_before_its_last_record(streams: Recorder) -> None:
    assert edges(planned(streams(2))) == [(0, ()), (3, ()), (0, (1,))]


@pytest.mark.parametrize("way", range(6))
def test_the_host_waits(streams: Recorder, way: int) -> None:
    assert edges(planned(streams(3, n=way))) == [(3, ()), (0, (0,))]


def test_without_the_host_waiting_nothing_is_ordered(streams: Recorder) -> None:
    assert failed(streams(3, n=9)).code == "plan.unjoined_stream"


def test_the_legacy_default_stream_and_blocking_streams_wait_for_each_other(streams: Recorder) -> None:
    assert edges(planned(streams(4))) == [(3, ()), (1, (0,)), (2, (1,)), (3, (1,)), (0, (2, 3))]
    assert edges(planned(streams(5, n=0))) == [(3, ()), (1, (0,))]
    failure = failed(streams(5, n=1))
    assert failure.code == "plan.unordered_start" and "operation 1" in failure.message


@pytest.mark.parametrize(("mode", "name"), [(6, "on the default stream"), (7, "on the per-thread default stream")])
def test_default_streams_are_not_the_given_one(streams: Recorder, mode: int, name: str) -> None:
    failure = failed(streams(mode))
    assert (failure.status, failure.code) == (Status.PLAN_ERROR, "plan.unordered_start")
    assert "launch of plain" in failure.message and name in failure.message
    assert "pass `stream` as the fourth launch argument" in failure.message


@pytest.mark.parametrize(("mode", "operation"), [(8, 1), (10, 0), (18, 0)])
def test_a_stream_that_waits_for_nothing(streams: Recorder, mode: int, operation: int) -> None:
    failure = failed(streams(mode))
    assert failure.code == "plan.unordered_start"
    assert f"operation {operation} (launch of plain" in failure.message and "is on stream 3" in failure.message
    assert "cudaStreamWaitEvent(side, fork, 0)" in failure.message


@pytest.mark.parametrize(("n", "operation"), [(0, 0), (2, 2)])
def test_a_stream_that_nothing_waits_for(streams: Recorder, n: int, operation: int) -> None:
    failure = failed(streams(9, n=n))
    assert (failure.status, failure.code) == (Status.PLAN_ERROR, "plan.unjoined_stream")
    assert f"operation {operation} (launch of plain" in failure.message and "is on stream 3" in failure.message
    assert "cudaStreamWaitEvent(stream, join, 0)" in failure.message
    assert edges(planned(streams(9, n=1))) == [(3, ()), (0, (0,))]


def test_constants_may_be_uploaded_before_a_kernel_uses_them(streams: Recorder) -> None:
    assert edges(planned(streams(11, n=0))) == [(1, ()), (0, (0,)), (0, ())]
    assert edges(planned(streams(11, n=2))) == [(1, ()), (0, (0,)), (1, (1,)), (0, (2,))]
    for n in (1, 3):
        failure = failed(streams(11, n=n))
        assert failure.code == "plan.unordered_start" and "operation 2 (upload to table)" in failure.message
        assert "cudaMemcpy[ToSymbol]Async(..., stream)" in failure.message


def test_a_new_workspace_may_be_filled_at_any_time(streams: Recorder) -> None:
    assert edges(planned(streams(12, n=0))) == [(0, ()), (1, ()), (0, (1,))]
    failure = failed(streams(12, n=1))
    assert failure.code == "plan.unordered_start" and "upload to B" in failure.message


@pytest.mark.parametrize(
    ("n", "expected"), [(0, [(1, ()), (0, (0,))]), (2, [(3, ()), (0, (0,))]), (6, [(3, ()), (0, (0,))])]
)
def test_new_memory_may_be_set_up_before_the_stream_is_told(
    streams: Recorder, n: int, expected: list[tuple[int, tuple[int, ...]]]
) -> None:
    """The host waits for the device or for the side stream, or the given stream waits for the side stream."""
    assert edges(planned(streams(19, n=n))) == expected


@pytest.mark.parametrize(("n", "where"), [(1, "on the default stream"), (8, "on stream 3")])
def test_who_uses_new_memory_waits_for_its_set_up(streams: Recorder, n: int, where: str) -> None:
    """The memset is told, not its user: there the way out is. The second user gets a pointer in memory."""
    failure = failed(streams(19, n=n))
    assert failure.code == "plan.unordered_start"
    assert failure.message.startswith(f"operation 0 (memset of workspace0) is {where}, and operation {1 + n // 8} ")
    assert "does not wait for it" in failure.message
    if n == 1:
        assert "call cudaMemsetAsync(..., stream)" in failure.message


@pytest.mark.parametrize(
    ("n", "what"),
    [
        (3, "operation 0 (memset of workspace0)"),  # from a pool, in the order of a stream
        (4, "operation 1 (memset of workspace0)"),  # a kernel uses it already
        (5, "operation 0 (copy to workspace0)"),  # of what may still be written
        (7, "operation 0 (launch of plain"),  # by a kernel that reads a variable
        (9, "in call 2 of `run`"),  # memory of the call before
    ],
)
def test_set_up_of_what_may_be_in_use(streams: Recorder, n: int, what: str) -> None:
    failure = failed(streams(19, n=n))
    assert failure.code == "plan.unordered_start" and what in failure.message
    assert "which does not wait for what `stream` was given before `run`" in failure.message


@pytest.mark.parametrize(
    ("mode", "what", "way"), [(13, "memset of B", "cudaMemsetAsync"), (14, "copy to B", "cudaMemcpyAsync")]
)
def test_calls_without_a_stream_that_do_not_wait(streams: Recorder, mode: int, what: str, way: str) -> None:
    failure = failed(streams(mode))
    assert failure.code == "plan.unordered_start"
    assert what in failure.message and f"call {way}(..., stream)" in failure.message


def test_host_functions_are_refused(streams: Recorder) -> None:
    failure = failed(streams(15))
    assert failure.code == "plan.refused_call" and "cudaLaunchHostFunc" in failure.message


@pytest.mark.parametrize(("n", "limit"), [(1, "more than 128 streams"), (2, "more than 20000 records")])
def test_limits(streams: Recorder, n: int, limit: str) -> None:
    failure = failed(streams(16, n=n))
    assert failure.code == "plan.operation_limit" and limit in failure.message
    assert edges(planned(streams(16, n=0))) == [(0, ())]


def test_flags_of_streams(streams: Recorder) -> None:
    """`cudaStreamNonBlocking` is 1, `cudaErrorInvalidValue` too."""
    assert planned(streams(17)).launches[0].grid == (2, 1, 2)


def test_edges_are_shown_hashed_and_kept(streams: Recorder) -> None:
    plan = planned(streams(9, n=1))
    assert LaunchPlan.model_validate_json(plan.model_dump_json()) == plan
    rows = plan_table(plan).splitlines()
    assert rows[-3].split()[:3] == ["#", "stream", "after"]
    assert [row.split()[:3] for row in rows[-2:]] == [["0", "3", "-"], ["1", "0", "0"]]
    first, second = plan.operations
    assert plan.model_copy(update={"operations": (first, second.model_copy(update={"after": ()}))}).hash != plan.hash
