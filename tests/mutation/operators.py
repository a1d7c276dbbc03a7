"""Mutation operators on PTX: at every site, what is dropped, moved or changed, and which lines a good report names."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from tests.mutation.sites import KernelText, Site, Statement

COPY = r"cp\.async\.bulk(?!\.(?:commit|wait|prefetch))"
LOAD = r"cp\.async\.bulk\.tensor\.\dd\.shared|cp\.async\.bulk\.shared"
STORE = r"cp\.async\.bulk\.tensor\.\dd\.global|cp\.async\.bulk\.global"
WGMMA = r"wgmma\.mma_async"
MULTIPLY = rf"{WGMMA}|tcgen05\.mma"
READ_SUMS = r"tcgen05\.ld"
COMMIT = r"tcgen05\.commit"
SUMS = (MULTIPLY, READ_SUMS)
TMEM = r"tcgen05\.(?:alloc|dealloc)"
FILL = r"stmatrix|st\.shared"
WRITE = rf"{FILL}|st\.[bfsu]\d"
WAIT = r"mbarrier\.(?:try|test)_wait"
ARRIVE = r"mbarrier\.arrive(?!\.expect)"
EXPECT = r"mbarrier\.(?:arrive\.)?expect_tx"


@dataclass(frozen=True)
class Mutant:
    """One changed kernel."""

    operator: str
    detail: str
    """What was changed, in words."""
    line: int
    """Line of the source at which it was changed."""
    text: str
    """The PTX."""
    counterparts: frozenset[int]
    """Lines of the statements that the changed one orders, counts or feeds: naming one of them names the place."""


Edit = Callable[[KernelText, Statement], dict[int, str] | None]
"""Gives the changed lines: none where this copy of a site stays as it is, None where the site cannot be changed."""


@dataclass(frozen=True)
class Operator:
    """A kind of change, the statements that it applies to, and their counterparts."""

    name: str
    target: str
    edit: Edit
    after: tuple[str, ...] = ()
    """The next statement of each pattern is a counterpart."""
    before: tuple[str, ...] = ()
    """The last statement before of each pattern is a counterpart."""
    every: str = ""
    """Every statement that matches is a counterpart: used where the text does not tell which one it is."""
    detail: str = ""

    def mutants(self, kernel: KernelText) -> Iterator[Mutant]:
        """Yield one mutant per site to which the change applies."""
        for site in kernel.sites(self.target):
            edits: dict[int, str] = {}
            for statement in site.statements:
                change = self.edit(kernel, statement)
                if change is None:
                    break
                edits |= change
            else:
                if not edits:
                    continue
                text = kernel.replace(edits)
                detail = self.detail or site.opcode
                yield Mutant(self.name, detail, site.line, text, self._counterparts(kernel, site))

    def _counterparts(self, kernel: KernelText, site: Site) -> frozenset[int]:
        lines = {other.line for other in kernel.matching(self.every)} if self.every else set()
        for statement in site.statements:
            found = [kernel.following(statement, pattern) for pattern in self.after]
            found += [kernel.preceding(statement, pattern) for pattern in self.before]
            lines |= {other.line for other in found if other is not None}
        return frozenset(lines)


# ---- edits


def drop(_: KernelText, statement: Statement) -> dict[int, str]:
    """Remove the statement."""
    return {statement.index: ""}


def pass_wait(kernel: KernelText, statement: Statement) -> dict[int, str] | None:
    """Make a wait succeed at once."""
    match = re.search(r"try_wait[\w.:]*\s+([%\w]+),", kernel.lines[statement.index])
    return {statement.index: f"setp.eq.u32 {match[1]}, 0, 0;"} if match else None


def _same_part(one: Statement, other: Statement) -> bool:
    """Whether two statements come from one call in the kernel's body: others may be the work of other warps."""
    return min(len(one.chain), len(other.chain)) < 2 or one.chain[-1] == other.chain[-1]


def move_past(pattern: str) -> Edit:
    """Move a statement behind the next one that matches, out of a branch around it."""

    def edit(kernel: KernelText, statement: Statement) -> dict[int, str] | None:
        target = kernel.following(statement, pattern)
        if target is None or not _same_part(statement, target):
            return None
        moved = kernel.block(statement)
        at = kernel.block(target).stop - 1
        between = "\n".join(kernel.lines[moved.stop : at])
        for label in re.findall(r"bra(?:\.uni)?\s+(\$\w+);", between):
            position = next((i for i in range(at, len(kernel.lines)) if kernel.lines[i].strip() == f"{label}:"), at)
            at = max(at, position)
        text = "\n".join(kernel.lines[moved.start : moved.stop])
        return dict.fromkeys(moved, "") | {at: f"{kernel.lines[at]}\n{text}"}

    return edit


def rewrite(pattern: str, replacement: Callable[[re.Match[str]], str]) -> Edit:
    """Replace what matches in the statement."""

    def edit(kernel: KernelText, statement: Statement) -> dict[int, str] | None:
        line = kernel.lines[statement.index]
        changed = re.sub(pattern, replacement, line, count=1)
        return {statement.index: changed} if changed != line else None

    return edit


