"""Lines of a submission's host code, from what the host compiler wrote into its library."""

from __future__ import annotations

import bisect
import contextlib
import functools
import struct
from pathlib import Path

from ptxgym.build.dwarf import InfoReader, InlinedCall, LineUnit, Row
from ptxgym.build.elf import section
from ptxgym.build.entry import SUBMISSION_FILE

MAX_SECTION_BYTES = 16 << 20
"""Of larger ones nothing is read."""
_UNREADABLE = (ValueError, IndexError, KeyError, struct.error)


class HostLines:
    """Which lines of the submission a place in its library comes from."""

    def __init__(self, lines: bytes, info: bytes = b"", abbreviations: bytes = b"", ranges: bytes = b"") -> None:
        """Read the sections `.debug_line`, `.debug_info`, `.debug_abbrev` and `.debug_ranges`.

        What is not understood is left out, with all that follows it.
        """
        self._own: set[tuple[int, int]] = set()
        """Line program and number of files that are the submission."""
        rows: list[tuple[int, Row]] = []
        at = 0
        with contextlib.suppress(*_UNREADABLE):
            while at < len(lines):
                unit = LineUnit(lines, at)
                numbers = (n for n, name in enumerate(unit.files) if name == SUBMISSION_FILE.encode())
                self._own.update((at, number) for number in numbers)
                rows += ((at, row) for row in unit.rows())
                at = unit.end
        self._calls: list[tuple[int, InlinedCall]] = []
        with contextlib.suppress(*_UNREADABLE):
            self._calls += InfoReader(info, abbreviations, ranges).inlined()
        self._calls.sort(key=lambda item: -item[1].depth)
        rows.sort(key=lambda item: item[1].address)
        self._rows, self._addresses = rows, [row.address for _, row in rows]

    def lines(self, address: int) -> tuple[int, ...]:
        """Return the line of the code at `address`, and the lines of calls that it was inlined for, innermost first."""
        places: list[tuple[int, int, int]] = []
        index = bisect.bisect_right(self._addresses, address) - 1
        if index >= 0:
            program, row = self._rows[index]
            places.append((program, row.file, row.line))
        places += [(program, c.file, c.line) for program, c in self._calls if c.begin <= address < c.end]
        return tuple(line for program, file, line in places if (program, file) in self._own and line > 0)


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
