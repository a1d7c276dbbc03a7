"""Integer arithmetic, bit fields, logic and moves against Python integers; `check` asserts for most tests."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from tests.device.emulator.core.harness import apply, bits_of

LANES = 64
QUICK = settings(max_examples=8, deadline=None)
Op = Callable[..., int]


def signed(value: int, bits: int) -> int:
    value &= (1 << bits) - 1
    return value - (1 << bits) if value >> (bits - 1) else value


def read(value: int, kind: str) -> int:
    return signed(value, bits_of(kind)) if kind[0] == "s" else value


def words(kind: str) -> st.SearchStrategy[np.ndarray]:
    bits = bits_of(kind)
    top = (1 << bits) - 1
    special = [0, 1, 2, 3, top, top - 1, top >> 1, (top >> 1) + 1, bits - 1, bits, bits + 1, 255, 256]
    element = st.one_of(st.sampled_from([x & top for x in special]), st.integers(0, top), st.integers(0, 70))
    return arrays(np.dtype(f"<u{bits // 8}"), LANES, elements=element)


def check(body: str, result: str, sources: Sequence[str], reference: Op) -> None:
    """Compare `body` with `reference`, which gets the operands as the sources' types say."""

    @QUICK
    @given(st.tuples(*map(words, sources)))
    def compare(operands: tuple[np.ndarray, ...]) -> None:
        got = apply(body, result, sources, *operands)
        top = (1 << bits_of(result)) - 1
        want = [
            reference(*(read(int(x), kind) for x, kind in zip(lane, sources, strict=True))) & top
            for lane in zip(*operands, strict=True)
        ]
        np.testing.assert_array_equal(got, np.array(want, got.dtype), err_msg=repr(operands))

    compare()


