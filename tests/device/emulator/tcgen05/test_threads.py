"""Pipelines of tcgen05 over several threads: tcgen05.fence orders them (PTX ISA 9.7.16.6.3, 9.7.16.6.4.3)."""

from __future__ import annotations

import numpy as np
import pytest

from tests.device.emulator.tcgen05 import pair
from tests.device.emulator.tcgen05.harness import Body, Run, allocated, copy_in, dump, freed, run
from tests.device.emulator.tcgen05.operands import K, bf16, instruction, small_integers
from tests.device.emulator.tcgen05.test_mma import IMAGE, descriptors, floats, image, mma

RUNS = [("fair", 0), ("lazy", 0), *(("random", seed) for seed in range(6))]
BEFORE, AFTER = "tcgen05.fence::before_thread_sync;", "tcgen05.fence::after_thread_sync;"
ARRIVE = "mbarrier.arrive.relaxed.cluster.shared::cta.b64 _, [mbar2];"
WAIT = "HANDED:\nmbarrier.try_wait.parity.relaxed.cluster.shared::cta.b64 q, [mbar2], 0;\n@!q bra HANDED;"
COMMIT = "tcgen05.commit.cta_group::1.mbarrier::arrive::one.shared::cluster.b64 [mbar];"
RNG = np.random.default_rng(0)
A, B = small_integers(RNG, 128, K), small_integers(RNG, 8, K)
DATA = image(bf16(A), bf16(B))
SUMS = instruction(128, 8)
COPY = "tcgen05.cp.cta_group::1.128x256b [r100], da;"
"""A to tensor memory: a row of 32 bytes to each lane."""
PIPELINES = {
    "cp, mma": (COPY, mma(SUMS, False, a="[r100]"), 1),
    "mma, mma": (mma(SUMS, False), mma(SUMS, True), 2),
}
"""What thread 0 issues, what thread 32 does, and how many times A × B that makes."""
INNOCENT = {"tcgen05.missing_fence_before", "tmem.sums_lost"}
"""Notes of what the kernels here do for brevity."""


def started() -> Body:
    body = allocated().add(copy_in(IMAGE)).add(descriptors())
    return body.add("add.u32 r100, tmem, 64;").fenced_sync()


def in_lane(lane: int, text: str) -> str:
    """`text` in one thread, for which nobody waits."""
    return f"setp.ne.u32 q, tid, {lane};\n@q bra BESIDE{lane};\n{text}\nBESIDE{lane}:"


def handed_over(first: str, then: str, *, before: str = BEFORE, after: str = AFTER, barrier: bool = False) -> Body:
    """`first` in thread 0, `then` and a commit in thread 32 after it."""
    body = started()
    if barrier:
        body.thread(0, f"{first}\n{before}").thread(32, f"{after}\n{then}\n{COMMIT}")
    else:
        body.add(in_lane(0, f"{first}\n{before}\n{ARRIVE}")).thread(32, f"{WAIT}\n{after}\n{then}\n{COMMIT}")
    return body.wait()


def loaded(body: Body, schedule: str = "fair", seed: int = 0) -> Run:
    return run(freed(body.add(AFTER).add(dump(8))), DATA, out_bytes=128 * 32, schedule=schedule, seed=seed)


@pytest.mark.parametrize(("schedule", "seed"), RUNS)
@pytest.mark.parametrize("barrier", [False, True], ids=["mbarrier", "bar.sync"])
@pytest.mark.parametrize("pipeline", PIPELINES)
def test_fences_hand_over_what_is_not_complete(pipeline: str, barrier: bool, schedule: str, seed: int) -> None:
    first, then, times = PIPELINES[pipeline]
    done = loaded(handed_over(first, then, barrier=barrier), schedule, seed)
    assert done.ok
    assert done.codes(0) <= INNOCENT
    np.testing.assert_array_equal(floats(done, 8), times * (A @ B.T))


@pytest.mark.parametrize("schedule", ["fair", "lazy", "random"])
@pytest.mark.parametrize("barrier", [False, True], ids=["mbarrier", "bar.sync"])
@pytest.mark.parametrize("pipeline", PIPELINES)
def test_without_the_fences_it_is_found(pipeline: str, barrier: bool, schedule: str) -> None:
    first, then, _ = PIPELINES[pipeline]
    code = "tmem.overwrite" if pipeline == "mma, mma" else "tmem.read_early"
    for after in (AFTER, ""):
        done = loaded(handed_over(first, then, before="", after=after, barrier=barrier), schedule)
        assert code in done.codes(2)
    late = loaded(handed_over(first, then, after="", barrier=barrier), schedule)
    assert late.codes() == {"tcgen05.missing_fence"}


