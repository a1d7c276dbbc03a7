"""Grammar: ldmatrix, stmatrix, movmatrix, mma.sync and wgmma. PTX ISA 9.7.14 and 9.7.15."""

from __future__ import annotations

from ptxgym.device.emulator.decode_grammar import (
    FIELD,
    FLAGS_AT,
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
    dest,
    literal,
    memory,
    predicate,
    source,
    vector_dest,
    vector_source,
)
from ptxgym.device.emulator.ir import ATOM, FEATURE, FLAG, MMA_SHAPE, TYPE
from ptxgym.device.emulator.ptx import Integer, Operand, Vector

_ALIGNED, _SHARED = FLAG["F_ALIGNED"], FEATURE["FEAT_SHARED"]


# ---- matrices between shared memory and registers

_BYTES = "sm_100a; not measured on hardware"


def _matrix_move_rules() -> None:
    counts = Slot("num", {"x1": {}, "x2": {}, "x4": {}})
    trans = flag("trans", "F_TRANS")
    space = space_slot("", "shared", "shared::cta")
    head = word("sync", "aligned", "m8n8")
    b16 = types("b16")
    rule("ldmatrix", [*head, counts, trans, space, b16], _ldmatrix, example="{d0, d1}, [a]")
    rule("stmatrix", [*head, counts, trans, space, b16], _stmatrix, example="[a], {d0, d1}")
    transposed = Slot("trans", {"trans": {"flags": FLAG["F_TRANS"]}})
    few, byte = Slot("num", {"x1": {}, "x2": {}}), Slot("type", {"b8": {"type": TYPE["T_U8"], "stype": TYPE["T_U8"]}})
    unpacked = Slot("type", {"b8x16": {"type": TYPE["T_U8"]}})
    padded = Slot("stype", {"b6x16_p32": {"stype": TYPE["T_U6"]}, "b4x16_p64": {"stype": TYPE["T_U4"]}})
    square, wide, tall = (word("sync", "aligned", shape) for shape in ("m16n16", "m8n16", "m16n8"))
    rule("ldmatrix", [*square, few, transposed, space, byte], _ldmatrix, example="{d0, d1}, [a]", note=_BYTES)
    low_bits = f"{_BYTES}; elements lie in the low bits of their bytes"
    rule(
        "ldmatrix", [*square, few, transposed, space, unpacked, padded], _ldmatrix, example="{d0, d1}, [a]",
        note=low_bits,
    )  # fmt: skip
    rule("ldmatrix", [*wide, counts, space, unpacked, padded], _ldmatrix, example="{d0}, [a]", note=low_bits)
    rule("stmatrix", [*tall, counts, transposed, space, byte], _stmatrix, example="[a], {d0, d1}", note=_BYTES)
    rule(
        "movmatrix",
        [*head, *word("trans"), b16],
        lambda f: make("MOVMATRIX", f, (dest("d", "b32"), source("a", "b32")), family="warp", flags=_ALIGNED),
        example="d, a",
    )


def _ldmatrix(form: Form) -> Template:
    registers = int(form["num"][1:]) * (2 if "m16n16" in form.chosen else 1)
    shape = (vector_dest(registers, "b32"), memory("a", SPACES[form["space"]]))
    return make("LDMATRIX", form, shape, family="ldmatrix", features=_SHARED, flags=_ALIGNED)


def _stmatrix(form: Form) -> Template:
    shape = (memory("a", SPACES[form["space"]]), vector_source(int(form["num"][1:]), "b32"))
    return make("STMATRIX", form, shape, family="stmatrix", features=_SHARED, flags=_ALIGNED)


# ---- mma.sync

_FLOAT_SHAPES = {"m16n8k8": (2, 1), "m16n8k16": (4, 2)}
_TF32_SHAPES = {"m16n8k4": (2, 1), "m16n8k8": (4, 2)}
_BYTE_SHAPES = {"m8n8k16": (1, 1), "m16n8k16": (2, 1), "m16n8k32": (4, 2)}
_BYTE_FLOAT_SHAPES = {"m16n8k16": (2, 1), "m16n8k32": (4, 2)}
_NIBBLE_SHAPES = {"m8n8k32": (1, 1), "m16n8k32": (2, 1), "m16n8k64": (4, 2)}
_BIT_SHAPES = {"m8n8k128": (1, 1), "m16n8k128": (2, 1), "m16n8k256": (4, 2)}
_DOUBLE_SHAPES = {"m8n8k4": (1, 1), "m16n8k4": (2, 1), "m16n8k8": (4, 2), "m16n8k16": (8, 4)}
"""Shape → registers of A and of B per thread."""
_EIGHT_BITS = ("e4m3", "e5m2")
_BYTE_INTEGERS = ("u8", "s8")
_MIXED = ("u8", "s8", "u4", "s4", *_EIGHT_BITS)
"""Types of A beside which B may have another one."""


