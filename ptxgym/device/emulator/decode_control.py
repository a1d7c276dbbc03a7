"""Grammar: branches, calls of printf and assert, warp collectives, CTA barriers, fences, hints.

PTX ISA 9.7.12 (control), 9.7.13 (synchronisation), 9.7.19 (miscellaneous).
"""

from __future__ import annotations

from ptxgym.device.emulator.decode_grammar import (
    FIELD,
    IMM_AT,
    NVEC_AT,
    OP_AT,
    TARGET_AT,
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
from ptxgym.device.emulator.decode_hints import checked_value, nop
from ptxgym.device.emulator.decode_memory import (
    ORDER_MODS,
    SCOPE_MODS,
    call_parameter,
)
from ptxgym.device.emulator.decode_operands import (
    Context,
    describe,
    dest,
    literal,
    memory,
    pair,
    predicate,
    source,
)
from ptxgym.device.emulator.ir import ATOM, FEATURE, FENCE_PROXY, FLAG, OP, REGISTER_COUNT
from ptxgym.device.emulator.ptx import Group, Memory, Name, Operand, Symbol

_ALIGNED = FLAG["F_ALIGNED"]


# ---- branches


def _target(context: Context, row: Row, operand: Operand) -> None:
    if not isinstance(operand, Name) or operand.index is None:
        raise RefusedOperand(f"{describe(operand)} where a label is expected")
    row[TARGET_AT] = operand.index


def _targets(context: Context, row: Row, operand: Operand) -> None:
    targets = operand.targets if isinstance(operand, Name) else ()
    indices = [target.index for target in targets]
    if not indices or None in indices:
        raise RefusedOperand(f"{describe(operand)} where a .branchtargets label is expected")
    row[VEC_AT], row[NVEC_AT] = len(context.pool), len(indices)
    context.pool += [index for index in indices if index is not None]


def _control_rules() -> None:
    uni = optional("uni", "uni")
    rule("bra", [uni], lambda f: make("BRA", f, (_target,), family="control"), example="LABEL")
    rule(
        "brx",
        [*word("idx"), uni],
        lambda f: make("BRX", f, (source("a", "u32"), _targets), family="control"),
        example="a, TABLE",
    )
    rule("ret", [uni], lambda f: make("EXIT", f, (), family="control"), note="a kernel's ret ends the thread")
    for mnemonic in ("exit", "trap", "brkpt"):
        rule(mnemonic, [], lambda f, op=mnemonic: make(op.upper(), f, (), family="control"))  # type: ignore[misc]
    rule(
        "nanosleep",
        [types("u32")],
        lambda f: make("NANOSLEEP", f, (source("a", "u32"),), family="control"),
        example="a",
    )
    rule(
        "call",
        [uni],
        _call,
        note="functions of the module, also by their addresses; vprintf, __assertfail",
        example="(retval), function, (param0, param1)",
    )
    rule("pmevent", [optional("mask", "mask")], nop("NOP_PMEVENT", (checked_value,)), example="1")


# ---- calls

_HEAP = "device-side malloc and free are not emulated; allocate on the host and pass a pointer"
_LAUNCH = "kernels that launch kernels are not emulated; launch from the host"
_DEVICE_CALLS = {
    "malloc": ("emulator.device_malloc", _HEAP),
    "free": ("emulator.device_malloc", _HEAP),
    "cudaLaunchDevice": ("emulator.device_launch", _LAUNCH),
    "cudaLaunchDeviceV2": ("emulator.device_launch", _LAUNCH),
    "cudaGetParameterBuffer": ("emulator.device_launch", _LAUNCH),
    "cudaGetParameterBufferV2": ("emulator.device_launch", _LAUNCH),
}
"""Device functions that have a refusal of their own: (code, what to do)."""
_UNDEFINED = ("emulator.device_call", "this module does not define it; one file must hold all that it calls")
_INDIRECT = "a call that names neither a function nor a 64-bit register that holds its address"


def _call(form: Form) -> Template:
    def custom(context: Context, row: Row, operands: tuple[Operand, ...]) -> None:
        results: tuple[Operand, ...] = ()
        rest = list(operands)
        if rest and isinstance(rest[0], Group):
            results = rest.pop(0).elements  # type: ignore[union-attr]
        callee = rest.pop(0) if rest else None
        if not isinstance(callee, Name):
            raise RefusedOperand(_INDIRECT, "emulator.device_call")
        arguments = rest.pop(0) if rest else Group(())
        if rest or not isinstance(arguments, Group):
            raise RefusedOperand(_INDIRECT, "emulator.device_call")
        known = callee.text in ("vprintf", "__assertfail")
        places = [_call_place(context, operand) for operand in arguments.elements] if known else []
        widths = [width for _, width in places]
        if callee.text == "vprintf" and widths == [8, 8] and len(results) <= 1:
            row[OP_AT] = OP["PRINTF"]
            row[FIELD["a"]], row[FIELD["b"]] = places[0][0], places[1][0]
            if results:
                row[FIELD["d"]] = _call_place(context, results[0])[0]
        elif callee.text == "__assertfail" and widths == [8, 8, 4, 8, 8] and not results:
            row[OP_AT] = OP["ASSERTFAIL"]
            row[VEC_AT], row[NVEC_AT] = len(context.pool), 5
            context.pool += [offset for offset, _ in places]
        else:
            code, advice = _DEVICE_CALLS.get(callee.text, _UNDEFINED)
            raise RefusedOperand(f"call of device function {callee.text}: {advice}", code)

    return make("NOP", form, custom=custom, family="call", features=FEATURE["FEAT_PRINTF"])


def _call_place(context: Context, operand: Operand) -> tuple[int, int]:
    place = call_parameter(context, Memory(operand)) if isinstance(operand, Symbol) else None
    if place is None:
        raise RefusedOperand(f"{describe(operand)} as an argument of a call")
    return place


# ---- warp collectives


def _mask(field: str = "e") -> Handler:
    return source(field, "b32")


def _warp_rules() -> None:
    sync = word("sync")
    modes = choice("mode", "imm", {"up": 0, "down": 1, "bfly": 2, "idx": 3})
    destination = pair(dest("d", "b32", sink=True), dest("d2", "pred", sink=True))
    rule(
        "shfl",
        [*sync, modes, types("b32")],
        lambda f: make(
            "SHFL", f, (destination, source("a", "b32"), source("b", "b32"), source("c", "b32"), _mask()), family="warp"
        ),
        example="d|p, a, b, c, mask",
    )
    votes = choice("mode", "imm", {"all": 0, "any": 1, "uni": 2})
    voted = predicate("a", "F_A_NOT")
    rule(
        "vote",
        [*sync, votes, types("pred")],
        lambda f: make("VOTE", f, (dest("d", "pred"), voted, _mask()), family="warp"),
        example="p, q, mask",
    )
    rule(
        "vote",
        [*sync, choice("mode", "imm", {"ballot": 3}), types("b32")],
        lambda f: make("VOTE", f, (dest("d", "b32"), voted, _mask()), family="warp"),
        example="d, q, mask",
    )
    for mode, imm in (("any", 0), ("all", 1)):
        target = pair(dest("d", "b32"), dest("d2", "pred")) if imm else dest("d", "b32")
        rule(
            "match",
            [choice("mode", "imm", {mode: imm}), *sync, types("b32", "b64")],
            lambda f, target=target: make("MATCH", f, (target, source("a", f["type"]), _mask()), family="warp"),  # type: ignore[misc]
            example="d, a, mask",
        )
    for names, kinds in ((("add", "min", "max"), ("u32", "s32")), (("and", "or", "xor"), ("b32",))):
        rule(
            "redux",
            [*sync, choice("operation", "mods", {name: ATOM["A_" + name.upper()] for name in names}), types(*kinds)],
            lambda f: make("REDUX", f, (dest("d", f["type"]), source("a", f["type"]), _mask()), family="warp"),
            example="d, a, mask",
        )
    extreme = choice("operation", "mods", {"min": ATOM["A_MIN"], "max": ATOM["A_MAX"]})
    rule(
        "redux",
        [*sync, extreme, flag("abs", "F_ABS"), flag("NaN", "F_NAN"), types("f32")],
        lambda f: make("REDUX", f, (dest("d", "f32"), source("a", "f32"), _mask()), family="warp"),
        note="sm_100a",
        example="d, a, mask",
    )
    rule("activemask", [types("b32")], lambda f: make("ACTIVEMASK", f, (dest("d", "b32"),), family="warp"), example="d")
    elected = pair(dest("d", "b32", sink=True), dest("d2", "pred"), required=True)
    rule("elect", sync, lambda f: make("ELECT", f, (elected, _mask()), family="warp"), example="_|p, mask")


# ---- barriers

_BARRIER = FEATURE["FEAT_BARRIER"]


def _barrier(form: Form, op: str, *shapes: tuple[Handler, ...], flags: int) -> Template:
    return make(op, form, *shapes, family="barrier", features=_BARRIER, flags=flags)


def _barrier_rules() -> None:
    name, count = source("a", "u32"), source("b", "u32")
    tested = predicate("c", "F_C_NOT")
    for mnemonic in ("bar", "barrier"):
        aligned = [] if mnemonic == "bar" else [flag("aligned", "F_ALIGNED")]
        always = _ALIGNED if mnemonic == "bar" else 0
        head = [optional("cta", "cta"), *aligned]
        rule(
            mnemonic,
            [*head, *word("sync")],
            lambda f, a=always: _barrier(f, "BAR_SYNC", (name,), (name, count), flags=a),  # type: ignore[misc]
            example="1, 128",
        )
        rule(
            mnemonic,
            [*head, *word("arrive")],
            lambda f, a=always: _barrier(f, "BAR_ARRIVE", (name, count), flags=a),  # type: ignore[misc]
            example="1, 128",
        )
        for mode, imm, kind in (("popc", 0, "u32"), ("and", 1, "pred"), ("or", 2, "pred")):
            target = dest("d", kind)
            rule(
                mnemonic,
                [*head, *word("red"), choice("mode", "imm", {mode: imm}), types(kind)],
                lambda f, a=always, t=target: _barrier(  # type: ignore[misc]
                    f, "BAR_RED", (t, name, tested), (t, name, count, tested), flags=a
                ),
                example="d, 1, p",
            )
    rule(
        "bar",
        word("warp", "sync"),
        lambda f: make("BAR_WARP_SYNC", f, (_mask(),), family="warp"),
        example="mask",
    )


def _communicating(form: Form) -> int:
    return FEATURE["FEAT_COMMUNICATES"] if form["scope"] in ("gl", "gpu", "sys") else 0


def _fence_rules() -> None:
    levels = {"cta": SCOPE_MODS["cta"], "gl": SCOPE_MODS["gpu"], "sys": SCOPE_MODS["sys"]}
    rule(
        "membar",
        [choice("scope", "mods", levels)],
        lambda f: make("FENCE", f, (), family="fence", features=_communicating(f), mods=ORDER_MODS["sc"]),
    )
    rule("membar", word("proxy", "alias"), _proxy("FP_ALIAS"))
    orders = {name: ORDER_MODS[name] for name in ("sc", "acq_rel", "acquire", "release")}
    rule(
        "fence",
        [choice("order", "mods", orders, default=ORDER_MODS["acq_rel"]), choice("scope", "mods", SCOPE_MODS)],
        lambda f: make("FENCE", f, (), family="fence", features=_communicating(f)),
    )
    restricted = Slot("restrict", {"sync_restrict::shared::cta": {}, "sync_restrict::shared::cluster": {}})
    some = choice("order", "mods", {name: ORDER_MODS[name] for name in ("acquire", "release")})
    cluster = choice("scope", "mods", {"cluster": SCOPE_MODS["cluster"]})
    rule(
        "fence",
        [some, restricted, cluster],
        lambda f: make("FENCE", f, (), family="fence"),
        note="executed as the unrestricted fence, which orders more",
    )
    rule("fence", word("mbarrier_init", "release", "cluster"), lambda f: make("FENCE_MBAR_INIT", f, (), family="fence"))
    rule("fence", word("proxy", "alias"), _proxy("FP_ALIAS"))
    rule("fence", word("proxy", "async"), _proxy("FP_ASYNC"))
    rule("fence", word("proxy", "async", "global"), _proxy("FP_ASYNC_GLOBAL"))
    rule("fence", word("proxy", "async", "shared::cta"), _proxy("FP_ASYNC_SHARED"))
    rule("fence", word("proxy", "async", "shared::cluster"), _proxy("FP_ASYNC_SHARED"))
    rule(
        "fence",
        [*word("proxy", "async::generic"), some, restricted, cluster],
        _proxy("FP_ASYNC_GENERIC"),
        note="orders generic accesses among each other, too",
    )
    scope = choice("scope", "mods", SCOPE_MODS)
    head = word("proxy", "tensormap::generic")
    imm = FENCE_PROXY["FP_TENSORMAP"]
    rule(
        "fence",
        [*head, choice("order", "mods", {"release": ORDER_MODS["release"]}), scope],
        lambda f: make("FENCE_PROXY", f, (), family="fence", imm=imm),
    )
    rule(
        "fence",
        [*head, choice("order", "mods", {"acquire": ORDER_MODS["acquire"]}), scope],
        lambda f: make("FENCE_PROXY", f, (_map_address, _checked_literal(128, 128, "size")), family="fence", imm=imm),
        example="[a], 128",
    )


def _map_address(context: Context, row: Row, operand: Operand) -> None:
    imm = row[IMM_AT]
    memory("a", "")(context, row, operand)
    if row[IMM_AT]:
        raise RefusedOperand("an offset in the address of a tensor map fence")
    row[IMM_AT] = imm


def _checked_literal(low: int, high: int, name: str) -> Handler:
    """A constant that must lie in [low, high] and has no other effect."""
    check = literal(low, high, name=name)

    def handler(context: Context, row: Row, operand: Operand) -> None:
        imm = row[IMM_AT]
        check(context, row, operand)
        row[IMM_AT] = imm

    return handler


def _proxy(name: str) -> Builder:
    return lambda form: make("FENCE_PROXY", form, (), family="fence", imm=FENCE_PROXY[name])


def _hint_rules() -> None:
    rule(
        "setmaxnreg",
        [
            Slot("direction", {"inc": {"mods": REGISTER_COUNT["SETMAXNREG_INC"]}, "dec": {}}),
            *word("sync", "aligned"),
            types("u32", slot="kind"),
        ],
        lambda form: make(
            "SETMAXNREG", form, (literal(24, 256, name="register count"),), family="hint", flags=FLAG["F_ALIGNED"]
        ),
        example="232",
    )


_control_rules()
_warp_rules()
_barrier_rules()
_fence_rules()
_hint_rules()