def operand(pattern: str, bits: int, operation: str) -> Edit:
    """Compute a new value from what group 1 of `pattern` names; `operation` has `{new}` and `{old}`."""

    def edit(kernel: KernelText, statement: Statement) -> dict[int, str] | None:
        line = kernel.lines[statement.index]
        match = re.search(pattern, line)
        if match is None:
            return None
        start, end = match.span(1)
        name = f"%mutant{statement.index}"
        compute = operation.format(new=name, old=match[1])
        body = line[:start] + name + line[end:]
        return {statement.index: f"{{ .reg .b{bits} {name}; {compute};\n{body.strip()}\n}}"}

    return edit


def plus(pattern: str, amount: int, bits: int = 32) -> Edit:
    """Add to an operand."""
    return operand(pattern, bits, f"add.s{bits} {{new}}, {{old}}, {amount}")


def descriptor(which: int, operation: str, field: int) -> Edit:
    """Change a descriptor operand (0: A, 1: B) of a wgmma; A may be in registers instead."""
    pattern = r"\},\s*(%\w+),\s*%\w+," if which == 0 else r"\},\s*(?:%\w+|\{[^}]*\}),\s*(%\w+),"
    return operand(pattern, 64, f"{operation} {{new}}, {{old}}, {field}")


ADDRESS = r"\[(%\w+)"
LAST_ADDRESS = r"\[(%\w+)(?:\+\d+)?\];?\s*$"
SECOND = r"\],\s*(%\w+|\d+);"
ROW = r"\{%?\w+,\s*(%\w+)\}"
COUNT = r"(\d+);"
BULK_WAIT = r"cp\.async\.bulk\.wait_group"
BULK_COMMIT = r"cp\.async\.bulk\.commit_group"
BAR_SYNC = r"bar\.sync|barrier\.sync"
PROXY_FENCE = r"fence\.proxy\.async"
INIT = r"mbarrier\.init"
USE = r"mbarrier\.(?!init)|tcgen05\.commit"
GLOBAL = r"st\.global"
READ = r"ld\.shared"


def _one_more(match: re.Match[str]) -> str:
    return f"{int(match[1]) + 1};"


def _drops() -> Iterator[Operator]:
    yield Operator("drop.mbarrier_wait", WAIT, pass_wait, (LOAD, EXPECT, WRITE, READ, *SUMS), (LOAD, MULTIPLY), COMMIT)
    yield Operator("drop.wgmma_wait", r"wgmma\.wait_group", drop, after=(ARRIVE, FILL, GLOBAL), every=WGMMA)
    yield Operator("drop.bulk_wait", BULK_WAIT, drop, after=(FILL,), before=(STORE,))
    read, written = r"ld\.global", r"st\.global"
    yield Operator("drop.bar_sync", BAR_SYNC, drop, (STORE, FILL, read), (FILL, INIT, STORE, written), f"{USE}|{TMEM}")
    yield Operator("drop.wgmma_fence", r"wgmma\.fence", drop, after=(WGMMA,))
    yield Operator("drop.proxy_fence", PROXY_FENCE, drop, after=(STORE, LOAD), before=(FILL, INIT))
    yield Operator("drop.mbarrier_init_fence", r"fence\.mbarrier_init", drop, after=(LOAD,), before=(INIT,))
    yield Operator("drop.wgmma_commit", r"wgmma\.commit_group", drop, after=(r"wgmma\.wait",), every=WGMMA)
    yield Operator("drop.bulk_commit", BULK_COMMIT, drop, after=(FILL, BULK_WAIT), before=(STORE,))
    yield Operator("drop.arrive", ARRIVE, drop, before=(INIT,), every=WAIT)
    yield Operator("drop.expect", EXPECT, drop, after=(LOAD, WAIT), before=(WAIT,))
    yield Operator("drop.init", INIT, drop, every=USE)


def _moves() -> Iterator[Operator]:
    past_use = move_past(f"{MULTIPLY}|{LOAD}|{READ_SUMS}")
    past_bulk_wait = move_past(BULK_WAIT)
    yield Operator("move.wgmma_wait", r"wgmma\.wait_group", move_past(ARRIVE), after=(ARRIVE,), every=WGMMA)
    yield Operator("move.mbarrier_wait", WAIT, past_use, (LOAD, *SUMS), (LOAD, MULTIPLY), COMMIT)
    yield Operator("move.proxy_fence", PROXY_FENCE, move_past(BAR_SYNC), after=(STORE, LOAD), before=(FILL, INIT))
    yield Operator("move.wgmma_fence", r"wgmma\.fence", move_past(r"wgmma\.commit"), after=(WGMMA,))
    yield Operator("move.wgmma_commit", r"wgmma\.commit_group", move_past(r"wgmma\.wait"), every=WGMMA)
    yield Operator("move.bulk_wait", BULK_WAIT, move_past(FILL), after=(FILL,), before=(STORE,))
    yield Operator("move.bulk_commit", BULK_COMMIT, past_bulk_wait, after=(FILL, BULK_WAIT), before=(STORE,))
    yield Operator("move.expect", EXPECT, move_past(LOAD), after=(LOAD, WAIT), before=(WAIT,))