def _extents(shape: str) -> tuple[int, int, int]:
    m, rest = shape[1:].split("n")
    n, k = rest.split("k")
    return int(m), int(n), int(k)


def _mma(shapes: dict[str, tuple[int, int]]) -> Builder:
    def build(form: Form) -> Template | None:
        kind, shape = form["type"], form["shape"]
        if form["ctype"] != kind or (form["stype"] not in _MIXED and form["btype"] != form["stype"]):
            return None
        m, n, k = _extents(shape)
        per_thread = m * n // 32
        accumulators = per_thread // 2 if kind == "f16" else per_thread
        count_a, count_b = shapes[shape]
        register = "b32" if kind == "f16" else kind
        factor = "f64" if kind == "f64" else "b32"
        handlers = (
            vector_dest(accumulators, register),
            vector_source(count_a, factor, second=True),
            vector_source(count_b, factor, second=True),
            vector_source(accumulators, register, second=True),
        )
        signed = FLAG["F_B_SIGNED"] if form["btype"] in ("s8", "s4", "e5m2") else 0
        return make(
            "MMA",
            form,
            handlers,
            family="mma.sync",
            warp_multiply_adds=m * n * k,
            flags=_ALIGNED | signed,
            imm=MMA_SHAPE["MMA_" + shape.upper()],
        )

    return build


def _mma_rules() -> None:
    def slots(
        shapes: dict[str, tuple[int, int]], kinds: tuple[str, ...], sources: tuple[str, ...], *more: Slot
    ) -> list[Slot]:
        return [
            *word("sync", "aligned"),
            Slot("shape", {shape: {} for shape in shapes}),
            *word("row", "col"),
            *more,
            types(*kinds),
            types(*sources, slot="stype"),
            types(*sources, slot="btype"),
            types(*kinds, slot="ctype"),
        ]

    example = "{d0, d1, d2, d3}, {a0, a1, a2, a3}, {b0, b1}, {c0, c1, c2, c3}"
    rule("mma", slots(_FLOAT_SHAPES, ("f32", "f16"), ("f16",)), _mma(_FLOAT_SHAPES), example=example)
    rule("mma", slots(_FLOAT_SHAPES, ("f32",), ("bf16",)), _mma(_FLOAT_SHAPES), example=example)
    rule("mma", slots(_TF32_SHAPES, ("f32",), ("tf32",)), _mma(_TF32_SHAPES), example=example)
    satfinite = flag("satfinite", "F_SAT")
    rule("mma", slots(_BYTE_SHAPES, ("s32",), ("u8", "s8"), satfinite), _mma(_BYTE_SHAPES), example=example)
    rule("mma", slots(_NIBBLE_SHAPES, ("s32",), ("u4", "s4"), satfinite), _mma(_NIBBLE_SHAPES), example=example)
    rule("mma", slots(_BYTE_FLOAT_SHAPES, ("f32", "f16"), _EIGHT_BITS), _mma(_BYTE_FLOAT_SHAPES), example=example)
    doubles = "{d0, d1}, {a0}, {b0}, {c0, c1}"
    rule("mma", slots(_DOUBLE_SHAPES, ("f64",), ("f64",)), _mma(_DOUBLE_SHAPES), example=doubles)
    for how, mods in (("and", ATOM["A_AND"]), ("xor", ATOM["A_XOR"])):
        bits = [choice("how", "mods", {how: mods}), *word("popc")]
        rule("mma", slots(_BIT_SHAPES, ("s32",), ("b1",), *bits), _mma(_BIT_SHAPES), example=example)


# ---- wgmma

_TARGET = FEATURE["FEAT_TARGET"] | FEATURE["FEAT_ASYNC"] | _SHARED


def _sign(bit: str) -> Handler:
    """An operand scale of 1 or -1."""

    def handler(context: Context, row: Row, operand: Operand) -> None:
        if not isinstance(operand, Integer) or operand.value not in (1, -1):
            raise RefusedOperand("an operand scale that is not the constant 1 or -1")
        if operand.value < 0:
            row[FLAGS_AT] |= FLAG[bit]

    return handler


