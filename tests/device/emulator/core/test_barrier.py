# ruff: noqa: E501  (PTX text is not broken where a reader would not break it)
"""Named barriers, mbarriers, polling and deadlocks."""

from __future__ import annotations

import numpy as np
import pytest

from ptxgym.device.emulator.core import Outcome
from tests.device.emulator.core.harness import Run, kernel, program, run

STORE = "mul.wide.u32 %rd9, %r3, 4; add.s64 %rd9, %rd0, %rd9; st.global.u32 [%rd9], %r20;"
SCHEDULES = [{"schedule": "fair"}, {"schedule": "lazy"}, *({"schedule": "random", "seed": s} for s in range(4))]
WARP = "shr.u32 %r30, %r0, 5;"


def go(body: str, block: int = 64, **shape: object) -> Run:
    return run(kernel(f"{body}\n{STORE}"), {"out": np.zeros(block, "<u4")}, block=block, **shape)


@pytest.mark.parametrize("schedule", SCHEDULES, ids=str)
def test_barrier_orders_a_reversal_through_shared_memory(schedule: dict[str, object]) -> None:
    body = """
      .shared .align 4 .b8 sm[512]; mov.u32 %r10, sm; shl.b32 %r11, %r0, 2; add.u32 %r12, %r10, %r11; st.shared.u32 [%r12], %r0;
      bar.sync 0; sub.u32 %r13, 508, %r11; add.u32 %r13, %r10, %r13; ld.shared.u32 %r20, [%r13];
    """
    done = go(body, 128, **schedule)
    assert done.codes == [] and done.words().tolist() == list(range(127, -1, -1))


@pytest.mark.parametrize("schedule", SCHEDULES, ids=str)
def test_arrive_without_waiting(schedule: dict[str, object]) -> None:
    """Warp 0 produces and only arrives; warp 1 waits for 64 threads."""
    body = f"""
      .shared .align 4 .b8 sm[4]; {WARP} setp.eq.u32 %p1, %r30, 0; mov.u32 %r20, 1; @!%p1 bra CONSUMER;
      st.shared.u32 [sm], 42; bar.arrive 3, 64; bra DONE;
    CONSUMER: bar.sync 3, 64; ld.shared.u32 %r20, [sm];
    DONE:
    """
    done = go(body, **schedule)
    assert done.words().tolist() == [1] * 32 + [42] * 32


def test_barrier_reductions() -> None:
    body = """
      setp.lt.u32 %p1, %r0, 40; bar.red.popc.u32 %r20, 0, %p1; bar.red.and.pred %p2, 0, %p1; bar.red.or.pred %p3, 0, %p1; bar.red.and.pred %p4, 0, !%p3;
      selp.b32 %r11, 100, 0, %p2; add.u32 %r20, %r20, %r11; selp.b32 %r11, 200, 0, %p3; add.u32 %r20, %r20, %r11; selp.b32 %r11, 400, 0, %p4; add.u32 %r20, %r20, %r11;
    """
    assert go(body).words().tolist() == [240] * 64


def test_partial_last_warp_counts_as_a_whole() -> None:
    assert go("bar.sync 1, 64; mov.u32 %r20, 1;", 40).words().tolist() == [1] * 40
    assert go("barrier.sync 1, 64; mov.u32 %r20, 1;", 40).words().tolist() == [1] * 40
    assert go("bar.sync 0; mov.u32 %r20, 1;", 40).words().tolist() == [1] * 40


def test_unaligned_barrier_counts_threads() -> None:
    body = "and.b32 %r10, %r0, 1; setp.eq.u32 %p1, %r10, 0; mov.u32 %r20, 3; @%p1 bra EVEN; barrier.sync 2; bra DONE;\nEVEN: barrier.sync 2; mov.u32 %r20, 4;\nDONE:"
    assert go(body).words().tolist() == [4, 3] * 32


EXIT_LATE = "setp.ge.u32 %p1, %r0, 100; mov.u32 %r20, 1; @%p1 exit;"


@pytest.mark.parametrize("schedule", SCHEDULES, ids=str)
@pytest.mark.parametrize("form", ["barrier.sync 1, 128;", "barrier.sync 1;", "bar.sync 1, 128;", "bar.sync 1;"])
def test_a_warp_whose_other_lanes_have_exited_arrives_as_a_whole(form: str, schedule: dict[str, object]) -> None:
    """9.7.13.1: a barrier waits for the non-exited threads of a warp, and counts it by the size of a warp."""
    done = go(f"{EXIT_LATE} {form} mov.u32 %r20, 2;", 128, **schedule)
    assert done.launch.outcome == Outcome.OK and done.codes == []
    assert done.words().tolist() == [2] * 100 + [0] * 28


