"""Grammar: mov, cvt, cvta, isspacep. PTX ISA 9.7.9."""

from __future__ import annotations

from ptxgym.device.emulator.decode_grammar import (
    FIELD,
    IMM_AT,
    NVEC_AT,
    OP_AT,
    STYPE_AT,
    T_CODE,
    VEC_AT,
    Custom,
    Form,
    Handler,
    RefusedOperand,
    Row,
    Slot,
    Template,
    choice,
    flag,
    make,
    rounding,
    rule,
    types,
    word,
)
from ptxgym.device.emulator.decode_operands import (
    CHANGING_SREGS,
    Context,
    describe,
    dest,
    predicate,
    source,
    vector_source,
)
from ptxgym.device.emulator.ir import FLAG, OP, SPACE, TYPE
from ptxgym.device.emulator.ptx import BYTE_TYPES, TYPE_BYTES, Name, Operand, Register, Sink, Special, Vector

_MOV_TYPES = (
    "pred", "b16", "b32", "b64", "b128", "u16", "u32", "u64", "s16", "s32", "s64", "f16", "bf16", "f16x2", "bf16x2",
    "f32", "f64",
)  # fmt: skip
_UNSIGNED_OF_BYTES = {1: "b8", 2: "b16", 4: "b32", 8: "b64", 16: "b128"}
REGISTER_CLASS = {2: TYPE["T_U16"], 4: TYPE["T_U32"], 8: TYPE["T_U64"], 16: TYPE["T_B128"]}
"""Register width in bytes → the type that stands for registers of that width."""


def _mov(form: Form) -> Template:
    kind = form["type"]
    width = TYPE_BYTES[kind]
    plain = T_CODE["pred"] if kind == "pred" else T_CODE[_UNSIGNED_OF_BYTES[width]]
    take_dest = dest("d", kind)
    take_source = predicate("a") if kind == "pred" else source("a", "b32" if kind in ("f16x2", "bf16x2") else kind)

    def custom(context: Context, row: Row, operands: tuple[Operand, ...]) -> None:
        if len(operands) != 2:
            raise RefusedOperand(f"{len(operands)} operands, mov has 2")
        target, origin = operands
        if isinstance(target, Vector):
            row[OP_AT] = OP["MOV_UNPACK"]
            _pack(context, row, target, width, sinks=True)
            take_source(context, row, origin)
            return
        take_dest(context, row, target)
        if isinstance(origin, Vector):
            row[OP_AT] = OP["MOV_PACK"]
            _pack(context, row, origin, width, sinks=False)
        elif isinstance(origin, Special) and origin.name in CHANGING_SREGS:
            number, bytes_ = CHANGING_SREGS[origin.name]
            if bytes_ != width:
                raise RefusedOperand(
                    f"`{origin.name}` is a {8 * bytes_}-bit register, the instruction wants {8 * width} bits"
                )
            row[OP_AT], row[IMM_AT] = OP["MOV_SREG"], number
        elif isinstance(origin, Special) and kind == "pred":
            row[FIELD["a"]] = context.special(origin.name, 1)
        elif isinstance(origin, Name):
            handle = context.functions.get(origin.text)
            if handle is None or width != 8:
                raise RefusedOperand(f"the address of `{origin.text}`, which this module does not define")
            row[FIELD["a"]] = context.constant(handle, 8)
        else:
            take_source(context, row, origin)

    return make("MOV", form, custom=custom, type=plain, stype=plain)


