"""Cells that a tcgen05.ld has read and no tcgen05.wait::ld has ended (PTX ISA 9.7.16.6.4.5): who may write them?"""

from __future__ import annotations

import numpy as np
import pytest

from ptxgym.device.emulator.findings import RECORD_DTYPE
from tests.device.emulator.tcgen05.harness import SCHEDULES, Body, Run, allocated, dump, fill, freed, run
from tests.device.emulator.tcgen05.test_findings import AFTER, COMMIT, DATA, ISSUE, LOAD, UNREAD, WAIT_LOADS, operands

REGISTERS = [f"r{4 + i}" for i in range(8)]
"""Of LOAD."""
USED = "\n".join(f"add.u32 {r}, {r}, 1;" for r in REGISTERS)
ALL_BUT_ONE = "\n".join(f"add.u32 {r}, {r}, 1;" for r in REGISTERS[:-1])
MOVED = "\n".join(f"mov.u32 r{20 + i}, {r};" for i, r in enumerate(REGISTERS))
PACKED = "\n".join(f"mov.b64 off, {{{a}, {b}}};" for a, b in zip(REGISTERS[::2], REGISTERS[1::2], strict=True))
UNPACKED = "\n".join(
    f"mov.b64 off, {{{a}, {b}}};\nmov.b64 {{r30, r31}}, off;\nadd.u32 r32, r30, r31;"
    for a, b in zip(REGISTERS[::2], REGISTERS[1::2], strict=True)
)
IN_PLACE = "tcgen05.st.sync.aligned.32x32b.x2.b32 [r0+4], {r4, r8};\ntcgen05.wait::st.sync.aligned;"
OTHER_DATA = IN_PLACE.replace("{r4, r8}", "{tid, warp}")
ERROR, WARNING, NOTE = 2, 1, 0


def written(text: str, *, wait: bool = False, product: bool = False, schedule: str = "fair") -> Run:
    """A load, `text`, and perhaps a product of another warp over the cells that were loaded."""
    body = operands(allocated().add(fill(8))).add(LOAD).add(text)
    if wait:
        body.add(WAIT_LOADS)
    body.fenced_sync()
    if product:
        body.thread(64, f"{ISSUE}\n{COMMIT}").wait()
    return run(freed(body.add(WAIT_LOADS).add(AFTER)), DATA, schedule=schedule)


def severity(done: Run, code: str) -> int | None:
    return next((level for level in (ERROR, WARNING, NOTE) if code in done.codes(level)), None)


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize(
    ("text", "level"),
    [
        (USED, WARNING),
        (UNPACKED, WARNING),
        (f"{MOVED}\nadd.u32 r4, r4, 1;" + "".join(f"\nadd.u32 r{20 + i}, r{20 + i}, 1;" for i in range(1, 8)), WARNING),
        (ALL_BUT_ONE, ERROR),
        (MOVED, ERROR),
        (PACKED, ERROR),
        ("", ERROR),
        (f"{LOAD}\n{USED}", ERROR),
        (USED.replace("add.u32 r11, r11, 1;", "mov.u32 r11, 1;"), ERROR),
    ],
    ids=[
        "used",
        "unpacked",
        "aliases used",
        "all but one",
        "moved",
        "packed",
        "nothing",
        "loaded twice",
        "overwritten",
    ],
)
def test_a_product_over_loaded_cells(text: str, level: int, schedule: str) -> None:
    """A warning where all values have been used: so the load is over, though nothing guarantees it."""
    done = written(text, product=True, schedule=schedule)
    assert done.ok
    assert severity(done, "tmem.overwrite") == level
    assert ("all its values have been used" in done.message("tmem.overwrite")) == (level == WARNING)
    assert not written(text, wait=True, product=True, schedule=schedule).codes()


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize(
    ("text", "level"),
    [
        (f"{USED}\n{IN_PLACE}", NOTE),
        (f"{ALL_BUT_ONE}\nadd.u32 r4, r4, r11;\n{IN_PLACE}", NOTE),
        (f"{USED}\n{OTHER_DATA}", WARNING),
        (f"{ALL_BUT_ONE}\n{IN_PLACE}", ERROR),
        (OTHER_DATA, ERROR),
    ],
    ids=["its values", "a sum", "other values", "one unused", "nothing used"],
)
def test_a_store_over_loaded_cells(text: str, level: int, schedule: str) -> None:
    """A note where the values that are stored come from the load."""
    assert severity(written(text, schedule=schedule), "tmem.overwrite") == level


