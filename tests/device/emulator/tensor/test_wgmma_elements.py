"""wgmma with e4m3, e5m2 and tf32 elements against numpy: every pair of types, A in registers, signs, both results."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from ptxgym import native
from ptxgym.device.emulator.core import Core, LaunchShape, Outcome, PlacedBuffer
from ptxgym.device.emulator.decode import DecodedModule
from tests.device.emulator.tensor.reference import accumulator_places
from tests.gpu.cases import descriptor

IN, OUT = 0x1000_0000_0000, 0x1000_1000_0000
B_START, ACCUMULATORS, BASE = 2048, 6144, 2048
"""Bytes of the input: A, B, accumulators of 128 threads. BASE: shared address of its copy, a multiple of 1024."""
FORMATS = {"e4m3": (4, 3), "e5m2": (5, 2)}


def numbers(kind: str) -> NDArray[np.float64]:
    """The number that every byte stands for (OCP 8-bit floating point; PTX ISA 5.2.3)."""
    exponent_bits, mantissa_bits = FORMATS[kind]
    bits = np.arange(256)
    field, mantissa = bits >> mantissa_bits & (1 << exponent_bits) - 1, bits & (1 << mantissa_bits) - 1
    bias = (1 << exponent_bits - 1) - 1
    scale = 2.0 ** (np.maximum(field, 1) - bias)
    values = scale * (mantissa / (1 << mantissa_bits) + (field > 0))
    if kind == "e5m2":
        values[field == 31] = np.where(mantissa[field == 31] == 0, np.inf, np.nan)
    else:
        values[(bits & 127) == 127] = np.nan
    return np.where(bits & 128, -values, values)


def encoded(kind: str, values: NDArray[np.float64]) -> NDArray[np.uint8]:
    """Bytes of numbers that the format has."""
    if kind == "tf32":
        return values.astype(np.float32).view(np.uint8).reshape(values.shape[0], -1)
    table = np.where(np.isfinite(numbers(kind)), numbers(kind), 1e9)
    codes = np.abs(table[None, :] - values.reshape(-1, 1)).argmin(axis=1)
    assert (table[codes] == values.reshape(-1)).all()
    return codes.astype(np.uint8).reshape(values.shape)


def image(a: NDArray[np.uint8], b: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Rows of 32 bytes, K-major without a swizzle: 8 rows of 16 bytes, their other halves, then the next 8 rows."""
    memory = np.zeros(ACCUMULATORS, np.uint8)
    for start, rows in ((0, a), (B_START, b)):
        for row in range(rows.shape[0]):
            for chunk in range(2):
                at = start + row // 8 * 256 + chunk * 128 + row % 8 * 16
                memory[at : at + 16] = rows[row, 16 * chunk : 16 * chunk + 16]
    return memory


