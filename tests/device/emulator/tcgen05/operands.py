"""Operands in shared memory and instruction descriptors, written down anew from PTX ISA 9.7.16.3.3 (canonical layouts),
9.7.16.4.1 and 9.7.16.4.2."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

K = 16
SWIZZLES = {0: 0, 32: 6, 64: 4, 128: 2}
"""Bytes of the swizzle → bits 61-63 of a descriptor."""


@dataclass(frozen=True)
class Layout:
    """A canonical layout of 16-bit elements: T = 8 elements make 128 bits."""

    swizzle: int
    mn_major: bool
    leading: int
    stride: int
    """Both in bytes."""

    def offset(self, row: int, k: int) -> int:
        """Bytes from the start of an (untranslated) operand to element (row, k), swizzled."""
        units = max(self.swizzle // 16, 1)  # of 128 bits, along the major dimension of an atom
        if self.mn_major and self.swizzle:  # ((T,u,m),(8,k)):((1,T,LBO),(uT,SBO))
            inner, unit, block = row % 8, row // 8 % units, row // 8 // units
            at = inner * 2 + unit * 16 + block * self.leading + k % 8 * units * 16 + k // 8 * self.stride
        elif self.mn_major:  # ((T,1,m),(8,k)):((1,T,SBO),(1T,LBO))
            at = row % 8 * 2 + row // 8 * self.stride + k % 8 * 16 + k // 8 * self.leading
        elif self.swizzle:  # ((8,m),(T,2k)):((uT,SBO),(1,T))
            at = row % 8 * units * 16 + row // 8 * self.stride + k % 8 * 2 + k // 8 * 16
        else:  # ((8,m),(T,2k)):((1T,SBO),(1,LBO))
            at = row % 8 * 16 + row // 8 * self.stride + k % 8 * 2 + k // 8 * self.leading
        bits = {0: 0, 32: 1, 64: 2, 128: 3}[self.swizzle]  # Swizzle<bits, 4, 3>
        return at ^ ((at >> 7 & (1 << bits) - 1) << 4)

    def place(self, image: NDArray[np.uint8], start: int, matrix: NDArray[np.uint16]) -> None:
        """Write [rows, K] into a shared memory image; `start` must be a multiple of 1024."""
        for row in range(matrix.shape[0]):
            for k in range(K):
                at = start + self.offset(row, k)
                image[at : at + 2] = np.frombuffer(matrix[row, k].tobytes(), np.uint8)

    def descriptor(self) -> int:
        """Descriptor of an operand at address 0."""
        return self.leading >> 4 << 16 | self.stride >> 4 << 32 | 1 << 46 | SWIZZLES[self.swizzle] << 61


def layouts(rows: int) -> list[Layout]:
    """Tight layouts of [rows, 16], and some with room between."""
    found = [
        Layout(0, False, 128, 256),
        Layout(0, False, rows * 16, 128),
        Layout(32, False, 16, 256),
        Layout(64, False, 16, 512),
        Layout(128, False, 16, 1024),
        Layout(128, False, 16, 2048),
        Layout(0, True, rows * 16, 128),
        Layout(0, True, 128, 256),
        Layout(32, True, 512, 256),
        Layout(64, True, 1024, 512),
        Layout(128, True, 2048, 1024),
        Layout(128, True, 1024, rows // 64 * 1024 or 1024),
    ]
    return [layout for layout in found if not layout.mn_major or rows % max(layout.swizzle // 2, 8) == 0]


def instruction(
    m: int,
    n: int,
    *,
    f16: bool = False,
    f16_result: bool = False,
    mn_a: bool = False,
    mn_b: bool = False,
    negate_a: bool = False,
    negate_b: bool = False,
) -> int:
    """Instruction descriptor of kind::f16."""
    kind = 0 if f16 else 1
    return (
        (0 if f16_result else 1) << 4
        | kind << 7
        | kind << 10
        | negate_a << 13
        | negate_b << 14
        | mn_a << 15
        | mn_b << 16
        | n // 8 << 17
        | m // 16 << 24
    )


def bf16(values: NDArray[np.float32]) -> NDArray[np.uint16]:
    """Bits of values that BF16 holds exactly."""
    bits = values.astype(np.float32).view(np.uint32)
    assert not (bits & 0xFFFF).any()
    return (bits >> 16).astype(np.uint16)


def small_integers(rng: np.random.Generator, *shape: int) -> NDArray[np.float32]:
    """Integers whose products sum exactly in FP32, and in FP16 too."""
    return rng.integers(-8, 9, shape).astype(np.float32)
