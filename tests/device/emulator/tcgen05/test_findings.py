"""Every finding of tcgen05: a kernel that trips it, and its twin without the fault, which is clean."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from ptxgym.device.emulator.findings import RECORD_DTYPE
from tests.device.emulator.tcgen05.harness import (
    PROLOGUE,
    SCHEDULES,
    START,
    Body,
    Run,
    allocated,
    copy_in,
    dump,
    fill,
    freed,
    run,
)
from tests.device.emulator.tcgen05.operands import bf16, instruction, small_integers
from tests.device.emulator.tcgen05.test_mma import IMAGE, K, descriptors, image, mma

COMMIT = "tcgen05.commit.cta_group::1.mbarrier::arrive::one.shared::cluster.b64 [mbar];"
AFTER = "tcgen05.fence::after_thread_sync;"
LOAD = "add.u32 r0, tmem, rowbits;\ntcgen05.ld.sync.aligned.32x32b.x8.b32 {r4, r5, r6, r7, r8, r9, r10, r11}, [r0];"
WAIT_LOADS, WAIT_STORES = "tcgen05.wait::ld.sync.aligned;", "tcgen05.wait::st.sync.aligned;"
STORE = "add.u32 r0, tmem, rowbits;\ntcgen05.st.sync.aligned.32x32b.x2.b32 [r0], {tid, warp};"
ISSUE = mma(instruction(128, 8), False)
UNREAD = {"tmem.sums_lost"}
"""Noted where a kernel frees what it computed, as most of these do."""
RNG = np.random.default_rng(0)
DATA = image(bf16(small_integers(RNG, 128, K)), bf16(small_integers(RNG, 8, K)))


COPY = "tcgen05.cp.cta_group::1.32x128b.warpx4 [tmem], da;"


def atoms_of_32(descriptor: str) -> str:
    """128B swizzle with atoms of 32 bytes in place of the descriptor's mode."""
    return f"and.b64 {descriptor}, {descriptor}, {(1 << 61) - 1};\nor.b64 {descriptor}, {descriptor}, {1 << 61};"


def operands(body: Body | None = None) -> Body:
    """A kernel with A and B in shared memory."""
    return (body or allocated()).add(copy_in(IMAGE)).add(descriptors()).fenced_sync()


def overwrite_operand(wait: bool) -> Body:
    body = operands().thread(0, f"{ISSUE}\n{COMMIT}")
    if wait:
        body.wait()
    return freed(body.thread(32, "st.shared.u32 [data], tid;").wait())


def read_result(*, commit: bool = True, wait: bool = True, fence: bool = True) -> Body:
    body = operands().thread(0, ISSUE + (f"\n{COMMIT}" if commit else ""))
    if wait and commit:
        body.wait()
    if fence:
        body.add(AFTER)
    body.add(LOAD).add(WAIT_LOADS)
    if commit and not wait:
        body.wait()
    return freed(body)


def reuse_cells(wait: bool) -> Body:
    """A tcgen05.mma over cells that a tcgen05.ld has read."""
    body = operands(allocated().add(fill(8)))
    body.add(LOAD)
    if wait:
        body.add(WAIT_LOADS)
    body.fenced_sync().thread(0, f"{ISSUE}\n{COMMIT}").wait()
    return freed(body.add(WAIT_LOADS).add(AFTER))


def stored_operand(wait: bool) -> Body:
    """A tcgen05.mma that accumulates onto what tcgen05.st wrote."""
    text = fill(8)
    body = operands(allocated().add(text if wait else text.removesuffix(WAIT_STORES)))
    body.thread(0, mma(instruction(128, 8), True) + f"\n{COMMIT}").wait()
    return freed(body.add(WAIT_STORES))


def allocation(*lines: str, again: str = "") -> Body:
    body = Body().add(PROLOGUE).thread(0, START)
    return body.warp(0, "\n".join(lines)).fenced_sync()


ALLOC = "tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32 [slot], {};"
TAKE = "ld.shared.u32 tmem, [slot];"
FREE = "tcgen05.dealloc.cta_group::1.sync.aligned.b32 tmem, {};"
RELINQUISH = "tcgen05.relinquish_alloc_permit.cta_group::1.sync.aligned;"

