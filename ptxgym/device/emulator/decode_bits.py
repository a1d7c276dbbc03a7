"""Grammar: logic, shifts, bit fields, permutes. PTX ISA 9.7.1 (bit instructions), 9.7.8, 9.7.9.7."""

from __future__ import annotations

from ptxgym.device.emulator.decode_alu import alu
from ptxgym.device.emulator.decode_grammar import Builder, Form, Handler, Template, choice, flag, make, rule, types
from ptxgym.device.emulator.decode_operands import dest, literal, pair, predicate, source
from ptxgym.device.emulator.ir import BOOL, FLAG

_PRMT_MODES = {name: index + 1 for index, name in enumerate(("f4e", "b4e", "rc8", "ecl", "ecr", "rc16"))}


def _shift(op: str) -> Builder:
    return lambda form: make(op, form, (dest("d", form["type"]), source("a", form["type"]), source("b", "u32")))


def _count(op: str) -> Builder:
    """Instructions whose result is a 32-bit count of something in a 32- or 64-bit source."""
    return lambda form: make(op, form, (dest("d", "u32"), source("a", form["type"])))


def _predicates(op: str) -> Builder:
    return lambda form: make(op, form, (dest("d", "pred"), predicate("a"), predicate("b")))


def _rules() -> None:
    for op in ("AND", "OR", "XOR"):
        rule(op.lower(), [types("b16", "b32", "b64")], alu(op, "dab"), example="d, a, b")
        rule(op.lower(), [types("pred")], _predicates(op), example="p, q, r")
    rule("not", [types("b16", "b32", "b64")], alu("NOT", "da"), example="d, a")
    rule("not", [types("pred")], lambda form: make("NOT", form, (dest("d", "pred"), predicate("a"))), example="p, q")
    rule("cnot", [types("b16", "b32", "b64")], alu("CNOT", "da"), example="d, a")
    rule("shl", [types("b16", "b32", "b64")], _shift("SHL"), example="d, a, b")
    rule(
        "shr",
        [types("b16", "b32", "b64", "u16", "u32", "u64", "s16", "s32", "s64")],
        _shift("SHR"),
        example="d, a, b",
    )
    rule(
        "shf",
        [
            choice("direction", "flags", {"l": FLAG["F_LEFT"], "r": 0}),
            choice("bound", "flags", {"clamp": 0, "wrap": FLAG["F_WRAP"]}),
            types("b32"),
        ],
        lambda form: make("SHF", form, (dest("d", "b32"), source("a", "b32"), source("b", "b32"), source("c", "u32"))),
        example="d, a, b, c",
    )
    lut = literal(0, 255, name="lookup table")
    rule("lop3", [types("b32")], lambda f: make("LOP3", f, (*_three(f), lut)), example="d, a, b, c, 0x80")
    rule(
        "lop3",
        [choice("bool", "mods", {"or": BOOL["B_OR"] << 4, "and": BOOL["B_AND"] << 4}), types("b32")],
        _lop3_predicate,
        example="d|p, a, b, c, 0x80, q",
    )
    rule(
        "prmt",
        [types("b32"), choice("mode", "imm", _PRMT_MODES, default=0)],
        lambda f: make("PRMT", f, _three(f)),
        example="d, a, b, c",
    )
    u32 = "u32"
    rule(
        "bfe",
        [types("u32", "u64", "s32", "s64")],
        lambda f: make("BFE", f, (dest("d", f["type"]), source("a", f["type"]), source("b", u32), source("c", u32))),
        example="d, a, b, c",
    )
    rule("bfi", [types("b32", "b64")], _bfi, example="d, a, b, c, e")
    rule("bfind", [flag("shiftamt", "F_SHIFTAMT"), types("u32", "u64", "s32", "s64")], _count("BFIND"), example="d, a")
    rule("brev", [types("b32", "b64")], alu("BREV", "da"), example="d, a")
    rule("clz", [types("b32", "b64")], _count("CLZ"), example="d, a")
    rule("popc", [types("b32", "b64")], _count("POPC"), example="d, a")
    rule(
        "fns",
        [types("b32")],
        lambda f: make("FNS", f, (dest("d", "b32"), source("a", "b32"), source("b", "b32"), source("c", "s32"))),
        example="d, a, b, c",
    )
    bound = choice("bound", "flags", {"clamp": 0, "wrap": FLAG["F_WRAP"]})
    rule("bmsk", [bound, types("b32")], alu("BMSK", "dab"), example="d, a, b")
    rule(
        "szext",
        [bound, types("u32", "s32")],
        lambda f: make("SZEXT", f, (dest("d", f["type"]), source("a", f["type"]), source("b", u32))),
        example="d, a, b",
    )


def _three(form: Form) -> tuple[Handler, ...]:
    return (dest("d", "b32"), source("a", "b32"), source("b", "b32"), source("c", "b32"))


def _lop3_predicate(form: Form) -> Template:
    destination = pair(dest("d", "b32", sink=True), dest("d2", "pred"), required=True)
    return make(
        "LOP3",
        form,
        (
            destination,
            source("a", "b32"),
            source("b", "b32"),
            source("c", "b32"),
            literal(0, 255, name="lookup table"),
            predicate("e", "F_C_NOT"),
        ),
    )


def _bfi(form: Form) -> Template:
    kind = form["type"]
    return make(
        "BFI",
        form,
        (dest("d", kind), source("a", kind), source("b", kind), source("c", "u32"), source("e", "u32")),
    )


_rules()
