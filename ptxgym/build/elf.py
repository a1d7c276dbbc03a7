"""Reads sections of a shared library, and which functions it exports (System V ABI, "ELF-64 Object File Format")."""

from __future__ import annotations

import struct
from pathlib import Path

_SECTION_DYNSYM = 11
_HEADER = struct.Struct("<16xHHIQQQIHHHHHH")
_SECTION = struct.Struct("<IIQQQQIIQQ")
_SYMBOL = struct.Struct("<IBBHQQ")
_COMPRESSED = 0x800
_FUNCTION = 2
_GLOBAL_OR_WEAK = (1, 2)


def exported_functions(library: Path) -> frozenset[str]:
    """Return the names of the functions that the 64-bit little-endian ELF file `library` defines for others.

    Raises:
        ValueError: if it is not such a file.
    """
    data = library.read_bytes()
    sections = _sections(data, library)
    names: set[str] = set()
    for section in sections:
        if section[1] != _SECTION_DYNSYM:
            continue
        strings = sections[section[6]][4]
        for offset in range(section[4], section[4] + section[5], _SYMBOL.size):
            name, info, _, defined_in, _, _ = _SYMBOL.unpack_from(data, offset)
            if info & 15 == _FUNCTION and info >> 4 in _GLOBAL_OR_WEAK and defined_in != 0:
                start = strings + name
                names.add(data[start : data.index(b"\0", start)].decode())
    return frozenset(names)


def section(library: Path, name: str) -> bytes | None:
    """Return the bytes of the section `name`; None if there is none, or it is compressed.

    Raises:
        ValueError: if `library` is not a 64-bit little-endian ELF file.
    """
    data = library.read_bytes()
    sections = _sections(data, library)
    names = sections[_HEADER.unpack_from(data)[12]][4]
    for found in sections:
        start = names + found[0]
        if data[start : data.index(b"\0", start)] == name.encode() and not found[2] & _COMPRESSED:
            return data[found[4] : found[4] + found[5]]
    return None


def _sections(data: bytes, library: Path) -> list[tuple[int, ...]]:
    if data[:6] != b"\x7fELF\x02\x01":
        raise ValueError(f"{library} is not a 64-bit little-endian ELF file")
    header = _HEADER.unpack_from(data)
    section_offset, section_size, section_count = header[5], header[10], header[11]
    return [_SECTION.unpack_from(data, section_offset + i * section_size) for i in range(section_count)]
