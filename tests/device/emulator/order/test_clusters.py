"""CTAs of one cluster that meet in global memory: a race as between those of a grid, whatever else the kernel does."""

from __future__ import annotations

import numpy as np
import pytest

from tests.device.emulator.core.harness import Run, kernel, run

ERROR, WARNING, NOTE = 2, 1, 0
MEET = "barrier.cluster.arrive.release.aligned; barrier.cluster.wait.acquire.aligned;"
RANK = "mov.u32 %r9, %cluster_ctarank; setp.ne.u32 %p1, %r9, 0;"
SHARED = """
  .shared .align 16 .b8 tile[64]; .shared .align 8 .b64 bar; mov.u32 %r10, tile; mov.u32 %r11, bar;
  mapa.shared::cluster.u32 %r12, %r11, 1; setp.ne.u32 %p2, %r0, 0; st.shared.v4.u32 [%r10], {%r9, %r9, %r9, %r9};
  @!%p2 mbarrier.init.shared::cta.b64 [%r11], 1; fence.proxy.async;
"""
STORE, LOAD = "st.global.u32 [%rd0], 7;", "ld.global.u32 %r20, [%rd0];"
BULK = "@!%p2 cp.async.bulk.global.shared::cta.bulk_group [%rd0], [%r10], 16;"
COMMIT = "cp.async.bulk.commit_group;"
GRIDS = ((2, 1), (8, 1), (8, 2))
"""CTAs, and host threads: two clusters at a time are each checked on their own."""


def go(body: str, *, grid: int = 2, threads: int = 1, schedule: str = "fair", size: int = 2, seed: int = 0) -> Run:
    """Run `body` in clusters of `size` CTAs of a warp; %rd0 points to 64 bytes of the cluster's own."""
    own = "mov.u32 %r8, %clusterid.x; mad.wide.u32 %rd0, %r8, 64, %rd0;" if size > 1 else ""
    return run(
        kernel(own + RANK + body), {"out": np.zeros(1024, "<u4")},
        grid=grid, threads=threads, schedule=schedule, seed=seed, cluster=(size, 1, 1) if size > 1 else None,
    )  # fmt: skip


def told(done: Run) -> list[tuple[str, int]]:
    return sorted({(r["code"].decode(), int(r["severity"])) for r in done.records}, key=lambda found: -found[1])


def by_rank(first: str, second: str) -> str:
    return f"@%p1 bra SECOND; {first} bra END; SECOND: {second} END:"


RIGHT = {
    "apart": "mad.wide.u32 %rd10, %r9, 4, %rd0; st.global.u32 [%rd10], %r9;",
    "loads": LOAD,
    "barrier": by_rank(f"{STORE} {MEET}", f"{MEET} {LOAD}"),
    "the other way": by_rank(f"{LOAD} {MEET}", f"{MEET} {STORE}"),
    "relaxed barrier": by_rank(
        f"{STORE} fence.acq_rel.cluster; barrier.cluster.arrive.relaxed.aligned; barrier.cluster.wait.acquire.aligned;",
        f"{MEET} {LOAD}",
    ),
    "mbarrier": SHARED + MEET + by_rank(
        f"{STORE} @!%p2 mbarrier.arrive.release.cluster.shared::cluster.b64 _, [%r12];",
        f"W: mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 %p3, [%r11], 0; @!%p3 bra W; {LOAD}",
    ) + MEET,
    "flag": by_rank(
        f"{STORE} st.release.cluster.global.u32 [%rd0+32], 1;",
        f"W: ld.acquire.cluster.global.u32 %r21, [%rd0+32]; setp.eq.u32 %p3, %r21, 0; @%p3 bra W; {LOAD}",
    ),
    "bulk store": SHARED + by_rank(
        f"{BULK} {COMMIT} cp.async.bulk.wait_group 0; {MEET}", f"{MEET} {LOAD}",
    ),
}  # fmt: skip
WRONG = {
    "stores": ("st.global.u32 [%rd0], %r9;", ERROR),
    "equal stores": (STORE, NOTE),
    "store, load": (by_rank(STORE, LOAD), ERROR),
    "load, store": (by_rank(LOAD, STORE), ERROR),
    "after the barrier": (MEET + by_rank(STORE, LOAD), ERROR),
    "late": (by_rank(f"{MEET} {STORE}", f"{MEET} {LOAD}"), ERROR),
    "no release": (by_rank(
        f"{STORE} barrier.cluster.arrive.relaxed.aligned; barrier.cluster.wait.acquire.aligned;", f"{MEET} {LOAD}",
    ), WARNING),
    "bulk stores": (SHARED + BULK + COMMIT + "cp.async.bulk.wait_group 0;", WARNING),
    "a wait for the source": (SHARED + by_rank(
        f"{BULK} {COMMIT} cp.async.bulk.wait_group.read 0; {MEET}", f"{MEET} {LOAD}",
    ), WARNING),
    "a flag of scope .cta": (by_rank(
        f"{STORE} st.release.cta.global.u32 [%rd0+32], 1;",
        f"W: ld.acquire.cta.global.u32 %r21, [%rd0+32]; setp.eq.u32 %p3, %r21, 0; @%p3 bra W; {LOAD}",
    ), WARNING),
    "one side of scope .cta": (by_rank(
        f"{STORE} st.release.cluster.global.u32 [%rd0+32], 1;",
        f"W: ld.acquire.cta.global.u32 %r21, [%rd0+32]; setp.eq.u32 %p3, %r21, 0; @%p3 bra W; {LOAD}",
    ), WARNING),
}  # fmt: skip


