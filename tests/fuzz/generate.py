"""Random programs from a seed."""

from __future__ import annotations

import random
from collections.abc import Sequence

from tests.fuzz import forms_float, forms_integer
from tests.fuzz.forms import FORMS, bits_of
from tests.fuzz.program import (
    CELLS,
    COUNTS,
    SLOT,
    SPACES,
    TABLE,
    Access,
    Atomic,
    Block,
    Collective,
    CtaVote,
    Elect,
    Exchange,
    Exit,
    Fuzzed,
    If,
    Loop,
    Op,
    Reduce,
    Shape,
    Statement,
    Switch,
)
from tests.fuzz.text import element_bytes

assert forms_integer and forms_float  # they fill FORMS
_DECK = sorted(FORMS)
_LETTER = {1: "p", 16: "h", 32: "r", 64: "d"}
_IMMEDIATES = ("u16", "s16", "u32", "s32", "u64", "s64", "b16", "b32", "b64", "shift", "f32", "f64")
_INTERESTING = (
    0,
    1,
    2,
    3,
    7,
    8,
    15,
    16,
    31,
    32,
    63,
    64,
    0xFF,
    0x7FFF,
    0x8000,
    0xFFFF,
    0x7FFFFFFF,
    0x80000000,
    0xFFFFFFFF,
)
_LOADS = ("b8", "u8", "s8", "b16", "u16", "s16", "b32", "u32", "s32", "f32", "b64", "u64", "s64", "f64")
_ATOMICS = (
    ("add", "u32"), ("add", "s32"), ("add", "u64"), ("add", "f32"), ("add", "f64"), ("min", "s32"), ("max", "u64"),
    ("min", "s64"), ("inc", "u32"), ("dec", "u32"), ("and", "b32"), ("or", "b64"), ("xor", "b32"), ("exch", "b32"),
    ("exch", "b64"), ("cas", "b32"), ("cas", "b64"), ("cas", "b16"), ("add.noftz", "f16x2"), ("add.noftz", "bf16x2"),
)  # fmt: skip
_MODES = ("up", "down", "bfly", "idx")
_REDUCTIONS = (
    *("add.u32", "add.s32", "min.u32", "max.u32", "min.s32", "max.s32", "and.b32", "or.b32", "xor.b32"),
    *("min.f32", "max.f32", "min.abs.f32", "max.abs.NaN.f32", "min.NaN.f32"),
)


def program(seed: int, statements: int = 30) -> Fuzzed:
    """Return the program of a seed; `statements` is about how many it has."""
    return _Generator(random.Random(seed)).program(seed, statements)


