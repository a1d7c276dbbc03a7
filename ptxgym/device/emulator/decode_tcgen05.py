"""Grammar: tcgen05 with kind::f16, of one CTA and of a pair (`.cta_group::2`). PTX ISA 9.7.16.

Everything else of the family (other kinds, `.ws`, `.sp`, block scaling, `.ld.red`, decompressing copies) is refused by
name.
"""

from __future__ import annotations

from ptxgym.device.emulator.decode_grammar import (
    FIELD,
    IMM_AT,
    NVEC2_AT,
    NVEC_AT,
    STYPE_AT,
    VEC2_AT,
    VEC_AT,
    Builder,
    Form,
    Handler,
    RefusedOperand,
    Row,
    Slot,
    Template,
    choice,
    flag,
    make,
    optional,
    rule,
    types,
    word,
)
from ptxgym.device.emulator.decode_memory import SPACES, space_slot
from ptxgym.device.emulator.decode_operands import (
    Context,
    describe,
    elements,
    literal,
    memory,
    predicate,
    source,
    vector_dest,
    vector_source,
)
from ptxgym.device.emulator.ir import FEATURE, FLAG, TMEM_COPY, TMEM_SHAPE, TYPE
from ptxgym.device.emulator.ptx import Integer, Memory, Operand, Register, Vector

_ALIGNED = FLAG["F_ALIGNED"]
_FEATURES = FEATURE["FEAT_TARGET"] | FEATURE["FEAT_ASYNC"] | FEATURE["FEAT_SHARED"]
_GROUP = Slot("group", {"cta_group::1": {}, "cta_group::2": {"flags": FLAG["F_PAIR"]}})
_SCALE_LIMIT = 15
_LANE_MASKS = {"cta_group::1": 4, "cta_group::2": 8}


def _tcgen05(op: str, form: Form, *shapes: tuple[Handler, ...], flags: int = 0, imm: int | None = None) -> Template:
    return make(op, form, *shapes, family="tcgen05", features=_FEATURES, flags=flags, imm=imm)


def _tensor_address(context: Context, operand: Operand) -> tuple[int, int]:
    """Return the register that holds a 32-bit tensor memory address in brackets, and the offset that is left."""
    if not isinstance(operand, Memory) or operand.extra:
        raise RefusedOperand(f"{describe(operand)} where a tensor memory address in brackets is expected")
    if not isinstance(operand.base, Register | Integer):
        raise RefusedOperand(f"{describe(operand.base)} as a tensor memory address, which is a 32-bit register")
    return context.value(operand.base, "u32"), operand.offset


def _tensor_memory(context: Context, row: Row, operand: Operand) -> None:
    """The only tensor memory address of an instruction: `a`, its offset `imm`."""
    row[FIELD["a"]], row[IMM_AT] = _tensor_address(context, operand)


# ---- allocation


def _allocation_rules() -> None:
    head = word("sync", "aligned")
    columns = source("b", "u32")
    rule(
        "tcgen05",
        [*word("alloc"), _GROUP, *head, space_slot("", "shared::cta"), types("b32", slot="kind")],
        lambda f: _tcgen05("TCGEN05_ALLOC", f, (memory("a", SPACES[f["space"]]), columns), flags=_ALIGNED),
        example="[a], 128",
    )
    rule(
        "tcgen05",
        [*word("dealloc"), _GROUP, *head, types("b32", slot="kind")],
        lambda f: _tcgen05("TCGEN05_DEALLOC", f, (source("a", "u32"), columns), flags=_ALIGNED),
        example="t, 128",
    )
    rule(
        "tcgen05",
        [*word("relinquish_alloc_permit"), _GROUP, *head],
        lambda f: _tcgen05("TCGEN05_RELINQUISH", f, (), flags=_ALIGNED),
    )


# ---- mma


def _mma(form: Form) -> Template:
    def custom(context: Context, row: Row, operands: tuple[Operand, ...]) -> None:
        if not 5 <= len(operands) <= 7:
            raise RefusedOperand(f"{len(operands)} operands, the form has 5 to 7")
        d, a, b, descriptor, *rest = operands
        masks: tuple[Operand, ...] = ()
        if isinstance(rest[0], Vector):
            masks = elements(rest.pop(0), _LANE_MASKS[form["group"]])
        if not rest or len(rest) > 2:
            raise RefusedOperand("enable-input-d and at most scale-input-d must follow the instruction descriptor")
        d_register, d_offset = _tensor_address(context, d)
        a_offset = 0
        if isinstance(a, Memory):
            row[FIELD["a"]], a_offset = _tensor_address(context, a)
            row[STYPE_AT] = TYPE["T_U32"]
        else:
            source("a", "b64")(context, row, a)
            row[STYPE_AT] = TYPE["T_U64"]
        source("b", "b64")(context, row, b)
        source("e", "u32")(context, row, descriptor)
        predicate("c", "F_C_NOT")(context, row, rest[0])
        row[IMM_AT] = 0
        if len(rest) == 2:
            literal(0, _SCALE_LIMIT, name="scale-input-d")(context, row, rest[1])
        mask_registers = [context.value(mask, "b32") for mask in masks]
        row[VEC_AT], row[NVEC_AT] = len(context.pool), 1 + len(mask_registers)
        context.pool += (d_register, *mask_registers)
        if d_offset or a_offset:
            row[VEC2_AT], row[NVEC2_AT] = len(context.pool), 2
            context.pool += (d_offset, a_offset)

    return make("TCGEN05_MMA", form, custom=custom, family="tcgen05", features=_FEATURES)