@pytest.mark.parametrize("schedule", SCHEDULES, ids=str)
def test_lanes_that_exit_later_complete_the_arrival_of_their_warp(schedule: dict[str, object]) -> None:
    """Lane 3 of warp 1 exits when the others are at the barrier; the warp only arrives, warp 0 waits for both."""
    body = f"""
      .shared .align 4 .b8 sm[4]; {WARP} setp.eq.u32 %p1, %r30, 0; mov.u32 %r20, 1; @%p1 bra WAITS; st.shared.u32 [sm], 42;
      setp.ne.u32 %p2, %r0, 35; @%p2 bra ARRIVE; nanosleep.u32 100; nanosleep.u32 100; exit;
    ARRIVE: barrier.arrive 1, 64; bra DONE;
    WAITS: barrier.sync 1, 64; ld.shared.u32 %r20, [sm];
    DONE:
    """
    done = go(body, **schedule)
    assert done.launch.outcome == Outcome.OK and "smem.race" not in done.codes
    assert done.words().tolist() == [42] * 32 + [1] * 3 + [0] + [1] * 28


def test_a_count_of_all_threads_is_the_same_as_none() -> None:
    """A last warp of 20 threads counts as 32."""
    body = f"{WARP} setp.eq.u32 %p1, %r30, 0; mov.u32 %r20, 1; @%p1 bra A; bar.sync 0; bra B;\nA: bar.sync 0, 64;\nB:"
    done = go(body, 52)
    assert done.codes == [] and done.words().tolist() == [1] * 52
    assert "barrier.count_mismatch" in go(body.replace("0, 64", "0, 96"), 52).codes


HALVES = """
  .shared .align 4 .b8 sm[4]; st.shared.u32 [sm], 0; bar.sync 0; and.b32 %r31, %r0, 31; setp.lt.u32 %p1, %r31, 16; mov.u32 %r20, 1; @%p1 bra SYNC;
SPIN: ld.volatile.shared.u32 %r32, [sm]; setp.eq.u32 %p2, %r32, 0; @%p2 bra SPIN; bra DONE;
SYNC: barrier.sync 1, 32; st.volatile.shared.u32 [sm], 1;
DONE:
"""


@pytest.mark.parametrize("schedule", SCHEDULES, ids=str)
def test_halves_of_two_warps_are_no_arrival(schedule: dict[str, object]) -> None:
    """The halves at the barrier wait for the others of their warps, which wait for what comes after it."""
    assert go(HALVES, **schedule).launch.outcome == Outcome.HANG
    spinning = "setp.eq.u32 %p2, %r32, 0; @%p2 bra SPIN; bra DONE;"
    assert go(HALVES.replace(spinning, "exit;"), **schedule).launch.outcome == Outcome.OK


def test_missing_lanes_of_a_warp_are_named() -> None:
    found = deadlock(HALVES.replace("SPIN: ", "SPIN: barrier.sync 2, 128; "))
    assert any(
        "at barrier 1: 0 of 32 threads arrived; of warps 0, 1 some have not come, and a warp" in m for m in found
    )


MIXED = "setp.lt.u32 %p1, %r0, 40; {warp} setp.eq.u32 %p2, %r30, 0; mov.u32 %r20, 1; @%p2 bra RED; {other} bra DONE;\nRED: bar.red.popc.u32 %r20, 1, 64, %p1;\nDONE:"


@pytest.mark.parametrize(
    ("other", "mixed"),
    [("bar.arrive 1, 64;", True), ("bar.sync 1, 64;", True), ("bar.red.popc.u32 %r20, 1, 64, %p1;", False)],
)
def test_reductions_and_other_uses_of_one_phase(other: str, mixed: bool) -> None:
    """9.7.13.1: `.red` should not be intermixed with the others using the same active barrier."""
    done = go(MIXED.format(warp=WARP, other=other))
    assert done.codes == (["barrier.mixed_reduction"] if mixed else [])
    assert all(record["severity"] == 1 for record in done.records)
    assert mixed or done.words().tolist() == [40] * 64