def _numbers(stage_a: int) -> Iterator[Operator]:
    flip = operand(SECOND, 32, "xor.b32 {new}, {old}, 1")
    yield Operator("parity.flip", WAIT, flip, (LOAD, EXPECT, WRITE, READ, *SUMS), (LOAD, ARRIVE, MULTIPLY), COMMIT)
    yield Operator("count.init_more", INIT, plus(SECOND, 1), every=USE, detail="count + 1")
    yield Operator("count.init_less", INIT, plus(SECOND, -1), every=f"{USE}|{LOAD}|{MULTIPLY}", detail="count - 1")
    twice = rewrite(r"\];", lambda _: "], 2;")
    yield Operator("count.arrive", ARRIVE, twice, before=(INIT,), every=f"{WAIT}|{LOAD}", detail="count 2")
    more = rewrite(r",\s*128;", lambda _: ", 160;")
    yield Operator("count.bar", BAR_SYNC, more, after=(STORE, FILL), before=(FILL,), detail="160 threads")
    later = rewrite(COUNT, _one_more)
    wgmma_wait = r"wgmma\.wait_group"
    yield Operator("count.wgmma_wait", wgmma_wait, later, (ARRIVE, FILL, GLOBAL), every=WGMMA, detail="one group more")
    yield Operator("count.bulk_wait", BULK_WAIT, later, (FILL,), (STORE,), detail="one group more")
    yield Operator("bytes.more", EXPECT, plus(SECOND, 16), (LOAD, WAIT), (WAIT,), detail="16 bytes more")
    yield Operator("bytes.less", EXPECT, plus(SECOND, -stage_a), (LOAD, WAIT), (WAIT,), detail="bytes of A missing")


def descriptor_operators(
    target: str,
    edit: Callable[[int, str, int], Edit],
    stages: tuple[int, int],
    writers: str,
) -> Iterator[Operator]:
    """Yield the operators on the shared memory descriptors of a matrix instruction.

    Args:
        target: The instruction.
        edit: Gives the edit of operand 0 (A) or 1 (B) from an operation and a value.
        stages: Bytes of one stage of A and B.
        writers: What fills the operands.
    """
    changes = (
        ("leading", "add.s64", 2 << 16, "leading offset + 32 B"),
        ("stride", "xor.b64", 0x60 << 32, "stride offset halved"),
        ("start", "add.s64", 8, "start + 128 B"),
        ("swizzle", "xor.b64", -(1 << 62), "64B swizzle"),
        ("base", "or.b64", 1 << 49, "base offset 1"),
    )
    for which, letter in enumerate("AB"):
        for field, operation, value, detail in changes:
            change = edit(which, operation, value)
            yield Operator(f"descriptor.{field}.{letter}", target, change, every=writers, detail=detail)
        further = edit(which, "add.s64", stages[which] >> 4)
        yield Operator(
            f"stage.descriptor.{letter}", target, further, (WAIT,), (WAIT,), writers, f"next stage of {letter}"
        )


def _stages(stage_a: int) -> Iterator[Operator]:
    next_barrier = plus(ADDRESS, 8)
    yield Operator("stage.load", LOAD, plus(ADDRESS, stage_a), (MULTIPLY,), (EXPECT,), detail="one stage of A further")
    yield Operator(
        "stage.wait", WAIT, next_barrier, (MULTIPLY, LOAD, EXPECT, READ_SUMS), (LOAD,), detail="next barrier"
    )
    yield Operator("stage.arrive", ARRIVE, next_barrier, (LOAD,), (MULTIPLY,), every=WAIT, detail="next barrier")
    yield Operator("stage.expect", EXPECT, next_barrier, (LOAD, WAIT), (WAIT,), EXPECT, detail="next barrier")
    yield Operator(
        "stage.signal", LOAD, plus(LAST_ADDRESS, 8), (MULTIPLY,), (EXPECT,), detail="signals the next barrier"
    )


def _bounds() -> Iterator[Operator]:
    yield Operator("bounds.load", LOAD, plus(ROW, 1 << 20), after=(MULTIPLY,), detail="row + 2^20")
    yield Operator("bounds.load_target", LOAD, plus(ADDRESS, 1 << 18), detail="destination + 256 KiB")
    yield Operator("bounds.store_shared", FILL, plus(ADDRESS, 1 << 18), detail="address + 256 KiB")
    yield Operator("bounds.store_global", GLOBAL, plus(ADDRESS, 1 << 40, 64), detail="address + 1 TiB")
    yield Operator("bounds.tma_store", STORE, plus(ROW, 1 << 20), before=(FILL,), detail="row + 2^20")


def ptx_operators(stage_bytes: dict[str, int]) -> tuple[Operator, ...]:
    """Return the operators on PTX.

    Args:
        stage_bytes: Bytes of one stage of operand `A` and `B`.
    """
    stages = stage_bytes["A"], stage_bytes["B"]
    descriptors = descriptor_operators(WGMMA, descriptor, stages, LOAD)
    return (*_drops(), *_moves(), *_numbers(stages[0]), *descriptors, *_stages(stages[0]), *_bounds())
