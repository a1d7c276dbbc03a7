# ruff: noqa: E501  (PTX text is not broken where a reader would not break it)
"""setmaxnreg: registers that change hands, and what all warps of a warpgroup must keep to (PTX ISA 9.7.19.5)."""

from __future__ import annotations

import pytest

from ptxgym.device.emulator.core import Outcome
from tests.device.emulator.core.harness import Run
from tests.device.emulator.core.test_barrier import SCHEDULES, WARP, deadlock, go

NOTE, WARNING = 0, 1

# ---- the pool of a CTA

EXCHANGE = """
  mov.u32 %r20, 1; setp.lt.u32 %p1, %r0, 128; @%p1 bra GIVE;
  setmaxnreg.inc.sync.aligned.u32 {inc}; bra MEET;
GIVE: setmaxnreg.dec.sync.aligned.u32 {dec};
MEET: bar.sync 0;
"""


@pytest.mark.parametrize(("registers", "dec", "inc", "hangs"), [
    (168, 24, 240, False), (168, 32, 240, True), (168, 40, 232, False), (0, 56, 240, False), (168, 168, 168, False),
])  # fmt: skip
def test_setmaxnreg_takes_from_the_pool_of_the_cta(registers: int, dec: int, inc: int, hangs: bool) -> None:
    """Two warpgroups of three ask for more: 128 × dec + 256 × inc may not exceed 384 × registers."""
    assert (0 < 384 * registers < 128 * dec + 256 * inc) is hangs
    body = EXCHANGE.format(dec=dec, inc=inc)
    if not hangs:
        assert go(body, 384, registers=registers).launch.outcome == Outcome.OK
        return
    found = deadlock(body, 384, registers=registers)
    assert "for registers: all warps together ask for more than the CTA got at launch" in found[0]


def test_setmaxnreg_of_registers_that_exited_warps_held() -> None:
    leaving = EXCHANGE.format(dec=32, inc=240).replace("bar.sync 0;", "").replace("MEET:", "exit; MEET:")
    done = go(leaving, 384, registers=168)
    assert done.launch.outcome == Outcome.OK and done.codes == ["setmaxnreg.pool"]
    assert go(leaving.replace("u32 32", "u32 24"), 384, registers=168).codes == []


def test_setmaxnreg_waits_for_what_others_give_later() -> None:
    later = EXCHANGE.format(dec=24, inc=240).replace("GIVE:", "GIVE: nanosleep.u32 500;")
    assert go(later, 384, registers=168).launch.outcome == Outcome.OK


# ---- what the ISA leaves undefined

DEC, INC = "setmaxnreg.dec.sync.aligned.u32 {};", "setmaxnreg.inc.sync.aligned.u32 {};"


def ask(body: str, block: int = 128, registers: int = 128, **shape: object) -> Run:
    done = go(f"mov.u32 %r20, 1; {WARP} {body}", block, registers=registers, **shape)
    assert done.launch.outcome == Outcome.OK and done.words().tolist() == [1] * block
    return done


def severities(done: Run) -> dict[str, int]:
    return {record["code"].decode(): int(record["severity"]) for record in done.records}


@pytest.mark.parametrize("schedule", SCHEDULES, ids=str)
def test_some_warps_of_a_warpgroup(schedule: dict[str, object]) -> None:
    done = ask(f"setp.ne.u32 %p1, %r30, 0; @%p1 bra ON; {DEC.format(40)}\nON:", **schedule)
    assert severities(done) == {"setmaxnreg.partial": WARNING}
    said = done.message("setmaxnreg.partial")
    assert "warp 0 executed setmaxnreg.dec 40, warps 1-3 of the same warpgroup did not: " in said


def test_some_warps_once_more_than_the_others() -> None:
    done = ask(f"{DEC.format(64)} bar.sync 0; setp.eq.u32 %p1, %r30, 2; @%p1 bra ON; {DEC.format(40)}\nON:")
    assert severities(done) == {"setmaxnreg.partial": WARNING}
    assert "warps 0, 1, 3 executed setmaxnreg.dec 40, warp 2 of the same warpgroup did not as often" in done.message(
        "setmaxnreg.partial"
    )


def test_warps_that_had_exited_are_a_note() -> None:
    done = go(
        f"mov.u32 %r20, 1; {WARP} setp.eq.u32 %p1, %r30, 3; @%p1 exit; nanosleep.u32 500; bar.sync 0; {DEC.format(40)}",
        128,
        registers=128,
    )
    assert severities(done) == {"barrier.divergent": NOTE, "setmaxnreg.partial": NOTE}
    assert "did not and had exited before" in done.message("setmaxnreg.partial")


