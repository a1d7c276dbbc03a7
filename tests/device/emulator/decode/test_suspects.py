"""What the decoder leaves to the core to look at: registers that may have no value, addresses within one array."""

from __future__ import annotations

import pytest

from ptxgym.device.emulator.decode import DecodedModule
from ptxgym.device.emulator.decode_suspects import array_name
from ptxgym.device.emulator.ir import UNSET_REGISTER, DecodedKernel

SHARED = ".shared .align 4 .b8 one[64]; .shared .align 4 .b8 two[32]; .extern .shared .align 16 .b8 rest[];"


def decoded(body: str) -> DecodedKernel:
    text = f""".version 9.0
    .target sm_90a
    .address_size 64
    {SHARED}
    .visible .entry k(.param .u64 p) {{
      .reg .pred %p<4>; .reg .b16 %h<4>; .reg .b32 %r<16>; .reg .b64 %rd<4>; .reg .f32 %f<4>;
      ld.param.u64 %rd0, [p]; mov.u32 %r0, %tid.x;
      {body}
      ret;
    }}
    """
    return DecodedModule.parse(text).kernel("k")


def early(body: str) -> list[tuple[str, int]]:
    """Opcode and width of every early read."""
    kernel = decoded(body)
    return [(kernel.forms[read["inst"]], int(read["width"])) for read in kernel.early_reads]


def ranges(body: str) -> list[tuple[str, int]]:
    """Array and size of every access whose array is known."""
    return [(extent.name, extent.end - extent.begin) for extent in decoded(body).extents]


@pytest.mark.parametrize(
    ("body", "reads"),
    [
        ("add.f32 %f1, %f0, %f0; st.global.f32 [%rd0], %f1;", [("add.f32", 4)]),
        ("mov.f32 %f0, 0f00000000; add.f32 %f1, %f0, %f0; st.global.f32 [%rd0], %f1;", []),
        # around a loop, the first time only
        ("L: add.f32 %f0, %f0, %f0; setp.lt.u32 %p0, %r0, 3; @%p0 bra L; st.global.f32 [%rd0], %f0;", [("add.f32", 4)]),
        # on one of two paths
        ("setp.lt.u32 %p0, %r0, 3; @%p0 bra L; mov.u32 %r1, 1; L: st.global.u32 [%rd0], %r1;", [("st.global.u32", 4)]),
        ("setp.lt.u32 %p0, %r0, 3; mov.u32 %r1, 2; @%p0 bra L; mov.u32 %r1, 1; L: st.global.u32 [%rd0], %r1;", []),
        # moves hand it on
        ("mov.f32 %f1, %f0; mov.f32 %f2, %f1; st.global.f32 [%rd0], %f2;", [("st.global.f32", 4)]),
        ("mov.f32 %f1, %f0; mov.f32 %f1, 0f00000000; st.global.f32 [%rd0], %f1;", []),
        ("setp.lt.u32 %p0, %r0, 3; @%p0 mov.u32 %r1, 1; st.global.u32 [%rd0], %r1;", []),
        ("st.global.u16 [%rd0], %h1;", [("st.global.u16", 2)]),
        ("add.u64 %rd2, %rd1, %rd0; st.global.u64 [%rd0], %rd2;", [("add.u64", 8)]),
        ("selp.u32 %r1, 1, 2, %p1; st.global.u32 [%rd0], %r1;", []),
    ],
)  # fmt: skip
def test_reads_that_a_path_reaches_before_a_write(body: str, reads: list[tuple[str, int]]) -> None:
    assert early(body) == reads


def test_registers_of_early_reads_start_with_a_value_of_their_own() -> None:
    kernel = decoded(
        "mov.f32 %f1, %f0; st.global.f32 [%rd0], %f1; add.u64 %rd2, %rd1, %rd0; st.global.u64 [%rd0], %rd2;"
    )
    held = {int(const["offset"]): (int(const["width"]), int(const["lo"])) for const in kernel.consts}
    value = (UNSET_REGISTER << 32) | UNSET_REGISTER
    assert sorted(held.values()) == [(4, UNSET_REGISTER)] * 2 + [(8, value)]
    assert {int(read["offset"]) for read in kernel.early_reads} <= set(held)
    assert not len(decoded("st.global.u32 [%rd0], %r0;").consts)


ONE, TWO = ("one", 64), ("two", 32)


@pytest.mark.parametrize(
    ("body", "arrays"),
    [
        ("mov.u32 %r1, one; ld.shared.u32 %r2, [%r1+8];", [ONE]),
        ("mov.u32 %r1, two; mad.lo.u32 %r2, %r0, 4, %r1; st.shared.u32 [%r2], %r0;", [TWO]),
        ("mov.u32 %r1, one; L: ld.shared.u32 %r2, [%r1]; add.u32 %r1, %r1, 4; setp.lt.u32 %p0, %r2, 3; @%p0 bra L;", [ONE]),  # noqa: E501
        ("mov.u64 %rd1, one; cvt.u32.u64 %r1, %rd1; xor.b32 %r1, %r1, 16; ld.shared.u32 %r2, [%r1];", [ONE]),
        ("mov.u32 %r1, one; mov.u32 %r2, two; selp.u32 %r3, %r1, %r2, %p0; ld.shared.u32 %r4, [%r3];", []),
        ("mov.u32 %r1, one; mov.u32 %r2, two; sub.u32 %r3, %r2, %r1; add.u32 %r4, %r1, %r3; ld.shared.u32 %r5, [%r4];", []),  # noqa: E501
        ("mov.u32 %r1, one; ld.global.u32 %r1, [%rd0]; ld.shared.u32 %r2, [%r1];", []),
        ("mov.u32 %r1, one; mul.lo.u32 %r2, %r1, 2; ld.shared.u32 %r3, [%r2];", []),
        ("mov.u32 %r1, one; mov.u32 %r2, 1024; ld.shared.u32 %r3, [%r2]; ld.shared.u32 %r3, [%r1];", [ONE]),
        ("mov.u32 %r1, rest; ld.shared.u32 %r2, [%r1];", []),
        ("ld.global.u32 %r1, [%rd0]; ld.shared.u32 %r2, [%r1];", []),
    ],
)  # fmt: skip
def test_accesses_whose_address_comes_from_one_array(body: str, arrays: list[tuple[str, int]]) -> None:
    assert ranges(body) == arrays


@pytest.mark.parametrize(
    ("symbol", "name"),
    [("_ZZ4gemmPfE6tile_a", "tile_a"), ("_ZZ4gemmPfE4tile_0", "tile"), ("one", "one"), ("_ZN3opsE", "_ZN3opsE")],
)
def test_arrays_are_named_as_in_the_source(symbol: str, name: str) -> None:
    assert array_name(symbol) == name
