# ruff: noqa: E501  (PTX text is not broken where a reader would not break it)
"""State spaces, bounds, alignment, vectors, atomics, local memory and generic addresses."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.device.emulator.core.harness import Run, kernel, run

AT = "mul.wide.u32 %rd9, %r3, 4; add.s64 %rd9, %rd0, %rd9;"
STORE = f"{AT} st.global.u32 [%rd9], %r20;"


def test_every_width_and_sign_of_a_load() -> None:
    source = np.arange(256, dtype=np.uint8) * 37 + 11
    for ptx, dtype, register in [
        ("u8", "<u1", "u32"), ("s8", "<i1", "s32"), ("u16", "<u2", "u32"), ("s16", "<i2", "s32"), ("s32", "<i4", "s64"),
        ("u32", "<u4", "u64"), ("u64", "<u8", "u64"), ("s8", "<i1", "s64"),
    ]:  # fmt: skip
        size = np.dtype(dtype).itemsize
        bits = int(register[1:])
        target = "%rd20" if bits == 64 else "%r20"
        body = f"mul.wide.u32 %rd9, %r0, {size}; add.s64 %rd9, %rd1, %rd9; ld.global.{ptx} {target}, [%rd9];"
        body += f"mul.wide.u32 %rd9, %r0, {bits // 8}; add.s64 %rd9, %rd0, %rd9; st.global.b{bits} [%rd9], {target};"
        done = run(kernel(body), {"out": np.zeros(32, f"<u{bits // 8}"), "in": source}, inputs=["in"])
        want = source.view(dtype)[:32].astype(np.int64 if register[0] == "s" else np.uint64)
        assert done.words("out", f"<u{bits // 8}").tolist() == (want.view(np.uint64) & (2**bits - 1)).tolist(), ptx


def test_stores_take_the_low_bytes() -> None:
    body = "add.u32 %r20, %r0, 0x1fe; cvt.u64.u32 %rd9, %r0; add.s64 %rd9, %rd0, %rd9; st.global.u8 [%rd9], %r20;"
    done = run(kernel(body), {"out": np.zeros(32, np.uint8)})
    assert done.buffers["out"].tolist() == [(t + 0xFE) & 0xFF for t in range(32)]


@pytest.mark.parametrize("count", [2, 4])
def test_vectors(count: int) -> None:
    names = ", ".join(f"%r{20 + i}" for i in range(count))
    body = f"mul.wide.u32 %rd9, %r0, {4 * count}; add.s64 %rd10, %rd1, %rd9; add.s64 %rd11, %rd0, %rd9;"
    body += f"ld.global.v{count}.u32 {{{names}}}, [%rd10]; add.u32 %r20, %r20, 1; st.global.v{count}.u32 [%rd11], {{{names}}};"
    source = np.arange(32 * count, dtype="<u4")
    want = source.copy()
    want[::count] += 1
    assert (
        run(kernel(body), {"out": np.zeros_like(source), "in": source}, inputs=["in"]).words().tolist() == want.tolist()
    )


def test_sixteen_bytes_in_one_register() -> None:
    body = ".reg .b128 %q; mul.wide.u32 %rd9, %r0, 16; add.s64 %rd10, %rd1, %rd9; add.s64 %rd11, %rd0, %rd9; ld.global.b128 %q, [%rd10]; st.global.b128 [%rd11], %q;"
    source = np.random.default_rng(1).integers(0, 256, 512, dtype=np.uint8)
    assert (
        run(kernel(body), {"out": np.zeros(512, np.uint8), "in": source}, inputs=["in"]).buffers["out"] == source
    ).all()


@settings(max_examples=20, deadline=None)
@given(order=st.permutations(range(32)), active=st.integers(1, 2**32 - 1))
def test_gather_and_scatter_by_any_permutation_and_mask(order: list[int], active: int) -> None:
    body = f"""
      mul.wide.u32 %rd9, %r0, 4; add.s64 %rd10, %rd1, %rd9; ld.global.u32 %r10, [%rd10];
      mov.u32 %r11, {active}; shr.u32 %r11, %r11, %r0; and.b32 %r11, %r11, 1; setp.eq.u32 %p1, %r11, 1;
      mul.wide.u32 %rd9, %r10, 4; add.s64 %rd10, %rd2, %rd9; add.s64 %rd11, %rd0, %rd9;
      @%p1 ld.global.u32 %r20, [%rd10]; @%p1 st.global.u32 [%rd11], %r20;
    """
    table, values = np.array(order, "<u4"), np.arange(100, 132, dtype="<u4")
    done = run(kernel(body), {"out": np.zeros(32, "<u4"), "index": table, "values": values}, inputs=["index", "values"])
    want = np.zeros(32, "<u4")
    for lane, index in enumerate(order):
        if active >> lane & 1:
            want[index] = values[index]
    assert done.words().tolist() == want.tolist()


# ---- faults


def fault(body: str, size: int = 64, **shape: object) -> Run:
    done = run(kernel(body), {"out": np.zeros(size, "<u4"), "next": np.zeros(4, "<u4")}, **shape)
    assert done.launch.outcome == 1
    return done


def test_store_past_the_end_names_the_buffer_and_the_lane() -> None:
    done = fault(f"mov.u32 %r20, 1; {STORE}", size=20)
    assert done.fatal == "memory.out_of_bounds"
    assert (
        done.message(done.fatal)
        == "store of 4 bytes at global memory out of bounds: right behind the end of out (80 bytes)"
    )
    assert (done.records[0]["lane"], done.records[0]["warp"]) == (20, 0)


def test_load_before_the_start() -> None:
    assert "4 bytes before the start of out" in fault("ld.global.u32 %r20, [%rd0+-4];").message("memory.out_of_bounds")


def test_null_pointer() -> None:
    assert "null pointer" in fault("mov.u64 %rd9, 0; ld.global.u32 %r20, [%rd9+8];").message("memory.out_of_bounds")


def test_misaligned_access() -> None:
    done = fault("ld.global.v2.u32 {%r20, %r21}, [%rd0+4];")
    assert done.fatal == "memory.misaligned" and "byte 4 of out" in done.message(done.fatal)


def test_lanes_may_address_several_buffers() -> None:
    body = f"setp.lt.u32 %p1, %r0, 16; selp.b64 %rd10, %rd1, %rd2, %p1; ld.global.u32 %r20, [%rd10]; {STORE}"
    buffers = {"out": np.zeros(32, "<u4"), "a": np.full(4, 7, "<u4"), "b": np.full(4, 9, "<u4")}
    assert run(kernel(body), buffers).words().tolist() == [7] * 16 + [9] * 16


@pytest.mark.parametrize(("address", "ok"), [("sm+252", True), ("sm+256", False)])
def test_shared_memory_ends_where_it_was_declared(address: str, ok: bool) -> None:
    done = run(kernel(f".shared .align 4 .b8 sm[256]; st.shared.u32 [{address}], %r0;"), {"out": np.zeros(4, "<u4")})
    assert (done.launch.outcome == 0) == ok
    if not ok:
        assert "shared" in done.message("memory.out_of_bounds")


def test_dynamic_shared_memory_follows_the_static() -> None:
    declarations = ".extern .shared .align 16 .b8 dyn[];"
    body = ".shared .align 4 .b8 sm[256]; mov.u32 %r10, dyn; st.shared.u32 [%r10+60], %r0; mov.u32 %r11, sm; st.shared.u32 [%r11], %r0;"
    assert run(kernel(body, declarations), {"out": np.zeros(4, "<u4")}, dynamic_smem_bytes=64).launch.outcome == 0
    short = run(kernel(body, declarations), {"out": np.zeros(4, "<u4")}, dynamic_smem_bytes=60)
    assert short.fatal == "memory.out_of_bounds"


def test_const_memory_is_read_only() -> None:
    declarations = ".const .align 4 .b32 table[4] = {5, 6, 7, 8};"
    read = run(kernel(f"ld.const.u32 %r20, [table+8]; {STORE}", declarations), {"out": np.zeros(32, "<u4")})
    assert set(read.words().tolist()) == {7}
    body = "mov.u64 %rd10, table; cvta.const.u64 %rd10, %rd10; st.u32 [%rd10], %r0;"
    assert run(kernel(body, declarations), {"out": np.zeros(32, "<u4")}).fatal == "memory.read_only"


def test_const_loads_reach_const_memory_alone() -> None:
    declarations = ".const .align 4 .b32 table[4] = {5, 6, 7, 8};"
    body = f"mov.u64 %rd10, table; ld.const.u32 %r20, [%rd10+8]; {STORE}"
    assert set(run(kernel(body, declarations), {"out": np.zeros(32, "<u4")}).words().tolist()) == {7}
    done = run(kernel(f"ld.const.u32 %r20, [%rd0+8]; {STORE}", declarations), {"out": np.zeros(32, "<u4")})
    assert done.fatal == "memory.out_of_bounds"
    assert "byte 8 of out (128 bytes) is global memory" in done.message("memory.out_of_bounds")
    assert "declare it __constant__" in done.message("memory.out_of_bounds")
    apart = f"setp.lt.u32 %p1, %r0, 31; mov.u64 %rd10, table; selp.b64 %rd10, %rd10, %rd0, %p1; ld.const.u32 %r20, [%rd10]; {STORE}"
    assert run(kernel(apart, declarations), {"out": np.zeros(32, "<u4")}).fatal == "memory.out_of_bounds"


def test_module_variables_hold_their_initial_values_and_addresses() -> None:
    declarations = ".global .align 4 .b32 a[2] = {11, 22}; .global .align 8 .u64 p = a+4;"
    body = f"ld.global.u64 %rd10, [p]; ld.global.u32 %r20, [%rd10]; {STORE}"
    assert set(run(kernel(body, declarations), {"out": np.zeros(32, "<u4")}).words().tolist()) == {22}


def test_reading_what_nothing_wrote_is_a_warning() -> None:
    done = run(
        kernel(f"ld.global.u32 %r20, [%rd1+8]; {STORE}"),
        {"out": np.zeros(32, "<u4"), "work": np.zeros(4, "<u4")},
        written=False,
    )
    assert done.codes == ["memory.uninitialised"] and "byte 8 of work" in done.message("memory.uninitialised")
    body = f"st.global.u32 [%rd1+8], 7; ld.global.u32 %r20, [%rd1+8]; {STORE}"
    clean = run(kernel(body), {"out": np.zeros(32, "<u4"), "work": np.zeros(4, "<u4")}, written=False)
    assert clean.codes == []


@pytest.mark.parametrize(
    ("body", "codes"),
    [
        ("st.global.u32 [%rd0], %r0;", ["memory.lane_conflict"]),
        ("st.global.u32 [%rd0], 7;", []),
        ("and.b32 %r20, %r0, 15; mad.wide.u32 %rd10, %r20, 4, %rd0; st.global.u32 [%rd10], %r0;", ["memory.lane_conflict"]),
        ("and.b32 %r20, %r0, 15; mad.wide.u32 %rd10, %r20, 4, %rd0; st.global.u32 [%rd10], %r20;", []),
        ("xor.b32 %r20, %r0, 5; mad.wide.u32 %rd10, %r20, 4, %rd0; st.global.u32 [%rd10], %r0;", []),
        ("and.b32 %r20, %r0, 15; mad.wide.u32 %rd10, %r20, 8, %rd0; st.global.v2.u32 [%rd10], {%r20, %r0};", ["memory.lane_conflict"]),
        ("setp.eq.u32 %p1, %r0, 9; @%p1 st.global.u32 [%rd0], %r0;", []),
        (".shared .align 4 .b8 sm[4]; mov.u32 %r10, sm; st.shared.u32 [%r10], %r0;", ["memory.lane_conflict"]),
    ],
)  # fmt: skip
def test_lanes_of_one_store_that_disagree_about_one_address(body: str, codes: list[str]) -> None:
    done = run(kernel(body), {"out": np.zeros(64, "<u4")})
    assert done.codes == codes
    if codes:
        assert done.message(codes[0]).startswith("lanes 0 and ")


# ---- local and generic


def test_local_memory_is_private() -> None:
    body = f"""
      .local .align 8 .b8 depot[64]; mov.u64 %rd10, depot; and.b32 %r10, %r0, 7; mul.wide.u32 %rd11, %r10, 4; add.s64 %rd11, %rd10, %rd11;
      st.local.u32 [%rd11], %r0; ld.local.u32 %r20, [%rd11]; {STORE}
    """
    assert run(kernel(body), {"out": np.zeros(64, "<u4")}, block=64).words().tolist() == list(range(64))
    done = run(
        kernel(".local .align 8 .b8 depot[64]; mov.u64 %rd10, depot; ld.local.u32 %r20, [%rd10+64];"),
        {"out": np.zeros(4, "<u4")},
    )
    assert done.fatal == "memory.out_of_bounds" and "local" in done.message(done.fatal)


def test_generic_addresses_reach_every_space() -> None:
    body = f"""
      .shared .align 4 .b8 sm[128]; .local .align 4 .b8 depot[16];
      mov.u64 %rd10, sm; cvta.shared.u64 %rd10, %rd10; mov.u64 %rd11, depot; cvta.local.u64 %rd11, %rd11; cvta.to.global.u64 %rd12, %rd1;
      mul.wide.u32 %rd13, %r0, 4; add.s64 %rd14, %rd10, %rd13; st.u32 [%rd14], %r0; st.u32 [%rd11], 1000; st.u32 [%rd12], 7;
      and.b32 %r10, %r0, 3; setp.eq.u32 %p1, %r10, 0; setp.eq.u32 %p2, %r10, 1;
      selp.b64 %rd15, %rd11, %rd1, %p2; selp.b64 %rd15, %rd14, %rd15, %p1;
      ld.u32 %r20, [%rd15];
      isspacep.shared %p3, %rd15; isspacep.local %p4, %rd15; isspacep.global %p5, %rd15;
      selp.b32 %r11, 10000, 0, %p3; add.u32 %r20, %r20, %r11; selp.b32 %r11, 20000, 0, %p4; add.u32 %r20, %r20, %r11;
      selp.b32 %r11, 40000, 0, %p5; add.u32 %r20, %r20, %r11; {STORE}
    """
    done = run(kernel(body), {"out": np.zeros(32, "<u4"), "x": np.zeros(4, "<u4")})
    want = [10000 + t if t % 4 == 0 else 21000 if t % 4 == 1 else 40007 for t in range(32)]
    assert done.words().tolist() == want


def test_parameters_through_a_register() -> None:
    text = kernel(f"mov.b64 %rd10, p1; ld.param.u64 %rd11, [%rd10]; ld.global.u32 %r20, [%rd11]; {STORE}")
    assert set(run(text, {"out": np.zeros(32, "<u4"), "x": np.full(4, 42, "<u4")}).words().tolist()) == {42}


def test_parameters_of_the_kernel_are_global_memory() -> None:
    """9.7.9.19: the window of kernel parameters is part of the global one; beside it lies nothing."""
    body = f"""
      mov.b64 %rd10, p1; cvta.param.u64 %rd10, %rd10; cvta.to.global.u64 %rd11, %rd10; isspacep.global %p1, %rd10; isspacep.param %p2, %rd10;
      and.b32 %r10, %r0, 1; setp.eq.u32 %p3, %r10, 0; selp.b64 %rd12, %rd11, %rd2, %p3; ld.global.u64 %rd13, [%rd12]; ld.u64 %rd14, [%rd10];
      selp.u32 %r20, 1, 0, %p1; selp.u32 %r11, 2, 0, %p2; add.u32 %r20, %r20, %r11; setp.eq.u64 %p4, %rd13, %rd1; selp.u32 %r11, 4, 0, %p4; add.u32 %r20, %r20, %r11;
      setp.eq.u64 %p4, %rd13, 7; selp.u32 %r11, 8, 0, %p4; add.u32 %r20, %r20, %r11; setp.eq.u64 %p4, %rd14, %rd1; selp.u32 %r11, 16, 0, %p4; add.u32 %r20, %r20, %r11;
      {STORE}
    """
    buffers = {"out": np.zeros(32, "<u4"), "x": np.zeros(4, "<u4"), "y": np.full(2, 7, "<u8")}
    done = run(kernel(body), buffers)
    assert done.codes == [] and done.words().tolist() == [1 + 2 + 16 + 4, 1 + 2 + 16 + 8] * 16
    for wrong in ("ld.global.u64 %rd13, [%rd10+24];", "st.global.u64 [%rd10], 0;", "red.global.add.u32 [%rd10], 1;"):
        done = run(kernel(f"mov.b64 %rd10, p1; cvta.param.u64 %rd10, %rd10; {wrong}"), buffers)
        assert done.fatal == "memory.out_of_bounds", wrong


# ---- atomics

ATOMICS = {
    "add.u32": lambda old, b: old + b,
    "min.s32": lambda old, b: min(old, b),
    "max.s32": lambda old, b: max(old, b),
    "and.b32": lambda old, b: old & b,
    "or.b32": lambda old, b: old | b,
    "xor.b32": lambda old, b: old ^ b,
    "exch.b32": lambda old, b: b,
    "inc.u32": lambda old, b: 0 if old >= b else old + 1,
    "dec.u32": lambda old, b: b if old == 0 or old > b else old - 1,
}


@pytest.mark.parametrize("space", ["global", "shared"])
@pytest.mark.parametrize("form", ATOMICS)
def test_atomics_return_the_old_value_in_lane_order(form: str, space: str) -> None:
    place = (
        "mov.u64 %rd10, %rd1;"
        if space == "global"
        else ".shared .align 4 .b8 sm[4]; mov.u64 %rd10, sm; st.shared.u32 [%rd10], 5; bar.sync 0;"
    )
    body = f"{place} add.u32 %r10, %r0, 3; atom.{space}.{form} %r20, [%rd10], %r10; {STORE} bar.sync 0; ld.{space}.u32 %r21, [%rd10]; st.global.u32 [%rd2], %r21;"
    buffers = {"out": np.zeros(32, "<u4"), "cell": np.array([5, 0, 0, 0], "<u4"), "last": np.zeros(4, "<u4")}
    done = run(kernel(body), buffers)
    value, want = 5, []
    for lane in range(32):
        want.append(value)
        value = ATOMICS[form](value, lane + 3) & 0xFFFFFFFF
    assert done.words().tolist() == want
    assert done.words("last")[0] == value


def test_compare_and_swap() -> None:
    body = f"atom.global.cas.b32 %r20, [%rd1], %r0, 99; {STORE}"
    done = run(kernel(body), {"out": np.zeros(32, "<u4"), "cell": np.array([7, 0, 0, 0], "<u4")})
    assert done.words().tolist() == [7] * 8 + [99] * 24


def test_float_and_wide_atomics() -> None:
    body = "mov.f32 %f1, 0f3F800000; red.global.add.f32 [%rd0], %f1; atom.global.add.u64 %rd10, [%rd0+8], 0x100000000; mov.f64 %fd1, 0d3FE0000000000000; red.global.add.f64 [%rd0+16], %fd1;"
    done = run(kernel(body), {"out": np.zeros(8, "<u4")})
    assert done.words("out", "<f4")[0] == 32.0
    assert done.words("out", "<u8")[1] == 32 << 32
    assert done.words("out", "<f8")[2] == 16.0


def test_subnormals_in_atomic_sums_vanish_in_global_memory_only() -> None:
    body = ".shared .align 4 .b8 sm[4]; mov.u32 %r10, 1; mov.b32 %f1, %r10; setp.eq.u32 %p1, %r0, 0; @%p1 st.shared.u32 [sm], 0; bar.sync 0;"
    body += "@%p1 red.global.add.f32 [%rd0], %f1; @%p1 red.shared.add.f32 [sm], %f1; bar.sync 0; ld.shared.u32 %r11, [sm]; st.global.u32 [%rd0+4], %r11;"
    assert run(kernel(body), {"out": np.zeros(4, "<u4")}).words()[:2].tolist() == [0, 1]


def test_packed_half_atomics() -> None:
    body = "mov.u32 %r10, 0x3c003c00; red.global.add.noftz.f16x2 [%rd0], %r10; mov.u32 %r11, 0x3f803f80; red.global.add.noftz.bf16x2 [%rd0+4], %r11;"
    assert run(kernel(body), {"out": np.zeros(4, "<u4")}).words()[:2].tolist() == [0x50005000, 0x42004200]


def test_vector_atomics() -> None:
    body = "mov.f32 %f1, 0f3F800000; mov.f32 %f2, 0f40000000; red.global.v2.f32.add [%rd0], {%f1, %f2}; bar.sync 0; atom.global.v2.f32.add {%f3, %f4}, [%rd0+8], {%f1, %f2}; st.global.v2.f32 [%rd1], {%f3, %f4};"
    done = run(kernel(body), {"out": np.zeros(4, "<f4"), "old": np.zeros(4, "<f4")})
    assert done.words("out", "<f4").tolist() == [32.0, 64.0, 32.0, 64.0]
    assert done.words("old", "<f4")[:2].tolist() == [31.0, 62.0]
