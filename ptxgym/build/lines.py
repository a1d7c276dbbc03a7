"""Lines of a submission's host code, from what the host compiler wrote into its library."""

from __future__ import annotations

import bisect
import contextlib
import functools
import struct
from array import array
from pathlib import Path

from ptxgym.build.dwarf import InfoReader, InlinedCall, LineUnit, Steps
from ptxgym.build.elf import section
from ptxgym.build.entry import SUBMISSION_FILE

MAX_SECTION_BYTES = 16 << 20
"""Of larger ones nothing is read."""
MAX_KEPT = 100_000
"""Rows and inlined calls that are kept of one library."""
_MAX_LINE, _ADDRESSES = 1 << 31, 1 << 64
_UNREADABLE = (ValueError, IndexError, KeyError, struct.error)


class HostLines:
    """Which lines of the submission a place in its library comes from."""

    def __init__(self, lines: bytes, info: bytes = b"", abbreviations: bytes = b"", ranges: bytes = b"") -> None:
        """Read the sections `.debug_line`, `.debug_info`, `.debug_abbrev` and `.debug_ranges`.

        What is not understood is left out, with all that follows it.
        """
        own: set[tuple[int, int]] = set()  # line program and number of files that are the submission
        rows: list[tuple[int, int]] = []  # address, and line of the submission, or 0
        steps = Steps()
        at = 0
        with contextlib.suppress(*_UNREADABLE):
            while at < len(lines):
                unit = LineUnit(lines, at, steps)
                own.update((at, n) for n, name in enumerate(unit.files) if name == SUBMISSION_FILE.encode())
                for row in unit.rows():
                    ours = (at, row.file) in own and 0 < row.line < _MAX_LINE
                    rows.append((row.address % _ADDRESSES, row.line if ours else 0))
                    if len(rows) == MAX_KEPT:
                        raise ValueError("too many rows")
                at = unit.end
        rows.sort(key=lambda row: row[0])
        self._addresses, self._lines = array("Q", (row[0] for row in rows)), array("I", (row[1] for row in rows))
        calls: list[InlinedCall] = []
        with contextlib.suppress(*_UNREADABLE):
            for program, call in InfoReader(info, abbreviations, ranges).inlined():
                if (program, call.file) in own and call.line > 0 and len(calls) < MAX_KEPT:
                    calls.append(call)
        self._calls = tuple(sorted(calls, key=lambda call: -call.depth))

    def lines(self, address: int) -> tuple[int, ...]:
        """Return the line of the code at `address`, and the lines of calls that it was inlined for, innermost first."""
        index = bisect.bisect_right(self._addresses, address) - 1
        line = self._lines[index] if index >= 0 else 0
        return (*([line] if line else []), *(call.line for call in self._calls if call.begin <= address < call.end))


@functools.lru_cache(maxsize=16)
def host_lines(library: Path) -> HostLines:
    """Return the lines of a build's host library; none where the compiler wrote none."""
    names = (".debug_line", ".debug_info", ".debug_abbrev", ".debug_ranges")
    try:
        sections = [section(library, name) or b"" for name in names]
    except (OSError, *_UNREADABLE):
        sections = []
    if not sections or max(map(len, sections)) > MAX_SECTION_BYTES:
        return HostLines(b"")
    return HostLines(*sections)