class _Generator:
    def __init__(self, chance: random.Random) -> None:
        self.chance = chance
        self.exited = False
        self.shape = Shape()

    def program(self, seed: int, statements: int) -> Fuzzed:
        chance = self.chance
        cluster = chance.choice((1, 1, 1, 2))
        schedule = chance.choice(("fair", "fair", "lazy", "random", "random"))
        self.shape = Shape(
            grid=cluster * chance.choice((1, 1, 2)), block=chance.choice((32, 32, 32, 20, 20, 64, 50)), cluster=cluster,
            schedule=schedule, seed=chance.randrange(1000), threads=chance.choice((1, 1, 2)),
        )  # fmt: skip
        return Fuzzed(self.block(statements, 0, True), self.shape, data=seed + 1)

    def block(self, statements: int, depth: int, uniform: bool) -> Block:
        found: list[Statement] = []
        while statements > 0:
            statement, cost = self.statement(statements, depth, uniform)
            statements -= cost
            found.append(statement)
        return tuple(found)

    def statement(self, left: int, depth: int, uniform: bool) -> tuple[Statement, int]:
        """`uniform`: every live thread of the CTA executes this."""
        chance = self.chance
        kind = chance.random()
        if kind < 0.58:
            return self.op(), 1
        if kind < 0.70:
            return self.access(), 1
        if kind < 0.74:
            return self.atomic(), 1
        if kind < 0.77:
            return self.reduce(), 1
        if kind < 0.85:
            return self.collective(depth), 1
        if kind < 0.90 and uniform and not self.exited:
            return self.together(), 1
        if kind < 0.905 and uniform and depth == 0 and self.may_exit():
            self.exited = True
            return Exit(self.register("p")), 3
        if depth < 4 and left > 2:
            inside = chance.randint(1, min(left - 1, 8))
            return self.nested(inside, depth, uniform), inside + 1
        return self.op(), 1

    def may_exit(self) -> bool:
        """One warp: no barrier waits for warps that have exited, and nothing orders what they did before."""
        return not self.exited and self.shape.cluster == 1 and self.shape.block <= 32

    def nested(self, inside: int, depth: int, uniform: bool) -> Statement:
        chance, kind = self.chance, self.chance.random()
        if kind < 0.5:
            other = chance.randint(0, inside)
            then = self.block(inside - other, depth + 1, False)
            return If(self.register("p"), then, self.block(other, depth + 1, False), chance.random() < 0.5)
        if kind < 0.65:
            cases = chance.choice((2, 4))
            each = max(1, inside // cases)
            return Switch(self.register("r"), tuple(self.block(each, depth + 1, False) for _ in range(cases)))
        if kind < 0.8:
            bottom = chance.random() < 0.4
            return Loop(chance.randrange(bottom, 4), self.block(inside, depth + 1, uniform), bottom)
        return Loop(self.register("r"), self.block(inside, depth + 1, False), chance.random() < 0.4)

    def register(self, letter: str) -> str:
        return f"%{letter}{self.chance.randrange(COUNTS[letter])}"

    def holder(self, kind: str) -> str:
        return self.register(_LETTER[bits_of(kind)])

    def guard(self) -> str:
        return self.chance.choice(("", "!")) + self.register("p") if self.chance.random() < 0.15 else ""

    def op(self) -> Op:
        key = self.chance.choice(_DECK)
        form = FORMS[key]
        sequence = ";" in form.opcode
        results: list[str] = []
        while len(results) < len(form.results):
            register = self.holder(form.results[len(results)])
            if register not in results:
                results.append(register)
        immediate = not sequence and not form.opcode.startswith("cvt.")
        sources: list[str | int] = []
        for kind in form.sources:
            source = self.source(kind, immediate=immediate)
            while sequence and source in results:
                source = self.source(kind, immediate=False)
            sources.append(source)
        return Op(key, tuple(results), tuple(sources), "" if sequence else self.guard())

    def source(self, kind: str, *, immediate: bool) -> str | int:
        chance = self.chance
        if kind == "byte":
            return chance.randrange(256)
        if immediate and kind in _IMMEDIATES and chance.random() < (0.5 if kind == "shift" else 0.12):
            bits = bits_of(kind)
            value = (
                chance.randrange(70) if kind == "shift" else chance.choice((*_INTERESTING, chance.getrandbits(bits)))
            )
            return value & ((1 << bits) - 1)
        return self.holder(kind)

    def access(self) -> Access:
        chance = self.chance
        load = chance.random() < 0.6
        space = chance.choice((*SPACES, *(("table", "const") if load else ())))
        kind = chance.choice(_LOADS)
        size = element_bytes(kind)
        count = chance.choice([n for n in (1, 1, 2, 4) if n * size <= 16])
        letter = chance.choice([letter for letter, bits in (("h", 16), ("r", 32), ("d", 64)) if bits >= 8 * size])
        registers: list[str] = []
        while len(registers) < count:
            register = self.register(letter)
            if register not in registers or not load:
                registers.append(register)
        limit = TABLE if space in ("table", "const") else SLOT
        offset = chance.randrange(limit // (count * size)) * count * size
        generic = chance.random() < 0.2 and space != "const"
        words = (
            chance.choice((".volatile", ".relaxed.gpu"))
            if chance.random() < 0.1 and space in ("shared", "global")
            else ""
        )
        index = self.register("r") if chance.random() < 0.3 else ""
        return Access(load, space, kind, tuple(registers), offset, index, generic, words, self.guard())

    def atomic(self) -> Atomic:
        chance = self.chance
        operation, kind = chance.choice(_ATOMICS)
        size = element_bytes(kind)
        holder = _LETTER[16 if size == 2 else 8 * size]
        sources = [self.register(holder) for _ in range(2 if operation == "cas" else 1)]
        offset = chance.randrange(SLOT // size) * size
        space = chance.choice(("shared", "global"))
        return Atomic(space, operation, kind, self.register(holder), tuple(sources), offset, chance.random() < 0.2)

    def reduce(self) -> Reduce:
        chance = self.chance
        cell = chance.randrange(len(CELLS))
        letter = "d" if CELLS[cell][1].endswith("64") else "r"
        return Reduce(
            chance.choice(("shared", "global")), cell, self.register(letter), chance.random() < 0.3, self.guard()
        )

    def collective(self, depth: int) -> Collective | Elect:
        chance = self.chance
        kind = chance.random()
        if kind < 0.3:
            whole = depth == 0 and not self.exited and self.shape.block % 32 == 0
            results: Sequence[str] = [self.register("r"), *([self.register("p")] if chance.random() < 0.5 else [])]
            if not whole:
                return Collective("shfl.sync.idx.b32", tuple(results), (self.register("r"), 31), from_leader=True)
            mode, width = chance.choice(_MODES), chance.choice((32, 32, 16, 8, 4, 2, 1))
            clamp = 32 - width << 8 | (0 if mode == "up" else 31)
            b = self.register("r") if chance.random() < 0.5 else chance.randrange(32)
            return Collective(f"shfl.sync.{mode}.b32", tuple(results), (self.register("r"), b, clamp))
        if kind < 0.6:
            mode = chance.choice(("all", "any", "uni", "ballot"))
            result = self.register("r" if mode == "ballot" else "p")
            suffix = "b32" if mode == "ballot" else "pred"
            return Collective(f"vote.sync.{mode}.{suffix}", (result,), (chance.choice(("", "!")) + self.register("p"),))
        if kind < 0.75:
            letter = chance.choice(("r", "d"))
            bits = 32 if letter == "r" else 64
            if chance.random() < 0.5:
                return Collective(f"match.any.sync.b{bits}", (self.register("r"),), (self.register(letter),))
            return Collective(
                f"match.all.sync.b{bits}", (self.register("r"), self.register("p")), (self.register(letter),)
            )
        if kind < 0.93:
            return Collective(f"redux.sync.{chance.choice(_REDUCTIONS)}", (self.register("r"),), (self.register("r"),))
        return Elect()

    def together(self) -> Exchange | CtaVote:
        chance = self.chance
        if chance.random() < 0.25:
            operation = chance.choice(("popc", "and", "or"))
            result = self.register("r" if operation == "popc" else "p")
            return CtaVote(operation, result, self.register("p"), chance.random() < 0.3)
        letter = chance.choice("hrd")
        kinds = ("bar", "barrier", "counted", "mbarrier")
        before = chance.choice(kinds) if self.shape.cluster == 1 or chance.random() < 0.5 else "cluster"
        after = "cluster" if before == "cluster" else chance.choice(kinds)
        return Exchange(self.register(letter), self.register(letter), self.register("r"), before, after)
