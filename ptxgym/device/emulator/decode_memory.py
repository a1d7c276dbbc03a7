"""Grammar: loads and stores, and the modifiers that atomics and copies share with them. PTX ISA 9.7.9.

Cache operators, eviction priorities, prefetch sizes and cache policies are accepted and have no effect on results.
"""

from __future__ import annotations

from ptxgym.device.emulator.decode_grammar import (
    FIELD,
    IMM_AT,
    MODS_AT,
    NVEC_AT,
    OP_AT,
    STYPE_AT,
    TYPE_AT,
    VEC_AT,
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
    elements,
    immediate,
    memory,
    policy,
)
from ptxgym.device.emulator.ir import FEATURE, FLAG, OP, ORDER, SCOPE, SPACE
from ptxgym.device.emulator.ptx import TYPE_BYTES, Integer, Memory, Operand, Real, Register, Sink, Symbol

SPACES = {
    "": "", "global": "global", "local": "local", "shared": "shared", "shared::cta": "shared",
    "shared::cluster": "shared::cluster", "const": "const", "param": "param", "param::entry": "param",
    "param::func": "param",
}  # fmt: skip
"""State-space modifier → state space; `shared` alone is shared::cta (PTX ISA 5.1.7)."""
SPACE_MODS = {
    space: SPACE["S_" + (space or "generic").upper()] << 4
    for space in ("", "global", "local", "shared", "const", "param")
} | {"shared::cluster": SPACE["S_CLUSTER"] << 4}
SHARED_SPACES = ("shared", "shared::cluster")
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
    local = SPACES[form["space"]] in (*SHARED_SPACES, "local", "const", "param") or form.chosen.get("scope") == "cta"
    return FEATURE["FEAT_COMMUNICATES"] if ordered and not local else 0


def features_of(form: Form) -> int:
    """Bits of `FEATURE` that an access of the form's space and order needs."""
    shared = FEATURE["FEAT_SHARED"] if SPACES[form["space"]] in (*SHARED_SPACES, "") else 0
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


def _enter_class(row: Row, width: int, element_bytes: int) -> None:
    known = row[STYPE_AT]
    if width == 16 != element_bytes:
        raise RefusedOperand("a .b128 register takes .b128 alone")
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
                _enter_class(row, element.width, width)
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
                _enter_class(row, element.width, width)
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


def with_policy(form: Form, *handlers: Handler) -> tuple[Handler, ...]:
    """The handlers of the operands, and that of the cache policy where the form has one."""
    return (*handlers, policy) if form.chosen.get("hint") else handlers


def _scoped(form: Form) -> bool:
    """A scope belongs to relaxed, acquire and release, and to nothing else."""
    return bool(form.chosen.get("scope")) == (form.chosen.get("order", "") in ("relaxed", "acquire", "release"))


def _ld(form: Form) -> Template | None:
    count = _count(form)
    if count is None or not _scoped(form):
        return None
    space = SPACES[form["space"]]
    shape = with_policy(form, _loaded(form["type"], count), memory("a", space))
    custom = _load_parameter(shape) if space == "param" else None
    return make("LD", form, shape, custom=custom, family="ld", features=features_of(form), stype=0)


def _st(form: Form) -> Template | None:
    count = _count(form)
    if count is None or not _scoped(form):
        return None
    space = SPACES[form["space"]]
    if space == "param":
        return make("MOV", form, custom=_store_parameter(form["type"], count), family="call", mods=0)
    shape = with_policy(form, memory("a", space), _stored(form["type"], count))
    return make("ST", form, shape, family="st", features=features_of(form), stype=0)


# ---- parameters of calls: of built-in functions in hidden registers, of others in local memory


def call_parameter(context: Context, operand: Operand) -> tuple[int, int] | None:
    """Hidden register and width of `[param]`, a parameter of a call; None for any other address."""
    if not isinstance(operand, Memory) or not isinstance(operand.base, Symbol):
        return None
    variable = operand.base.variable
    if variable.space != "param" or variable in context.params:
        return None
    if operand.offset or operand.base.offset or operand.extra or variable.is_array:
        raise RefusedOperand(f"parts of `{variable.name}`, a parameter of a built-in function")
    width = max(TYPE_BYTES[variable.type], 2)
    offset = context.call_params.get(variable)
    if offset is None:
        offset = context.call_params[variable] = context.allocate(width)
    return offset, width


def _enter_call_memory(context: Context, row: Row, operand: Operand) -> bool:
    """Enter `[param + offset]` of a function or of its call as a local address; False for any other operand."""
    if not isinstance(operand, Memory) or not isinstance(operand.base, Symbol) or operand.extra:
        return False
    place = context.call_memory.get(operand.base.variable)
    if place is None:
        return False
    variable, offset = operand.base.variable, operand.base.offset + operand.offset
    if not 0 <= offset < variable.size_bytes:
        raise RefusedOperand(f"byte {offset} of `{variable.name}`, which has {variable.size_bytes}")
    row[MODS_AT] = (row[MODS_AT] & ~(15 << 4)) | SPACE_MODS["local"]
    row[IMM_AT] = place + offset
    return True


# The value of `[param]` comes from the kernel's parameter block, local memory or a hidden register.


def _load_parameter(shape: tuple[Handler, ...]) -> Custom:
    """`ld.param`: from the kernel's parameter block, or a call's result, which is a move."""

    def custom(context: Context, row: Row, operands: tuple[Operand, ...]) -> None:
        if len(operands) != 2:
            raise RefusedOperand(f"{len(operands)} operands, ld.param has 2")
        if _enter_call_memory(context, row, operands[1]):
            shape[0](context, row, operands[0])
            return
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
        if len(operands) == 2 and _enter_call_memory(context, row, operands[0]):
            row[OP_AT] = OP["ST"]
            _stored(kind, count)(context, row, operands[1])
            return
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
        note="non-coherent loads read what any load reads; `global.not_read_only` where another CTA has written it",
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
    flags = FLAG["F_NC"] | (FLAG["F_NO_ALLOCATE"] if form.chosen.get("L1") == "L1::no_allocate" else 0)
    effects = {**form.effects, "mods": SPACE_MODS["global"], "flags": form.effects["flags"] | flags}
    return _ld(Form({**form.chosen, "space": "global"}, effects))


_load_store_rules()
