# ruff: noqa: E501  (PTX text is not broken where a reader would not break it)
"""mma.sync of bytes, nibbles, bits and doubles, and wmma, against matrix products of numpy.

Places of elements are written here as the ISA's sections 9.7.14.5.2 to .13 give them, one formula per shape.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from numpy.typing import NDArray

from ptxgym.device.emulator.core import Outcome
from tests.device.emulator.core.harness import kernel, run

Place = Callable[[int, int, int], tuple[int, int]]
"""(group, member, element) → row and column of A; column of B is its row here, so that both read [row][k]."""


def a_place(shape: str, bits: int) -> Place:
    per = 32 // bits if bits < 64 else 1

    def place(group: int, member: int, i: int) -> tuple[int, int]:
        if shape.startswith("m8"):
            return group, member * per + i
        if bits == 64:
            return group + 8 * (i % 2), i // 2 * 4 + member
        upper = i // per % 2
        return group + 8 * upper, member * per + i % per + (4 * per if i >= 2 * per else 0)

    return place


def b_place(bits: int) -> Place:
    per = 32 // bits if bits < 64 else 1
    return lambda group, member, i: (group, member * per + i % per + 4 * per * (i // per))


def pack(matrix: NDArray[np.uint8], place: Place, count: int, bits: int) -> NDArray[np.uint32]:
    """Registers [32, registers] of a matrix of small unsigned codes."""
    per = 32 // bits
    words = np.zeros((32, count // per), np.uint32)
    for lane in range(32):
        for i in range(count):
            row, k = place(lane // 4, lane % 4, i)
            words[lane, i // per] |= np.uint32(int(matrix[row, k]) << (bits * (i % per)))
    return words


def extents(shape: str) -> tuple[int, int, int]:
    m, rest = shape[1:].split("n")
    n, k = rest.split("k")
    return int(m), int(n), int(k)


def product(
    form: str, registers: tuple[int, int, int, int], words: NDArray[np.uint32], kind: str = "b32"
) -> NDArray[np.uint32]:
    """Run one mma.sync over 32-bit (or 64-bit) registers [32, A, B, C]; returns D [32, …]."""
    na, nb, nc, nd = registers
    size = 4 if kind == "b32" else 8
    load = "".join(f"ld.global.{kind} %x{i}, [%rd10+{size * i}];\n" for i in range(na + nb + nc))
    store = "".join(f"st.global.{kind} [%rd11+{size * i}], %y{i};\n" for i in range(nd))

    def names(prefix: str, first: int, count: int) -> str:
        return "{" + ", ".join(f"%{prefix}{i}" for i in range(first, first + count)) + "}"

    body = f"""
      .reg .{kind} %x<32>; .reg .{kind} %y<8>;
      mul.wide.u32 %rd9, %r0, {size * (na + nb + nc)}; add.s64 %rd10, %rd1, %rd9; mul.wide.u32 %rd9, %r0, {size * nd}; add.s64 %rd11, %rd0, %rd9;
      {load} {form} {names("y", 0, nd)}, {names("x", 0, na)}, {names("x", na, nb)}, {names("x", na + nb, nc)}; {store}
    """
    done = run(kernel(body), {"out": np.zeros(32 * nd * size // 4, "<u4"), "in": words}, inputs=["in"])
    assert done.launch.outcome == Outcome.OK and not done.codes
    return done.words().reshape(32, -1)


def accumulators(rows: int, values: NDArray[np.generic]) -> NDArray[np.generic]:
    """C [rows, 8] as registers [32, rows / 4]."""
    lanes = np.arange(32)
    return np.stack([values[lanes // 4 + 8 * (i // 2), lanes % 4 * 2 + i % 2] for i in range(rows // 4)], axis=1)


def codes_of(rng: np.random.Generator, shape: tuple[int, int], bits: int) -> NDArray[np.uint8]:
    return rng.integers(0, 1 << bits, shape).astype(np.uint8)


def signed(codes: NDArray[np.uint8], bits: int, kind: str) -> NDArray[np.int64]:
    values = codes.astype(np.int64)
    return np.where(values >> (bits - 1) & 1, values - (1 << bits), values) if kind.startswith("s") else values


@pytest.mark.parametrize("saturate", ["", ".satfinite"])
@pytest.mark.parametrize(("kinds", "shape"), [
    (("u4", "s4"), "m8n8k32"), (("s4", "u4"), "m16n8k32"), (("s4", "s4"), "m16n8k64"), (("u4", "u4"), "m16n8k64"),
    (("u8", "s8"), "m16n8k32"),
])  # fmt: skip
def test_integers(kinds: tuple[str, str], shape: str, saturate: str) -> None:
    m, n, k = extents(shape)
    bits = int(kinds[0][1:])
    rng = np.random.default_rng(k + len(saturate))
    a, b = codes_of(rng, (m, k), bits), codes_of(rng, (n, k), bits)
    c = rng.integers(2**31 - 3000, 2**31, (m, n)).astype(np.int64)
    words = np.concatenate([
        pack(a, a_place(shape, bits), m * k // 32, bits), pack(b, b_place(bits), n * k // 32, bits),
        accumulators(m, c).astype(np.uint32),
    ], axis=1)  # fmt: skip
    form = f"mma.sync.aligned.{shape}.row.col{saturate}.s32.{kinds[0]}.{kinds[1]}.s32"
    got = product(form, (m * k * bits // 1024, n * k * bits // 1024, m // 4, m // 4), words)
    want = c + signed(a, bits, kinds[0]) @ signed(b, bits, kinds[1]).T
    want = np.clip(want, -(2**31), 2**31 - 1) if saturate else want
    np.testing.assert_array_equal(got, accumulators(m, want & 0xFFFFFFFF).astype(np.uint32))


@pytest.mark.parametrize("shape", ["m8n8k128", "m16n8k128", "m16n8k256"])
@pytest.mark.parametrize("how", ["and", "xor"])
def test_bits(shape: str, how: str) -> None:
    m, n, k = extents(shape)
    rng = np.random.default_rng(k)
    a, b = codes_of(rng, (m, k), 1), codes_of(rng, (n, k), 1)
    c = rng.integers(-1000, 1000, (m, n))
    words = np.concatenate([
        pack(a, a_place(shape, 1), m * k // 32, 1), pack(b, b_place(1), n * k // 32, 1), accumulators(m, c).astype(np.uint32),
    ], axis=1)  # fmt: skip
    got = product(
        f"mma.sync.aligned.{shape}.row.col.s32.b1.b1.s32.{how}.popc",
        (m * k // 1024, n * k // 1024, m // 4, m // 4),
        words,
    )
    joined = a[:, None, :] & b[None] if how == "and" else a[:, None, :] ^ b[None]
    np.testing.assert_array_equal(got, accumulators(m, c + joined.sum(-1, dtype=np.int64)).astype(np.uint32))


def small_floats(kind: str) -> NDArray[np.float64]:
    """Value of every code of e4m3 or e5m2, from their definition (PTX ISA 5.2.3)."""
    exponent_bits, mantissa_bits = (4, 3) if kind == "e4m3" else (5, 2)
    bias = (1 << (exponent_bits - 1)) - 1
    codes = np.arange(128)
    field, fraction = codes >> mantissa_bits, codes & ((1 << mantissa_bits) - 1)
    value = np.where(field > 0, 1 + fraction / (1 << mantissa_bits), fraction / (1 << mantissa_bits)) * 2.0 ** (
        np.maximum(field, 1) - bias
    )
    return np.concatenate([value, -value])


@pytest.mark.parametrize(
    ("kinds", "shape"), [(("e4m3", "e4m3"), "m16n8k32"), (("e5m2", "e4m3"), "m16n8k32"), (("e4m3", "e5m2"), "m16n8k16")]
)
@pytest.mark.parametrize("result", ["f32", "f16"])
def test_eight_bit_floats_are_exact_for_whole_numbers(kinds: tuple[str, str], shape: str, result: str) -> None:
    m, n, k = extents(shape)
    rng = np.random.default_rng(k)
    tables = [small_floats(kind) for kind in kinds]
    whole = [np.flatnonzero((table == np.rint(table)) & (abs(table) <= 4)) for table in tables]
    a, b = rng.choice(whole[0], (m, k)).astype(np.uint8), rng.choice(whole[1], (n, k)).astype(np.uint8)
    c = rng.integers(-50, 50, (m, n)).astype(np.float64)
    want = c + tables[0][a] @ tables[1][b].T
    if result == "f32":
        addend, count = accumulators(m, c.astype(np.float32)).view(np.uint32), m // 4
        expected = accumulators(m, want.astype(np.float32)).view(np.uint32)
    else:
        halves = [np.ascontiguousarray(accumulators(m, v.astype(np.float16))).view(np.uint32) for v in (c, want)]
        (addend, expected), count = halves, m // 8
    words = np.concatenate(
        [pack(a, a_place(shape, 8), m * k // 32, 8), pack(b, b_place(8), n * k // 32, 8), addend], axis=1
    )
    form = f"mma.sync.aligned.{shape}.row.col.{result}.{kinds[0]}.{kinds[1]}.{result}"
    np.testing.assert_array_equal(product(form, (m * k // 128, n * k // 128, count, count), words), expected)


def byte_sum(shape: str, result: str, terms: dict[int, tuple[float, float]], addend: float) -> NDArray[np.uint32]:
    """Bits of D, all elements alike, of e4m3 products: `terms` gives the factors at their k, `addend` is every C."""
    m, n, k = extents(shape)
    table = small_floats("e4m3")
    a, b = np.zeros((m, k), np.uint8), np.zeros((n, k), np.uint8)
    for at, factors in terms.items():
        a[:, at], b[:, at] = (int(np.flatnonzero(table == factor)[0]) for factor in factors)
    kind, count = (np.float16, m // 8) if result == "f16" else (np.float32, m // 4)
    c = np.full((32, m // 4), addend, kind).view(np.uint32)
    words = np.concatenate([pack(a, a_place(shape, 8), m * k // 32, 8), pack(b, b_place(8), n * k // 32, 8), c], axis=1)
    form = f"mma.sync.aligned.{shape}.row.col.{result}.e4m3.e4m3.{result}"
    return np.unique(product(form, (m * k // 128, n * k // 128, count, count), words))


@pytest.mark.parametrize("shape", ["m16n8k16", "m16n8k32"])
def test_lower_halves_of_registers_are_summed_before_upper_halves(shape: str) -> None:
    """2^16 and 2^-8 need 25 bits, of which fp32 keeps 24 between the steps; within a step 25 places are kept."""
    large, small = {0: (256.0, 256.0), 2: (256.0, -256.0)}, (2.0**-8, 1.0)
    last = extents(shape)[2] - 1  # k = 1, 5, … lie in lower halves, 3, 7, … in upper ones
    for at, kept in ((1, 0.0), (last - 2, 0.0), (3, 2.0**-8), (last, 2.0**-8)):
        assert byte_sum(shape, "f32", {**large, at: small}, 0).view(np.float32).tolist() == [kept]


def test_the_addend_of_eight_bit_products_comes_last_and_is_rounded_to_nearest() -> None:
    one = {0: (1.0, 1.0)}
    assert byte_sum("m16n8k32", "f32", one, 1.5 * 2.0**-24).view(np.float32).tolist() == [1 + 2.0**-23]
    assert byte_sum("m16n8k32", "f32", one, 2.0**-24).view(np.float32).tolist() == [1.0]  # a tie goes to even
    cancelled = {0: (256.0, 256.0), 1: (256.0, -256.0)}  # no large term is beside the addend
    assert byte_sum("m16n8k32", "f32", cancelled, 2.0**-30).view(np.float32).tolist() == [2.0**-30]


def test_half_results_of_eight_bit_products_are_rounded_after_each_half() -> None:
    def half(terms: dict[int, tuple[float, float]], addend: float) -> list[float]:
        return np.unique(byte_sum("m16n8k32", "f16", terms, addend).view(np.float16)).tolist()

    one = (1.0, 1.0)
    assert half({0: (64.0, 32.0), 1: one, 2: one}, 0) == [2048.0]  # 2049 is a tie, twice
    assert half({0: (64.0, 32.0), 2: one, 3: one}, 0) == [2050.0]
    assert half({0: (64.0, 32.0), 2: one}, 1.0) == [2048.0]
    assert half({0: (256.0, 256.0)}, -16.0) == [np.inf]  # 65536 is infinite before the addend is there


def test_infinite_sums_of_eight_bit_products_give_the_canonical_nan() -> None:
    a, b = np.zeros((16, 16), np.uint8), np.zeros((8, 16), np.uint8)
    a[:, 2], b[:, 2] = 0x7C, 0x3C  # of e5m2: infinity, one
    words = np.concatenate(
        [pack(a, a_place("m16n8k16", 8), 8, 8), pack(b, b_place(8), 4, 8), np.full((32, 4), 0xFF800000, np.uint32)],
        axis=1,
    )
    form = "mma.sync.aligned.m16n8k16.row.col.f32.e5m2.e5m2.f32"
    assert np.unique(product(form, (2, 1, 4, 4), words)).tolist() == [0x7FFFFFFF]
    words[:, 3:] = 0x3F800000
    assert np.unique(product(form, (2, 1, 4, 4), words)).tolist() == [0x7F800000]


@pytest.mark.parametrize("shape", ["m8n8k4", "m16n8k4", "m16n8k8", "m16n8k16"])
def test_doubles(shape: str) -> None:
    m, n, k = extents(shape)
    rng = np.random.default_rng(k)
    a, b, c = rng.standard_normal((m, k)), rng.standard_normal((n, k)), rng.standard_normal((m, n))
    lanes = np.arange(32)

    def spread(matrix: NDArray[np.float64], place: Place, count: int) -> NDArray[np.float64]:
        return np.array([[matrix[place(lane // 4, lane % 4, i)] for i in range(count)] for lane in lanes])

    words = np.concatenate(
        [spread(a, a_place(shape, 64), m * k // 32), spread(b, b_place(64), n * k // 32), accumulators(m, c)], axis=1
    )
    got = product(
        f"mma.sync.aligned.{shape}.row.col.f64.f64.f64.f64",
        (m * k // 32, n * k // 32, m // 4, m // 4),
        words.view(np.uint32),
        "b64",
    )
    np.testing.assert_allclose(got.view(np.float64), accumulators(m, c + a @ b.T), rtol=1e-14, atol=1e-14)


# ---- wmma


def wmma(
    shape: str, factor: str, result: str, layouts: tuple[str, str, str], space: str = ".global"
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Run load, mma and store; returns what came out and what should have."""
    m, n, k = extents(shape)
    rng = np.random.default_rng(m + n)
    kinds = {
        "f16": "<f2",
        "bf16": "<u2",
        "tf32": "<f4",
        "f64": "<f8",
        "u8": "u1",
        "s8": "i1",
        "f32": "<f4",
        "s32": "<i4",
    }
    low = 0 if factor == "u8" else -8
    a, b, c = rng.integers(low, 9, (m, k)), rng.integers(low, 9, (k, n)), rng.integers(-99, 99, (m, n))

    def stored(matrix: NDArray[np.int64], kind: str, layout: str) -> NDArray[np.generic]:
        lined = matrix if layout == "row" else matrix.T
        beyond = 16 if kind in ("u8", "s8") else 8
        lined = np.pad(lined, ((0, 0), (0, beyond)))  # a stride beyond the line, of 16 bytes or more
        if kind == "bf16":
            return (np.ascontiguousarray(lined, np.float32).view(np.uint32) >> 16).astype(np.uint16)
        return np.ascontiguousarray(lined.astype(kinds[kind]))

    images = {
        "in0": stored(a, factor, layouts[0]),
        "in1": stored(b, factor, layouts[1]),
        "in2": stored(c, result, layouts[2]),
    }
    strides = [image.shape[1] for image in images.values()]

    def count(elements: int, kind: str) -> int:
        """Registers of a fragment; those of f16 factors are eight, those of doubles hold one element each."""
        size = np.dtype(kinds[kind]).itemsize
        return elements // 32 if size == 8 else elements // 32 * size // 4

    counts = {"a": count(m * k, factor), "b": count(k * n, factor), "c": count(m * n, result)}
    if factor == "f16":
        counts |= {"a": 8, "b": 8}
    register = ".f64" if factor == "f64" else ".b32"
    lists = {name: "{" + ", ".join(f"%{name}{i}" for i in range(count)) + "}" for name, count in counts.items()}
    factors = "" if factor == "f16" else f".{factor}.{factor}"
    body = f"""
      .reg {register} %a<9>; .reg {register} %b<9>; .reg {register} %c<9>; .reg .b32 %s<4>;
      mov.u32 %s0, {strides[0]}; mov.u32 %s1, {strides[1]}; mov.u32 %s2, {strides[2]};
      wmma.load.a.sync.aligned.{layouts[0]}.{shape}{space}.{factor} {lists["a"]}, [%rd0], %s0;
      wmma.load.b.sync.aligned.{layouts[1]}.{shape}{space}.{factor} {lists["b"]}, [%rd1], %s1;
      wmma.load.c.sync.aligned.{layouts[2]}.{shape}{space}.{result} {lists["c"]}, [%rd2], %s2;
      wmma.mma.sync.aligned.{layouts[0]}.{layouts[1]}.{shape}.{result}{factors}.{result} {lists["c"]}, {lists["a"]}, {lists["b"]}, {lists["c"]};
      wmma.store.d.sync.aligned.{layouts[2]}.{shape}{space}.{result} [%rd3], {lists["c"]}, %s2;
    """
    done = run(kernel(body), {**images, "out": images["in2"].copy()}, inputs=list(images))
    assert done.launch.outcome == Outcome.OK and not done.codes, done.records
    got = done.buffers["out"].view(kinds[result]).reshape(images["in2"].shape)[:, :-8]
    return (got if layouts[2] == "row" else got.T).astype(np.float64), (c + a @ b).astype(np.float64)


