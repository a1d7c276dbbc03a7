"""A launch at a limit is recorded; one step beyond, it is refused with the value, as on a device."""

from __future__ import annotations

import pytest

from ptxgym.build import Build
from ptxgym.verdict import Status
from tests.plan.conftest import Recorder, failed, planned

REFUSED = {
    0: ("launch.grid", "(0, 1, 1)"),
    1: ("launch.grid", "65536"),
    2: ("launch.grid", "2147483648"),
    3: ("launch.block", "(0, 1, 1)"),
    4: ("launch.block", "1025"),
    5: ("launch.block", "1536 threads"),
    6: ("launch.block", "65)"),
    7: ("launch.bounds", "129 threads"),
    8: ("launch.bounds", "(64, 2, 1)"),
    9: ("launch.registers", "1024 threads"),
    10: ("launch.shared_memory", "49153"),
    11: ("launch.shared_memory", "8193"),
    12: ("launch.shared_memory", "232449"),
    13: ("launch.shared_memory", "60001"),
    14: ("launch.cluster_size", "16 CTAs"),
    15: ("launch.cluster_size", "17 CTAs"),
    16: ("launch.cluster_grid", "(5, 1, 1)"),
    17: ("launch.cluster_conflict", "(4, 1, 1)"),
    18: ("launch.cluster_grid", "(2, 1, 1)"),
    19: ("launch.cooperative_too_large", "2113"),
    20: ("launch.arguments", "null"),
    21: ("launch.function", "no kernel"),
    22: ("launch.cluster_size", "preferred cluster (3, 1, 1)"),
    24: ("launch.shared_memory", "191488"),
    26: ("launch.registers", "288 threads"),  # 9 warps count as 12, three in each of four partitions
    27: ("launch.registers", "257 threads"),
    29: ("launch.cluster_size", "4 CTAs, more than the 2 of its __launch_bounds__"),
    30: ("launch.bounds", "__block_size__ with a cluster (2, 1, 1) is not supported: use __cluster_dims__"),
    31: ("launch.cluster_size", "16 CTAs"),
}


@pytest.mark.parametrize("mode", sorted(REFUSED))
def test_refused_launch_and_its_twin(launches: Recorder, mode: int) -> None:
    code, fragment = REFUSED[mode]
    failure = failed(launches(mode, n=1))
    assert (failure.status, failure.code) == (Status.LAUNCH_ERROR, code), failure.message
    assert fragment in failure.message
    assert planned(launches(mode, n=0)).launches


def test_registers_leave_room_for_two_warps_in_each_partition(launches: Recorder, launches_build: Build) -> None:
    """Of 16,384 registers a partition, warps of 169 to 255 a thread take 5,632 to 8,192."""
    (greedy,) = (kernel for kernel in launches_build.kernels if "greedy" in kernel.name)
    assert 168 < greedy.registers <= 255
    for asked in (0, 2):
        assert planned(launches(27, n=asked)).launches[0].block == (256, 1, 1)
    assert planned(launches(28)).launches[0].block == (128, 1, 1)  # its __launch_bounds__


def test_unknown_attribute_is_named(launches: Recorder) -> None:
    failure = failed(launches(23, n=1))
    assert (failure.status, failure.code) == (Status.PLAN_ERROR, "plan.refused_attribute")
    assert "launch attribute cudaLaunchAttributeProgrammaticEvent is" in failure.message
    assert planned(launches(23, n=0)).launches[0].cluster == (2, 1, 1)


def test_a_kernel_may_set_new_memory_up(launches: Recorder) -> None:
    """Before the stream is told of it, if nothing uses it earlier; an output may be in use."""
    plan = planned(launches(25, n=0))
    assert [(launch.stream, launch.after) for launch in plan.launches] == [(1, ()), (0, (0,))]
    used_at_once, output = failed(launches(25, n=1)), failed(launches(25, n=2))
    assert used_at_once.code == output.code == "plan.unordered_start"
    assert "(launch of plain) is on the default stream, and operation 1 (launch of plain)" in used_at_once.message
    assert "which does not wait for what `stream` was given before `run`" in output.message


def test_a_cluster_that_was_allowed_once_is_allowed_when_the_plan_is_replayed(launches: Recorder) -> None:
    """Replay sets attributes before all launches."""
    plan = planned(launches(31, n=0))
    assert [launch.cluster for launch in plan.launches] == [(16, 1, 1), None]
    assert [function.non_portable_cluster for function in plan.functions] == [True]


def test_rows_of_a_memset_that_lie_apart_are_told(launches: Recorder) -> None:
    assert len(planned(launches(32, n=0)).operations) == 20_000
    failure = failed(launches(32, n=1))
    assert failure.code == "plan.operation_limit"
    assert "a memset of 2 rows apart counts as so many: fill them in a kernel" in failure.message


def test_the_driver_says_of_a_kernel_what_the_runtime_says(launches: Recorder) -> None:
    """Compute capability 9.0, a cluster of (2, 1, 1) that must be, no rights beyond 8 CTAs, no carve-out (-1)."""
    (launch,) = planned(launches(33)).launches
    assert (launch.grid, launch.block) == ((90, 1, 2), (1, 1, 1))


def test_clusters_of_no_size_are_an_error(launches: Recorder) -> None:
    """`cudaErrorInvalidValue` is 1."""
    assert planned(launches(34, n=1)).launches[0].block == (2, 2, 1)
    assert planned(launches(34, n=0)).launches[0].block == (1, 3, 1)


def test_kernel_names_are_readable(launches: Recorder) -> None:
    assert failed(launches(4, n=1)).message.startswith("launch of plain: ")