def text(form: str, accumulators: int, *, registers: bool, signs: str, scale: int) -> str:
    result = "f32" if ".f32." in form else "b32"
    names = [f"c{i}" for i in range(accumulators)]
    first = descriptor(BASE, 128, 256, "NONE"), descriptor(BASE + B_START, 128, 256, "NONE")
    a = "{a0, a1, a2, a3}" if registers else "da"
    lines = [
        ".version 9.0\n.target sm_90a\n.address_size 64\n.extern .shared .align 1024 .b8 dynamic[];",
        ".visible .entry k(.param .u64 input, .param .u64 output)\n{",
        ".reg .b64 from, to, off, cursor, da, db; .reg .b32 tid, at, r0, r1, r2, row; .reg .b32 a<4>;",
        f".reg .{result} c<{accumulators}>; .reg .pred p, q;",
        "ld.param.u64 from, [input]; ld.param.u64 to, [output]; mov.u32 tid, %tid.x; mov.u32 at, dynamic;",
        f"add.u32 at, at, {BASE - 1024}; shl.b32 r0, tid, 2; mov.u32 r2, 0;",
        "COPY: add.u32 r1, r0, r2; cvt.u64.u32 off, r1; add.u64 cursor, from, off; ld.global.u32 row, [cursor];",
        "add.u32 r1, at, r1; st.shared.u32 [r1], row; add.u32 r2, r2, 512;",
        f"setp.lt.u32 p, r2, {ACCUMULATORS}; @p bra COPY;",
        f"mul.wide.u32 off, tid, {4 * accumulators}; add.u64 to, to, off; add.u64 cursor, from, off;",
        *(f"ld.global.{result} {name}, [cursor+{ACCUMULATORS + 4 * i}];" for i, name in enumerate(names)),
        "fence.proxy.async.shared::cta; bar.sync 0;",
        # PTX ISA 9.7.15.5.1.1: row 16 warp + lane / 4 + 8 (i % 2), bytes 4 (lane % 4) + 16 (i / 2) of it
        "shr.u32 row, tid, 5; shl.b32 row, row, 4; and.b32 r0, tid, 31; shr.u32 r1, r0, 2; add.u32 row, row, r1;",
        "shr.u32 r1, row, 3; shl.b32 r1, r1, 8; and.b32 r2, row, 7; shl.b32 r2, r2, 4; add.u32 r1, r1, r2;",
        "and.b32 r2, tid, 3; shl.b32 r2, r2, 2; add.u32 r1, r1, r2; add.u32 r1, r1, at;",
        *(f"ld.shared.b32 a{i}, [r1+{i % 2 * 256 + i // 2 * 128}];" for i in range(4)),
        f"mov.b64 da, {first[0]}; mov.b64 db, {first[1]}; mov.u32 r0, {scale}; setp.ne.u32 q, r0, 0;",
        "wgmma.fence.sync.aligned;",
        f"wgmma.mma_async.sync.aligned.{form} {{{', '.join(names)}}}, {a}, db, q{signs};",
        "wgmma.commit_group.sync.aligned; wgmma.wait_group.sync.aligned 0;",
        *(f"st.global.{result} [to+{4 * i}], {name};" for i, name in enumerate(names)),
        "ret;\n}",
    ]
    return "\n".join(lines)