@pytest.mark.parametrize("schedule", ["fair", "lazy", "random"])
@pytest.mark.parametrize(("grid", "threads"), GRIDS)
@pytest.mark.parametrize("body", RIGHT.values(), ids=RIGHT)
def test_what_the_cluster_orders_is_clean(body: str, grid: int, threads: int, schedule: str) -> None:
    assert told(go(body, grid=grid, threads=threads, schedule=schedule)) == []


@pytest.mark.parametrize("schedule", ["fair", "lazy", "random"])
@pytest.mark.parametrize(("grid", "threads"), GRIDS)
@pytest.mark.parametrize(("body", "severity"), WRONG.values(), ids=WRONG)
def test_what_it_does_not_is_a_race(body: str, severity: int, grid: int, threads: int, schedule: str) -> None:
    done = go(body, grid=grid, threads=threads, schedule=schedule)
    assert told(done)[0] == ("global.race", severity)
    assert {code for code, _ in told(done)} == {"global.race"}
    assert not done.launch.reran


def test_partners_alone_may_collide() -> None:
    """CTAs 1 and 3 store where 0 and 2 have: a scheduler that gives both CTAs of a pair one tile."""
    done = go("st.global.u32 [%rd0], %r9;", grid=4)
    (record,) = done.records
    assert int(record["count"]) == 2
    message = record["message"].decode()
    assert message.startswith("warp 0 of CTA 1 writes byte 0 of out, which warp 0 of CTA 0 writes at")


def test_threads_that_share_no_cluster_meet_as_before() -> None:
    """Clusters 0 and 1 store to one word: several host threads run again as one, which names them."""
    for threads in (1, 2):
        body = "and.b32 %r8, %r9, 1; mad.wide.u32 %rd10, %r8, 4, %rd1; @!%p1 st.global.u32 [%rd10], %r1;"
        text = kernel(RANK + body)
        buffers = {"in": np.zeros(4, "<u4"), "out": np.zeros(64, "<u4")}
        done = run(text, buffers, grid=4, threads=threads, cluster=(2, 1, 1), inputs=["in"])
        assert told(done) == [("global.race", ERROR)]
        message = done.message("global.race")
        assert message.startswith("warp 0 of CTA 2 writes byte 0 of out, which warp 0 of CTA 0 writes")
        assert done.launch.reran == (threads == 2)


@pytest.mark.parametrize("kind", WRONG)
def test_threads_change_no_finding(kind: str) -> None:
    def found(threads: int) -> list[tuple[bytes, bytes, int, int]]:
        done = go(WRONG[kind][0], grid=8, threads=threads)
        return [(r["code"], r["message"], int(r["severity"]), int(r["count"])) for r in done.records]

    assert found(1) == found(2) != []