@pytest.mark.parametrize(("one", "other"), [(DEC.format(40), INC.format(152)), (DEC.format(40), DEC.format(48))])
def test_different_requests_in_one_warpgroup_are_a_note(one: str, other: str) -> None:
    """CUTLASS's attention for sm_100 does it."""
    body = f"setp.lt.u32 %p1, %r30, 2; @%p1 bra FEW; {other} bra ON;\nFEW: {one}\nON:"
    done = ask(body)
    assert severities(done) == {"setmaxnreg.unlike": NOTE}
    said = done.message("setmaxnreg.unlike")
    assert "warp 2 asks for setmaxnreg" in said and "and warp 0 of the same warpgroup for setmaxnreg.dec 40" in said
    whole = body.replace("%r30, 2", "%r30, 4")
    assert not ask(whole, 256).codes


def test_one_number_by_instructions_of_several_roles_is_one_request() -> None:
    roles = "".join(f"setp.eq.u32 %p1, %r30, {role}; @%p1 bra ROLE{role};\n" for role in range(3))
    code = "".join(f"ROLE{role}: {DEC.format(40)} bra ON;\n" for role in (3, 2, 1, 0))
    assert not ask(f"{roles}{code}ON:").codes


@pytest.mark.parametrize(
    ("text", "held", "says"),
    [
        (INC.format(40), 128, "setmaxnreg.inc to 40"),
        (DEC.format(232), 128, "setmaxnreg.dec to 232"),
        (f"{DEC.format(40)} bar.sync 0; {DEC.format(64)}", 40, "setmaxnreg.dec to 64"),
    ],
)
def test_the_wrong_direction(text: str, held: int, says: str) -> None:
    done = ask(text)
    assert severities(done) == {"setmaxnreg.direction": WARNING}
    assert f"{says} registers by warp 0, which holds {held}:" in done.message("setmaxnreg.direction")
    assert not ask(text, registers=0).codes


@pytest.mark.parametrize("text", [INC.format(128), DEC.format(128), f"{DEC.format(40)} bar.sync 0; {INC.format(64)}"])
def test_as_many_registers_as_a_warp_holds_are_no_wrong_direction(text: str) -> None:
    assert not ask(text).codes


def arrive_and_wait(waiters: str) -> str:
    """All threads of the warpgroup arrive on an mbarrier, for which some of its warps wait."""
    return (
        f"mbarrier.arrive.shared::cta.b64 _, [%r10]; {waiters}\n"
        "WAIT: mbarrier.try_wait.parity.shared::cta.b64 %p3, [%r10], 0; @!%p3 bra WAIT;\nMET:"
    )


INIT = ".shared .align 8 .b8 mb[8]; mov.u32 %r10, mb; setp.eq.u32 %p1, %r0, 0; @%p1 mbarrier.init.shared::cta.b64 [%r10], 128; bar.sync 0;"


@pytest.mark.parametrize("schedule", SCHEDULES, ids=str)
@pytest.mark.parametrize(
    ("between", "clean"),
    [
        ("bar.sync 0;", True),
        ("bar.sync 1, 128;", True),
        (arrive_and_wait(""), True),
        ("", False),
        ("bar.warp.sync -1;", False),
        (arrive_and_wait("setp.ge.u32 %p2, %r30, 2; @%p2 bra MET;"), False),
    ],
    ids=["all", "named", "mbarrier", "nothing", "warp", "two wait"],
)
def test_warps_must_meet_between_two_requests(between: str, clean: bool, schedule: dict[str, object]) -> None:
    done = ask(f"{INIT} {DEC.format(64)} {between} {DEC.format(40)}", **schedule)
    assert severities(done) == ({} if clean else {"setmaxnreg.unordered": WARNING})


def test_requests_in_a_loop_with_barriers_are_clean() -> None:
    turn = f"{DEC.format(64)} bar.sync 0; {INC.format(128)} bar.sync 0;"
    body = f"mov.u32 %r21, 0;\nTURN: {turn} add.u32 %r21, %r21, 1; setp.lt.u32 %p1, %r21, 100; @%p1 bra TURN;"
    for schedule in SCHEDULES:
        assert not ask(body, 256, **schedule).codes


def test_a_warp_for_itself_meets_nobody() -> None:
    assert not ask(f"{DEC.format(64)} {DEC.format(40)}", 32).codes
