"""Grammar: how launches follow each other, clusters whose launch is cancelled, tensor maps that kernels rewrite.

PTX ISA 9.7.13.13 (griddepcontrol), 9.7.13.17 and 9.7.13.18 (clusterlaunchcontrol), 9.7.9.26 and 9.7.13.16 (tensormap).
"""

from __future__ import annotations

from ptxgym.device.emulator.decode_async import COMPLETION, enter_addresses, plain
from ptxgym.device.emulator.decode_grammar import (
    FIELD,
    NVEC2_AT,
    VEC2_AT,
    Builder,
    Form,
    Handler,
    RefusedOperand,
    Row,
    Slot,
    Template,
    choice,
    make,
    optional,
    rule,
    types,
    word,
)
from ptxgym.device.emulator.decode_memory import SCOPE_MODS, SPACES, space_slot
from ptxgym.device.emulator.decode_operands import Context, describe, dest, memory, source, vector_dest
from ptxgym.device.emulator.ir import FEATURE, FLAG, GRID_DEPENDENCY, MAP_FIELD
from ptxgym.device.emulator.ptx import Integer, Operand

_ASYNC = FEATURE["FEAT_ASYNC"] | FEATURE["FEAT_SHARED"]


def _dependency_rules() -> None:
    actions = {name: GRID_DEPENDENCY["GRIDDEP_" + name.upper()] for name in ("launch_dependents", "wait")}
    rule(
        "griddepcontrol",
        [choice("action", "imm", actions)],
        lambda f: make("GRIDDEPCONTROL", f, (), family="control"),
        note="launches run one after the other; accesses before `wait` that the hardware does not order are found",
    )


# ---- clusters


def _try_cancel(form: Form) -> Template:
    def custom(context: Context, row: Row, operands: tuple[Operand, ...]) -> None:
        if len(operands) != 2:
            raise RefusedOperand(f"{len(operands)} operands, try_cancel has 2")
        for operand in operands:
            plain(operand)
        enter_addresses(context, row, "ac", ("shared", "shared"), operands)

    features = _ASYNC | FEATURE["FEAT_COMMUNICATES"]
    everyone = int(bool(form["multicast"]))
    return make("CLC_TRY_CANCEL", form, custom=custom, family="control", features=features, imm=everyone)


def _cluster_rules() -> None:
    rule(
        "clusterlaunchcontrol",
        [
            *word("try_cancel", "async"),
            space_slot("", "shared::cta"),
            *word(COMPLETION),
            optional("multicast", "multicast::cluster::all"),
            types("b128", slot="kind"),
        ],
        _try_cancel,
        note="sm_100; which clusters have not begun is a matter of the schedule",
        example="[a], [c]",
    )
    head = word("query_cancel")
    response = source("a", "b128")
    rule(
        "clusterlaunchcontrol",
        [*head, *word("is_canceled"), types("pred", slot="result"), types("b128", slot="kind")],
        lambda f: make("CLC_IS_CANCELED", f, (dest("d", "pred"), response), family="control"),
        note="sm_100",
        example="p, a",
    )
    rule(
        "clusterlaunchcontrol",
        [*head, *word("get_first_ctaid", "v4"), types("b32", slot="result"), types("b128", slot="kind")],
        lambda f: make("CLC_FIRST_CTAID", f, (vector_dest(4, "b32", sinks=True), response), family="control", type=0),
        note="sm_100",
        example="{d0, d1, d2, _}, a",
    )
    for index, axis in enumerate("xyz"):
        rule(
            "clusterlaunchcontrol",
            [*head, *word(f"get_first_ctaid::{axis}"), types("b32", slot="result"), types("b128", slot="kind")],
            lambda f, index=index: make(  # type: ignore[misc]
                "CLC_FIRST_CTAID", f, (_one_of_three(index), response), family="control", type=0
            ),
            note="sm_100",
            example="d, a",
        )


def _one_of_three(index: int) -> Handler:
    """A destination that takes one coordinate of three."""
    take = vector_dest(1, "b32")

    def handler(context: Context, row: Row, operand: Operand) -> None:
        start = len(context.pool)
        context.pool += [-1] * index
        take(context, row, operand)
        row[FIELD["vec"]], row[FIELD["nvec"]] = start, index + 1

    return handler


