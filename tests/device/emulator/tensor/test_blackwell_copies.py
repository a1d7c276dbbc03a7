# ruff: noqa: E501  (PTX text is not broken where a reader would not break it)
"""Tensor copies of sm_100: packed types, swizzles with larger atoms, four rows at once. Expected by tables and bit lists.

PTX ISA 5.5.1.1.1 (padding), 5.5.3.4 (rows), 5.5.7 (swizzles), 9.7.9.25.5.1 (restrictions).
"""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from ptxgym.device.emulator import tensor_map
from ptxgym.device.emulator.core import Outcome
from ptxgym.device.emulator.placement import place
from ptxgym.plan.model import BufferRef, TensorMap
from tests.device.emulator.core.harness import Run, kernel, run

Bytes = NDArray[np.uint8]
TILE = 4096
WIDE = {
    "128B_ATOM_32B": [[0, 1, 2, 3, 4, 5, 6, 7], [2, 3, 0, 1, 6, 7, 4, 5], [4, 5, 6, 7, 0, 1, 2, 3], [6, 7, 4, 5, 2, 3, 0, 1]],
    "128B_ATOM_64B": [[0, 1, 2, 3, 4, 5, 6, 7], [4, 5, 6, 7, 0, 1, 2, 3]],
}  # fmt: skip
PATTERNS = {
    "NONE": [[0, 1, 2, 3, 4, 5, 6, 7]],
    "128B": [[c ^ r for c in range(8)] for r in range(8)],
    "128B_ATOM_32B_FLIP_8B": WIDE["128B_ATOM_32B"],
    **WIDE,
}
"""Chunk of 16 bytes that stands in each place of a line of 128, by line of the repeating pattern (5.5.7)."""


def swizzled(lines: Bytes, swizzle: str, first: int = 0) -> Bytes:
    """Lines of 128 bytes as they lie in shared memory, the first being line `first` of the pattern."""
    out = np.empty_like(lines)
    pattern = PATTERNS[swizzle]
    for r, line in enumerate(lines.reshape(-1, 8, 16)):
        chunks = line[pattern[(first + r) % len(pattern)]]
        if swizzle.endswith("FLIP_8B") and (first + r) % 2:
            chunks = np.concatenate([chunks[:, 8:], chunks[:, :8]], axis=1)
        out[r] = chunks.reshape(-1)
    return out


def made(kind: str, dims: tuple[int, int], stride: int, box: tuple[int, int], swizzle: str = "NONE") -> TensorMap:
    return TensorMap(
        data_type=kind, global_address=BufferRef(buffer="tensor"), global_dim=dims, global_strides_bytes=(stride,),
        box_dim=box, element_strides=(1, 1), swizzle=swizzle,
    )  # fmt: skip


EACH_WORD = "mov.u32 %r20, %r0;\n{0}: shl.b32 %r21, %r20, 2; mov.u32 %r22, tile; add.u32 %r22, %r22, %r21; mul.wide.u32 %rd9, %r20, 4; {1} add.u32 %r20, %r20, 32; setp.lt.u32 %p3, %r20, 1024; @%p3 bra {0};"
"""A loop of the warp over the words of the tile: %r22 is the shared address, %rd9 the byte offset."""
HEAD = ".shared .align 1024 .b8 tile[4096]; .shared .align 8 .b8 bar[8]; setp.ne.u32 %p1, %r0, 0;"
ARGUMENTS = "mov.u32 %r30, tile; add.u32 %r30, %r30, {0};"


def launched(body: str, map_: TensorMap, tensor: Bytes, tile: Bytes) -> Run:
    buffers = {"tensor": tensor, "tile": tile, "map": np.zeros(128, np.uint8)}
    addresses = place((name, array.nbytes) for name, array in buffers.items())
    buffers["map"] = np.frombuffer(tensor_map.pack(map_, addresses["tensor"]), np.uint8)
    return run(kernel(HEAD + body), buffers, inputs=["map"])


