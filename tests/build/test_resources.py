from __future__ import annotations

import pytest

from ptxgym.build import Build
from ptxgym.build.resources import kernel_resources
from tests.build.conftest import HEAD, RUN

PTX = """
.visible .entry first(
	.param .align 64 .b8 first_param_0[128],
	.param .u64 .ptr .align 1 first_param_1,
	.param .u64 .ptr .global .align 16 first_param_2,
	.param .align 4 .b8 first_param_3[12],
	.param .f32 first_param_4,
	.param .u8 first_param_5
)
.maxntid 384, 1, 1
.minnctapersm 1
.maxclusterrank 4
{
}
.entry second()
.blocksareclusters
.reqntid 64, 2
.explicitcluster
.reqnctapercluster 2, 1, 1
{
}
.weak .entry third
{
}
"""
SAID = """ptxas info    : 0 bytes gmem
ptxas info    : Compiling entry function 'second' for 'sm_90a'
ptxas info    : Function properties for second
    16 bytes stack frame, 8 bytes spill stores, 4 bytes spill loads
ptxas info    : Used 168 registers, used 1 barriers, 1024 bytes smem
ptxas info    : Compiling entry function 'first' for 'sm_90a'
ptxas info    : Function properties for first
    0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
ptxas info    : Used 8 registers, used 0 barriers
"""


def test_reads_directives_and_reports():
    first, second, third = kernel_resources(PTX, SAID)
    assert (first.name, second.name, third.name) == ("first", "second", "third")
    assert first.param_bytes == (128, 8, 8, 12, 4, 1)
    assert first.param_aligns == (64, 8, 8, 4, 4, 1)
    assert (first.max_ntid, first.req_ntid, first.cluster) == ((384, 1, 1), None, None)
    assert (first.registers, first.static_smem_bytes, first.stack_bytes) == (8, 0, 0)
    assert (second.req_ntid, second.cluster, second.param_bytes) == ((64, 2, 1), (2, 1, 1), ())
    assert (second.registers, second.static_smem_bytes) == (168, 1024)
    assert (second.stack_bytes, second.spill_store_bytes, second.spill_load_bytes) == (16, 8, 4)
    assert third.registers == 0
    assert [kernel.max_cluster_rank for kernel in (first, second, third)] == [4, None, None]
    assert [kernel.blocks_are_clusters for kernel in (first, second, third)] == [False, True, False]


STRUCTS = """struct Pair { double a; char b; };
struct alignas(32) Wide { char c[40]; };
__global__ void __cluster_dims__(2, 1, 1) __launch_bounds__(256) fill(
    __nv_bfloat16* C, Pair p, Wide w, short s, const __grid_constant__ Pair q) {
  __shared__ float tile[100];
  tile[threadIdx.x % 100] = p.b + w.c[s] + q.a;
  __syncthreads();
  C[0] = __float2bfloat16(tile[s]);
}
"""


def test_agrees_with_the_compiler(compile_text):
    text = HEAD + STRUCTS + RUN.replace("(C, N)", "(C, {}, {}, 1, {})")
    result = compile_text(text)
    assert isinstance(result, Build), result
    (kernel,) = result.kernels
    assert kernel.param_bytes == (8, 16, 64, 2, 16)  # sizeof, by the C++ rules
    assert kernel.param_aligns == (8, 8, 32, 2, 8)
    assert (kernel.max_ntid, kernel.cluster) == ((256, 1, 1), (2, 1, 1))
    assert kernel.static_smem_bytes >= 400
    assert kernel.registers > 0


def test_comments_and_strings_declare_nothing():
    ptx = """
    .visible .entry k(.param .u64 k_param_0, .param .texref k_param_1)
    { // .entry forged(.param .weird x[7]) .maxntid 5 {
      /* .entry forged() { */ .pragma ".entry forged() {";
    }"""
    (kernel,) = kernel_resources(ptx, "")
    assert (kernel.name, kernel.param_bytes, kernel.max_ntid) == ("k", (8, 8), None)


def test_numbers_that_no_device_has_are_not_read():
    (kernel,) = kernel_resources(f".entry k(.param .b8 k_param_0[{'0' * 5000}]) .maxntid {'9' * 5000} {{", "")
    assert kernel.param_bytes == (1,)
    many = "9" * 5000
    said = SAID.replace("168", many).replace("1024", many).replace("16 bytes stack", f"{many} bytes stack")
    _, second, _ = kernel_resources(PTX, said)
    assert (second.registers, second.static_smem_bytes, second.stack_bytes) == (0, 0, 0)


FORGED = """ptxas info    : Compiling entry function 'second' for 'sm_90a'
ptxas info    : Function properties for second
    0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
ptxas info    : Used 16 registers, used 0 barriers, 16 bytes smem
"""
SECOND = (168, 1024, 16, 8, 4)


def second(said: str) -> tuple[int, int, int, int, int]:
    """What is read of the kernel `second`."""
    _, kernel, _ = kernel_resources(PTX, said)
    sizes = kernel.registers, kernel.static_smem_bytes, kernel.stack_bytes
    return *sizes, kernel.spill_store_bytes, kernel.spill_load_bytes


@pytest.mark.parametrize("said", [SAID, SAID + FORGED, FORGED + SAID, FORGED + SAID + FORGED])
def test_a_forged_report_makes_no_kernel_smaller(said: str) -> None:
    assert second(said) == SECOND
    assert second(FORGED) == (16, 16, 0, 0, 0)


def test_a_message_that_quotes_ptxas_is_no_report() -> None:
    quoted = "Compiling entry function 'second': Used 16 registers, 9999 bytes smem"
    warning = f"/kernel.cu:9:4: warning: 'void g()' is deprecated: {quoted} [-Wdeprecated-declarations]\n"
    assert second(SAID + warning) == second(warning + SAID) == SECOND


@pytest.mark.parametrize("unit", [".entry k ", ".entry k(", ".entry k ("])
def test_entries_that_are_left_open_take_linear_time(unit: str) -> None:
    assert kernel_resources(unit * (1_000_000 // len(unit)), "") == ()
    (kernel,) = kernel_resources(".entry declared(.param .u8 a);\n.entry k(.param .u8 b) {", "")
    assert (kernel.name, kernel.param_bytes) == ("k", (1,))
