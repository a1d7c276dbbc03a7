"""Modules, declarations, scopes, operands, constants and source lines of the PTX parser."""

from __future__ import annotations

import struct

import pytest

from ptxgym.device.emulator.ptx import (
    Integer,
    Memory,
    Name,
    Not,
    Pair,
    PtxSyntaxError,
    Real,
    Register,
    Sink,
    Special,
    Symbol,
    Vector,
    parse_module,
)
from tests.device.emulator.decode.support import kernel


def first_instruction(body: str, head: str = ""):
    return parse_module(kernel(body, head)).functions["k"].body.instructions[0]


def names(operands) -> list[str]:
    return [operand.name for operand in operands]


# ---- module level


def test_module_header_and_kernels() -> None:
    module = parse_module(kernel("ret;"))
    assert (module.version, module.target, module.address_size) == ("9.0", "sm_90a", 64)
    assert [entry.name for entry in module.entries] == ["k"]


def test_parameters_keep_size_and_alignment() -> None:
    params = (
        ".param .u64 .ptr .global .align 16 p0, .param .align 64 .b8 map[128], .param .f32 scale, .param .b8 pair[2][3]"
    )
    found = parse_module(kernel("ret;", params=params)).functions["k"].params
    assert [(p.name, p.size_bytes, p.align) for p in found] == [
        ("p0", 8, 8),
        ("map", 128, 64),
        ("scale", 4, 4),
        ("pair", 6, 1),
    ]


def test_launch_bounds_and_cluster_directives() -> None:
    text = kernel("ret;").replace(
        "k()\n",
        "k()\n.maxntid 128, 2\n.minnctapersm 2\n.maxnreg 64\n.explicitcluster\n"
        '.reqnctapercluster 2, 1, 1\n.pragma "nounroll";\n',
    )
    assert parse_module(text).functions["k"].directives == {
        "maxntid": (128, 2),
        "minnctapersm": (2,),
        "maxnreg": (64,),
        "explicitcluster": (),
        "reqnctapercluster": (2, 1, 1),
    }


def test_initialisers() -> None:
    head = """
.global .align 4 .u32 plain = 5;
.global .align 8 .u64 table[3] = {generic(plain), plain+4, generic(plain)+8};
.const .align 4 .b8 bytes[6] = {1, 0xFF, 255, -1};
.global .f32 reals[4] = {1.5, 0f40000000, -2, -0.25};
.visible .global .s16 grid[2][3] = {{1, 2, 3}, {-1, -2, -3}};
.global .b8 text[] = {72, 105, 0};
.global .align 16 .b8 zeros[32];
"""
    found = parse_module(kernel("ret;", head)).variables
    assert found["plain"].initial == (5).to_bytes(4, "little")
    assert [(r.offset, r.symbol, r.addend) for r in found["table"].references] == [
        (0, "plain", 0),
        (8, "plain", 4),
        (16, "plain", 8),
    ]
    assert found["bytes"].initial == bytes([1, 255, 255, 255, 0, 0])
    assert found["reals"].initial == struct.pack("<4f", 1.5, 2.0, -2.0, -0.25)
    assert found["grid"].initial == struct.pack("<6h", 1, 2, 3, -1, -2, -3)
    assert (found["text"].initial, found["text"].size_bytes) == (b"Hi\0", 3)
    assert (found["zeros"].initial, found["zeros"].size_bytes, found["zeros"].align) == (b"", 32, 16)


