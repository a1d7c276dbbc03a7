"""Grammar: atomics and reductions. PTX ISA 9.7.13.5 to 9.7.13.7."""

from __future__ import annotations

from ptxgym.device.emulator.decode_grammar import Builder, Form, Handler, Slot, Template, choice, make, rule, types
from ptxgym.device.emulator.decode_memory import (
    CACHE_HINT,
    ORDER_MODS,
    SCOPE_MODS,
    SHARED_SPACES,
    SPACES,
    features_of,
    space_slot,
    with_policy,
)
from ptxgym.device.emulator.decode_operands import dest, memory, source, vector_dest, vector_source
from ptxgym.device.emulator.ir import ATOM, FEATURE
from ptxgym.device.emulator.ptx import TYPE_BYTES

_OPERATIONS: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("add", ("u32", "s32", "u64", "f32", "f64")),
    ("min", ("u32", "s32", "u64", "s64")),
    ("max", ("u32", "s32", "u64", "s64")),
    ("inc", ("u32",)),
    ("dec", ("u32",)),
    ("and", ("b32", "b64")),
    ("or", ("b32", "b64")),
    ("xor", ("b32", "b64")),
)
_VECTOR_TYPES = {
    "v2": ("f32", "f16", "bf16", "f16x2", "bf16x2"),
    "v4": ("f32", "f16", "bf16", "f16x2", "bf16x2"),
    "v8": ("f16", "bf16"),
}


def _atomic_operand(kind: str) -> str:
    return "b32" if kind in ("f16x2", "bf16x2") else "b16" if kind in ("f16", "bf16") else kind


def _atomic(reduction: bool, sources: int) -> Builder:
    """A builder for `atom` or `red` with one or two sources."""

    def build(form: Form) -> Template:
        kind = _atomic_operand(form["type"])
        address = memory("a", SPACES[form["space"]])
        handlers = [address, source("b", kind), source("c", kind)][: 1 + sources]
        if not reduction:
            handlers.insert(0, dest("d", kind, sink=True))
        features = features_of(form)
        if SPACES[form["space"]] not in SHARED_SPACES and form["scope"] != "cta":
            features |= FEATURE["FEAT_COMMUNICATES"]
        op = "RED" if reduction else "ATOM"
        return make(op, form, with_policy(form, *handlers), family="atom", features=features)

    return build


def _vector_atomic(reduction: bool) -> Builder:
    def build(form: Form) -> Template | None:
        if form["type"] not in _VECTOR_TYPES[form["vec"]]:
            return None
        count, kind = int(form["vec"][1:]), _atomic_operand(form["type"])
        if count * TYPE_BYTES[kind] > 16:
            return None
        handlers: list[Handler] = [
            memory("a", "global" if form["space"] else ""),
            vector_source(count, kind, second=True),
        ]
        if not reduction:
            handlers.insert(0, vector_dest(count, kind, sinks=True))
        return make(
            "RED" if reduction else "ATOM",
            form,
            with_policy(form, *handlers),
            family="atom",
            features=FEATURE["FEAT_COMMUNICATES"],
        )

    return build


def _atomic_rules() -> None:
    spaces = space_slot("", "global", "shared", "shared::cta", "shared::cluster")
    for mnemonic, reduction in (("atom", False), ("red", True)):
        names = ("relaxed", "release") if reduction else ("relaxed", "acquire", "release", "acq_rel")
        order = choice("order", "mods", {k: ORDER_MODS[k] for k in names}, default=ORDER_MODS["relaxed"])
        scope = choice("scope", "mods", SCOPE_MODS, default=SCOPE_MODS["gpu"])
        common = [order, scope, spaces]
        example = "[a+4], b" if reduction else "d, [a+4], b"
        vector_example = "[a], {b0, b1}" if reduction else "{d0, d1}, [a], {b0, b1}"
        for operation, kinds in _OPERATIONS:
            code = choice("operation", "mods", {operation: ATOM["A_" + operation.upper()]})
            rule(mnemonic, [*common, code, CACHE_HINT, types(*kinds)], _atomic(reduction, 1), example=example)
        add = choice("operation", "mods", {"add": ATOM["A_ADD"]})
        noftz = Slot("noftz", {"noftz": {}})
        half = types("f16", "f16x2", "bf16", "bf16x2")
        rule(mnemonic, [*common, add, noftz, CACHE_HINT, half], _atomic(reduction, 1), example=example)
        if not reduction:
            exchange = choice("operation", "mods", {"exch": ATOM["A_EXCH"]})
            swap = choice("operation", "mods", {"cas": ATOM["A_CAS"]})
            rule(
                "atom", [*common, exchange, CACHE_HINT, types("b32", "b64", "b128")], _atomic(False, 1), example=example
            )
            rule(
                "atom",
                [*common, swap, CACHE_HINT, types("b16", "b32", "b64", "b128")],
                _atomic(False, 2),
                example="d, [a], b, c",
            )
        vectors = Slot("vec", {"v2": {}, "v4": {}, "v8": {}})
        wide = [order, scope, space_slot("", "global")]
        operations = choice("operation", "mods", {name: ATOM["A_" + name.upper()] for name in ("add", "min", "max")})
        rule(
            mnemonic, [*wide, add, CACHE_HINT, vectors, types("f32")], _vector_atomic(reduction), example=vector_example
        )
        rule(
            mnemonic,
            [*wide, operations, noftz, CACHE_HINT, vectors, half],
            _vector_atomic(reduction),
            example=vector_example,
        )


_atomic_rules()
