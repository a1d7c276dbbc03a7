"""Floating-point formats and roundings in exact rational arithmetic, written without looking at the core."""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property

NAN, INF = math.nan, math.inf


@dataclass(frozen=True)
class Format:
    """A binary format: stored mantissa bits, exponent bits, the canonical NaN."""

    mantissa: int
    exponent: int
    nan: int
    finite_only: bool = False
    """e4m3: no infinities; the largest code is NaN."""

    @property
    def bits(self) -> int:
        return 1 + self.exponent + self.mantissa

    @property
    def sign(self) -> int:
        return 1 << (self.exponent + self.mantissa)

    @property
    def bias(self) -> int:
        return (1 << (self.exponent - 1)) - 1

    @property
    def infinity(self) -> int:
        return ((1 << self.exponent) - 1) << self.mantissa

    @cached_property
    def largest(self) -> Fraction:
        top = (1 << self.exponent) - (1 if self.finite_only else 2) - self.bias
        fraction = (1 << self.mantissa) - (2 if self.finite_only else 1)
        return (1 + Fraction(fraction, 1 << self.mantissa)) * Fraction(2) ** top

    def is_nan(self, bits: int) -> bool:
        magnitude = bits & (self.sign - 1)
        return magnitude == self.sign - 1 if self.finite_only else magnitude > self.infinity

    def is_subnormal(self, bits: int) -> bool:
        magnitude = bits & (self.sign - 1)
        return 0 < magnitude < 1 << self.mantissa

    def negative(self, bits: int) -> bool:
        return bool(bits & self.sign)

    def value(self, bits: int) -> Fraction | float:
        """The exact value; ±inf and nan as floats. Zeros lose their sign."""
        sign = -1 if self.negative(bits) else 1
        magnitude = bits & (self.sign - 1)
        if self.is_nan(bits):
            return NAN
        if not self.finite_only and magnitude == self.infinity:
            return sign * INF
        field, fraction = magnitude >> self.mantissa, magnitude & ((1 << self.mantissa) - 1)
        significand = fraction + ((1 << self.mantissa) if field else 0)
        return sign * significand * Fraction(2) ** (max(field, 1) - self.bias - self.mantissa)

    def encode(
        self, value: Fraction | float, mode: str = "rn", negative_zero: bool = False, saturate: bool = False
    ) -> int:
        """Round to the format; modes rn, rz, rm, rp and rna (nearest, ties away)."""
        if isinstance(value, float) and math.isnan(value):
            return self.nan
        if isinstance(value, float) and math.isinf(value):
            sign = self.sign if value < 0 else 0
            if self.finite_only or saturate:
                return sign | (self.encode(self.largest) if saturate else self.nan)
            return sign | self.infinity
        value = Fraction(value)
        if value == 0:
            return self.sign if negative_zero else 0
        negative = value < 0
        magnitude = abs(value)
        exponent = max(_floor_log2(magnitude), 1 - self.bias)
        unit = Fraction(2) ** (exponent - self.mantissa)
        whole = _rounded(magnitude / unit, mode, negative)
        code = ((exponent + self.bias - 1) << self.mantissa) + whole
        limit = self.encode(self.largest) if magnitude != self.largest else code
        if code > limit:
            to_zero = mode == "rz" or (mode == "rm" and not negative) or (mode == "rp" and negative)
            code = limit if saturate or to_zero else (self.nan if self.finite_only else self.infinity)
        return code | (self.sign if negative else 0)

    def flush(self, bits: int) -> int:
        """Subnormals to zero of the same sign."""
        return bits & self.sign if self.is_subnormal(bits) else bits


F16 = Format(10, 5, 0x7FFF)
BF16 = Format(7, 8, 0x7FFF)
F32 = Format(23, 8, 0x7FFFFFFF)
F64 = Format(52, 11, 0x7FFFFFFFFFFFFFFF)
E4M3 = Format(3, 4, 0x7F, finite_only=True)
E5M2 = Format(2, 5, 0x7F)
TF32 = Format(10, 8, 0x3FFFF)
FORMATS = {"f16": F16, "bf16": BF16, "f32": F32, "f64": F64, "e4m3": E4M3, "e5m2": E5M2}