def _mma_rules() -> None:
    hints = optional("collector", *(f"collector::a::{use}" for use in ("fill", "use", "lastuse", "discard")))
    rule(
        "tcgen05",
        [*word("mma"), _GROUP, *word("kind::f16"), hints],
        _mma,
        note="M, N and element types stand in the instruction descriptor; collector hints do not change results",
        example="[t], descriptor_a, descriptor_b, r, p",
    )


# ---- loads and stores

_SHAPES = {"32x32b": 1, "16x64b": 1, "16x128b": 2, "16x256b": 4, "16x32bx2": 1}
"""Shape → registers of one repetition."""
_MOST_REGISTERS = 128


def _split(context: Context, row: Row, operand: Operand) -> None:
    """The distance in columns between the halves of 16x32bx2."""
    if not isinstance(operand, Integer):
        raise RefusedOperand(f"{describe(operand)} where immHalfSplitoff must be a constant")
    if operand.value < 0:
        raise RefusedOperand(f"immHalfSplitoff {operand.value} is negative")
    row[VEC2_AT], row[NVEC2_AT] = len(context.pool), 1
    context.pool.append(operand.value)


def _transfer(op: str) -> Builder:
    def build(form: Form) -> Template | None:
        count = int(form["num"][1:]) * _SHAPES[form["shape"]]
        if count > _MOST_REGISTERS:
            return None
        halves = (_split,) if form["shape"] == "16x32bx2" else ()
        shape: tuple[Handler, ...]
        if op == "TCGEN05_LD":
            shape = (vector_dest(count, "b32"), _tensor_memory, *halves)
        else:
            shape = (_tensor_memory, *halves, vector_source(count, "b32"))
        return _tcgen05(op, form, shape, flags=_ALIGNED)

    return build


def _transfer_rules() -> None:
    head = word("sync", "aligned")
    shape = choice("shape", "mods", {name: TMEM_SHAPE["TMEM_" + name.upper()] for name in _SHAPES})
    counts = Slot("num", {f"x{1 << power}": {} for power in range(8)})
    b32 = types("b32", slot="kind")
    rule(
        "tcgen05",
        [*word("ld"), *head, shape, counts, flag("pack::16b", "F_PACK"), b32],
        _transfer("TCGEN05_LD"),
        example="{d0, …}, [t]",
    )
    rule(
        "tcgen05",
        [*word("st"), *head, shape, counts, flag("unpack::16b", "F_PACK"), b32],
        _transfer("TCGEN05_ST"),
        example="[t], {d0, …}",
    )
    for name, stores in (("wait::ld", 0), ("wait::st", 1)):
        rule(
            "tcgen05",
            [*word(name), *head],
            lambda f, stores=stores: _tcgen05("TCGEN05_WAIT", f, (), flags=_ALIGNED, imm=stores),  # type: ignore[misc]
        )


# ---- copies, commit, fences


def _copy_rules() -> None:
    operands = (_tensor_memory, source("b", "b64"))

    def copy(name: str, *more: str) -> None:
        code = "_".join((name, *(part.split("::")[1] for part in more if "::" in part)))
        rule(
            "tcgen05",
            [*word("cp"), _GROUP, *word(name, *more)],
            lambda f: make(
                "TCGEN05_CP", f, operands, family="tcgen05", features=_FEATURES, mods=TMEM_COPY["TCP_" + code.upper()]
            ),
            example="[t], descriptor_a",
        )

    copy("128x256b")
    copy("4x256b")
    copy("128x128b")
    copy("64x128b", "warpx2::02_13")
    copy("64x128b", "warpx2::01_23")
    copy("32x128b", "warpx4")
    rule(
        "tcgen05",
        [*word("shift"), _GROUP, *word("down")],
        lambda f: _tcgen05("TCGEN05_SHIFT", f, (_tensor_memory,)),
        note="row r takes what row r + 1 held",
        example="[t]",
    )


def _order_rules() -> None:
    place = [*word("commit"), _GROUP, *word("mbarrier::arrive::one"), space_slot("", "shared::cluster")]
    b64 = types("b64", slot="kind")
    rule(
        "tcgen05",
        [*place, b64],
        lambda f: _tcgen05("TCGEN05_COMMIT", f, (memory("a", SPACES[f["space"]]),)),
        example="[a]",
    )
    rule(
        "tcgen05",
        [*place, *word("multicast::cluster"), b64],
        lambda f: _tcgen05("TCGEN05_COMMIT", f, (memory("a", SPACES[f["space"]]), source("b", "b16"))),
        example="[a], mask",
    )
    for name, after in (("fence::before_thread_sync", 0), ("fence::after_thread_sync", 1)):
        rule(
            "tcgen05",
            word(name),
            lambda f, after=after: _tcgen05("TCGEN05_FENCE", f, (), imm=after),  # type: ignore[misc]
        )


_allocation_rules()
_mma_rules()
_transfer_rules()
_copy_rules()
_order_rules()
