"""tcgen05.ld and st: every shape and repetition against formulas stated here, from the ISA's pictures as CUTLASS and
Apache TVM write them down."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from tests.device.emulator.tcgen05.harness import SCHEDULES, allocated, dump, fill, freed, run

Places = NDArray[np.int64]
SHAPES = {"32x32b": 1, "16x64b": 1, "16x128b": 2, "16x256b": 4, "16x32bx2": 1}
FORMS = [
    (shape, num, packed)
    for shape, registers in SHAPES.items()
    for num in (1, 2, 4, 8, 16, 32, 64, 128)
    if num * registers <= 128
    for packed in (False, True)
    if not (packed and num * registers == 128 and shape.startswith("16x") and shape != "16x32bx2")  # over 256 columns
]
SMALL = [form for form in FORMS if form[1] in (1, 4)]
IDS = [f"{shape}.x{num}{'.pack' if packed else ''}" for shape, num, packed in FORMS]
SPLIT = 3


def places(shape: str, num: int, packed: bool, split: int = SPLIT) -> tuple[Places, Places]:
    """Lane and first column of every (thread, register), for an access at lane 0, column 0.

    Written from the layouts of CUTLASS' copy traits, as bits: a thread's registers walk a row of the atom's columns,
    rows are `width` bits apart.
    """
    registers = num * SHAPES[shape]
    thread, register = np.meshgrid(np.arange(32), np.arange(registers), indexing="ij")
    columns = {"32x32b": 1, "16x64b": 2, "16x128b": 4, "16x256b": 8, "16x32bx2": 1}[shape] * num
    width = 32 * columns
    if shape == "32x32b":
        bits = thread * width + register * 32
    elif shape == "16x64b":  # (2, 2, 8) threads: 8 rows, 1 column, 1 row
        bits = thread % 2 * 8 * width + thread // 2 % 2 * 32 + thread // 4 * width + register * 64
    elif shape == "16x128b":  # (4, 8) threads: columns, rows; registers: 8 rows, then 4 columns
        bits = thread % 4 * 32 + thread // 4 * width + register % 2 * 8 * width + register // 2 * 128
    elif shape == "16x256b":  # pairs of columns
        bits = thread % 4 * 64 + thread // 4 * width + register % 2 * 32 + register // 2 % 2 * 8 * width
        bits = bits + register // 4 * 256
    else:
        bits = thread % 16 * width + register * 32
    lane, column = bits // width, bits % width // 32
    if packed:
        column = 2 * column
    if shape == "16x32bx2":
        column = column + thread // 16 * split
    return lane, column


def columns_of(shape: str, num: int, packed: bool, split: int = SPLIT) -> int:
    column = places(shape, num, packed, split)[1]
    return int(column.max()) + (2 if packed else 1)


def form(op: str, shape: str, num: int, packed: bool, registers: list[str], split: int = SPLIT) -> str:
    name = f"tcgen05.{op}.sync.aligned.{shape}.x{num}"
    vector = "{" + ", ".join(registers) + "}"
    half = f", {split}" if shape == "16x32bx2" else ""
    if op == "ld":
        return f"{name}{'.pack::16b' if packed else ''}.b32 {vector}, [r0]{half};"
    return f"{name}{'.unpack::16b' if packed else ''}.b32 [r0]{half}, {vector};"


@pytest.mark.parametrize(("shape", "num", "packed"), FORMS, ids=IDS)
def test_ld(shape: str, num: int, packed: bool) -> None:
    columns = (columns_of(shape, num, packed) + 7) // 8 * 8
    registers = [f"r{4 + i}" for i in range(num * SHAPES[shape])]
    upper = 16 if shape.startswith("16") else 0
    body = allocated().add(fill(columns, "mad.lo.u32 {r}, tid, 1024, {c};"))
    body.add(f"add.u32 r0, tmem, rowbits;\nadd.u32 r0, r0, {upper << 16};")
    body.add(form("ld", shape, num, packed, registers))
    body.add("tcgen05.wait::ld.sync.aligned;")
    body.add(f"mul.wide.u32 off, tid, {4 * len(registers)};\nadd.u64 cursor, to, off;")
    body.add("\n".join(f"st.global.u32 [cursor+{4 * i}], {name};" for i, name in enumerate(registers)))
    done = run(freed(body), out_bytes=128 * 4 * len(registers))
    assert done.ok, done.codes()
    assert not done.codes()
    lane, column = places(shape, num, packed)
    for warp in range(4):
        row = 32 * warp + upper + lane
        first, second = row * 1024 + column, row * 1024 + column + 1
        want = first & 0xFFFF | (second & 0xFFFF) << 16 if packed else first
        np.testing.assert_array_equal(done.words(4, 32, len(registers))[warp], want)


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize(("shape", "num", "packed"), SMALL, ids=str)
def test_st(shape: str, num: int, packed: bool, schedule: str) -> None:
    split = 2 * num if packed else num  # side by side: halves that overlap would write each other's cells
    columns = (columns_of(shape, num, packed, split) + 7) // 8 * 8
    registers = [f"r{4 + i}" for i in range(num * SHAPES[shape])]
    body = allocated().add(fill(columns, "mov.u32 {r}, 0x7FFF0000;"))
    body.add("\n".join(f"mad.lo.u32 {name}, tid, 65537, {i << 8};" for i, name in enumerate(registers)))
    body.add("add.u32 r0, tmem, rowbits;")
    body.add(form("st", shape, num, packed, registers, split))
    body.add("tcgen05.wait::st.sync.aligned;").add(dump(columns))
    done = run(freed(body), out_bytes=128 * 4 * columns, schedule=schedule)
    assert done.ok, done.codes()
    assert not done.codes()
    want = np.full((128, columns), 0x7FFF0000, np.uint32)
    lane, column = places(shape, num, packed, split)
    for warp in range(4):
        for thread in range(32):
            for register in range(len(registers)):
                value = (32 * warp + thread) * 65537 + (register << 8)
                at = (32 * warp + lane[thread, register], column[thread, register])
                if packed:
                    want[at], want[at[0], at[1] + 1] = value & 0xFFFF, value >> 16
                else:
                    want[at] = value
    np.testing.assert_array_equal(done.words(128, columns), want)
