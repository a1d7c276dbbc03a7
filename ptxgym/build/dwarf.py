"""Reads from a library where its code comes from: rows of line tables, and calls that were inlined.

Source: DWARF Debugging Information Format, version 4: sections 6.2 (line numbers), 7.5 (entries, forms), 3.3.8.2
(inlined calls), 2.17.3 (ranges). Inline assembly makes all of it the submission's: what cannot be read is a
`ValueError`, an `IndexError` or a `struct.error`, and work is bounded.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

MAX_STEPS = 1_000_000
"""Units, files, opcodes of line programs, entries, attributes and ranges that are read of one library, in two lots."""
_MAX_ATTRIBUTES = 64
_MAX_LEB_BYTES = 10

_EXTENDED, _COPY, _ADVANCE_PC, _ADVANCE_LINE, _SET_FILE, _CONST_ADD_PC, _FIXED_ADVANCE_PC = 0, 1, 2, 3, 4, 8, 9
_END_SEQUENCE, _SET_ADDRESS = 1, 2
_INLINED = 0x1D
_STMT_LIST, _LOW_PC, _HIGH_PC, _RANGES, _CALL_FILE, _CALL_LINE = 0x10, 0x11, 0x12, 0x55, 0x58, 0x59
_ADDRESS_FORM = 0x01
_FIXED_FORMS = {
    0x01: 8, 0x05: 2, 0x06: 4, 0x07: 8, 0x0B: 1, 0x0C: 1, 0x0E: 4, 0x10: 4,
    0x11: 1, 0x12: 2, 0x13: 4, 0x14: 8, 0x17: 4, 0x19: 0, 0x20: 8,
}  # fmt: skip
"""Sizes in bytes."""
_BLOCK_FORMS = {0x0A: 1, 0x03: 2, 0x04: 4}
_STRING_FORM, _SDATA_FORM, _ULEB_FORMS, _ULEB_BLOCK_FORMS = 0x08, 0x0D, (0x0F, 0x15), (0x09, 0x18)
_LINE_HEADER = struct.Struct("<IHIBBBbBB")
_UNIT_HEADER = struct.Struct("<IHIB")


@dataclass(frozen=True)
class Row:
    """From `address` on the code comes from `line` of file `file`; line 0 ends a piece of code."""

    address: int
    file: int
    line: int


@dataclass(frozen=True)
class InlinedCall:
    """The code in [begin, end) was inlined for a call at `line` of file `file`."""

    begin: int
    end: int
    depth: int
    """Larger for calls inside others."""
    file: int
    line: int


class Steps:
    """How much has been read."""

    def __init__(self) -> None:
        """Start with nothing."""
        self._count = 0

    def take(self) -> None:
        """Count one step.

        Raises:
            ValueError: if it is one too many.
        """
        self._count += 1
        if self._count > MAX_STEPS:
            raise ValueError("too much to read")


class Cursor:
    """A place in some bytes."""

    def __init__(self, data: bytes, at: int = 0, end: int | None = None) -> None:
        """Start at byte `at`; nothing is read from `end` on. No byte is copied: units may be many."""
        self.data, self.at = data, at
        self.end = len(data) if end is None else end

    def fixed(self, size: int) -> int:
        """Read an unsigned number of `size` bytes."""
        if self.at + size > self.end:
            raise ValueError("the data ends inside a number")
        self.at += size
        return int.from_bytes(self.data[self.at - size : self.at], "little")

    def uleb(self) -> int:
        """Read an unsigned number of variable length."""
        value = 0
        for position in range(_MAX_LEB_BYTES):
            byte = self.fixed(1)
            value |= (byte & 0x7F) << (7 * position)
            if byte < 0x80:
                return value
        raise ValueError("a number of more than ten bytes")

    def sleb(self) -> int:
        """Read a signed number of variable length."""
        start = self.at
        value = self.uleb()
        bits = 7 * (self.at - start)
        return value - (1 << bits) if value >> (bits - 1) else value

    def text(self) -> bytes:
        """Read up to a zero."""
        end = self.data.index(b"\0", self.at, self.end)
        found = self.data[self.at : end]
        self.at = end + 1
        return found


class LineUnit:
    """One line program of a `.debug_line` section."""

    def __init__(self, section: bytes, start: int, steps: Steps | None = None) -> None:
        """Read the header at `start`, counting in `steps`."""
        self._steps = steps or Steps()
        self._steps.take()
        length, version, header_bytes, self._step, _, _, self._line_base, self._line_range, self._opcode_base = (
            _LINE_HEADER.unpack_from(section, start)
        )
        self.start, self.end = start, start + 4 + length
        if version != 4 or self.end > len(section) or not self._line_range:
            raise ValueError("not a line table of DWARF 4")
        cursor = Cursor(section, start + _LINE_HEADER.size, self.end)
        self._operands = [cursor.fixed(1) for _ in range(self._opcode_base - 1)]
        while cursor.text():  # folders
            self._steps.take()
        self.files: list[bytes] = [b""]
        """Names by number; 0 is none."""
        while name := cursor.text():
            self._steps.take()
            self.files.append(name)
            for _ in range(3):  # folder, time, size
                cursor.uleb()
        cursor.at = start + 10 + header_bytes
        self._program = cursor

    def rows(self) -> Iterator[Row]:
        """Run the program."""
        cursor = self._program
        address, file, line = 0, 1, 1
        while cursor.at < self.end:
            self._steps.take()
            opcode = cursor.fixed(1)
            if opcode >= self._opcode_base:
                address += (opcode - self._opcode_base) // self._line_range * self._step
                line += self._line_base + (opcode - self._opcode_base) % self._line_range
                yield Row(address, file, line)
            elif opcode == _EXTENDED:
                size = cursor.uleb()
                after = cursor.at + size
                kind = cursor.fixed(1)
                if kind == _END_SEQUENCE:
                    yield Row(address, 0, 0)
                    address, file, line = 0, 1, 1
                elif kind == _SET_ADDRESS:
                    address = cursor.fixed(8)
                cursor.at = after
            elif opcode == _COPY:
                yield Row(address, file, line)
            elif opcode == _ADVANCE_PC:
                address += cursor.uleb() * self._step
            elif opcode == _ADVANCE_LINE:
                line += cursor.sleb()
            elif opcode == _SET_FILE:
                file = cursor.uleb()
            elif opcode == _CONST_ADD_PC:
                address += (255 - self._opcode_base) // self._line_range * self._step
            elif opcode == _FIXED_ADVANCE_PC:
                address += cursor.fixed(2)
            else:  # columns, block marks, flags
                for _ in range(self._operands[opcode - 1]):
                    cursor.uleb()


class InfoReader:
    """Reads inlined calls out of `.debug_info`."""

    def __init__(self, info: bytes, abbreviations: bytes, ranges: bytes) -> None:
        """Keep the sections."""
        self._info, self._abbreviations, self._ranges = info, abbreviations, ranges
        self._steps = Steps()

    def inlined(self) -> Iterator[tuple[int, InlinedCall]]:
        """Yield inlined calls, each with the start of the line program that numbers its files."""
        start = 0
        while start < len(self._info):
            length, version, abbreviations, address_bytes = _UNIT_HEADER.unpack_from(self._info, start)
            end = start + 4 + length
            if version != 4 or address_bytes != 8 or end > len(self._info):
                raise ValueError("not DWARF 4 of a 64-bit machine")
            self._steps.take()
            yield from self._unit(Cursor(self._info, start + _UNIT_HEADER.size, end), self._table(abbreviations))
            start = end

    def _unit(self, cursor: Cursor, table: Mapping[int, _Abbreviation]) -> Iterator[tuple[int, InlinedCall]]:
        depth, program, base = 0, 0, 0
        first = True
        while cursor.at < cursor.end:
            self._steps.take()
            code = cursor.uleb()
            if code == 0:
                depth -= 1
                continue
            abbreviation = table[code]
            values = {name: self._value(cursor, form) for name, form in abbreviation.attributes}
            if first:
                first, program, base = False, values.get(_STMT_LIST, 0), values.get(_LOW_PC, 0)
            if abbreviation.tag == _INLINED:
                for begin, end in self._extent(values, abbreviation, base):
                    yield program, InlinedCall(begin, end, depth, values.get(_CALL_FILE, 0), values.get(_CALL_LINE, 0))
            depth += abbreviation.has_children

    def _extent(self, values: Mapping[int, int], abbreviation: _Abbreviation, base: int) -> Iterator[tuple[int, int]]:
        if _RANGES in values:
            cursor = Cursor(self._ranges, values[_RANGES])
            while True:
                self._steps.take()
                begin, end = cursor.fixed(8), cursor.fixed(8)
                if begin == end == 0:
                    return
                if begin == (1 << 64) - 1:
                    base = end
                else:
                    yield base + begin, base + end
        elif _LOW_PC in values and _HIGH_PC in values:
            low, high = values[_LOW_PC], values[_HIGH_PC]
            yield low, high if (_HIGH_PC, _ADDRESS_FORM) in abbreviation.attributes else low + high

    def _table(self, start: int) -> dict[int, _Abbreviation]:
        cursor = Cursor(self._abbreviations, start)
        table: dict[int, _Abbreviation] = {}
        while code := cursor.uleb():
            self._steps.take()
            tag, has_children = cursor.uleb(), cursor.fixed(1) != 0
            attributes = []
            while (pair := (cursor.uleb(), cursor.uleb())) != (0, 0):
                self._steps.take()
                attributes.append(pair)
            if len(attributes) > _MAX_ATTRIBUTES:
                raise ValueError(f"an entry of {len(attributes)} attributes")
            table[code] = _Abbreviation(tag, has_children, tuple(attributes))
        return table

    def _value(self, cursor: Cursor, form: int) -> int:
        self._steps.take()
        if form in _FIXED_FORMS:
            return cursor.fixed(_FIXED_FORMS[form])
        if form in _ULEB_FORMS:
            return cursor.uleb()
        if form == _SDATA_FORM:
            return cursor.sleb()
        if form == _STRING_FORM:
            cursor.text()
        elif form in _BLOCK_FORMS or form in _ULEB_BLOCK_FORMS:
            size = cursor.fixed(_BLOCK_FORMS[form]) if form in _BLOCK_FORMS else cursor.uleb()
            cursor.at += size
        else:
            raise ValueError(f"form {form:#x}")
        return 0


@dataclass(frozen=True)
class _Abbreviation:
    """The layout of an entry."""

    tag: int
    has_children: bool
    attributes: tuple[tuple[int, int], ...]
    """Name and form of each."""