def test_rows_that_are_left_short_end_in_zeros() -> None:
    """As ptxas has it: one pair of braces a dimension, each row as long as its bound says."""
    head = """
.global .u32 short[2][3] = {{1, 2}, {4, 5}};
.global .u32 open[][3] = {{1, 2}, {4, 5}};
.global .f32 kernel[][3] = {{.05, .1, .05}, {.1, .4, .1}, {.05, .1, .05}};
.global .u16 deep[2][2][2] = {{{1}, {2}}, {{3}}};
.global .u32 none[2][3] = {{}, {1}};
.global .v4 .f32 vector = {1.0, 2.0, 3.0, 4.0};
.global .v2 .u32 vectors[3] = {{1, 2}, {3, 4}};
.global .f32 sums[2] = {1.0 + 0.5, -(.25)};
.global .u64 addresses[2][2] = {{short}, {short+8}};
"""
    found = parse_module(kernel("ret;", head)).variables
    assert found["short"].initial == struct.pack("<6I", 1, 2, 0, 4, 5, 0)
    assert (found["open"].initial, found["open"].size_bytes) == (struct.pack("<6I", 1, 2, 0, 4, 5, 0), 24)
    assert found["kernel"].initial == struct.pack("<9f", 0.05, 0.1, 0.05, 0.1, 0.4, 0.1, 0.05, 0.1, 0.05)
    assert found["deep"].initial == struct.pack("<8H", 1, 0, 2, 0, 3, 0, 0, 0)
    assert found["none"].initial == struct.pack("<6I", 0, 0, 0, 1, 0, 0)
    assert found["vector"].initial == struct.pack("<4f", 1, 2, 3, 4) and found["vector"].align == 16
    assert not found["vector"].is_array
    assert found["vectors"].initial == struct.pack("<6I", 1, 2, 3, 4, 0, 0) and found["vectors"].align == 8
    assert found["sums"].initial == struct.pack("<2f", 1.5, -0.25)
    assert [reference.offset for reference in found["addresses"].references] == [0, 16]


def test_initialiser_with_bytes_of_an_address_is_kept_but_unsupported() -> None:
    head = ".global .u32 g;\n.global .b8 packed[3] = {0xFF(g), 0xFF00(g), 1};"
    assert parse_module(kernel("ret;", head)).variables["packed"].unsupported


def test_sections_files_and_debug_lines_are_skipped() -> None:
    tail = '\n.file 1 "a.cu"\n.section .debug_str\n{\n$L__info_string0:\n.b8 95\n.b8 90\n}\n'
    module = parse_module(kernel("ret;") + tail)
    assert module.files == {1: "a.cu"}


def test_declared_functions_do_not_hide_kernels() -> None:
    head = ".extern .func (.param .b32 func_retval0) vprintf\n(.param .b64 a, .param .b64 b)\n;\n"
    head += ".func f() .noreturn\n{\ntrap;\n}"
    module = parse_module(kernel("ret;", head))
    assert module.functions["vprintf"].start is None
    assert [entry.name for entry in module.entries] == ["k"]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "no `.version`"),
        (".version 9.0\n.target sm_90a\n.address_size 32\n", "address size 32"),
        (kernel("ret;")[:-3], "never closed"),
        (kernel("ret"), "expected an operand"),
        (kernel("add.s32 a b;"), "expected `,` or `;`"),
        (kernel(".reg .b33 a;"), ".b33"),
        (kernel("@1 ret;"), "expected a name"),
        (kernel("L:\nL:\nret;"), "defined twice"),
        (kernel(".shared .align 3 .b8 x[4];"), "power of two"),
        (kernel("", ".global .b8 x[2] = {1,2,3};"), "longer than"),
        (kernel("", ".global .u32 x[2][3] = {{1,2,3,4},{5}};"), "or one of its rows"),
        (kernel("", ".global .u32 x[2][3] = {{1},{2},{3}};"), "longer than"),
        (kernel("", ".global .u32 x[2][3] = {1,2,3};"), "expected `{`"),
        (kernel("", ".global .u32 x[3] = {{1},{2}};"), "expected a constant"),
        (kernel("", ".global .u32 x[2] = 5;"), "expected `{`"),
        (kernel("", ".global .u32 x[1][];"), "expected a constant"),
        (kernel("", ".global .v4 .f64 x;"), "at most 128 bits"),
        (kernel("", f".global .u32 x{'[1]' * 33};"), "dimensions"),
        (kernel("", ".global .u32 x[-2][-3];"), "elements"),
        (kernel("", ".global .u32 x[1000000000] = {1};"), "too large"),
        (kernel("mov.u32 a, 1/0;"), "division by zero"),
        (kernel("mov.f32 a, 1.0/0.0;"), "division by zero"),
        (kernel("mov.f32 a, 1.0+1;"), "casts"),
        (kernel("mov.f32 a, 1.0<<2.0;"), "casts"),
        (kernel("mov.f32 a, ~1.5;"), "floating-point"),
        (kernel(".shared .b8 x[1.5];"), "expected an integer"),
        (kernel("mov.f32 a, .5f;"), "expected an operand"),
        (kernel("ld.u32 a, [b;"), "expected `]`"),
        ("\x00\x01\x02", "does not begin"),
    ],
)
def test_malformed_text_is_a_typed_error(text: str, words: str) -> None:
    with pytest.raises(PtxSyntaxError) as caught:
        for entry in parse_module(text).entries:
            _ = entry.body
    assert words in str(caught.value)


