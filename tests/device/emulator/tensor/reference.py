"""Expected results of the conformance kernels that multiply or move matrices, by numpy and independent formulas.

Operand layouts and fragments are CuTe layouts (shape and stride per mode), whose canonical forms stand in PTX ISA
9.7.15.5.1.2.1.3.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tests.device.emulator.tensor.reference_copies import Bytes, placed

# ---- CuTe layouts

Nested = int | tuple[Any, ...]


def layout(shape: Nested, stride: Nested, index: int) -> int:
    """Value of the layout shape:stride at a linear index, leftmost mode fastest."""
    if isinstance(shape, int):
        assert isinstance(stride, int)
        return index % shape * stride
    assert isinstance(stride, tuple)
    total = 0
    for mode, step in zip(shape, stride, strict=True):
        size = extent(mode)
        total += layout(mode, step, index % size)
        index //= size
    return total


def extent(shape: Nested) -> int:
    return shape if isinstance(shape, int) else int(np.prod([extent(mode) for mode in shape]))


def thread_values(
    threads: tuple[Nested, Nested], values: tuple[Nested, Nested], rows: int
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return (row, column) of value v of thread t, arrays [thread, value], of a layout into a column-major matrix."""
    index = np.array(
        [
            [layout(*threads, t) + layout(*values, v) for v in range(extent(values[0]))]
            for t in range(extent(threads[0]))
        ]
    )
    return index % rows, index // rows


# ---- wgmma

WARPGROUP = ((4, 8, 4), (128, 1, 16))


