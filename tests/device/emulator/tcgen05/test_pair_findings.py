"""Hazards of a pair of CTAs: a kernel that trips each finding, and its twin without the fault, which is clean."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from tests.device.emulator.tcgen05.harness import SCHEDULES, Body, copy_in, fill, run
from tests.device.emulator.tcgen05.operands import K, instruction, small_integers
from tests.device.emulator.tcgen05.pair import (
    AFTER,
    ALLOC,
    COMMIT_BOTH,
    FREE,
    IMAGE,
    TAKE,
    allocated,
    cluster_sync,
    descriptors,
    freed,
    images,
    in_cta,
    mma,
    one,
    operands,
    ranked,
)
from tests.device.emulator.tcgen05.test_pair import BOX, LOAD, tensor_map

RNG = np.random.default_rng(0)
DATA = images(small_integers(RNG, 256, K), small_integers(RNG, 16, K))
ISSUE = mma(instruction(256, 16), False)
ACCUMULATE = mma(instruction(256, 16), True)
COMMIT_OWN = "tcgen05.commit.cta_group::2.mbarrier::arrive::one.shared::cluster.b64 [mbar];"
LOAD_SUMS = """
add.u32 r0, tmem, rowbits;
tcgen05.ld.sync.aligned.32x32b.x8.b32 {r4, r5, r6, r7, r8, r9, r10, r11}, [r0];
"""
WAIT_LOADS = "tcgen05.wait::ld.sync.aligned;"
RELINQUISH = "tcgen05.relinquish_alloc_permit.cta_group::2.sync.aligned;"
WAIT_OWN = "WAIT{0}:\nmbarrier.try_wait.parity.shared::cta.b64 q, [mbar], 0;\n@!q bra WAIT{0};"


def overwritten(rank: int, wait: bool) -> Body:
    """A CTA of the pair writes over its operand, though the tensor core may still read it."""
    body = one(operands(allocated()), 0, ISSUE + COMMIT_BOTH)
    if wait:
        body.wait()
    one(body, rank, "st.shared.u32 [data], tid;")
    return freed(body.wait())


def sums_read(*, wait: bool = True, fence: bool = True) -> Body:
    """The odd CTA, which does not issue the product, loads its part of the sums."""
    body = one(operands(allocated()), 0, ISSUE + COMMIT_BOTH)
    steps = [WAIT_OWN.format(1)] * wait + [AFTER] * fence + [LOAD_SUMS, WAIT_LOADS]
    in_cta(body, 1, "\n".join(steps))
    return freed(body.wait().add(AFTER))


def without_proxy_fence(fence: bool) -> Body:
    """The odd CTA stores its operands with ordinary instructions; the even CTA's product reads them."""
    copy = copy_in(IMAGE)
    body = allocated().add(copy if fence else copy.replace("fence.proxy.async.shared::cta;", ""))
    body = cluster_sync(body.add(descriptors()))
    return freed(one(body, 0, ISSUE + COMMIT_BOTH).wait())


def not_waited_for(wait: bool) -> Body:
    """The odd CTA's operands come by TMA, which counts at the even CTA's barrier: the product must wait for it."""
    body = allocated().add(copy_in(IMAGE)).add(descriptors())
    body.add("mov.b64 cursor, map;\nand.b32 r3, mbar2, 0xFEFFFFFF;")
    body = cluster_sync(body)
    one(body, 0, f"mbarrier.arrive.expect_tx.shared::cta.b64 _, [mbar2], {BOX};")
    cluster_sync(body)
    one(body, 1, f"{LOAD}.cta_group::2 [data], [cursor, {{0, 0}}], [r3];")
    wait_for = "WAITA:\nmbarrier.try_wait.parity.shared::cta.b64 q, [mbar2], 0;\n@!q bra WAITA;"
    one(body, 0, f"{wait_for if wait else ''}\n{ISSUE}{COMMIT_BOTH}{'' if wait else wait_for}")
    return freed(body.wait())


def unwritten(written: bool) -> Body:
    """A product that accumulates, where only the even CTA's part of D has been written."""
    body = allocated()
    in_cta(body, 0, fill(16))
    if written:
        in_cta(body, 1, fill(16).replace("COPY", "COPYB"))
    return freed(one(operands(body), 0, ACCUMULATE + COMMIT_BOTH).wait())


