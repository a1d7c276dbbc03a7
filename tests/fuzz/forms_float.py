"""Floating-point arithmetic, comparison and conversion (PTX ISA 9.7.3 to 9.7.7, 9.7.9.21) in exact rationals."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from functools import partial

from tests.device.emulator.core.numbers import FORMATS, TF32, Format, arithmetic, to_integral
from tests.fuzz.forms import form, mask, read
from tests.fuzz.forms_integer import comparisons

IEEE = ("rn", "rz", "rm", "rp")
_COUNT = {"fma": 3, "rcp": 1, "sqrt": 1}
Scalar = Callable[..., int]


def _scalar(opcode: str, kind: str, count: int, meaning: Scalar) -> None:
    form(f"{opcode}.{kind}", kind, " ".join([kind] * count), meaning)


def _packed(opcode: str, kind: str, count: int, meaning: Scalar) -> None:
    """The same for both halves of a 32-bit register."""

    def both(*operands: int) -> int:
        return meaning(*(x & 0xFFFF for x in operands)) | meaning(*(x >> 16 for x in operands)) << 16

    form(f"{opcode}.{kind}x2", f"{kind}x2", " ".join([f"{kind}x2"] * count), both)


def _relu(form_: Format, bits: int) -> int:
    return bits if form_.is_nan(bits) else 0 if bits & form_.sign else bits


def _rounded() -> None:
    for op in ("add", "sub", "mul", "fma", "div", "rcp", "sqrt"):
        count = _COUNT.get(op, 2)
        for mode in IEEE:
            for ftz in (False, True):
                for sat in (False, True) if op in ("add", "sub", "mul", "fma") else (False,):
                    words = f"{op}.{mode}{'.ftz' if ftz else ''}{'.sat' if sat else ''}"
                    _scalar(words, "f32", count, partial(arithmetic, op, FORMATS["f32"], mode, ftz, sat))
            _scalar(f"{op}.{mode}", "f64", count, partial(arithmetic, op, FORMATS["f64"], mode, False, False))
    for op in ("add", "sub", "mul"):  # no rounding named: to nearest even
        _scalar(op, "f32", 2, partial(arithmetic, op, FORMATS["f32"], "rn", False, False))
        _scalar(op, "f64", 2, partial(arithmetic, op, FORMATS["f64"], "rn", False, False))
    for op in ("add", "sub", "mul", "fma"):
        for kind in ("f16", "bf16"):
            for ftz, sat in ((0, 0), (1, 0), (0, 1), (1, 1)) if kind == "f16" else ((0, 0),):
                meaning = partial(arithmetic, op, FORMATS[kind], "rn", bool(ftz), bool(sat))
                words = f"{op}.rn{'.ftz' if ftz else ''}{'.sat' if sat else ''}"
                _scalar(words, kind, _COUNT.get(op, 2), meaning)
                _packed(words, kind, _COUNT.get(op, 2), meaning)
    for kind in ("f16", "bf16"):
        number = FORMATS[kind]
        meaning = lambda a, b, c, f=number: _relu(f, arithmetic("fma", f, "rn", False, False, a, b, c))  # noqa: E731
        _scalar("fma.rn.relu", kind, 3, meaning)
        _packed("fma.rn.relu", kind, 3, meaning)


def extreme(number: Format, larger: bool, ftz: bool, nan: bool, magnitudes: bool, a: int, b: int) -> int:
    """The smaller or larger number; `magnitudes`: of the absolute values, with the signs' product."""
    sign = (a ^ b) & number.sign
    if ftz:
        a, b = number.flush(a), number.flush(b)
    if magnitudes:
        a, b = a & ~number.sign, b & ~number.sign
    if number.is_nan(a) or number.is_nan(b):
        if nan or (number.is_nan(a) and number.is_nan(b)):
            return number.nan
        found = b if number.is_nan(a) else a
    else:
        x, y = number.value(a), number.value(b)
        zero = a & b if larger else a | b  # of zeros the positive one is the larger
        found = zero if x == y else a if (x > y) == larger else b
    return found | sign if magnitudes else found