def test_error_names_the_line() -> None:
    text = kernel("ret;\nret;\n;?;\n")
    with pytest.raises(PtxSyntaxError) as caught:
        _ = parse_module(text).functions["k"].body
    assert caught.value.line == text[: text.index("?")].count("\n") + 1


# ---- registers, scopes, labels


def test_ranges_single_names_and_names_without_percent() -> None:
    body = ".reg .b32 %r<3>, x, y;\n.reg .b64 %rd1<2>;\nadd.s32 %r2, x, y;\nadd.s64 %rd10, %rd11, %rd11;"
    first, second = parse_module(kernel(body)).functions["k"].body.instructions
    assert names(first.operands) == ["%r2", "x", "y"]
    assert names(second.operands) == ["%rd10", "%rd11", "%rd11"]
    assert {operand.width for operand in second.operands} == {8}


def test_register_outside_its_range_is_no_register() -> None:
    operand = first_instruction(".reg .b32 %r<3>;\nmov.u32 %r1, %r3;").operands[1]
    assert operand == Special("%r3")


def test_brace_scopes_have_their_own_registers_and_labels() -> None:
    body = """
.reg .b32 r; .reg .pred p;
{ .reg .pred p; .reg .b32 r; LAB: mov.u32 r, 1; @p bra LAB; bra DONE; DONE: mov.u32 r, 2; }
{ .reg .pred p; LAB: mov.u32 r, 3; @!p bra LAB; }
mov.u32 r, 4;
"""
    instructions = parse_module(kernel(body)).functions["k"].body.instructions
    inner, outer = instructions[0].operands[0], instructions[7 - 1].operands[0]
    assert inner is instructions[3].operands[0] and outer is instructions[4].operands[0] and inner is not outer
    assert instructions[1].guard is not instructions[5].guard
    assert [i.operands[0].index for i in instructions if i.opcode == "bra"] == [0, 3, 4]
    assert [i.guard_not for i in instructions if i.opcode == "bra"] == [False, False, True]


def test_forward_and_outer_labels() -> None:
    body = ".reg .pred p;\n{ bra END; }\nret;\nEND:\nret;"
    branch = parse_module(kernel(body)).functions["k"].body.instructions[0].operands[0]
    assert isinstance(branch, Name) and branch.index == 2


def test_label_at_the_end_points_past_the_last_instruction() -> None:
    body = parse_module(kernel("bra END;\nret;\nEND:\n")).functions["k"].body
    assert body.instructions[0].operands[0].index == len(body.instructions) == 2


def test_branch_targets() -> None:
    body = ".reg .b32 i;\nbrx.idx i, T;\nA: ret;\nB: ret;\nT: .branchtargets A, B, A;\n"
    table = parse_module(kernel(body)).functions["k"].body.instructions[0].operands[1]
    assert [target.index for target in table.targets] == [1, 2, 1]


# ---- operands