def divide(a: int, b: int) -> int:
    return -1 if b == 0 else (abs(a) // abs(b)) * (1 if (a < 0) == (b < 0) else -1)


def remainder(a: int, b: int) -> int:
    return -1 if b == 0 else a - b * divide(a, b)  # by zero: as an H200


TYPES = ("u16", "s16", "u32", "s32", "u64", "s64")
BINARY: dict[str, Op] = {
    "add": lambda a, b: a + b,
    "sub": lambda a, b: a - b,
    "mul.lo": lambda a, b: a * b,
    "div": divide,
    "rem": remainder,
    "min": min,
    "max": max,
}


@pytest.mark.parametrize("kind", TYPES)
@pytest.mark.parametrize("op", BINARY)
def test_binary(op: str, kind: str) -> None:
    check(f"{op}.{kind} %d, %a, %b;", kind, [kind, kind], BINARY[op])


@pytest.mark.parametrize("kind", TYPES)
def test_high_products(kind: str) -> None:
    bits = bits_of(kind)
    check(f"mul.hi.{kind} %d, %a, %b;", kind, [kind] * 2, lambda a, b: (a * b) >> bits)
    check(f"mad.hi.{kind} %d, %a, %b, %c;", kind, [kind] * 3, lambda a, b, c: ((a * b) >> bits) + c)
    check(f"mad.lo.{kind} %d, %a, %b, %c;", kind, [kind] * 3, lambda a, b, c: a * b + c)


@pytest.mark.parametrize(("kind", "wide"), [("u16", "u32"), ("s16", "s32"), ("u32", "u64"), ("s32", "s64")])
def test_wide_products(kind: str, wide: str) -> None:
    check(f"mul.wide.{kind} %d, %a, %b;", wide, [kind] * 2, lambda a, b: a * b)
    check(f"mad.wide.{kind} %d, %a, %b, %c;", wide, [kind, kind, wide], lambda a, b, c: a * b + c)


@pytest.mark.parametrize("kind", ["u32", "s32"])
def test_products_of_24_bits(kind: str) -> None:
    def low24(x: int) -> int:
        return signed(x, 24) if kind == "s32" else x & 0xFFFFFF

    check(f"mul24.lo.{kind} %d, %a, %b;", kind, [kind] * 2, lambda a, b: low24(a) * low24(b))
    check(f"mul24.hi.{kind} %d, %a, %b;", kind, [kind] * 2, lambda a, b: low24(a) * low24(b) >> 16)
    check(f"mad24.lo.{kind} %d, %a, %b, %c;", kind, [kind] * 3, lambda a, b, c: low24(a) * low24(b) + c)


def clamp32(x: int) -> int:
    return max(-(2**31), min(2**31 - 1, x))


def test_saturating_sums() -> None:
    check("add.sat.s32 %d, %a, %b;", "s32", ["s32"] * 2, lambda a, b: clamp32(a + b))
    check("sub.sat.s32 %d, %a, %b;", "s32", ["s32"] * 2, lambda a, b: clamp32(a - b))


@pytest.mark.parametrize("kind", ["s16", "s32", "s64"])
def test_signs(kind: str) -> None:
    check(f"abs.{kind} %d, %a;", kind, [kind], abs)
    check(f"neg.{kind} %d, %a;", kind, [kind], lambda a: -a)


@pytest.mark.parametrize("kind", TYPES)
def test_sum_of_absolute_differences(kind: str) -> None:
    check(f"sad.{kind} %d, %a, %b, %c;", kind, [kind] * 3, lambda a, b, c: c + abs(a - b))


def test_carry_chain_adds_128_bits() -> None:
    body = "add.cc.u32 %t0, %a, %b; addc.cc.u32 %t1, %a, %a; addc.u32 %d, %b, 0;"

    def chain(a: int, b: int) -> int:
        first = a + b
        second = a + a + (first >> 32)
        return b + (second >> 32)

    check(body, "u32", ["u32"] * 2, chain)
    check("sub.cc.u32 %t0, %a, %b; subc.u32 %d, %b, %a;", "u32", ["u32"] * 2, lambda a, b: b - a - (a < b))
    check("add.cc.u64 %d, %a, %b; addc.u64 %d, %a, 0;", "u64", ["u64"] * 2, lambda a, b: a + (a + b >> 64))
    check("mad.lo.cc.u32 %t0, %a, %b, %a; madc.hi.u32 %d, %a, %b, 7;", "u32", ["u32"] * 2,
          lambda a, b: (a * b >> 32) + 7 + ((a * b & 0xFFFFFFFF) + a >> 32))  # fmt: skip


@pytest.mark.parametrize("bits", [16, 32, 64])
def test_logic(bits: int) -> None:
    kind, b = f"u{bits}", f"b{bits}"
    check(f"and.{b} %d, %a, %b;", kind, [kind] * 2, lambda x, y: x & y)
    check(f"or.{b} %d, %a, %b;", kind, [kind] * 2, lambda x, y: x | y)
    check(f"xor.{b} %d, %a, %b;", kind, [kind] * 2, lambda x, y: x ^ y)
    check(f"not.{b} %d, %a;", kind, [kind], lambda x: ~x)
    check(f"cnot.{b} %d, %a;", kind, [kind], lambda x: int(x == 0))


@pytest.mark.parametrize("kind", TYPES)
def test_shifts_clamp(kind: str) -> None:
    bits = bits_of(kind)
    check(f"shr.{kind} %d, %a, %b;", kind, [kind, "u32"], lambda a, n: a >> min(n, bits))
    if kind[0] == "u":
        check(f"shl.b{bits} %d, %a, %b;", kind, [kind, "u32"], lambda a, n: a << n if n < bits else 0)


def test_funnel_shifts() -> None:
    check("shf.l.wrap.b32 %d, %a, %b, %c;", "u32", ["u32"] * 3, lambda a, b, c: ((b << 32 | a) << (c & 31)) >> 32)
    check("shf.l.clamp.b32 %d, %a, %b, %c;", "u32", ["u32"] * 3, lambda a, b, c: ((b << 32 | a) << min(c, 32)) >> 32)
    check("shf.r.wrap.b32 %d, %a, %b, %c;", "u32", ["u32"] * 3, lambda a, b, c: (b << 32 | a) >> (c & 31))
    check("shf.r.clamp.b32 %d, %a, %b, %c;", "u32", ["u32"] * 3, lambda a, b, c: (b << 32 | a) >> min(c, 32))


@pytest.mark.parametrize("kind", ["u32", "s32", "u64", "s64"])
def test_bit_fields(kind: str) -> None:
    bits = bits_of(kind)

    def number(operand: int) -> int:  # as an H200, see below
        return operand & 255 if bits == 32 else min(operand, 64)

    def extract(a: int, position: int, length: int) -> int:
        position, length, msb = number(position), number(length), bits - 1
        value = a & (1 << bits) - 1
        sign = 0 if kind[0] == "u" or length == 0 else value >> min(position + length - 1, msb) & 1
        return sum(
            (value >> position + i & 1 if i < length and position + i <= msb else sign) << i for i in range(bits)
        )

    def insert(a: int, b: int, position: int, length: int) -> int:
        position, length = number(position), number(length)
        for i in range(length):
            if position + i < bits:
                b = b & ~(1 << position + i) | (a >> i & 1) << position + i
        return b

    check(f"bfe.{kind} %d, %a, %b, %c;", kind, [kind, "u32", "u32"], extract)
    if kind[0] == "u":
        check(f"bfi.b{bits} %d, %a, %b, %c, %e;", kind, [kind, kind, "u32", "u32"], insert)


EXTRACTED = [  # a, start, length, result: measured on an H200
    (0xEDFC32BBB27AD32F, 0x95198C0A, 0xB78EA5F3, 0xFFFFFFFFFFFFFFFF),  # all are sign bits, not bits 10 up
    (0x57FC66113C91ED80, 0x5EFE0A00, 0x81DD378A, 0x0),
    (0xD48214C6BDDCA8CB, 0x5C7C3FAA, 0x22F40E00, 0xFFFFFFFFFFFFFFFF),  # a length of 0x22F40E00, not of 0
    (0xBFF0000000000000, 0x80, 0x21, 0xFFFFFFFFFFFFFFFF),
    (0x000FFFFFFFFFFFFF, 0xF, 0x80, 0x1FFFFFFFFF),
]
INSERTED = [  # a, b, start, length, result: measured on an H200
    (0x8, 0xFF, 0x21, 0x100, 0x10000000FF),  # a length of 256, not of 0
    (0x7FF0000000000000, 0x80, 0x8, 0x100, 0xF000000000000080),
    (0x5AF4CF0E7311F073, 0x477C2A2A0B6FBCE3, 0xBFA4390B, 0x2992D154, 0x477C2A2A0B6FBCE3),  # behind the end, not at 11
    (0x7FFFFFFFFFFFFFFF, 0x1, 0x21, 0x40, 0xFFFFFFFE00000001),
    (0x7FF8000000000000, 0xFF, 0x80, 0x8, 0xFF),
]


def test_bit_fields_of_64_bits_do_not_wrap_at_256() -> None:
    a, start, length, want = (np.array(column * 32, "<u8") for column in zip(*EXTRACTED, strict=True))
    got = apply("bfe.s64 %d, %a, %b, %c;", "s64", ["s64", "u32", "u32"], a, start.astype("<u4"), length.astype("<u4"))
    np.testing.assert_array_equal(got, want)
    a, b, start, length, want = (np.array(column * 32, "<u8") for column in zip(*INSERTED, strict=True))
    body = "bfi.b64 %d, %a, %b, %c, %e;"
    got = apply(body, "u64", ["u64", "u64", "u32", "u32"], a, b, start.astype("<u4"), length.astype("<u4"))
    np.testing.assert_array_equal(got, want)


def test_bit_fields_of_32_bits_wrap_at_256() -> None:
    ones, start, length = np.full(32, 0xFFFFFFFF, "<u4"), np.full(32, 0x104, "<u4"), np.full(32, 0x108, "<u4")
    assert set(apply("bfe.u32 %d, %a, %b, %c;", "u32", ["u32"] * 3, ones, start, length).tolist()) == {0xFF}
    zeros = np.zeros(32, "<u4")
    assert set(apply("bfi.b32 %d, %a, %b, %c, %e;", "u32", ["u32"] * 4, ones, zeros, start, length).tolist()) == {0xFF0}


@pytest.mark.parametrize("kind", ["u32", "s32", "u64", "s64"])
def test_bit_searches(kind: str) -> None:
    bits = bits_of(kind)

    def find(a: int, shift: bool) -> int:
        value = ~a if a < 0 else a
        at = value.bit_length() - 1
        return -1 if at < 0 else bits - 1 - at if shift else at

    check(f"bfind.{kind} %d, %a;", "u32", [kind], lambda a: find(a, False))
    check(f"bfind.shiftamt.{kind} %d, %a;", "u32", [kind], lambda a: find(a, True))
    if kind[0] == "u":
        check(f"clz.b{bits} %d, %a;", "u32", [kind], lambda a: bits - a.bit_length())
        check(f"popc.b{bits} %d, %a;", "u32", [kind], int.bit_count)
        check(f"brev.b{bits} %d, %a;", kind, [kind], lambda a: int(f"{a:0{bits}b}"[::-1], 2))


def test_find_nth_set() -> None:
    def find(mask: int, base: int, offset: int) -> int:
        if offset == 0:
            return base if base < 32 and mask >> base & 1 else -1
        position, count, step = base, abs(offset) - 1, 1 if offset > 0 else -1
        while 0 <= position < 32:
            if mask >> position & 1:
                if count == 0:
                    return position
                count -= 1
            position += step
        return -1

    body = "and.b32 %t0, %b, 31; bfe.s32 %t1, %c, 0, 5; fns.b32 %d, %a, %t0, %t1;"
    check(body, "u32", ["u32", "u32", "u32"], lambda a, b, c: find(a, b & 31, signed(c, 5)))


def test_masks_and_sign_extension() -> None:
    def clamped(a: int, b: int) -> int:
        return sum(1 << i for i in range(32) if a <= i < a + b)

    check("bmsk.clamp.b32 %d, %a, %b;", "u32", ["u32"] * 2, clamped)
    check("bmsk.wrap.b32 %d, %a, %b;", "u32", ["u32"] * 2, lambda a, b: clamped(a & 31, b & 31))
    check("szext.clamp.u32 %d, %a, %b;", "u32", ["u32"] * 2, lambda a, b: a if b >= 32 else a & (1 << b) - 1)
    check("szext.clamp.s32 %d, %a, %b;", "s32", ["u32"] * 2, lambda a, b: a if b >= 32 else signed(a, b) if b else 0)
    check("szext.wrap.s32 %d, %a, %b;", "s32", ["u32"] * 2, lambda a, b: signed(a, b & 31) if b & 31 else 0)


def test_permute() -> None:
    def generic(a: int, b: int, c: int) -> int:
        source = (b << 32 | a).to_bytes(8, "little")
        out = 0
        for i in range(4):
            nibble = c >> 4 * i & 15
            byte = source[nibble & 7]
            out |= (0xFF * (byte >> 7) if nibble & 8 else byte) << 8 * i
        return out

    check("prmt.b32 %d, %a, %b, %c;", "u32", ["u32"] * 3, generic)
    tables = {
        "f4e": ["3210", "4321", "5432", "6543"], "b4e": ["5670", "6701", "7012", "0123"],
        "rc8": ["0000", "1111", "2222", "3333"], "ecl": ["3210", "3211", "3222", "3333"],
        "ecr": ["0000", "1110", "2210", "3210"], "rc16": ["1010", "3232", "1010", "3232"],
    }  # fmt: skip
    for mode, table in tables.items():
        check(
            f"prmt.b32.{mode} %d, %a, %b, %c;",
            "u32",
            ["u32"] * 3,
            lambda a, b, c, t=table: generic(a, b, int(t[c & 3], 16)),
        )


@pytest.mark.parametrize("table", [0x00, 0xFF, 0xE8, 0x96, 0x1B, 0xCA])
def test_three_input_logic(table: int) -> None:
    def look_up(a: int, b: int, c: int) -> int:
        return sum((table >> ((a >> i & 1) << 2 | (b >> i & 1) << 1 | c >> i & 1) & 1) << i for i in range(32))

    check(f"lop3.b32 %d, %a, %b, %c, {table};", "u32", ["u32"] * 3, look_up)


@pytest.mark.parametrize(("a_type", "b_type"), [("u32", "u32"), ("s32", "u32"), ("u32", "s32"), ("s32", "s32")])
def test_dot_products(a_type: str, b_type: str) -> None:
    def part(x: int, i: int, bits: int, kind: str) -> int:
        value = x >> i * bits & (1 << bits) - 1
        return signed(value, bits) if kind == "s32" else value

    def dot4(a: int, b: int, c: int) -> int:
        return c + sum(part(a, i, 8, a_type) * part(b, i, 8, b_type) for i in range(4))

    def dot2(a: int, b: int, c: int, upper: int) -> int:
        return c + sum(part(a, i, 16, a_type) * part(b, upper + i, 8, b_type) for i in range(2))

    check(f"dp4a.{a_type}.{b_type} %d, %a, %b, %c;", "u32", ["u32"] * 3, dot4)
    check(f"dp2a.lo.{a_type}.{b_type} %d, %a, %b, %c;", "u32", ["u32"] * 3, lambda a, b, c: dot2(a, b, c, 0))
    check(f"dp2a.hi.{a_type}.{b_type} %d, %a, %b, %c;", "u32", ["u32"] * 3, lambda a, b, c: dot2(a, b, c, 2))


COMPARE: dict[str, Callable[[int, int], bool]] = {
    "eq": lambda a, b: a == b, "ne": lambda a, b: a != b, "lt": lambda a, b: a < b,
    "le": lambda a, b: a <= b, "gt": lambda a, b: a > b, "ge": lambda a, b: a >= b,
}  # fmt: skip


@pytest.mark.parametrize("kind", TYPES)
@pytest.mark.parametrize("name", COMPARE)
def test_comparisons(name: str, kind: str) -> None:
    check(
        f"setp.{name}.{kind} %q, %a, %b; selp.b32 %d, 1, 0, %q;",
        "u32",
        [kind] * 2,
        lambda a, b: int(COMPARE[name](a, b)),
    )


def test_comparisons_combine_with_a_predicate() -> None:
    for op, join in {"and": lambda p, q: p and q, "or": lambda p, q: p or q, "xor": lambda p, q: p != q}.items():
        body = f"""
          setp.gt.u32 %q, %c, 40; setp.lt.{op}.u32 %q|%q2, %a, %b, %q;
          selp.b32 %t0, 1, 0, %q; selp.b32 %d, 2, 0, %q2; or.b32 %d, %d, %t0;
        """

        def both(a: int, b: int, c: int, join: Callable[[bool, bool], bool] = join) -> int:
            return int(join(a < b, c > 40)) + 2 * int(join(a >= b, c > 40))

        check(body, "u32", ["u32"] * 3, both)


def test_selections() -> None:
    check("slct.u32.s32 %d, %a, %b, %c;", "u32", ["u32", "u32", "s32"], lambda a, b, c: a if c >= 0 else b)
    check("setp.ne.u64 %q, %a, %b; selp.b64 %d, %a, %b, %q;", "u64", ["u64"] * 2, lambda a, b: a if a != b else b)
    check(
        "setp.lt.u32 %q, %a, %b; not.pred %q, %q; selp.b32 %d, 1, 0, %q;", "u32", ["u32"] * 2, lambda a, b: int(a >= b)
    )


def test_packing() -> None:
    check("mov.b64 %d, {%a, %b};", "u64", ["u32", "u32"], lambda a, b: b << 32 | a)
    check("mov.b32 %d, {%a, %b};", "u32", ["u16", "u16"], lambda a, b: b << 16 | a)
    check("mov.b64 {%t0, %t1}, %a; xor.b32 %d, %t0, %t1;", "u32", ["u64"], lambda a: a >> 32 ^ a & 0xFFFFFFFF)
    check("mov.b64 {_, %d}, %a;", "u32", ["u64"], lambda a: a >> 32)
    check("mov.b32 {%u0, %u1}, %a; cvt.u32.u16 %d, %u1;", "u32", ["u32"], lambda a: a >> 16)
