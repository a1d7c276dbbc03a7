"""Grammar: loads, stores, atomics, prefetches and cache policies. PTX ISA 9.7.9 and 9.7.13.

Cache operators, eviction priorities, prefetch sizes and cache policies are accepted and have no effect on results.
"""

from __future__ import annotations

from ptxgym.device.emulator.decode_grammar import (
    FIELD,
    MODS_AT,
    NVEC_AT,
    OP_AT,
    STYPE_AT,
    T_CODE,
    TYPE_AT,
    VEC_AT,
    Builder,
    Custom,
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
from ptxgym.device.emulator.decode_move import REGISTER_CLASS
from ptxgym.device.emulator.decode_operands import (
    Context,
    describe,
    dest,
    elements,
    enter_address,
    immediate,
    memory,
    policy,
    source,
    vector_dest,
    vector_source,
)
from ptxgym.device.emulator.ir import ATOM, FEATURE, NOP_REASON, OP, ORDER, SCOPE, SPACE
from ptxgym.device.emulator.ptx import TYPE_BYTES, Integer, Memory, Operand, Real, Register, Sink, Symbol

SPACES = {
    "": "", "global": "global", "local": "local", "shared": "shared", "shared::cta": "shared",
    "shared::cluster": "shared", "const": "const", "param": "param", "param::entry": "param", "param::func": "param",
}  # fmt: skip
"""State-space modifier → state space. Without clusters, a cluster-shared address is one of the own CTA."""
SPACE_MODS = {
    space: SPACE["S_" + (space or "generic").upper()] << 4
    for space in ("", "global", "local", "shared", "const", "param")
}
ORDER_MODS = {
    name: ORDER["O_" + name.upper()] << 8
    for name in ("weak", "relaxed", "acquire", "release", "acq_rel", "volatile", "sc")
}
SCOPE_MODS = {name: SCOPE["SC_" + name.upper()] << 12 for name in ("cta", "cluster", "gpu", "sys")}
SCOPE_SLOT = choice("scope", "mods", SCOPE_MODS, default=0)

_CACHE_LOAD = optional("cache", "ca", "cg", "cs", "lu", "cv")
_CACHE_STORE = optional("cache", "wb", "cg", "cs", "wt")
L1_EVICTION = optional(
    "L1", *(f"L1::{p}" for p in ("evict_normal", "evict_unchanged", "evict_first", "evict_last", "no_allocate"))
)
L2_EVICTION = optional("L2", *(f"L2::{p}" for p in ("evict_normal", "evict_first", "evict_last")))
L2_PREFETCH = optional("prefetch", "L2::64B", "L2::128B", "L2::256B")
CACHE_HINT = optional("hint", "L2::cache_hint")
_ELEMENTS = (
    "b8", "u8", "s8", "b16", "u16", "s16", "b32", "u32", "s32", "b64", "u64", "s64", "b128", "f32", "f64",
)  # fmt: skip
_VECTOR = choice("vec", "imm", {"v2": 0, "v4": 0, "v8": 0}, default=0)


def space_slot(*names: str) -> Slot:
    """A state space, left out for generic addresses if `` is among `names`."""
    given = {name: {"mods": SPACE_MODS[SPACES[name]]} for name in names if name}
    return Slot("space", given, required="" not in names)


def _communicates(form: Form) -> int:
    """CTAs may talk to each other through ordered or volatile accesses of global memory."""
    ordered = form.chosen.get("order", "") not in ("", "weak") or form.chosen.get("cache") == "cv"
    local = SPACES[form["space"]] in ("shared", "local", "const", "param") or form.chosen.get("scope") == "cta"
    return FEATURE["FEAT_COMMUNICATES"] if ordered and not local else 0


def _features(form: Form) -> int:
    shared = FEATURE["FEAT_SHARED"] if SPACES[form["space"]] in ("shared", "") else 0
    return shared | _communicates(form)


def _count(form: Form) -> int | None:
    """Number of elements; None where the access would be too wide."""
    count = int(form["vec"][1:]) if form["vec"] else 1
    kind, total = form["type"], count * TYPE_BYTES[form["type"]]
    if count > 1 and kind == "b128":
        return None
    if total <= 16 and count <= 4:
        return count
    return count if total == 32 and TYPE_BYTES[kind] >= 4 and SPACES[form["space"]] in ("global", "") else None


def _enter_class(row: Row, width: int) -> None:
    known = row[STYPE_AT]
    if known and known != REGISTER_CLASS[width]:
        raise RefusedOperand("registers of different widths in one vector")
    row[STYPE_AT] = REGISTER_CLASS[width]


def _loaded(kind: str, count: int) -> Handler:
    """The destinations of a load: registers at least as wide as the element."""
    width = TYPE_BYTES[kind]

    def handler(context: Context, row: Row, operand: Operand) -> None:
        row[VEC_AT], row[NVEC_AT] = len(context.pool), count
        found = []
        for element in (operand,) if type(operand) is Register and count == 1 else elements(operand, count):
            if type(element) is Register:
                if element.width < max(width, 2):
                    raise RefusedOperand(f"`{element.name}` is too narrow for .{kind}")
                _enter_class(row, element.width)
                found.append(context.register(element))
            elif isinstance(element, Sink) and count > 1:
                found.append(-1)
            else:
                raise RefusedOperand(f"{describe(element)} where a destination register is expected")
        if not row[STYPE_AT]:
            row[STYPE_AT] = REGISTER_CLASS[max(width, 2)]
        real = [offset for offset in found if offset >= 0]
        if len(set(real)) != len(real):
            raise RefusedOperand("one register twice among the destinations")
        context.pool += found

    return handler


def _stored(kind: str, count: int) -> Handler:
    """The sources of a store: registers at least as wide as the element, or constants."""
    width = max(TYPE_BYTES[kind], 2)

    def handler(context: Context, row: Row, operand: Operand) -> None:
        row[VEC_AT], row[NVEC_AT] = len(context.pool), count
        parts = (operand,) if type(operand) is Register and count == 1 else elements(operand, count)
        for element in parts:
            if type(element) is Register:
                if element.width < width:
                    raise RefusedOperand(f"`{element.name}` is too narrow for .{kind}")
                _enter_class(row, element.width)
        class_width = next((w for w, code in REGISTER_CLASS.items() if code == row[STYPE_AT]), width)
        row[STYPE_AT] = REGISTER_CLASS[class_width]
        found = []
        for element in parts:
            if type(element) is Register:
                found.append(context.register(element))
            elif isinstance(element, Integer | Real):
                found.append(context.constant(immediate(element, kind), class_width))
            else:
                if class_width != width:
                    raise RefusedOperand(f"{describe(element)} beside wider registers")
                found.append(context.constant_operand(element, "b" + str(8 * width)))
        context.pool += found

    return handler


def _with_policy(form: Form, *handlers: Handler) -> tuple[Handler, ...]:
    return (*handlers, policy) if form.chosen.get("hint") else handlers


def _scoped(form: Form) -> bool:
    """A scope belongs to relaxed, acquire and release, and to nothing else."""
    return bool(form.chosen.get("scope")) == (form.chosen.get("order", "") in ("relaxed", "acquire", "release"))


def _ld(form: Form) -> Template | None:
    count = _count(form)
    if count is None or not _scoped(form):
        return None
    space = SPACES[form["space"]]
    shape = _with_policy(form, _loaded(form["type"], count), memory("a", space))
    custom = _load_parameter(shape) if space == "param" else None
    return make("LD", form, shape, custom=custom, family="ld", features=_features(form), stype=0)


def _st(form: Form) -> Template | None:
    count = _count(form)
    if count is None or not _scoped(form):
        return None
    space = SPACES[form["space"]]
    if space == "param":
        return make("MOV", form, custom=_store_parameter(form["type"], count), family="call", mods=0)
    shape = _with_policy(form, memory("a", space), _stored(form["type"], count))
    return make("ST", form, shape, family="st", features=_features(form), stype=0)


# ---- parameters of calls live in hidden registers


def call_parameter(context: Context, operand: Operand) -> tuple[int, int] | None:
    """Hidden register and width of `[param]`, a parameter of a call; None for any other address."""
    if not isinstance(operand, Memory) or not isinstance(operand.base, Symbol):
        return None
    variable = operand.base.variable
    if variable.space != "param" or variable in context.params:
        return None
    if operand.offset or operand.base.offset or operand.extra or variable.is_array:
        raise RefusedOperand(f"parts of `{variable.name}`: calls that pass structures are not emulated")
    width = max(TYPE_BYTES[variable.type], 2)
    offset = context.call_params.get(variable)
    if offset is None:
        offset = context.call_params[variable] = context.allocate(width)
    return offset, width


def _load_parameter(shape: tuple[Handler, ...]) -> Custom:
    """`ld.param`: from the kernel's parameter block, or a call's result, which is a move."""

    def custom(context: Context, row: Row, operands: tuple[Operand, ...]) -> None:
        if len(operands) != 2:
            raise RefusedOperand(f"{len(operands)} operands, ld.param has 2")
        place = call_parameter(context, operands[1])
        if place is None:
            for handler, operand in zip(shape, operands, strict=True):
                handler(context, row, operand)
            return
        offset, width = place
        target = operands[0]
        if not isinstance(target, Register) or target.width != width:
            raise RefusedOperand("a call's result in a register of another width")
        row[OP_AT], row[TYPE_AT], row[STYPE_AT], row[MODS_AT] = (
            OP["MOV"],
            REGISTER_CLASS[width],
            REGISTER_CLASS[width],
            0,
        )
        row[FIELD["d"]], row[FIELD["a"]] = context.register(target), offset

    return custom


def _store_parameter(kind: str, count: int) -> Custom:
    def custom(context: Context, row: Row, operands: tuple[Operand, ...]) -> None:
        place = call_parameter(context, operands[0]) if len(operands) == 2 and count == 1 else None
        if place is None:
            raise RefusedOperand("a store to a parameter that belongs to no call")
        offset, width = place
        if TYPE_BYTES[kind] != width:
            raise RefusedOperand(f"a .{kind} value for a parameter of {width} bytes")
        row[TYPE_AT] = row[STYPE_AT] = REGISTER_CLASS[width]
        row[FIELD["d"]], row[FIELD["a"]] = offset, context.value(operands[1], kind)

    return custom


def _load_store_rules() -> None:
    orders = choice("order", "mods", {k: ORDER_MODS[k] for k in ("weak", "relaxed", "acquire", "volatile")}, default=0)
    load_spaces = space_slot(
        "",
        "global",
        "local",
        "shared",
        "shared::cta",
        "shared::cluster",
        "const",
        "param",
        "param::entry",
        "param::func",
    )
    kinds = types(*_ELEMENTS)
    hints = [L1_EVICTION, L2_EVICTION, CACHE_HINT, L2_PREFETCH]
    rule("ld", [orders, SCOPE_SLOT, load_spaces, _CACHE_LOAD, *hints, _VECTOR, kinds], _ld, example="d, [a+4]")
    rule(
        "ld",
        [*word("global", "nc"), optional("cache", "ca", "cg", "cs"), *hints, _VECTOR, kinds],
        _ld_nc,
        note="non-coherent loads read what any load reads",
        example="d, [a+4]",
    )
    rule("ldu", [space_slot("", "global"), _VECTOR, kinds], _ld, example="d, [a+4]")
    orders = choice("order", "mods", {k: ORDER_MODS[k] for k in ("weak", "relaxed", "release", "volatile")}, default=0)
    store_spaces = space_slot("", "global", "local", "shared", "shared::cta", "shared::cluster", "param", "param::func")
    rule(
        "st",
        [orders, SCOPE_SLOT, store_spaces, _CACHE_STORE, L1_EVICTION, L2_EVICTION, CACHE_HINT, _VECTOR, kinds],
        _st,
        example="[a+4], b",
    )


def _ld_nc(form: Form) -> Template | None:
    return _ld(Form({**form.chosen, "space": "global"}, {**form.effects, "mods": SPACE_MODS["global"]}))


# ---- atomics

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
        features = _features(form)
        if SPACES[form["space"]] != "shared" and form["scope"] != "cta":
            features |= FEATURE["FEAT_COMMUNICATES"]
        op = "RED" if reduction else "ATOM"
        return make(op, form, _with_policy(form, *handlers), family="atom", features=features)

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
            _with_policy(form, *handlers),
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


# ---- instructions that only concern caches: counted, without effect


def nop(reason: str, *shapes: tuple[Handler, ...]) -> Builder:
    """A builder for an accepted instruction that has no effect on results."""
    return lambda form: make("NOP", form, *shapes, family="hint", imm=NOP_REASON[reason], mods=0)


def checked_address(space: str) -> Handler:
    """An address that is checked for its form and then dropped: prefetches never fault."""

    def handler(context: Context, row: Row, operand: Operand) -> None:
        if not isinstance(operand, Memory):
            raise RefusedOperand(f"{describe(operand)} where an address in brackets is expected")
        scratch = list(row)
        enter_address(context, scratch, "a", operand, space)

    return handler


def checked_value(context: Context, row: Row, operand: Operand) -> None:
    """A register or constant that has no effect on results."""
    if not isinstance(operand, Integer | Real | Register):
        raise RefusedOperand(f"{describe(operand)} where a value is expected")


def _policy_template(form: Form) -> Template:
    target = dest("d", "b64")
    shapes: list[tuple[Handler, ...]] = [(target, checked_value)]
    if form["kind"] == "fractional":
        shapes.append((target,))
    elif form["kind"] == "range":
        shapes = [(target, checked_address("global" if form["global"] else ""), checked_value, checked_value)]
    return make("NOP", form, *shapes, family="hint", imm=NOP_REASON["NOP_CREATEPOLICY"], type=T_CODE["b64"])


def _hint_rules() -> None:
    for level in ("L1", "L2"):
        for space in ("global", "local", ""):
            slots = [*word(level), *(word(space) if space else [])]
            rule("prefetch", slots, nop("NOP_PREFETCH", (checked_address(space),)), example="[a]")
    rule("prefetch", [*word("global"), Slot("level", {"L2::evict_last": {}, "L2::evict_normal": {}})],
         nop("NOP_PREFETCH", (checked_address("global"),)), example="[a]")  # fmt: skip
    rule("prefetchu", word("L1"), nop("NOP_PREFETCH", (checked_address(""),)), example="[a]")
    for space in ("", "param", "const"):
        slots = [*(word(space) if space else []), *word("tensormap")]
        rule("prefetch", slots, nop("NOP_PREFETCH", (checked_address(space),)), example="[a]")
    rule("applypriority", [optional("global", "global"), *word("L2::evict_normal")],
         nop("NOP_PREFETCH", (checked_address(""), checked_value)), example="[a], 128")  # fmt: skip
    first = Slot("first", {f"L2::{p}": {} for p in ("evict_last", "evict_normal", "evict_first", "evict_unchanged")})
    second = optional("second", "L2::evict_first", "L2::evict_unchanged")
    fractional = Slot("kind", {"fractional": {}})
    rule(
        "createpolicy",
        [fractional, first, second, types("b64", slot="result")],
        _policy_template,
        example="d, 0f3F800000",
    )
    ranged = Slot("kind", {"range": {}})
    rule(
        "createpolicy",
        [ranged, optional("global", "global"), first, second, types("b64", slot="result")],
        _policy_template,
        example="d, [a], 128, 128",
    )
    converted = Slot("kind", {"cvt": {}})
    rule("createpolicy", [converted, *word("L2"), types("b64", slot="result")], _policy_template, example="d, a")


_load_store_rules()
_atomic_rules()
_hint_rules()