def load(map_: TensorMap, coords: tuple[int, ...], expected: int, tensor: Bytes, offset: int = 0) -> Run:
    """A box into a tile of 0xCD, of which all is stored to the buffer `tile`."""
    mode = ".tile::gather4" if len(coords) == 5 else ""
    fill = EACH_WORD.format("FILL", "st.shared.u32 [%r22], 0xCDCDCDCD;")
    dump = EACH_WORD.format("DUMP", "ld.shared.u32 %r23, [%r22]; add.s64 %rd9, %rd9, %rd1; st.global.u32 [%rd9], %r23;")
    body = f"""
      {fill} {ARGUMENTS.format(offset)} @%p1 bra READY; mbarrier.init.shared::cta.b64 [bar], 1;
    READY: fence.proxy.async.shared::cta; bar.sync 0;
      @%p1 bra ASKED; mbarrier.arrive.expect_tx.shared::cta.b64 _, [bar], {expected};
      cp.async.bulk.tensor.2d.shared::cta.global{mode or ".tile"}.mbarrier::complete_tx::bytes [%r30], [%rd2, {{{", ".join(map(str, coords))}}}], [bar];
    ASKED: mbarrier.try_wait.parity.shared::cta.b64 %p2, [bar], 0; @!%p2 bra ASKED;
      {dump}
    """
    return launched(body, map_, tensor, np.zeros(TILE, np.uint8))


def store(map_: TensorMap, coords: tuple[int, ...], tile: Bytes, tensor: Bytes) -> Run:
    mode = ".tile::scatter4" if len(coords) == 5 else ""
    fill = EACH_WORD.format("FILL", "add.s64 %rd9, %rd9, %rd1; ld.global.u32 %r23, [%rd9]; st.shared.u32 [%r22], %r23;")
    body = f"""
      {fill} {ARGUMENTS.format(0)} fence.proxy.async.shared::cta; bar.sync 0; @%p1 bra END;
      cp.async.bulk.tensor.2d.global.shared::cta{mode or ".tile"}.bulk_group [%rd2, {{{", ".join(map(str, coords))}}}], [%r30];
      cp.async.bulk.commit_group; cp.async.bulk.wait_group 0;
    END:
    """
    return launched(body, map_, tensor, tile)


def noise(*shape: int) -> Bytes:
    return np.random.default_rng(sum(shape)).integers(0, 256, shape, dtype=np.uint8)


def tile_after(done: Run) -> Bytes:
    assert done.launch.outcome == Outcome.OK and not set(done.codes) - {"tma.swizzle_base"}, done.records
    return done.words("tile", "u1")


def tensor_after(done: Run) -> Bytes:
    assert done.launch.outcome == Outcome.OK and done.codes == [], done.records
    return done.words("tensor", "u1")


# ---- swizzles

ROWS = noise(24, 192)
"""A tensor of bytes."""


@pytest.mark.parametrize("first", [0, 1, 3])
@pytest.mark.parametrize("swizzle", [name for name in PATTERNS if name != "NONE"])
def test_loads_keep_larger_atoms(swizzle: str, first: int) -> None:
    done = load(made("UINT8", (192, 24), 192, (128, 9), swizzle), (32, 5), 9 * 128, ROWS.reshape(-1), 128 * first)
    got = tile_after(done).reshape(-1, 128)
    np.testing.assert_array_equal(got[first : first + 9], swizzled(ROWS[5:14, 32:160], swizzle, first))
    assert (got[:first] == 0xCD).all() and (got[first + 9 :] == 0xCD).all()


@pytest.mark.parametrize("swizzle", [name for name in PATTERNS if name != "NONE"])
def test_stores_keep_larger_atoms(swizzle: str) -> None:
    """Rows 20 to 23 lie inside, as the first 112 of 128 bytes do."""
    image = noise(TILE)
    want = np.zeros((24, 192), np.uint8)
    lines = np.empty((8, 128), np.uint8)
    for r in range(8):  # what stands in place p of line r is chunk pattern[p]
        chunks = image[128 * r : 128 * r + 128].reshape(8, 16)
        if swizzle.endswith("FLIP_8B") and r % 2:
            chunks = np.concatenate([chunks[:, 8:], chunks[:, :8]], axis=1)
        pattern = PATTERNS[swizzle][r % len(PATTERNS[swizzle])]
        lines[r].reshape(8, 16)[pattern] = chunks
    want[20:, 80:] = lines[:4, :112]
    done = store(made("UINT8", (192, 24), 192, (128, 8), swizzle), (80, 20), image, np.zeros(24 * 192, np.uint8))
    np.testing.assert_array_equal(tensor_after(done).reshape(24, 192), want)


