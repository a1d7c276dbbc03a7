"""The statements of a kernel's PTX that mutations change, grouped into sites of the source.

The compiler peels and unrolls loops, so one statement of the source may stand several times in the PTX. A mutant
changes all copies of a site, as an edit of the source would.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from ptxgym.device.emulator.places import call_chains
from ptxgym.device.emulator.ptx import parse_module


@dataclass(frozen=True)
class Statement:
    """One instruction of the PTX text."""

    opcode: str
    index: int
    """Line of the PTX, from 0."""
    chain: tuple[int, ...]
    """Lines of the source, innermost first (`call_chains`)."""

    @property
    def line(self) -> int:
        """The line of the source, 0 if unknown."""
        return self.chain[0] if self.chain else 0


@dataclass(frozen=True)
class Site:
    """All copies of one statement of the source."""

    statements: tuple[Statement, ...]

    @property
    def line(self) -> int:
        """The line of the source."""
        return self.statements[0].line

    @property
    def opcode(self) -> str:
        """The opcode of the first copy."""
        return self.statements[0].opcode


class KernelText:
    """The PTX of a module, by lines, with the interesting statements of its kernels."""

    INTERESTING = re.compile(
        r"^(?:@!?%\w+\s+)?((?:wgmma|tcgen05|mbarrier|fence|membar|cp\.async|bar|barrier|stmatrix|ldmatrix|st\.shared|st\.global|st\.[bfsu]\d+|ld\.global|ld\.shared|(?:ld|st)\.(?:acquire|relaxed|release|volatile)|atom|red)\b[\w.:]*)"
    )

    def __init__(self, ptx: str) -> None:
        self.lines = ptx.split("\n")
        wanted = [
            (instruction.opcode, chain)
            for kernel in parse_module(ptx).entries
            for instruction, chain in zip(kernel.body.instructions, call_chains(kernel), strict=True)
            if self.INTERESTING.match(instruction.opcode)
        ]
        found = [
            (match[1], index)
            for index, line in enumerate(self.lines)
            if (match := self.INTERESTING.match(line.strip())) and not line.strip().startswith("//")
        ]
        if [opcode for opcode, _ in wanted] != [opcode for opcode, _ in found]:
            raise AssertionError("the statements of the text and of the parser differ")
        self.statements = tuple(
            Statement(opcode, index, chain) for (opcode, chain), (_, index) in zip(wanted, found, strict=True)
        )

    def sites(self, pattern: str) -> tuple[Site, ...]:
        """Return the sites whose opcode matches `pattern` from its start, in the order of the text."""
        groups: dict[tuple[str, tuple[int, ...]], list[Statement]] = {}
        for statement in self.matching(pattern):
            groups.setdefault((statement.opcode, statement.chain), []).append(statement)
        return tuple(Site(tuple(group)) for group in groups.values())

    def matching(self, pattern: str) -> Iterable[Statement]:
        """Return the statements whose opcode matches `pattern` from its start."""
        return (s for s in self.statements if re.match(pattern, s.opcode))

    def following(self, statement: Statement, pattern: str) -> Statement | None:
        """Return the next statement that matches."""
        return next((s for s in self.matching(pattern) if s.index > statement.index), None)

    def preceding(self, statement: Statement, pattern: str) -> Statement | None:
        """Return the last statement before that matches."""
        return next((s for s in reversed(list(self.matching(pattern))) if s.index < statement.index), None)

    def block(self, statement: Statement) -> range:
        """Return the lines of the inline assembly that holds a statement, or its own line."""
        start = stop = statement.index
        while start >= 0 and "inline asm" not in self.lines[start]:
            start -= 1
        while stop < len(self.lines) and "inline asm" not in self.lines[stop]:
            stop += 1
        if start < 0 or "begin" not in self.lines[start] or "end" not in self.lines[stop]:
            return range(statement.index, statement.index + 1)
        return range(start + 1, stop)

    def replace(self, edits: dict[int, str]) -> str:
        """Return the text with some lines replaced (by several lines where the new one has line breaks)."""
        return "\n".join(edits.get(index, line) for index, line in enumerate(self.lines))