@pytest.mark.parametrize("layouts", [("row", "col", "row"), ("col", "row", "col"), ("row", "row", "row")])
@pytest.mark.parametrize(
    ("factor", "result"), [("f16", "f32"), ("f16", "f16"), ("bf16", "f32"), ("s8", "s32"), ("u8", "s32")]
)
@pytest.mark.parametrize("shape", ["m16n16k16", "m8n32k16", "m32n8k16"])
def test_wmma_of_whole_numbers(shape: str, factor: str, result: str, layouts: tuple[str, str, str]) -> None:
    got, want = wmma(shape, factor, result, layouts)
    np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize(("shape", "factor", "result"), [("m16n16k8", "tf32", "f32"), ("m8n8k4", "f64", "f64")])
def test_wmma_of_wide_elements_and_generic_addresses(shape: str, factor: str, result: str) -> None:
    for space in (".global", ""):
        got, want = wmma(shape, factor, result, ("row", "col", "row"), space)
        np.testing.assert_array_equal(got, want)


def test_a_fragment_holds_each_element_where_all_do_the_same() -> None:
    """Scaling every register scales the matrix: what programs may do with fragments, whose layout PTX leaves open."""
    values = np.arange(256, dtype="<f4").reshape(16, 16)
    registers = "{" + ", ".join(f"%c{i}" for i in range(8)) + "}"
    scaled = "".join(f"mul.f32 %c{i}, %c{i}, 0f40400000;" for i in range(8))
    body = f".reg .f32 %c<8>; wmma.load.c.sync.aligned.row.m16n16k16.global.f32 {registers}, [%rd1]; {scaled} wmma.store.d.sync.aligned.col.m16n16k16.global.f32 [%rd0], {registers};"
    done = run(kernel(body), {"out": np.zeros(256, "<f4"), "in": values}, inputs=["in"])
    np.testing.assert_array_equal(done.words(dtype="<f4").reshape(16, 16), 3 * values.T)


def test_a_matrix_outside_its_buffer_and_lanes_that_disagree() -> None:
    registers = "{" + ", ".join(f"%c{i}" for i in range(8)) + "}"
    load = f".reg .f32 %c<8>; wmma.load.c.sync.aligned.row.m16n16k16.global.f32 {registers}, [%rd9];"
    short = run(kernel(f"mov.u64 %rd9, %rd0;\n{load}"), {"out": np.zeros(255, "<f4")})
    assert short.fatal == "memory.out_of_bounds"
    apart = run(kernel(f"mul.wide.u32 %rd9, %r0, 4; add.s64 %rd9, %rd0, %rd9;\n{load}"), {"out": np.zeros(512, "<f4")})
    assert apart.fatal == "wmma.divergent_operands"