def leaving(early: bool) -> Body:
    """The even CTA exits; the odd one issues a product of the pair beside it."""
    body = operands(allocated())
    if early:
        body.add("setp.eq.u32 q, rank, 0;\n@q ret;").sync().sync()
    one(body, 1, ISSUE + COMMIT_BOTH.replace("3;", "2;" if early else "3;"))
    return freed(body.wait())


def freed_early(wait: bool) -> Body:
    """dealloc while the other CTA may still load its sums."""
    body = one(operands(allocated()), 0, ISSUE + COMMIT_BOTH).wait().add(AFTER).add(LOAD_SUMS).add(WAIT_LOADS)
    body.fenced_sync()
    return freed(body) if wait else body.warp(0, FREE.format(512))


def counted(count: int) -> Body:
    """Two commits of the pair to barriers that expect one arrival per phase, with no wait between."""
    body = operands(allocated())
    return freed(one(body, 0, ISSUE + COMMIT_BOTH * count).wait())


def unlike(*, warps: bool = False, places: bool = False) -> Body:
    body = ranked()
    if places:
        body.add("shl.b32 r0, rank, 2;\nadd.u32 slot, slot, r0;")
    body.add("mov.u32 other, 0;" if not warps else "mov.u32 other, rank;")
    body.add(f"setp.ne.u32 q, warp, other;\n@q bra OTHERS;\n{ALLOC.format(64)}\n{TAKE}\n{FREE.format(64)}\nOTHERS:")
    return cluster_sync(body)


PAIRS: list[tuple[str, str, int, Callable[[], Body], Callable[[], Body]]] = [
    ("own operand", "async.overwrite", 2, lambda: overwritten(0, False), lambda: overwritten(0, True)),
    ("operand of the other CTA", "async.overwrite", 2, lambda: overwritten(1, False), lambda: overwritten(1, True)),
    ("sums of the other CTA", "tmem.read_early", 2, lambda: sums_read(wait=False), sums_read),
    ("no fence in the other CTA", "tcgen05.missing_fence", 1, lambda: sums_read(fence=False), sums_read),
    ("no proxy fence", "proxy.missing_fence", 2, lambda: without_proxy_fence(False), lambda: without_proxy_fence(True)),
    ("bytes of the other CTA", "async.read_early", 2, lambda: not_waited_for(False), lambda: not_waited_for(True)),
    ("uninitialised D", "tmem.uninitialised", 1, lambda: unwritten(False), lambda: unwritten(True)),
    ("freed early", "tmem.dealloc_in_use", 1, lambda: freed_early(False), lambda: freed_early(True)),
]


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize(
    ("code", "severity", "bad", "good"), [pair[1:] for pair in PAIRS], ids=[pair[0] for pair in PAIRS]
)
def test_found_and_not_in_the_twin(
    code: str, severity: int, bad: Callable[[], Body], good: Callable[[], Body], schedule: str
) -> None:
    options = {"ctas": 2, "schedule": schedule, "tensor_map": tensor_map(64)}
    assert code in run(bad(), DATA, **options).codes(severity)  # type: ignore[arg-type]
    control = run(good(), DATA, **options)  # type: ignore[arg-type]
    assert control.ok, control.codes()
    assert not control.codes()


def test_both_ctas_leak_what_none_frees() -> None:
    done = run(allocated(64), ctas=2)
    assert done.codes(2) == {"tmem.leak"}
    assert not run(freed(allocated(64), 64), ctas=2).codes()


@pytest.mark.parametrize("schedule", ["fair", "lazy"])
def test_a_cta_that_exits_before_the_product(schedule: str) -> None:
    done = run(leaving(True), DATA, ctas=2, schedule=schedule)
    assert "CTA 0 of its cluster, which has exited" in done.message("cluster.exited_cta")
    assert not run(leaving(False), DATA, ctas=2, schedule=schedule).codes()


# ---- allocation


@pytest.mark.parametrize("place", [False, True])
def test_calls_of_a_pair_that_are_unlike_are_noted(place: bool) -> None:
    """The ISA asks for one warp of each CTA, and no more: CUTLASS does."""
    done = run(unlike(warps=not place, places=place), ctas=2)
    assert done.ok and not done.codes()
    assert "tmem.pair_unlike" in done.codes(0)
    assert ("the same shared address" in done.message("tmem.pair_unlike")) == place
    assert "tmem.pair_unlike" not in run(unlike(), ctas=2).codes(0)


