"""Cases of the conformance kernels: run on a GPU to make the golden file, and on the emulator to be compared."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

SWIZZLES = ("NONE", "32B", "64B", "128B")
DATA_TYPES = (
    "UINT8",
    "UINT16",
    "UINT32",
    "INT32",
    "UINT64",
    "INT64",
    "FLOAT16",
    "FLOAT32",
    "FLOAT64",
    "BFLOAT16",
    "FLOAT32_FTZ",
    "TFLOAT32",
    "TFLOAT32_FTZ",
)
FILLS = ("NONE", "NAN_REQUEST_ZERO_FMA")
ELEMENT_BYTES = dict(zip(DATA_TYPES, (1, 2, 4, 4, 8, 8, 2, 4, 8, 2, 4, 4, 4), strict=True))
DESCRIPTOR_SWIZZLE = {"NONE": 0, "128B": 1, "64B": 2, "32B": 3}
EXPECTED, DUMP = 1, 2  # positions in Case.args of the tensor copies


@dataclass(frozen=True)
class Map:
    """A tensor map over the case's input or output."""

    dims: tuple[int, ...]
    box: tuple[int, ...]
    strides: tuple[int, ...] = ()
    """Bytes, of dimensions 1…; empty: dense."""
    type: str = "BFLOAT16"
    swizzle: str = "NONE"
    fill: str = "NONE"
    element_strides: tuple[int, ...] = ()
    over: str = "in"
    offset: int = 0

    @property
    def rank(self) -> int:
        return len(self.dims)

    @property
    def element_bytes(self) -> int:
        return ELEMENT_BYTES[self.type]

    @property
    def byte_strides(self) -> tuple[int, ...]:
        if self.strides or self.rank == 1:
            return self.strides
        return tuple(int(np.prod(self.dims[:i])) * self.element_bytes for i in range(1, self.rank))

    @property
    def steps(self) -> tuple[int, ...]:
        return self.element_strides or (1,) * self.rank

    @property
    def counts(self) -> tuple[int, ...]:
        """Elements of one box along each dimension."""
        return (self.box[0], *(-(-b // e) for b, e in zip(self.box[1:], self.steps[1:], strict=True)))

    @property
    def box_bytes(self) -> int:
        return int(np.prod(self.counts)) * self.element_bytes

    @property
    def tensor_bytes(self) -> int:
        return max(
            (self.dims[i] * s for i, s in enumerate(self.byte_strides, 1)), default=self.dims[0] * self.element_bytes
        )


@dataclass(frozen=True)
class Case:
    """One launch of one kernel of `conformance.cu` with one block."""

    name: str
    kernel: str
    threads: int
    input: bytes
    out_bytes: int
    args: tuple[int, ...] = ()
    wide: tuple[int, ...] = ()
    map: Map | None = None
    smem_bytes: int = 66 * 1024
    probe: bool = False
    """Records what hardware does where the ISA leaves it open; compared within bounds, or not at all."""

    def params(self) -> bytes:
        """The bytes of `Params` after the tensor map and the two pointers."""
        args = (*self.args, *(0,) * (16 - len(self.args)))
        wide = (*self.wide, *(0,) * (4 - len(self.wide)))
        return struct.pack("<II16i4Q", len(self.input), self.out_bytes, *args, *wide)

    def job(self) -> bytes:
        """The record that the host program of `conformance.cu` reads."""
        m = self.map
        head = struct.pack(
            "<48sIIII", self.kernel.encode(), self.threads, self.smem_bytes, len(self.input), self.out_bytes
        )
        if m is None:
            spec = struct.pack("<i5I9Q10I", -1, *(0,) * 5, *(0,) * 9, *(0,) * 10)
        else:
            pad = (1,) * (5 - m.rank)
            spec = struct.pack(
                "<i5I9Q10I",
                ("in", "out").index(m.over),
                m.offset,
                DATA_TYPES.index(m.type),
                m.rank,
                SWIZZLES.index(m.swizzle),
                FILLS.index(m.fill),
                *m.dims,
                *pad,
                *m.byte_strides,
                *(0,) * (4 - len(m.byte_strides)),
                *m.box,
                *pad,
                *m.steps,
                *pad,
            )
        return head + self.params()[8:] + spec + self.input


def random_bytes(count: int, seed: int) -> bytes:
    return np.random.default_rng(seed).integers(0, 256, count, dtype=np.uint8).tobytes()


def bf16(values: NDArray[np.floating]) -> NDArray[np.uint16]:
    """The upper halves of float32 values that bf16 holds exactly."""
    bits = np.ascontiguousarray(values, np.float32).view(np.uint32)
    assert not np.any(bits & 0xFFFF)
    return (bits >> 16).astype(np.uint16)


def small_integers(count: int, seed: int, kind: str) -> bytes:
    """Whole numbers −8…8 as bf16 or f16: every sum of products is exact in any order."""
    values = np.random.default_rng(seed).integers(-8, 9, count).astype(np.float32)
    return (bf16(values) if kind == "bf16" else values.astype(np.float16).view(np.uint16)).tobytes()


def special_floats(count: int) -> bytes:
    """Words around what a conversion may change: ties of tf32, subnormals, infinities, NaNs, both signs."""
    words = [0, 1, 0x1FFF, 0x7FFFFF, 0x400000, 0x800000, 0x7F800000, 0x7F800001, 0x7FC00000, 0x7FFFFFFF, 0x7F7FFFFF]
    words += [0x7F7FE000, 0x7F7FF000]
    words += [0x3F800000 | low | odd << 13 for low in (0xFFF, 0x1000, 0x1001, 0x1FFF) for odd in (0, 1)]
    words += [low | odd << 13 for low in (0xFFF, 0x1000, 0x1001) for odd in (0, 1)]
    both = np.array(words + [w | 0x80000000 for w in words], np.uint32)
    rest = np.random.default_rng(9).integers(0, 2**32, count - len(both), dtype=np.uint32)
    return np.concatenate([both, rest]).tobytes()


# ---- copies


def load(
    name: str,
    m: Map,
    coords: tuple[int, ...],
    *,
    offset: int = 0,
    expected: int | None = None,
    kernel: str = "",
    source: bytes = b"",
    seed: int = 1,
) -> Case:
    """A box into shared memory, of which what the box takes and the next 128 bytes are dumped."""
    pitch = m.box[0] * m.element_bytes if m.swizzle == "NONE" else int(m.swizzle[:-1])
    dump = offset + -(-int(np.prod(m.counts[1:])) * pitch // 128) * 128 + 128
    map_at = -(-(16 + dump) // 128) * 128
    args = (offset, m.box_bytes if expected is None else expected, dump, *coords, *(0,) * (5 - len(coords)), map_at)
    out_bytes = map_at + 128 if kernel else 16 + dump
    source = source or random_bytes(m.offset + m.tensor_bytes, seed)
    return Case(name, kernel or f"tensor_load_{m.rank}", 128, source, out_bytes, args, map=m)


def store(name: str, m: Map, coords: tuple[int, ...], *, offset: int = 0, seed: int = 2, image: int = 8192) -> Case:
    args = (offset, 0, 0, *coords, *(0,) * (5 - len(coords)))
    return Case(name, f"tensor_store_{m.rank}", 128, random_bytes(image, seed), m.offset + m.tensor_bytes, args, map=m)


def copy_cases() -> Iterator[Case]:
    dims = (160, 48)
    for swizzle, inner in (("NONE", 64), ("NONE", 96), ("32B", 16), ("64B", 32), ("128B", 64)):
        yield load(f"load/2d/{swizzle}/{inner}", Map(dims, (inner, 16), swizzle=swizzle), (8, 3))
        yield store(f"store/2d/{swizzle}/{inner}", Map(dims, (inner, 16), swizzle=swizzle, over="out"), (8, 3))
    for swizzle, inner in (("32B", 16), ("64B", 32), ("128B", 64)):
        for lines in (1, 3, 6):
            yield load(
                f"load/phase/{swizzle}/{lines}", Map(dims, (inner, 16), swizzle=swizzle), (0, 0), offset=128 * lines
            )
    for swizzle, inner in (("32B", 8), ("64B", 8), ("64B", 16), ("128B", 8), ("128B", 16), ("128B", 32), ("128B", 48)):
        yield load(f"load/narrow/{swizzle}/{inner}", Map(dims, (inner, 12), swizzle=swizzle), (8, 3))
        yield store(f"store/narrow/{swizzle}/{inner}", Map(dims, (inner, 12), swizzle=swizzle, over="out"), (8, 3))
    places = {"low": (-24, -5), "high": (120, 40), "corner": (-24, 40), "outside": (160, 0), "far": (-64, -16)}
    for name, coords in {**places, "low0": (-24, 3), "low1": (8, -5)}.items():
        yield load(f"load/clip/{name}", Map(dims, (64, 16), swizzle="128B"), coords)
        yield store(f"store/clip/{name}", Map(dims, (64, 16), swizzle="128B", over="out"), coords)
    # The innermost coordinate must be a multiple of 16 bytes.
    yield load("load/coordinate/4bytes", Map(dims, (64, 16), swizzle="128B"), (2, 3))
    yield load("load/coordinate/8bytes", Map(dims, (64, 16)), (4, 3))
    yield load("load/coordinate/negative", Map(dims, (64, 16)), (-4, 3))
    yield store("store/coordinate/8bytes", Map(dims, (64, 16), over="out"), (4, 3))
    for kind in ("BFLOAT16", "FLOAT16", "FLOAT32", "FLOAT64", "TFLOAT32", "FLOAT32_FTZ", "TFLOAT32_FTZ"):
        inner = 128 // ELEMENT_BYTES[kind]
        m = Map((inner * 2, 24), (inner, 8), type=kind, fill=FILLS[1], swizzle="128B")
        yield load(f"load/nan/{kind}", m, (inner + inner // 2, 20))
    for kind in DATA_TYPES:
        inner, unit = 64 // ELEMENT_BYTES[kind], 16 // ELEMENT_BYTES[kind]
        yield load(f"load/type/{kind}", Map((inner * 2, 32), (inner, 24), type=kind), (unit, 5))
    for kind in ("FLOAT32", "FLOAT32_FTZ", "TFLOAT32", "TFLOAT32_FTZ"):
        yield load(f"load/special/{kind}", Map((32, 8), (32, 8), type=kind), (0, 0), source=special_floats(256))
    for steps in ((1, 2), (1, 3), (1, 8)):
        m = Map(dims, (32, 16), swizzle="64B", element_strides=steps)
        yield load(f"load/steps/{steps[1]}", m, (16, 1))
        yield load(f"load/steps/{steps[1]}/clip", m, (144, 37))
        yield load(f"load/steps/{steps[1]}/low", m, (-8, -5))
        yield store(
            f"store/steps/{steps[1]}", Map(dims, (32, 16), swizzle="64B", element_strides=steps, over="out"), (16, 1)
        )
    yield load("load/steps/inner", Map(dims, (32, 4), element_strides=(2, 1)), (16, 1))
    yield load("load/1d", Map((1000,), (128,)), (40,))
    yield load("load/1d/clip", Map((1000,), (128,)), (936,))
    yield store("store/1d", Map((1000,), (128,), over="out"), (40,))
    shape3, shape4, shape5 = (40, 12, 9), (24, 7, 6, 5), (16, 5, 4, 3, 6)
    yield load("load/3d", Map(shape3, (32, 5, 3), swizzle="64B"), (8, 4, 2))
    yield load("load/3d/clip", Map(shape3, (32, 5, 3), swizzle="64B"), (-8, 9, 7))
    yield load("load/3d/steps", Map(shape3, (32, 5, 7), element_strides=(1, 2, 3)), (8, 1, 1))
    yield load("load/3d/strided", Map((24, 5, 4), (16, 4, 3), strides=(64, 480), swizzle="32B"), (16, 1, 1))
    yield store("store/3d", Map(shape3, (32, 5, 3), swizzle="64B", over="out"), (8, 4, 2))
    yield load("load/4d", Map(shape4, (16, 3, 2, 4), swizzle="32B"), (8, 1, 3, 0))
    yield load("load/4d/clip", Map(shape4, (16, 3, 2, 4), swizzle="32B"), (16, -1, 5, 3))
    yield store("store/4d", Map(shape4, (16, 3, 2, 4), swizzle="32B", over="out"), (8, 1, 3, 0))
    yield load("load/5d", Map(shape5, (16, 2, 3, 2, 4), swizzle="32B"), (0, 1, 0, 1, 2))
    yield load("load/5d/clip", Map(shape5, (16, 2, 3, 2, 4), swizzle="32B"), (-8, 4, -1, 2, 3))
    yield store("store/5d", Map(shape5, (16, 2, 3, 2, 4), swizzle="32B", over="out"), (0, 1, 0, 1, 2))
    m = Map(dims, (64, 16), swizzle="128B")
    yield load("load/tx/less", m, (8, 3), expected=m.box_bytes - 16)
    yield load("load/tx/more", m, (8, 3), expected=m.box_bytes + 16)
    yield load("load/global_map", m, (8, 3), kernel="tensor_load_global_map")
    for offset in (16, 64):
        yield load(f"load/misaligned/{offset}", Map(dims, (64, 16)), (8, 3), offset=offset)
        yield store(f"store/misaligned/{offset}", Map(dims, (64, 16), over="out"), (8, 3), offset=offset)
    for size, offset in ((48, 264),):
        yield Case(
            f"bulk/misaligned/{size}", "bulk_load", 128, random_bytes(4096, 3), 16 + 512, (offset, size, 512, 512)
        )
    for size in (16, 48, 2048):
        yield Case(f"bulk/load/{size}", "bulk_load", 128, random_bytes(4096, 3), 16 + 2432, (256, size, 2432, 512))
        yield Case(f"bulk/store/{size}", "bulk_store", 128, random_bytes(4096, 4), 4096, (256, size, 0, 512))
    for size in (4, 8, 16):
        case = Case(
            f"cp_async/{size}", f"cp_async_{size}", 32, random_bytes(512, 5), 1024 + 64, (5, 0x5A5A1234, 1024 + 64)
        )
        yield case
    yield Case("cp_async/arrive", "cp_async_arrive", 32, random_bytes(128, 6), 16 + 128)
    yield Case("mbarrier/trace", "mbarrier_trace", 32, b"", 256)


# ---- wgmma

IMAGE = 48 * 1024
B_START = 16 * 1024


def descriptor(start: int, leading: int, stride: int, swizzle: str, base_offset: int = 0) -> int:
    return (
        start >> 4 | (leading >> 4) << 16 | (stride >> 4) << 32 | base_offset << 49 | DESCRIPTOR_SWIZZLE[swizzle] << 62
    )


def dense(start: int, swizzle: str, mn_major: bool) -> int:
    """The descriptor of an operand whose canonical blocks follow each other."""
    if swizzle == "NONE":
        return descriptor(start, 128, 256, swizzle)
    width = int(swizzle[:-1])
    return descriptor(start, 16 * width, 8 * width, swizzle) if mn_major else descriptor(start, 16, 8 * width, swizzle)


def wgmma(
    name: str,
    kernel: str,
    a: int,
    b: int,
    *,
    steps: tuple[int, int, int] = (1, 0, 0),
    scale_d: int = 1,
    kind: str = "bf16",
    registers: int = 4,
    half: bool = False,
    in_registers: bool = False,
    seed: int = 7,
    image: bytes = b"",
    probe: bool = False,
) -> Case:
    """`steps`: how many wgmma in a row, and by how many bytes each moves the starts of A and B."""
    count = 128 * registers * (2 if half else 1)
    rng = np.random.default_rng(seed + 1)
    values = rng.integers(-64, 65, count)
    accumulators = values.astype(np.float16 if half else np.float32).tobytes()
    data = (image or small_integers(IMAGE // 2, seed, kind)) + accumulators
    if in_registers:
        data += small_integers(steps[0] * 128 * 8, seed + 2, kind)
    args = (IMAGE, steps[0], scale_d, steps[1], steps[2])
    return Case(name, kernel, 128, data, 128 * registers * 4, args, (a, b), probe=probe)


def wgmma_cases() -> Iterator[Case]:
    for major in ("kk", "km", "mk", "mm"):
        for swizzle in SWIZZLES:
            a, b = dense(0, swizzle, major[0] == "m"), dense(B_START, swizzle, major[1] == "m")
            yield wgmma(f"wgmma/n8/{major}/{swizzle}", f"wgmma_bf16_n8_{major}", a, b)
            yield wgmma(f"wgmma/n64/{major}/{swizzle}", f"wgmma_bf16_n64_{major}", a, b, registers=32)
            yield wgmma(f"wgmma/n256/{major}/{swizzle}", f"wgmma_bf16_n256_{major}", a, b, registers=128)
        a, b = dense(0, "128B", major[0] == "m"), dense(B_START, "128B", major[1] == "m")
        yield wgmma(f"wgmma/f16/{major}", f"wgmma_f16_n64_{major}", a, b, registers=32, kind="f16")
        yield wgmma(f"wgmma/half/{major}", f"wgmma_half_n64_{major}", a, b, registers=16, kind="f16", half=True)
        yield wgmma(
            f"wgmma/mixed/{major}",
            f"wgmma_bf16_n64_{major}",
            dense(0, "64B", major[0] == "m"),
            dense(B_START, "32B", major[1] == "m"),
            registers=32,
        )
        # Blocks with gaps: strides that are not the dense ones.
        gaps = [
            descriptor(start, 3072, 1280 if m == "k" else 5120, "128B")
            for start, m in zip((0, B_START), major, strict=True)
        ]
        yield wgmma(f"wgmma/gaps/{major}", f"wgmma_bf16_n64_{major}", gaps[0], gaps[1], registers=32)
    kk = "wgmma_bf16_n8_kk"
    a, b = dense(0, "128B", False), dense(B_START, "128B", False)
    yield wgmma("wgmma/scale_d", kk, a, b, scale_d=0)
    yield wgmma("wgmma/steps", kk, a, b, steps=(4, 32, 32))
    yield wgmma(
        "wgmma/steps/mn",
        "wgmma_bf16_n64_mm",
        descriptor(0, 8192, 1024, "128B"),
        descriptor(B_START, 8192, 1024, "128B"),
        steps=(4, 2048, 2048),
        registers=32,
    )
    yield wgmma("wgmma/negate/a", "wgmma_bf16_n8_negate_a", a, b)
    yield wgmma("wgmma/negate/b", "wgmma_bf16_n8_negate_b", a, b)
    yield wgmma("wgmma/half/n8", "wgmma_half_n8", a, b, registers=2, kind="f16", half=True)
    yield wgmma("wgmma/lbo_unused", kk, descriptor(0, 0x3330, 1024, "128B"), descriptor(B_START, 0, 1024, "128B"))
    for lines in (1, 4, 7):
        yield wgmma(
            f"wgmma/start/line{lines}",
            kk,
            dense(128 * lines, "128B", False),
            dense(B_START + 128 * lines, "128B", False),
        )
    yield wgmma("wgmma/start/chunk", kk, dense(16, "128B", False), dense(B_START + 48, "128B", False))
    for swizzle, unit in (("128B", 1024), ("64B", 512), ("32B", 256)):
        for offset in range(1, unit // 128):
            if swizzle == "128B" and offset not in (1, 3, 6):
                continue
            start, width = 128 * offset, int(swizzle[:-1])
            yield wgmma(
                f"wgmma/base_offset/{swizzle}/{offset}",
                kk,
                descriptor(start, 16, 8 * width, swizzle, offset),
                descriptor(B_START + start, 16, 8 * width, swizzle, offset),
            )
    yield wgmma(
        "wgmma/base_offset/mn",
        "wgmma_bf16_n64_mm",
        descriptor(256, 2048, 1024, "128B", 2),
        descriptor(B_START + 640, 2048, 1024, "128B", 5),
        registers=32,
    )
    yield wgmma(
        "wgmma/base_offset/aligned",
        kk,
        descriptor(0, 16, 1024, "128B", 3),
        descriptor(B_START, 16, 1024, "128B", 0),
        probe=True,
    )
    yield wgmma(
        "wgmma/base_offset/none", kk, descriptor(0, 128, 256, "NONE", 3), descriptor(B_START, 128, 256, "NONE", 5)
    )
    yield wgmma("wgmma/reg/n8", "wgmma_bf16_n8_reg_k", 0, b, in_registers=True)
    yield wgmma("wgmma/reg/n64/k", "wgmma_bf16_n64_reg_k", 0, b, registers=32, in_registers=True, steps=(3, 0, 32))
    yield wgmma(
        "wgmma/reg/n64/mn", "wgmma_bf16_n64_reg_m", 0, dense(B_START, "128B", True), registers=32, in_registers=True
    )
    yield wgmma("wgmma/reg/half", "wgmma_half_n64_reg_k", 0, b, registers=16, in_registers=True, kind="f16", half=True)
    yield wgmma("wgmma/outside", kk, a, descriptor(0x3FC00 - 2048, 16, 1024, "128B"), probe=True)
    yield from accumulation_cases()


def accumulation_image(rows: NDArray[np.float32], columns: NDArray[np.float32]) -> bytes:
    """Unswizzled K-major operands: rows [64, 16] of A and columns [8, 16] of B."""
    image = np.zeros(IMAGE // 2, np.uint16)
    for operand, start in ((bf16(rows), 0), (bf16(columns), B_START)):
        for row, values in enumerate(operand):
            for half in range(2):
                at = (start + row // 8 * 256 + row % 8 * 16 + half * 128) // 2
                image[at : at + 8] = values[half * 8 : half * 8 + 8]
    return image.tobytes()


def accumulation_rows() -> NDArray[np.float32]:
    """Rows whose sums tell how terms are aligned and truncated: a one, small terms around the limits, cancellation."""
    rows = np.zeros((64, 16), np.float32)
    for i in range(16):  # 1 + 15 equal terms of 2^-(17 + i)
        rows[i, 0] = 1
        rows[i, 1:] = 2.0 ** -(17 + i)
        rows[16 + i, :15] = 2.0 ** -(17 + i)  # the one comes last
        rows[16 + i, 15] = 1
        rows[32 + i, 0], rows[32 + i, 1], rows[32 + i, 8] = 2.0**i, 2.0**-12, -(2.0**i)  # cancellation
    random = np.random.default_rng(11)
    wide = (
        random.integers(1, 256, (16, 16)) * 2.0 ** random.integers(-20, 20, (16, 16)) * random.choice((-1, 1), (16, 16))
    )
    rows[48:] = wide.astype(np.float32)
    return rows


SPREADS = ("normal", "wide", "low", "bits")


def spread_words(spread: str, kind: str, shape: tuple[int, ...], seed: int) -> NDArray[np.uint32]:
    """Bit patterns: exponents near one; over many binades; subnormals and what lies just above; any bits."""
    rng = np.random.default_rng(seed)
    exponent_bits, mantissa_bits = {"bf16": (8, 7), "f16": (5, 10), "tf32": (8, 23), "f32": (8, 23)}[kind]
    width = 1 + exponent_bits + mantissa_bits
    if spread == "bits":
        return rng.integers(0, 2**width, shape, dtype=np.uint64).astype(np.uint32)
    mantissa = rng.integers(0, 2**mantissa_bits, shape, dtype=np.uint64)
    middle, half_range = 2 ** (exponent_bits - 1) - 1, 20 if exponent_bits == 8 else 7
    if spread == "wide":
        exponent = rng.integers(middle - half_range, middle + half_range, shape)
    elif spread == "low":
        exponent = rng.integers(0, 12 if exponent_bits == 8 else 4, shape)
    else:
        exponent = middle - rng.geometric(0.5, shape) + 1
    sign = rng.integers(0, 2, shape)
    return (sign.astype(np.uint64) << (width - 1) | exponent.astype(np.uint64) << mantissa_bits | mantissa).astype(
        np.uint32
    )


def accumulation_cases() -> Iterator[Case]:
    """Sums that are not exact: what hardware rounds, and how. Compared bit for bit, NaNs as NaNs."""
    columns = np.ones((8, 16), np.float32)
    columns[1] = -1
    columns[2] = 2.0**-8
    columns[3, ::2] = 0
    columns[4:] = np.random.default_rng(12).integers(1, 256, (4, 16)) * 2.0**-8
    image = accumulation_image(accumulation_rows(), columns)
    a, b = descriptor(0, 128, 256, "NONE"), descriptor(B_START, 128, 256, "NONE")
    for scale_d in (0, 1):
        yield wgmma(f"wgmma/accumulation/{scale_d}", "wgmma_bf16_n8_kk", a, b, scale_d=scale_d, image=image, probe=True)
    for kernel, kind, registers, half in (
        ("wgmma_bf16_n8_kk", "bf16", 4, False),
        ("wgmma_f16_n8", "f16", 4, False),
        ("wgmma_half_n8", "f16", 2, True),
    ):
        for index, spread in enumerate(SPREADS):
            image = spread_words(spread, kind, (IMAGE // 2,), 40 + index).astype(np.uint16)
            if spread == "low":  # products of small and large numbers, so that they do not vanish
                image[B_START // 2 :] = spread_words("wide", kind, (IMAGE // 2 - B_START // 2,), 50).astype(np.uint16)
            case = wgmma(
                f"wgmma/accumulation/{kernel}/{spread}",
                kernel,
                a,
                b,
                steps=(1 if spread == "bits" else 4, 2048, 256),
                registers=registers,
                half=half,
                image=image.tobytes(),
                probe=True,
            )
            start = spread_words(spread, "f16" if half else "f32", (128, 4), 60 + index)
            accumulators = start.astype(np.uint16 if half else np.uint32).tobytes()
            yield replace(case, input=case.input[:IMAGE] + accumulators)


# ---- matrices of a warp


def warp_cases() -> Iterator[Case]:
    for num in (1, 2, 4):
        for suffix in ("", "t"):
            for pitch, multiplier in ((16, 1), (48, 5)):
                label = f"{num}{suffix}/{pitch}"
                args, size = (pitch, multiplier, 32 * pitch), 32 * pitch
                yield Case(f"ldmatrix/{label}", f"ldmatrix_{num}{suffix}", 32, random_bytes(size, 20), 128 * num, args)
                yield Case(f"stmatrix/{label}", f"stmatrix_{num}{suffix}", 32, random_bytes(128 * num, 21), size, args)
    yield Case("movmatrix", "movmatrix", 32, random_bytes(128, 22), 128)
    for kernel, form in MMA_FORMS.items():
        yield mma(kernel)
        if form.result != "s32":
            for spread in SPREADS:
                yield mma_accumulation(kernel, spread)


@dataclass(frozen=True)
class MmaForm:
    """Registers of A, B and C per lane, and element kinds."""

    k: int
    kind: str
    result: str
    b_kind: str = ""
    saturate: bool = False

    @property
    def registers(self) -> tuple[int, int, int]:
        bits = {"bf16": 16, "f16": 16, "tf32": 32, "s8": 8, "u8": 8}[self.kind]
        return 16 * self.k * bits // 1024, 8 * self.k * bits // 1024, 2 if self.result == "f16" else 4


MMA_FORMS = {
    "mma_bf16_k16": MmaForm(16, "bf16", "f32"),
    "mma_f16_k16": MmaForm(16, "f16", "f32"),
    "mma_bf16_k8": MmaForm(8, "bf16", "f32"),
    "mma_f16_k8": MmaForm(8, "f16", "f32"),
    "mma_tf32_k4": MmaForm(4, "tf32", "f32"),
    "mma_tf32_k8": MmaForm(8, "tf32", "f32"),
    "mma_half_k16": MmaForm(16, "f16", "f16"),
    "mma_half_k8": MmaForm(8, "f16", "f16"),
    "mma_s8_k16": MmaForm(16, "s8", "s32"),
    "mma_s8_k32": MmaForm(32, "s8", "s32"),
    "mma_u8_k16": MmaForm(16, "u8", "s32"),
    "mma_u8_k32": MmaForm(32, "u8", "s32"),
    "mma_us8_k16": MmaForm(16, "u8", "s32", "s8"),
    "mma_us8_k32": MmaForm(32, "u8", "s32", "s8"),
    "mma_s8_sat_k16": MmaForm(16, "s8", "s32", saturate=True),
    "mma_s8_sat_k32": MmaForm(32, "s8", "s32", saturate=True),
}


def mma(kernel: str, seed: int = 30) -> Case:
    """Random operands whose results are exact; integer accumulators near the ends of the range."""
    form = MMA_FORMS[kernel]
    na, nb, nc = form.registers
    rng = np.random.default_rng(seed)
    words = np.empty((32, na + nb + nc), np.uint32)
    if form.kind in ("s8", "u8"):
        words[:, : na + nb] = rng.integers(0, 2**32, (32, na + nb), dtype=np.uint32)
        edges = np.array([0, 1000, -1000, 2**31 - 5, -(2**31) + 5], np.int64)
        words[:, na + nb :] = rng.choice(edges, (32, nc)).astype(np.int32).view(np.uint32)
    else:
        integers = rng.integers(-8, 9, (32, na + nb, 2)).astype(np.float32)
        if form.kind == "tf32":  # the low 13 bits must not matter
            words[:, : na + nb] = integers[:, :, 0].view(np.uint32) | rng.integers(
                0, 2**13, (32, na + nb), dtype=np.uint32
            )
        elif form.kind == "bf16":
            words[:, : na + nb] = bf16(integers).view(np.uint32)[:, :, 0]
        else:
            words[:, : na + nb] = integers.astype(np.float16).view(np.uint32)[:, :, 0]
        start = rng.integers(-64, 65, (32, nc, 2)).astype(np.float32)
        c = (
            start.astype(np.float16).view(np.uint32)[:, :, 0]
            if form.result == "f16"
            else start[:, :, 0].view(np.uint32)
        )
        words[:, na + nb :] = c
    return Case(kernel.replace("_", "/", 1), kernel, 32, words.tobytes(), 128 * nc)


def mma_accumulation(kernel: str, spread: str) -> Case:
    """Operands whose sums are not exact, as `accumulation_cases` has them for wgmma."""
    form = MMA_FORMS[kernel]
    na, nb, nc = form.registers
    halves = 1 if form.kind == "tf32" else 2
    a = spread_words(spread, form.kind, (32, na, halves), 70)
    b = spread_words("wide" if spread == "low" else spread, form.kind, (32, nb, halves), 71)
    c = spread_words(spread, form.result, (32, nc, 2 if form.result == "f16" else 1), 72)
    words = [x[..., 0] | (x[..., 1] << 16 if x.shape[2] == 2 else 0) for x in (a, b, c)]
    data = np.concatenate(words, axis=1).astype(np.uint32).tobytes()
    return Case(f"mma/accumulation/{kernel}/{spread}", kernel, 32, data, 128 * nc, probe=True)


def all_cases() -> list[Case]:
    """Every case of the golden file; names are unique."""
    cases = [*copy_cases(), *wgmma_cases(), *warp_cases()]
    assert len({case.name for case in cases}) == len(cases)
    return cases
