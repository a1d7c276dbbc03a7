"""A random program as PTX."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from tests.fuzz.forms import FORMS, bits_of
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

IN_BYTES = 8 * 2 + 8 * 4 + 8 * 8 + 16
"""First values of the registers of one thread; of the last 16 bytes the lowest four bits are the predicates."""
OUT_BYTES = IN_BYTES
"""The same registers at the end."""
_DEPTH = 12


def ptx_of(program: Fuzzed, table: bytes) -> str:
    """Return the module: a kernel `k` of buffers in, out, slots and cells."""
    return _Writer(program, table).module()


def element_bytes(kind: str) -> int:
    """Bytes of an element in memory."""
    return 4 if kind in ("f16x2", "bf16x2") else 2 if kind == "bf16" else int(kind.lstrip("usbf")) // 8


class _Writer:
    def __init__(self, program: Fuzzed, table: bytes) -> None:
        self.program, self.table = program, table
        self.lines: list[str] = []
        self.depth = 0
        self.labels = 0
        self.phase_bits = 0

    def module(self) -> str:
        shape = self.program.shape
        self.lines += self.prologue()
        self.block(self.program.body)
        self.lines += ["bar.sync 0;", *self.shared_cells(store=False), *self.store_registers()]
        if shape.cluster > 1:
            self.lines.append("barrier.cluster.arrive.aligned; barrier.cluster.wait.aligned;")
        body = "\n  ".join(self.lines)
        words = [int.from_bytes(self.table[at : at + 8], "little") for at in range(0, TABLE, 8)]
        table = ", ".join(map(str, words))
        return f"""\
