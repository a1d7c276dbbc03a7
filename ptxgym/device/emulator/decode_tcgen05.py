"""Grammar: tcgen05 of one CTA and of a pair (`.cta_group::2`), all kinds of dense products. PTX ISA 9.7.16.

Sparse products (`.sp`), a shifted A (`.ashift`) and what sm_100a lacks (`.ld.red`) are refused by name.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

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
from ptxgym.device.emulator.ir import COLLECTOR, FEATURE, FLAG, MMA_KIND, TMEM_COPY, TMEM_SHAPE, TMEM_UNPACK, TYPE
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
    if not -(1 << 31) <= operand.offset < 1 << 31:
        raise RefusedOperand(f"the offset {operand.offset}, which does not fit into 32 bits")
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


def _product(context: Context, row: Row, operands: tuple[Operand, ...], more: Sequence[Operand]) -> list[Operand]:
    """Enter D, A, B, the instruction descriptor and the addresses in `more`; return the operands that are left."""
    d, a, b, descriptor = operands[:4]
    addresses = [_tensor_address(context, d)]
    if isinstance(a, Memory):
        row[FIELD["a"]], a_offset = _tensor_address(context, a)
        row[STYPE_AT] = TYPE["T_U32"]
    else:
        source("a", "b64")(context, row, a)
        row[STYPE_AT], a_offset = TYPE["T_U64"], 0
    source("b", "b64")(context, row, b)
    source("e", "u32")(context, row, descriptor)
    addresses += [_tensor_address(context, operand) for operand in more]
    offsets = [addresses[0][1], a_offset, *(offset for _, offset in addresses[1:])]
    _pool(context, row, *(register for register, _ in addresses))
    if any(offsets):
        row[VEC2_AT], row[NVEC2_AT] = len(context.pool), len(offsets)
        context.pool += offsets
    return list(operands[4 + len(more) :])


def _pool(context: Context, row: Row, *registers: int) -> None:
    row[VEC_AT], row[NVEC_AT] = len(context.pool), len(registers)
    context.pool += registers


def _extend(context: Context, row: Row, operands: Sequence[Operand], kind: str) -> None:
    """Append operands to `vec`, which may no longer be the end of the pool."""
    start, count = row[VEC_AT], row[NVEC_AT]
    _pool(context, row, *context.pool[start : start + count], *(context.value(operand, kind) for operand in operands))


def _mma(form: Form) -> Template:
    def custom(context: Context, row: Row, operands: tuple[Operand, ...]) -> None:
        if not 5 <= len(operands) <= 7:
            raise RefusedOperand(f"{len(operands)} operands, the form has 5 to 7")
        rest = _product(context, row, operands, ())
        if isinstance(rest[0], Vector):
            _extend(context, row, elements(rest.pop(0), _LANE_MASKS[form["group"]]), "b32")
        if not rest or len(rest) > 2:
            raise RefusedOperand("enable-input-d and at most scale-input-d must follow the instruction descriptor")
        predicate("c", "F_C_NOT")(context, row, rest[0])
        row[IMM_AT] = 0
        if len(rest) == 2:
            if form["kind"] not in _SCALED_INPUT:
                raise RefusedOperand(f"scale-input-d, which .{form['kind']} does not have")
            literal(0, _SCALE_LIMIT, name="scale-input-d")(context, row, rest[1])

    return make("TCGEN05_MMA", form, custom=custom, family="tcgen05", features=_FEATURES)


def _weight_stationary(form: Form) -> Template:
    def custom(context: Context, row: Row, operands: tuple[Operand, ...]) -> None:
        if not 5 <= len(operands) <= 6:
            raise RefusedOperand(f"{len(operands)} operands, the form has 5 or 6")
        enable, *mask = _product(context, row, operands, ())
        predicate("c", "F_C_NOT")(context, row, enable)
        _extend(context, row, mask, "b64")

    return make("TCGEN05_MMA", form, custom=custom, family="tcgen05", features=_FEATURES, flags=FLAG["F_WS"])


def _block_scaled(form: Form) -> Template:
    def custom(context: Context, row: Row, operands: tuple[Operand, ...]) -> None:
        if len(operands) != 7:
            raise RefusedOperand(f"{len(operands)} operands, the form has 7")
        (enable,) = _product(context, row, operands, operands[4:6])
        predicate("c", "F_C_NOT")(context, row, enable)

    return make("TCGEN05_MMA", form, custom=custom, family="tcgen05", features=_FEATURES)


_KINDS = ("f16", "tf32", "f8f6f4", "i8")
_SCALED_INPUT = ("kind::f16", "kind::tf32")
_BLOCK_SCALED: Mapping[str, tuple[Mapping[str, int], int | None]] = {
    "mxf8f6f4": ({"scale_vec::1X": 1, "block32": 1}, 1),
    "mxf4": ({"scale_vec::2X": 2, "block32": 2}, 2),
    "mxf4nvf4": ({"scale_vec::2X": 2, "block32": 2, "scale_vec::4X": 4, "block16": 4}, None),
}
"""Kind → (scale vector size → scale factors of a row, that of its absence). PTX ISA 9.7.16.10.7.1."""
_USES = ("fill", "use", "lastuse", "discard")
_NOTE = (
    "M, N and element types stand in the instruction descriptor; what a collector buffer may hold is read from memory: "
    "`tcgen05.collector` where a GPU may take another matrix; not measured on hardware"
)


def _mma_rules() -> None:
    def kinds(*names: str) -> Slot:
        return choice("kind", "mods", {f"kind::{name}": MMA_KIND["KIND_" + name.upper()] for name in names})

    def collector(buffers: Mapping[str, int]) -> Slot:
        uses = {
            f"collector::{name}::{use}": COLLECTOR["COLLECTOR_" + use.upper()] << 4 | number << 8
            for name, number in buffers.items()
            for use in _USES
        }
        return choice("collector", "mods", uses, default=0)

    hints = collector({"a": 0})
    hints_b = collector({f"b{number}": number for number in range(4)})
    plain = "[t], descriptor_a, descriptor_b, r, p"
    rule("tcgen05", [*word("mma"), _GROUP, kinds(*_KINDS), hints], _mma, note=_NOTE, example=plain)
    rule(
        "tcgen05",
        [*word("mma", "ws", "cta_group::1"), kinds(*_KINDS), hints_b],
        _weight_stationary,
        note=_NOTE + "; a zero-column mask that shifts is refused when it runs",
        example=plain,
    )
    for name, (sizes, absent) in _BLOCK_SCALED.items():
        size = choice("size", "imm", sizes, default=absent)
        rule(
            "tcgen05",
            [*word("mma"), _GROUP, kinds(name), *word("block_scale"), size, hints],
            _block_scaled,
            note=_NOTE,
            example="[t], descriptor_a, descriptor_b, r, [t], [t], p",
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
    formats = {name: TMEM_UNPACK["TU_" + name.upper()] << 4 for name in ("b6x16_p32", "b4x16_p64")}

    def copy(name: str, *more: str) -> None:
        code = TMEM_COPY["TCP_" + "_".join((name, *(part.split("::")[1] for part in more if "::" in part))).upper()]
        head = [*word("cp"), _GROUP, *word(name, *more)]

        def build(form: Form) -> Template:
            return make("TCGEN05_CP", form, operands, family="tcgen05", features=_FEATURES, mods=code)

        rule("tcgen05", head, build, example="[t], descriptor_a")
        decompressing = [*head, *word("b8x16"), choice("source", "mods", formats)]
        note = "4-bit elements go to bits 2-5 of a byte"
        rule("tcgen05", decompressing, build, note=note, example="[t], descriptor_a")

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