def test_half_a_line_takes_the_whole_pattern() -> None:
    """A box of 64 bytes: with atoms of 64 bytes it lies in the lower half of even lines, in the upper half of odd ones."""
    got = tile_after(load(made("UINT8", (192, 24), 192, (64, 4), "128B_ATOM_64B"), (0, 0), 256, ROWS.reshape(-1)))
    lines = got.reshape(-1, 2, 64)
    for r in range(4):
        np.testing.assert_array_equal(lines[r, r % 2], ROWS[r, :64])
        assert (lines[r, 1 - r % 2] == 0xCD).all()


# ---- elements of four and six bits


@pytest.mark.parametrize("x", [0, 32, 192])
def test_nibbles_that_are_not_padded_are_copied_as_they_are(x: int) -> None:
    tensor = noise(6, 128)  # 256 elements a row
    got = tile_after(load(made("16U4_ALIGN8B", (256, 6), 128, (64, 4)), (x, 1), 4 * 32, tensor.reshape(-1)))
    np.testing.assert_array_equal(got[:128].reshape(4, 32), tensor[1:5, x // 2 : x // 2 + 32])
    assert (got[128:] == 0xCD).all()


def test_nibbles_are_stored_as_they_are() -> None:
    image, want = noise(TILE), np.zeros((6, 128), np.uint8)
    want[4:, 96:] = image[:128].reshape(4, 32)[:2]
    done = store(made("16U4_ALIGN8B", (256, 6), 128, (64, 4)), (192, 4), image, np.zeros(6 * 128, np.uint8))
    np.testing.assert_array_equal(tensor_after(done).reshape(6, 128), want)


PADDED = {"16U4_ALIGN16B": 8, "16U6_ALIGN16B": 12}
"""Bytes that sixteen elements take in global memory; in shared memory they take 16."""


@pytest.mark.parametrize("swizzle", ["NONE", "128B", "128B_ATOM_32B"])
@pytest.mark.parametrize("kind", PADDED)
def test_padded_elements_leave_gaps(kind: str, swizzle: str) -> None:
    """Two boxes lie side by side in a row; the last row of this one lies outside. The barrier counts what is copied."""
    size = PADDED[kind]
    tensor = noise(6, 16 * size)
    map_ = made(kind, (256, 6), 16 * size, (128, 4), swizzle)
    got = tile_after(load(map_, (128, 3), 4 * 8 * size, tensor.reshape(-1)))
    lines = np.full((4, 8, 16), 0xCD, np.uint8)
    lines[:3, :, :size] = tensor[3:6, 8 * size :].reshape(3, 8, size)
    lines[3, :, :size] = 0
    np.testing.assert_array_equal(got[:512].reshape(4, 128), swizzled(lines.reshape(4, 128), swizzle))
    assert (got[512:] == 0xCD).all()


@pytest.mark.parametrize("swizzle", ["NONE", "128B", "128B_ATOM_64B"])
def test_stores_of_six_bits_take_one_element_a_byte(swizzle: str) -> None:
    """.b6p2x16: the two high bits of a byte are dropped."""
    image = noise(TILE)
    bits = np.unpackbits(image[:512].reshape(4, 128), axis=1, bitorder="little").reshape(4, 128, 8)[:, :, :6]
    image[:512] = swizzled(image[:512].reshape(4, 128), swizzle).reshape(-1)
    packed = np.packbits(bits.reshape(4, 768), axis=1, bitorder="little")
    want = np.zeros((6, 192), np.uint8)
    want[4:, 96:] = packed[:2]
    done = store(made("16U6_ALIGN16B", (256, 6), 192, (128, 4), swizzle), (128, 4), image, np.zeros(6 * 192, np.uint8))
    np.testing.assert_array_equal(tensor_after(done).reshape(6, 192), want)


def test_padded_nibbles_cannot_be_stored() -> None:
    done = store(made("16U4_ALIGN16B", (256, 6), 128, (128, 4)), (0, 0), noise(TILE), np.zeros(768, np.uint8))
    assert done.fatal == "tma.element_type" and "16U4_ALIGN8B" in done.message("tma.element_type")


@pytest.mark.parametrize(("kind", "unit"), [("16U4_ALIGN16B", 128), ("16U6_ALIGN16B", 128), ("16U4_ALIGN8B", 32)])
def test_the_first_coordinate_of_packed_elements(kind: str, unit: int) -> None:
    size, box = 16 * PADDED.get(kind, 8), (128 if kind in PADDED else 64, 4)
    done = load(made(kind, (256, 6), size, box), (unit // 2, 0), 0, noise(6 * size))
    assert done.fatal == "tma.coordinate"
    message = done.message("tma.coordinate")
    assert f"coordinate {unit // 2} " in message and f"({unit} elements)" in message


# ---- four rows


@pytest.mark.parametrize("swizzle", ["NONE", "128B", "128B_ATOM_32B_FLIP_8B"])
def test_rows_are_gathered(swizzle: str) -> None:
    """In the order in which they are named, one of them twice; rows outside are zeros."""
    map_ = made("UINT8", (192, 24), 192, (128, 1), swizzle)
    got = tile_after(load(map_, (64, 9, 0, 24, 9), 4 * 128, ROWS.reshape(-1))).reshape(-1, 128)
    want = np.stack([ROWS[9, 64:], ROWS[0, 64:], np.zeros(128, np.uint8), ROWS[9, 64:]])
    np.testing.assert_array_equal(got[:4], swizzled(want, swizzle))
    assert (got[4:] == 0xCD).all()


def test_rows_of_halves_are_gathered_and_clipped() -> None:
    tensor = noise(8, 96)  # 48 elements of two bytes
    got = tile_after(load(made("BFLOAT16", (48, 8), 96, (32, 1)), (24, 7, -1, 2, 5), 256, tensor.reshape(-1)))
    want = np.zeros((4, 64), np.uint8)
    for line, row in ((0, 7), (2, 2), (3, 5)):
        want[line, :48] = tensor[row, 48:]
    np.testing.assert_array_equal(got[:256].reshape(4, 64), want)


@pytest.mark.parametrize("swizzle", ["NONE", "128B"])
def test_rows_are_scattered(swizzle: str) -> None:
    image = noise(TILE)
    lines = image[:512].reshape(4, 128).copy()
    image[:512] = swizzled(lines, swizzle).reshape(-1)
    want = np.zeros((24, 192), np.uint8)
    want[[3, 20, 11], 64:] = lines[[0, 1, 3]]
    map_ = made("UINT8", (192, 24), 192, (128, 1), swizzle)
    done = store(map_, (64, 3, 20, 24, 11), image, np.zeros(24 * 192, np.uint8))
    np.testing.assert_array_equal(tensor_after(done).reshape(24, 192), want)


def test_what_four_rows_must_keep_to() -> None:
    tall = load(made("UINT8", (192, 24), 192, (128, 4)), (0, 1, 2, 3, 4), 0, ROWS.reshape(-1))
    assert tall.fatal == "tma.box" and "boxDim[1] to 1" in tall.message("tma.box")
    short = made("UINT8", (192, 24), 192, (128, 1))
    negative = store(short, (0, 1, -2, 3, 4), noise(TILE), np.zeros(24 * 192, np.uint8))
    assert negative.fatal == "tma.coordinate" and "coordinate -2 of dimension 1" in negative.message("tma.coordinate")
    outside = load(short, (0, 24, 30, -1, 99), 512, ROWS.reshape(-1))
    assert outside.launch.outcome == Outcome.OK and outside.codes == ["tma.box_outside"]
    message = outside.message("tma.box_outside")
    assert "{0, 24, 30, -1, 99}" in message and "{192, 24}" in message
