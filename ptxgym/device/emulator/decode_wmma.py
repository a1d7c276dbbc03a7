"""Grammar: wmma, fragments of whole matrices. PTX ISA 9.7.14.4.

Which element a thread holds is left open by the ISA; `wmma.cpp` says what the emulator does. Elements of one and of
four bits are refused.
"""

from __future__ import annotations

from ptxgym.device.emulator.decode_grammar import (
    NVEC2_AT,
    VEC2_AT,
    Builder,
    Form,
    RefusedOperand,
    Row,
    Slot,
    Template,
    flag,
    make,
    rule,
    types,
    word,
)
from ptxgym.device.emulator.decode_memory import SPACES, space_slot
from ptxgym.device.emulator.decode_operands import Context, memory, source, vector_dest, vector_source
from ptxgym.device.emulator.ir import FEATURE, FLAG, FRAGMENT
from ptxgym.device.emulator.ptx import TYPE_BYTES, Operand

_ALIGNED, _SHARED = FLAG["F_ALIGNED"], FEATURE["FEAT_SHARED"]
_NOTE = "the layout of a fragment is the emulator's own, as the ISA allows"
_SQUARE = ("m16n16k16", "m8n32k16", "m32n8k16")
_FACTORS = {
    "f16": _SQUARE, "bf16": _SQUARE, "u8": _SQUARE, "s8": _SQUARE, "tf32": ("m16n16k8",), "f64": ("m8n8k4",),
}  # fmt: skip
"""Element of A and B → shapes."""
_SUMS = {"f16": _SQUARE, "f32": (*_SQUARE, "m16n16k8"), "s32": _SQUARE, "f64": ("m8n8k4",)}
"""Element of C and D → shapes."""
_HALF_REGISTERS = 8
"""Of a fragment of f16 factors, whatever its shape; elements repeat."""


def _extents(shape: str) -> tuple[int, int, int]:
    m, rest = shape[1:].split("n")
    n, k = rest.split("k")
    return int(m), int(n), int(k)


def _matrix(shape: str, role: str) -> tuple[int, int]:
    m, n, k = _extents(shape)
    return {"a": (m, k), "b": (k, n)}.get(role, (m, n))


def _registers(shape: str, role: str, kind: str) -> tuple[int, str]:
    """Registers of a fragment and their type."""
    rows, columns = _matrix(shape, role)
    if kind == "f16" and role in "ab":
        return _HALF_REGISTERS, "b32"
    size = {"tf32": 4}.get(kind) or TYPE_BYTES[kind]
    if size == 8:
        return rows * columns // 32, "f64"
    return rows * columns // 32 * size // 4, "b32"


def _transfer(role: str, store: bool) -> Builder:
    def build(form: Form) -> Template | None:
        kind, shape = form["type"], form["shape"]
        if shape not in (_SUMS if role in "cd" else _FACTORS).get(kind, ()):
            return None
        rows, columns = _matrix(shape, role)
        count, register = _registers(shape, role, kind)
        address = memory("a", SPACES[form["space"]])
        values = vector_source(count, register) if store else vector_dest(count, register)
        along_columns = form["layout"] == "row"
        layout = (rows, columns, int(along_columns), FRAGMENT["FRAGMENT_" + ("C" if role in "cd" else role.upper())])
        stride = source("b", "u32")

        def custom(context: Context, row: Row, operands: tuple[Operand, ...]) -> None:
            if len(operands) not in (2, 3):
                raise RefusedOperand(f"{len(operands)} operands, the form has 2 or 3")
            first, second = (address, values) if store else (values, address)
            first(context, row, operands[0])
            second(context, row, operands[1])
            if len(operands) == 3:
                stride(context, row, operands[2])
            row[VEC2_AT], row[NVEC2_AT] = len(context.pool), 4
            context.pool += layout

        return make(
            "WMMA_STORE" if store else "WMMA_LOAD",
            form,
            custom=custom,
            family="stmatrix" if store else "ldmatrix",
            features=_SHARED,
            flags=_ALIGNED,
        )

    return build


def _product(form: Form) -> Template | None:
    shape, factor, other, result, addend = (form[name] for name in ("shape", "stype", "btype", "type", "ctype"))
    if shape not in _FACTORS[factor] or other != factor or shape not in _SUMS[result] or shape not in _SUMS[addend]:
        return None
    m, n, k = _extents(shape)
    (count_a, kind_a), (count_b, kind_b) = _registers(shape, "a", factor), _registers(shape, "b", factor)
    (count_c, kind_c), (count_d, kind_d) = _registers(shape, "c", addend), _registers(shape, "d", result)
    shapes = (
        vector_dest(count_d, kind_d),
        vector_source(count_a, kind_a, second=True),
        vector_source(count_b, kind_b, second=True),
        vector_source(count_c, kind_c, second=True),
    )
    flags = _ALIGNED | (FLAG["F_HAS_C"] if addend != result else 0) | (FLAG["F_B_SIGNED"] if other == "s8" else 0)
    return make(
        "WMMA_MMA",
        form,
        shapes,
        family="mma.sync",
        warp_multiply_adds=m * n * k,
        flags=flags,
        imm=m | n << 8 | k << 16,
    )


def _half_product(form: Form) -> Template | None:
    """`wmma.mma` of f16 factors names the types of D and C only."""
    types_of = {**form.chosen, "stype": "f16", "btype": "f16"}
    return _product(Form(types_of, {**form.effects, "stype": types("f16", slot="stype").choices["f16"]["stype"]}))


def _rules() -> None:
    shapes = Slot("shape", {name: {} for name in (*_SQUARE, "m16n16k8", "m8n8k4")})
    layouts = Slot("layout", {"row": {}, "col": {}})
    space = space_slot("", "global", "shared", "shared::cta")
    head = word("sync", "aligned")
    for role in "abc":
        slots = [*word("load", role), *head, layouts, shapes, space, types(*(_SUMS if role == "c" else _FACTORS))]
        rule("wmma", slots, _transfer(role, store=False), note=_NOTE, example="{d0, …}, [a], b")
    slots = [*word("store", "d"), *head, layouts, shapes, space, types(*_SUMS)]
    rule("wmma", slots, _transfer("d", store=True), note=_NOTE, example="[a], {d0, …}, b")
    both = [Slot("row", {"row": {}, "col": {}}), Slot("col", {"row": {}, "col": {}})]
    product = [*word("mma"), *head, *both, shapes]
    example = "{d0, …}, {a0, …}, {b0, …}, {c0, …}"
    half = types("f16", "f32")
    rule("wmma", [*product, half, types("f16", "f32", slot="ctype")], _half_product, note=_NOTE, example=example)
    for result, factors in (("f32", ("bf16", "tf32")), ("s32", ("u8", "s8")), ("f64", ("f64",))):
        saturates = [flag("satfinite", "F_SAT")] if result == "s32" else []
        kinds = [
            types(result),
            types(*factors, slot="stype"),
            types(*factors, slot="btype"),
            types(result, slot="ctype"),
        ]
        rule("wmma", [*product, *saturates, *kinds], _product, note=_NOTE, example=example)


_rules()
