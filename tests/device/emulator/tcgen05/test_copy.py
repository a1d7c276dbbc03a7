"""tcgen05.cp and tcgen05.shift against formulas stated here (PTX ISA 9.7.16.9; lanes as CUTLASS and Apache TVM say)."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from tests.device.emulator.tcgen05.harness import SCHEDULES, Body, Run, allocated, copy_in, dump, fill, freed, run

COMMIT = "tcgen05.commit.cta_group::1.mbarrier::arrive::one.shared::cluster.b64 [mbar];"
SHAPES = {
    "128x256b": (128, 8),
    "4x256b": (4, 8),
    "128x128b": (128, 4),
    "64x128b.warpx2::02_13": (64, 4),
    "64x128b.warpx2::01_23": (64, 4),
    "32x128b.warpx4": (32, 4),
}


def lanes(shape: str, row: int) -> list[int]:
    """Lanes that receive a row of the source."""
    if shape == "4x256b":
        return [32 * row]
    if shape.endswith("02_13"):
        return [row, row + 64]
    if shape.endswith("01_23"):
        return [row % 32 + 64 * (row // 32) + 32 * copy for copy in range(2)]
    if shape.endswith("warpx4"):
        return [row + 32 * copy for copy in range(4)]
    return [row]


def finish(body: Body, schedule: str, data: bytes, columns: int = 16) -> Run:
    body.wait().add("tcgen05.fence::after_thread_sync;").add(dump(columns))
    return run(freed(body), data, out_bytes=128 * 4 * columns, schedule=schedule)


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("swizzle", [0, 128])
@pytest.mark.parametrize("shape", SHAPES)
def test_cp(shape: str, swizzle: int, schedule: str) -> None:
    rows, words = SHAPES[shape]
    rng = np.random.default_rng(rows + words)
    source = rng.integers(0, 1 << 32, (rows, words), np.uint32)
    memory = np.zeros(32 * 1024, np.uint8)
    pitch, leading, stride = (128, 16, 1024) if swizzle else (16, 4096, 128)
    for row in range(rows):
        for chunk in range(words // 4):
            at = row // 8 * stride + row % 8 * pitch + chunk * leading
            if swizzle:
                at ^= row % 8 << 4
            memory[at : at + 16] = source[row, 4 * chunk : 4 * chunk + 4].view(np.uint8)
    bits = leading >> 4 << 16 | stride >> 4 << 32 | 1 << 46 | (2 if swizzle else 0) << 61
    body = allocated().add(fill(16)).add(copy_in(memory.size))
    body.add(f"cvt.u64.u32 da, data;\nshr.u64 da, da, 4;\nor.b64 da, da, {bits};").fenced_sync()
    body.thread(0, f"tcgen05.cp.cta_group::1.{shape} [tmem+4], da;\n{COMMIT}")
    done = finish(body, schedule, memory.tobytes())
    assert done.ok, done.codes()
    assert not done.codes()
    want = np.arange(128, dtype=np.uint32)[:, None] << 16 | np.arange(16, dtype=np.uint32)
    for row in range(rows):
        for lane in lanes(shape, row):
            want[lane, 4 : 4 + words] = source[row]
    np.testing.assert_array_equal(done.words(128, 16), want)


@pytest.mark.parametrize("shape", ["128x256b", "64x128b.warpx2::02_13", "32x128b.warpx4"])
@pytest.mark.parametrize(("source_format", "bits", "shift"), [("b6x16_p32", 6, 0), ("b4x16_p64", 4, 2)])
def test_cp_that_decompresses(source_format: str, bits: int, shift: int, shape: str) -> None:
    """Sixteen elements side by side, then padding; 4-bit ones go to bits 2-5 of their bytes (9.7.16.9.1)."""
    rows, words = SHAPES[shape]
    rng = np.random.default_rng(bits)
    codes = rng.integers(0, 1 << bits, (rows, 4 * words), np.uint8)
    memory = np.full(16 * 1024, 0xFF, np.uint8)
    for row in range(rows):
        for chunk in range(words // 4):
            number = sum(int(code) << bits * i for i, code in enumerate(codes[row, 16 * chunk : 16 * chunk + 16]))
            at = row // 8 * 128 + row % 8 * 16 + chunk * 4096
            memory[at : at + 2 * bits] = np.frombuffer(number.to_bytes(2 * bits, "little"), np.uint8)
    descriptor = 4096 >> 4 << 16 | 128 >> 4 << 32 | 1 << 46
    body = allocated().add(fill(16)).add(copy_in(memory.size))
    body.add(f"cvt.u64.u32 da, data;\nshr.u64 da, da, 4;\nor.b64 da, da, {descriptor};").fenced_sync()
    body.thread(0, f"tcgen05.cp.cta_group::1.{shape}.b8x16.{source_format} [tmem+4], da;\n{COMMIT}")
    done = finish(body, "fair", memory.tobytes())
    assert done.ok and not done.codes(), done.codes()
    want = np.arange(128, dtype=np.uint32)[:, None] << 16 | np.arange(16, dtype=np.uint32)
    for row in range(rows):
        for lane in lanes(shape, row):
            want[lane, 4 : 4 + words] = (codes[row] << shift).view(np.uint32)
    np.testing.assert_array_equal(done.words(128, 16), want)


@pytest.mark.parametrize(("column", "codes"), [(4, set()), (6, {"tmem.alignment"})])
def test_cp_to_columns_that_no_known_kernel_names(column: int, codes: set[str]) -> None:
    """The ISA names no alignment: a warning, and the copy goes where it is told to go."""
    source = np.arange(128, dtype=np.uint32).reshape(32, 4)
    memory = np.zeros(4096, np.uint8)
    for row in range(32):
        memory[row * 16 : row * 16 + 16] = source[row].view(np.uint8)
    descriptor = 128 >> 4 << 16 | 128 >> 4 << 32 | 1 << 46
    body = allocated().add(fill(16)).add(copy_in(memory.size))
    body.add(f"cvt.u64.u32 da, data;\nshr.u64 da, da, 4;\nor.b64 da, da, {descriptor};").fenced_sync()
    body.thread(0, f"tcgen05.cp.cta_group::1.32x128b.warpx4 [tmem+{column}], da;\n{COMMIT}")
    done = finish(body, "fair", memory.tobytes())
    assert done.ok and done.codes() == codes, done.codes()
    want = np.arange(128, dtype=np.uint32)[:, None] << 16 | np.arange(16, dtype=np.uint32)
    want[:, column : column + 4] = np.tile(source, (4, 1))
    np.testing.assert_array_equal(done.words(128, 16), want)


def shifted(cells: NDArray[np.uint32], quarter: int) -> NDArray[np.uint32]:
    result = cells.copy()
    result[32 * quarter : 32 * quarter + 31, :8] = cells[32 * quarter + 1 : 32 * quarter + 32, :8]
    return result


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("quarter", range(4))
def test_shift(quarter: int, schedule: str) -> None:
    body = allocated().add(fill(16)).fenced_sync()
    body.thread(0, f"tcgen05.shift.cta_group::1.down [tmem+{quarter << 21}];\n{COMMIT}")
    done = finish(body, schedule, b"")
    assert done.ok, done.codes()
    assert not done.codes()
    before = np.arange(128, dtype=np.uint32)[:, None] << 16 | np.arange(16, dtype=np.uint32)
    np.testing.assert_array_equal(done.words(128, 16), shifted(before, quarter))


def test_two_copies_to_one_place_are_unordered() -> None:
    bits = 256 << 16 | 8 << 32 | 1 << 46
    copy = "tcgen05.cp.cta_group::1.128x128b [tmem], da;"
    body = allocated().add(copy_in(16 * 1024))
    body.add(f"cvt.u64.u32 da, data;\nshr.u64 da, da, 4;\nor.b64 da, da, {bits};").fenced_sync()
    body.thread(0, f"{copy}\n{copy}\n{COMMIT}").wait()
    assert "tcgen05.unordered" in run(freed(body), bytes(16 * 1024)).codes()
