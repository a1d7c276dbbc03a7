"""Grammar: integer and floating-point arithmetic. PTX ISA 9.7.1 to 9.7.5."""

from __future__ import annotations

from ptxgym.device.emulator.decode_grammar import (
    FIELD,
    T_CODE,
    Builder,
    Form,
    Handler,
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
from ptxgym.device.emulator.decode_operands import Context, dest, pair, predicate, source
from ptxgym.device.emulator.ir import BOOL, CMP, FLAG
from ptxgym.device.emulator.ptx import Operand

INTEGERS = ("u16", "u32", "u64", "s16", "s32", "s64")
_HALVES = ("u16x2", "s16x2")
_PACKED = ("f16x2", "bf16x2")


def _shape(form: Form, kinds: str) -> tuple[Handler, ...]:
    """Handlers from a string such as `dabc` (all of the form's type)."""
    kind = "b32" if form["type"] in _HALVES else form["type"]
    return tuple(dest("d", kind) if letter == "d" else source(letter, kind) for letter in kinds)


def alu(
    op: str, kinds: str, *, family: str = "alu", multiply_adds: int = 0, flags: int = 0, imm: int | None = None
) -> Builder:
    """A builder for instructions whose operands all have the form's type; packed types count twice."""

    def build(form: Form) -> Template:
        packed = form["type"] in _PACKED
        return make(
            op,
            form,
            _shape(form, kinds),
            family="hfma2" if packed and family == "fma" else family,
            thread_multiply_adds=multiply_adds * (2 if packed else 1),
            flags=flags,
            imm=imm,
        )

    return build


FTZ, SAT, RELU = flag("ftz", "F_FTZ"), flag("sat", "F_SAT"), flag("relu", "F_RELU")
IEEE = ("rn", "rz", "rm", "rp")


# ---- integers


def _integer_rules() -> None:
    for op, mnemonic in (("ADD", "add"), ("SUB", "sub")):
        rule(mnemonic, [types(*INTEGERS)], alu(op, "dab"), example="d, a, b")
        rule(mnemonic, [*word("sat"), types("s32")], alu(op, "dab", flags=FLAG["F_SAT"]), example="d, a, b")
    rule("add", [types(*_HALVES)], alu("ADD", "dab"), example="d, a, b")
    rule("mul", [Slot("half", {"lo": {}, "hi": {}}), types(*INTEGERS)], _mul, example="d, a, b")
    rule("mul", [*word("wide"), types("u16", "u32", "s16", "s32")], _wide("MUL_WIDE", "ab"), example="d, a, b")
    rule("mad", [Slot("half", {"lo": {}, "hi": {}}), types(*INTEGERS)], _mad, example="d, a, b, c")
    rule("mad", [*word("hi", "sat"), types("s32")], alu("MAD_HI", "dabc", flags=FLAG["F_SAT"]), example="d, a, b, c")
    rule("mad", [*word("wide"), types("u16", "u32", "s16", "s32")], _wide("MAD_WIDE", "abc"), example="d, a, b, c")
    half = choice("half", "imm", {"lo": 0, "hi": 1})
    rule("mul24", [half, types("u32", "s32")], alu("MUL24", "dab"), example="d, a, b")
    rule("mad24", [half, types("u32", "s32")], alu("MAD24", "dabc"), example="d, a, b, c")
    rule(
        "mad24",
        [*word("hi", "sat"), types("s32")],
        alu("MAD24", "dabc", flags=FLAG["F_SAT"], imm=1),
        example="d, a, b, c",
    )
    rule("sad", [types(*INTEGERS)], alu("SAD", "dabc"), example="d, a, b, c")
    rule("div", [types(*INTEGERS)], alu("DIV", "dab"), example="d, a, b")
    rule("rem", [types(*INTEGERS)], alu("REM", "dab"), example="d, a, b")
    rule("abs", [types("s16", "s32", "s64")], alu("ABS", "da"), example="d, a")
    rule("neg", [types("s16", "s32", "s64")], alu("NEG", "da"), example="d, a")
    for op, mnemonic in (("MIN", "min"), ("MAX", "max")):
        rule(mnemonic, [types(*INTEGERS)], alu(op, "dab"), example="d, a, b")
        rule(mnemonic, [*word("relu"), types("s32")], alu(op, "dab", flags=FLAG["F_RELU"]), example="d, a, b")
        rule(mnemonic, [types("u16x2")], alu(op, "dab"), example="d, a, b")
        rule(mnemonic, [RELU, types("s16x2")], alu(op, "dab"), example="d, a, b")
    for op, mnemonic in (("DP4A", "dp4a"), ("DP2A", "dp2a")):
        halves = [] if op == "DP4A" else [Slot("half", {"lo": {}, "hi": {"flags": FLAG["F_HI"]}})]
        rule(
            mnemonic,
            [*halves, types("u32", "s32", slot="stype"), types("u32", "s32", slot="btype")],
            _dot(op, 4 if op == "DP4A" else 2),
            example="d, a, b, c",
        )


def _mul(form: Form) -> Template:
    return make("MUL_LO" if form["half"] == "lo" else "MUL_HI", form, _shape(form, "dab"))


def _mad(form: Form) -> Template:
    return make("MAD_LO" if form["half"] == "lo" else "MAD_HI", form, _shape(form, "dabc"))


def _wide(op: str, sources: str) -> Builder:
    def build(form: Form) -> Template:
        narrow = form["type"]
        wide = narrow[0] + str(2 * int(narrow[1:]))
        handlers = [dest("d", wide), source("a", narrow), source("b", narrow)]
        if "c" in sources:
            handlers.append(source("c", wide))
        return make(op, form, tuple(handlers), type=T_CODE[wide], stype=T_CODE[narrow])

    return build


def _dot(op: str, multiply_adds: int) -> Builder:
    def build(form: Form) -> Template:
        result = "s32" if "s32" in (form["stype"], form["btype"]) else "u32"
        shape = (dest("d", result), source("a", form["stype"]), source("b", form["btype"]), source("c", result))
        signed = FLAG["F_B_SIGNED"] if form["btype"] == "s32" else 0
        return make(
            op, form, shape, family="dp4a", thread_multiply_adds=multiply_adds, type=T_CODE[result], flags=signed
        )

    return build


# ---- extended precision: the carry is a hidden predicate


def _carry_rules() -> None:
    wide = types("u32", "s32", "u64", "s64")
    out = Slot("cc", {"cc": {"flags": FLAG["F_CC_OUT"]}}, required=False)
    must = Slot("cc", {"cc": {"flags": FLAG["F_CC_OUT"]}})
    for op, plain, chained in (("ADD", "add", "addc"), ("SUB", "sub", "subc")):
        rule(plain, [must, wide], _carry(op, "dab", 0), example="d, a, b")
        rule(chained, [out, wide], _carry(op, "dab", FLAG["F_CC_IN"]), example="d, a, b")
    for half, op in (("lo", "MAD_LO"), ("hi", "MAD_HI")):
        rule("mad", [*word(half), must, wide], _carry(op, "dabc", 0), example="d, a, b, c")
        rule("madc", [*word(half), out, wide], _carry(op, "dabc", FLAG["F_CC_IN"]), example="d, a, b, c")


def _carry(op: str, kinds: str, flags: int) -> Builder:
    def build(form: Form) -> Template:
        first, *rest = _shape(form, kinds)

        def with_carry(context: Context, row: Row, operand: Operand) -> None:
            first(context, row, operand)
            row[FIELD["e"]] = row[FIELD["d2"]] = context.carry()

        return make(op, form, (with_carry, *rest), flags=flags)

    return build


# ---- floating point: PTX ISA 9.7.3 and 9.7.4

_PAIRS = "two f32 numbers in a 64-bit register; sm_100 and later"


def _float_rules() -> None:
    for op, mnemonic in (("ADD", "add"), ("SUB", "sub"), ("MUL", "mul")):
        family, count = ("fmul", 1) if op == "MUL" else ("alu", 0)
        build = alu(op, "dab", family=family, multiply_adds=count)
        rule(mnemonic, [rounding(*IEEE, required=False), FTZ, SAT, types("f32")], build, example="d, a, b")
        rule(mnemonic, [rounding(*IEEE, required=False), types("f64")], build, example="d, a, b")
        rule(mnemonic, [rounding("rn", required=False), FTZ, SAT, types("f16", "f16x2")], build, example="d, a, b")
        rule(mnemonic, [rounding("rn", required=False), types("bf16", "bf16x2")], build, example="d, a, b")
        pairs = alu(op, "dab", family=family, multiply_adds=2 * count)
        rule(mnemonic, [rounding(*IEEE, required=False), FTZ, types("f32x2")], pairs, note=_PAIRS, example="d, a, b")
    fma = alu("FMA", "dabc", family="fma", multiply_adds=1)
    for mnemonic in ("fma", "mad"):
        rule(mnemonic, [rounding(*IEEE, required=True), FTZ, SAT, types("f32")], fma, example="d, a, b, c")
        rule(mnemonic, [rounding(*IEEE, required=True), types("f64")], fma, example="d, a, b, c")
    rule("fma", [rounding("rn", required=True), FTZ, SAT, types("f16", "f16x2")], fma, example="d, a, b, c")
    rule("fma", [rounding("rn", required=True), FTZ, *_must("relu"), types("f16", "f16x2")], fma, example="d, a, b, c")
    rule("fma", [rounding("rn", required=True), RELU, types("bf16", "bf16x2")], fma, example="d, a, b, c")
    pairs = alu("FMA", "dabc", family="fma", multiply_adds=2)
    rule("fma", [rounding(*IEEE, required=True), FTZ, types("f32x2")], pairs, note=_PAIRS, example="d, a, b, c")
    approx = FLAG["F_APPROX"]
    rule("div", [*word("approx"), FTZ, types("f32")], alu("DIV", "dab", flags=approx), example="d, a, b")
    rule("div", [*word("full"), FTZ, types("f32")], alu("DIV", "dab", flags=approx, imm=1), example="d, a, b")
    rule("div", [rounding(*IEEE, required=True), FTZ, types("f32")], alu("DIV", "dab"), example="d, a, b")
    rule("div", [rounding(*IEEE, required=True), types("f64")], alu("DIV", "dab"), example="d, a, b")
    for op, mnemonic in (("ABS", "abs"), ("NEG", "neg")):
        rule(mnemonic, [FTZ, types("f32", "f16", "f16x2")], alu(op, "da"), example="d, a")
        rule(mnemonic, [types("f64", "bf16", "bf16x2")], alu(op, "da"), example="d, a")
    nan = flag("NaN", "F_NAN")
    xorsign = Slot("xorsign", {"xorsign": {"flags": FLAG["F_XORSIGN"]}})
    absolute = Slot("abs", {"abs": {"flags": FLAG["F_ABS"]}})
    for op, mnemonic in (("MIN", "min"), ("MAX", "max")):
        rule(mnemonic, [FTZ, nan, types("f32")], _extreme(op), note="of three numbers: sm_100", example="d, a, b")
        rule(mnemonic, [FTZ, nan, types("f16", "f16x2")], alu(op, "dab"), example="d, a, b")
        rule(
            mnemonic,
            [FTZ, nan, xorsign, absolute, types("f32", "f16", "f16x2")],
            alu(op, "dab"),
            example="d, a, b",
        )
        for extra in ([], [xorsign, absolute]):
            rule(mnemonic, [nan, *extra, types("bf16", "bf16x2")], alu(op, "dab"), example="d, a, b")
        rule(mnemonic, [types("f64")], alu(op, "dab"), example="d, a, b")
    for op, mnemonic in (("RCP", "rcp"), ("SQRT", "sqrt")):
        rule(mnemonic, [*word("approx"), FTZ, types("f32")], alu(op, "da", flags=approx), example="d, a")
        rule(mnemonic, [rounding(*IEEE, required=True), FTZ, types("f32")], alu(op, "da"), example="d, a")
        rule(mnemonic, [rounding(*IEEE, required=True), types("f64")], alu(op, "da"), example="d, a")
    for op, mnemonic in (("RCP", "rcp"), ("RSQRT", "rsqrt")):
        rule(
            mnemonic,
            [*word("approx", "ftz"), types("f64")],
            alu(op, "da", flags=approx | FLAG["F_FTZ"]),
            example="d, a",
        )
    rule("rsqrt", [*word("approx"), types("f64")], alu("RSQRT", "da", flags=approx), example="d, a")
    for mnemonic in ("rsqrt", "sin", "cos", "lg2", "ex2"):
        build = alu(mnemonic.upper(), "da", flags=approx)
        rule(mnemonic, [*word("approx"), FTZ, types("f32")], build, example="d, a")
    ex2, tanh = alu("EX2", "da", flags=approx), alu("TANH", "da", flags=approx)
    rule("ex2", [*word("approx"), types("f16", "f16x2")], ex2, example="d, a")
    rule("ex2", [*word("approx"), *_must("ftz"), types("bf16", "bf16x2")], ex2, example="d, a")
    rule("tanh", [*word("approx"), types("f32", "f16", "f16x2", "bf16", "bf16x2")], tanh, example="d, a")
    rule("copysign", [types("f32", "f64")], alu("COPYSIGN", "dab"), example="d, a, b")
    tests = ("finite", "infinite", "number", "notanumber", "normal", "subnormal")
    rule(
        "testp",
        [choice("test", "imm", {name: index for index, name in enumerate(tests)}), types("f32", "f64")],
        lambda form: make("TESTP", form, (dest("d", "pred"), source("a", form["type"]))),
        example="p, a",
    )


def _extreme(op: str) -> Builder:
    """The least or greatest of two numbers, or of three."""
    return lambda form: make(op, form, _shape(form, "dab"), _shape(form, "dabc"))


def _must(text: str) -> list[Slot]:
    """A flag that this rule demands."""
    return [Slot(text, {text: {"flags": FLAG["F_" + text.upper()]}})]


# ---- comparison: PTX ISA 9.7.6 and 9.7.7

_EQUALITY = {"eq": CMP["C_EQ"], "ne": CMP["C_NE"]}
_ORDERED = {**_EQUALITY, "lt": CMP["C_LT"], "le": CMP["C_LE"], "gt": CMP["C_GT"], "ge": CMP["C_GE"]}
_UNSIGNED = {**_ORDERED, "lo": CMP["C_LT"], "ls": CMP["C_LE"], "hi": CMP["C_GT"], "hs": CMP["C_GE"]}
_FLOAT = {
    **_ORDERED,
    **{name: CMP["C_" + name.upper()] for name in ("equ", "neu", "ltu", "leu", "gtu", "geu", "num")},
    "nan": CMP["C_NANS"],
}
_COMPARED: tuple[tuple[dict[str, int], tuple[str, ...], bool], ...] = (
    (_EQUALITY, ("b16", "b32", "b64"), False),
    (_UNSIGNED, ("u16", "u32", "u64"), False),
    (_ORDERED, ("s16", "s32", "s64"), False),
    (_FLOAT, ("f32", "f16", "f16x2"), True),
    (_FLOAT, ("f64", "bf16", "bf16x2"), False),
)
_BOOLEAN = Slot(
    "bool", {name: {"mods": BOOL["B_" + name.upper()] << 4} for name in ("and", "or", "xor")}, required=False
)


_SET_RESULTS = {
    "f16": ("f16", "u16", "s16", "u32", "s32"),
    "bf16": ("bf16", "u16", "s16", "u32", "s32"),
    "f16x2": ("f16x2", "u32", "s32"),
    "bf16x2": ("bf16x2", "u32", "s32"),
}


def _comparison_rules() -> None:
    for comparisons, kinds, ftz in _COMPARED:
        compare = choice("cmp", "mods", comparisons)
        head = [compare, _BOOLEAN, *([FTZ] if ftz else [])]
        rule("setp", [*head, types(*kinds)], _setp, example="p, a, b")
        for source_kind in kinds:
            results = _SET_RESULTS.get(source_kind, ("u32", "s32", "f32"))
            rule("set", [*head, types(*results), types(source_kind, slot="stype")], _set, example="d, a, b")
    number = types("b16", "b32", "b64", "u16", "u32", "u64", "s16", "s32", "s64", "f32", "f64")
    rule("selp", [number], lambda f: make("SELP", f, (*_shape(f, "dab"), predicate("c"))), example="d, a, b, p")
    rule("slct", [number, types("s32", slot="stype")], _slct, example="d, a, b, c")
    rule("slct", [FTZ, number, types("f32", slot="stype")], _slct, example="d, a, b, c")


def _setp(form: Form) -> Template:
    kind = form["type"]
    first, second = dest("d", "pred", sink=True), dest("d2", "pred", sink=True)
    single = kind in ("f16", "bf16")  # these have no second result, packed types always have one
    destination = first if single else pair(first, second, required=kind in _PACKED)
    shape: tuple[Handler, ...] = (destination, source("a", kind), source("b", kind))
    if form["bool"]:
        shape = (*shape, predicate("c", "F_C_NOT"))
    return make("SETP", form, shape, stype=form.effects["type"])


def _set(form: Form) -> Template:
    kind = form["stype"]
    shape: tuple[Handler, ...] = (dest("d", form["type"]), source("a", kind), source("b", kind))
    if form["bool"]:
        shape = (*shape, predicate("c", "F_C_NOT"))
    return make("SET", form, shape)


def _slct(form: Form) -> Template:
    return make("SLCT", form, (*_shape(form, "dab"), source("c", form["stype"])))


_integer_rules()
_carry_rules()
_float_rules()
_comparison_rules()