def test_a_reduction_and_a_plain_barrier_may_take_turns() -> None:
    done = go("setp.lt.u32 %p1, %r0, 40; bar.sync 1; bar.red.popc.u32 %r20, 1, %p1; bar.sync 1;")
    assert done.codes == [] and done.words().tolist() == [40] * 64


def test_barrier_misuse() -> None:
    assert go("bar.sync 16;").fatal == "barrier.bad_id"
    assert go("bar.sync 1, 33;").fatal == "barrier.bad_count"
    body = f"{WARP} setp.eq.u32 %p1, %r30, 0; @%p1 bra A; bar.sync 1, 96; bra B;\nA: bar.sync 1, 64;\nB:"
    assert "barrier.count_mismatch" in go(body).codes


# ---- mbarriers

INIT = ".shared .align 8 .b8 mb[16]; .shared .align 4 .b8 data[256]; setp.eq.u32 %p1, %r0, 0; mov.u32 %r10, mb;"


def init(count: int, second: int = 1) -> str:
    return f"{INIT} @%p1 mbarrier.init.shared::cta.b64 [%r10], {count}; @%p1 mbarrier.init.shared::cta.b64 [%r10+8], {second}; bar.sync 0;"


@pytest.mark.parametrize("schedule", SCHEDULES, ids=str)
def test_phases_and_parities(schedule: dict[str, object]) -> None:
    """A ring of one stage, ten rounds: producer warp 0, consumer warp 1, full and empty barriers of 32 arrivals."""
    body = f"""
      {init(32, 32)} {WARP} setp.eq.u32 %p2, %r30, 0; mov.u32 %r11, 0; mov.u32 %r12, 0; mov.u32 %r20, 0; mov.u32 %r13, data;
      and.b32 %r14, %r0, 31; shl.b32 %r14, %r14, 2; add.u32 %r13, %r13, %r14; @!%p2 bra CONSUMER;
    PRODUCE:
      xor.b32 %r15, %r12, 1;
    W1: mbarrier.try_wait.parity.shared::cta.b64 %p3, [%r10+8], %r15; @!%p3 bra W1;
      mul.lo.u32 %r16, %r11, %r0; st.shared.u32 [%r13], %r16;
      mbarrier.arrive.shared::cta.b64 %rd10, [%r10];
      xor.b32 %r12, %r12, 1; add.u32 %r11, %r11, 1; setp.lt.u32 %p4, %r11, 10; @%p4 bra PRODUCE;
      bra DONE;
    CONSUMER:
    W2: mbarrier.try_wait.parity.shared::cta.b64 %p3, [%r10], %r12; @!%p3 bra W2;
      ld.shared.u32 %r16, [%r13]; add.u32 %r20, %r20, %r16;
      mbarrier.arrive.shared::cta.b64 %rd10, [%r10+8];
      xor.b32 %r12, %r12, 1; add.u32 %r11, %r11, 1; setp.lt.u32 %p4, %r11, 10; @%p4 bra CONSUMER;
    DONE:
    """
    done = go(body, **schedule)
    assert done.launch.outcome == Outcome.OK and [c for c in done.codes if not c.startswith("mbarrier.init")] == []
    assert done.words().tolist() == [0] * 32 + [45 * t for t in range(32)]
    text = kernel(f"{body}\n{STORE}")
    form = "mbarrier.try_wait.parity.shared::cta.b64"
    assert done.count(program(text), form) == (20, 640), "every wait counts once, when it succeeds"


def test_state_tokens_and_pending_counts() -> None:
    body = f"""
      {init(64)} mbarrier.arrive.shared::cta.b64 %rd10, [%r10]; mbarrier.pending_count.b64 %r20, %rd10;
    W: mbarrier.try_wait.shared::cta.b64 %p3, [%r10], %rd10; @!%p3 bra W;
    """
    done = go(body)
    assert sorted(done.words().tolist()) == list(range(1, 65)), "each arrival saw one fewer missing"


def test_a_token_of_an_earlier_phase_stays_complete() -> None:
    body = f"""
      {init(32)} mbarrier.arrive.shared::cta.b64 %rd10, [%r10]; mbarrier.arrive.shared::cta.b64 %rd11, [%r10]; mbarrier.arrive.shared::cta.b64 %rd11, [%r10];
      mbarrier.test_wait.shared::cta.b64 %p3, [%r10], %rd10; selp.b32 %r20, 1, 0, %p3; mbarrier.test_wait.shared::cta.b64 %p3, [%r10], %rd11;
      selp.b32 %r11, 2, 0, %p3; add.u32 %r20, %r20, %r11;
    """
    assert go(body, 32).words().tolist() == [3] * 32