PAIRS: list[tuple[str, str, int, Callable[[], Body], Callable[[], Body]]] = [
    ("overwritten operand", "async.overwrite", 2, lambda: overwrite_operand(False), lambda: overwrite_operand(True)),
    ("no wait for the commit", "tmem.read_early", 2, lambda: read_result(wait=False), read_result),
    ("no commit", "tmem.read_early", 2, lambda: read_result(commit=False), read_result),
    ("never committed", "tcgen05.not_committed", 1, lambda: read_result(commit=False), read_result),
    ("no fence after", "tcgen05.missing_fence", 1, lambda: read_result(fence=False), read_result),
    ("no wait::ld", "tmem.overwrite", 2, lambda: reuse_cells(False), lambda: reuse_cells(True)),
    ("no wait::st", "tmem.overwrite", 2, lambda: stored_operand(False), lambda: stored_operand(True)),
    (
        "leak",
        "tmem.leak",
        2,
        lambda: allocation(ALLOC.format(64)),
        lambda: allocation(ALLOC.format(64), TAKE, FREE.format(64)),
    ),
    (
        "increase",
        "tmem.alloc_increases",
        1,
        lambda: allocation(ALLOC.format(32), TAKE, FREE.format(32), ALLOC.format(64), TAKE, FREE.format(64)),
        lambda: allocation(ALLOC.format(64), TAKE, FREE.format(64), ALLOC.format(32), TAKE, FREE.format(32)),
    ),
    (
        "uninitialised D",
        "tmem.uninitialised",
        1,
        lambda: freed(operands().thread(0, mma(instruction(128, 8), True) + f"\n{COMMIT}").wait().add(AFTER)),
        lambda: freed(operands().thread(0, f"{ISSUE}\n{COMMIT}").wait().add(AFTER)),
    ),
    (
        "uninitialised load",
        "tmem.uninitialised",
        1,
        lambda: freed(allocated().add(LOAD).add(WAIT_LOADS)),
        lambda: freed(allocated().add(fill(8)).add(LOAD).add(WAIT_LOADS)),
    ),
    (
        "dealloc in use",
        "tmem.dealloc_in_use",
        2,
        lambda: operands().thread(0, f"{ISSUE}\n{COMMIT}").warp(0, FREE.format(512)).wait(),
        lambda: freed(operands().thread(0, f"{ISSUE}\n{COMMIT}").wait()),
    ),
    (
        "descriptor of sm_90",
        "descriptor.version",
        2,
        lambda: freed(operands().thread(0, f"and.b64 db, db, {~(1 << 46) & (1 << 64) - 1};\n{ISSUE}\n{COMMIT}").wait()),
        lambda: freed(operands().thread(0, f"{ISSUE}\n{COMMIT}").wait()),
    ),
]

