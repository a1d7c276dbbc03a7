"""wgmma of floats at every N of the PTX ISA: fp16, tf32 and pairs of 8-bit elements, results in fp32 and fp16.

Operands lie near one, so that a case shows where elements lie and how sums are rounded. Outputs are kept as digests.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import lru_cache

import numpy as np

from tests.gpu.cases.elements import PAIRS, element_bytes
from tests.gpu.cases.model import Case
from tests.gpu.cases.shapes import WIDTHS, with_kernel
from tests.gpu.cases.wgmma import B_START, IMAGE, dense, wgmma

KINDS = [("f16", "f16"), *PAIRS]
HALVES = [pair for pair in KINDS if pair[0] != "tf32"]
"""Pairs that also accumulate in fp16 (PTX ISA 9.7.15.5.2)."""
DEPTH = {"f16": 16, "tf32": 8, "e4m3": 32, "e5m2": 32}
"""K of one instruction: 32 bytes."""
MN_MAJOR_WIDTHS = (16, 24, 40, 72, 104, 136, 200, 248)
"""Widths at which the blocks of a B that is MN-major end inside a swizzle pattern, or need several of them."""
REGISTER_WIDTHS = (24, 136, 248)
"""Widths that are tried with A in registers."""


def width_cases() -> Iterator[Case]:
    """K-major operands with a swizzle of 128 bytes, one step; A in registers; B MN-major with every swizzle."""
    for result, pairs in (("f32", KINDS), ("f16", HALVES)):
        for pair in pairs:
            for width in WIDTHS:
                yield _one(width, result, pair)
            for width in REGISTER_WIDTHS:
                yield _one(width, result, pair, in_registers=True)
    for swizzle in ("NONE", "32B", "64B", "128B"):
        for width in MN_MAJOR_WIDTHS:
            yield _one(width, "f32", ("f16", "f16"), swizzle=swizzle, b_major=1)


@lru_cache
def _elements(kind: str, size: int, seed: int) -> bytes:
    if kind == "f16":
        return np.random.default_rng(seed).standard_normal(size // 2).astype(np.float16).tobytes()
    return element_bytes("normal", kind, size, seed).tobytes()


@lru_cache
def _image(a: str, b: str) -> bytes:
    return b"".join(_elements(kind, size, 130 + size) for kind, size in ((a, B_START), (b, IMAGE - B_START)))


def _one(
    width: int,
    result: str,
    pair: tuple[str, str],
    *,
    swizzle: str = "128B",
    b_major: int = 0,
    in_registers: bool = False,
) -> Case:
    half = result == "f16"
    registers, form = width // 4 if half else width // 2, f"m64n{width}k{DEPTH[pair[0]]}.{result}.{pair[0]}.{pair[1]}"
    label = f"wgmma/width/{form}{f'/mn/{swizzle}' if b_major else '/registers' if in_registers else ''}"
    kernel = f"wgmma_{form.replace('.', '_')}{'_mn' if b_major else '_reg' if in_registers else ''}"
    operands = 0 if in_registers else dense(0, "128B", False), dense(B_START, swizzle, bool(b_major))
    start = np.random.default_rng(140 + width).standard_normal((128, width // 2))
    case = wgmma(label, kernel, *operands, registers=registers, image=_image(*pair))
    accumulators = start.astype(np.float16 if half else np.float32).tobytes()
    fragments = _elements(pair[0], 128 * 16, 150) if in_registers else b""
    case = replace(case, input=_image(*pair) + accumulators + fragments, nan_type=result)
    return with_kernel(case, form, registers, in_registers=in_registers, b_major=b_major)