def _pack(context: Context, row: Row, vector: Vector, width: int, *, sinks: bool) -> None:
    """Enter the elements of a packing or unpacking move."""
    count = len(vector.elements)
    if count not in (2, 4) or width % count or width // count not in (1, 2, 4, 8):
        raise RefusedOperand(f"a {8 * width}-bit value as {count} elements")
    kind = _UNSIGNED_OF_BYTES[width // count]
    found = []
    for element in vector.elements:
        if sinks and isinstance(element, Sink):
            found.append(-1)
        elif sinks and not isinstance(element, Register):
            raise RefusedOperand(f"{describe(element)} among the destinations")
        elif isinstance(element, Register) and (element.type in BYTE_TYPES) != (kind == "b8"):
            raise RefusedOperand(f"{describe(element)} is .{element.type}, the operand wants {8 * width // count} bits")
        else:
            found.append(context.value(element, "b16" if kind == "b8" else kind))
    row[STYPE_AT] = T_CODE[kind]
    row[VEC_AT], row[NVEC_AT] = len(context.pool), count
    context.pool += found


# ---- conversions

_INTEGERS = ("u8", "u16", "u32", "u64", "s8", "s16", "s32", "s64")
_IEEE = ("rn", "rz", "rm", "rp")
_INTEGRAL = ("rni", "rzi", "rmi", "rpi")
_NEWER = "sm_100a"


def _wide_enough(field: str, kind: str) -> Handler:
    """An operand of cvt: a register at least as wide as its type; where it is wider, its class goes into `imm`."""
    at, width = FIELD[field], TYPE_BYTES[kind]
    shift = 0 if field == "d" else 8

    def handler(context: Context, row: Row, operand: Operand) -> None:
        if isinstance(operand, Register) and operand.type != "pred":
            if operand.width < width:
                raise RefusedOperand(f"`{operand.name}` is narrower than .{kind}")
            row[at] = context.register(operand)
            if operand.width != max(width, 2) or width == 1:
                row[IMM_AT] |= REGISTER_CLASS[operand.width] << shift
        elif field == "a" and width > 1:
            row[at] = context.constant_operand(operand, kind)
        else:
            raise RefusedOperand(f"{describe(operand)} where a register of .{kind} is expected")

    return handler


def _conversion(form: Form) -> Custom:
    """Both operands of cvt; fills in the class that `_wide_enough` left out where the other operand needed one."""
    first, second = _wide_enough("d", form["type"]), _wide_enough("a", form["stype"])
    natural_d = REGISTER_CLASS[max(TYPE_BYTES[form["type"]], 2)]
    natural_a = REGISTER_CLASS[max(TYPE_BYTES[form["stype"]], 2)]

    def custom(context: Context, row: Row, operands: tuple[Operand, ...]) -> None:
        if len(operands) != 2:
            raise RefusedOperand(f"{len(operands)} operands, this conversion has 2")
        first(context, row, operands[0])
        second(context, row, operands[1])
        if row[IMM_AT]:
            if not row[IMM_AT] & 0xFF:
                row[IMM_AT] |= natural_d
            if not row[IMM_AT] >> 8:
                row[IMM_AT] |= natural_a << 8

    return custom


def _cvt(form: Form) -> Template:
    return make("CVT", form, custom=_conversion(form), family="cvt")


def _cvt_exact(form: Form) -> Template:
    """Conversions whose registers have exactly the width of their types."""
    shape = (
        _exactly(dest("d", _register_of(form["type"])), form["type"]),
        _exactly(source("a", _register_of(form["stype"])), form["stype"]),
    )
    return make("CVT", form, shape, family="cvt")


def _cvt_pack(form: Form) -> Template:
    target = _exactly(dest("d", _register_of(form["type"])), form["type"])
    return make("CVT_PACK", form, (target, source("a", "f32"), source("b", "f32")), family="cvt")


_FOUR = {"e4m3x4": "e4m3x2", "e5m2x4": "e5m2x2", "e2m1x4": "e2m1x2", "e2m3x4": "e2m3x2", "e3m2x4": "e3m2x2"}
"""Packed type of four elements → that of two, whose number stands for the format of the elements."""


def _next_element(context: Context, row: Row, operand: Operand) -> None:
    if isinstance(operand, Vector):
        raise RefusedOperand(f"{describe(operand)} where a .f32 value is expected")
    vector_source(1, "f32")(context, row, operand)


def _cvt_stochastic_pair(form: Form) -> Template:
    shape = (dest("d", "b32"), _next_element, _next_element, source("b", "b32"))
    return make("CVT_STOCHASTIC", form, shape, family="cvt")


def _cvt_stochastic_four(form: Form) -> Template:
    target = _exactly(dest("d", _register_of(form["type"])), form["type"])
    return make("CVT_STOCHASTIC", form, (target, vector_source(4, "f32"), source("b", "b32")), family="cvt")


def _cvt_pack_integers(form: Form) -> Template:
    rest = () if form["type"][1:] == "16" else (source("c", "b32"),)
    shape = (dest("d", "b32"), source("a", "s32"), source("b", "s32"), *rest)
    return make("CVT_PACK_INTEGERS", form, shape, family="cvt")


def _register_of(kind: str) -> str:
    """Type of the register that holds a packed value."""
    return "b16" if TYPE_BYTES[kind] <= 2 else kind


def _exactly(take: Handler, kind: str) -> Handler:
    """The operand of a packed type: an 8-bit register for two numbers of four bits, and for nothing else."""

    def handler(context: Context, row: Row, operand: Operand) -> None:
        if isinstance(operand, Register) and (operand.type in BYTE_TYPES) != (kind == "e2m1x2"):
            raise RefusedOperand(f"`{operand.name}` is .{operand.type}, .{kind} has {8 * TYPE_BYTES[kind]} bits")
        take(context, row, operand)

    return handler


def _conversion_rules() -> None:
    ftz, sat, relu = flag("ftz", "F_FTZ"), flag("sat", "F_SAT"), flag("relu", "F_RELU")
    satfinite = flag("satfinite", "F_SAT")
    nearest, ieee, integral = (
        rounding("rn", "rz", required=True),
        rounding(*_IEEE, required=True),
        rounding(*_INTEGRAL, required=True),
    )

    def st(*names: str) -> Slot:
        return types(*names, slot="stype")

    rule("cvt", [sat, types(*_INTEGERS), st(*_INTEGERS)], _cvt, example="d, a")
    rule("cvt", [integral, ftz, sat, types(*_INTEGERS), st("f32")], _cvt, example="d, a")
    rule("cvt", [integral, sat, types(*_INTEGERS), st("f16", "bf16", "f64")], _cvt, example="d, a")
    rule("cvt", [ieee, sat, types("f16", "f32", "f64"), st(*_INTEGERS)], _cvt, example="d, a")
    rule("cvt", [ieee, types("bf16"), st(*_INTEGERS)], _cvt, example="d, a")
    # between floating-point types: widening is exact, narrowing needs a rounding
    rule("cvt", [ftz, sat, types("f32"), st("f16")], _cvt, example="d, a")
    rule("cvt", [sat, types("f32"), st("bf16")], _cvt, example="d, a")
    rule("cvt", [ftz, sat, types("f64"), st("f32")], _cvt, example="d, a")
    rule("cvt", [sat, types("f64"), st("f16", "bf16")], _cvt, example="d, a")
    rule("cvt", [ieee, ftz, sat, types("f32"), st("f64")], _cvt, example="d, a")
    rule("cvt", [ieee, ftz, sat, types("f16"), st("f32")], _cvt, example="d, a")
    rule("cvt", [nearest, ftz, *_relu(), types("f16"), st("f32")], _cvt, example="d, a")
    rule("cvt", [ieee, sat, types("f16"), st("f64")], _cvt, example="d, a")
    rule("cvt", [nearest, relu, types("bf16"), st("f32")], _cvt, example="d, a")
    rule("cvt", [rounding("rm", "rp", required=True), types("bf16"), st("f32")], _cvt, example="d, a")
    rule("cvt", [ieee, types("bf16"), st("f16", "f64")], _cvt, example="d, a")
    rule("cvt", [ieee, types("f16"), st("bf16")], _cvt, example="d, a")
    # within one type: a move that may saturate or flush, or rounding to an integral value
    for kind in ("f16", "f32", "f64"):
        zero = [ftz] if kind == "f32" else []
        rule("cvt", [*zero, sat, types(kind), st(kind)], _cvt, example="d, a")
        rule("cvt", [integral, *zero, sat, types(kind), st(kind)], _cvt, example="d, a")
    rule("cvt", [integral, types("bf16"), st("bf16")], _cvt, example="d, a")
    away = Slot("rounding", {"rna": {"flags": FLAG["F_RNA"]}})
    rule("cvt", [away, satfinite, types("tf32"), st("f32")], _cvt_exact, example="d, a")
    rule("cvt", [nearest, relu, satfinite, types("tf32"), st("f32")], _cvt_exact, example="d, a")
    # two values at once; satfinite is obligatory for eight-bit types and stands in F_SAT
    rule("cvt", [nearest, relu, satfinite, types("f16x2", "bf16x2"), st("f32")], _cvt_pack, example="d, a, b")
    must = Slot("satfinite", {"satfinite": {"flags": FLAG["F_SAT"]}})
    eight, even = types("e4m3x2", "e5m2x2"), rounding("rn", required=True)
    rule("cvt", [even, must, relu, eight, st("f32")], _cvt_pack, example="d, a, b")
    rule("cvt", [even, must, relu, eight, st("f16x2")], _cvt_exact, example="d, a")
    rule("cvt", [even, relu, types("f16x2"), st("e4m3x2", "e5m2x2")], _cvt_exact, example="d, a")
    small = ("e2m1x2", "e2m3x2", "e3m2x2")
    rule("cvt", [even, must, relu, types(*small), st("f32")], _cvt_pack, note=_NEWER, example="d, a, b")
    rule("cvt", [even, relu, types("f16x2"), st(*small)], _cvt_exact, note=_NEWER, example="d, a")
    upwards = rounding("rz", "rp", required=True)
    rule("cvt", [upwards, satfinite, types("ue8m0x2"), st("f32")], _cvt_pack, note=_NEWER, example="d, a, b")
    rule("cvt", [upwards, satfinite, types("ue8m0x2"), st("bf16x2")], _cvt_exact, note=_NEWER, example="d, a")
    rule("cvt", [even, types("bf16x2"), st("ue8m0x2")], _cvt_exact, note=_NEWER, example="d, a")
    by_chance = word("rs")
    rule(
        "cvt", [*by_chance, relu, satfinite, types("f16x2", "bf16x2"), st("f32")], _cvt_stochastic_pair, note=_NEWER,
        example="d, a, b, random",
    )  # fmt: skip
    four = Slot("type", {name: {"type": T_CODE[pair]} for name, pair in _FOUR.items()})
    rule(
        "cvt", [*by_chance, relu, must, four, st("f32")], _cvt_stochastic_four, example="d, {a, b, e, f}, random",
        note="sm_100a; which random bits round which element is a picture in the ISA: of e4m3x4 as others measured it, "
        "of the rest by analogy",
    )  # fmt: skip
    for sizes, more in (((16,), []), ((8, 4, 2), [types("b32", slot="ctype")])):
        packed = {
            f"{letter}{size}": {"type": TYPE["T_U32" if letter == "u" else "T_S32"], "imm": size}
            for size in sizes
            for letter in "us"
        }
        rule(
            "cvt", [*word("pack", "sat"), Slot("type", packed), Slot("stype", {"s32": {}}), *more], _cvt_pack_integers,
            example="d, a, b, c" if more else "d, a, b",
        )  # fmt: skip


def _relu() -> list[Slot]:
    return [Slot("relu", {"relu": {"flags": FLAG["F_RELU"]}})]


# ---- addresses

_SPACES = {
    "const": SPACE["S_CONST"] << 4, "global": SPACE["S_GLOBAL"] << 4, "local": SPACE["S_LOCAL"] << 4,
    "shared": SPACE["S_SHARED"] << 4,
    "shared::cta": SPACE["S_SHARED"] << 4, "shared::cluster": SPACE["S_CLUSTER"] << 4, "param": SPACE["S_PARAM"] << 4,
    "param::entry": SPACE["S_PARAM"] << 4,
}  # fmt: skip


def _address_rules() -> None:
    space = choice("space", "mods", _SPACES)
    to = Slot("to", {"to": {"flags": FLAG["F_TO"]}}, required=False)
    rule(
        "cvta",
        [to, space, types("u64")],
        lambda form: make("CVTA", form, (dest("d", "u64"), source("a", "u64"))),
        example="d, a",
    )
    rule(
        "isspacep",
        [space],
        lambda form: make("ISSPACEP", form, (dest("d", "pred"), source("a", "u64")), type=T_CODE["u64"]),
        example="p, a",
    )


rule("mov", [types(*_MOV_TYPES)], _mov, example="d, a")
_conversion_rules()
_address_rules()
