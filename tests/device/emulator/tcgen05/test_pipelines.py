"""Pairs of tcgen05 operations of one thread that touch the same cells: which execute in the order of issue
(PTX ISA 9.7.16.6.2), which only do so in practice, and which need not."""

from __future__ import annotations

import numpy as np
import pytest

from ptxgym.device.emulator.findings import RECORD_DTYPE
from tests.device.emulator.tcgen05.harness import SCHEDULES, Run, allocated, fill, freed, run
from tests.device.emulator.tcgen05.operands import instruction
from tests.device.emulator.tcgen05.test_findings import AFTER, COMMIT, DATA, operands
from tests.device.emulator.tcgen05.test_mma import mma

COPY = "tcgen05.cp.cta_group::1.128x256b [r100], da;"
"""To columns 64 to 71."""
FROM_COPY = mma(instruction(128, 8), False, a="[r100]")
SUMS = mma(instruction(128, 8), False)
OVER_COPY = mma(instruction(128, 8), False, d="r100")
WIDE = mma(instruction(128, 16), False)
MORE = mma(instruction(128, 8), True)
OF_SUMS = mma(instruction(128, 8), False, d="r100", a="[tmem]")
SHIFT = "tcgen05.shift.cta_group::1.down [r100];"
WAIT = "DONE:\nmbarrier.try_wait.parity.shared::cta.b64 q, [mbar2], 0;\n@!q bra DONE;"
NOTE, WARNING = 0, 1


def issued(*operations: str, schedule: str = "fair") -> Run:
    body = operands(allocated().add(fill(72))).add("add.u32 r100, tmem, 64;")
    body.thread(0, "\n".join((*operations, COMMIT))).wait().add(AFTER)
    return run(freed(body), DATA, schedule=schedule)


def severity(done: Run) -> int | None:
    return next((level for level in (2, WARNING, NOTE) if "tcgen05.unordered" in done.codes(level)), None)


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize(
    ("operations", "level"),
    [
        ((SUMS, MORE), None),
        ((COPY, FROM_COPY), None),
        ((COPY, OVER_COPY), None),
        ((OVER_COPY, SHIFT), None),
        ((SHIFT, FROM_COPY), None),
        ((WIDE, MORE), NOTE),
        ((COPY, FROM_COPY, COPY), NOTE),
        ((COPY, FROM_COPY, OVER_COPY), None),
        ((SUMS, OF_SUMS), WARNING),
        ((COPY, COPY), WARNING),
        ((COPY, SHIFT), WARNING),
    ],
    ids=[
        "one accumulator",
        "cp, mma that reads",
        "cp, mma that writes",
        "mma, shift",
        "shift, mma",
        "other shape",
        "mma that reads, cp",
        "mma that reads, mma that writes",
        "sums as A",
        "cp, cp",
        "cp, shift",
    ],
)
def test_pairs(operations: tuple[str, ...], level: int | None, schedule: str) -> None:
    done = issued(*operations, schedule=schedule)
    assert done.ok
    assert severity(done) == level
    assert done.codes() == ({"tcgen05.unordered"} if level == WARNING else set())
    complete = issued(
        *operations[:-1], COMMIT.replace("[mbar]", "[mbar2]"), WAIT, AFTER, operations[-1], schedule=schedule
    )
    assert severity(complete) is None


def test_messages() -> None:
    said = issued(SUMS, OF_SUMS).message("tcgen05.unordered")
    assert said.startswith("a tcgen05.mma that reads column 0 of tensor memory after the tcgen05.mma")
    assert "which writes it" in said and "practice" not in said
    said = issued(COPY, FROM_COPY, COPY).message("tcgen05.unordered")
    assert said.startswith("a tcgen05.cp that writes column 64")
    assert "which reads it" in said and said.endswith("though it does in practice")


def test_a_note_is_made_once_for_a_pair_of_instructions() -> None:
    """It counts operations, not cells."""
    loop = f"mov.u32 r50, 0;\nAGAIN:\n{COPY}\n{FROM_COPY}\nadd.u32 r50, r50, 1;\nsetp.lt.u32 q, r50, 4;\n@q bra AGAIN;"
    records = np.frombuffer(issued(loop).launch.records, RECORD_DTYPE)
    [note] = [r for r in records if r["code"].decode() == "tcgen05.unordered"]
    assert (int(note["severity"]), int(note["count"])) == (NOTE, 3)


def test_a_note_hides_no_warning() -> None:
    """The last copy writes cells that a product reads, and then cells of a copy that nothing has read."""
    first, second, both = (COPY.replace("r100", f"r100+{column}") for column in (0, 8, 4))
    records = np.frombuffer(issued(first, second, FROM_COPY, both).launch.records, RECORD_DTYPE)
    levels = sorted(int(r["severity"]) for r in records if r["code"].decode() == "tcgen05.unordered")
    assert levels == [NOTE, WARNING]