def test_transaction_bytes_hold_a_phase_back() -> None:
    body = f"""
      {init(1)} mov.u32 %r20, 0; @!%p1 bra DONE;
      mbarrier.arrive.expect_tx.shared::cta.b64 %rd10, [%r10], 48;
      mbarrier.test_wait.parity.shared::cta.b64 %p3, [%r10], 0; selp.b32 %r20, 1, 0, %p3;
      mbarrier.complete_tx.relaxed.cta.shared::cta.b64 [%r10], 16;
      mbarrier.test_wait.parity.shared::cta.b64 %p3, [%r10], 0; selp.b32 %r11, 2, 0, %p3; add.u32 %r20, %r20, %r11;
      mbarrier.complete_tx.relaxed.cta.shared::cta.b64 [%r10], 32;
      mbarrier.test_wait.parity.shared::cta.b64 %p3, [%r10], 0; selp.b32 %r11, 4, 0, %p3; add.u32 %r20, %r20, %r11;
    DONE:
    """
    assert go(body, 32).words()[0] == 4


def test_dropped_arrivals_lower_the_next_phases() -> None:
    body = f"""
      {init(3)} mov.u32 %r20, 0; @!%p1 bra DONE;
      mbarrier.arrive.shared::cta.b64 %rd10, [%r10], 2; mbarrier.arrive_drop.shared::cta.b64 %rd10, [%r10];
      mbarrier.arrive.shared::cta.b64 %rd10, [%r10]; mbarrier.arrive.shared::cta.b64 %rd10, [%r10];
      mbarrier.test_wait.parity.shared::cta.b64 %p3, [%r10], 1; selp.b32 %r20, 1, 0, %p3;
    DONE:
    """
    assert go(body, 32).words()[0] == 1


def test_a_polling_thread_lets_the_others_work() -> None:
    """test_wait does not block: warp 1 polls until warp 0 arrives after a long loop."""
    body = f"""
      {init(32)} {WARP} setp.eq.u32 %p2, %r30, 0; mov.u32 %r20, 0; mov.u32 %r11, 0; @!%p2 bra POLL;
    LONG: add.u32 %r11, %r11, 1; setp.lt.u32 %p3, %r11, 20000; @%p3 bra LONG;
      mbarrier.arrive.shared::cta.b64 %rd10, [%r10]; bra DONE;
    POLL: add.u32 %r20, %r20, 1; mbarrier.test_wait.parity.shared::cta.b64 %p4, [%r10], 0; @!%p4 bra POLL;
    DONE:
    """
    done = go(body)
    assert done.launch.outcome == Outcome.OK and (done.words()[32:] > 1).all()


def test_a_failed_try_wait_returns_when_nothing_else_can_run() -> None:
    """The thread peeks at a barrier that only it can complete: the hardware's time limit ends the wait."""
    body = f"""
      {init(1)} mov.u32 %r20, 0; @!%p1 bra DONE;
      mbarrier.try_wait.parity.shared::cta.b64 %p3, [%r10], 0; selp.b32 %r20, 1, 0, %p3;
      mbarrier.arrive.shared::cta.b64 %rd10, [%r10];
    W: mbarrier.try_wait.parity.shared::cta.b64 %p3, [%r10], 0; @!%p3 bra W; add.u32 %r20, %r20, 10;
    DONE:
    """
    done = go(body, 32)
    assert done.launch.outcome == Outcome.OK and done.words()[0] == 10


@pytest.mark.parametrize(
    ("body", "code"),
    [
        (f"{INIT} mbarrier.arrive.shared::cta.b64 %rd10, [%r10];", "mbarrier.uninitialised"),
        (f"{init(4)} @%p1 st.shared.u32 [%r10], 0; bar.sync 0; mbarrier.arrive.shared::cta.b64 %rd10, [%r10];", "mbarrier.overwritten"),
        (f"{init(4)} @%p1 mbarrier.inval.shared::cta.b64 [%r10]; bar.sync 0; mbarrier.arrive.shared::cta.b64 %rd10, [%r10];", "mbarrier.uninitialised"),
        (f"{INIT} @%p1 mbarrier.init.shared::cta.b64 [%r10+4], 1;", "memory.misaligned"),
        (f"{INIT} @%p1 mbarrier.init.shared::cta.b64 [%r10], 0;", "mbarrier.bad_count"),
    ],
)  # fmt: skip
def test_mbarrier_misuse_ends_the_launch(body: str, code: str) -> None:
    assert go(body).fatal == code