def _floor_log2(value: Fraction) -> int:
    guess = value.numerator.bit_length() - value.denominator.bit_length()
    return guess if Fraction(2) ** guess <= value else guess - 1


def _rounded(value: Fraction, mode: str, negative: bool) -> int:
    whole = value.numerator // value.denominator
    rest = value - whole
    if mode == "rn":
        return whole + (rest > Fraction(1, 2) or (rest == Fraction(1, 2) and whole % 2))
    if mode == "rna":
        return whole + (rest >= Fraction(1, 2))
    up = (mode == "rp" and not negative) or (mode == "rm" and negative)
    return whole + (rest > 0 and up)


def to_integral(value: Fraction, mode: str) -> int:
    """Round to an integer: rni, rzi, rmi, rpi."""
    magnitude = _rounded(abs(value), mode[:2], value < 0)
    return -magnitude if value < 0 else magnitude


def arithmetic(op: str, form: Format, mode: str, ftz: bool, sat: bool, *operands: int) -> int:
    """add, sub, mul, fma, div, rcp and sqrt on bit patterns."""
    if ftz:
        operands = tuple(form.flush(x) for x in operands)
    if op == "sub":
        op, operands = "add", (operands[0], operands[1] ^ form.sign)
        if form.is_nan(operands[1]):
            return 0 if sat else form.nan
    if op == "rcp":
        op, operands = "div", (form.encode(Fraction(1)), operands[0])
    value, minus = _exact(op, form, mode, operands)
    bits = form.encode(value, mode, minus)
    if ftz:
        bits = form.flush(bits)
    if sat:
        number = form.value(bits)
        if number != number or number <= 0:
            return 0
        return min(bits, form.encode(Fraction(1)))
    return bits


def _exact(op: str, form: Format, mode: str, operands: tuple[int, ...]) -> tuple[Fraction | float, bool]:
    """Exact result, and the sign of a zero one."""
    values = [form.value(x) for x in operands]
    signs = [form.negative(x) for x in operands]
    if any(v != v for v in values):
        return NAN, False
    if op == "add":
        return _sum(values[0], signs[0], values[1], signs[1], mode)
    if op in ("mul", "fma"):
        sign = signs[0] != signs[1]
        product = _product(values[0], values[1], sign)
        if op == "mul" or product != product:
            return product, sign
        return _sum(product, sign, values[2], signs[2], mode)
    if op == "div":
        sign = signs[0] != signs[1]
        a, b = values
        if isinstance(a, float):
            return (NAN if isinstance(b, float) else (-INF if sign else INF)), sign
        if isinstance(b, float):
            return Fraction(0), sign
        if b == 0:
            return (NAN if a == 0 else (-INF if sign else INF)), sign
        return a / b, sign
    assert op == "sqrt"
    a = values[0]
    if a == 0:
        return Fraction(0), signs[0]
    if a < 0:
        return NAN, False
    return (INF if isinstance(a, float) else _square_root(a)), False


def _product(a: Fraction | float, b: Fraction | float, sign: bool) -> Fraction | float:
    if isinstance(a, float) or isinstance(b, float):
        return NAN if a == 0 or b == 0 else (-INF if sign else INF)
    return a * b


def _sum(
    a: Fraction | float, minus_a: bool, b: Fraction | float, minus_b: bool, mode: str
) -> tuple[Fraction | float, bool]:
    if isinstance(a, float) and isinstance(b, float):
        return (a if a == b else NAN), False
    if isinstance(a, float) or isinstance(b, float):
        return (a if isinstance(a, float) else b), False
    if a == 0 and b == 0 and minus_a == minus_b:
        return Fraction(0), minus_a
    return a + b, mode == "rm"


def _square_root(value: Fraction) -> Fraction:
    """The root, or a number on the same side of every representable number and midpoint."""
    scale = 2 * 700
    scaled = value * Fraction(2) ** scale
    root = math.isqrt(scaled.numerator // scaled.denominator)
    exact = Fraction(root * root) == scaled
    return (Fraction(root) + (0 if exact else Fraction(1, 2))) / Fraction(2) ** (scale // 2)
