"""What a case is: one launch of one small kernel, with its input, its parameters and how its output is compared."""

from __future__ import annotations

import hashlib
import struct
from dataclasses import dataclass
from typing import Any

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
KEEP_BYTES = 8192
NANS: dict[str, tuple[type[np.unsignedinteger[Any]], int, int]] = {
    "f16": (np.uint16, 0x7C00, 0x03FF),
    "bf16": (np.uint16, 0x7F80, 0x007F),
    "f32": (np.uint32, 0x7F800000, 0x007FFFFF),
    "f64": (np.uint64, 0x7FF0000000000000, 0x000FFFFFFFFFFFFF),
}
"""Per type: container, bits of the exponent, bits of the mantissa."""
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
    """One launch of one kernel of `conformance.cu` with one block, or one cluster."""

    name: str
    kernel: str
    threads: int
    """Of a block; the number of blocks of the cluster stands in bits 16 up, 0 where there is none."""
    input: bytes
    out_bytes: int
    args: tuple[int, ...] = ()
    wide: tuple[int, ...] = ()
    map: Map | None = None
    smem_bytes: int = 66 * 1024
    probe: bool = False
    """Records what hardware does where the ISA leaves it open; compared within bounds, or not at all."""
    ptx: str = ""
    """The kernel itself, where it is not one of `conformance/kernels.cu`."""
    nan_type: str = ""
    """Type of which the output holds floats whose NaNs are all one: their payloads are not specified."""

    @property
    def block(self) -> int:
        """Threads of a block."""
        return self.threads & 0xFFFF

    @property
    def cluster(self) -> int:
        """Blocks of the one cluster; 0: one block without a cluster."""
        return self.threads >> 16

    @property
    def family(self) -> str:
        """The part of the name before its first slash."""
        return self.name.partition("/")[0]

    @property
    def digest(self) -> str:
        """Sixteen hex digits that change with anything that the case asks for."""
        return hashlib.sha256(self.job() + self.ptx.encode()).hexdigest()[:16]

    def comparable(self, output: NDArray[np.uint8]) -> NDArray[np.uint8]:
        """Return the output with every NaN replaced by one, where payloads are not specified."""
        if self.nan_type not in NANS:
            return output
        word, exponent, mantissa = NANS[self.nan_type]
        bits = output.view(word).copy()
        bits[((bits & exponent) == exponent) & ((bits & mantissa) != 0)] = exponent | mantissa
        return bits.view(np.uint8)

    def condensed(self, output: NDArray[np.uint8]) -> NDArray[np.uint8] | str:
        """Return what the golden file keeps: the output, or its digest in hex where it is long and bit for bit."""
        whole = self.probe or (output.size <= KEEP_BYTES and not self.nan_type and self.family != "lanes")
        comparable = self.comparable(output)
        return comparable if whole else hashlib.sha256(comparable.tobytes()).hexdigest()

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