NOT_COMPLETE = "mbarrier.arrive.noComplete.shared::cta.b64 %rd10, [%r10], {};"
DROP = "mbarrier.arrive_drop.shared::cta.b64 %rd10, [%r10];"


@pytest.mark.parametrize(
    ("count", "body", "code", "severity"),
    [
        (1, "bar.sync 0; @%p1 mbarrier.init.shared::cta.b64 [%r10], 2;", "mbarrier.reinitialised", 0),
        (1, "@%p1 mbarrier.inval.shared::cta.b64 [%r10]; @%p1 mbarrier.init.shared::cta.b64 [%r10], 2;", None, 0),
        (2, f"@%p1 {NOT_COMPLETE.format(2)}", "mbarrier.no_complete", 1),
        (2, f"@%p1 {NOT_COMPLETE.format(1)}", None, 0),
        (2, f"@%p1 {NOT_COMPLETE.format(1)} @%p1 mbarrier.arrive.shared::cta.b64 %rd10, [%r10];", None, 0),
        (1, f"@%p1 {DROP}", "mbarrier.dropped_to_zero", 0),
        (2, f"@%p1 {DROP}", None, 0),
        (2, "mov.u32 %r11, 0; @%p1 mbarrier.arrive.shared::cta.b64 %rd10, [%r10], %r11;", "mbarrier.zero_count", 1),
        (2, "mov.u32 %r11, 1; @%p1 mbarrier.arrive.shared::cta.b64 %rd10, [%r10], %r11;", None, 0),
    ],
)  # fmt: skip
def test_uses_of_mbarriers_that_are_undefined(count: int, body: str, code: str | None, severity: int) -> None:
    """PTX ISA 9.7.13.15.9, .13 and .14, and the range of counts in .2; the barrier works on as a GPU's does."""
    done = go(f"mov.u32 %r20, 0; {init(count)} {body}", 32)
    assert done.launch.outcome == Outcome.OK
    assert [(r["code"].decode(), int(r["severity"])) for r in done.records] == ([(code, severity)] if code else [])


def test_more_arrivals_than_the_count() -> None:
    done = go(f"{init(20)} mbarrier.arrive.shared::cta.b64 %rd10, [%r10];", 32)
    assert "mbarrier.over_arrival" not in done.codes, "12 of the 20 arrivals of the next phase"
    done = go(f"{init(20)} @%p1 mbarrier.arrive.shared::cta.b64 %rd10, [%r10], 21;", 32)
    assert "21 arrivals in a phase that misses only 20 of 20" in done.message("mbarrier.over_arrival")


# ---- deadlocks


def deadlock(body: str, block: int = 64, **shape: object) -> list[str]:
    done = go(body, block, **shape)
    assert done.launch.outcome == Outcome.HANG
    found = [r["message"].decode() for r in done.records if r["code"] == b"emulator.deadlock"]
    assert done.fatal == "emulator.deadlock"
    return found


@pytest.mark.parametrize("schedule", SCHEDULES[:3], ids=str)
def test_missing_arrivals_are_counted(schedule: dict[str, object]) -> None:
    found = deadlock(
        f"{init(33)} mbarrier.arrive.shared::cta.b64 %rd10, [%r10];\nW: mbarrier.try_wait.parity.shared::cta.b64 %p3, [%r10], 0; @!%p3 bra W;",
        32,
        **schedule,
    )
    assert len(found) == 1
    assert "to 33 arrivals a phase, and only 32 come" in found[0]
    assert "warp 0 waits for it at line" in found[0] and "(parity 0, phase 0)" in found[0]


def test_bytes_that_never_come_rank_first() -> None:
    body = f"""
      {init(1)} {WARP} setp.eq.u32 %p2, %r30, 0; @%p2 bra STARVED;
    W1: mbarrier.try_wait.parity.shared::cta.b64 %p3, [%r10+8], 0; @!%p3 bra W1; bra DONE;
    STARVED: @%p1 mbarrier.arrive.expect_tx.shared::cta.b64 %rd10, [%r10], 16;
    W2: mbarrier.try_wait.parity.shared::cta.b64 %p3, [%r10], 0; @!%p3 bra W2;
    DONE:
    """
    found = deadlock(body)
    assert "deadlock: of the bytes that line" in found[0] and "16 never arrive; warp 0 waits for it" in found[0]
    assert "also waiting" in found[1] and "warp 1 waits for parity 0 of mbarrier 0x408" in found[1]


