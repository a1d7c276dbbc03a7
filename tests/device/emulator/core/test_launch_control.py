# ruff: noqa: E501  (PTX text is not broken where a reader would not break it)
"""Cooperative launches, griddepcontrol, and clusters whose launch is cancelled."""

from __future__ import annotations

import numpy as np
import pytest

from ptxgym.device.emulator.core import Outcome
from tests.device.emulator.core.harness import Run, kernel, run

SCHEDULES = [("fair", 0), ("lazy", 0), *(("random", seed) for seed in range(6))]
BARRIER = """
  mov.u32 %r40, %envreg2; mov.u32 %r41, %envreg1; mov.b64 %rd20, {%r40, %r41}; setp.ne.s64 %p8, %rd20, 0; @%p8 bra THERE; trap;
THERE:
  bar.sync 0; setp.ne.u32 %p9, %r0, 0; @%p9 bra GATHER;
  mov.u32 %r42, %nctaid.x; sub.u32 %r42, 0x80000001, %r42; setp.eq.u32 %p10, %r1, 0; selp.u32 %r42, %r42, 1, %p10;
  fence.acq_rel.gpu; atom.global.add.u32 %r43, [%rd20+4], %r42;
SPIN:
  ld.acquire.gpu.global.u32 %r44, [%rd20+4]; xor.b32 %r44, %r44, %r43; setp.ge.s32 %p11, %r44, 0; @%p11 bra SPIN;
GATHER:
  bar.sync 0;
"""
"""The protocol of cooperative groups: the top bit of a counter flips when every CTA has come."""


def grid_sum(**shape: object) -> Run:
    body = f"""
      mul.wide.u32 %rd9, %r3, 4; add.s64 %rd9, %rd1, %rd9; mul.lo.u32 %r10, %r3, %r3; st.global.u32 [%rd9], %r10;
      {BARRIER}
      mov.u32 %r20, 0; mov.u32 %r11, 0; mov.u32 %r12, %nctaid.x; mul.lo.u32 %r12, %r12, %r2;
    NEXT: mul.wide.u32 %rd9, %r11, 4; add.s64 %rd9, %rd1, %rd9; ld.global.u32 %r13, [%rd9]; add.u32 %r20, %r20, %r13;
      add.u32 %r11, %r11, 1; setp.lt.u32 %p1, %r11, %r12; @%p1 bra NEXT;
      mul.wide.u32 %rd9, %r3, 4; add.s64 %rd9, %rd0, %rd9; st.global.u32 [%rd9], %r20;
    """
    return run(
        kernel(body), {"out": np.zeros(64 * 5, "<u4"), "mid": np.zeros(64 * 5, "<u4")}, grid=5, block=64, **shape
    )


@pytest.mark.parametrize(("schedule", "seed"), SCHEDULES)
def test_every_cta_sees_what_all_wrote_before_the_grid_wide_barrier(schedule: str, seed: int) -> None:
    done = grid_sum(schedule=schedule, seed=seed, cooperative=True)
    assert done.launch.outcome == Outcome.OK and not done.codes
    assert set(done.words().tolist()) == {sum(i * i for i in range(320)) & 0xFFFFFFFF}


def test_without_a_cooperative_launch_the_barrier_traps_and_says_why() -> None:
    done = grid_sum()
    assert done.fatal == "kernel.trap" and "cudaLaunchCooperativeKernel" in done.message("kernel.trap")


# ---- work stealing

STEAL = """
  .shared .align 16 .b8 response[16]; .shared .align 8 .b8 bar[8];
  .reg .b128 %q; .reg .b32 %first, %phase; mov.u32 %first, %r1; mov.u32 %phase, 0;
  setp.ne.u32 %p1, %r0, 0; @%p1 bra READY; mbarrier.init.shared::cta.b64 [bar], 1; fence.mbarrier_init.release.cluster;
READY: bar.sync 0;
WORK:
  @%p1 bra ASKED; mbarrier.arrive.expect_tx.shared::cta.b64 _, [bar], 16;
  clusterlaunchcontrol.try_cancel.async.shared::cta.mbarrier::complete_tx::bytes.b128 [response], [bar];
ASKED:
  mad.lo.u32 %r10, %first, %r2, %r0; mul.wide.u32 %rd9, %r10, 4; add.s64 %rd9, %rd0, %rd9; add.u32 %r20, %r10, 1000; atom.global.add.u32 %r21, [%rd9], %r20;
  mul.wide.u32 %rd10, %r1, 4; add.s64 %rd10, %rd1, %rd10; @!%p1 atom.global.add.u32 %r21, [%rd10], 1;
TRY: mbarrier.try_wait.parity.shared::cta.b64 %p2, [bar], %phase; @!%p2 bra TRY; xor.b32 %phase, %phase, 1;
  ld.shared.b128 %q, [response]; clusterlaunchcontrol.query_cancel.is_canceled.pred.b128 %p3, %q;
  @!%p3 bra DONE;
  clusterlaunchcontrol.query_cancel.get_first_ctaid.v4.b32.b128 {%first, %r30, %r31, _}, %q;
  fence.proxy.async.shared::cta; bar.sync 0; bra WORK;
DONE:
"""