def _major(bit: str) -> Handler:
    """A transpose constant: 0 for K-major, 1 for MN-major."""

    def handler(context: Context, row: Row, operand: Operand) -> None:
        if not isinstance(operand, Integer) or operand.value not in (0, 1):
            raise RefusedOperand("a transpose operand that is not the constant 0 or 1")
        if operand.value:
            row[FLAGS_AT] |= FLAG[bit]

    return handler


def _wgmma(form: Form) -> Template | None:
    kind, elements = form["type"], form["stype"]
    small = elements in (*_EIGHT_BITS, *_BYTE_INTEGERS)
    if (form["btype"] != elements and not small) or (kind == "f16" and elements != "f16" and not small):
        return None
    _, n, k = _extents(form["shape"])
    either_major = elements in ("f16", "bf16")
    accumulators, register = (n // 4, "b32") if kind == "f16" else (n // 2, kind)
    from_registers, from_shared = vector_source(4, "b32", second=True), source("a", "b64")

    def matrix_a(context: Context, row: Row, operand: Operand) -> None:
        (from_registers if isinstance(operand, Vector) else from_shared)(context, row, operand)

    signs = () if elements in _BYTE_INTEGERS else (_sign("F_NEG_A"), _sign("F_NEG_B"))
    head = (vector_dest(accumulators, register), matrix_a, source("b", "b64"), predicate("c"), *signs)
    with_a_in_registers: tuple[Handler, ...] = head
    with_a_in_shared: tuple[Handler, ...] = head
    if either_major:
        with_a_in_registers = (*head, _major("F_TRANS_B"))
        with_a_in_shared = (*head, _major("F_TRANS_A"), _major("F_TRANS_B"))

    def custom(context: Context, row: Row, operands: tuple[Operand, ...]) -> None:
        in_registers = len(operands) > 1 and isinstance(operands[1], Vector)
        handlers = with_a_in_registers if in_registers else with_a_in_shared
        if len(operands) != len(handlers):
            where = "registers" if in_registers else "shared memory"
            raise RefusedOperand(f"{len(operands)} operands, the form with A in {where} has {len(handlers)}")
        for handler, operand in zip(handlers, operands, strict=True):
            handler(context, row, operand)
        if not in_registers and row[FIELD["a"]] < 0:
            raise RefusedOperand(f"{describe(operands[1])} as descriptor of A")

    return make(
        "WGMMA",
        form,
        custom=custom,
        family="wgmma",
        warp_multiply_adds=16 * n * k,  # a quarter of the warpgroup's 64 · N · K
        features=_TARGET,
        flags=_ALIGNED | (FLAG["F_B_E5M2"] if form["btype"] in ("e5m2", "s8") else 0),
        imm=n,
    )


def _wgmma_rules() -> None:
    head = word("sync", "aligned")
    for elements, kinds, k, majors in (
        (("f16",), ("f32", "f16"), 16, ", 0, 0"),
        (("bf16",), ("f32",), 16, ", 0, 0"),
        (("tf32",), ("f32",), 8, ""),
        (_EIGHT_BITS, ("f32", "f16"), 32, ""),
    ):
        rule(
            "wgmma",
            [
                *word("mma_async"),
                *head,
                Slot("shape", {f"m64n{n}k{k}": {} for n in range(8, 257, 8)}),
                types(*kinds),
                types(*elements, slot="stype"),
                types(*elements, slot="btype"),
            ],
            _wgmma,
            example=f"{{d0, …}}, descriptor_a, descriptor_b, p, 1, 1{majors}",
        )
    widths = (8, 16, 24, *range(32, 257, 16))
    rule(
        "wgmma",
        [
            *word("mma_async"),
            *head,
            Slot("shape", {f"m64n{n}k32": {} for n in widths}),
            flag("satfinite", "F_SAT"),
            types("s32"),
            types(*_BYTE_INTEGERS, slot="stype"),
            types(*_BYTE_INTEGERS, slot="btype"),
        ],
        _wgmma,
        example="{d0, …}, descriptor_a, descriptor_b, p",
    )
    for name, op in (("fence", "WGMMA_FENCE"), ("commit_group", "WGMMA_COMMIT")):
        rule(
            "wgmma",
            [*word(name), *head],
            lambda f, op=op: make(op, f, (), family="wgmma", features=_TARGET, flags=_ALIGNED),  # type: ignore[misc]
        )
    pending = literal(0, 7, name="number of groups")
    rule(
        "wgmma",
        [*word("wait_group"), *head],
        lambda f: make("WGMMA_WAIT", f, (pending,), family="wgmma", features=_TARGET, flags=_ALIGNED),
        example="0",
    )


_matrix_move_rules()
_mma_rules()
_wgmma_rules()
