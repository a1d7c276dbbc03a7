"""Random well-formed instructions come back as written; random garbage raises the typed errors and nothing else."""

from __future__ import annotations

import contextlib
import itertools
import random
import re
import struct

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from ptxgym.device.emulator.decode import DecodedModule
from ptxgym.device.emulator.decode_grammar import RULES, NotEmulated, resolve
from ptxgym.device.emulator.ptx import (
    Integer,
    Memory,
    Not,
    Operand,
    Pair,
    PtxSyntaxError,
    Real,
    Register,
    Sink,
    Special,
    Symbol,
    Vector,
    parse_module,
    tokenise,
)
from tests.device.emulator.decode.instances import LINES
from tests.device.emulator.decode.support import around, kernel

REGISTERS = [f"%r{n}" for n in range(8)] + ["%p1", "temp", "a$b"]
DECLARED = ".reg .b32 %r<8>, temp, a$b; .reg .pred %p<2>; .shared .align 16 .b8 sym[64];\n"

registers = st.sampled_from(REGISTERS)
offsets = st.integers(-(2**31), 2**31)
simple = st.one_of(
    registers,
    st.integers(-(2**63), 2**64 - 1).map(str),
    st.integers(0, 2**32 - 1).map(lambda bits: f"0f{bits:08X}"),
    st.integers(0, 2**64 - 1).map(lambda bits: f"0d{bits:016x}"),
    st.sampled_from(["%tid.x", "%clock64", "_", "sym"]),
    offsets.map(lambda offset: f"sym+{offset}"),
)
vectors = st.lists(simple, min_size=1, max_size=8).map(lambda parts: "{" + ", ".join(parts) + "}")
memories = st.one_of(
    registers.map(lambda name: f"[{name}]"),
    st.tuples(registers, offsets).map(lambda parts: f"[{parts[0]}+{parts[1]}]"),
    st.tuples(registers, vectors).map(lambda parts: f"[{parts[0]}, {parts[1]}]"),
)
pairs = st.tuples(registers, registers).map("|".join)
negated = st.just("!%p1")
operands = st.one_of(simple, vectors, memories, pairs, negated)
words = st.from_regex(r"[a-z][a-z0-9]{0,6}", fullmatch=True)
opcodes = st.tuples(words, st.lists(st.from_regex(r"[a-z0-9]{1,5}(::[a-z]{1,4})?", fullmatch=True), max_size=5)).map(
    lambda parts: ".".join([parts[0], *parts[1]])
)


def render(operand: Operand) -> str:
    """The canonical text of an operand."""
    if isinstance(operand, Register):
        return operand.name
    if isinstance(operand, Integer):
        return str(operand.value)
    if isinstance(operand, Real):
        return f"0f{operand.bits:08X}" if operand.width == 4 else f"0d{operand.bits:016x}"
    if isinstance(operand, Special):
        return operand.name
    if isinstance(operand, Sink):
        return "_"
    if isinstance(operand, Symbol):
        return operand.variable.name + (f"+{operand.offset}" if operand.offset else "")
    if isinstance(operand, Vector):
        return "{" + ", ".join(map(render, operand.elements)) + "}"
    if isinstance(operand, Pair):
        return f"{render(operand.first)}|{render(operand.second)}"
    if isinstance(operand, Not):
        return "!" + render(operand.operand)
    assert isinstance(operand, Memory)
    extra = "".join(", " + render(part) for part in operand.extra)
    return f"[{render(operand.base)}" + (f"+{operand.offset}" if operand.offset else "") + extra + "]"


@given(opcodes, st.lists(operands, max_size=6), st.sampled_from(["", "@%p1 ", "@!%p1 "]))
def test_instructions_come_back_as_written(opcode: str, texts: list[str], guard: str) -> None:
    body = parse_module(kernel(f"{DECLARED}{guard}{opcode} {', '.join(texts)};")).functions["k"].body
    (instruction,) = body.instructions
    assert instruction.opcode == opcode
    written = [re.sub(r"\+0(?![\dxfd])", "", text) for text in texts]  # an offset of zero is none
    assert [render(operand) for operand in instruction.operands] == written
    assert (instruction.guard is not None, instruction.guard_not) == (bool(guard), "!" in guard)


@given(
    st.tuples(st.text("0123456789", max_size=12), st.text("0123456789", max_size=12)).filter(any),
    st.one_of(st.just(""), st.tuples(st.sampled_from("eE"), st.integers(-300, 300)).map(lambda e: f"{e[0]}{e[1]:+}")),
    st.text("+-", max_size=3),
    st.booleans(),
)
def test_every_spelling_of_a_number_is_its_value(
    digits: tuple[str, str], power: str, signs: str, in_array: bool
) -> None:
    """Digits before the point, behind it, or both; Python reads the same numeral."""
    numeral = f"{digits[0]}.{digits[1]}{power}"
    value = float(numeral) * (-1.0) ** signs.count("-")
    written = " ".join(signs) + numeral
    if in_array:
        text = kernel("ret;", f".global .f64 x[2] = {{{written},{written}}};")
        assert parse_module(text).variables["x"].initial == struct.pack("<2d", value, value)
    else:
        body = parse_module(kernel(f".reg .f64 a;\nmov.f64 a,{written};")).functions["k"].body
        assert body.instructions[0].operands[1] == Real(struct.unpack("<Q", struct.pack("<d", value))[0], 8)