def steal(body: str = STEAL, grid: int = 24, **shape: object) -> Run:
    text = kernel(body).replace("sm_90a", "sm_100a")
    return run(text, {"out": np.zeros(64 * grid, "<u4"), "tiles": np.zeros(grid, "<u4")}, grid=grid, block=64, **shape)


@pytest.mark.parametrize(("schedule", "seed"), SCHEDULES)
def test_every_tile_is_done_once_by_whoever_took_it(schedule: str, seed: int) -> None:
    done = steal(schedule=schedule, seed=seed)
    assert done.launch.outcome == Outcome.OK and not done.codes, done.records
    assert done.words().tolist() == [i + 1000 for i in range(64 * 24)]
    tiles = done.words("tiles")
    assert tiles.sum() == 24 and (tiles == 0).any() and tiles.max() > 1  # some CTAs never began, others did their work


def test_a_single_cta_has_nothing_to_take_over() -> None:
    done = steal(grid=1)
    assert done.words("tiles").tolist() == [1] and not done.codes


@pytest.mark.parametrize(
    ("old", "new", "code"),
    [
        (
            "TRY: mbarrier.try_wait.parity.shared::cta.b64 %p2, [bar], %phase; @!%p2 bra TRY;",
            "",
            "clusterlaunchcontrol.no_response",
        ),
        ("  @!%p3 bra DONE;\n", "", "clusterlaunchcontrol.after_failure"),
        ("fence.proxy.async.shared::cta; bar.sync 0; bra WORK;", "bra WORK;", "async.overwrite"),
        (
            "%q;\n  @!%p3",
            "%q;\n  clusterlaunchcontrol.query_cancel.get_first_ctaid::x.b32.b128 %r30, %q;\n  @!%p3",
            "clusterlaunchcontrol.not_canceled",
        ),
    ],
    ids=["no wait", "no end", "no barrier", "coordinates of nothing"],
)
def test_mistakes_are_named(old: str, new: str, code: str) -> None:
    assert old in STEAL
    done = steal(STEAL.replace(old, new), schedule="lazy", warp_instruction_budget=200_000)
    assert code in done.codes


MEET = "barrier.cluster.arrive.aligned; barrier.cluster.wait.aligned;"
RELEASE = "fence.proxy.async::generic.release.sync_restrict::shared::cta.cluster;"
ACQUIRE = "fence.proxy.async::generic.acquire.sync_restrict::shared::cluster.cluster;"
MEET_RELAXED = "barrier.cluster.arrive.relaxed.aligned; barrier.cluster.wait.aligned;"


def steal_in_clusters(meet: str) -> str:
    """Clusters of two; their CTAs meet before the next request, after all have read the response of the last."""
    body = STEAL.replace(
        "@%p1 bra ASKED; mbarrier.arrive.expect_tx.shared::cta.b64 _, [bar], 16;",
        "@%p1 bra ASKED; mbarrier.arrive.expect_tx.shared::cta.b64 _, [bar], 16; mov.u32 %r11, %cluster_ctarank; setp.ne.u32 %p4, %r11, 0; @%p4 bra ASKED;",
    )
    body = body.replace("complete_tx::bytes.b128", "complete_tx::bytes.multicast::cluster::all.b128")
    body = body.replace("READY: bar.sync 0;", f"READY: {MEET}")
    return body.replace(
        "fence.proxy.async.shared::cta; bar.sync 0; bra WORK;",
        f"mov.u32 %r11, %cluster_ctarank; add.u32 %first, %first, %r11; {meet} bra WORK;",
    )


@pytest.mark.parametrize(
    "meet",
    [f"fence.proxy.async.shared::cta; {MEET}", f"{RELEASE} {MEET_RELAXED} {ACQUIRE}"],
    ids=["release and acquire", "proxy fences"],
)
def test_the_response_to_a_cluster_goes_to_each_of_its_ctas(meet: str) -> None:
    """The second is the ISA's own example (9.7.13.17): a relaxed arrival between proxy fences that release and acquire."""
    for schedule, seed in SCHEDULES:
        done = steal(steal_in_clusters(meet), schedule=schedule, seed=seed, cluster=(2, 1, 1))
        assert done.launch.outcome == Outcome.OK and not done.codes, done.records
        assert done.words().tolist() == [i + 1000 for i in range(64 * 24)]


@pytest.mark.parametrize("before", ["", ACQUIRE, "fence.proxy.async.shared::cta;"])
def test_a_relaxed_arrival_without_a_release_does_not_hand_over_who_has_read(before: str) -> None:
    for schedule, seed in SCHEDULES:
        done = steal(steal_in_clusters(f"{before} {MEET_RELAXED}"), schedule=schedule, seed=seed, cluster=(2, 1, 1))
        assert set(done.codes) == {"async.overwrite"}, done.records