def _extremes() -> None:
    for op in ("min", "max"):
        for kind in ("f32", "f16", "bf16"):
            for ftz in (False, True) if kind != "bf16" else (False,):
                for nan in (False, True):
                    for magnitudes in (False, True):
                        words = [op, *["ftz"] * ftz, *["NaN"] * nan, *["xorsign", "abs"] * magnitudes]
                        meaning = partial(extreme, FORMATS[kind], op == "max", ftz, nan, magnitudes)
                        _scalar(".".join(words), kind, 2, meaning)
                        if kind != "f32":
                            _packed(".".join(words), kind, 2, meaning)
        _scalar(op, "f64", 2, partial(extreme, FORMATS["f64"], op == "max", False, False, False))


def _signs() -> None:
    for kind in ("f32", "f64", "f16", "bf16"):
        number = FORMATS[kind]
        for ftz in (False, True) if kind in ("f32", "f16") else (False,):
            flush = number.flush if ftz else (lambda x: x)
            words = ".ftz" if ftz else ""
            negate: Scalar = lambda a, f=number, flush=flush: flush(a) ^ f.sign  # noqa: E731
            absolute: Scalar = lambda a, f=number, flush=flush: flush(a) & ~f.sign  # noqa: E731
            for op, meaning in (("neg", negate), ("abs", absolute)):
                _scalar(f"{op}{words}", kind, 1, meaning)
                if kind in ("f16", "bf16"):
                    _packed(f"{op}{words}", kind, 1, meaning)
    for kind in ("f32", "f64"):
        number = FORMATS[kind]
        meaning = lambda a, b, f=number: a & f.sign | b & ~f.sign  # noqa: E731
        form(f"copysign.{kind}", kind, f"{kind} {kind}", meaning)
        tests: dict[str, Callable[[int, Format], bool]] = {
            "finite": lambda a, f: a & ~f.sign < f.infinity,
            "infinite": lambda a, f: a & ~f.sign == f.infinity,
            "number": lambda a, f: not f.is_nan(a),
            "notanumber": lambda a, f: f.is_nan(a),
            "normal": lambda a, f: 1 << f.mantissa <= a & ~f.sign < f.infinity,
            "subnormal": lambda a, f: f.is_subnormal(a),
        }
        for name, test in tests.items():
            if name != "normal":  # whether zero is normal is not said
                form(f"testp.{name}.{kind}", "pred", kind, lambda a, t=test, f=number: int(t(a, f)))


_ORDERED: dict[str, Callable[[float, float], bool]] = {
    "eq": lambda a, b: a == b, "ne": lambda a, b: a != b, "lt": lambda a, b: a < b,
    "le": lambda a, b: a <= b, "gt": lambda a, b: a > b, "ge": lambda a, b: a >= b,
}  # fmt: skip


def _compared(name: str, number: Format, ftz: bool, a: int, b: int) -> bool:
    if ftz:
        a, b = number.flush(a), number.flush(b)
    unordered = number.is_nan(a) or number.is_nan(b)
    if name in ("num", "nan"):
        return unordered == (name == "nan")
    if unordered:
        return name.endswith("u")
    return _ORDERED[name.removesuffix("u")](number.value(a), number.value(b))


def _comparisons() -> None:
    names = (*_ORDERED, *(f"{name}u" for name in _ORDERED), "num", "nan")
    for kind in ("f32", "f64", "f16", "bf16"):
        for name in names:
            test = partial(_compared, name, FORMATS[kind], False)
            comparisons(name, kind, test)
            if kind in ("f32", "f16"):
                flushing = partial(_compared, name, FORMATS[kind], True)
                form(f"setp.{name}.ftz.{kind}", "pred", f"{kind} {kind}", lambda a, b, t=flushing: int(t(a, b)))
            if kind in ("f16", "bf16"):
                form(
                    f"setp.{name}.{kind}x2", "pred pred", f"{kind}x2 {kind}x2",
                    lambda a, b, t=test: (int(t(a & 0xFFFF, b & 0xFFFF)), int(t(a >> 16, b >> 16))),
                )  # fmt: skip
    for bits in (32, 64):
        kind = f"b{bits}"
        form(f"slct.{kind}.f32", kind, f"{kind} {kind} f32", lambda a, b, c: a if _not_negative(c) else b)


