"""Addresses of parameters, followed through PTX."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ptxgym.plan.reached import MAX_STEPS, Body

SIZE = 384
MOVE = "mov.b64 %rd1, p;"
COORDINATES = "{0, %r1, %r2, %r3, %r4}"
FOLLOWED = [
    ("ld.param.u32 %r1, [p];", {(0, 4)}),
    ("ld.param.v4.f32 {%f1, %f2, %f3, %f4}, [p+32];", {(32, 48)}),
    (f"{MOVE} ld.param.u64 %rd2, [%rd1+16];", {(16, 24)}),
    ("mov.u64 %rd1, p+8; mov.s64 %rd2, %rd1; ld.param.b8 %rs1, [%rd2];", {(8, 9)}),
    (f"{MOVE} add.s64 %rd2, %rd1, 128; cvta.param.u64 %rd3, %rd2; ld.v2.u64 {{%rd4, %rd5}}, [%rd3+-64];", {(64, 80)}),
    (f"{MOVE} cvta.to.param.u64 %rd2, %rd1; ld.volatile.param.f16x2 %r1, [%rd2+380];", {(380, 384)}),
    (f"{MOVE} ld.global.L1::no_allocate.v8.b32 {{%r1, %r2, %r3, %r4, %r5, %r6, %r7, %r8}}, [%rd1], %rd9;", {(0, 32)}),
    (f"{MOVE} ld.u64 %rd1, [%rd1+8];", {(8, 16)}),
    (f"{MOVE} add.s64 %rd1, %rd2, %rd3; mov.b64 {{%r1, %r2}}, %rd4; ld.b32 %r3, [%rd1];", {(0, 4)}),
    (f"L: ld.param.b16 %rs1, [%rd2]; mov.b64 %rd2, %rd1; @!%p1 bra L; {MOVE}", {(0, 2)}),
    (f"{MOVE} @%p1 add.s64 %rd2, %rd1, 256; @!%p1 mov.b64 %rd2, %rd1; ld.f32 %f1, [%rd2];", {(0, 4), (256, 260)}),
    (f"{MOVE}\n\t.loc 1 2 3, function_name p, inlined_at 1 2 3\nld.f64 %fd1, [%rd1];", {(0, 8)}),
    (f"{MOVE} {{.reg .b64 a, %rd1; mov.b64 a, %rd1; ld.f64 %fd1, [a]; }}", {(0, 8)}),
    (f"{MOVE} {{ prefetch.tensormap [%rd1+256]; }}", {(256, 384)}),
    (f"{MOVE} prefetch.param.tensormap [%rd1];", {(0, 128)}),
    (
        f"{MOVE} cp.async.bulk.tensor.5d.shared::cluster.global.tile.mbarrier::complete_tx::bytes"
        f".cta_group::2.multicast::cluster [%r9], [%rd1+128, {COORDINATES}], [%r8], %rs1, %rd2;",
        {(128, 256)},
    ),
    (f"{MOVE} cp.async.bulk.tensor.5d.global.shared::cta.tile.bulk_group [%rd1, {COORDINATES}], [%r9];", {(0, 128)}),
    (f"{MOVE} cp.reduce.async.bulk.tensor.1d.global.shared::cta.add.bulk_group [%rd1, {{%r1}}], [%r9];", {(0, 128)}),
    (f"{MOVE} cp.async.bulk.prefetch.tensor.5d.L2.global [ %rd1 + 8 , {COORDINATES}], %rd2;", {(8, 136)}),
    (MOVE, set[tuple[int, int]]()),
    ("mov.b64 %rd1, q; st.global.u64 [%rd2], %rd1;", set[tuple[int, int]]()),
    (f"{MOVE} add.s64 %rd2, %rd1, 384;", set[tuple[int, int]]()),
]  # fmt: skip
"""Statements, and what is read of the parameter `p`."""
LOST = [
    "st.global.u64 [%rd2], %rd1",
    "st.global.u64 [%rd1], %rd2",
    "st.param.b64 [param0], %rd1",
    "call.uni (%r1), f, (%rd1)",
    "call.uni (%rd1), f, (%r1)",
    "add.s64 %rd2, %rd1, %rd3",
    "add.s64 %rd2, %rd3, %rd1",
    "add.s64 %rd2, 8, %rd1",
    "add.s64 %rd2, %rd1, 010",
    "add.s64 %rd2, %rd1, 0x10",
    "add.s64 %rd2, %rd1, 385",
    "add.s64 %rd2, %rd1, -1",
    "add.s64 %rd1, %rd1, 8",
    "add.cc.s64 %rd2, %rd1, 8",
    "sub.s64 %rd2, %rd3, %rd1",
    "cvt.u32.u64 %r1, %rd1",
    "cvta.to.global.u64 %rd2, %rd1",
    "mov.b64 {%r1, %r2}, %rd1",
    "mov.v2.b64 {%rd2, %rd3}, {%rd1, %rd1}",
    "selp.b64 %rd2, %rd1, %rd3, %p1",
    "setp.eq.s64 %p1, %rd1, 0",
    "atom.global.add.u64 %rd2, [%rd1], 1",
    "ld.u32 %r1, [%rd1+381]",
    "ld.u32 %r1, [%rd1+-1]",
    "ld.u32 %r1, [%rd1-1]",
    "ld.u32 %r1, [%rd1+0x10]",
    "ld.u32 %r1, [%rd1+010]",
    "ld.u32 %r1, [%rd2], %rd1",
    "ld.u32 %r1, [%rd1].unified",
    "ld.v2.v2.u32 {%r1, %r2}, [%rd1]",
    "ld.unknown %r1, [%rd1]",
    "ldu.global.u32 %r1, [%rd1]",
    "prefetch.global.L2 [%rd1]",
    "prefetch.tensormap [%rd1+257]",
    f"cp.async.bulk.tensor.5d.global.shared::cta.tile.bulk_group [%rd1+257, {COORDINATES}], [%r9]",
    f"cp.async.bulk.tensor.5d.global.shared::cta.tile.bulk_group [%rd2, {COORDINATES}], [%rd1]",
    f"cp.async.bulk.tensor.5d.global.shared::cta.tile.bulk_group [%rd1, {COORDINATES}], [%rd1]",
    "cp.async.bulk.tensor.1d.global.shared::cta.tile.bulk_group [%rd2, {%rd1}], [%r9]",
    "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%r1], [%rd1], 16, [%r2]",
    "tensormap.replace.tile.global_address.global.b1024.b64 [%rd1], %rd2",
    "# 1 mov.b64 %rd2, %rd1",
]


@pytest.mark.parametrize(("text", "ranges"), FOLLOWED)
def test_an_address_is_followed_to_what_is_read(text: str, ranges: set[tuple[int, int]]) -> None:
    assert Body(text).reached("p", SIZE) == ranges


@pytest.mark.parametrize("statement", LOST)
def test_what_is_not_followed_may_read_all(statement: str) -> None:
    """The control: without the address in it, the statement reads nothing."""
    assert Body(f"{MOVE} {statement}; ret;").reached("p", SIZE) is None
    assert Body(f"{MOVE} {statement.replace('%rd1', '%rd7')}; ret;").reached("p", SIZE) == set()


def test_too_many_steps_may_read_all() -> None:
    moves = "".join(f"mov.b64 %rd{i + 2}, %rd{i + 1};" for i in range(MAX_STEPS))
    assert Body(f"{MOVE} {moves[: len(moves) // 4].rpartition(';')[0]};").reached("p", SIZE) == set()
    assert Body(f"{MOVE} {moves}").reached("p", SIZE) is None


@pytest.mark.parametrize(
    "unit", ["mov.b64 ", "%rd1 ", ".a", "::a", "@", "{", "a:", "ld.param.v4.u32 {", "[%rd1", ";", "ld.p"]
)
def test_long_texts_take_linear_time(unit: str) -> None:
    text = unit * (2**20 // len(unit))  # quadratic time would exceed the suite's limit
    assert Body(f"{MOVE} ld.param.u8 %r1, [p]; {text}").reached("q", SIZE) == set()


_OFFSETS = st.integers(-40, 40)
_STEPS = st.lists(
    st.tuples(st.sampled_from(["mov", "add", "cvta", "ld"]), st.integers(0, 5), st.integers(0, 5), _OFFSETS)
)


def _written(step: tuple[str, int, int, int]) -> str:
    kind, to, of, offset = step
    return {
        "mov": f"mov.b64 %rd{to}, %rd{of};",
        "add": f"add.s64 %rd{to}, %rd{of}, {offset};",
        "cvta": f"cvta.param.u64 %rd{to}, %rd{of};",
        "ld": f"ld.b32 %r{to}, [%rd{of}+{offset}];",
    }[kind]


def _run(steps: list[tuple[str, int, int, int]], registers: dict[int, int]) -> tuple[set[tuple[int, int]], set[int]]:
    """Run statements once; return what they read, and every address that they made."""
    read, made = set[tuple[int, int]](), set[int]()
    for kind, to, of, offset in steps:
        if of not in registers:
            if kind != "ld":
                registers.pop(to, None)
            continue
        address = registers[of] + (offset if kind in ("add", "ld") else 0)
        if kind == "ld":
            read.add((address, address + 4))
        else:
            registers[to] = address
            made.add(address)
    return read, made


@given(_STEPS, st.integers(1, 3))
def test_no_byte_that_is_read_is_missed(steps: list[tuple[str, int, int, int]], rounds: int) -> None:
    """Registers are written again and again, in a loop."""
    ranges = Body(" ".join(["mov.b64 %rd0, p+40;", *map(_written, steps)])).reached("p", SIZE)
    registers, read = {0: 40}, set[tuple[int, int]]()
    for _ in range(rounds):
        read |= _run(steps, registers)[0]
    assert ranges is None or read <= ranges


@given(_STEPS)
def test_nothing_else_is_read_where_registers_are_written_once(steps: list[tuple[str, int, int, int]]) -> None:
    """And all of it may be where an address leaves the parameter."""
    once = [(kind, number + 1, of % (number + 1), offset) for number, (kind, _, of, offset) in enumerate(steps)]
    ranges = Body(" ".join(["mov.b64 %rd0, p+40;", *map(_written, once)])).reached("p", SIZE)
    read, made = _run(once, {0: 40})
    inside = all(0 <= at <= SIZE for at in made) and all(start >= 0 and stop <= SIZE for start, stop in read)
    assert ranges == (read if inside else None)