FAULTS: list[tuple[str, str, Callable[[], Body]]] = [
    (
        "other lanes",
        "tmem.lanes",
        lambda: allocated().add(fill(8).replace("add.u32 r0, tmem, rowbits", "mov.u32 r0, tmem")),
    ),
    ("unallocated", "tmem.not_allocated", lambda: allocated(32).add(LOAD.replace("[r0]", "[r0+28]"))),
    ("outside", "tmem.out_of_bounds", lambda: allocated().add(LOAD.replace("[r0]", "[r0+508]"))),
    ("columns", "tmem.bad_columns", lambda: allocation(ALLOC.format(48))),
    ("after relinquish", "tmem.alloc_after_relinquish", lambda: allocation(RELINQUISH, ALLOC.format(32))),
    ("wrong size", "tmem.bad_dealloc", lambda: allocation(ALLOC.format(64), TAKE, FREE.format(32))),
    ("freed twice", "tmem.bad_dealloc", lambda: allocation(ALLOC.format(64), TAKE, FREE.format(64), FREE.format(64))),
    (
        "use after dealloc",
        "tmem.not_allocated",
        lambda: freed(allocated().add(fill(8))).sync().add(LOAD),
    ),
    (
        "instruction descriptor",
        "tcgen05.instruction_descriptor",
        lambda: operands().thread(0, mma(instruction(128, 8) | 1 << 23, False)),
    ),
    ("M of 256", "tcgen05.instruction_descriptor", lambda: operands().thread(0, mma(instruction(256, 8), False))),
    (
        "swizzle",
        "descriptor.swizzle",
        lambda: operands().thread(0, f"or.b64 db, db, {1 << 61};\n{ISSUE}"),
    ),
    ("atoms of 32 bytes, K-major A", "emulator.swizzle", lambda: operands().thread(0, f"{atoms_of_32('da')}\n{ISSUE}")),
    ("atoms of 32 bytes, K-major B", "emulator.swizzle", lambda: operands().thread(0, f"{atoms_of_32('db')}\n{ISSUE}")),
    ("atoms of 32 bytes, copy", "emulator.swizzle", lambda: operands().thread(0, f"{atoms_of_32('da')}\n{COPY}")),
    (
        "atoms of 32 bytes, MN-major bf16",
        "descriptor.swizzle",
        lambda: operands().thread(0, f"{atoms_of_32('da')}\n{mma(instruction(128, 8) | 1 << 15, False)}"),
    ),
    (
        "operand outside",
        "descriptor.out_of_bounds",
        lambda: operands().thread(0, f"or.b64 db, db, {0x3FFF};\n{ISSUE}"),
    ),
    ("lane of D", "tmem.lanes", lambda: operands().thread(0, ISSUE.replace("[tmem]", "[tmem+65536]"))),
]


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize(
    ("code", "severity", "bad", "good"), [pair[1:] for pair in PAIRS], ids=[pair[0] for pair in PAIRS]
)
def test_found_and_not_in_the_twin(
    code: str, severity: int, bad: Callable[[], Body], good: Callable[[], Body], schedule: str
) -> None:
    assert code in run(bad(), DATA, schedule=schedule).codes(severity)
    control = run(good(), DATA, schedule=schedule)
    assert control.ok, control.codes()
    assert not control.codes()


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_sums_that_nothing_reads(schedule: str) -> None:
    """Overwritten by a product that does not accumulate, or freed; those that one accumulates onto are read."""

    def said(issued: str, load: str) -> str:
        body = operands().thread(0, f"{issued}\n{COMMIT}").wait().add(AFTER)
        done = run(freed(body.add(load).add(WAIT_LOADS)), DATA, schedule=schedule)
        assert done.ok and not done.codes(1)
        return done.message("tmem.sums_lost") if "tmem.sums_lost" in done.codes(0) else ""

    more = mma(instruction(128, 8), True)
    assert said(ISSUE, LOAD) == said(f"{ISSUE}\n{more}", LOAD) == ""
    assert "does not accumulate overwrites column 0" in said(f"{ISSUE}\n{ISSUE}", LOAD)
    assert "dealloc frees column 0" in said(ISSUE, "")
    half = LOAD.replace("x8.b32 {r4, r5, r6, r7, r8, r9, r10, r11}", "x4.b32 {r4, r5, r6, r7}")
    assert "dealloc frees column 4" in said(ISSUE, half)
    assert "tcgen05.st overwrites column 0" in said(ISSUE, f"{STORE}\n{WAIT_STORES}\n{LOAD}")
    assert said(ISSUE, f"{LOAD}\n{WAIT_LOADS}\n{STORE}\n{WAIT_STORES}") == ""


@pytest.mark.parametrize(("code", "bad"), [fault[1:] for fault in FAULTS], ids=[fault[0] for fault in FAULTS])
def test_faults_end_the_launch(code: str, bad: Callable[[], Body]) -> None:
    done = run(bad(), DATA)
    assert not done.ok
    assert code in done.codes(2)


def test_alloc_waits_until_another_warp_frees() -> None:
    body = allocated()  # warp 0 holds all columns
    body.warp(1, "add.u32 slot, slot, 4;\n" + ALLOC.format(32) + "\n" + TAKE + "\n" + FREE.format(32) + "\nret;")
    done = run(body.warp(0, FREE.format(512)))
    assert done.ok, done.codes()
    assert not done.codes(2)


def test_alloc_that_nobody_lets_through_is_a_hang() -> None:
    done = run(allocated().warp(1, "add.u32 slot, slot, 4;\n" + ALLOC.format(32)).sync())
    assert done.launch.outcome.name == "HANG"
    assert "tensor memory" in done.message("emulator.deadlock")