def test_barrier_in_one_branch() -> None:
    found = deadlock(f"{WARP} setp.eq.u32 %p2, %r30, 0; @%p2 bra DONE; bar.sync 4, 128;\nDONE:", 128)
    assert found == ["deadlock: warps 1-3 wait at barrier 4: 96 of 128 threads arrived, and warp 0 has exited"]


def test_exited_threads_do_not_count_for_a_barrier_of_the_whole_cta() -> None:
    done = go(f"{WARP} setp.eq.u32 %p2, %r30, 0; mov.u32 %r20, 1; @%p2 exit; bar.sync 0;", 128)
    assert done.launch.outcome == Outcome.OK
    assert done.codes == ["barrier.divergent"] and done.records[0]["severity"] == 0
    met = go(f"{WARP} setp.eq.u32 %p2, %r30, 0; mov.u32 %r20, 1; bar.sync 0; @%p2 exit; mov.u32 %r20, 2;", 128)
    assert met.codes == []


PUBLISHING = [
    "fence.proxy.async;", "fence.proxy.async.shared::cta;", "fence.proxy.async.shared::cluster;",
    "fence.proxy.async::generic.release.sync_restrict::shared::cta.cluster;",
    "fence.proxy.async::generic.acquire.sync_restrict::shared::cluster.cluster;",
]  # fmt: skip


@pytest.mark.parametrize(
    "fence", [*PUBLISHING, "fence.proxy.async.global;", "fence.proxy.alias;", "fence.acq_rel.cta;", ""]
)
def test_which_fences_show_stores_to_bulk_copies(fence: str) -> None:
    body = f"""
      .shared .align 16 .b8 sm[16]; setp.ne.u32 %p1, %r0, 0; @%p1 bra DONE; st.shared.u32 [sm], 7; st.shared.u32 [sm+4], 8; st.shared.v2.u32 [sm+8], {{%r0, %r0}};
      {fence} mov.u32 %r10, sm; cp.async.bulk.global.shared::cta.bulk_group [%rd0], [%r10], 16; cp.async.bulk.commit_group; cp.async.bulk.wait_group 0;
    DONE:
    """
    done = run(kernel(body), {"out": np.zeros(4, "<u4")})
    assert done.words().tolist() == [7, 8, 0, 0]
    assert (done.codes == []) == (fence in PUBLISHING), done.codes


RELEASES, ACQUIRES = PUBLISHING[3:]


@pytest.mark.parametrize(("release", "acquire", "clean"), [
    (RELEASES, ACQUIRES, True), ("fence.acq_rel.cluster;", ACQUIRES, True), (RELEASES, "fence.acq_rel.cluster;", True),
    (RELEASES, "", False), ("", ACQUIRES, False), (ACQUIRES, RELEASES, False),
])  # fmt: skip
def test_proxy_fences_release_and_acquire_around_a_relaxed_arrival(release: str, acquire: str, clean: bool) -> None:
    """Warp 1 uses a buffer and tells thread 0, which has it filled anew by a bulk copy."""
    body = f"""
      .shared .align 16 .b8 sm[16]; {init(1)} mov.u32 %r11, sm; setp.eq.u32 %p2, %r0, 32; @%p2 bra USER; @!%p1 bra DONE;
    EMPTY: mbarrier.try_wait.parity.relaxed.cluster.shared::cta.b64 %p3, [%r10], 0; @!%p3 bra EMPTY; {acquire}
      mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r10+8], 16;
      cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%r11], [%rd1], 16, [%r10+8];
    FULL: mbarrier.try_wait.parity.shared::cta.b64 %p3, [%r10+8], 0; @!%p3 bra FULL; bra DONE;
    USER: st.shared.v2.u64 [%r11], {{%rd0, %rd1}}; ld.shared.u32 %r20, [%r11]; {release}
      mbarrier.arrive.relaxed.cluster.shared::cta.b64 _, [%r10];
    DONE:
    """
    for schedule in SCHEDULES:
        done = run(
            kernel(body), {"out": np.zeros(4, "<u4"), "in": np.zeros(4, "<u4")}, inputs=["in"], block=64, **schedule
        )
        assert (done.codes == []) == clean, done.records
        assert set(done.codes) <= {"async.overwrite", "async.proxy_fence"}, done.codes