def _not_negative(bits: int) -> bool:
    """Minus zero is not less than zero; NaN selects the second."""
    return not FORMATS["f32"].is_nan(bits) and (bits < 0x80000000 or bits == 0x80000000)


# ---- conversions

_INTEGERS = ("u8", "s8", "u16", "s16", "u32", "s32", "u64", "s64")


def _holders(kind: str) -> tuple[str, ...]:
    """Registers that cvt accepts for an integer type: as wide as it, or wider."""
    return tuple(f"b{bits}" for bits in (16, 32, 64) if bits >= int(kind[1:]))


def _bounds(kind: str) -> tuple[int, int]:
    bits = int(kind[1:])
    return (-(1 << bits - 1), mask(bits - 1)) if kind[0] == "s" else (0, mask(bits))


def _integers() -> None:
    for target in _INTEGERS:
        low, high = _bounds(target)
        for source in _INTEGERS:
            for holder in _holders(source)[:2]:
                result = _holders(target)[0] if holder != "b64" else _holders(target)[-1]
                form(
                    f"cvt.{target}.{source}", result, holder,
                    lambda a, t=target, s=source: read(read(a, s), t),
                )  # fmt: skip
                form(
                    f"cvt.sat.{target}.{source}", result, holder,
                    lambda a, s=source, low=low, high=high: max(low, min(high, read(a, s))),
                )  # fmt: skip


def _to_integer(target: str, source: str, mode: str, ftz: bool, a: int) -> int:
    number, (low, high) = FORMATS[source], _bounds(target)
    value = number.value(number.flush(a) if ftz else a)
    if value != value:
        middle = low if target[0] == "s" else 1 << int(target[1:]) - 1
        return middle if source == "f64" or target in ("s64", "u64") else 0
    if isinstance(value, float):
        return high if value > 0 else low
    return max(low, min(high, to_integral(value, mode)))


def _float_and_integer() -> None:
    for kind in _INTEGERS:
        holder = _holders(kind)[0]
        for real in ("f32", "f64", "f16"):
            for mode in IEEE:
                form(
                    f"cvt.{mode}.{real}.{kind}", real, holder,
                    lambda a, k=kind, m=mode, f=FORMATS[real]: f.encode(Fraction(read(a, k)), m),
                )  # fmt: skip
                form(f"cvt.{mode}i.{kind}.{real}", holder, real, partial(_to_integer, kind, real, f"{mode}i", False))
        form(f"cvt.rzi.ftz.{kind}.f32", holder, "f32", partial(_to_integer, kind, "f32", "rzi", True))


def _converted(
    source: Format, target: Format, mode: str, ftz: bool, sat: bool, relu: bool, integral: bool, a: int
) -> int:
    if ftz and source.bits == 32:
        a = source.flush(a)
    value = source.value(a)
    if integral and isinstance(value, Fraction):
        value, mode = Fraction(to_integral(value, f"{mode}i")), "rn"
    bits = target.encode(value, mode, source.negative(a))
    if ftz and target.bits == 32:
        bits = target.flush(bits)
    if sat:
        result = target.value(bits)
        return 0 if result != result or result <= 0 else min(bits, target.encode(Fraction(1)))
    return _relu(target, bits) if relu else bits


def _between(target: str, source: str, mode: str = "", *words: str) -> None:
    integral = mode.endswith("i")
    opcode = ".".join(["cvt", *([mode] if mode else []), *words, target, source])
    meaning = partial(
        _converted, FORMATS[source], FORMATS[target], mode.removesuffix("i") or "rn",
        "ftz" in words, "sat" in words, "relu" in words, integral,
    )  # fmt: skip
    form(opcode, target, source, meaning)


