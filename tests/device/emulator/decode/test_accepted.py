"""Every accepted form decodes to what the PTX ISA says it means: operation, types, modifier bits, operand places."""

from __future__ import annotations

import re

import pytest

from ptxgym.device.emulator import ir
from ptxgym.device.emulator.decode_grammar import RULES, NotEmulated
from tests.device.emulator.decode.instances import LINES, REFUSED_LINES
from tests.device.emulator.decode.support import FIELDS, decode_one, registers

TABLES = (
    (ir.CMP, 0),
    (ir.ATOM, 0),
    (ir.TMEM_SHAPE, 0),
    (ir.TMEM_COPY, 0),
    (ir.MMA_KIND, 0),
    (ir.TMEM_UNPACK, 4),
    (ir.REGISTER_COUNT, 0),
    (ir.SPACE, 4),
    (ir.COLLECTOR, 4),
    ({f"BUFFER_B{number}": number for number in range(4)}, 8),
    (ir.BOOL, 4),
    (ir.ORDER, 8),
    (ir.SCOPE, 12),
)
MODS = {name: value << shift for table, shift in TABLES for name, value in table.items()}
MODS |= {name.removeprefix("M_"): value for name, value in ir.ADDRESS_WIDTH.items()}
WITH_OPTIONAL_LAST = (
    "mbarrier.arrive.",
    "mbarrier.arrive_drop.shared",
    "mbarrier.try_wait",
    "bar.",
    "barrier.cta",
    "barrier.sync",
    "barrier.red",
    "barrier.arrive",
    "cp.async.ca",
    "cp.async.cg",
    "createpolicy.fractional",
    "wmma.load",
    "max.",
    "min.",
    "wmma.store",
)
INSTRUCTIONS = [instruction for instruction, _ in LINES]
IDS = [f"{instruction.split()[0]}-{number}" for number, instruction in enumerate(INSTRUCTIONS)]
NAMES_CHECKED = re.compile(r"(d2|[abcde])(8|16|32|64|128|p)")


def expected(text: str) -> dict[str, int]:
    op, *words = text.split()
    want = {"op": ir.OP[op], "type": 0, "flags": 0, "mods": 0, "imm": 0}
    for index, token in enumerate(words):
        if token.startswith("imm="):
            want["imm"] = int(token[4:], 0)
        elif token.startswith("SR_"):
            want["imm"] = ir.SREG[token]
        elif token in MODS:
            want["mods"] |= MODS[token]
        elif index == 0 and "T_" + token.split("/")[0] in ir.TYPE:
            kind, *source = token.split("/")
            want["type"] = ir.TYPE["T_" + kind]
            if source:
                want["stype"] = ir.TYPE["T_" + source[0]]
        else:
            want["flags"] |= ir.FLAG["F_" + token]
    return want


@pytest.mark.parametrize(("instruction", "text"), LINES, ids=IDS)
def test_decodes_to_its_meaning(instruction: str, text: str) -> None:
    decoded = decode_one(instruction)
    want = expected(text)
    assert {key: decoded.row[key] for key in want} == want
    if instruction.startswith(("prefetch", "applypriority", "createpolicy", "cp.async.bulk.prefetch.L2")):
        return  # their operands have no effect and are dropped
    operands = instruction.partition(" ")[2]
    for field in FIELDS:
        named = [name for name in registers(operands) if (m := NAMES_CHECKED.fullmatch(name)) and m[1] == field]
        if field == "b" and ".L2::cache_hint" in instruction.split()[0] and "b64" in named:
            continue  # the policy, or a second use of the same name
        if named and not (field == "a" and ", a64" in operands):
            assert decoded.row[field] >= 0, f"{field} is not set"
            assert decoded.name(decoded.row[field]) == named[0]
        elif (
            not named
            and ".cc" not in instruction
            and "addc" not in instruction
            and "subc" not in instruction
            and "madc" not in instruction
            and not (field == "b" and instruction.startswith("tensormap."))  # a constant
        ):
            assert decoded.row[field] == -1, f"{field} is set although nothing names it"
    for field, letter in (("vec", "v"), ("vec2", "x")):
        want_names = [name for name in registers(operands) if name[0] == letter]
        if want_names:
            assert [name for name in decoded.vector(field) if name != "_"] == want_names


@pytest.mark.parametrize("instruction", REFUSED_LINES)
def test_neighbours_that_mean_something_else_are_refused(instruction: str) -> None:
    with pytest.raises(NotEmulated) as caught:
        decode_one(instruction)
    assert caught.value.form == instruction.split()[0]
    assert caught.value.reason


def matching(opcode: str) -> list[int]:
    """Rules that accept an opcode."""
    base, *modifiers = opcode.split(".")
    return [
        id(rule)
        for rule in RULES.get(base, [])
        if (form := rule.match(modifiers)) is not None and rule.build(form) is not None
    ]


def test_every_rule_has_an_accepted_instance_and_no_form_has_two_rules() -> None:
    seen: set[int] = set()
    for instruction, _ in LINES:
        rules = matching(instruction.split()[0])
        assert len(rules) == 1, instruction
        seen.update(rules)
    missing = [
        rule.text() for rules in RULES.values() for rule in rules if id(rule) not in seen and rule.opcode != "call"
    ]
    assert not missing


@pytest.mark.parametrize("instruction", INSTRUCTIONS, ids=IDS)
def test_a_changed_modifier_is_refused_or_another_rule(instruction: str) -> None:
    """One modifier more, one that is unknown, one twice: never the same meaning."""
    opcode, _, operands = instruction.partition(" ")
    base, *modifiers = opcode.split(".")
    for extra in ("bogus", "v3", *modifiers[:1]):
        if extra == modifiers[0:1] and extra in ("f32",):
            continue
        changed = ".".join([base, *modifiers, extra])
        if matching(changed):
            assert decode_changed(changed, operands) != decode_changed(opcode, operands)


def decode_changed(opcode: str, operands: str) -> object:
    try:
        row = decode_one(f"{opcode} {operands}").row
    except NotEmulated:
        return opcode
    return row


@pytest.mark.parametrize("instruction", INSTRUCTIONS, ids=IDS)
def test_one_operand_more_is_refused(instruction: str) -> None:
    opcode, _, operands = instruction.partition(" ")
    if opcode.startswith(WITH_OPTIONAL_LAST):
        operands += ", x14"  # taken, or already one too many
    for surplus in ("x15", "{x14, x15}"):
        with pytest.raises(NotEmulated):
            decode_one(f"{opcode} {operands}, {surplus}" if operands else f"{opcode} {surplus}")
