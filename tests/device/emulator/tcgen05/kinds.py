"""Products of every kind: numbers, packing, layouts and descriptors, written down anew from PTX ISA 9.7.16 and the OCP
formats, and the kernel that runs one."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tests.device.emulator.tcgen05.harness import Body, Run, allocated, copy_in, dump, freed, run

Floats = NDArray[np.float64]
Codes = NDArray[np.uint8]

FLOATS = {"e4m3": (4, 3), "e5m2": (5, 2), "e2m3": (2, 3), "e3m2": (3, 2), "e2m1": (2, 1)}
"""Type → bits of exponent and mantissa."""
BITS = {"e4m3": 8, "e5m2": 8, "e2m3": 6, "e3m2": 6, "e2m1": 4, "u8": 8, "s8": 8}
TYPE_FIELD = {"e4m3": 0, "e5m2": 1, "e2m3": 3, "e3m2": 4, "e2m1": 5, "tf32": 2, "u8": 0, "s8": 1, "f16": 0, "bf16": 1}
DEPTH = {"tf32": 8, "f16": 16, "f8f6f4": 32, "i8": 32, "mxf8f6f4": 32, "mxf4": 64, "mxf4nvf4": 64}


def numbers(kind: str) -> Floats:
    """The number of every code: steps double each time the exponent grows (OCP 8-bit and microscaling formats)."""
    if kind == "u8":
        return np.arange(256.0)
    if kind == "s8":
        return np.concatenate([np.arange(128.0), np.arange(-128.0, 0.0)])
    exponent, mantissa = FLOATS[kind]
    step = 2.0 ** (2 - (1 << exponent - 1) - mantissa)
    values = [0.0]
    for code in range(1, 1 << exponent + mantissa):
        values.append(values[-1] + step)
        if code % (1 << mantissa) == 0 and code > 1 << mantissa:
            step *= 2
    return np.array(values + [-value for value in values])


def encode(kind: str, values: Floats) -> Codes:
    """Codes of numbers that the type has."""
    table = numbers(kind)
    codes = np.abs(table[None, :] - values.reshape(-1, 1)).argmin(axis=1)
    assert (table[codes] == values.reshape(-1)).all(), kind
    return codes.astype(np.uint8).reshape(values.shape)


def _packed(codes: Codes, bits: int, size: int) -> Codes:
    """Little-endian fields of `bits`, padded to `size` bytes."""
    whole = sum(int(code) << bits * index for index, code in enumerate(codes))
    return np.frombuffer(whole.to_bytes(size, "little"), np.uint8)


def chunk(kind: str, type_: str, values: Floats) -> Codes:
    """The 16 bytes of shared memory that hold some elements of an operand (9.7.16.10.4)."""
    if kind == "tf32":
        return values.astype(np.float32).view(np.uint8)
    if kind == "f16":
        return (values.astype(np.float32).view(np.uint32) >> 16).astype(np.uint16).view(np.uint8)  # bf16
    return _packed(encode(type_, values), BITS[type_], 16)


def per_chunk(kind: str) -> int:
    return DEPTH[kind] // 2


def cells(kind: str, type_: str, values: Floats) -> NDArray[np.uint32]:
    """Tensor memory of rows of A, [rows, 8] words (9.7.16.10.4.3, 9.7.16.10.4.5)."""
    rows = values.shape[0]
    if kind in ("tf32", "f16", "mxf4", "mxf4nvf4"):
        width = per_chunk(kind)
        halves = [chunk(kind, type_, row[at : at + width]) for row in values for at in (0, width)]
        return np.concatenate(halves).view(np.uint32).reshape(rows, 8)
    containers = encode(type_, values) << (2 if type_ == "e2m1" else 0)
    return containers.reshape(-1).view(np.uint32).reshape(rows, 8)


@dataclass(frozen=True)
class Place:
    """A canonical layout (9.7.16.3.3); `swizzle` in bytes, 132: 128B with atoms of 32 bytes."""

    swizzle: int = 0
    mn_major: bool = False
    leading: int = 128
    stride: int = 256

    def offset(self, unit: int, row: int) -> int:
        """Byte of a 16-byte unit: `unit` along the major dimension, `row` along the other."""
        units = {0: 1, 32: 2, 64: 4, 128: 8, 132: 8}[self.swizzle]
        if self.mn_major:
            depth = 4 if self.swizzle == 132 else 8
            first, second = (self.leading, self.stride) if self.swizzle else (self.stride, self.leading)
            at = unit % units * 16 + unit // units * first + row % depth * units * 16 + row // depth * second
        else:
            at = row % 8 * units * 16 + row // 8 * self.stride + unit * (16 if self.swizzle else self.leading)
        if self.swizzle == 132:
            return at ^ (at >> 7 & 3) << 5
        return at ^ (at >> 7 & units - 1) << 4

    def descriptor(self) -> int:
        mode = {0: 0, 32: 6, 64: 4, 128: 2, 132: 1}[self.swizzle]
        return self.leading >> 4 << 16 | self.stride >> 4 << 32 | 1 << 46 | mode << 61

    def put(self, image: Codes, start: int, kind: str, type_: str, values: Floats) -> None:
        """Write an operand [rows, K] into shared memory."""
        width = per_chunk(kind)
        matrix = values.T if self.mn_major else values
        for row in range(matrix.shape[0]):
            for unit in range(matrix.shape[1] // width):
                at = start + self.offset(unit, row)
                image[at : at + 16] = chunk(kind, type_, matrix[row, unit * width : unit * width + width])


K_MAJOR = Place()


def instruction(
    kind: str, m: int, n: int, a: str, b: str, d: str = "f32", *, transpose: tuple[bool, bool] = (False, False),
    negate: tuple[bool, bool] = (False, False), saturate: bool = False, ids: tuple[int, int] = (0, 0),
    scale: str = "ue8m0",
) -> int:  # fmt: skip
    """Instruction descriptor: tables 42 to 44 of 9.7.16.4.2."""
    common = negate[0] << 13 | negate[1] << 14 | transpose[0] << 15 | transpose[1] << 16 | n // 8 << 17
    if kind.startswith("mx"):
        types = 1 << 7 | 1 << 10 if "f4" in kind and "f6" not in kind else TYPE_FIELD[a] << 7 | TYPE_FIELD[b] << 10
        return common | types | ids[1] << 4 | (scale == "ue8m0") << 23 | m // 128 << 27 | ids[0] << 29
    types = TYPE_FIELD[a] << 7 | TYPE_FIELD[b] << 10
    return common | types | {"f16": 0, "f32": 1, "s32": 2}[d] << 4 | saturate << 3 | m // 16 << 24


START_B, START_SFA, START_SFB, IMAGE = 16 * 1024, 48 * 1024, 50 * 1024, 54 * 1024
COMMIT = "tcgen05.commit.cta_group::1.mbarrier::arrive::one.shared::cluster.b64 [mbar];"
TMEM_A, TMEM_SFA, TMEM_SFB = 256, 272, 288
"""Columns of what lies in tensor memory beside D."""


@dataclass(frozen=True)
class Case:
    """One product D = A Bᵀ (+ D) and where its operands lie."""

    kind: str
    types: tuple[str, str]
    a: Floats
    b: Floats
    idesc: int
    places: tuple[Place, Place] = (K_MAJOR, K_MAJOR)

    def image(self, *, with_a: bool = True) -> bytearray:
        memory = np.zeros(IMAGE, np.uint8)
        if with_a:
            self.places[0].put(memory, 0, self.kind, self.types[0], self.a)
        self.places[1].put(memory, START_B, self.kind, self.types[1], self.b)
        return bytearray(memory.tobytes())

    def descriptors(self) -> str:
        return f"""
        cvt.u64.u32 da, data;
        shr.u64 da, da, 4;
        add.u64 db, da, {START_B >> 4};
        or.b64 da, da, {self.places[0].descriptor()};
        or.b64 db, db, {self.places[1].descriptor()};
        """

    def issue(self, enable: bool = False, a: str = "da", more: str = "", *, suffix: str = "", ws: bool = False) -> str:
        head = "tcgen05.mma.ws" if ws else "tcgen05.mma"
        return (
            f"mov.u32 r2, {self.idesc};\nsetp.ne.u32 p, {int(enable)}, 0;\n"
            f"{head}.cta_group::1.kind::{self.kind}{suffix} [tmem], {a}, db, r2{more}, p;\n{COMMIT}"
        )


def store_rows(count: int = 8) -> str:
    """Keep `count` words of the image for each lane, from its beginning, in tensor memory from TMEM_A on."""
    names = ", ".join(f"r{4 + i}" for i in range(8))
    return (
        f"shl.b32 r0, tid, 5;\nadd.u32 r0, r0, data;\nadd.u32 r1, tmem, rowbits;\nadd.u32 r1, r1, {TMEM_A};\n"
        "ld.shared.v4.b32 {r4, r5, r6, r7}, [r0];\nld.shared.v4.b32 {r8, r9, r10, r11}, [r0+16];\n"
        f"tcgen05.st.sync.aligned.32x32b.x{count}.b32 [r1], {{{names}}};\ntcgen05.wait::st.sync.aligned;"
    )


def multiply(
    case: Case, issue: str, columns: int, *, image: bytearray | None = None, before: str = "", prepare: str = "",
    schedule: str = "fair", zero: bool = False,
) -> Run:  # fmt: skip
    """Run `issue` in one thread; the output has the first columns of all lanes. `prepare` runs with the image there."""
    columns = (columns + 7) // 8 * 8
    body: Body = allocated().add(before).add(copy_in(IMAGE)).add("bar.sync 0;").add(prepare).add(case.descriptors())
    body.fenced_sync().thread(0, issue).wait().add("tcgen05.fence::after_thread_sync;").add(dump(columns))
    data = bytes(image if image is not None else case.image())
    return run(freed(body), data, out_bytes=512 * columns, schedule=schedule, zero=zero)


def result(done: Run, dtype: type = np.float32) -> NDArray[np.generic]:
    return done.output.view(dtype).reshape(128, -1)


def whole(rng: np.random.Generator, *shape: int) -> Floats:
    """Numbers that all types have, and whose products sum exactly."""
    return rng.choice([-3.0, -2.0, -1.0, -0.5, 0.0, 0.5, 1.0, 1.5, 2.0, 3.0], shape)
