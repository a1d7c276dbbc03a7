"""Hazards of products with disable-output-lane: lanes that are not updated meet nothing (PTX ISA 9.7.16.10.9.1)."""

from __future__ import annotations

import numpy as np
import pytest

from tests.device.emulator.tcgen05 import pair
from tests.device.emulator.tcgen05.harness import SCHEDULES, allocated, fill, freed, run
from tests.device.emulator.tcgen05.operands import K, instruction, small_integers
from tests.device.emulator.tcgen05.test_findings import AFTER, COMMIT, DATA, LOAD, WAIT_LOADS, WAIT_STORES, operands
from tests.device.emulator.tcgen05.test_mma import mma

WARP0 = (0xFFFF_FFFF, 0, 0, 0)
MOST_OF_WARP0 = (0xFFFF_FFFE, 0, 0, 0)
HALF_OF_WARP0 = (0x0000_FFFF, 0, 0, 0)
STORE = "mul.wide.u32 off, tid, 4;\nadd.u64 cursor, to, off;\nst.global.u32 [cursor], r11;"


def vector(masks: tuple[int, ...]) -> str:
    return f", {{{', '.join(map(str, masks))}}}"


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("accumulate", [False, True])
def test_cells_of_disabled_lanes_may_be_read(accumulate: bool, schedule: str) -> None:
    """Warp 0 loads its lanes while the product runs: what it finds is what it stored."""

    def loaded(masks: tuple[int, ...]) -> set[str]:
        body = operands(allocated().add(fill(8)))
        body.thread(64, f"{mma(instruction(128, 8), accumulate, masks=vector(masks))}\n{COMMIT}")
        body.warp(0, f"{LOAD}\n{WAIT_LOADS}\n{STORE}").wait().add(AFTER)
        done = run(freed(body), DATA, out_bytes=128, schedule=schedule)
        if masks == WARP0:
            np.testing.assert_array_equal(done.words(32), (np.arange(32) << 16) + 7)
        return done.codes()

    assert loaded(WARP0) == set()
    assert loaded(MOST_OF_WARP0) == loaded(HALF_OF_WARP0) == loaded((0, *WARP0[:3])) == {"tmem.read_early"}


@pytest.mark.parametrize("masks", [WARP0, MOST_OF_WARP0])
def test_cells_of_disabled_lanes_may_be_in_flight(masks: tuple[int, ...]) -> None:
    """Warp 0 has stored, and not waited; the product that accumulates leaves its lanes out, or not."""
    body = operands(allocated().add(fill(8)))
    body.warp(0, fill(8).removesuffix(WAIT_STORES)).fenced_sync()
    body.thread(64, f"{mma(instruction(128, 8), True, masks=vector(masks))}\n{COMMIT}").wait()
    done = run(freed(body.add(WAIT_STORES).add(AFTER)), DATA)
    assert done.codes() == (set() if masks == WARP0 else {"tmem.overwrite"})


@pytest.mark.parametrize("masks", [WARP0, MOST_OF_WARP0])
def test_rows_of_a_in_disabled_lanes_need_no_value(masks: tuple[int, ...]) -> None:
    body = allocated()
    text = fill(8).replace("add.u32 r0, tmem, rowbits;", "add.u32 r0, tmem, rowbits;\nadd.u32 r0, r0, 64;")
    body.add(f"setp.eq.u32 q2, warp, 0;\n@q2 bra NOT0;\n{text}\nNOT0:")
    operands(body).add("add.u32 r100, tmem, 64;")
    body.thread(64, f"{mma(instruction(128, 8), False, a='[r100]', masks=vector(masks))}\n{COMMIT}").wait().add(AFTER)
    assert run(freed(body), DATA).codes() == (set() if masks == WARP0 else {"tmem.uninitialised"})


@pytest.mark.parametrize("rank", [0, 1])
def test_lanes_are_disabled_by_cta(rank: int) -> None:
    """Lanes of warp 0 of one CTA of the pair, whose masks follow those of the even one."""
    masks = vector((*(WARP0 if rank == 0 else (0,) * 4), *(WARP0 if rank == 1 else (0,) * 4)))
    data = pair.images(
        small_integers(np.random.default_rng(1), 256, K), small_integers(np.random.default_rng(2), 16, K)
    )
    for reader in range(2):
        body = pair.cluster_sync(pair.operands(pair.allocated().add(fill(16))))
        issue = pair.mma(instruction(256, 16), False, masks=masks) + pair.COMMIT_BOTH
        pair.cluster_sync(pair.one(body, rank ^ 1, issue, thread=64))
        pair.in_cta(body, reader, f"setp.ne.u32 q, warp, 0;\n@q bra OTHERS;\n{LOAD}\n{WAIT_LOADS}\nOTHERS:")
        done = run(pair.freed(body.wait().add(AFTER)), data, ctas=2)
        assert done.codes() == (set() if reader == rank else {"tmem.read_early"})


def test_nothing_conflicts_with_a_product_of_no_lanes() -> None:
    body = operands(allocated().add(fill(8)))
    body.thread(64, f"{mma(instruction(128, 8), False, masks=vector((0xFFFF_FFFF,) * 4))}\n{COMMIT}")
    assert not run(freed(body.add(LOAD).add(WAIT_LOADS).wait().add(AFTER)), DATA).codes()