def multiplied(
    kinds: tuple[str, str],
    a: NDArray[np.float64],
    b: NDArray[np.float64],
    c: NDArray[np.floating] | None = None,
    *,
    registers: bool = False,
    signs: tuple[int, int] = (1, 1),
) -> NDArray[np.floating]:
    """D of one wgmma, [64, n], of the type of `c` (fp32 without): zero, or `c`, plus A Bᵀ."""
    n, half = b.shape[0], c is not None and c.dtype == np.float16
    rows, columns = accumulator_places(n)
    data = np.zeros((128, n // 2), np.float16 if half else np.float32) if c is None else c[rows, columns]
    form = f"m64n{n}k{a.shape[1]}.{'f16' if half else 'f32'}.{kinds[0]}.{kinds[1]}"
    memory, scales = image(encoded(kinds[0], a), encoded(kinds[1], b)), f", {signs[0]}, {signs[1]}"
    matrix = np.zeros((64, n), data.dtype)
    body = text(form, n // 4 if half else n // 2, registers=registers, signs=scales, scale=int(c is not None))
    matrix[rows, columns] = launched(body, memory, data)
    return matrix


def launched(body: str, memory: NDArray[np.uint8], data: NDArray[Any]) -> NDArray[Any]:
    """Accumulators of all threads, [128, …] like `data`, after the kernel `body` of `text`."""
    program = Core(native.library("emulator")).load(DecodedModule.parse(body, "k").kernel("k"))
    source, output = np.concatenate([memory, data.copy().view(np.uint8).reshape(-1)]), np.zeros(data.nbytes, np.uint8)
    shape = LaunchShape(grid=(1, 1, 1), block=(128, 1, 1), dynamic_smem_bytes=16384)
    buffers = [PlacedBuffer("in", IN, source, is_input=True), PlacedBuffer("out", OUT, output)]
    done = program.launch(shape, buffers, IN.to_bytes(8, "little") + OUT.to_bytes(8, "little"))
    assert done.outcome is Outcome.OK and not done.records, done.records
    return output.view(data.dtype).reshape(128, -1)


def whole(kind: str, shape: tuple[int, int], seed: int) -> NDArray[np.float64]:
    """Small multiples of a quarter, which every format has."""
    return np.random.default_rng(seed).integers(-3, 4, shape) / (4.0 if kind == "e4m3" else 2.0)


PAIRS = [("e4m3", "e4m3"), ("e4m3", "e5m2"), ("e5m2", "e4m3"), ("e5m2", "e5m2"), ("tf32", "tf32")]


@pytest.mark.parametrize("registers", [False, True], ids=["shared", "registers"])
@pytest.mark.parametrize("kinds", PAIRS, ids="-".join)
def test_products_of_small_numbers_are_exact(kinds: tuple[str, str], registers: bool) -> None:
    k = 8 if kinds[0] == "tf32" else 32
    a, b = whole(kinds[0], (64, k), 1), whole(kinds[1], (16, k), 2)
    c = np.random.default_rng(3).integers(-8, 9, (64, 16)).astype(np.float32)
    np.testing.assert_array_equal(multiplied(kinds, a, b, registers=registers), (a @ b.T).astype(np.float32))
    signed = multiplied(kinds, a, b, c, registers=registers, signs=(1, -1))
    np.testing.assert_array_equal(signed, (c - a @ b.T).astype(np.float32))


@pytest.mark.parametrize("kinds", PAIRS[:4], ids="-".join)
def test_results_in_half_precision(kinds: tuple[str, str]) -> None:
    a, b = whole(kinds[0], (64, 32), 4), whole(kinds[1], (8, 32), 5)
    c = np.random.default_rng(6).integers(-8, 9, (64, 8)).astype(np.float16)
    np.testing.assert_array_equal(multiplied(kinds, a, b, c), (c + a @ b.T).astype(np.float16))


@pytest.mark.parametrize("kind", FORMATS)
def test_every_byte_is_read_as_its_number(kind: str) -> None:
    """A holds all bytes, B the unit matrix: 13 bits keep every number that is finite."""
    table = numbers(kind).reshape(8, 32)
    a = np.zeros((64, 32))
    a[:8] = np.where(np.isfinite(table), table, 0)
    seen = multiplied((kind, kind), a, np.eye(32))
    np.testing.assert_array_equal(seen[:8], a[:8].astype(np.float32))


def test_eight_bit_sums_keep_thirteen_places() -> None:
    """1024 and 31 sixteenths: below 2^-3 of the greatest term nothing is left; sixteen bits keep all (25 places)."""
    a, b = np.full((64, 32), 0.25), np.full((8, 32), 0.25)
    a[:, 0] = b[:, 0] = 32.0
    assert (multiplied(("e4m3", "e4m3"), a, b) == 1024).all()
    a[:, 1] = 0.5
    assert (multiplied(("e4m3", "e4m3"), a, b) == 1024.125).all()
    c = np.full((64, 8), 1 / 16, np.float32)
    assert (multiplied(("tf32", "tf32"), a[:, :8], b[:, :8], c) == 1024 + 1 / 16 + 0.125 + 6 / 16).all()


def test_nan_and_infinity_stay() -> None:
    a, b = np.zeros((64, 32)), np.ones((8, 32))
    a[0, 0], a[1, 3] = np.nan, np.inf
    table = numbers("e5m2")
    codes = encoded("e5m2", np.where(np.isfinite(a), a, 0))
    codes[0, 0], codes[1, 3] = np.flatnonzero(np.isnan(table))[0], np.flatnonzero(table == np.inf)[0]
    original = encoded

    def planted(kind: str, values: NDArray[np.float64]) -> NDArray[np.uint8]:
        return codes if values is a else original(kind, values)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(f"{__name__}.encoded", planted)
        seen = multiplied(("e5m2", "e4m3"), a, b)
    assert np.isnan(seen[0]).all() and (seen[1] == np.inf).all() and (seen[2:] == 0).all()
