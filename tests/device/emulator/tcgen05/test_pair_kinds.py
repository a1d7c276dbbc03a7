"""Kinds other than f16 of a pair of CTAs: each holds half of the rows of A and D, and of the columns of B."""

from __future__ import annotations

import numpy as np
import pytest

from tests.device.emulator.tcgen05.kinds import Case, Floats, instruction, whole
from tests.device.emulator.tcgen05.pair import IMAGE, START_B, accumulator, product
from tests.device.emulator.tcgen05.test_block_scale import scale_image, scale_numbers

START_SFA, START_SFB = 48 * 1024, 50 * 1024
TYPES = {"f8f6f4": ("e2m3", "e5m2"), "i8": ("s8", "u8"), "tf32": ("tf32", "tf32"), "mxf8f6f4": ("e4m3", "e2m1"),
         "mxf4": ("e2m1", "e2m1")}  # fmt: skip


def halves(kind: str, a: Floats, b: Floats) -> list[bytearray]:
    """Images of both CTAs, without a swizzle."""
    m, n = a.shape[0] // 2, b.shape[0] // 2
    images = []
    for part in range(2):
        rows, columns = a[part * m : part * m + m], b[part * n : part * n + n]
        memory = np.zeros(IMAGE, np.uint8)
        case = Case(kind, TYPES[kind], rows, columns, 0)
        case.places[0].put(memory, 0, kind, TYPES[kind][0], rows)
        case.places[1].put(memory, START_B, kind, TYPES[kind][1], columns)
        images.append(bytearray(memory.tobytes()))
    return images


def issue(kind: str, idesc: int, more: str = "") -> str:
    return (
        f"mov.u32 r2, {idesc};\nsetp.ne.u32 p, 0, 0;\n"
        f"tcgen05.mma.cta_group::2.kind::{kind} [tmem], da, db, r2{more}, p;\n"
    )


@pytest.mark.parametrize("m", [256, 128])
@pytest.mark.parametrize("kind", ["f8f6f4", "i8", "tf32"])
def test_products_of_a_pair(kind: str, m: int) -> None:
    rng = np.random.default_rng(m)
    depth = 8 if kind == "tf32" else 32
    a, b = (rng.integers(0, 4, (rows, depth)).astype(np.float64) for rows in (m, 64))
    idesc = instruction(kind, m, 64, *TYPES[kind], "s32" if kind == "i8" else "f32")
    place = Case(kind, TYPES[kind], a, b, 0).places[0]
    data = b"".join(halves(kind, a, b))
    done = product(issue(kind, idesc), 64, data, place, place)  # type: ignore[arg-type]
    assert done.ok and done.codes() <= {"tmem.uninitialised"}, done.codes()
    seen = done.output.view(np.int32 if kind == "i8" else np.float32).reshape(2, 128, -1)
    np.testing.assert_array_equal(accumulator(seen, m, 64), a @ b.T)
    assert done.launch.multiply_adds.sum() == m * 64 * depth


def copy(start: int, column: str, form: str) -> str:
    return (
        f"and.b32 r3, data, 0x3ffff;\ncvt.u64.u32 off, r3;\nadd.u64 off, off, {start};\nshr.u64 off, off, 4;\n"
        f"or.b64 off, off, {1 << 46 | 128 >> 4 << 32};\ntcgen05.cp.cta_group::2.{form} [tmem+{column}], off;\n"
    )


@pytest.mark.parametrize("m", [256, 128])
@pytest.mark.parametrize(("kind", "count"), [("mxf8f6f4", 1), ("mxf4", 2)])
def test_block_scaled_products_of_a_pair(kind: str, count: int, m: int) -> None:
    """With M = 128 each half of the lanes has the factors of its half of the columns of B."""
    rng = np.random.default_rng(m + count)
    depth, n = 32 * count, 64
    a, b = whole(rng, m, depth), whole(rng, n, depth)
    factors = [rng.integers(124, 131, (rows, count)).astype(np.uint8) for rows in (m, n)]
    images = halves(kind, a, b)
    for part, image in enumerate(images):
        rows = m // 2
        image[START_SFA : START_SFA + 2048] = scale_image(factors[0][part * rows : part * rows + rows], 0).tobytes()
        columns = scale_image(factors[1], 0)
        if m == 128:
            columns = np.concatenate([scale_image(factors[1][h * 32 : h * 32 + 32], 0)[:512] for h in range(2)])
        image[START_SFB : START_SFB + columns.size] = columns.tobytes()
    form = "32x128b.warpx4" if m == 256 else "64x128b.warpx2::01_23"
    text = copy(START_SFA, "272", "32x128b.warpx4") + copy(START_SFB, "288", form)
    text += issue(f"{kind}.block_scale", instruction(kind, m, n, *TYPES[kind]), ", [tmem+272], [tmem+288]")
    place = Case(kind, TYPES[kind], a, b, 0).places[0]
    done = product(text, n, b"".join(images), place, place)  # type: ignore[arg-type]
    assert done.ok and done.codes() <= {"tmem.uninitialised"}, done.codes()
    table = scale_numbers("ue8m0")
    wide = [matrix * np.repeat(table[codes], 32, axis=1) for matrix, codes in zip((a, b), factors, strict=True)]
    want = wide[0] @ wide[1].T
    seen = accumulator(done.output.view(np.float32).reshape(2, 128, -1), m, n)
    np.testing.assert_allclose(seen, want, rtol=2.0**-18, atol=np.abs(want).max() * 2.0**-18)
