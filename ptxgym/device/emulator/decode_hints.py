"""Grammar: instructions that only concern caches (prefetches, policies): counted, without effect. PTX ISA 9.7.9."""

from __future__ import annotations

from ptxgym.device.emulator.decode_grammar import (
    T_CODE,
    Builder,
    Form,
    Handler,
    RefusedOperand,
    Row,
    Slot,
    Template,
    make,
    optional,
    rule,
    types,
    word,
)
from ptxgym.device.emulator.decode_operands import Context, describe, dest, enter_address
from ptxgym.device.emulator.ir import NOP_REASON
from ptxgym.device.emulator.ptx import Integer, Memory, Operand, Real, Register


def nop(reason: str, *shapes: tuple[Handler, ...]) -> Builder:
    """A builder for an accepted instruction that has no effect on results."""
    return lambda form: make("NOP", form, *shapes, family="hint", imm=NOP_REASON[reason], mods=0)


def checked_address(space: str) -> Handler:
    """An address that is checked for its form and then dropped: prefetches never fault."""

    def handler(context: Context, row: Row, operand: Operand) -> None:
        if not isinstance(operand, Memory):
            raise RefusedOperand(f"{describe(operand)} where an address in brackets is expected")
        scratch = list(row)
        enter_address(context, scratch, "a", operand, space)

    return handler


def checked_value(context: Context, row: Row, operand: Operand) -> None:
    """A register or constant that has no effect on results."""
    if not isinstance(operand, Integer | Real | Register):
        raise RefusedOperand(f"{describe(operand)} where a value is expected")


def _policy_template(form: Form) -> Template:
    target = dest("d", "b64")
    shapes: list[tuple[Handler, ...]] = [(target, checked_value)]
    if form["kind"] == "fractional":
        shapes.append((target,))
    elif form["kind"] == "range":
        shapes = [(target, checked_address("global" if form["global"] else ""), checked_value, checked_value)]
    return make("NOP", form, *shapes, family="hint", imm=NOP_REASON["NOP_CREATEPOLICY"], type=T_CODE["b64"])


def _hint_rules() -> None:
    for level in ("L1", "L2"):
        for space in ("global", "local", ""):
            slots = [*word(level), *(word(space) if space else [])]
            rule("prefetch", slots, nop("NOP_PREFETCH", (checked_address(space),)), example="[a]")
    rule("prefetch", [*word("global"), Slot("level", {"L2::evict_last": {}, "L2::evict_normal": {}})],
         nop("NOP_PREFETCH", (checked_address("global"),)), example="[a]")  # fmt: skip
    rule("prefetchu", word("L1"), nop("NOP_PREFETCH", (checked_address(""),)), example="[a]")
    for space in ("", "param", "const"):
        slots = [*(word(space) if space else []), *word("tensormap")]
        rule("prefetch", slots, nop("NOP_PREFETCH", (checked_address(space),)), example="[a]")
    rule("applypriority", [optional("global", "global"), *word("L2::evict_normal")],
         nop("NOP_PREFETCH", (checked_address(""), checked_value)), example="[a], 128")  # fmt: skip
    first = Slot("first", {f"L2::{p}": {} for p in ("evict_last", "evict_normal", "evict_first", "evict_unchanged")})
    second = optional("second", "L2::evict_first", "L2::evict_unchanged")
    fractional = Slot("kind", {"fractional": {}})
    rule(
        "createpolicy",
        [fractional, first, second, types("b64", slot="result")],
        _policy_template,
        example="d, 0f3F800000",
    )
    ranged = Slot("kind", {"range": {}})
    rule(
        "createpolicy",
        [ranged, optional("global", "global"), first, second, types("b64", slot="result")],
        _policy_template,
        example="d, [a], 128, 128",
    )
    converted = Slot("kind", {"cvt": {}})
    rule("createpolicy", [converted, *word("L2"), types("b64", slot="result")], _policy_template, example="d, a")


_hint_rules()
