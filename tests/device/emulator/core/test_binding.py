"""Decoder and core agree on what exists: every form of the grammar has a handler."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest

from ptxgym.device.emulator.decode import DecodedModule
from ptxgym.device.emulator.decode_grammar import RULES, Rule, Slot
from ptxgym.device.emulator.ir import INST_DTYPE, OP, DecodedKernel
from ptxgym.errors import InfrastructureError
from tests.device.emulator.core.harness import core, kernel
from tests.device.emulator.decode.instances import LINES
from tests.device.emulator.decode.support import around

TENSOR = {
    "TMA_LOAD",
    "TMA_STORE",
    "BULK_LOAD",
    "BULK_STORE",
    "WGMMA",
    "MMA",
    "LDMATRIX",
    "STMATRIX",
    "MOVMATRIX",
    "CP_ASYNC",
    "CVT_STOCHASTIC",
    "CVT_PACK_INTEGERS",
    "TCGEN05_MMA",
    "TCGEN05_LD",
    "TCGEN05_ST",
}
"""Their handlers also depend on operands; the instances of the first test cover them."""


def decoded() -> DecodedKernel:
    module = DecodedModule.parse(kernel("mov.u32 %r20, 1;"))
    return module.kernel("k")


@pytest.mark.parametrize("instruction", [instruction for instruction, _ in LINES])
def test_every_accepted_instruction_is_bound(instruction: str) -> None:
    module = DecodedModule.parse(around(instruction))
    program = core().load(module.kernel(module.names[0]))
    assert OP["EXIT"] in program.decoded.inst["op"] and len(program.decoded.inst) > 1


def choices(slot: Slot) -> list[str | None]:
    """What may stand in a slot; words without effect count once."""
    distinct = {tuple(sorted(effect.items())): word for word, effect in reversed(slot.choices.items())}
    typed = slot.name in ("type", "stype", "btype", "ctype") or slot.required
    words: list[str | None] = list(slot.choices) if typed else [w for effect, w in distinct.items() if effect]
    return words if slot.required else [None, *words]


def rows(rule: Rule) -> Iterator[tuple[int, ...]]:
    for chosen in itertools.product(*map(choices, rule.slots)):
        form = rule.match([word for word in chosen if word is not None])
        template = form and rule.build(form)
        if template:
            yield template.row


@pytest.mark.parametrize("opcode", sorted(RULES))
def test_every_form_of_the_grammar_is_bound(opcode: str) -> None:
    found = {row for rule in RULES[opcode] for row in rows(rule)}
    assert found, "no rule builds anything"
    names = {number: name for name, number in OP.items()}
    inst = np.array([row for row in sorted(found) if names[row[0]] not in TENSOR], dtype=INST_DTYPE)
    if inst.size:
        assert len(core().load(replace(decoded(), inst=inst)).decoded.inst) == inst.size


def test_an_instruction_without_handler_is_named() -> None:
    inst = decoded().inst.copy()
    inst["op"][0] = 0xFFF0
    with pytest.raises(InfrastructureError, match="instruction 0: no handler for"):
        core().load(replace(decoded(), inst=inst))
