"""A descriptor that reaches into the next stage of a ring is told from a wait that is missing."""

from __future__ import annotations

import numpy as np
import pytest

from ptxgym.device.emulator.findings import RECORD_DTYPE
from tests.device.emulator.tcgen05.harness import SCHEDULES, Body, Run, allocated, freed, run
from tests.device.emulator.tcgen05.operands import Layout, instruction
from tests.device.emulator.tcgen05.test_findings import COMMIT
from tests.device.emulator.tcgen05.test_mma import mma
from tests.device.emulator.tcgen05.test_pair import BOX, LOAD, tensor_map

ROWS = Layout(128, False, 16, 1024)
TOO_FAR = Layout(128, False, 16, 2048)
FILL = f"""
mov.u32 r0, 0;
NEXT:
shl.b32 r1, r0, 13;
add.u32 place, data, r1;
shl.b32 r1, r0, 3;
add.u32 r3, mbar, r1;
shl.b32 r4, r0, 6;
mbarrier.arrive.expect_tx.shared::cta.b64 _, [r3], {BOX};
{LOAD} [place], [cursor, {{0, r4}}], [r3];
add.u32 r0, r0, 1;
setp.lt.u32 p, r0, 2;
@p bra NEXT;
"""


def multiplied(layout: Layout, stage: int = 0, waits: tuple[str, ...] = ("mbar",)) -> Run:
    """Two stages of 64 rows; a product with M = 64 that is to read `stage`, after waits for some of them."""
    body = allocated().add("mov.b64 cursor, map;")
    body.thread(0, FILL)
    for barrier in waits:
        body.wait(barrier)
    body.add(
        f"cvt.u64.u32 da, data;\nadd.u64 da, da, {stage * BOX};\nshr.u64 da, da, 4;\n"
        f"or.b64 db, da, {ROWS.descriptor()};\nor.b64 da, da, {layout.descriptor()};"
    )
    other = "mbar2" if "mbar" in waits else "mbar"
    body.fenced_sync().thread(0, f"{mma(instruction(64, 8), False)}\n{COMMIT.replace('[mbar]', '[mbar]')}")
    if len(waits) < 2:
        body.wait(other)
    data = np.zeros(128 * 64, np.uint16).tobytes()
    return run(freed(end(body)), data, tensor_map=tensor_map(128))


def end(body: Body) -> Body:
    return body.wait(parity=1).add("tcgen05.fence::after_thread_sync;")


def remedies(done: Run, code: str) -> list[str]:
    records = np.frombuffer(done.launch.records, RECORD_DTYPE)
    return [r["remedy"].decode() for r in records if r["code"].decode() == code]


@pytest.mark.parametrize("schedule", SCHEDULES[:1])
def test_a_descriptor_that_reaches_into_the_next_stage(schedule: str) -> None:
    [remedy] = remedies(multiplied(TOO_FAR), "async.read_early")
    assert "its descriptor reaches into the next" in remedy and "SBO" in remedy


def test_a_stage_that_is_not_waited_for() -> None:
    [remedy] = remedies(multiplied(ROWS, stage=1), "async.read_early")
    assert remedy.startswith("Wait on the mbarrier")


def test_stages_that_are_waited_for() -> None:
    assert not multiplied(ROWS).codes()
    assert not multiplied(TOO_FAR, waits=("mbar", "mbar2")).codes()
