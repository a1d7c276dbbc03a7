"""Grammar: thread-block clusters. PTX ISA 9.7.9.12, 9.7.9.23, 9.7.9.24, 9.7.9.25.4, 9.7.13.4, 9.7.13.7.

`mapa`, `getctarank`, `barrier.cluster`, `st.async`, `red.async`, copies and reductions from shared memory to that of
another CTA, and bulk reductions to global memory. Loads, stores, atomics, mbarrier arrivals and multicast loads stand
with their kin in `decode_memory`, `decode_atomic` and `decode_async`.
"""

from __future__ import annotations

from ptxgym.device.emulator.decode_async import (
    COMPLETION,
    TENSOR_RANK,
    enter_addresses,
    enter_coordinates,
    map_space,
    need,
    optional_policy,
    plain,
)
from ptxgym.device.emulator.decode_grammar import (
    NVEC_AT,
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
from ptxgym.device.emulator.decode_memory import CACHE_HINT, ORDER_MODS, SPACES, space_slot
from ptxgym.device.emulator.decode_operands import Context, describe, dest, elements, source
from ptxgym.device.emulator.ir import ADDRESS_WIDTH, ATOM, FEATURE
from ptxgym.device.emulator.ptx import TYPE_BYTES, Operand, Register, Symbol

_ASYNC = FEATURE["FEAT_ASYNC"] | FEATURE["FEAT_SHARED"]
_COPY = _ASYNC | FEATURE["FEAT_TARGET"]
_GLOBAL_REDUCTIONS = {
    "add": ("u32", "s32", "u64", "f32", "f64", "f16", "bf16"),
    "min": ("u32", "s32", "u64", "s64", "f16", "bf16"),
    "max": ("u32", "s32", "u64", "s64", "f16", "bf16"),
    "inc": ("u32",),
    "dec": ("u32",),
    "and": ("b32", "b64"),
    "or": ("b32", "b64"),
    "xor": ("b32", "b64"),
}
"""PTX ISA 9.7.9.25.4.3; halves need .noftz where they are added."""
_SHARED_REDUCTIONS = {
    "add": ("u32", "s32", "u64"),
    "min": ("u32", "s32"),
    "max": ("u32", "s32"),
    "inc": ("u32",),
    "dec": ("u32",),
    "and": ("b32",),
    "or": ("b32",),
    "xor": ("b32",),
}
"""PTX ISA 9.7.9.25.4.3 and 9.7.13.7."""


# ---- addresses of other CTAs


def _mapped(kind: str, shared: bool) -> Handler:
    """An address to be moved to another CTA: a register, or a shared variable where the form is of shared space."""
    take = source("a", kind)

    def handler(context: Context, row: Row, operand: Operand) -> None:
        if not isinstance(operand, Register) and not (shared and isinstance(operand, Symbol)):
            raise RefusedOperand(f"{describe(operand)} where a shared address is expected")
        if isinstance(operand, Symbol) and operand.variable.space != "shared":
            raise RefusedOperand(
                f"`{operand.variable.name}` lies in {operand.variable.space} space, not in shared space"
            )
        take(context, row, operand)

    return handler


def _addressing(form: Form) -> tuple[Handler, int] | None:
    """The address operand and mods; None for generic addresses of 32 bits."""
    kind, shared = form["type"], bool(form["space"])
    if kind == "u32" and not shared:
        return None
    return _mapped(kind, shared), ADDRESS_WIDTH["M_A64"] if kind == "u64" else 0


def _mapa(form: Form) -> Template | None:
    found = _addressing(form)
    if found is None:
        return None
    address, mods = found
    return make("MAPA", form, (dest("d", form["type"]), address, source("b", "u32")), mods=mods)


def _getctarank(form: Form) -> Template | None:
    found = _addressing(form)
    if found is None:
        return None
    address, mods = found
    return make("GETCTARANK", form, (dest("d", "u32"), address), mods=mods)


def _address_rules() -> None:
    space, kinds = space_slot("", "shared::cluster"), types("u32", "u64")
    rule("mapa", [space, kinds], _mapa, example="d, a, 1")
    rule("getctarank", [space, kinds], _getctarank, example="d, a")


# ---- the cluster barrier


def _barrier_rules() -> None:
    aligned, barrier = flag("aligned", "F_ALIGNED"), FEATURE["FEAT_BARRIER"]
    order = choice("order", "mods", {k: ORDER_MODS[k] for k in ("release", "relaxed")}, default=ORDER_MODS["release"])
    rule(
        "barrier",
        [*word("cluster", "arrive"), order, aligned],
        lambda f: make("CLUSTER_ARRIVE", f, (), family="barrier", features=barrier),
    )
    rule(
        "barrier",
        [*word("cluster", "wait"), optional("acquire", "acquire"), aligned],
        lambda f: make("CLUSTER_WAIT", f, (), family="barrier", features=barrier, mods=ORDER_MODS["acquire"]),
    )


# ---- asynchronous stores and reductions


def _st_async(form: Form) -> Template | None:
    kind, space = form["type"], SPACES[form["space"]]
    count = int(form["vec"][1:]) if form["vec"] else 1
    if count * TYPE_BYTES[kind] > 16 or (form["weak"] and form["scope"]):
        return None

    def custom(context: Context, row: Row, operands: tuple[Operand, ...]) -> None:
        need(operands, 3)
        if len(operands) > 3:
            raise RefusedOperand(f"{len(operands)} operands, st.async has 3")
        plain(operands[0])
        plain(operands[2])
        parts = (operands[1],) if count == 1 else elements(operands[1], count)
        values = [context.value(part, kind) for part in parts]
        row[VEC_AT], row[NVEC_AT] = len(context.pool), count
        context.pool += values
        enter_addresses(context, row, "ac", (space, space), (operands[0], operands[2]))

    return make("ST_ASYNC", form, custom=custom, family="st", features=_ASYNC)


def _red_async(form: Form) -> Template:
    space = SPACES[form["space"]]

    def custom(context: Context, row: Row, operands: tuple[Operand, ...]) -> None:
        if len(operands) != 3:
            raise RefusedOperand(f"{len(operands)} operands, red.async has 3")
        plain(operands[0])
        plain(operands[2])
        source("b", form["type"])(context, row, operands[1])
        enter_addresses(context, row, "ac", (space, space), (operands[0], operands[2]))

    return make("RED_ASYNC", form, custom=custom, family="atom", features=_ASYNC)


def _async_rules() -> None:
    space, completion = space_slot("", "shared::cluster"), word(COMPLETION)
    rule(
        "st",
        [
            *word("async"),
            optional("weak", "weak"),
            optional("scope", "cluster"),
            space,
            *completion,
            optional("vec", "v2", "v4"),
            types("b32", "b64", "u32", "u64", "s32", "s64", "f32", "f64"),
        ],
        _st_async,
        example="[a], b, [c]",
    )
    for operation, kinds in _SHARED_REDUCTIONS.items():
        code = choice("operation", "mods", {operation: ATOM["A_" + operation.upper()]})
        kinds = (*kinds, "s64") if operation == "add" else kinds
        rule(
            "red",
            [*word("async", "relaxed", "cluster"), space, *completion, code, types(*kinds)],
            _red_async,
            example="[a], b, [c]",
        )


# ---- bulk copies and reductions


def _share(op: str) -> Builder:
    def build(form: Form) -> Template:
        def custom(context: Context, row: Row, operands: tuple[Operand, ...]) -> None:
            if len(operands) != 4:
                raise RefusedOperand(f"{len(operands)} operands, the form has 4")
            for operand in (operands[0], operands[1], operands[3]):
                plain(operand)
            source("e", "u32")(context, row, operands[2])
            spaces = ("shared", "shared", "shared")
            enter_addresses(context, row, "abc", spaces, (operands[0], operands[1], operands[3]))

        return make(op, form, custom=custom, family="tma", features=_COPY)

    return build


def _bulk_reduce(form: Form) -> Template | None:
    if bool(form["noftz"]) != (form["type"] in ("f16", "bf16") and form["operation"] == "add"):
        return None

    def custom(context: Context, row: Row, operands: tuple[Operand, ...]) -> None:
        need(operands, 3)
        plain(operands[0])
        plain(operands[1])
        source("e", "u32")(context, row, operands[2])
        enter_addresses(context, row, "ab", ("global", "shared"), operands[:2])
        optional_policy(form, context, row, operands[3:])

    return make("BULK_REDUCE", form, custom=custom, family="tma", features=_COPY)


def _tensor_reduce(form: Form) -> Template:
    def custom(context: Context, row: Row, operands: tuple[Operand, ...]) -> None:
        need(operands, 2)
        plain(operands[1])
        enter_coordinates(context, row, operands[0], int(form["dim"][0]))
        enter_addresses(context, row, "ba", (map_space(operands[0]), "shared"), operands[:2])
        optional_policy(form, context, row, operands[2:])

    return make("TMA_REDUCE", form, custom=custom, family="tma", features=_COPY)


def _bulk_rules() -> None:
    to_cluster, from_own = Slot("to", {"shared::cluster": {}}), Slot("from", {"shared::cta": {}})
    to_global, group, completion = Slot("to", {"global": {}}), word("bulk_group"), word(COMPLETION)
    rule(
        "cp",
        [*word("async", "bulk"), to_cluster, from_own, *completion],
        _share("BULK_SHARE"),
        example="[a], [b], 128, [c]",
    )
    head = word("reduce", "async", "bulk")
    for operation, kinds in _SHARED_REDUCTIONS.items():
        code = choice("operation", "mods", {operation: ATOM["A_" + operation.upper()]})
        rule(
            "cp",
            [*head, to_cluster, from_own, *completion, code, types(*kinds)],
            _share("BULK_SHARE_REDUCE"),
            example="[a], [b], 128, [c]",
        )
    for operation, kinds in _GLOBAL_REDUCTIONS.items():
        code = choice("operation", "mods", {operation: ATOM["A_" + operation.upper()]})
        rule(
            "cp",
            [*head, to_global, from_own, *group, CACHE_HINT, code, optional("noftz", "noftz"), types(*kinds)],
            _bulk_reduce,
            example="[a], [b], 128",
        )
    codes = {operation: ATOM["A_" + operation.upper()] for operation in _GLOBAL_REDUCTIONS}
    rule(
        "cp",
        [
            *head,
            *word("tensor"),
            TENSOR_RANK,
            to_global,
            from_own,
            choice("operation", "mods", codes),
            optional("mode", "tile"),
            *group,
            CACHE_HINT,
        ],
        _tensor_reduce,
        example="[map, {c0, c1}], [a]",
    )


_address_rules()
_barrier_rules()
_async_rules()
_bulk_rules()