def test_operand_kinds() -> None:
    head = ".shared .align 16 .b8 s[64];"
    body = ".reg .b32 a, b; .reg .pred p, q; .reg .b64 d;\n"
    body += "op a|p, !q, _, {a, b}, [d+16], [s+-4], [d, {a, b}], %tid.x, s+8, L;"
    operands = first_instruction(body, head).operands
    assert isinstance(operands[0], Pair) and operands[0].second.name == "p"
    assert isinstance(operands[1], Not) and operands[1].operand.name == "q"
    assert operands[2] == Sink()
    assert isinstance(operands[3], Vector) and names(operands[3].elements) == ["a", "b"]
    assert isinstance(operands[4], Memory) and operands[4].base.name == "d" and operands[4].offset == 16
    assert operands[5].base.variable.name == "s" and operands[5].offset == -4
    assert isinstance(operands[6].extra[0], Vector) and names(operands[6].extra[0].elements) == ["a", "b"]
    assert operands[7] == Special("%tid.x")
    assert isinstance(operands[8], Symbol) and operands[8].offset == 8
    assert isinstance(operands[9], Name) and operands[9].index is None


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("0", Integer(0)),
        ("-1", Integer(-1)),
        ("42U", Integer(42)),
        ("0x7fU", Integer(127)),
        ("0XFF", Integer(255)),
        ("0b101", Integer(5)),
        ("017", Integer(15)),
        ("1+2*3", Integer(7)),
        ("(1<<4)|3", Integer(19)),
        ("~0", Integer(-1)),
        ("-7/2", Integer(-3)),
        ("-7 % 4", Integer(-3)),
        ("1?10:20", Integer(10)),
        ("!5", Integer(0)),
        ("- -3", Integer(3)),
        ("(.s64)7", Integer(7)),
        ("WARP_SZ", Integer(32)),
        ("2>1", Integer(1)),
        ("0xFFFFFFFFFFFFFFFF", Integer(2**64 - 1)),
        ("0f3F800000", Real(0x3F800000, 4)),
        ("-0f3F800000", Real(0xBF800000, 4)),
        ("0d4000000000000000", Real(0x4000000000000000, 8)),
        ("1.5", Real(0x3FF8000000000000, 8)),
        ("2e1", Real(0x4034000000000000, 8)),
        ("-1.5E-1", Real(0xBFC3333333333333, 8)),
        (".5", Real(0x3FE0000000000000, 8)),
        ("-.25e+2", Real(0xC039000000000000, 8)),
        ("+.5E-1", Real(0x3FA999999999999A, 8)),
        ("5.e1", Real(0x4049000000000000, 8)),
        ("- -.5", Real(0x3FE0000000000000, 8)),
        ("+-0f7FC00001", Real(0xFFC00001, 4)),
        ("(.5)", Real(0x3FE0000000000000, 8)),
        ("1.0+.5*3.0", Real(0x4004000000000000, 8)),
        ("-(1.0/4.0)", Real(0xBFD0000000000000, 8)),
        ("0f3F800000*2.0", Real(0x4000000000000000, 8)),
        ("1.5>.5", Integer(1)),
        ("1?.5:.25", Real(0x3FE0000000000000, 8)),
    ],
)
def test_constants(text: str, value: Integer | Real) -> None:
    assert first_instruction(f".reg .b64 a;\nmov.u64 a, {text};").operands[1] == value


def test_modifiers_that_begin_with_digits_stay_modifiers() -> None:
    """`.2d` apart from its opcode is no number, and the numbers around it are."""
    body = ".reg .f32 a;\ncp.async.bulk.tensor .2d\n.16x64b .5, .25;"
    instruction = first_instruction(body)
    assert instruction.opcode == "cp.async.bulk.tensor.2d.16x64b"
    assert instruction.operands == (Real(0x3FE0000000000000, 8), Real(0x3FD0000000000000, 8))