@pytest.mark.parametrize("rank", [0, 1])
def test_allocation_by_one_cta_is_a_hang_that_says_so(rank: int) -> None:
    body = ranked()
    body.add(f"setp.ne.u32 q, rank, {rank};\nsetp.ne.u32 q2, warp, 0;\nor.pred q, q, q2;\n@q bra OTHERS;")
    body.add(ALLOC.format(64) + "\nOTHERS:")
    done = run(cluster_sync(body), ctas=2)
    assert done.launch.outcome.name == "HANG"
    said = done.message("emulator.deadlock").splitlines()
    assert [line for line in said if line.startswith("deadlock: ")] == [
        f"deadlock: warp 0 of CTA {rank} waits for a warp of the other CTA of its pair to execute tcgen05.alloc as well"
    ]


def test_partner_that_has_exited() -> None:
    body = ranked().add("setp.eq.u32 q, rank, 1;\n@q ret;")
    done = run(body.warp(0, ALLOC.format(64)), ctas=2)
    assert done.launch.outcome.name == "HANG"
    assert "but that CTA has exited" in done.message("emulator.deadlock")


def test_dealloc_before_a_barrier_that_the_partner_reaches_first_hangs() -> None:
    """PTX ISA 9.7.16.5, table 48: dealloc may block, so such a kernel hangs at times; here always."""
    body = allocated(64)
    in_cta(body, 1, f"setp.ne.u32 q, warp, 0;\n@q bra MEET;\n{FREE.format(64)}\nMEET:")
    cluster_sync(body)
    in_cta(body, 0, f"setp.ne.u32 q, warp, 0;\n@q bra END;\n{FREE.format(64)}\nEND:")
    done = run(body, ctas=2)
    assert done.launch.outcome.name == "HANG"
    assert "tcgen05.dealloc" in done.message("emulator.deadlock")


def test_allocations_wait_until_both_have_room() -> None:
    """Warp 1 of both asks for columns that warp 0 of both frees later."""
    body = cluster_sync(ranked().warp(0, ALLOC.format(512))).add(TAKE)
    body.warp(1, f"add.u32 slot, slot, 4;\n{ALLOC.format(32)}\n{TAKE}\n{FREE.format(32)}\nret;")
    done = run(body.warp(0, f"nanosleep.u32 1000;\n{FREE.format(512)}"), ctas=2)
    assert done.ok, done.codes()
    assert not done.codes()


FAULTS: list[tuple[str, str, Callable[[], Body], int]] = [
    ("no cluster", "tcgen05.no_pair", lambda: allocated_alone(), 1),
    ("odd cluster", "tcgen05.no_pair", lambda: ranked().warp(0, ALLOC.format(32)), 3),
    (
        "columns differ",
        "tmem.pair_differs",
        lambda: ranked().add("shl.b32 r0, 32, rank;").warp(0, ALLOC.replace("{}", "r0")),
        2,
    ),
    (
        "unallocated in the other CTA",
        "tmem.not_allocated",
        lambda: one(operands(cluster_sync(ranked())).add("mov.u32 tmem, 0;"), 0, ISSUE),
        2,
    ),
    ("after relinquish", "tmem.alloc_after_relinquish", lambda: ranked().warp(0, RELINQUISH + ALLOC.format(32)), 2),
    ("wrong size", "tmem.bad_dealloc", lambda: allocated(64).warp(0, FREE.format(32)), 2),
    ("M of 64", "tcgen05.instruction_descriptor", lambda: issued(mma(instruction(64, 16), False)), 2),
    ("N of 24", "tcgen05.instruction_descriptor", lambda: issued(mma(instruction(256, 24), False)), 2),
    ("lane of D", "tmem.lanes", lambda: issued(ISSUE.replace("[tmem]", "[tmem+1048576]")), 2),
    ("columns of D", "tmem.out_of_bounds", lambda: issued(ISSUE.replace("[tmem]", "[tmem+500]")), 2),
    ("mask of nobody", "cluster.bad_mask", lambda: issued(COMMIT_BOTH.replace("3;", "4;")), 2),
    ("empty mask", "cluster.bad_mask", lambda: issued(COMMIT_BOTH.replace("3;", "0;")), 2),
    ("barrier of another pair", "cluster.mbarrier_elsewhere", lambda: signals(2, ".cta_group::2"), 4),
    ("barrier of the other CTA", "cluster.mbarrier_elsewhere", lambda: signals(1, ""), 2),
    (
        "lanes of the even CTA",
        "tmem.lanes",
        lambda: in_cta(allocated().add(fill(8)), 0, LOAD_SUMS.replace("[r0]", "[r0+8388608]")),
        2,
    ),
]


