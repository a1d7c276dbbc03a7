"""The slow, obvious interpreter: every thread does one statement, then every thread does the next."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

from tests.device.emulator.core.numbers import FORMATS, arithmetic
from tests.fuzz.forms import FORMS, mask, signed
from tests.fuzz.forms_float import extreme
from tests.fuzz.program import (
    CELLS,
    COUNTS,
    SLOT,
    TABLE,
    WRAP,
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
    Statement,
    Switch,
)
from tests.fuzz.text import IN_BYTES, element_bytes

BITS = {"h": 16, "r": 32, "d": 64, "p": 1}
_SPECIAL = (
    0, 1, 2, 3, 31, 32, 33, 0x7F, 0x80, 0xFF, 0x3C00, 0x7C00, 0x7E00, 0x3F80, 0x7F80, 0xFFFF, 0x3F800000, 0x7F800000,
    0x7FC00000, 0x7FFFFFFF, 0x80000000, 0x00800000, 0x007FFFFF, 0xFFFFFFFF, 0x4B800000, 0x3FF0000000000000,
    0x7FF0000000000000, 0x7FF8000000000000, 0x8000000000000000, 0x7FFFFFFFFFFFFFFF, 0x000FFFFFFFFFFFFF, mask(64),
)  # fmt: skip
_ONES = {16: ((0x3C00, 1 << 10), (0x3F80, 1 << 7)), 32: ((0x3F800000, 1 << 23),), 64: ((0x3FF0000000000000, 1 << 52),)}
"""By width: 1.0 in its formats, and the distance to 2.0."""


@dataclass
class Thread:
    """One thread: its registers as unsigned integers, and the memory that it alone touches."""

    cta: int
    tid: int
    registers: dict[str, int]
    slots: dict[str, bytearray]
    live: bool = True

    def value(self, name: str | int) -> int:
        return name if isinstance(name, int) else self.registers[name]

    def holds(self, guard: str) -> bool:
        return not guard or bool(self.registers[guard.lstrip("!")]) != guard.startswith("!")


@dataclass
class Memory:
    """What a launch begins with."""

    registers: bytes
    """[threads, IN_BYTES]"""
    slots: bytes
    """[threads, SLOT]"""
    cells: list[int]
    """[1 + CTAs][CELLS] first values: of global memory, then of the shared memory of every CTA."""
    table: bytes


def inputs(program: Fuzzed) -> Memory:
    """Return the inputs that the program's `data` stands for."""
    chance = random.Random(program.data)
    shape = program.shape
    threads = shape.grid * shape.block
    if program.data == 0:
        size = len(CELLS) * (1 + shape.grid)
        return Memory(bytes(threads * IN_BYTES), bytes(threads * SLOT), [0] * size, bytes(TABLE))

    def number(bits: int) -> int:
        kind = chance.random()
        if kind < 0.3:
            value = chance.choice(_SPECIAL) * chance.choice((1, 1, mask(64)))
        elif kind < 0.5:
            value = chance.getrandbits(6)
        elif kind < 0.6:  # a number near one
            one, step = chance.choice(_ONES[bits])
            value = one + chance.randint(-3 * step, 3 * step)
        else:
            value = chance.getrandbits(bits)
        return value & mask(bits)

    registers, slots = bytearray(), bytearray()
    for _ in range(threads):
        for letter in "hrd":
            for _ in range(COUNTS[letter]):
                registers += number(BITS[letter]).to_bytes(BITS[letter] // 8, "little")
        registers += chance.getrandbits(128).to_bytes(16, "little")
        for _ in range(SLOT // 4):
            slots += number(32).to_bytes(4, "little")
    cells = [
        number(int(kind[1:])) if operation != "inc" else chance.randrange(WRAP)
        for _ in range(1 + shape.grid)
        for operation, kind in CELLS
    ]
    table = b"".join(number(32).to_bytes(4, "little") for _ in range(TABLE // 4))
    return Memory(bytes(registers), bytes(slots), cells, table)


@dataclass
class Machine:
    """A launch in progress."""

    program: Fuzzed
    memory: Memory
    threads: list[Thread] = field(default_factory=list)
    counts: dict[str, int] = field(default_factory=dict)
    """Thread executions of every form."""

    def __post_init__(self) -> None:
        block = self.program.shape.block
        self.cells = list(self.memory.cells)
        for index in range(self.program.shape.grid * block):
            at, registers = index * IN_BYTES, {}
            for letter in "hrd":
                for number in range(COUNTS[letter]):
                    size = BITS[letter] // 8
                    registers[f"%{letter}{number}"] = int.from_bytes(self.memory.registers[at : at + size], "little")
                    at += size
            for number in range(COUNTS["p"]):
                registers[f"%p{number}"] = self.memory.registers[at] >> number & 1
            slot = self.memory.slots[index * SLOT : (index + 1) * SLOT]
            slots = {space: bytearray(slot) for space in ("shared", "global", "local")}
            self.threads.append(Thread(index // block, index % block, registers, slots))

    def run(self) -> None:
        self.block(self.program.body, self.threads)

    def block(self, block: Block, active: list[Thread]) -> None:
        for statement in block:
            active = [thread for thread in active if thread.live]
            self.step(statement, active)

    def step(self, s: Statement, active: list[Thread]) -> None:
        match s:
            case Op():
                form = FORMS[s.form]
                for t in active:
                    if t.holds(s.guard):
                        results = form.apply(tuple(t.value(source) for source in s.sources))
                        t.registers.update(zip(s.results, results, strict=True))
                        self.counts[s.form] = self.counts.get(s.form, 0) + 1
            case Access():
                for t in active:
                    if t.holds(s.guard):
                        self.access(s, t)
            case Atomic():
                for t in active:
                    self.atomic(s, t)
            case Reduce():
                for t in active:
                    if t.holds(s.guard):
                        self.reduce(s, t)
            case Elect():
                for group in self.warps(active):
                    cell = len(CELLS) * (1 + group[0].cta)
                    self.cells[cell] = self.cells[cell] + 1 & mask(32)
            case Collective():
                for group in self.warps(active):
                    self.collective(s, group)
            case CtaVote():
                for cta in range(self.program.shape.grid):
                    threads = [t for t in active if t.cta == cta]
                    votes = [t.registers[s.predicate] != s.negated for t in threads]
                    result = sum(votes) if s.operation == "popc" else any(votes) if s.operation == "or" else all(votes)
                    for t in threads:
                        t.registers[s.result] = int(result)
            case Exchange():
                self.exchange(s, active)
            case If():
                chosen = {id(t): bool(t.registers[s.predicate]) for t in active}
                self.block(s.then, [t for t in active if chosen[id(t)]])
                self.block(s.otherwise, [t for t in active if not chosen[id(t)]])
            case Loop():
                trips = {id(t): s.count if isinstance(s.count, int) else t.registers[s.count] & 3 for t in active}
                done = 0
                while s.bottom or active:
                    active = active if s.bottom and not done else [t for t in active if done < trips[id(t)]]
                    if not active:
                        break
                    self.block(s.body, active)
                    done += 1
            case Switch():
                selected = {id(t): t.registers[s.selector] % len(s.cases) for t in active}
                for number, case in enumerate(s.cases):
                    self.block(case, [t for t in active if selected[id(t)] == number])
            case Exit():
                for t in active:
                    t.live = t.tid == 0 or not t.registers[s.predicate]

    @staticmethod
    def warps(active: list[Thread]) -> list[list[Thread]]:
        groups: dict[tuple[int, int], list[Thread]] = {}
        for t in active:
            groups.setdefault((t.cta, t.tid // 32), []).append(t)
        return list(groups.values())

    def access(self, s: Access, t: Thread) -> None:
        size = element_bytes(s.kind)
        total = size * len(s.registers)
        memory = self.memory.table if s.space in ("table", "const") else t.slots[s.space]
        at = t.registers[s.index] % (len(memory) // total) * total if s.index else s.offset
        loaded = []
        for i, register in enumerate(s.registers):
            here = slice(at + i * size, at + (i + 1) * size)
            if s.load:
                value = int.from_bytes(memory[here], "little")
                if s.kind[0] == "s":
                    value = signed(value, 8 * size)
                loaded.append((register, value & mask(BITS[register[1]])))
            else:
                memory[here] = (t.registers[register] & mask(8 * size)).to_bytes(size, "little")  # type: ignore[index]
        t.registers.update(loaded)

    def atomic(self, s: Atomic, t: Thread) -> None:
        size = element_bytes(s.kind)
        here = slice(s.offset, s.offset + size)
        memory = t.slots[s.space]
        old = int.from_bytes(memory[here], "little")
        b, *rest = (t.registers[name] & mask(8 * size) for name in s.sources)
        new = _combined(s.operation, s.kind, old, b, rest[0] if rest else 0, s.space == "global")
        memory[here] = new.to_bytes(size, "little")
        t.registers[s.result] = old

    def reduce(self, s: Reduce, t: Thread) -> None:
        operation, kind = CELLS[s.cell]
        at = s.cell + (len(CELLS) * (1 + t.cta) if s.space == "shared" else 0)
        operand = WRAP if operation == "inc" else t.registers[s.source]
        self.cells[at] = _combined(operation, kind, self.cells[at] & mask(int(kind[1:])), operand, 0, False)

    def collective(self, s: Collective, group: list[Thread]) -> None:
        lanes = {t.tid % 32: t for t in group}
        members = sum(1 << lane for lane in lanes)
        words = s.opcode.split(".")
        first = s.sources[0]
        name, negated = (first.lstrip("!"), first.startswith("!")) if isinstance(first, str) else ("", False)
        values = {
            lane: int(bool(t.registers[name]) != negated) if name[1] == "p" else t.registers[name]
            for lane, t in lanes.items()
        }
        results: dict[int, tuple[int, ...]] = {}
        for lane, t in lanes.items():
            if words[0] == "shfl":
                b = min(lanes) if s.from_leader else t.value(s.sources[1])
                results[lane] = _shuffled(words[2], values, lane, b, t.value(s.sources[-1]))
            elif words[0] == "vote":
                results[lane] = (_voted(words[2], values),)
            elif words[:2] == ["match", "any"]:
                results[lane] = (sum(1 << other for other, value in values.items() if value == values[lane]),)
            elif words[0] == "match":
                same = len(set(values.values())) == 1
                results[lane] = (members if same else 0, int(same))
            else:
                results[lane] = (_reduced(words[2], words[3:], list(values.values())),)
        for lane, t in lanes.items():
            t.registers.update(zip(s.results, results[lane], strict=False))

    def exchange(self, s: Exchange, active: list[Thread]) -> None:
        shape = self.program.shape
        stored = {(t.cta, t.tid): t.registers[s.source] for t in active}
        for t in active:
            cta = t.cta
            if s.before == "cluster":
                first = cta - cta % shape.cluster
                cta = first + (cta % shape.cluster + 1) % shape.cluster
            t.registers[s.result] = stored[cta, t.registers[s.index] % shape.block]


def _shuffled(mode: str, values: dict[int, int], lane: int, b: int, c: int) -> tuple[int, int]:
    """PTX ISA 9.7.9.6."""
    b, clamp, segment = b & 31, c & 31, c >> 8 & 31
    last, first = lane & segment | clamp & ~segment & 31, lane & segment
    source = {"up": lane - b, "down": lane + b, "bfly": lane ^ b, "idx": first | b & ~segment & 31}[mode]
    inside = source >= last if mode == "up" else source <= last
    return values[source if inside else lane], int(inside)


def _voted(mode: str, values: dict[int, int]) -> int:
    if mode == "ballot":
        return sum(value << lane for lane, value in values.items())
    if mode == "uni":
        return int(len(set(values.values())) == 1)
    return int(all(values.values()) if mode == "all" else any(values.values()))


def _reduced(operation: str, words: list[str], values: list[int]) -> int:
    *modifiers, kind = words
    if kind == "f32":
        number = FORMATS[kind]
        values = [value & ~number.sign if "abs" in modifiers else value for value in values]
        result = number.nan if number.is_nan(values[0]) else values[0]
        for value in values[1:]:
            result = extreme(number, operation == "max", False, "NaN" in modifiers, False, result, value)
        return result
    result = values[0]
    for value in values[1:]:
        result = _combined(operation, kind, result, value, 0, False)
    return result


def _combined(operation: str, kind: str, old: int, b: int, c: int, flush: bool) -> int:
    """What an atomic operation leaves (PTX ISA 9.7.13.5)."""
    if kind in ("f32", "f64"):
        return arithmetic("add", FORMATS[kind], "rn", flush and kind == "f32", False, old, b)
    if kind in ("f16x2", "bf16x2"):
        form = FORMATS[kind[:-2]]
        low, high = (arithmetic("add", form, "rn", False, False, old >> n & 0xFFFF, b >> n & 0xFFFF) for n in (0, 16))
        return low | high << 16
    bits = int(kind[1:])
    number = (lambda x: signed(x, bits)) if kind[0] == "s" else (lambda x: x & mask(bits))
    new = {
        "add": lambda: old + b,
        "min": lambda: min(number(old), number(b)),
        "max": lambda: max(number(old), number(b)),
        "and": lambda: old & b,
        "or": lambda: old | b,
        "xor": lambda: old ^ b,
        "exch": lambda: b,
        "cas": lambda: c if old == b else old,
        "inc": lambda: 0 if old >= b else old + 1,
        "dec": lambda: b if old == 0 or old > b else old - 1,
    }[operation]()
    return new & mask(bits)
