"""What is read out of PTX: bytes of parameters that a kernel reads, and variables."""

from __future__ import annotations

import pytest

from ptxgym.build import Build
from ptxgym.plan.module import Module, module_of

PTX = """
.const .align 4 .b8 table[16];
.visible .global .align 8 .u64 pointer_variable;
.global .attribute(.managed) .align 4 .f32 grid_of[2][3];
.extern .shared .align 16 .b8 pool[];
.visible .entry kernel(
    .param .align 8 .b8 kernel_param_0[32],
    .param .u64 kernel_param_1,
    .param .align 64 .b8 kernel_param_2[128],
    .param .align 8 .b8 kernel_param_3[16],
    .param .align 64 .b8 kernel_param_4[192]
)
{
    .local .align 8 .b8 __local_depot0[8];
    ld.param.u8 %rs1, [kernel_param_0];
    ld.param.v2.u64 {%rd1, %rd2}, [kernel_param_0+8];
    ld.param.b32 %r1, [ kernel_param_0 + 28 ];
    mov.b64 %rd3, kernel_param_2;
    st.global.u64 [%rd1], %rd3;
    mov.b64 %rd4, kernel_param_4;
    ld.param.v2.b32 {%r2, %r3}, [%rd4+8];
}
.visible .entry other(.param .align 8 .b8 other_param_0[16])
{
    st.global.u64 [%rd1], %rd4;
    ld.param.b64 %rd5, [other_param_0+8];
}
"""


def test_bytes_of_a_struct_that_are_read() -> None:
    mask = Module(PTX).used("kernel", 0, 32)
    assert mask is not None
    assert [i for i, used in enumerate(mask) if used] == [0, *range(8, 24), *range(28, 32)]


def test_a_parameter_whose_address_is_kept_is_read_whole() -> None:
    assert Module(PTX).used("kernel", 2, 128) is None


def test_addresses_are_followed_in_their_own_kernel() -> None:
    """In `other` the register of the same name is stored."""
    module = Module(PTX)
    assert module.used("kernel", 4, 192) == bytes(8) + b"\1" * 8 + bytes(176)
    assert module.used("other", 0, 16) == bytes(8) + b"\1" * 8


def test_parameters_that_the_text_does_not_declare_so_are_read_whole() -> None:
    module = Module(PTX)
    assert module.used("kernel", 5, 16) is None and module.used("absent", 0, 16) is None
    assert module.used("kernel", 3, 24) is None and module.used("kernel", 4, 128) is None
    assert Module(".entry k(.param .b8 k_param_0[999999999]) {}").used("k", 0, 999_999_999) is None


def test_scalars_are_taken_whole_and_unread_structs_not_at_all() -> None:
    module = Module(PTX)
    assert module.used("kernel", 1, 8) is None
    assert module.used("kernel", 3, 16) == bytes(16)


def test_variables() -> None:
    assert Module(PTX).variables == {"table": 16, "pointer_variable": 8, "grid_of": 24}


def test_a_real_module(features_build: Build) -> None:
    module = module_of(features_build)
    assert module.variables["coefficients"] == 32 and module.variables["scratch"] == 256
    padded = next(k.name for k in features_build.kernels if "padded" in k.name)
    mask = module.used(padded, 0, 32)
    assert mask is not None and not any(mask[1:8]) and not any(mask[18:24]) and all(mask[8:16])


def test_comments_are_no_code() -> None:
    module = Module("// ld.param.u8 %r1, [kernel_param_0];\n/* kernel_param_0 */ .param .b8 kernel_param_0[16]\n")
    assert module.used("kernel", 0, 16) == bytes(16)


@pytest.mark.parametrize("unit", ["_", "$", ".param ", ".param a", "ld.param.u32 ", "ld.param.a", "_param_1", "\n"])
def test_long_texts_take_linear_time(unit: str) -> None:
    text = unit * (2**20 // len(unit))  # quadratic time would exceed the suite's limit
    assert Module(text).variables == {}


def test_offsets_that_no_kernel_has_make_the_parameter_whole() -> None:
    def used(offset: str) -> bytes | None:
        text = f".entry kernel(.param .b8 kernel_param_0[16]) {{ ld.param.u8 %r1, [kernel_param_0+{offset}]; }}"
        return Module(text).used("kernel", 0, 16)

    assert [used(offset) for offset in ("0" * 5000, "010", "-8")] == [None] * 3  # 010 is 8
    assert used("10") == bytes(10) + b"\1" + bytes(5)