# ---- tensor maps

_WIDE = ("global_address", "global_stride")
_BY_ORDINAL = {"box_dim": 5, "global_dim": 5, "global_stride": 4, "element_stride": 5}
"""Field → how many of it a map has."""
_CODES = {
    "elemtype": (16, "there are sixteen element types"),
    "interleave_layout": (1, "interleaved layouts are not emulated"),
    "swizzle_mode": (4, "no such swizzle on sm_90a and sm_100a"),
    "swizzle_atomicity": (4, "there are four atomicities"),
    "fill_mode": (2, "there are two fill modes"),
}
"""Field whose value is a constant → first value that is not emulated, and why (PTX ISA 9.7.9.26, table 33)."""


def _constant(limit: int, what: str, take: Handler | None = None) -> Handler:
    """A constant in [0, limit); it goes to `take`, if any."""

    def handler(context: Context, row: Row, operand: Operand) -> None:
        if not isinstance(operand, Integer):
            raise RefusedOperand(f"{describe(operand)} where a constant is expected")
        if not 0 <= operand.value < limit:
            raise RefusedOperand(f"the value {operand.value}: {what}")
        if take is not None:
            take(context, row, operand)

    return handler


def _replace(field: str) -> Builder:
    code = MAP_FIELD["MF_" + field.upper()]
    kind = "b64" if field in _WIDE else "b32"

    def enter(context: Context, row: Row, ordinal: int) -> None:
        row[VEC2_AT], row[NVEC2_AT] = len(context.pool), 2
        context.pool += [code, ordinal]

    def ordinal(context: Context, row: Row, operand: Operand) -> None:
        _constant(_BY_ORDINAL[field], "beyond the ranks of a tensor")(context, row, operand)
        assert isinstance(operand, Integer)
        enter(context, row, operand.value)

    def value(context: Context, row: Row, operand: Operand) -> None:
        if field in _CODES:
            limit, why = _CODES[field]
            _constant(limit, why)(context, row, operand)
        if field not in _BY_ORDINAL:
            enter(context, row, 0)
        source("b", kind)(context, row, operand)

    def build(form: Form) -> Template:
        address = memory("a", SPACES[form["space"]])
        shape = (address, ordinal, value) if field in _BY_ORDINAL else (address, value)
        return make("TENSORMAP_REPLACE", form, shape, family="st", features=FEATURE["FEAT_SHARED"])

    return build


def _copy(form: Form) -> Template:
    def custom(context: Context, row: Row, operands: tuple[Operand, ...]) -> None:
        if len(operands) != 3:
            raise RefusedOperand(f"{len(operands)} operands, tensormap.cp_fenceproxy has 3")
        for operand in operands[:2]:
            plain(operand)
        size = operands[2]
        if not isinstance(size, Integer) or size.value != 128:
            raise RefusedOperand(f"{describe(size)} as size, which is always the constant 128")
        enter_addresses(context, row, "ab", ("global", "shared"), operands[:2])

    shared = FEATURE["FEAT_SHARED"]
    return make("TENSORMAP_COPY", form, custom=custom, family="fence", features=shared, flags=FLAG["F_ALIGNED"])


def _map_rules() -> None:
    space = space_slot("", "global", "shared::cta", "shared")
    for name in MAP_FIELD:
        field = name.removeprefix("MF_").lower()
        rule(
            "tensormap",
            [*word("replace", "tile", field), space, *word("b1024"), types("b64" if field in _WIDE else "b32")],
            _replace(field),
            example="[a], 0, b" if field in _BY_ORDINAL else "[a], 0" if field in _CODES else "[a], b",
        )
    rule(
        "tensormap",
        [
            *word("cp_fenceproxy"),
            Slot("to", {"global": {}}),
            Slot("from", {"shared::cta": {}}),
            *word("tensormap::generic", "release"),
            choice("scope", "mods", SCOPE_MODS),
            *word("sync", "aligned"),
        ],
        _copy,
        example="[a], [b], 128",
    )


_dependency_rules()
_cluster_rules()
_map_rules()