.version 9.0
.target sm_90a
.address_size 64
.const .align 16 .b64 ctable[{TABLE // 8}] = {{{table}}};
.global .align 16 .b64 gtable[{TABLE // 8}] = {{{table}}};
.visible .entry k(.param .u64 in, .param .u64 out, .param .u64 slots, .param .u64 cells) {{
  .reg .pred %p<{COUNTS["p"]}>, %q<{_DEPTH}>, %t;
  .reg .b16 %h<{COUNTS["h"]}>;
  .reg .b32 %r<{COUNTS["r"]}>, %m<{_DEPTH}>, %i<{_DEPTH}>, %n<{_DEPTH}>, %tid, %x, %y, %z, %own, %cell, %bar, %phase;
  .reg .b64 %d<{COUNTS["d"]}>, %in, %out, %slot, %gcell, %a, %b;
  .shared .align 16 .b8 own[{SLOT * shape.block}];
  .shared .align 16 .b8 swap[{8 * shape.block}];
  .shared .align 16 .b8 scells[{8 * len(CELLS)}];
  .shared .align 8 .b64 mbar;
  .local .align 16 .b8 depot[{SLOT}];
  {body}
  ret;
}}
"""

    def prologue(self) -> list[str]:
        block = self.program.shape.block
        lines = [
            "mov.u32 %tid, %tid.x; mov.u32 %x, %ctaid.x; mad.lo.u32 %x, %x, " + f"{block}, %tid;",
            f"ld.param.u64 %in, [in]; mul.wide.u32 %a, %x, {IN_BYTES}; add.u64 %in, %in, %a;",
            f"ld.param.u64 %out, [out]; mul.wide.u32 %a, %x, {OUT_BYTES}; add.u64 %out, %out, %a;",
            f"ld.param.u64 %slot, [slots]; mul.wide.u32 %a, %x, {SLOT}; add.u64 %slot, %slot, %a;",
            f"ld.param.u64 %gcell, [cells]; mov.u32 %own, own; mad.lo.u32 %own, %tid, {SLOT}, %own;",
            "mov.u32 %cell, scells; mov.u32 %bar, mbar; mov.u32 %phase, 0;",
            f"shr.u32 %y, %tid, 5; setp.eq.u32 %t, %y, {block // 32};",
            f"selp.b32 %m0, {(1 << block % 32) - 1}, -1, %t;",
            "setp.eq.u32 %t, %tid, 0;",
            f"@%t mbarrier.init.shared.b64 [%bar], {block};",
            *self.shared_cells(store=True),
        ]
        for at in range(0, SLOT, 16):
            lines.append(f"ld.global.v4.u32 {{%r0, %r1, %r2, %r3}}, [%slot+{at}];")
            lines.append(f"st.shared.v4.u32 [%own+{at}], {{%r0, %r1, %r2, %r3}};")
            lines.append(f"st.local.v4.u32 [depot+{at}], {{%r0, %r1, %r2, %r3}};")
        lines.append("bar.sync 0;")
        lines += _registers("ld.global", "%in")
        lines.append("ld.global.u32 %x, [%in+112];")
        lines += [f"and.b32 %y, %x, {1 << i}; setp.ne.u32 %p{i}, %y, 0;" for i in range(COUNTS["p"])]
        return lines

    def shared_cells(self, *, store: bool) -> list[str]:
        """Thread 0 fills the cells of shared memory, or adds them up in the second half of those of its CTA."""
        lines = [
            "setp.eq.u32 %t, %tid, 0; mov.u32 %x, %ctaid.x;",
            f"mad.lo.u32 %x, %x, {8 * len(CELLS)}, {8 * len(CELLS)};",
        ]
        lines.append("cvt.u64.u32 %a, %x; add.u64 %a, %gcell, %a;")
        for at in range(0, 8 * len(CELLS), 8):
            if store:
                lines.append(f"@%t ld.global.u64 %b, [%a+{at}]; @%t st.shared.u64 [%cell+{at}], %b;")
            else:
                lines.append(f"@%t ld.shared.u64 %b, [%cell+{at}]; @%t st.global.u64 [%a+{at}], %b;")
        return lines

    def store_registers(self) -> list[str]:
        lines = _registers("st.global", "%out")
        lines.append("mov.u32 %x, 0;")
        lines += [f"selp.b32 %y, {1 << i}, 0, %p{i}; or.b32 %x, %x, %y;" for i in range(COUNTS["p"])]
        lines.append("st.global.u32 [%out+112], %x;")
        for at in range(0, SLOT, 8):  # what shared and local memory came to; global memory is seen as it is
            lines.append(f"ld.shared.u64 %a, [%own+{at}]; ld.local.u64 %b, [depot+{at}]; xor.b64 %a, %a, %b;")
            lines.append(f"ld.global.u64 %b, [%slot+{at}]; xor.b64 %a, %a, %b; st.global.u64 [%slot+{at}], %a;")
        return lines

    # ---- statements

    def block(self, block: Block) -> None:
        for statement in block:
            self.statement(statement)

    @contextmanager
    def deeper(self) -> Iterator[int]:
        self.depth += 1
        yield self.depth
        self.depth -= 1

    def label(self) -> str:
        self.labels += 1
        return f"L{self.labels}"

    def say(self, text: str, guard: str = "") -> None:
        self.lines.append(f"@{guard} {text}" if guard else text)

    def statement(self, s: Statement) -> None:
        match s:
            case Op():
                self.op(s)
            case Access():
                self.access(s)
            case Atomic():
                place = self.place(s.space, s.offset, s.generic)
                space = "" if s.generic else f".{s.space}"
                self.say(f"atom{space}.{s.operation}.{s.kind} {s.result}, [{place}], {', '.join(s.sources)};")
            case Reduce():
                self.reduce(s)
            case Elect():
                self.say(f"elect.sync _|%t, %m{self.depth};")
                self.say("red.shared.add.u32 [%cell], 1;", "%t")
            case Collective():
                self.collective(s)
            case CtaVote():
                kind = "u32" if s.operation == "popc" else "pred"
                sign = "!" if s.negated else ""
                self.say(f"barrier.red.{s.operation}.{kind} {s.result}, 0, {sign}{s.predicate};")
            case Exchange():
                self.exchange(s)
            case If():
                self.branch(s)
            case Loop():
                self.loop(s)
            case Switch():
                self.switch(s)
            case Exit():
                after = self.label()
                self.say(f"setp.ne.and.u32 %t, %tid, 0, {s.predicate};")
                self.say("vote.sync.ballot.b32 %m0, !%t, %m0;")
                self.say(f"bra {after};", "!%t")
                self.lines += [*self.store_registers(), "exit;", f"{after}:"]

    def op(self, s: Op) -> None:
        form = FORMS[s.form]
        sources = [_operand(x, kind) for x, kind in zip(s.sources, form.sources, strict=True)]
        if ";" in form.opcode:
            assert not s.guard
            self.say(form.opcode.format(*s.results, *sources))
        else:
            self.say(f"{form.opcode} {'|'.join(s.results)}, {', '.join(sources)};", s.guard)

    def place(self, space: str, offset: int, generic: bool) -> str:
        """Text of an address in the thread's own slot."""
        if space == "global":
            return f"%slot+{offset}"
        if space == "shared" and not generic:
            return f"%own+{offset}"
        if space == "shared":
            self.say("cvt.u64.u32 %a, %own; cvta.shared.u64 %a, %a;")
        elif not generic:
            return f"depot+{offset}"
        else:
            self.say("mov.u64 %a, depot; cvta.local.u64 %a, %a;")
        return f"%a+{offset}"

    def access(self, s: Access) -> None:
        size = element_bytes(s.kind) * len(s.registers)
        if s.index:
            places = (TABLE if s.space in ("table", "const") else SLOT) // size
            self.say(f"and.b32 %x, {s.index}, {places - 1}; mul.wide.u32 %b, %x, {size};")
            base = {"global": "mov.u64 %a, %slot;", "table": "mov.u64 %a, gtable;", "const": "mov.u64 %a, ctable;",
                    "local": "mov.u64 %a, depot;", "shared": "cvt.u64.u32 %a, %own;"}[s.space]  # fmt: skip
            self.say(base + " add.u64 %a, %a, %b;")
            if s.generic and s.space in ("shared", "local"):
                self.say(f"cvta.{s.space}.u64 %a, %a;")
            place = "%a"
        elif s.space in ("table", "const"):
            place = f"{'gtable' if s.space == 'table' else 'ctable'}+{s.offset}"
            if s.generic:
                self.say(f"mov.u64 %a, {place};")
                place = "%a"
        else:
            place = self.place(s.space, s.offset, s.generic)
        space = "" if s.generic else ".global" if s.space == "table" else f".{s.space}"
        vector = f".v{len(s.registers)}" if len(s.registers) > 1 else ""
        registers = f"{{{', '.join(s.registers)}}}" if vector else s.registers[0]
        opcode = f"{'ld' if s.load else 'st'}{s.words}{space}{vector}.{s.kind}"
        self.say(f"{opcode} {registers}, [{place}];" if s.load else f"{opcode} [{place}], {registers};", s.guard)

    def reduce(self, s: Reduce) -> None:
        operation, kind = CELLS[s.cell]
        base = "%cell" if s.space == "shared" else "%gcell"
        source = str(WRAP) if operation == "inc" else s.source
        head = "atom" if s.atom else "red"
        result = "_, " if s.atom else ""
        self.say(f"{head}.{s.space}.{operation}.{kind} {result}[{base}+{8 * s.cell}], {source};", s.guard)

    def collective(self, s: Collective) -> None:
        sources = [str(x) for x in s.sources]
        if s.from_leader:
            self.say(f"brev.b32 %x, %m{self.depth}; clz.b32 %x, %x;")
            sources.insert(1, "%x")
        self.say(f"{s.opcode} {'|'.join(s.results)}, {', '.join(sources)}, %m{self.depth};")

    def barrier(self, kind: str) -> None:
        block = self.program.shape.block
        if kind == "mbarrier":
            again = self.label()
            self.say("mbarrier.arrive.shared.b64 _, [%bar];")
            self.lines.append(f"{again}:")
            self.say("mbarrier.try_wait.parity.shared.b64 %t, [%bar], %phase;")
            self.say(f"bra {again};", "!%t")
            self.say("xor.b32 %phase, %phase, 1;")
        elif kind == "cluster":
            self.say("barrier.cluster.arrive; barrier.cluster.wait;")
        else:
            texts = {
                "bar": "bar.sync 0;",
                "barrier": "barrier.sync 1;",
                "counted": f"bar.sync 2, {(block + 31) // 32 * 32};",
            }
            self.say(texts[kind])

    def exchange(self, s: Exchange) -> None:
        bits = {"h": 16, "r": 32, "d": 64}[s.source[1]]
        block = self.program.shape.block
        self.say("mov.u32 %x, swap; mad.lo.u32 %y, %tid, 8, %x;")
        self.say(f"st.shared.b{bits} [%y], {s.source};")
        self.barrier(s.before)
        self.say(f"rem.u32 %y, {s.index}, {block}; mad.lo.u32 %x, %y, 8, %x;")
        space = "shared"
        if s.before == "cluster":  # from the next CTA of the cluster
            self.say("mov.u32 %y, %cluster_ctarank; add.u32 %y, %y, 1;")
            self.say(f"rem.u32 %y, %y, {self.program.shape.cluster}; mapa.shared::cluster.u32 %x, %x, %y;")
            space = "shared::cluster"
        self.say(f"ld.{space}.b{bits} {s.result}, [%x];")
        self.barrier(s.after)

    def branch(self, s: If) -> None:
        other, end = self.label(), self.label()
        first, second = (s.otherwise, s.then) if s.swapped else (s.then, s.otherwise)
        sign, jump = ("!", s.predicate) if s.swapped else ("", f"!{s.predicate}")
        outer = self.depth
        with self.deeper() as inner:
            self.say(f"vote.sync.ballot.b32 %m{inner}, {sign}{s.predicate}, %m{outer};")
            self.say(f"bra {other};", jump)
            self.block(first)
            self.say(f"bra {end};")
            self.lines.append(f"{other}:")
            self.say(f"xor.b32 %m{inner}, %m{inner}, %m{outer};")
            self.block(second)
            self.lines.append(f"{end}:")

    def loop(self, s: Loop) -> None:
        head, end = self.label(), self.label()
        outer = self.depth
        with self.deeper() as n:
            self.say(f"mov.u32 %i{n}, 0; mov.b32 %m{n}, %m{outer};")
            count = f"mov.u32 %n{n}, {s.count};" if isinstance(s.count, int) else f"and.b32 %n{n}, {s.count}, 3;"
            self.say(count)
            self.lines.append(f"{head}:")
            test = f"setp.lt.u32 %q{n}, %i{n}, %n{n};"
            if s.bottom:
                self.block(s.body)
                self.say(f"add.u32 %i{n}, %i{n}, 1; {test}")
                self.say(f"vote.sync.ballot.b32 %m{n}, %q{n}, %m{n};")
                self.say(f"bra {head};", f"%q{n}")
                return
            self.say(test)
            if isinstance(s.count, int):
                self.say(f"bra.uni {end};", f"!%q{n}")
            else:
                self.say(f"vote.sync.ballot.b32 %m{n}, %q{n}, %m{n};")
                self.say(f"bra {end};", f"!%q{n}")
            self.block(s.body)
            self.say(f"add.u32 %i{n}, %i{n}, 1;")
            self.say(f"bra {head};")
            self.lines.append(f"{end}:")

    def switch(self, s: Switch) -> None:
        labels, end, table = [self.label() for _ in s.cases], self.label(), self.label()
        outer = self.depth
        with self.deeper() as n:
            self.say(f"and.b32 %i{n}, {s.selector}, {len(s.cases) - 1};")
            self.say(f"match.any.sync.b32 %m{n}, %i{n}, %m{outer};")
            self.say(f"{table}: .branchtargets {', '.join(labels)};")
            self.say(f"brx.idx %i{n}, {table};")
            for label, case in zip(labels, s.cases, strict=True):
                self.lines.append(f"{label}:")
                self.block(case)
                self.say(f"bra {end};")
            self.lines.append(f"{end}:")


def _operand(value: str | int, kind: str) -> str:
    if isinstance(value, str):
        return value
    if kind in ("f32", "f64"):
        return f"0{'f' if kind == 'f32' else 'd'}{value:0{bits_of(kind) // 4}X}"
    return str(value)


def _registers(opcode: str, base: str) -> list[str]:
    """Loads or stores of all registers but predicates."""
    lines, at = [], 0
    for letter, bits, width in (("h", 16, 4), ("r", 32, 4), ("d", 64, 2)):
        for first in range(0, COUNTS[letter], width):
            vector = "{" + ", ".join(f"%{letter}{first + i}" for i in range(width)) + "}"
            text = f"{opcode}.v{width}.b{bits}"
            lines.append(f"{text} {vector}, [{base}+{at}];" if opcode[0] == "l" else f"{text} [{base}+{at}], {vector};")
            at += width * bits // 8
    return lines