def test_phases_complete_whatever_comes_last() -> None:
    """An arrival, bytes, or the expectation of bytes that have come before; the sum of tests as measured on an H200."""

    def test(parity: int, weight: int) -> str:
        return f"mbarrier.test_wait.parity.shared.b64 %p1, [%r10], {parity}; selp.u32 %r11, {weight}, 0, %p1; add.u32 %r20, %r20, %r11;"

    complete, expect = (
        "mbarrier.complete_tx.relaxed.cta.shared::cta.b64 [%r10],",
        "mbarrier.expect_tx.relaxed.cta.shared::cta.b64 [%r10],",
    )
    body = f"""
      .shared .align 8 .b64 mb; mov.u32 %r10, mb; setp.ne.u32 %p9, %r0, 0; mov.u32 %r20, 0; @%p9 bra DONE; mbarrier.init.shared.b64 [%r10], 1;
      {complete} 64; {test(0, 1)} mbarrier.arrive.expect_tx.shared.b64 %rd10, [%r10], 64; {test(0, 2)}
      {complete} 32; mbarrier.arrive.shared.b64 %rd10, [%r10]; {test(1, 4)} {expect} 32; {test(1, 8)}
      mbarrier.arrive.expect_tx.shared.b64 %rd10, [%r10], 16; {test(0, 16)} {complete} 16; {test(0, 32)}
    DONE:
    """
    done = go(body, 32)
    assert done.codes == [] and done.words()[0] == 2 + 8 + 32


@pytest.mark.parametrize("schedule", SCHEDULES, ids=str)
@pytest.mark.parametrize("form", ["noinc.", ""])
def test_an_mbarrier_may_follow_copies_instead_of_a_wait(form: str, schedule: dict[str, object]) -> None:
    body = f"""
      .shared .align 16 .b8 sm[512]; .shared .align 8 .b64 mb; mov.u32 %r12, mb; setp.ne.u32 %p9, %r0, 0; @%p9 bra READY; mbarrier.init.shared.b64 [%r12], 32;
    READY: bar.sync 0; mul.lo.u32 %r10, %r0, 16; mov.u32 %r11, sm; add.u32 %r13, %r11, %r10; cvt.u64.u32 %rd12, %r10; add.u64 %rd12, %rd1, %rd12;
      cp.async.ca.shared.global [%r13], [%rd12], 16; cp.async.mbarrier.arrive.{form}shared.b64 [%r12]; {"" if form else "mbarrier.arrive.shared.b64 %rd13, [%r12];"}
    WAIT: mbarrier.try_wait.parity.shared.b64 %p1, [%r12], 0; @!%p1 bra WAIT; xor.b32 %r10, %r10, 16; add.u32 %r11, %r11, %r10; ld.shared.u32 %r20, [%r11];
      {STORE}
    """
    done = run(kernel(body), {"out": np.zeros(32, "<u4"), "in": np.arange(128, dtype="<u4")}, inputs=["in"], **schedule)
    assert done.codes == [] and done.words().tolist() == [4 * (lane ^ 1) for lane in range(32)]


@pytest.mark.parametrize("schedule", SCHEDULES, ids=str)
def test_lanes_of_a_warp_may_name_different_barriers(schedule: dict[str, object]) -> None:
    """Odd lanes of warps 0 and 3 arrive at barrier 4, even ones at 5; one warp waits at each of the two."""
    body = f"""
      {WARP} and.b32 %r31, %r0, 1; setp.ne.u32 %p1, %r30, 0; sub.u32 %r32, 5, %r31; mov.u32 %r20, 1; mov.u32 %r33, 64; @%p1 bra WAITS;
      barrier.arrive %r32, %r33; bra DONE;
    WAITS: and.b32 %r34, %r30, 1; sub.u32 %r32, 5, %r34; setp.lt.u32 %p2, %r30, 3; mov.u32 %r20, 2; @%p2 bra SYNC; and.b32 %r35, %r0, 1; sub.u32 %r32, 5, %r35; barrier.arrive %r32, %r33; bra DONE;
    SYNC: barrier.sync %r32, %r33;
    DONE:
    """
    done = go(body, 128, **schedule)
    assert done.codes == [] and done.words().tolist() == [1] * 32 + [2] * 96