def test_no_arrival_no_pipeline() -> None:
    """Fences without what orders the execution of both threads."""
    first, then, _ = PIPELINES["cp, mma"]
    body = started().add(in_lane(0, f"{first}\n{BEFORE}")).thread(32, f"{AFTER}\n{then}\n{COMMIT}").wait()
    assert "tmem.read_early" in loaded(body).codes(2)


def test_a_fence_hands_over_what_stands_before_it_alone() -> None:
    first, then, _ = PIPELINES["cp, mma"]
    late = handed_over(f"{BEFORE}\n{first}", then, before="")
    assert "tmem.read_early" in loaded(late).codes(2)


def test_what_is_no_pipeline_needs_completion() -> None:
    """cp → cp is none of the pairs, nor is mma → ld."""
    unordered = handed_over(COPY, f"{COPY}\n{PIPELINES['cp, mma'][1]}")
    assert loaded(unordered).codes() == {"tcgen05.unordered"}
    body = started().thread(0, f"{mma(SUMS, False)}\n{BEFORE}").add(AFTER).add(dump(8)).add(in_lane(0, COMMIT)).wait()
    assert "tmem.read_early" in run(freed(body), DATA, out_bytes=128 * 32).codes(2)


def test_a_third_thread_takes_part() -> None:
    """Copied by one, multiplied by another, and again by a third, who commits for all."""
    first, then, _ = PIPELINES["cp, mma"]
    body = started().thread(0, f"{first}\n{BEFORE}").thread(32, f"{AFTER}\n{then}\n{BEFORE}")
    body.thread(64, f"{AFTER}\n{mma(SUMS, True, a='[r100]')}\n{COMMIT}").wait()
    body.thread(96, "st.shared.u32 [data], tid;")
    done = loaded(body, "random", 3)
    assert done.codes(0) <= INNOCENT
    np.testing.assert_array_equal(floats(done, 8), 2 * (A @ B.T))


# ---- completion


def test_a_commit_covers_what_its_operations_follow() -> None:
    """The source of the copy may be written again, the cells freed: after the commit of the product that read them."""
    first, then, _ = PIPELINES["cp, mma"]
    body = handed_over(first, then).thread(64, "st.shared.u32 [data], tid;")
    assert loaded(body).codes(0) <= INNOCENT


def test_a_commit_does_not_cover_what_nothing_of_its_thread_follows() -> None:
    """Thread 32 commits a product of other cells."""
    other = mma(SUMS, False)
    body = handed_over(COPY, other).thread(64, "st.shared.u32 [data], tid;")
    found = loaded(body)
    assert {"async.overwrite", "tmem.dealloc_in_use"} <= found.codes(2)
    assert "tcgen05.not_committed" in found.codes(1)


def test_an_operation_that_nobody_commits() -> None:
    first, then, _ = PIPELINES["cp, mma"]
    body = started().thread(0, f"{first}\n{BEFORE}").thread(32, f"{AFTER}\n{then}")
    done = run(freed(body), DATA)
    assert "warp 0 exits" in done.message("tcgen05.not_committed")
    assert "warp 1 exits" in done.message("tcgen05.not_committed")


def test_a_warp_may_exit_before_another_commits_for_it() -> None:
    first, then, _ = PIPELINES["cp, mma"]
    body = started().add(
        f"setp.ne.u32 q, warp, 3;\n@q bra STAYS;\n{in_lane(96, f'{first}{BEFORE}{ARRIVE}')}\nret;\nSTAYS:"
    )
    body.add(in_lane(32, f"{WAIT}\n{AFTER}\n{then}\n{COMMIT}")).wait().add(AFTER).add("bar.sync 1, 96;")
    body.warp(0, "tcgen05.dealloc.cta_group::1.sync.aligned.b32 tmem, 512;")
    assert run(body, DATA).codes(0) <= INNOCENT


# ---- pairs


@pytest.mark.parametrize(("schedule", "seed"), RUNS)
def test_threads_of_both_ctas_of_a_pair(schedule: str, seed: int) -> None:
    """The odd CTA's thread copies A of both to tensor memory, the even one's multiplies: before a commit, or after."""
    a, b = small_integers(RNG, 256, K), small_integers(RNG, 16, K)
    size = 128 * 4 * 16
    body = pair.operands(pair.allocated(out_bytes=size)).add("add.u32 r100, tmem, 64;")
    pair.one(body, 1, COPY.replace("cta_group::1", "cta_group::2"))
    pair.cluster_sync(body)
    pair.one(body, 0, pair.mma(instruction(256, 16), False, a="[r100]") + pair.COMMIT_BOTH)
    body.wait().add(AFTER).add(dump(16))
    data = pair.images(a, b)
    done = run(pair.freed(body), data, out_bytes=2 * size, ctas=2, schedule=schedule, seed=seed)
    assert done.ok
    assert done.codes(0) <= INNOCENT
    np.testing.assert_array_equal(pair.accumulator(pair.floats(done), 256, 16), a @ b.T)
