"""Later calls in one process: what host code keeps may serve every call, and may not belong to one."""

from __future__ import annotations

import tracemalloc

import pytest

from ptxgym.build import Build
from ptxgym.plan import LaunchPlan, device_profile, record, record_twice
from ptxgym.plan.kept import Kept
from ptxgym.plan.later import Asked, compare
from ptxgym.plan.merge import Merged
from ptxgym.plan.model import Blob, Launch, PointerRef
from ptxgym.verdict import Failure, Status
from tests.plan.conftest import ARGUMENTS, LIMITS, SUBMISSIONS, compiled, failed, planned

SMALL, LARGE = 16, 24

STALE = {
    1: (
        "other buffers, the sizes of call 1) does not do",
        "parameter 0",
        "still points to A of call 1",
        "make tensor maps",
    ),
    3: ("call 2 of `run`", "launch of plain", "is missing", "every call must do the whole work"),
    4: ("call 2 of `run` in one process (other buffers and sizes)", "grid of operation 0", "from the arguments"),
    6: ("call 2", "workspace0, which an earlier call allocated with fewer bytes", "enlarge it"),
    8: ("the upload to where", "still points to B of call 1"),
    10: ("parameter 1", "still points to B of call 1"),
    14: ("left out here", "still points to A of call 1"),
    15: ("(memset) is missing", "every call must"),
    20: ("call 3 of `run`", "grid of operation 0 (launch of plain) is another"),
    21: ("call 2 of `run`", "grid of operation 0 (launch of plain) is another"),
    22: ("buffers and sizes of call 1 again", "launch of plain", "is missing"),
    32: ("call 2 of `run`", "parameter 2 of operation 0 (launch of plain) holds another value"),
    33: ("call 2 of `run`", "parameter 2 of operation 0 (launch of plain) holds another value"),
    34: ("parameter 2 of operation 1 (launch of plain) holds another value",),
    36: ("call 2 of `run`", "every call must do the whole work"),
    37: ("count of operation 0 (memset) is another",),
    42: ("call 2 of `run`", "parameter 0 of operation 0 (launch of holding) holds another value"),
    43: ("call 1", "parameter 0 of operation 0 (launch of counted) holds another value"),
    44: ("parameter 0 of operation 0 (launch of counted) holds another value",),
    46: ("parameter 0 of operation 0 (launch of counted) still points to B of call 1",),
    52: ("call 2 of `run`", "parameter 2 of operation 0 (launch of plain) holds another value"),
    53: ("call 3 of `run`", "operation 1 (launch of prepare) is missing", "every call must do the whole work"),
    28: ("the upload to kept, left out here, points to workspace0, which an earlier call freed", "make tensor maps"),
}
KEPT = {
    0: (),
    2: (),
    5: ("workspace0",),
    7: ("weights",),
    9: (),
    11: ("workspace0", "a count of calls"),
    12: (),
    13: ("workspace0",),
    16: ("what a launch of the first call set up", "workspace0"),
    19: (),
    29: (),
    35: ("workspace0",),
    30: ("a count of calls",),
    31: ("a count of calls",),
    40: ("a count of calls",),
    41: ("a count of calls", "workspace0"),
    45: ("a count of calls",),
    47: ("a count of calls",),
    48: ("what a launch of the first call set up", "workspace0"),
    49: ("what a launch of the first call set up", "workspace0"),
    51: ("a count of calls",),
    54: ("workspace0",),
    50: ("a count of calls", "what a launch of the first call set up", "workspace0", "workspace2"),
}


@pytest.fixture(scope="module")
def later() -> Build:
    return compiled((SUBMISSIONS / "later.cu").read_text())


def recorded(build: Build, mode: int, first: int, then: int) -> LaunchPlan | Failure:
    """Record `mode` at the size `then`, with a call at the size `first` in between."""
    profile = device_profile("h100")
    other = record(build, ARGUMENTS, {"mode": mode, "n": first}, profile, limits=LIMITS)
    if isinstance(other, Failure):
        return other
    return record(build, ARGUMENTS, {"mode": mode, "n": then}, profile, other=other, limits=LIMITS)


@pytest.mark.parametrize("mode", sorted(STALE))
def test_what_belonged_to_one_call_is_refused(later: Build, mode: int) -> None:
    sizes = (LARGE, SMALL) if mode in (6, 36, 37) else (SMALL, LARGE)
    failure = failed(recorded(later, mode, *sizes))
    assert (failure.status, failure.code) == (Status.PLAN_ERROR, "plan.later_call"), failure.message
    assert [part for part in STALE[mode] if part not in failure.message] == [], failure.message


@pytest.mark.parametrize("mode", sorted(KEPT))
@pytest.mark.parametrize("sizes", [(SMALL, LARGE), (LARGE, SMALL)], ids=["grows", "shrinks"])
def test_what_serves_every_call_may_be_kept(later: Build, mode: int, sizes: tuple[int, int]) -> None:
    plan = planned(recorded(later, mode, *sizes))
    assert sorted(plan.kept) == sorted(KEPT[mode])
    assert {buffer.name for buffer in plan.buffers if buffer.role in ("input", "output")} == {"A", "B"}