def test_attention_without_waits_for_loads() -> None:
    """What CUTLASS's does with O and with S and P: no error, the product over the rest of S is a warning."""
    done = written(f"{USED}\n{IN_PLACE}", product=True)
    assert done.codes(ERROR) == set()
    assert done.codes(WARNING) == {"tmem.overwrite"}
    assert written(f"{ALL_BUT_ONE}\n{IN_PLACE}", product=True).codes(ERROR) == {"tmem.overwrite"}


def test_sums_that_are_scaled_in_place() -> None:
    whole = f"tcgen05.st.sync.aligned.32x32b.x8.b32 [r0], {{{', '.join(REGISTERS)}}};\ntcgen05.wait::st.sync.aligned;"
    body: Body = allocated().add(fill(8)).add(LOAD).add(USED).add(whole).add(dump(8))
    done = run(freed(body), out_bytes=128 * 32)
    assert not done.codes()
    assert done.codes(NOTE) - UNREAD == {"tmem.overwrite", "tcgen05.read_before_wait"}
    want = (np.arange(128, dtype=np.uint32)[:, None] << 16 | np.arange(8, dtype=np.uint32)) + 1
    np.testing.assert_array_equal(done.words(128, 8), want)


@pytest.mark.parametrize("host_threads", [1, 2])
def test_notes_count_every_cta_whatever_thread_runs_it(host_threads: int) -> None:
    whole = f"tcgen05.st.sync.aligned.32x32b.x8.b32 [r0], {{{', '.join(REGISTERS)}}};\ntcgen05.wait::st.sync.aligned;"
    text = freed(allocated().add(fill(8)).add(LOAD).add(USED).add(whole)).text()

    def count(ctas: int) -> int:
        done = run(text, threads=32, ctas=ctas, apart=True, host_threads=host_threads)
        records = np.frombuffer(done.launch.records, RECORD_DTYPE)
        return int(sum(one["count"] for one in records if one["code"] == b"tmem.overwrite"))

    assert count(1) == 1
    assert count(4) == 4


def test_a_load_of_two_halves() -> None:
    """16x32bx2 reads cells in two places by one instruction."""
    two = "tcgen05.ld.sync.aligned.16x32bx2.x2.b32 {r4, r5}, [r0], 4;"
    store = "tcgen05.st.sync.aligned.32x32b.x8.b32 [r0], {r4, r5, r4, r5, r4, r5, r4, r5};"
    for used, level in (("add.u32 r4, r4, r5;", NOTE), ("add.u32 r4, r4, 1;\nmov.u32 r5, 0;", ERROR)):
        text = f"add.u32 r0, tmem, rowbits;\n{two}\n{used}\n{store}\ntcgen05.wait::st.sync.aligned;"
        done = run(freed(allocated().add(fill(8)).add(text).fenced_sync().add(WAIT_LOADS).add(AFTER)))
        assert severity(done, "tmem.overwrite") == level


@pytest.mark.parametrize(
    ("text", "level"), [(USED, WARNING), (ALL_BUT_ONE, ERROR), (f"{ALL_BUT_ONE}\n{WAIT_LOADS}", None)]
)
def test_loaded_cells_that_are_freed(text: str, level: int | None) -> None:
    done = run(freed(allocated().add(fill(8)).add(LOAD).add(text)))
    assert severity(done, "tmem.dealloc_in_use") == level
