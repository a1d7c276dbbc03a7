"""The grammar of accepted instructions: rules of modifier slots, matched against an opcode.

A form is accepted only if every modifier fits exactly one slot of a rule and every required slot is filled; everything
else is `NotEmulated`. Modifiers may come in any order, except types and others whose order carries the meaning.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from ptxgym.device.emulator.ir import FLAG, INST_FIELDS, OP, TYPE
from ptxgym.device.emulator.ptx import TYPE_BYTES, Operand
from ptxgym.errors import PtxgymError

if TYPE_CHECKING:
    from ptxgym.device.emulator.decode_operands import Context

Row = list[int]
"""The members of one `struct Inst`, in order."""
FIELD: Mapping[str, int] = {name: index for index, (name, _) in enumerate(INST_FIELDS)}
OP_AT, TYPE_AT, STYPE_AT, FLAGS_AT, MODS_AT, GUARD_AT, GUARD_NOT_AT = range(7)
VEC_AT, NVEC_AT, VEC2_AT, NVEC2_AT = (FIELD[name] for name in ("vec", "nvec", "vec2", "nvec2"))
TARGET_AT, IMM_AT = FIELD["target"], FIELD["imm"]

Handler = Callable[["Context", Row, Operand], None]
"""Checks one operand and enters it into the row."""
Custom = Callable[["Context", Row, tuple[Operand, ...]], None]
"""Does the same for all operands at once, where they depend on each other."""

FAMILIES = (
    "wgmma", "tcgen05", "tma", "mma.sync", "ldmatrix", "stmatrix", "mbarrier", "cp.async", "barrier", "fence", "fma",
    "hfma2", "fmul", "dp4a", "alu", "cvt", "ld", "st", "atom", "warp", "control", "call", "hint",
)  # fmt: skip
"""Names of `DecodedKernel.families`. `hfma2`: packed half fma; `fmul`: float multiplication."""


class NotEmulated(PtxgymError):
    """Raised, before anything runs, for an instruction that the emulator would not execute exactly."""

    def __init__(self, form: str, reason: str, line: int = 0, code: str = "emulator.not_emulated") -> None:
        super().__init__(f"{form}: {reason}")
        self.form = form
        """The full opcode as written."""
        self.reason = reason
        """Why, and what to use instead where that is known."""
        self.line = line
        """Line of the submission; 0 where there is none."""
        self.code = code
        """Stable code of the `Failure`."""


class RefusedOperand(PtxgymError):
    """Raised by operand handlers; `decode` adds the form and the line."""

    def __init__(self, reason: str, code: str = "emulator.not_emulated") -> None:
        super().__init__(reason)
        self.code = code


@dataclass(frozen=True)
class Slot:
    """A place for one modifier."""

    name: str
    choices: Mapping[str, Mapping[str, int]]
    """Modifier → what it adds: `flags`, `mods`, `imm`, `type`, `stype`."""
    required: bool = True
    default: Mapping[str, int] = field(default_factory=dict)
    """What its absence adds."""

    def text(self) -> str:
        """Print as documentation does: `.{rn,rz}` where required, `{.ftz}` where optional."""
        names = list(self.choices)
        joined = f".{names[0]}" if len(names) == 1 else ".{" + ",".join(names) + "}"
        return joined if self.required else ("{" + joined + "}" if len(names) == 1 else joined + "?")


@dataclass(frozen=True)
class Form:
    """An opcode as a rule has read it: the modifier chosen for each slot (empty where left out)."""

    chosen: Mapping[str, str]
    effects: Mapping[str, int]

    def __getitem__(self, slot: str) -> str:
        return self.chosen[slot]

    def type_bytes(self, slot: str = "type") -> int:
        """Bytes of the type in `slot`."""
        return TYPE_BYTES[self.chosen[slot]]


@dataclass(frozen=True)
class Template:
    """Everything about an instruction that its opcode decides."""

    row: tuple[int, ...]
    shapes: Mapping[int, tuple[Handler, ...]]
    """Number of operands → their handlers."""
    custom: Custom | None = None
    family: str = "alu"
    thread_multiply_adds: int = 0
    warp_multiply_adds: int = 0
    features: int = 0


Builder = Callable[[Form], "Template | None"]
"""Turns a matched form into its template; None declines a combination of modifiers."""


_ORDERED = frozenset({"type", "stype", "btype", "ctype", "first", "second", "row", "col", "to", "from", "global"})
"""Slots whose order carries the meaning: `cvt.rn.bf16.f16` is not `cvt.rn.f16.bf16`."""


@dataclass(frozen=True)
class Rule:
    """One line of the grammar."""

    opcode: str
    slots: tuple[Slot, ...]
    build: Builder
    note: str = ""
    example: str = ""
    """Operands of an accepted instance, for documentation and tests."""

    def text(self) -> str:
        """Print the rule as `opcode.{…}`."""
        return self.opcode + "".join(slot.text() for slot in self.slots)

    def match(self, modifiers: Sequence[str]) -> Form | None:
        """Read `modifiers`; None if they do not fit."""
        chosen: dict[str, str] = {}
        last = -1
        for modifier in modifiers:
            for index, slot in enumerate(self.slots):
                if slot.name in chosen or modifier not in slot.choices:
                    continue
                if slot.name in _ORDERED:
                    if index < last:
                        continue
                    last = index
                chosen[slot.name] = modifier
                break
            else:
                return None
        effects = {"flags": 0, "mods": 0, "imm": 0, "type": 0, "stype": 0}
        for slot in self.slots:
            picked = chosen.get(slot.name)
            if picked is None:
                if slot.required:
                    return None
                chosen[slot.name] = ""
            for key, value in (slot.default if picked is None else slot.choices[picked]).items():
                effects[key] |= value
        return Form(chosen, effects)


RULES: dict[str, list[Rule]] = {}
"""Opcode → its rules. Filled by the `decode_…` modules when they are imported."""


def rule(opcode: str, slots: Iterable[Slot], build: Builder, *, note: str = "", example: str = "") -> None:
    """Add a rule to the grammar. A builder that answers None declines the combination."""
    RULES.setdefault(opcode, []).append(Rule(opcode, tuple(slots), build, note, example))


# ---- slots

T_CODE: Mapping[str, int] = {
    "pred": TYPE["T_PRED"], "b8": TYPE["T_U8"], "b16": TYPE["T_U16"], "b32": TYPE["T_U32"], "b64": TYPE["T_U64"],
    "b128": TYPE["T_B128"],
    **{name: TYPE["T_" + name.upper()] for name in (
        "u8", "u16", "u32", "u64", "s8", "s16", "s32", "s64", "f16", "f16x2", "bf16", "bf16x2", "f32", "f32x2",
        "f64", "tf32", "e4m3", "e5m2", "e4m3x2", "e5m2x2", "e2m1x2", "e2m3x2", "e3m2x2", "ue8m0x2", "u16x2",
        "s16x2", "u4", "s4", "b1")},
}  # fmt: skip
"""PTX type name → `enum Type`."""


def types(*names: str, slot: str = "type") -> Slot:
    """A required type; `slot` is `type`, `stype`, or another name (which then sets neither)."""
    return Slot(slot, {name: {slot: T_CODE[name]} if slot in ("type", "stype") else {} for name in names})


def flag(word: str, name: str) -> Slot:
    """An optional modifier that sets a flag."""
    return Slot(word, {word: {"flags": FLAG[name]}}, required=False)


def word(*words: str) -> list[Slot]:
    """Required words without an effect of their own."""
    return [Slot(name, {name: {}}) for name in words]


def optional(name: str, *words: str) -> Slot:
    """At most one of `words`, without any effect on results."""
    return Slot(name, {text: {} for text in words}, required=False)


def choice(name: str, key: str, values: Mapping[str, int], *, default: int | None = None) -> Slot:
    """One of `values`, which adds to `key`; optional if `default` is given."""
    return Slot(
        name,
        {text: {key: value} for text, value in values.items()},
        required=default is None,
        default={} if default is None else {key: default},
    )


def rounding(*words: str, required: bool) -> Slot:
    """A rounding modifier; nearest-even is the default of those that may be left out."""
    return Slot("rounding", {text: {"flags": FLAG["F_" + text.upper()]} for text in words}, required=required)


def make(
    op: str,
    form: Form,
    *shapes: tuple[Handler, ...],
    custom: Custom | None = None,
    family: str = "alu",
    thread_multiply_adds: int = 0,
    warp_multiply_adds: int = 0,
    features: int = 0,
    flags: int = 0,
    mods: int = 0,
    type: int | None = None,
    stype: int | None = None,
    imm: int | None = None,
) -> Template:
    """Build a template: the operation, the effects of the form, and what else is fixed; -1 for absent operands.

    `flags` and `mods` are added to those of the form; `type`, `stype` and `imm` replace them.
    """
    row = [0] * len(INST_FIELDS)
    for name in ("guard", "d", "d2", "a", "b", "c", "e"):
        row[FIELD[name]] = -1
    row[OP_AT] = OP[op]
    for key, value in form.effects.items():
        row[FIELD[key]] = value
    row[FLAGS_AT] |= flags
    row[MODS_AT] |= mods
    for at, fixed in ((TYPE_AT, type), (STYPE_AT, stype), (IMM_AT, imm)):
        if fixed is not None:
            row[at] = fixed
    assert family in FAMILIES, family
    return Template(
        tuple(row),
        {len(shape): shape for shape in shapes},
        custom,
        family,
        thread_multiply_adds,
        warp_multiply_adds,
        features,
    )


def resolve(opcode: str) -> Template:
    """Find the one rule that reads `opcode` and build its template.

    Raises:
        NotEmulated: if there is none.
    """
    from ptxgym.device.emulator.decode_refused import reason_for

    base, *modifiers = opcode.split(".")
    found: Template | None = None
    for candidate in RULES.get(base, ()):
        form = candidate.match(modifiers)
        if form is None:
            continue
        template = candidate.build(form)
        if template is None:
            continue
        assert found is None, f"two rules accept {opcode}: the second is {candidate.text()}"
        found = template
    if found is None:
        raise NotEmulated(opcode, reason_for(base, modifiers))
    return found