def allocated_alone() -> Body:
    return ranked().warp(0, ALLOC.format(32))


def signals(rank: int, group: str) -> Body:
    """A load of CTA 0 that signals a barrier of another CTA."""
    body = ranked().add(f"mov.b64 cursor, map;\nmapa.shared::cluster.u32 r3, mbar, {rank};")
    return one(body, 0, f"{LOAD}{group} [data], [cursor, {{0, 0}}], [r3];")


def issued(text: str) -> Body:
    return one(operands(allocated()), 0, text)


@pytest.mark.parametrize(("code", "bad", "ctas"), [fault[1:] for fault in FAULTS], ids=[fault[0] for fault in FAULTS])
def test_faults_end_the_launch(code: str, bad: Callable[[], Body], ctas: int) -> None:
    done = run(bad(), DATA, ctas=ctas, tensor_map=tensor_map(64))
    assert not done.ok
    assert code in done.codes(2)


def test_shapes_of_a_pair_are_those_of_the_table() -> None:
    """PTX ISA 9.7.16.2.1: M 128 and 256, N in steps of 16."""
    for m in range(0, 512, 16):
        done = run(freed(issued(f"{mma(instruction(m, 32), False)}{COMMIT_BOTH}").wait()), DATA, ctas=2)
        assert ("tcgen05.instruction_descriptor" in done.codes(2)) == (m not in (128, 256)), m
    for n in range(8, 264, 8):
        done = run(freed(issued(f"{mma(instruction(128, n), False)}{COMMIT_BOTH}").wait()), DATA, ctas=2)
        assert ("tcgen05.instruction_descriptor" in done.codes(2)) == (n % 16 != 0), n


# ---- commits


def test_commit_that_the_other_cta_waits_for_in_vain() -> None:
    """Without .multicast::cluster only the issuing CTA is told."""
    done = run(freed(one(operands(allocated()), 0, f"{ISSUE}\n{COMMIT_OWN}").wait()), DATA, ctas=2)
    assert done.launch.outcome.name == "HANG"
    assert "of CTA 0, while warp 0 of CTA 1 waits" in done.message("tcgen05.commit_unseen")
    assert "tcgen05.commit_unseen" in done.codes(2)
    alone = one(operands(allocated()), 0, f"{ISSUE}\n{COMMIT_OWN}")
    in_cta(alone, 0, WAIT_OWN.format(0))
    assert not run(freed(alone), DATA, ctas=2).codes()


def test_commits_beyond_the_count_of_a_barrier() -> None:
    """Two phases are complete at once, which a waiter by parity may miss."""
    assert not run(counted(1), DATA, ctas=2).codes()
    assert "mbarrier.phase_skipped" in run(counted(2), DATA, ctas=2).codes()


def test_arrival_at_a_cta_that_has_exited_is_a_warning() -> None:
    body = ranked().add("setp.eq.u32 q, rank, 0;\n@q ret;")
    commit = "mov.b16 h1, 1;\ntcgen05.commit.cta_group::1.mbarrier::arrive::one.shared::cluster.multicast::cluster.b64"
    done = run(body.thread(0, f"{commit} [mbar], h1;"), ctas=2)
    assert done.ok
    assert "cluster.exited_cta" in done.codes()


def test_lanes_counted_through_both_ctas_are_noted_and_taken_for_the_own() -> None:
    """Published kernels let the odd CTA load lanes 128 to 255."""
    through = "shl.b32 r1, rank, 23;\nadd.u32 r0, r0, r1;"
    load = LOAD_SUMS.replace("tcgen05.ld", through + "\ntcgen05.ld")
    body = cluster_sync(allocated(out_bytes=4 * 128).add(fill(8)))
    body.add(load).add(WAIT_LOADS).add("mul.wide.u32 off, tid, 4;\nadd.u64 cursor, to, off;")
    body.add("st.global.u32 [cursor], r5;")
    done = run(freed(body), out_bytes=2 * 4 * 128, ctas=2)
    assert done.ok
    assert not done.codes()
    assert "tmem.pair_lane" in done.codes(0)
    assert done.words(2, 128).tolist() == [[lane << 16 | 1 for lane in range(128)]] * 2
