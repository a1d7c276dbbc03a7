"""Integer arithmetic, logic, shifts, bit fields and selections (PTX ISA 9.7.1, 9.7.2, 9.7.6, 9.7.8, 9.7.9.7)."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from tests.fuzz.forms import form, mask, read, signed

TYPES = ("u16", "s16", "u32", "s32", "u64", "s64")


def _clamp(value: int, kind: str) -> int:
    bits = int(kind[1:])
    low, high = (-(1 << bits - 1), mask(bits - 1)) if kind[0] == "s" else (0, mask(bits))
    return max(low, min(high, value))


def _numbers(kinds: str, meaning: Callable[..., int]) -> Callable[..., int]:
    """A meaning on numbers as one on registers."""
    types = kinds.split()
    return lambda *operands: meaning(*(read(x, kind) for x, kind in zip(operands, types, strict=True)))


def _of(opcode: str, result: str, sources: str, meaning: Callable[..., int]) -> None:
    form(opcode, result, sources, _numbers(sources.replace("shift", "u32"), meaning))


def _divide(a: int, b: int) -> int:
    if b == 0:
        return -1  # not specified; what an H200 gives
    quotient = abs(a) // abs(b)
    return quotient if (a < 0) == (b < 0) else -quotient


def _remainder(a: int, b: int) -> int:
    return -1 if b == 0 else a - b * _divide(a, b)


def _arithmetic() -> None:
    for kind in TYPES:
        bits, two, three = int(kind[1:]), f"{kind} {kind}", f"{kind} {kind} {kind}"
        _of(f"add.{kind}", kind, two, lambda a, b: a + b)
        _of(f"sub.{kind}", kind, two, lambda a, b: a - b)
        _of(f"mul.lo.{kind}", kind, two, lambda a, b: a * b)
        _of(f"mul.hi.{kind}", kind, two, lambda a, b, n=bits: a * b >> n)
        _of(f"mad.lo.{kind}", kind, three, lambda a, b, c: a * b + c)
        _of(f"mad.hi.{kind}", kind, three, lambda a, b, c, n=bits: (a * b >> n) + c)
        _of(f"div.{kind}", kind, two, _divide)
        _of(f"rem.{kind}", kind, two, _remainder)
        _of(f"min.{kind}", kind, two, min)
        _of(f"max.{kind}", kind, two, max)
        _of(f"sad.{kind}", kind, three, lambda a, b, c: c + abs(a - b))
        if kind[0] == "s":
            _of(f"abs.{kind}", kind, kind, abs)
            _of(f"neg.{kind}", kind, kind, lambda a: -a)
        if bits < 64:
            wide = f"{kind[0]}{2 * bits}"
            _of(f"mul.wide.{kind}", wide, two, lambda a, b: a * b)
            _of(f"mad.wide.{kind}", wide, f"{two} {wide}", lambda a, b, c: a * b + c)
    saturated = partial(_clamp, kind="s32")
    _of("add.sat.s32", "s32", "s32 s32", lambda a, b: saturated(a + b))
    _of("sub.sat.s32", "s32", "s32 s32", lambda a, b: saturated(a - b))
    _of("mad.hi.sat.s32", "s32", "s32 s32 s32", lambda a, b, c: saturated((a * b >> 32) + c))
    _of("min.relu.s32", "s32", "s32 s32", lambda a, b: max(0, min(a, b)))
    _of("max.relu.s32", "s32", "s32 s32", lambda a, b: max(0, a, b))
    for kind in ("u32", "s32"):
        low = partial(_low24, kind=kind)
        _of(f"mul24.lo.{kind}", kind, f"{kind} {kind}", lambda a, b, low=low: low(a) * low(b))
        _of(f"mul24.hi.{kind}", kind, f"{kind} {kind}", lambda a, b, low=low: low(a) * low(b) >> 16)
        three = f"{kind} {kind} {kind}"
        _of(f"mad24.lo.{kind}", kind, three, lambda a, b, c, low=low: low(a) * low(b) + c)
        _of(f"mad24.hi.{kind}", kind, three, lambda a, b, c, low=low: (low(a) * low(b) >> 16) + c)
    for a_type in ("u32", "s32"):
        for b_type in ("u32", "s32"):
            result = "s32" if "s32" in (a_type, b_type) else "u32"
            sources = f"b32 b32 {result}"
            form(f"dp4a.{a_type}.{b_type}", result, sources, partial(_dot, 4, 8, a_type[0], b_type[0], 0))
            form(f"dp2a.lo.{a_type}.{b_type}", result, sources, partial(_dot, 2, 16, a_type[0], b_type[0], 0))
            form(f"dp2a.hi.{a_type}.{b_type}", result, sources, partial(_dot, 2, 16, a_type[0], b_type[0], 2))


def _low24(value: int, kind: str) -> int:
    return signed(value, 24) if kind == "s32" else value & mask(24)


def _dot(count: int, a_bits: int, a_sign: str, b_sign: str, first: int, a: int, b: int, c: int) -> int:
    total = c
    for i in range(count):
        x, y = a >> i * a_bits, b >> (first + i) * 8
        total += read(x, f"{a_sign}{a_bits}") * read(y, f"{b_sign}8")
    return total


def _logic() -> None:
    for bits in (16, 32, 64):
        kind = f"b{bits}"
        form(f"and.{kind}", kind, f"{kind} {kind}", lambda a, b: a & b)
        form(f"or.{kind}", kind, f"{kind} {kind}", lambda a, b: a | b)
        form(f"xor.{kind}", kind, f"{kind} {kind}", lambda a, b: a ^ b)
        form(f"not.{kind}", kind, kind, lambda a: ~a)
        form(f"cnot.{kind}", kind, kind, lambda a: int(a == 0))
        form(f"shl.{kind}", kind, f"{kind} shift", lambda a, n, w=bits: a << min(n, w))
        form(f"shr.b{bits}", kind, f"{kind} shift", lambda a, n, w=bits: a >> min(n, w))
        _of(f"shr.u{bits}", f"u{bits}", f"u{bits} shift", lambda a, n, w=bits: a >> min(n, w))
        _of(f"shr.s{bits}", f"s{bits}", f"s{bits} shift", lambda a, n, w=bits: a >> min(n, w))
        form(f"mov.{kind}", kind, kind, lambda a: a)
        form(f"selp.{kind}", kind, f"{kind} {kind} pred", lambda a, b, p: a if p else b)
        form(f"slct.{kind}.s32", kind, f"{kind} {kind} s32", lambda a, b, c: a if signed(c, 32) >= 0 else b)
    for name, apply in (("and", lambda p, q: p & q), ("or", lambda p, q: p | q), ("xor", lambda p, q: p ^ q)):
        form(f"{name}.pred", "pred", "pred pred", apply)
    form("not.pred", "pred", "pred", lambda p: ~p)
    form("mov.pred", "pred", "pred", lambda p: p)
    form("lop3.b32", "b32", "b32 b32 b32 byte", _look_up)
    for bound, number in (("wrap", lambda n: n & 31), ("clamp", lambda n: min(n, 32))):
        form(f"shf.l.{bound}.b32", "b32", "b32 b32 shift", lambda a, b, c, n=number: (b << 32 | a) << n(c) >> 32)
        form(f"shf.r.{bound}.b32", "b32", "b32 b32 shift", lambda a, b, c, n=number: (b << 32 | a) >> n(c))


def _look_up(a: int, b: int, c: int, table: int) -> int:
    found = 0
    for i in range(32):
        row = (a >> i & 1) << 2 | (b >> i & 1) << 1 | c >> i & 1
        found |= (table >> row & 1) << i
    return found


def _fields() -> None:
    for kind in ("u32", "s32", "u64", "s64"):
        form(f"bfe.{kind}", kind, f"{kind} shift shift", partial(_extract, kind))
        form(f"bfind.{kind}", "u32", kind, lambda a, k=kind: _find(k, a))
        form(f"bfind.shiftamt.{kind}", "u32", kind, partial(_find_shift, kind))
    for bits in (32, 64):
        kind = f"b{bits}"
        form(f"bfi.{kind}", kind, f"{kind} {kind} shift shift", partial(_insert, bits))
        form(f"popc.{kind}", "u32", kind, lambda a: a.bit_count())
        form(f"clz.{kind}", "u32", kind, lambda a, w=bits: w - a.bit_length())
        form(f"brev.{kind}", kind, kind, lambda a, w=bits: int(format(a, f"0{w}b")[::-1], 2))
    form("bmsk.clamp.b32", "b32", "shift shift", lambda a, b: sum(1 << i for i in range(32) if a <= i < a + b))
    form("bmsk.wrap.b32", "b32", "shift shift", lambda a, b: mask(b & 31) << (a & 31))
    for kind in ("u32", "s32"):
        form(f"szext.clamp.{kind}", kind, f"{kind} shift", lambda a, n, k=kind: _extend(k, a, min(n, 32)))
        form(f"szext.wrap.{kind}", kind, f"{kind} shift", lambda a, n, k=kind: _extend(k, a, n & 31))
    form("prmt.b32", "b32", "b32 b32 b32", _permute)
    tables = {
        "f4e": (0x3210, 0x4321, 0x5432, 0x6543), "b4e": (0x5670, 0x6701, 0x7012, 0x0123),
        "rc8": (0x0000, 0x1111, 0x2222, 0x3333), "ecl": (0x3210, 0x3211, 0x3222, 0x3333),
        "ecr": (0x0000, 0x1110, 0x2210, 0x3210), "rc16": (0x1010, 0x3232, 0x1010, 0x3232),
    }  # fmt: skip
    for name, table in tables.items():
        form(f"prmt.b32.{name}", "b32", "b32 b32 shift", lambda a, b, c, t=table: _permute(a, b, t[c & 3]))


def _extract(kind: str, a: int, start: int, length: int) -> int:
    """PTX ISA 9.7.1.19 with start and length as an H200 reads them: of 32 bits modulo 256, of 64 bits clamped."""
    bits = int(kind[1:])
    start, length = (start & 255, length & 255) if bits == 32 else (min(start, 64), min(length, 64))
    top = bits - 1
    fill = 0 if kind[0] == "u" or length == 0 else a >> min(start + length - 1, top) & 1
    found = 0
    for i in range(bits):
        inside = i < length and start + i <= top
        found |= (a >> start + i & 1 if inside else fill) << i
    return found


def _insert(bits: int, a: int, b: int, start: int, length: int) -> int:
    start, length = (start & 255, length & 255) if bits == 32 else (min(start, 64), min(length, 64))
    for i in range(length):
        if start + i < bits:
            b = b & ~(1 << start + i) | (a >> i & 1) << start + i
    return b


def _find(kind: str, a: int) -> int:
    number = read(a, kind)
    return (~number if number < 0 else number).bit_length() - 1


def _find_shift(kind: str, a: int) -> int:
    at = _find(kind, a)
    return at if at < 0 else int(kind[1:]) - 1 - at


def _extend(kind: str, a: int, bits: int) -> int:
    if bits == 0:
        return 0
    return signed(a, bits) if kind[0] == "s" else a & mask(bits)


def _permute(a: int, b: int, selection: int) -> int:
    found = 0
    for i in range(4):
        nibble = selection >> 4 * i & 15
        byte = (b << 32 | a) >> 8 * (nibble & 7) & 0xFF
        if nibble & 8:
            byte = 0xFF if byte & 0x80 else 0
        found |= byte << 8 * i
    return found


_TESTS: dict[str, Callable[[int, int], bool]] = {
    "eq": lambda a, b: a == b, "ne": lambda a, b: a != b, "lt": lambda a, b: a < b,
    "le": lambda a, b: a <= b, "gt": lambda a, b: a > b, "ge": lambda a, b: a >= b,
}  # fmt: skip
_UNSIGNED = {"lo": "lt", "ls": "le", "hi": "gt", "hs": "ge"}
JOINS: dict[str, Callable[[bool, int], bool]] = {
    "and": lambda t, c: t and bool(c), "or": lambda t, c: t or bool(c), "xor": lambda t, c: t != bool(c),
}  # fmt: skip


def comparisons(name: str, kind: str, test: Callable[[int, int], bool]) -> None:
    """All forms of setp and set with one comparison of scalars; `test` on registers."""
    two = f"{kind} {kind}"
    form(f"setp.{name}.{kind}", "pred", two, lambda a, b: int(test(a, b)))
    pairs = not kind.startswith(("f16", "bf16"))
    for join, joined in JOINS.items():
        form(f"setp.{name}.{join}.{kind}", "pred", f"{two} pred", lambda a, b, c, j=joined: int(j(test(a, b), c)))
        if pairs:
            form(
                f"setp.{name}.{join}.{kind}", "pred pred", f"{two} pred",
                lambda a, b, c, j=joined: (int(j(test(a, b), c)), int(j(not test(a, b), c))),
            )  # fmt: skip
    if pairs:
        form(f"setp.{name}.{kind}", "pred pred", two, lambda a, b: (int(test(a, b)), int(not test(a, b))))
    form(f"set.{name}.u32.{kind}", "u32", two, lambda a, b: -1 if test(a, b) else 0)
    if kind not in ("f16", "bf16"):
        form(f"set.{name}.f32.{kind}", "f32", two, lambda a, b: 0x3F800000 if test(a, b) else 0)


def _comparisons() -> None:
    for kind in TYPES:
        names = dict(zip(_TESTS, _TESTS, strict=True)) | (_UNSIGNED if kind[0] == "u" else {})
        for name, meaning in names.items():
            test = _TESTS[meaning]
            comparisons(name, kind, lambda a, b, t=test, k=kind: t(read(a, k), read(b, k)))
    for bits in (16, 32, 64):
        for name in ("eq", "ne"):
            comparisons(name, f"b{bits}", _TESTS[name])


def _sequences() -> None:
    """Instructions that only mean something together, and moves that take registers apart."""
    for bits in (32, 64):
        kind = f"u{bits}"
        two, four = f"{kind} {kind}", f"{kind} {kind} {kind} {kind}"
        text = f"add.cc.{kind} {{0}}, {{2}}, {{3}}; addc.{kind} {{1}}, {{4}}, {{5}};"
        form(text, two, four, lambda a, b, c, d, w=bits: (a + b, c + d + (a + b >> w)))
        text = f"sub.cc.{kind} {{0}}, {{2}}, {{3}}; subc.{kind} {{1}}, {{4}}, {{5}};"
        form(text, two, four, lambda a, b, c, d: (a - b, c - d - int(a < b)))
        text = f"mad.lo.cc.{kind} {{0}}, {{2}}, {{3}}, {{4}}; madc.hi.{kind} {{1}}, {{2}}, {{3}}, {{5}};"
        form(text, two, four, lambda a, b, c, d, w=bits: _wide_product(w, a, b, c, d))
    for kind, half in (("b64", "b32"), ("b32", "b16")):
        bits = int(half[1:])
        form(f"mov.{kind} {{0}}, {{{{{{1}}, {{2}}}}}};", kind, f"{half} {half}", lambda a, b, w=bits: b << w | a)
        form(f"mov.{kind} {{{{{{0}}, {{1}}}}}}, {{2}};", f"{half} {half}", kind, lambda a, w=bits: (a, a >> w))
        form(f"mov.{kind} {{{{_, {{0}}}}}}, {{1}};", half, kind, lambda a, w=bits: a >> w)
    text = "mov.b64 {0}, {{{1}, {2}, {3}, {4}}};"
    form(text, "b64", "b16 b16 b16 b16", lambda a, b, c, d: a | b << 16 | c << 32 | d << 48)


def _packed() -> None:
    for kind in ("u16", "s16", "u8", "s8", "u4", "s4", "u2", "s2"):
        size = int(kind[1:])
        halves = lambda a, b, k=kind, n=size: (_clamp(a, k) & mask(n)) << n | _clamp(b, k) & mask(n)  # noqa: E731
        if size == 16:
            _of(f"cvt.pack.sat.{kind}.s32", "b32", "s32 s32", halves)
        else:
            meaning = lambda a, b, c, h=halves, n=size: c << 2 * n | h(a, b)  # noqa: E731
            _of(f"cvt.pack.sat.{kind}.s32.b32", "b32", "s32 s32 u32", meaning)


def _wide_product(bits: int, a: int, b: int, c: int, d: int) -> tuple[int, int]:
    low = (a * b & mask(bits)) + c
    return low, (a * b >> bits) + d + (low >> bits)


_arithmetic()
_logic()
_fields()
_comparisons()
_sequences()
_packed()
