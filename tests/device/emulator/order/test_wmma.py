"""Matrices that wmma moves from and to global memory are accesses like any other: two CTAs may meet in them."""

from __future__ import annotations

import numpy as np
import pytest

from tests.device.emulator.core.harness import Run, kernel, run

REGISTERS = ", ".join(f"%f{i}" for i in range(8))
VALUE = "cvt.rn.f32.u32 %f0, %r1; " + " ".join(f"mov.f32 %f{i}, %f0;" for i in range(1, 8))
"""Each CTA its own number."""
STORE = f"wmma.store.d.sync.aligned.row.m16n16k16.global.f32 [%rd10], {{{REGISTERS}}}, %r12;"
LOAD = f"wmma.load.c.sync.aligned.row.m16n16k16.global.f32 {{{REGISTERS}}}, [%rd10], %r12;"
PLAIN_STORE, PLAIN_LOAD = "st.global.f32 [%rd10+68], %f0;", "ld.global.f32 %f9, [%rd10+68];"
"""Of the second row's second element, where the stride is 16."""
SECOND = "setp.eq.u32 %p1, %r1, 1; @%p1 bra SECOND;"
SCHEDULES = ("fair", "random")
THREADS = (1, 2)


def go(body: str, schedule: str, threads: int, stride: int = 16, apart: int = 0) -> Run:
    """Run `body` in two CTAs of a warp; the second one's matrix is `apart` bytes behind the first one's."""
    start = f"{VALUE} mov.u32 %r12, {stride}; mad.wide.u32 %rd10, %r1, {apart}, %rd0;"
    return run(kernel(start + body), {"out": np.zeros(2048, "<u4")}, grid=2, schedule=schedule, threads=threads)


def told(done: Run) -> list[tuple[str, int, str]]:
    return [(r["code"].decode(), int(r["severity"]), r["message"].decode().split(" at line")[0]) for r in done.records]


@pytest.mark.parametrize("threads", THREADS)
@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize(
    ("first", "second", "found"),
    [
        (STORE, STORE, "warp 0 of CTA 1 writes byte 0 of out, which warp 0 of CTA 0 writes"),
        (STORE, PLAIN_LOAD, "warp 0 of CTA 1 reads byte 68 of out, which warp 0 of CTA 0 writes"),
        (STORE, PLAIN_STORE, "warp 0 of CTA 1 writes byte 68 of out, which warp 0 of CTA 0 writes"),
        (PLAIN_STORE, LOAD, "warp 0 of CTA 1 reads byte 68 of out, which warp 0 of CTA 0 writes"),
        (LOAD, PLAIN_STORE, "warp 0 of CTA 1 writes byte 68 of out, which warp 0 of CTA 0 reads"),
    ],
    ids=["store store", "store ld", "store st", "st load", "load st"],
)
def test_two_ctas_that_meet_in_a_matrix_race(first: str, second: str, found: str, schedule: str, threads: int) -> None:
    done = go(f"{SECOND} {first} bra END; SECOND: {second} END:", schedule, threads)
    assert told(done) == [("global.race", 2, found)]
    assert int(done.records[0]["count"]) >= 1


@pytest.mark.parametrize("threads", THREADS)
@pytest.mark.parametrize("schedule", SCHEDULES)
def test_matrices_that_do_not_meet_are_clean(schedule: str, threads: int) -> None:
    """Side by side in rows of 128 bytes, and one behind the other; loads meet loads."""
    assert told(go(STORE, schedule, threads, stride=32, apart=64)) == []
    assert told(go(STORE, schedule, threads, apart=1024)) == []
    assert told(go(LOAD, schedule, threads)) == []
    four_columns_more = told(go(STORE, schedule, threads, stride=32, apart=48))
    assert [finding[:2] for finding in four_columns_more] == [("global.race", 2)]


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_a_flag_hands_a_matrix_over(schedule: str) -> None:
    wait = "W: ld.acquire.gpu.global.u32 %r13, [%rd0+4096]; setp.eq.u32 %p2, %r13, 0; @%p2 bra W; bar.sync 0;"
    release = "bar.sync 0; st.release.gpu.global.u32 [%rd0+4096], 1;"
    right = f"{SECOND} {STORE} {release} bra END; SECOND: {wait} {LOAD} END:"
    assert told(go(right, schedule, 1)) == []
    early = f"{SECOND} {release} {STORE} bra END; SECOND: {wait} {LOAD} END:"
    assert ("global.race", 2) in [finding[:2] for finding in told(go(early, schedule, 1))]