def test_commit_to_the_wrong_barrier_is_a_hang_that_names_it() -> None:
    wrong = COMMIT.replace("[mbar]", "[mbar2]")
    done = run(freed(operands().thread(0, f"{ISSUE}\n{wrong}").wait()), DATA)
    assert done.launch.outcome.name == "HANG"
    assert "1 of 1 arrivals missing" in done.message("emulator.deadlock")
    assert "tcgen05.commit" in done.message("tcgen05.commit_unseen")


def test_fair_schedule_lets_waiters_see_every_phase() -> None:
    """All warps wait by parity for a barrier that one of them drives, as published kernels do: a warning, no hang."""
    body = operands()
    for turn in range(4):
        body.add(f"setp.ne.u32 q, tid, 0;\n@q bra WAITERS{turn};\n{ISSUE}\n{COMMIT}\nWAITERS{turn}:").wait(
            parity=turn % 2
        )
    done = run(freed(body), DATA)
    assert done.ok, done.codes()
    assert done.codes() == {"mbarrier.phase_skipped"}


# ---- tcgen05.fence::before_thread_sync


def test_arrival_without_a_fence_before_it_is_noted() -> None:
    """Most published kernels leave the fence out: no more than a note."""
    body = operands(allocated().add(fill(8))).add(LOAD).add(WAIT_LOADS)
    body.sync().add(AFTER).thread(0, f"{ISSUE}\n{COMMIT}").wait()
    done = run(freed(body), DATA)
    assert not done.codes()
    assert done.codes(0) - UNREAD == {"tcgen05.missing_fence_before"}
    assert "tcgen05.ld" in done.message("tcgen05.missing_fence_before")
    assert not run(freed(reuse_cells(True)), DATA).codes(0) & {"tcgen05.missing_fence_before"}


ARRIVE_RELAXED = "mbarrier.arrive.relaxed.cluster.shared::cta.b64 _, [mbar2];"
WAIT_RELAXED = "RELAXED:\nmbarrier.try_wait.parity.relaxed.cluster.shared::cta.b64 q, [mbar2], 0;\n@!q bra RELAXED;"


def relaxed(before: bool, after: bool = True) -> Body:
    """PTX ISA 9.7.16.6.4.4, example 1: relaxed barriers and fences hand loaded cells over to a product."""
    body = operands(allocated().add(fill(8)))
    fence = "tcgen05.fence::before_thread_sync;" if before else ""
    body.warp(0, f"{LOAD}\n{WAIT_LOADS}\n{fence}\nsetp.eq.u32 p, tid, 0;\n@p {ARRIVE_RELAXED}")
    issue = f"{WAIT_RELAXED}\n{AFTER if after else ''}\n{ISSUE}\n{COMMIT}"
    return freed(body.thread(32, issue).wait())


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_relaxed_barriers_with_fences_hand_tensor_memory_over(schedule: str) -> None:
    assert run(relaxed(True), DATA, schedule=schedule).codes(0) <= UNREAD
    assert run(relaxed(False), DATA, schedule=schedule).codes() == {"tmem.overwrite"}
    assert run(relaxed(True, after=False), DATA, schedule=schedule).codes() == {"tcgen05.missing_fence"}


@pytest.mark.parametrize(("fence", "codes"), [(True, set()), (False, {"tmem.overwrite"})])
def test_relaxed_flag_with_fences_hands_tensor_memory_over(fence: bool, codes: set[str]) -> None:
    """PTX ISA 9.7.16.11.1: a flag in memory does as well."""
    body = operands(allocated().add(fill(8)).thread(0, "st.shared.u32 [slot+8], 0;"))
    before = "tcgen05.fence::before_thread_sync;" if fence else ""
    body.warp(0, f"{LOAD}\n{WAIT_LOADS}\n{before}\nsetp.eq.u32 p, tid, 0;\n@p st.relaxed.cta.shared.u32 [slot+8], 1;")
    poll = "POLL:\nld.relaxed.cta.shared.u32 r3, [slot+8];\nsetp.eq.u32 q, r3, 0;\n@q bra POLL;"
    assert run(freed(body.thread(32, f"{poll}\n{AFTER}\n{ISSUE}\n{COMMIT}").wait()), DATA).codes() == codes


# ---- registers of tcgen05.ld before tcgen05.wait::ld (PTX ISA 9.7.16.6.4.5: a true dependency orders them by itself)