def test_elements_of_a_variable_as_addresses() -> None:
    """9.7.9.3: `A[5]` is the address of an element, `A+5` one of bytes; as ptxas has it."""
    head = ".global .u64 A[10];\n.global .v4 .f32 V[10];"
    operands = first_instruction(".reg .b64 a;\nop A[5], A+5, V[5], A[2+1];", head).operands
    assert [operand.offset for operand in operands] == [40, 5, 20, 24]


def test_unified_is_a_modifier_behind_the_address() -> None:
    instruction = first_instruction(".reg .b64 a; .reg .b32 r;\nld.global.u32 r, [a+4].unified;")
    assert instruction.opcode == "ld.global.u32.unified" and instruction.operands[1].offset == 4


def test_no_space_before_brackets_and_modifiers_apart() -> None:
    body = ".reg .b32 r<4>;\nstmatrix.sync.aligned.m8n8.x2.shared.b16[r0],{r1, r2};\nadd .s32\n r0, r1, r2;"
    first, second = parse_module(kernel(body)).functions["k"].body.instructions
    assert first.opcode == "stmatrix.sync.aligned.m8n8.x2.shared.b16" and isinstance(first.operands[1], Vector)
    assert second.opcode == "add.s32" and len(second.operands) == 3


def test_comments_anywhere() -> None:
    body = ".reg .b32 a; // one\nadd.s32 /* two ; */ a, // three\n a /* * / ** */ , 1;"
    assert len(first_instruction(body).operands) == 3


def test_local_depot_is_not_taken_for_a_line_directive() -> None:
    body = ".local .align 16 .b8 __local_depot0[64];\n.loc\t1 7 3\nret;"
    parsed = parse_module(kernel(body) + '.file 1 "a.cu"\n').functions["k"].body
    assert [(v.space, v.size_bytes, v.align) for v in parsed.variables] == [("local", 64, 16)]
    assert parsed.instructions[0].line == 7


# ---- lines


FILES = '.file 1 "/x/kernel.cu"\n.file 2 "/toolkit/cuda_bf16.hpp"\n.file 3 "/x/other.cuh"\n'


def lines_of(body: str, source: str | None = None) -> list[int]:
    return [i.line for i in parse_module(kernel(body) + FILES, source).functions["k"].body.instructions]


def test_line_of_the_submission_through_inlined_headers() -> None:
    body = """
.loc 1 11 3
.loc 2 608 5, function_name $L__info_string0, inlined_at 1 11 3
.loc 2 597 1, function_name $L__info_string1, inlined_at 2 608 5
.loc 2 585 1, function_name $L__info_string2+16, inlined_at 2 597 1
trap;
.loc 2 608 5, function_name $L__info_string0, inlined_at 1 12 9
.loc 2 585 1, function_name $L__info_string2, inlined_at 2 597 1
trap;
.loc 1 30 1, function_name $L__info_string3, inlined_at 1 40 2
trap;
.loc 1 0 2
trap;
.loc 2 700 1
trap;
"""
    assert lines_of(body) == [11, 12, 30, 30, 0]


def test_source_chooses_the_file() -> None:
    body = ".loc 3 5 1\ntrap;\n.loc 1 9 1\ntrap;"
    assert lines_of(body) == [0, 9]
    assert lines_of(body, "/elsewhere/other.cuh") == [5, 0]


def test_endless_inlining_chain_ends() -> None:
    body = ".loc 2 1 1, function_name $L, inlined_at 2 2 2\n.loc 2 2 2, function_name $L, inlined_at 2 1 1\ntrap;"
    assert lines_of(body) == [0]


def test_same_name_is_same_register_only_within_one_declaration() -> None:
    body = ".reg .b32 a;\nmov.u32 a, a;\n{ .reg .b32 a; mov.u32 a, a; }"
    first, second = parse_module(kernel(body)).functions["k"].body.instructions
    assert isinstance(first.operands[0], Register)
    assert first.operands[0] is first.operands[1] and second.operands[0] is not first.operands[0]