def accumulator_places(n: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    return thread_values(WARPGROUP, ((2, 2, n // 8), (64, 8, 512)), 64)


def operand(image: Bytes, bits: int, extent_mn: int, mn_major: bool) -> NDArray[np.uint16]:
    """Elements [mn, k] of a 16-bit operand that a descriptor names."""
    start, lbo, sbo = (
        (bits & 0x3FFF) << 4,
        (bits >> 16 & 0x3FFF) << 3,
        (bits >> 32 & 0x3FFF) << 3,
    )  # bytes; strides in elements
    base_offset = bits >> 49 & 7
    swizzle = ("NONE", "128B", "64B", "32B")[bits >> 62]
    w, m = {"NONE": 1, "32B": 2, "64B": 4, "128B": 8}[swizzle], extent_mn // 8
    modes: tuple[tuple[Nested, Nested], tuple[Nested, Nested]]
    if not mn_major:
        modes = (((8, m), (8 * w, sbo)), ((8, 2), (1, lbo if swizzle == "NONE" else 8)))
    elif swizzle == "NONE":
        modes = (((8, 1, m), (1, 8, sbo)), ((8, 2), (8, lbo)))
    else:
        modes = (((8, w, -(-m // w)), (1, 8, lbo)), ((8, 2), (8 * w, sbo)))
    elements = np.empty((extent_mn, 16), np.uint16)
    for mn, k in itertools.product(range(extent_mn), range(16)):
        address = placed(start + 2 * (layout(*modes[0], mn) + layout(*modes[1], k)), swizzle, base_offset)
        elements[mn, k] = image[address : address + 2].view(np.uint16)[0]
    return elements


def as_float(bits: NDArray[np.integer], kind: str) -> NDArray[np.float64]:
    bits = np.ascontiguousarray(bits)
    if kind == "f16":
        return bits.view(np.float16).astype(np.float64)
    if kind == "bf16":
        return (bits.astype(np.uint32) << 16).view(np.float32).astype(np.float64)
    return (bits & np.uint32(0xFFFFE000 if kind == "tf32" else 0xFFFFFFFF)).view(np.float32).astype(np.float64)


def wgmma_parts(case: Any) -> tuple[NDArray[Any], list[tuple[NDArray[Any], NDArray[Any]]], str, str]:
    """Return accumulators [64, n] and per step A [64, 16] and B [n, 16], all as bits; element and result kinds."""
    image_bytes, steps, scale_d, step_a, step_b = case.args
    _, kind, *rest = case.kernel.split("_")
    half, n, major = kind == "half", int(rest[0][1:]), rest[1] if len(rest) > 1 else "kk"
    elements = "bf16" if kind == "bf16" else "f16"
    word: Any = np.uint16 if half else np.uint32
    values = case.out_bytes // 512 * (2 if half else 1)
    image = np.frombuffer(case.input, np.uint8)[:image_bytes]
    before = np.frombuffer(case.input, word)[image_bytes // word().nbytes :][: 128 * values].reshape(128, values)
    fragments = np.frombuffer(case.input, np.uint16)[(image_bytes + before.nbytes) // 2 :]
    accumulators = np.zeros((64, n), word)
    accumulators[accumulator_places(n)] = before if scale_d else 0
    in_registers = major == "reg"
    b_mn = rest[-1] == "m" if in_registers else len(major) == 2 and major[1] == "m"
    a_mn = len(major) == 2 and major[0] == "m"
    slices = []
    for step in range(steps):
        b = operand(image, case.wide[1] + (step * step_b >> 4), n, b_mn)
        if in_registers:
            a = np.empty((64, 16), np.uint16)
            places = thread_values(WARPGROUP, ((2, 2, 2), (64, 8, 512)), 64)
            a[places] = fragments[step * 1024 :][:1024].reshape(128, 8)
        else:
            a = operand(image, case.wide[0] + (step * step_a >> 4), 64, a_mn)
        if major == "negate":
            a = a ^ np.uint16(0x8000)
        slices.append((a, b))
    return accumulators, slices, elements, "f16" if half else "f32"


def wgmma(case: Any) -> Bytes:
    """The result over real numbers, rounded once: exact for whole-number operands."""
    accumulators, slices, kind, result = wgmma_parts(case)
    total = as_float(accumulators, result)
    for a, b in slices:
        total = total + as_float(a, kind) @ as_float(b, kind).T
    return in_fragments(total.astype(np.float16 if result == "f16" else np.float32))


def in_fragments(matrix: NDArray[Any]) -> Bytes:
    return np.ascontiguousarray(matrix[accumulator_places(matrix.shape[1])]).reshape(-1).view(np.uint8)


# ---- how tensor cores add: integer arithmetic on the bits

FORMATS = {"bf16": (8, 7), "f16": (5, 10), "tf32": (8, 23), "f32": (8, 23)}
NAN = {"f32": 0x7FFFFFFF, "f16": 0x7FFF}


@dataclass(frozen=True)
class Number:
    """mantissa · 2^scale, or `special`; `exponent` of zero lies far below all others."""

    mantissa: int
    scale: int
    exponent: int
    special: float = 0.0

    def __mul__(self, other: Number) -> Number:
        special = 0.0
        if self.special or other.special:
            special = float(self.special or self.mantissa) * float(other.special or other.mantissa)
        exponent = self.exponent + other.exponent
        return Number(self.mantissa * other.mantissa, self.scale + other.scale, exponent, special)

    def truncated(self, scale: int) -> int:
        """The number in units of 2^scale, towards zero."""
        shift = self.scale - scale
        if shift >= 0:
            return self.mantissa << shift
        return abs(self.mantissa) >> -shift if self.mantissa >= 0 else -(abs(self.mantissa) >> -shift)


def unpacked(bits: int, kind: str) -> Number:
    exponent_bits, mantissa_bits = FORMATS[kind]
    bias = 2 ** (exponent_bits - 1) - 1
    sign = -1 if bits >> (exponent_bits + mantissa_bits) & 1 else 1
    field, mantissa = bits >> mantissa_bits & (2**exponent_bits - 1), bits & (2**mantissa_bits - 1)
    if kind == "tf32":
        mantissa &= ~0x1FFF
    if field == 2**exponent_bits - 1:
        return Number(0, 0, 0, math.nan if mantissa else sign * math.inf)
    if not field and not mantissa:
        return Number(0, 0, -100_000)
    exponent = max(field, 1) - bias
    return Number(sign * (mantissa + (2**mantissa_bits if field else 0)), exponent - mantissa_bits, exponent)


def tensor_core_sum(terms: Sequence[Number], result: str) -> int:
    """Bits of a sum as an H200 makes it: terms truncated 25 places below the greatest exponent.

    The sum is truncated to fp32, or rounded once to fp16.
    """
    special = [term.special for term in terms if term.special]
    if special:
        total = sum(special)
        return NAN[result] if math.isnan(total) else in_result(total, result)
    scale = max(term.exponent for term in terms) - 25
    units = sum(term.truncated(scale) for term in terms)
    if not units:
        return 0
    if result == "f16":
        return half_of(units * Fraction(2) ** scale)
    excess = max(abs(units).bit_length() - 24, -149 - scale, 0)  # fp32 has 24 bits and no unit below 2^-149
    kept = Number(units, scale, 0).truncated(scale + excess)
    if abs(kept).bit_length() + scale + excess > 128:
        return in_result(math.copysign(math.inf, units), result)
    return in_result(math.ldexp(kept, scale + excess), result)


def half_of(exact: Fraction) -> int:
    """Bits of the fp16 number nearest to `exact`; ties go to the even one."""
    sign, magnitude = (0x8000 if exact < 0 else 0), abs(exact)
    field = 1  # of the exponent; numbers below 2^-14 have its unit
    while field < 31 and magnitude >= Fraction(2) ** (field - 14):
        field += 1
    units = round(magnitude / Fraction(2) ** (field - 25))  # round() takes ties to even
    return sign | min((field - 1 << 10) + units, 0x7C00)


def in_result(value: float, result: str) -> int:
    """Bits of an fp32 number, or of an infinity, in the type of the result."""
    kind, word = (np.float32, np.uint32) if result == "f32" else (np.float16, np.uint16)
    return int(kind(value).view(word))


def product(a: Any, b: Any, c: Any, kind: str, result: str) -> NDArray[Any]:
    """Bits of C + A·Bᵀ: a [m, k], b [n, k], c [m, n]."""
    left, right = ([[unpacked(int(x), kind) for x in row] for row in operand] for operand in (a, b))
    out = np.empty_like(c)
    for row, column in itertools.product(range(c.shape[0]), range(c.shape[1])):
        terms = [x * y for x, y in zip(left[row], right[column], strict=True)]
        out[row, column] = tensor_core_sum([*terms, unpacked(int(c[row, column]), result)], result)
    return out


def wgmma_bits(case: Any) -> Bytes:
    """The result as hardware computes it."""
    accumulators, slices, kind, result = wgmma_parts(case)
    for a, b in slices:
        accumulators = product(a, b, accumulators, kind, result)
    return in_fragments(accumulators)


# ---- matrices of a warp


def matrix_rows(case: Any) -> list[int]:
    pitch, multiplier, _ = case.args
    return [pitch * (lane * multiplier % 32) for lane in range(32)]


def ldmatrix(case: Any) -> Bytes:
    num, trans = int(case.kernel[len("ldmatrix_")]), case.kernel.endswith("t")
    image = np.frombuffer(case.input, np.uint8)
    out = np.empty((32, num, 2), np.uint16)
    for i in range(num):
        matrix = np.stack([image[a : a + 16].view(np.uint16) for a in matrix_rows(case)[8 * i : 8 * i + 8]])
        out[:, i] = (matrix.T if trans else matrix).reshape(32, 2)
    return out.reshape(-1).view(np.uint8)


def stmatrix(case: Any) -> Bytes:
    num, trans = int(case.kernel[len("stmatrix_")]), case.kernel.endswith("t")
    lanes = np.frombuffer(case.input, np.uint16).reshape(32, num, 2)
    shared = np.full(case.out_bytes, 0xCD, np.uint8)
    for i in range(num):
        matrix = np.ascontiguousarray(lanes[:, i]).reshape(8, 8)
        for row, a in enumerate(matrix_rows(case)[8 * i : 8 * i + 8]):
            shared[a : a + 16] = np.ascontiguousarray((matrix.T if trans else matrix)[row]).view(np.uint8)
    return shared


def movmatrix(case: Any) -> Bytes:
    return np.ascontiguousarray(np.frombuffer(case.input, np.uint16).reshape(8, 8).T).reshape(-1).view(np.uint8)


WARP = (4, 8)
MMA_LAYOUTS: dict[tuple[int, int], tuple[Any, Any, Any, Any]] = {
    # (k, element bits): A threads' strides, A values, B threads' strides, B values. A is 16 × k, B is 8 × k, both
    # column-major.
    (16, 16): ((32, 1), ((2, 2, 2), (16, 8, 128)), (16, 1), ((2, 2), (8, 64))),
    (8, 16): ((32, 1), ((2, 2), (16, 8)), (16, 1), ((2,), (8,))),
    (4, 32): ((16, 1), ((2,), (8,)), (8, 1), ((1,), (0,))),
    (8, 32): ((16, 1), ((2, 2), (8, 64)), (8, 1), ((2,), (32,))),
    (16, 8): ((64, 1), ((4, 2), (16, 8)), (32, 1), ((4,), (8,))),
    (32, 8): ((64, 1), ((4, 2, 2), (16, 8, 256)), (32, 1), ((4, 2), (8, 128))),
}
ELEMENTS: dict[str, tuple[int, Any]] = {
    "bf16": (16, np.uint16),
    "f16": (16, np.uint16),
    "tf32": (32, np.uint32),
    "s8": (8, np.int8),
    "u8": (8, np.uint8),
}


def mma_parts(case: Any, form: Any) -> tuple[NDArray[Any], NDArray[Any], NDArray[Any]]:
    """Return A [16, k], B [8, k] and C [16, 8] in their containers: bits of floating-point types, integers."""
    bits, container = ELEMENTS[form.kind]
    na, nb, _ = form.registers
    words = np.frombuffer(case.input, np.uint32).reshape(32, -1)
    a_threads, a_values, b_threads, b_values = MMA_LAYOUTS[form.k, bits]

    def matrix(
        registers: NDArray[np.uint32], rows: int, columns: int, threads: Any, values: Any, kind: Any
    ) -> NDArray[Any]:
        filled = np.empty((rows, columns), kind)
        filled[thread_values((WARP, threads), values, rows)] = np.ascontiguousarray(registers).view(kind)
        return filled

    a = matrix(words[:, :na], 16, form.k, a_threads, a_values, container)
    b = matrix(words[:, na : na + nb], 8, form.k, b_threads, b_values, ELEMENTS[form.b_kind or form.kind][1])
    c = matrix(words[:, na + nb :], 16, 8, (32, 1), ((2, 2), (16, 8)), RESULTS[form.result])
    return a, b, c


RESULTS: dict[str, Any] = {"f32": np.uint32, "f16": np.uint16, "s32": np.int32}


def mma_fragments(matrix: NDArray[Any]) -> Bytes:
    places = thread_values((WARP, (32, 1)), ((2, 2), (16, 8)), 16)
    return np.ascontiguousarray(matrix[places]).reshape(-1).view(np.uint8)


def mma(case: Any, form: Any) -> Bytes:
    """The result over real numbers, rounded once; integers wrap or saturate."""
    a, b, c = mma_parts(case, form)
    if form.result == "s32":
        total = c.astype(np.int64) + a.astype(np.int64) @ b.astype(np.int64).T
        if form.saturate:
            total = np.clip(total, -(2**31), 2**31 - 1)
        return mma_fragments((total & 0xFFFFFFFF).astype(np.uint32))
    sums = as_float(c, form.result) + as_float(a, form.kind) @ as_float(b, form.kind).T
    return mma_fragments(sums.astype(np.float16 if form.result == "f16" else np.float32))


def mma_bits(case: Any, form: Any) -> Bytes:
    """The result as hardware computes it."""
    a, b, c = mma_parts(case, form)
    return mma_fragments(product(a, b, c, form.kind, form.result))