KEEP = "mul.wide.u32 off, tid, 4;\nadd.u64 cursor, to, off;\nst.global.u32 [cursor], r4;"
ADD = "add.u32 r4, r4, 1;"


def loaded(*lines: str) -> Run:
    return run(freed(allocated().add(fill(8)).add("\n".join((LOAD, *lines)))), out_bytes=512)


def named(done: Run, code: str) -> list[tuple[int, int]]:
    """The instructions that findings of a kind name."""
    records = np.frombuffer(done.launch.records, RECORD_DTYPE)
    return [(int(r["inst"]), int(r["other_inst"])) for r in records if r["code"].decode() == code]


@pytest.mark.parametrize("lines", [(KEEP, WAIT_LOADS), (ADD, KEEP, WAIT_LOADS)])
def test_a_loaded_register_that_is_stored_before_the_wait_is_noted(lines: tuple[str, ...]) -> None:
    """Its value is right, hence no more than a note; it names the load and the first use."""
    done = loaded(*lines)
    assert done.ok and not done.codes()
    assert done.words(128)[:2].tolist() == [lines[0] == ADD, 65536 + (lines[0] == ADD)]
    [(use, load)] = named(done, "tcgen05.read_before_wait")
    assert "is used before tcgen05.wait::ld" in done.message("tcgen05.read_before_wait")
    assert use - load == (1 if lines[0] == ADD else 3)


@pytest.mark.parametrize("lines", [(WAIT_LOADS, KEEP), (WAIT_LOADS, ADD, KEEP), (ADD, WAIT_LOADS, KEEP)])
def test_a_loaded_register_that_is_used_after_the_wait_is_not(lines: tuple[str, ...]) -> None:
    """What a compiler computes early and uses late neither."""
    assert "tcgen05.read_before_wait" not in loaded(*lines).codes(0)


def test_a_load_that_nothing_waits_for_is_found_where_its_cells_are_freed() -> None:
    done = loaded(KEEP)
    [(_, load)] = named(done, "tcgen05.read_before_wait")
    assert [other for _, other in named(done, "tmem.dealloc_in_use")] == [load]


def test_a_load_of_cells_whose_store_nothing_waits_for() -> None:
    early = freed(allocated().add(fill(8).removesuffix(WAIT_STORES)).add(LOAD).add(WAIT_LOADS).add(WAIT_STORES))
    assert run(early).codes(2) == {"tmem.read_early"}
    assert not run(freed(allocated().add(fill(8)).add(LOAD).add(WAIT_LOADS))).codes()


# ---- who issues


def issued(lanes: str, accumulate: bool) -> Run:
    body = operands(allocated().add(fill(8, "mov.u32 {r}, 0;")))
    issue = f"setp.{lanes};\n@!q2 bra MANY;\n{mma(instruction(128, 8), accumulate)}\n{COMMIT}\nMANY:"
    body.warp(0, issue.replace(COMMIT, f"setp.eq.u32 q2, tid, 0;\n@q2 {COMMIT}") if "lt" in lanes else issue)
    body.wait().add(AFTER).add(dump(8))
    return run(freed(body), DATA, out_bytes=128 * 32)


def test_a_product_that_several_lanes_issue() -> None:
    one, many = issued("eq.u32 q2, tid, 0", True), issued("lt.u32 q2, tid, 32", True)
    assert "tcgen05.many_threads" in many.codes(1) and "tcgen05.many_threads" not in one.codes(0)
    assert "32 lanes of warp 0" in many.message("tcgen05.many_threads")
    assert "grows" in many.message("tcgen05.many_threads")
    once, often = (done.output.view(np.float32).reshape(128, 8) for done in (one, many))
    np.testing.assert_array_equal(often, 32 * once)
    again = issued("lt.u32 q2, tid, 4", False)
    assert "computed as many times" in again.message("tcgen05.many_threads")
    np.testing.assert_array_equal(again.output.view(np.float32).reshape(128, 8), once)


def test_a_product_that_is_subtracted_is_noted() -> None:
    def product(bits: int) -> Run:
        return run(freed(operands().thread(0, f"{mma(instruction(128, 8) | bits, False)}\n{COMMIT}").wait()), DATA)

    assert "negates B" in product(1 << 14).message("tcgen05.negated")
    assert "tcgen05.negated" not in product(0).codes(0)
