"""Grammar: mbarrier, cp.async, bulk and tensor copies. PTX ISA 9.7.9.25 to 9.7.9.27 and 9.7.13.15.

What clusters add to copies stands in `decode_cluster`. im2col is refused.
"""

from __future__ import annotations

from ptxgym.device.emulator.decode_grammar import (
    FIELD,
    IMM_AT,
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
from ptxgym.device.emulator.decode_hints import checked_address, checked_value, nop
from ptxgym.device.emulator.decode_memory import (
    CACHE_HINT,
    L2_PREFETCH,
    ORDER_MODS,
    SCOPE_MODS,
    SPACE_MODS,
    SPACES,
    space_slot,
)
from ptxgym.device.emulator.decode_operands import (
    Context,
    describe,
    dest,
    elements,
    enter_address,
    enter_offsets,
    literal,
    memory,
    policy,
    predicate,
    source,
)
from ptxgym.device.emulator.ir import FEATURE, FLAG
from ptxgym.device.emulator.ptx import Memory, Not, Operand, Register, Sink, Symbol, Vector

_ASYNC, _SHARED = FEATURE["FEAT_ASYNC"], FEATURE["FEAT_SHARED"]
_OWN_SPACES = ("", "shared", "shared::cta")
_SHARED_SPACES = (*_OWN_SPACES, "shared::cluster")


# ---- mbarrier


def _address(form: Form) -> Handler:
    return memory("a", SPACES[form["space"]])


def _mbar(op: str, form: Form, *shapes: tuple[Handler, ...], flags: int = 0) -> Template:
    return make(op, form, *shapes, family="mbarrier", features=_ASYNC | _SHARED, flags=flags)


def _order(*names: str, default: str) -> Slot:
    return choice("order", "mods", {name: ORDER_MODS[name] for name in names}, default=ORDER_MODS[default])


def _mbarrier_rules() -> None:
    own, space = space_slot(*_OWN_SPACES), space_slot(*_SHARED_SPACES)
    b64, count = types("b64", slot="kind"), source("b", "u32")
    scope = choice("scope", "mods", {k: SCOPE_MODS[k] for k in ("cta", "cluster")}, default=SCOPE_MODS["cta"])
    rule("mbarrier", [*word("init"), own, b64], lambda f: _mbar("MBAR_INIT", f, (_address(f), count)), example="[a], 1")
    rule("mbarrier", [*word("inval"), own, b64], lambda f: _mbar("MBAR_INVAL", f, (_address(f),)), example="[a]")
    for name, op in (("expect_tx", "MBAR_EXPECT_TX"), ("complete_tx", "MBAR_COMPLETE_TX")):
        rule(
            "mbarrier",
            [*word(name), _order("relaxed", default="relaxed"), scope, space, b64],
            lambda f, op=op: _mbar(op, f, (_address(f), count)),  # type: ignore[misc]
            example="[a], 128",
        )
    arrival = _order("release", "relaxed", default="release")
    for name, flags in (("arrive", 0), ("arrive_drop", FLAG["F_DROP"])):
        rule("mbarrier", [*word(name), arrival, scope, space, b64], _arrive(flags), example="state, [a], 1")
        rule(
            "mbarrier",
            [*word(name, "expect_tx"), arrival, scope, space, b64],
            _arrive_expect(flags),
            example="state, [a], 128",
        )
        rule(
            "mbarrier",
            [*word(name, "noComplete"), _order("release", default="release"), scope, own, b64],
            _arrive_no_complete(flags | FLAG["F_NOCOMPLETE"]),
            example="state, [a], 1",
        )
    acquired = _order("acquire", "relaxed", default="acquire")
    for name, op in (("test_wait", "MBAR_TEST_WAIT"), ("try_wait", "MBAR_TRY_WAIT")):
        slots = [acquired, scope, own, b64]
        rule("mbarrier", [*word(name), *slots], _wait(op, "b64", 0), example="p, [a], state")
        rule("mbarrier", [*word(name, "parity"), *slots], _wait(op, "u32", FLAG["F_PARITY"]), example="p, [a], 0")
    rule(
        "mbarrier",
        [*word("pending_count"), b64],
        lambda f: _mbar("MBAR_PENDING", f, (dest("d", "u32"), source("a", "b64"))),
        example="d, state",
    )


def _state(form: Form) -> Handler:
    """A state token; an arrival through a cluster address has none to return."""
    if form["space"] != "shared::cluster":
        return dest("d", "b64", sink=True)

    def handler(context: Context, row: Row, operand: Operand) -> None:
        if not isinstance(operand, Sink):
            raise RefusedOperand(f"{describe(operand)} where a cluster address allows only `_`")

    return handler


def _arrive(flags: int) -> Builder:
    def build(form: Form) -> Template:
        state, address = _state(form), _address(form)
        return _mbar("MBAR_ARRIVE", form, (state, address), (state, address, source("b", "u32")), flags=flags)

    return build


def _arrive_expect(flags: int) -> Builder:
    return lambda form: _mbar("MBAR_ARRIVE", form, (_state(form), _address(form), source("c", "u32")), flags=flags)


def _arrive_no_complete(flags: int) -> Builder:
    return lambda form: _mbar("MBAR_ARRIVE", form, (_state(form), _address(form), source("b", "u32")), flags=flags)


def _wait(op: str, kind: str, flags: int) -> Builder:
    def build(form: Form) -> Template:
        shape = (dest("d", "pred", sink=True), _address(form), source("b", kind))
        if op == "MBAR_TEST_WAIT":
            return _mbar(op, form, shape, flags=flags)
        return _mbar(op, form, shape, (*shape, checked_value), flags=flags)  # a time limit for the suspension

    return build


# ---- copies whose operands hold several addresses


def _addresses(fields: str, spaces: tuple[str, ...], operands: tuple[Operand, ...]) -> Handler:
    """Enter the addresses `operands` into `fields` and their offsets into vec2."""

    def handler(context: Context, row: Row, _: Operand) -> None:
        offsets = {"a": 0, "b": 0, "c": 0}
        for field, space, operand in zip(fields, spaces, operands, strict=True):
            if not isinstance(operand, Memory):
                raise RefusedOperand(f"{describe(operand)} where an address in brackets is expected")
            offsets[field] = enter_address(context, row, field, Memory(operand.base, operand.offset), space)
        enter_offsets(context, row, (offsets["a"], offsets["b"], offsets["c"]))

    return handler


def enter_addresses(
    context: Context, row: Row, fields: str, spaces: tuple[str, ...], operands: tuple[Operand, ...]
) -> None:
    """Enter the addresses `operands` into `fields` and their offsets into vec2."""
    _addresses(fields, spaces, operands)(context, row, operands[0])


def plain(operand: Operand) -> None:
    """Refuse an address with coordinates."""
    if isinstance(operand, Memory) and operand.extra:
        raise RefusedOperand("coordinates in an address that has none")


def optional_policy(form: Form, context: Context, row: Row, rest: tuple[Operand, ...]) -> None:
    """What may follow the operands: a cache policy if the form has a hint, otherwise nothing."""
    expected = 1 if form["hint"] else 0
    if len(rest) != expected:
        raise RefusedOperand(f"{len(rest)} operands after the obligatory ones, the form has {expected}")
    for operand in rest:
        policy(context, row, operand)


def need(operands: tuple[Operand, ...], count: int) -> None:
    """Refuse fewer than `count` operands."""
    if len(operands) < count:
        raise RefusedOperand(f"{len(operands)} operands, the form has at least {count}")


def _cp_async(form: Form) -> Template:
    allowed = (4, 8, 16) if form["cache"] == "ca" else (16,)

    def custom(context: Context, row: Row, operands: tuple[Operand, ...]) -> None:
        need(operands, 3)
        plain(operands[0])
        plain(operands[1])
        literal(min(allowed), 16, name="copy size")(context, row, operands[2])
        if row[IMM_AT] not in allowed:
            raise RefusedOperand(f"copy size {row[IMM_AT]}; the form has {', '.join(map(str, allowed))}")
        enter_addresses(context, row, "ab", ("shared", "global"), operands[:2])
        rest = operands[3:]
        limit = 1 if form["hint"] else 0
        if len(rest) > limit:
            extra, rest = rest[0], rest[1:]
            is_predicate = isinstance(extra, Not) or (isinstance(extra, Register) and extra.type == "pred")
            (predicate("e", "F_C_NOT") if is_predicate else source("c", "u32"))(context, row, extra)
        optional_policy(form, context, row, rest)

    return make("CP_ASYNC", form, custom=custom, family="cp.async", features=_ASYNC | _SHARED)


def _cp_async_rules() -> None:
    shared = Slot("shared", {"shared": {}, "shared::cta": {}})
    rule(
        "cp",
        [*word("async"), Slot("cache", {"ca": {}, "cg": {}}), shared, *word("global"), CACHE_HINT, L2_PREFETCH],
        _cp_async,
        example="[a], [b], 16",
    )
    pending = literal(0, 1 << 20, name="number of groups")
    rule(
        "cp",
        word("async", "commit_group"),
        lambda f: make("CP_ASYNC_COMMIT", f, (), family="cp.async", features=_ASYNC),
    )
    rule(
        "cp",
        word("async", "wait_group"),
        lambda f: make("CP_ASYNC_WAIT", f, (pending,), family="cp.async", features=_ASYNC),
        example="1",
    )
    rule(
        "cp",
        word("async", "wait_all"),
        lambda f: make("CP_ASYNC_WAIT", f, (), family="cp.async", features=_ASYNC, imm=-1),
    )
    rule(
        "cp",
        [
            *word("async", "mbarrier", "arrive"),
            flag("noinc", "F_NOINC"),
            space_slot("", "shared", "shared::cta"),
            types("b64", slot="kind"),
        ],
        lambda f: make("CP_ASYNC_MBAR", f, (_address(f),), family="cp.async", features=_ASYNC | _SHARED),
        example="[a]",
    )


# ---- bulk copies

COMPLETION = "mbarrier::complete_tx::bytes"
TENSOR_RANK = Slot("dim", {f"{n}d": {} for n in range(1, 6)})
_TO_SHARED = choice("to", "mods", {name: SPACE_MODS[SPACES[name]] for name in ("shared::cluster", "shared::cta")})
_MULTICAST = optional("multicast", "multicast::cluster")


def _multicast_mask(form: Form, context: Context, operands: tuple[Operand, ...]) -> tuple[int, tuple[Operand, ...]]:
    """Register of the mask of destination CTAs, or -1, and the operands after it."""
    if not form["multicast"]:
        return -1, operands
    need(operands, 1)
    return context.value(operands[0], "b16"), operands[1:]


def _bulk_load(form: Form) -> Template | None:
    if form["multicast"] and form["to"] != "shared::cluster":
        return None

    def custom(context: Context, row: Row, operands: tuple[Operand, ...]) -> None:
        need(operands, 4)
        for operand in (operands[0], operands[1], operands[3]):
            plain(operand)
        source("e", "u32")(context, row, operands[2])
        enter_addresses(context, row, "abc", ("shared", "global", "shared"), (operands[0], operands[1], operands[3]))
        mask, rest = _multicast_mask(form, context, operands[4:])
        if mask >= 0:
            row[VEC_AT], row[NVEC_AT] = len(context.pool), 1
            context.pool.append(mask)
        optional_policy(form, context, row, rest)

    return make("BULK_LOAD", form, custom=custom, family="tma", features=_ASYNC | _SHARED | FEATURE["FEAT_TARGET"])


def _bulk_store(form: Form) -> Template:
    def custom(context: Context, row: Row, operands: tuple[Operand, ...]) -> None:
        need(operands, 3)
        plain(operands[0])
        plain(operands[1])
        source("e", "u32")(context, row, operands[2])
        enter_addresses(context, row, "ab", ("global", "shared"), operands[:2])
        optional_policy(form, context, row, operands[3:])

    return make("BULK_STORE", form, custom=custom, family="tma", features=_ASYNC | _SHARED | FEATURE["FEAT_TARGET"])


def enter_coordinates(context: Context, row: Row, operand: Operand, rank: int) -> None:
    """The tensor map's `{c0, c1, …}`."""
    extra = operand.extra if isinstance(operand, Memory) else ()
    if len(extra) != 1 or not isinstance(extra[0], Vector):
        raise RefusedOperand(f"{describe(operand)} where [tensor map, {{coordinates}}] is expected")
    found = [context.value(element, "s32") for element in elements(extra[0], rank)]
    row[VEC_AT], row[NVEC_AT] = len(context.pool), rank
    context.pool += found


_BY_ROW = ("tile::gather4", "tile::scatter4")


def _coordinates(form: Form) -> int:
    """Their number: of four rows a column and the rows."""
    return 5 if form["mode"] in _BY_ROW else int(form["dim"][0])


def _by_row(form: Form) -> int:
    return FLAG["F_ROWS"] if form["mode"] in _BY_ROW else 0


def map_space(operand: Operand) -> str:
    """Tensor maps are addressed generically; a parameter or constant may be named directly."""
    base = operand.base if isinstance(operand, Memory) else None
    return base.variable.space if isinstance(base, Symbol) and base.variable.space == "const" else ""


def _tensor_load(form: Form) -> Template | None:
    if form["multicast"] and form["to"] != "shared::cluster":
        return None

    def custom(context: Context, row: Row, operands: tuple[Operand, ...]) -> None:
        need(operands, 3)
        plain(operands[0])
        plain(operands[2])
        enter_coordinates(context, row, operands[1], _coordinates(form))
        enter_addresses(context, row, "abc", ("shared", map_space(operands[1]), "shared"), operands[:3])
        row[FIELD["e"]], rest = _multicast_mask(form, context, operands[3:])
        optional_policy(form, context, row, rest)

    features = _ASYNC | _SHARED | FEATURE["FEAT_TARGET"]
    return make("TMA_LOAD", form, custom=custom, family="tma", features=features, flags=_by_row(form))


def _tensor_store(form: Form) -> Template:
    def custom(context: Context, row: Row, operands: tuple[Operand, ...]) -> None:
        need(operands, 2)
        plain(operands[1])
        enter_coordinates(context, row, operands[0], _coordinates(form))
        enter_addresses(context, row, "ba", (map_space(operands[0]), "shared"), operands[:2])
        optional_policy(form, context, row, operands[2:])

    features = _ASYNC | _SHARED | FEATURE["FEAT_TARGET"]
    return make("TMA_STORE", form, custom=custom, family="tma", features=features, flags=_by_row(form))


def _tensor_prefetch(form: Form) -> Template:
    def custom(context: Context, row: Row, operands: tuple[Operand, ...]) -> None:
        need(operands, 1)
        enter_coordinates(context, row, operands[0], _coordinates(form))
        enter_addresses(context, row, "b", (map_space(operands[0]),), operands[:1])
        optional_policy(form, context, row, operands[1:])

    return make("TMA_PREFETCH", form, custom=custom, family="hint")


_FOUR_ROWS = "sm_100a; not measured on hardware"


def _bulk_rules() -> None:
    head = word("async", "bulk")
    from_global, from_shared, to_global = (
        Slot("global", {"global": {}}),
        Slot("from", {"shared::cta": {}}),
        Slot("to", {"global": {}}),
    )
    completion, group = word(COMPLETION), word("bulk_group")
    tile = optional("mode", "tile")
    rule(
        "cp",
        [*head, _TO_SHARED, from_global, *completion, _MULTICAST, CACHE_HINT],
        _bulk_load,
        example="[a], [b], 128, [c]",
    )
    rule("cp", [*head, to_global, from_shared, *group, CACHE_HINT], _bulk_store, example="[a], [b], 128")
    rule(
        "cp",
        [*head, *word("prefetch", "L2", "global")],
        nop("NOP_PREFETCH", (checked_address("global"), checked_value)),
        example="[a], 128",
    )
    rule(
        "cp",
        [*head, *word("prefetch", "L2", "global", "L2::cache_hint")],
        nop("NOP_PREFETCH", (checked_address("global"), checked_value, policy)),
        example="[a], 128, policy",
    )
    pair = choice("cta_group", "imm", {"cta_group::1": 1, "cta_group::2": 2}, default=0)
    tensor = [*head, *word("tensor"), TENSOR_RANK]
    rule(
        "cp",
        [*tensor, _TO_SHARED, from_global, tile, *completion, _MULTICAST, pair, CACHE_HINT],
        _tensor_load,
        example="[a], [map, {c0, c1}], [c]",
    )
    rule(
        "cp", [*tensor, to_global, from_shared, tile, *group, CACHE_HINT], _tensor_store, example="[map, {c0, c1}], [a]"
    )
    rule(
        "cp",
        [*head, *word("prefetch", "tensor"), TENSOR_RANK, *word("L2", "global"), tile, CACHE_HINT],
        _tensor_prefetch,
        example="[map, {c0, c1}]",
    )
    gather, scatter = (Slot("mode", {mode: {}}) for mode in _BY_ROW)
    matrix = [*head, *word("tensor"), Slot("dim", {"2d": {}})]
    rule(
        "cp",
        [*matrix, _TO_SHARED, from_global, gather, *completion, _MULTICAST, pair, CACHE_HINT],
        _tensor_load,
        note=_FOUR_ROWS,
        example="[a], [map, {x, y0, y1, y2, y3}], [c]",
    )
    rule(
        "cp", [*matrix, to_global, from_shared, scatter, *group, CACHE_HINT], _tensor_store, note=_FOUR_ROWS,
        example="[map, {x, y0, y1, y2, y3}], [a]",
    )  # fmt: skip
    rule(
        "cp",
        [*head, *word("prefetch", "tensor"), Slot("dim", {"2d": {}}), *word("L2", "global"), gather, CACHE_HINT],
        _tensor_prefetch,
        example="[map, {x, y0, y1, y2, y3}]",
    )
    rule("cp", [*head, *word("commit_group")], lambda f: make("BULK_COMMIT", f, (), family="tma", features=_ASYNC))
    pending = literal(0, 1 << 20, name="number of groups")
    rule(
        "cp",
        [*head, *word("wait_group"), flag("read", "F_READ")],
        lambda f: make("BULK_WAIT", f, (pending,), family="tma", features=_ASYNC),
        example="0",
    )


_mbarrier_rules()
_cp_async_rules()
_bulk_rules()
