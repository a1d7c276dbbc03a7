"""Leads from lines of PTX to lines of the submission: by `.loc` (PTX ISA 11.5.4), inside asm text by opcodes."""

from __future__ import annotations

import bisect
import functools
import re
from collections.abc import Sequence
from typing import NamedTuple

from ptxgym.build.entry import SUBMISSION_FILE
from ptxgym.build.text import ptx_statements

_LOC = re.compile(r"\s*\.loc\s+(\d{1,9})\s+(\d{1,9})\s+\d+(?:.*inlined_at\s+(\d{1,9})\s+(\d{1,9}))?(?!\d)")
_FILE = re.compile(r'^[ \t]*\.file\s+(\d{1,9})\s+"([^"\n]+)"', re.MULTILINE)
_ASM_BEGINS, _ASM_ENDS = "// begin inline asm", "// end inline asm"
_OPCODE = re.compile(r"[{\s]*(?:@!?[%\w]+\s+)?([A-Za-z_][\w.:]*)")
_COMMENT = re.compile(r"//.*|/\*.*?(?:\*/|$)")
_FINISHED = (";", "{", "}", ":", ",")
_ASM_LINES = 200
"""Longest asm statement in which a line is looked for."""
_PTX_ASM_LINES = 2000
"""The same in the PTX, where macros may have multiplied it."""
_OPCODE_CHARS = 100


class Unfinished(NamedTuple):
    """A line of inline assembly that lacks its semicolon."""

    text: str
    line: int | None
    """Of the submission."""


class PtxLines:
    """The lines of one PTX file, and the submission it was compiled from."""

    def __init__(self, ptx: str, source: Sequence[str] = ()) -> None:
        """Take the PTX and the lines of the submission; nothing is read before it is asked for."""
        self._ptx = ptx
        self._source = source

    @functools.cached_property
    def _lines(self) -> list[str]:
        return self._ptx.split("\n")

    @functools.cached_property
    def _own(self) -> set[int]:
        """Numbers of files that are the submission."""
        files = {int(number): name for number, name in _FILE.findall(ptx_statements(self._ptx))}
        return {number for number, name in files.items() if name == SUBMISSION_FILE}

    @functools.cached_property
    def _origins(self) -> list[int]:
        """Lines (1-based) from which on other statements of the submission count, or none: `.loc` and functions."""
        return [
            number
            for number, text in enumerate(self._lines, 1)
            if (".loc" in text and _LOC.match(text)) or ".entry" in text or ".func" in text
        ]

    @functools.cached_property
    def _asm_edges(self) -> list[int]:
        """Lines (1-based) where inline assembly begins or ends."""
        return [
            number
            for number, text in enumerate(self._lines, 1)
            if "inline asm" in text and text.strip() in (_ASM_BEGINS, _ASM_ENDS)
        ]

    def submission_line(self, ptx_line: int) -> int | None:
        """Return the submission's line of the instruction at or before `ptx_line` (1-based), if it is known."""
        statement = self._statement(ptx_line)
        begin = self._asm_begin(ptx_line)
        return self._inside(begin, ptx_line, statement) if statement and begin is not None else statement

    def unfinished(self, ptx_line: int) -> Unfinished | None:
        """Return the line of inline assembly before `ptx_line` (1-based) that ends without what ends a statement.

        The assembler complains where it reads on: in the next line of the text, or after its end.
        """
        for at in range(min(ptx_line - 1, len(self._lines)), max(0, ptx_line - _PTX_ASM_LINES), -1):
            text = self._lines[at - 1]
            code = _COMMENT.sub("", text).strip()
            if not code or _LOC.match(text):
                continue
            begin = self._asm_begin(at)
            if begin is None or code.endswith(_FINISHED):
                return None
            statement = self._statement(at)
            return Unfinished(code, self._inside(begin, at, statement) if statement else None)
        return None

    def _statement(self, ptx_line: int) -> int | None:
        index = bisect.bisect_left(self._origins, ptx_line)
        match = _LOC.match(self._lines[self._origins[index - 1] - 1]) if index else None
        if match is None:
            return None
        file, line, call_file, call_line = match.groups()
        if int(file) in self._own:
            return int(line)
        return int(call_line) if call_file and int(call_file) in self._own else None

    def _asm_begin(self, ptx_line: int) -> int | None:
        """Return the line (1-based) where the inline assembly around `ptx_line` begins."""
        index = bisect.bisect_right(self._asm_edges, ptx_line)
        if index and self._asm_edges[index - 1] == ptx_line and self._lines[ptx_line - 1].strip() == _ASM_ENDS:
            index -= 1
        at = self._asm_edges[index - 1] if index else 0
        return at if at and self._lines[at - 1].strip() == _ASM_BEGINS else None

    def _inside(self, begin: int, ptx_line: int, statement: int) -> int:
        """Find a line of asm text in the source: the n-th line from `statement` on with its opcode, if there is one."""
        if ptx_line - begin > _PTX_ASM_LINES:
            return statement
        opcodes = [_OPCODE.match(text) for text in self._lines[begin:ptx_line]]
        wanted = opcodes[-1] if opcodes else None
        if wanted is None or len(wanted[1]) > _OPCODE_CHARS:
            return statement
        count = sum(1 for opcode in opcodes if opcode is not None and opcode[1] == wanted[1])
        for number in range(statement, min(statement + _ASM_LINES, len(self._source) + 1)):
            text = self._source[number - 1]
            if number > statement and re.search(r"\basm\b", text):
                break
            count -= len(re.findall(rf"(?<![\w.]){re.escape(wanted[1])}(?![\w.:])", text))
            if count <= 0:
                return number
        return statement