@given(st.lists(st.integers(1, 4), min_size=1, max_size=4), st.randoms(use_true_random=False), st.booleans())
def test_initialisers_fill_rows_as_arrays_of_c_do(bounds: list[int], chance: random.Random, is_open: bool) -> None:
    """Rows of any length up to their bound, against an array of zeros that is written by index."""
    expected = np.zeros(bounds, "<u4")

    def rows(place: tuple[int, ...]) -> str:
        if len(place) == len(bounds):
            expected[place] = chance.randrange(1, 1 << 32)
            return str(expected[place])
        length = bounds[0] if not place and is_open else chance.randint(0, bounds[len(place)])
        return "{" + ", ".join(rows((*place, index)) for index in range(length)) + "}"

    text = rows(())
    dimensions = "".join(f"[{bound}]" for bound in bounds)
    if is_open:
        dimensions = "[]" + dimensions[dimensions.index("]") + 1 :]
    found = parse_module(kernel("ret;", f".global .u32 x{dimensions} = {text};")).variables["x"]
    assert (found.initial, found.size_bytes) == (expected.tobytes(), expected.nbytes)


@given(st.text(max_size=300))
def test_any_text_is_a_module_or_a_typed_error(text: str) -> None:
    for whole in (text, kernel(text), kernel("ret;", text), kernel("ret;", params=text)):
        try:
            module = DecodedModule.parse(whole)
            for name in module.names:
                module.kernel(name)
        except (PtxSyntaxError, NotEmulated):
            pass


SAMPLE = kernel(
    ".reg .pred p; .reg .b32 r<4>; .reg .b64 d;\nL: @p bra L;\nld.global.v2.u32 {r1, r2}, [d+8];\nmov.u32 r1, %tid.x;\n"
    "mbarrier.try_wait.parity.shared::cta.b64 p, [r1], r2;\nlop3.b32 r1, r1, r2, r3, 0x96;\n"
    "fma.rn.f32 r1, r1, 0f3F800000, r2;",
    head=".global .align 8 .u64 t[2] = {generic(s), 3};\n.global .b8 s[4] = {1, 2};\n"
    ".extern .shared .align 1024 .b8 dyn[];",
    params=".param .u64 a, .param .align 64 .b8 m[128]",
)
TOKENS = tokenise(SAMPLE)[:-1]


@settings(max_examples=300)
@given(st.randoms(use_true_random=False))
def test_any_order_of_real_tokens_is_a_module_or_a_typed_error(chance: random.Random) -> None:
    tokens = list(TOKENS)
    for _ in range(chance.randint(1, 6)):
        kind, at = chance.randrange(3), chance.randrange(len(tokens))
        if kind == 0:
            del tokens[at]
        elif kind == 1:
            tokens.insert(at, chance.choice(TOKENS))
        else:
            other = chance.randrange(len(tokens))
            tokens[at], tokens[other] = tokens[other], tokens[at]
    try:
        module = DecodedModule.parse(" ".join(tokens))
        for name in module.names:
            module.kernel(name)
    except (PtxSyntaxError, NotEmulated):
        pass


@settings(max_examples=300)
@given(st.sampled_from([line[0] for line in LINES]), st.randoms(use_true_random=False))
def test_any_operands_for_a_real_opcode_are_decoded_or_refused(instruction: str, chance: random.Random) -> None:
    others = [line[0] for line in LINES]
    tail = chance.choice(others).partition(" ")[2]
    with contextlib.suppress(PtxSyntaxError, NotEmulated):
        DecodedModule.parse(around(f"{instruction.split()[0]} {tail}")).kernel("k")


def test_no_form_of_the_grammar_is_read_by_two_rules() -> None:
    """Every combination of modifiers where a rule has few, a sample where it has many."""
    chance = random.Random(7)
    for base, rules in RULES.items():
        for rule in rules:
            choices = [[*slot.choices, *([] if slot.required else [None])] for slot in rule.slots]
            size = 1
            for options in choices:
                size *= len(options)
            combinations = (
                itertools.product(*choices)
                if size <= 400
                else ([chance.choice(c) for c in choices] for _ in range(400))
            )
            for combination in combinations:
                opcode = ".".join([base, *(modifier for modifier in combination if modifier is not None)])
                with contextlib.suppress(NotEmulated):  # where the rule's builder declines the combination
                    resolve(opcode)  # asserts that no second rule matches
