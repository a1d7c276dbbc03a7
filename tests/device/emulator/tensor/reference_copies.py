"""Expected results of the conformance kernels that copy, by numpy: boxes are gathered by index arrays.

Swizzles are the tables of PTX ISA 5.5.7, not an exclusive-or.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

Bytes = NDArray[np.uint8]

PATTERNS = {
    "NONE": [[0, 1, 2, 3, 4, 5, 6, 7]],
    "32B": [[0, 1, 2, 3, 4, 5, 6, 7], [1, 0, 3, 2, 5, 4, 7, 6]],
    "64B": [[0, 1, 2, 3, 4, 5, 6, 7], [1, 0, 3, 2, 5, 4, 7, 6], [2, 3, 0, 1, 6, 7, 4, 5], [3, 2, 1, 0, 7, 6, 5, 4]],
    "128B": [
        [0, 1, 2, 3, 4, 5, 6, 7], [1, 0, 3, 2, 5, 4, 7, 6], [2, 3, 0, 1, 6, 7, 4, 5], [3, 2, 1, 0, 7, 6, 5, 4],
        [4, 5, 6, 7, 0, 1, 2, 3], [5, 4, 7, 6, 1, 0, 3, 2], [6, 7, 4, 5, 2, 3, 0, 1], [7, 6, 5, 4, 3, 2, 1, 0],
    ],
}  # fmt: skip
"""Position of each 16-byte chunk of a 128-byte line, by line of the repeating pattern."""


def placed(address: int, swizzle: str, base_offset: int = 0) -> int:
    """Where the byte that an unswizzled layout puts at `address` really lies."""
    pattern = PATTERNS[swizzle]
    line, within = divmod(address, 128)
    return line * 128 + pattern[(line - base_offset) % len(pattern)][within // 16] * 16 + within % 16


# ---- tensor copies


def box_elements(m: Any, coords: Sequence[int]) -> list[tuple[tuple[int, ...], int | None]]:
    """Return (position in the box, byte offset in the tensor or None where outside), outermost dimension slowest."""
    out: list[tuple[tuple[int, ...], int | None]] = []
    strides = (m.element_bytes, *m.byte_strides)
    for position in itertools.product(*(range(n) for n in reversed(m.counts))):
        step = position[::-1]
        at = [c + s * e for c, s, e in zip(coords, step, (1, *m.steps[1:]), strict=True)]
        inside = all(0 <= x < size for x, size in zip(at, m.dims, strict=True))
        out.append((step, sum(x * s for x, s in zip(at, strides, strict=True)) if inside else None))
    return out


def line_pitch(m: Any) -> int:
    return m.box[0] * m.element_bytes if m.swizzle == "NONE" else int(m.swizzle[:-1])


def shared_address(m: Any, step: Sequence[int], offset: int) -> int:
    line, size = 0, 1
    for index, count in zip(step[1:], m.counts[1:], strict=True):
        line, size = line + index * size, size * count
    return placed(offset + line * line_pitch(m) + step[0] * m.element_bytes, m.swizzle)


def fill_bytes(m: Any) -> bytes:
    """Half words of 0x7FF7 stand for NaN in every floating-point type (measured on an H200)."""
    floating = "FLOAT" in m.type
    return b"\xf7\x7f" * (m.element_bytes // 2) if m.fill != "NONE" and floating else bytes(m.element_bytes)


def converted(m: Any, element: bytes) -> bytes:
    """Loads of tf32 round to 11 significant bits, nearest even; subnormals share the least exponent (H200)."""
    if not m.type.startswith("TFLOAT32"):
        return element
    value = float(np.frombuffer(element, np.float32)[0])
    if np.isnan(value):
        return b"\x00\xe0\xff\x7f"
    if np.isinf(value) or value == 0:
        return element
    exponent = max(int(np.frexp(value)[1]), -125)
    unit = 2.0 ** (exponent - 11)
    with np.errstate(over="ignore"):
        return np.float32(np.copysign(np.round(value / unit) * unit, value)).tobytes()


def load(case: Any) -> Bytes:
    offset, expected, dump, *coords = case.args
    m = case.map
    shared = np.full(max(dump, 16384), 0xCD, np.uint8)
    for step, at in box_elements(m, coords[: m.rank]):
        element = (
            fill_bytes(m) if at is None else converted(m, case.input[m.offset + at : m.offset + at + m.element_bytes])
        )
        address = shared_address(m, step, offset)
        shared[address : address + m.element_bytes] = np.frombuffer(element, np.uint8)
    # A phase that expects less than the box ends on the way; on hardware it may.
    return with_status(int(expected <= m.box_bytes), shared[:dump])


def with_status(done: int, shared: Bytes) -> Bytes:
    head = np.full(16, 0xEE, np.uint8)
    head[:4] = np.array([done], np.uint32).view(np.uint8)
    return np.concatenate([head, shared])


def store(case: Any) -> Bytes:
    offset, coords, m = case.args[0], case.args[3:], case.map
    out = np.full(case.out_bytes, 0xEE, np.uint8)
    shared = np.frombuffer(case.input, np.uint8)
    for step, at in box_elements(m, coords[: m.rank]):
        if at is not None:
            address = shared_address(m, step, offset)
            out[m.offset + at : m.offset + at + m.element_bytes] = shared[address : address + m.element_bytes]
    return out


def bulk_load(case: Any) -> Bytes:
    offset, size, dump, at = case.args
    shared = np.full(dump, 0xCD, np.uint8)
    shared[offset : offset + size] = np.frombuffer(case.input, np.uint8)[at : at + size]
    return with_status(1, shared)


def bulk_store(case: Any) -> Bytes:
    offset, size, _, at = case.args
    out = np.full(case.out_bytes, 0xEE, np.uint8)
    out[at : at + size] = np.frombuffer(case.input, np.uint8)[offset : offset + size]
    return out


def cp_async(case: Any) -> Bytes:
    size = int(case.kernel.rsplit("_", 1)[1])
    multiplier, ignored, dump = case.args
    source = np.frombuffer(case.input, np.uint8)
    shared = np.full(dump, 0xCD, np.uint8)
    for lane in range(32):
        taken, at = lane * multiplier % (size + 1), lane * size
        shared[at : at + size] = 0
        shared[at : at + taken] = source[at : at + taken]
        shared[32 * size + at : 33 * size + at] = 0 if ignored >> lane & 1 else source[at : at + size]
    return shared
