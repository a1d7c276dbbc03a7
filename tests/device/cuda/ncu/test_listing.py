from __future__ import annotations

import re

import pytest

from ptxgym.build import build, disassemble
from ptxgym.build.model import Build
from ptxgym.device.cuda.listing import Place, read_listing, read_texts, wrapper_lines
from ptxgym.device.cuda.report import Launch
from ptxgym.device.cuda.sass import Sass

PTX = """
	.loc	1 20 3
	.loc	1 5 3, function_name $L__info_string0, inlined_at 1 20 3
	.loc	1 21 3
	.loc	1 10 3, function_name $L__info_string4, inlined_at 1 21 3
	.loc	1 11 3, function_name $L__info_string4, inlined_at 1 21 3
	.loc	1 12 3, function_name $L__info_string4, inlined_at 1 21 3
	.loc	1 13 3, function_name $L__info_string4, inlined_at 1 21 3
	.loc	1 5 3, function_name $L__info_string0, inlined_at 1 13 3
	.loc	2 99 3, function_name $L__info_string9, inlined_at 1 22 3
	.file	1 "/kernel.cu"
	.file	2 "/usr/include/cuda_bf16.hpp"
"""
SASS = """
	.section	.text._Z1kPf,"ax",@progbits
_Z1kPf:
        /*0000*/                   LDC R1, c[0x0][0x28] ;
	//## File "/kernel.cu", line 20
        /*0010*/                   S2R R5, SR_TID.X ;
	//## File "/kernel.cu", line 5 inlined at "/kernel.cu", line 20
	//## File "/kernel.cu", line 20
        /*0020*/              @!P0 SYNCS.ARRIVE.TRANS64 RZ, [UR17], R2 ;
        /*0030*/                   NOP ;
	//## File "/kernel.cu", line 5 inlined at "/kernel.cu", line 13
	//## File "/kernel.cu", line 13 inlined at "/kernel.cu", line 21
	//## File "/kernel.cu", line 21
        /*0040*/                   NOP ;
	//## File "/usr/include/cuda_bf16.hpp", line 99 inlined at "/kernel.cu", line 22
	//## File "/kernel.cu", line 22
        /*0050*/                   NOP ;
	//## File "/usr/include/cuda_bf16.hpp", line 99
        /*0060*/                   NOP ;
	.section	.nv.info,"",@"SHT_CUDA_INFO"
	.section	.text._Z1jPf,"ax",@progbits
        /*0000*/                   EXIT ;
	//## File "/kernel.cu", line 30
        /*0010*/                   EXIT ;
"""


def test_places_are_statements_and_the_calls_that_are_no_wrappers() -> None:
    assert wrapper_lines(PTX) == {5}
    assert read_listing(SASS, PTX) == {
        "_Z1kPf": {
            0x10: Place(20, 20),
            0x20: Place(5, 20),  # in a wrapper: its call
            0x30: Place(5, 20),  # what has no line of its own is at the one before
            0x40: Place(5, 13),  # a wrapper inside of a function
            0x50: Place(22, 22),  # a header's line is none
        },
        "_Z1jPf": {0x10: Place(30, 30)},
    }


def test_texts_are_the_instructions_with_their_guards() -> None:
    texts = read_texts(SASS)
    assert list(texts) == ["_Z1kPf", "_Z1jPf"] and list(texts["_Z1kPf"]) == [0, 0x10, 0x20, 0x30, 0x40, 0x50, 0x60]
    assert texts["_Z1kPf"][0x20] == "@!P0 SYNCS.ARRIVE.TRANS64 RZ, [UR17], R2"
    assert texts["_Z1jPf"] == {0: "EXIT", 0x10: "EXIT"}


def test_texts_are_those_of_nsight_compute(oracle: Launch, oracle_sass: str) -> None:
    texts = read_texts(oracle_sass)[oracle.kernel]
    theirs = [Sass.parse(text) for text in oracle.sass]
    ours = [Sass.parse(texts[offset]) for offset in oracle.offsets]
    assert [one.opcode for one in ours] == [one.opcode for one in theirs]
    assert [one.multiply_adds(128) for one in ours] == [one.multiply_adds(128) for one in theirs]


def test_a_function_without_lines_is_listed_empty() -> None:
    assert read_listing('\t.section\t.text.k,"ax"\n        /*0000*/  EXIT ;\n', "") == {"k": {}}


@pytest.fixture(scope="module")
def oracle_build(gemm, kernels) -> Build:  # type: ignore[no-untyped-def]
    built = build(kernels["oracle"][1], declaration=gemm.signature.declaration(), arch="sm_90a")
    assert isinstance(built, Build), built
    return built


def test_matrix_instructions_of_the_oracle_are_at_the_call_of_their_wrapper(oracle_build: Build) -> None:
    disassembled = disassemble(oracle_build).read_text()
    lines = oracle_build.source.read_text().split("\n")
    (places,) = read_listing(disassembled, oracle_build.ptx.read_text()).values()
    offsets = [int(found, 16) for found in re.findall(r"/\*([0-9a-f]{4})\*/\s+HGMMA", disassembled)]
    assert offsets
    assert len({places[offset].line for offset in offsets}) == 1  # in the wrapper's one asm statement
    assert all("asm volatile" not in lines[places[offset].site - 1] for offset in offsets)
    assert all("wgmma_m64n256k16(" in lines[places[offset].site - 1] for offset in offsets)


def test_blank_lines_and_long_numbers_of_inline_assembly_are_passed_over() -> None:
    long = "9" * 5000  # digits; Python's `int` refuses more than 4,300
    asm = "\n" * 200_000 + f'.loc 1 {long} 3, function_name f,\n.file {long} "x"\n'
    assert wrapper_lines(asm + PTX) == wrapper_lines(PTX) != frozenset()