def test_the_plan_is_that_of_the_first_call(later: Build) -> None:
    """A workspace that is set up once is set up in the plan, whose every replay is a first call."""
    kinds = [operation.kind for operation in planned(recorded(later, 11, SMALL, LARGE)).operations]
    assert kinds == ["memset", "launch"]


def test_host_code_that_fails_later_names_the_call(later: Build) -> None:
    failure = failed(recorded(later, 17, SMALL, LARGE))
    assert failure.code == "plan.host_abort"
    assert failure.message.startswith("in call 2 of `run` in one process (other buffers, the sizes of call 1): ")


def test_each_call_has_its_share_of_the_time(later: Build) -> None:
    """1 s each here; a call that hangs is named."""
    profile = device_profile("h100")
    assert planned(record(later, ARGUMENTS, {"mode": 39, "n": SMALL}, profile, limits=LIMITS)).launches
    hangs = failed(record(later, ARGUMENTS, {"mode": 38, "n": SMALL}, profile, limits=LIMITS))
    assert hangs.code == "plan.host_hang"
    assert hangs.message.startswith(
        "in call 2 of `run` in one process (other buffers, the sizes of call 1), of 3 that "
    )
    assert "share their CPU time: host code used 3 s of CPU time" in hangs.message


def test_a_workspace_that_an_earlier_call_freed_is_none(later: Build) -> None:
    failure = failed(recorded(later, 18, SMALL, LARGE))
    assert failure.code == "plan.use_after_free" and failure.message.startswith("in call 2 of `run`")


@pytest.mark.parametrize(
    ("mode", "said"),
    [
        (25, "parameter 0 of operation 0 (launch of mapped) holds a tensor map of workspace0, which was freed"),
        (26, "parameter 0 of operation 0 (launch of holding) points into workspace0, which was freed"),
        (27, "operation 0 (upload) points into workspace0, which was freed"),
    ],
)
def test_a_freed_workspace_is_found_behind_structs_uploads_and_tensor_maps(later: Build, mode: int, said: str) -> None:
    """Mode 29 is the control."""
    failure = failed(recorded(later, mode, SMALL, LARGE))
    assert failure.code == "plan.use_after_free" and failure.message.startswith("in call 2 of `run`")
    assert said in failure.message


def test_a_stale_size_shows_only_beside_another_size(later: Build) -> None:
    assert planned(record(later, ARGUMENTS, {"mode": 4, "n": SMALL}, device_profile("h100"), limits=LIMITS))


def test_two_calls_make_one_plan(later: Build) -> None:
    """The first has buffers of its own; what it sets up and keeps is not set up again."""
    plan = planned(record_twice(later, ARGUMENTS, {"mode": 11, "n": SMALL}, device_profile("h100")))
    roles = {buffer.name: buffer.role for buffer in plan.buffers}
    assert roles == {"A": "input", "B": "output", "A#1": "input", "B#1": "output", "workspace0": "workspace"}
    kinds = [operation.kind for operation in plan.operations]
    assert kinds == ["memset", "launch", "launch"]
    launches = [operation for operation in plan.operations if isinstance(operation, Launch)]
    refs = [[ref for blob in launch.params for ref in blob.refs] for launch in launches]
    pointers = [[ref.target.buffer for ref in each if isinstance(ref, PointerRef)] for each in refs]
    assert pointers == [["A#1", "workspace0", "B#1"], ["A", "workspace0", "B"]]
    assert [launch.params[3].raw[0] for launch in launches] == [1, 2]


def test_each_of_two_calls_may_have_what_a_call_may(later: Build) -> None:
    """2.5 GiB of 4 in each; `test_two_calls_have_a_limit` is the control."""
    plan = planned(record_twice(later, ARGUMENTS, {"mode": 55, "n": SMALL}, device_profile("h100")))
    sizes = [buffer.size_bytes for buffer in plan.buffers if buffer.role == "workspace"]
    assert sizes == [5 << 29, 5 << 29]


@pytest.mark.parametrize(("mode", "said"), [(23, "ends in call 1"), (24, "has ")], ids=["an end", "a call"])
def test_a_record_with_other_calls_than_were_made_is_refused(later: Build, mode: int, said: str) -> None:
    """`test_two_calls_make_one_plan` is the control."""
    axes, profile = {"mode": mode, "n": SMALL}, device_profile("h100")
    for refused in (failed(record_twice(later, ARGUMENTS, axes, profile)), failed(recorded(later, mode, SMALL, SMALL))):
        assert (refused.status, refused.code) == (Status.PLAN_ERROR, "plan.invalid")
        assert f"the record of the host code {said}" in refused.message


def test_thousands_of_launches_that_count_take_memory_by_their_number_alone() -> None:
    """Each may have been left out, and has a way to match of its own."""

    def asked(count: int) -> Asked:
        launch = Launch(
            kernel="numbered",
            grid=(1, 1, 1),
            block=(32, 1, 1),
            dynamic_smem_bytes=0,
            params=(Blob(data=f"{count:02x}000000"),),
        )
        return Asked(Merged((), (), (), (launch,) * 2000), {})

    kept = Kept()
    tracemalloc.start()
    try:
        compare(asked(1), [asked(1)], asked(2), kept)
        _, most_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert [more[1][0] for more in kept.counters.values()] == [1] * 2000
    assert most_bytes < 16 << 20
