"""wgmma: majors, swizzles, strides, starts, base offsets, A in registers, and how sums are rounded."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from tests.gpu.cases.model import SWIZZLES, Case
from tests.gpu.cases.values import SPREADS, bf16, small_integers, spread_words

DESCRIPTOR_SWIZZLE = {"NONE": 0, "128B": 1, "64B": 2, "32B": 3}
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