def _floats() -> None:
    for target, source in (("f32", "f16"), ("f32", "bf16"), ("f64", "f32"), ("f64", "f16"), ("f64", "bf16")):
        _between(target, source)
        _between(target, source, "", "sat")
    _between("f64", "f32", "", "ftz")
    for mode in IEEE:
        for target, source in (("f32", "f64"), ("f16", "f32"), ("f16", "f64"), ("bf16", "f64"), ("bf16", "f16")):
            _between(target, source, mode)
        _between("f32", "f64", mode, "ftz")
        _between("f32", "f64", mode, "sat")
        for kind in ("f32", "f64", "f16"):
            _between(kind, kind, f"{mode}i")
            _between(kind, kind, f"{mode}i", "sat")
        _between("f32", "f32", f"{mode}i", "ftz")
    for mode in ("rn", "rz"):
        _between("bf16", "f32", mode)
        for target in ("f16", "bf16"):
            _between(target, "f32", mode, "relu")
            number, single = FORMATS[target], FORMATS["f32"]
            for relu in (False, True):
                half = partial(_converted, single, number, mode, False, False, relu, False)
                opcode = f"cvt.{mode}{'.relu' if relu else ''}.{target}x2.f32"
                form(opcode, f"{target}x2", "f32 f32", lambda a, b, h=half: h(a) << 16 | h(b))
    for kind in ("e4m3", "e5m2"):
        _eight_bits(kind)
    form("cvt.rna.tf32.f32", "b32", "f32", _to_tf32)


def _eight_bits(kind: str) -> None:
    number = FORMATS[kind]

    def narrow(source: Format, relu: bool, a: int) -> int:
        bits = number.encode(source.value(a), "rn", source.negative(a), saturate=True)
        return _relu(number, bits) if relu else bits

    def widen(a: int) -> int:
        return FORMATS["f16"].encode(number.value(a), "rn", number.negative(a))

    for relu in (False, True):
        word = ".relu" if relu else ""
        single, half = (partial(narrow, FORMATS[source], relu) for source in ("f32", "f16"))
        form(f"cvt.rn.satfinite{word}.{kind}x2.f32", f"{kind}x2", "f32 f32", lambda a, b, n=single: n(a) << 8 | n(b))
        form(
            f"cvt.rn.satfinite{word}.{kind}x2.f16x2", f"{kind}x2", "f16x2",
            lambda a, n=half: n(a >> 16) << 8 | n(a & 0xFFFF),
        )  # fmt: skip
    form(f"cvt.rn.f16x2.{kind}x2", "f16x2", f"{kind}x2", lambda a: widen(a >> 8) << 16 | widen(a & 0xFF))


def _by_chance(number: Format, bits: int, saturate: bool, relu: bool, a: int, random: int) -> int:
    """Rounded away from zero where the random number carries out of the discarded bits (PTX ISA 9.7.9.21)."""
    single = FORMATS["f32"]
    value = single.value(a)
    if value != value:
        return number.nan
    if relu and single.negative(a):
        return 0
    sign = number.sign if single.negative(a) else 0
    beyond = sign | number.infinity - int(saturate)
    if isinstance(value, float):
        return beyond
    code = number.encode(abs(value), "rz")
    unit = Fraction(2) ** (max(code >> number.mantissa, 1) - number.bias - number.mantissa)
    discarded = (abs(value) - Fraction(number.value(code))) / unit
    if discarded >= 1:
        return beyond
    code += int(discarded * (1 << bits)) + (random & mask(bits)) >> bits
    return beyond if code == number.infinity else sign | code


def _stochastic() -> None:
    for kind, bits in (("f16", 13), ("bf16", 16)):
        for relu in (False, True):
            for saturate in (False, True):
                half = partial(_by_chance, FORMATS[kind], bits, saturate, relu)
                words = f"cvt.rs{'.relu' if relu else ''}{'.satfinite' if saturate else ''}"
                form(
                    f"{words}.{kind}x2.f32", f"{kind}x2", "f32 f32 b32",
                    lambda a, b, c, h=half: h(a, c >> 16) << 16 | h(b, c & 0xFFFF),
                )  # fmt: skip


def _to_tf32(a: int) -> int:
    """NaNs lose their low bits, as measured on an H200."""
    single = FORMATS["f32"]
    if single.is_nan(a):
        return a & ~0x1FFF
    return TF32.encode(single.value(a), "rna", single.negative(a)) << 13


_rounded()
_extremes()
_signs()
_comparisons()
_integers()
_float_and_integer()
_floats()
_stochastic()
