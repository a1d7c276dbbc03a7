"""IEEE arithmetic, minima, comparisons and approximations against exact rationals and numpy's float64."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from tests.device.emulator.core.harness import apply
from tests.device.emulator.core.numbers import FORMATS, Format, arithmetic

LANES = 64
QUICK = settings(max_examples=8, deadline=None)


def edges(form: Format) -> list[int]:
    """Zeros, subnormals, ones, halves, largest, infinities, NaNs, and neighbours of powers of two."""
    one = form.encode(1)
    found = [
        0,
        1,
        2,
        (1 << form.mantissa) - 1,
        1 << form.mantissa,
        one - 1,
        one,
        one + 1,
        form.infinity - 1,
        form.infinity,
    ]
    found += [form.infinity + 1, form.nan, form.encode(form.largest / 2), one + (1 << (form.mantissa - 1)), one >> 1]
    return found + [x | form.sign for x in found]


def operands(form: Format, count: int) -> st.SearchStrategy[list[np.ndarray]]:
    """Arrays of bit patterns: edges, anything, and numbers near one (where sums cancel and round)."""
    dtype = np.dtype(f"<u{form.bits // 8}")
    one = form.encode(1)
    spread = 3 << form.mantissa
    element = st.one_of(
        st.sampled_from(edges(form)),
        st.integers(0, 2**form.bits - 1),
        st.integers(one - spread, one + spread),
        st.integers(one - spread, one + spread).map(lambda x: x | form.sign),
    )
    return st.lists(arrays(dtype, LANES, elements=element), min_size=count, max_size=count)


OPERATIONS = [
    (f"{op}.{mode}{ftz}{sat}.f32", "f32")
    for op in ("add", "sub", "mul", "fma")
    for mode in ("rn", "rz", "rm", "rp")
    for ftz, sat in (("", ""), (".ftz", ""), ("", ".sat"), (".ftz", ".sat"))
]
OPERATIONS += [
    (f"{op}.{mode}{ftz}.f32", "f32")
    for op in ("div", "rcp", "sqrt")
    for mode in ("rn", "rz", "rm", "rp")
    for ftz in ("", ".ftz")
]
OPERATIONS += [
    (f"{op}.{mode}.f64", "f64")
    for op in ("add", "sub", "mul", "fma", "div", "rcp", "sqrt")
    for mode in ("rn", "rz", "rm", "rp")
]
OPERATIONS += [(f"{op}.rn.f16", "f16") for op in ("add", "sub", "mul", "fma")]
OPERATIONS += [(f"{op}.rn.ftz.sat.f16", "f16") for op in ("add", "sub", "mul", "fma")]
OPERATIONS += [(f"{op}.rn.bf16", "bf16") for op in ("add", "sub", "mul", "fma")]


@pytest.mark.parametrize(("opcode", "kind"), OPERATIONS)
def test_arithmetic_rounds_once(opcode: str, kind: str) -> None:
    form = FORMATS[kind]
    parts = opcode.split(".")
    op, mode, ftz, sat = parts[0], parts[1], "ftz" in parts, "sat" in parts
    count = {"fma": 3, "rcp": 1, "sqrt": 1}.get(op, 2)
    body = f"{opcode} %d, {', '.join('%' + n for n in 'abc'[:count])};"

    @QUICK
    @given(operands(form, count))
    def check(sources: list[np.ndarray]) -> None:
        got = apply(body, kind, [kind] * count, *sources)
        want = [arithmetic(op, form, mode, ftz, sat, *map(int, lane)) for lane in zip(*sources, strict=True)]
        np.testing.assert_array_equal(got, np.array(want, got.dtype), err_msg=str(sources))

    check()


def test_a_fused_sum_that_breaks_a_tie_far_below_the_double_s_precision() -> None:
    """1 + 2^-8 lies midway between two bfloat16 numbers; an addend of 2^-70 decides."""
    a, b, c = (np.full(32, FORMATS["bf16"].encode(v), "<u2") for v in (1 + 2**-4, 1 + 2**-4, 2**-70))
    exact = arithmetic("fma", FORMATS["bf16"], "rn", False, False, int(a[0]), int(b[0]), int(c[0]))
    assert apply("fma.rn.bf16 %d, %a, %b, %c;", "bf16", ["bf16"] * 3, a, b, c)[0] == exact
    assert exact != arithmetic("mul", FORMATS["bf16"], "rn", False, False, int(a[0]), int(b[0]))


@pytest.mark.parametrize(
    ("opcode", "kind"), [("fma.rn.f16x2", "f16"), ("add.rn.bf16x2", "bf16"), ("mul.rn.f16x2", "f16")]
)
@QUICK
@given(data=st.data())
def test_packed_halves_are_two_scalars(opcode: str, kind: str, data: st.DataObject) -> None:
    op = opcode.split(".")[0]
    count = 3 if op == "fma" else 2
    low, high = data.draw(operands(FORMATS[kind], count)), data.draw(operands(FORMATS[kind], count))
    packed = [(lo.astype("<u4") | (hi.astype("<u4") << 16)) for lo, hi in zip(low, high, strict=True)]
    body = f"{opcode} %d, {', '.join('%' + n for n in 'abc'[:count])};"
    got = apply(body, "b32", ["b32"] * count, *packed)
    for half, sources in ((got & 0xFFFF, low), (got >> 16, high)):
        want = [
            arithmetic(op, FORMATS[kind], "rn", False, False, *map(int, lane)) for lane in zip(*sources, strict=True)
        ]
        np.testing.assert_array_equal(half, want)


@pytest.mark.parametrize(
    "opcode", ["fma.rn.f32x2", "fma.rz.ftz.f32x2", "add.f32x2", "sub.rm.f32x2", "mul.rp.ftz.f32x2"]
)
@QUICK
@given(data=st.data())
def test_pairs_of_single_precision_are_two_scalars(opcode: str, data: st.DataObject) -> None:
    """PTX ISA 9.7.3.3 to 9.7.3.6: each half of a 64-bit register by itself."""
    op, *modifiers = opcode.split(".")
    mode = next((word for word in modifiers if word in ("rn", "rz", "rm", "rp")), "rn")
    count, ftz = 3 if op == "fma" else 2, "ftz" in modifiers
    low, high = data.draw(operands(FORMATS["f32"], count)), data.draw(operands(FORMATS["f32"], count))
    packed = [lo.astype("<u8") | (hi.astype("<u8") << np.uint64(32)) for lo, hi in zip(low, high, strict=True)]
    got = apply(f"{opcode} %d, {', '.join('%' + n for n in 'abc'[:count])};", "b64", ["b64"] * count, *packed)
    for half, sources in ((got & np.uint64(0xFFFFFFFF), low), (got >> np.uint64(32), high)):
        lanes = zip(*sources, strict=True)
        want = [arithmetic(op, FORMATS["f32"], mode, ftz, False, *map(int, lane)) for lane in lanes]
        np.testing.assert_array_equal(half, want)


def extreme(form: Format, larger: bool, propagate: bool, a: int, b: int) -> int:
    if form.is_nan(a) or form.is_nan(b):
        if propagate or (form.is_nan(a) and form.is_nan(b)):
            return form.nan
        return b if form.is_nan(a) else a
    x, y = form.value(a), form.value(b)
    if x == y == 0:
        return (a & b) if larger else (a | b)
    return a if (x > y if larger else x < y) else b


@pytest.mark.parametrize(
    ("kind", "nan"),  # PTX has no .NaN for f64
    [("f64", ""), *((kind, nan) for kind in ("f32", "f16", "bf16") for nan in ("", ".NaN"))],
)
@pytest.mark.parametrize("op", ["min", "max"])
def test_minimum_and_maximum(kind: str, op: str, nan: str) -> None:
    form = FORMATS[kind]

    @QUICK
    @given(operands(form, 2))
    def check(sources: list[np.ndarray]) -> None:
        got = apply(f"{op}{nan}.{kind} %d, %a, %b;", kind, [kind, kind], *sources)
        want = [extreme(form, op == "max", bool(nan), int(a), int(b)) for a, b in zip(*sources, strict=True)]
        np.testing.assert_array_equal(got, np.array(want, got.dtype))

    check()


def test_minimum_of_magnitudes_with_the_product_s_sign() -> None:
    a, b = (np.array(v, "<f4").repeat(32)[:32] for v in ([-3.0], [2.0]))
    got = apply("min.xorsign.abs.f32 %d, %a, %b;", "f32", ["f32", "f32"], a, b)
    assert got.view("<f4")[0] == -2.0


ORDERED: dict[str, Callable[[float, float], bool]] = {
    "eq": lambda a, b: a == b,
    "ne": lambda a, b: a != b and a == a and b == b,
    "lt": lambda a, b: a < b,
    "le": lambda a, b: a <= b,
    "gt": lambda a, b: a > b,
    "ge": lambda a, b: a >= b,
    "num": lambda a, b: a == a and b == b,
    "nan": lambda a, b: a != a or b != b,
}
UNORDERED = {
    f"{n}u": (lambda a, b, f=f: a != a or b != b or f(a, b)) for n, f in ORDERED.items() if n not in ("num", "nan")
}
COMPARISONS = ORDERED | UNORDERED


@pytest.mark.parametrize("kind", ["f32", "f64", "f16", "bf16"])
@pytest.mark.parametrize("name", COMPARISONS)
def test_comparisons(kind: str, name: str) -> None:
    form = FORMATS[kind]

    @QUICK
    @given(operands(form, 2))
    def check(sources: list[np.ndarray]) -> None:
        body = f"setp.{name}.{kind} %q, %a, %b; selp.b32 %d, 1, 0, %q;"
        got = apply(body, "u32", [kind, kind], *sources)
        want = [COMPARISONS[name](form.value(int(a)), form.value(int(b))) for a, b in zip(*sources, strict=True)]
        np.testing.assert_array_equal(got, want)

    check()


def test_comparison_flushes_subnormals_only_with_ftz() -> None:
    tiny, zero = np.full(32, 5, "<u4"), np.zeros(32, "<u4")
    for ftz, want in (("", 1), (".ftz", 0)):
        body = f"setp.gt{ftz}.f32 %q, %a, %b; selp.b32 %d, 1, 0, %q;"
        assert apply(body, "u32", ["f32", "f32"], tiny, zero)[0] == want


def test_set_gives_ones_or_one() -> None:
    a, b = np.float32([1, 2] * 16), np.float32([2, 1] * 16)
    assert apply("set.lt.u32.f32 %d, %a, %b;", "u32", ["f32", "f32"], a, b).tolist()[:2] == [0xFFFFFFFF, 0]
    assert apply("set.lt.f32.f32 %d, %a, %b;", "f32", ["f32", "f32"], a, b).view("<f4").tolist()[:2] == [1.0, 0.0]


def test_set_of_a_pair_gives_an_integer_half_for_each() -> None:
    measured = [  # a, b, a == b as f16x2 on an H200
        (0x003F00FF, 0x010000FF, 0x0000FFFF),
        (0x00100400, 0x001000FF, 0xFFFF0000),
        (0x00000000, 0x80007800, 0xFFFF0000),
        (0xBC007FFF, 0xFF807E00, 0x00000000),
    ]
    a, b, want = (np.array(column * 8, "<u4") for column in zip(*measured, strict=True))
    np.testing.assert_array_equal(apply("set.eq.u32.f16x2 %d, %a, %b;", "u32", ["f16x2", "f16x2"], a, b), want)
    both = np.full(32, 0x3F803F80, "<u4")
    for kind in ("f16x2", "bf16x2"):
        assert apply(f"set.ge.s32.{kind} %d, %a, %b;", "s32", [kind, kind], both, both)[0] == 0xFFFFFFFF
    halves = np.full(32, 0x3C00, "<u2")
    assert apply("set.eq.u32.f16 %d, %a, %b;", "u32", ["f16", "f16"], halves, halves)[0] == 0xFFFFFFFF


APPROXIMATIONS = {
    "ex2.approx.f32": (np.exp2, -140, 140),
    "lg2.approx.f32": (np.log2, 1e-30, 1e30),
    "rcp.approx.f32": (np.reciprocal, 1e-30, 1e30),
    "sqrt.approx.f32": (np.sqrt, 0, 1e30),
    "rsqrt.approx.f32": (lambda x: 1 / np.sqrt(x), 1e-30, 1e30),
    "sin.approx.f32": (np.sin, -3, 3),
    "cos.approx.f32": (np.cos, -3, 3),
    "tanh.approx.f32": (np.tanh, -8, 8),
}


@pytest.mark.parametrize("opcode", APPROXIMATIONS)
def test_approximations_are_the_nearest_float(opcode: str) -> None:
    function, low, high = APPROXIMATIONS[opcode]

    @QUICK
    @given(arrays("<f4", LANES, elements=st.floats(np.float32(low), np.float32(high), width=32)))
    def check(source: np.ndarray) -> None:
        got = apply(f"{opcode} %d, %a;", "f32", ["f32"], source).view("<f4")
        with np.errstate(all="ignore"):
            want = function(source.astype(np.float64)).astype(np.float32)
        np.testing.assert_allclose(got, want, rtol=2**-23, atol=1e-45)

    check()


def test_approximations_at_the_edges() -> None:
    def at(opcode: str, value: float) -> float:
        return float(apply(f"{opcode} %d, %a;", "f32", ["f32"], np.full(32, value, "<f4")).view("<f4")[0])

    assert at("rcp.approx.ftz.f32", 0.0) == np.inf
    assert at("rsqrt.approx.f32", np.inf) == 0.0
    assert np.isnan(at("lg2.approx.f32", -1.0))
    assert at("lg2.approx.f32", 0.0) == -np.inf
    assert at("ex2.approx.ftz.f32", -np.inf) == 0.0
    assert at("ex2.approx.f32", -140.0) == 2.0**-140
    assert at("ex2.approx.ftz.f32", -140.0) == 0.0


def test_signs_and_properties() -> None:
    bits = np.array([0x80000000, 0x7FC00001, 0x3F800000, 0xFF800000] * 8, "<u4")
    assert apply("neg.f32 %d, %a;", "f32", ["f32"], bits).tolist()[:4] == [0, 0xFFC00001, 0xBF800000, 0x7F800000]
    assert apply("abs.f32 %d, %a;", "f32", ["f32"], bits).tolist()[:4] == [0, 0x7FC00001, 0x3F800000, 0x7F800000]
    for name, want in {
        "finite": [1, 0, 1, 0],
        "notanumber": [0, 1, 0, 0],
        "infinite": [0, 0, 0, 1],
        "normal": [1, 0, 1, 0],
        "subnormal": [0, 0, 0, 0],
    }.items():
        got = apply(f"testp.{name}.f32 %q, %a; selp.b32 %d, 1, 0, %q;", "u32", ["f32"], bits)
        assert got.tolist()[:4] == want, name
    ones = np.full(32, 0x3F800000, "<u4")
    assert apply("copysign.f32 %d, %a, %b;", "f32", ["f32", "f32"], bits, ones).tolist()[:2] == [0xBF800000, 0x3F800000]
