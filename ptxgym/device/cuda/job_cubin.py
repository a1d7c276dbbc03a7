"""The writable memory of a cubin's module, as the executor restores it before every call.

Variables are OBJECT symbols of `.nv.global` (zeros), `.nv.global.init` and `.nv.constant3` (constants): "CUDA Binary
Utilities" 2.1 names the sections. Restoring whole sections covers what lies between the variables too, and variables
whose names the driver does not know, such as those declared in inline assembly.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import NamedTuple

_HEADER = struct.Struct("<16xHHIQQQIHHHHHH")
_SECTION = struct.Struct("<IIQQQQIIQQ")
_SYMBOL = struct.Struct("<IBBHQQ")
_SYMTAB, _NOBITS = 2, 8
_OBJECT = 1
_MANAGED = 4
"""Bit of `st_other` that nvcc 13.0 sets for `__managed__` variables; their memory is not the section's."""
_WRITABLE = (".nv.global", ".nv.global.init", ".nv.constant3")


class Variable(NamedTuple):
    """A variable by which the driver tells where its section lies."""

    name: str
    offset: int


@dataclass(frozen=True)
class Section:
    """A piece of the module's memory."""

    size_bytes: int
    zeros: bool
    """Whether it starts as zeros."""
    variables: tuple[Variable, ...]


def sections(cubin: bytes) -> tuple[Section, ...]:
    """Return what kernels of `cubin` can write of its module; a managed variable is a piece of its own.

    Raises:
        ValueError: if it is not a 64-bit little-endian ELF file.
    """
    if cubin[:6] != b"\x7fELF\x02\x01":
        raise ValueError("a cubin is a 64-bit little-endian ELF file, and this is none")
    try:
        return _sections(cubin)
    except (struct.error, IndexError) as error:
        raise ValueError(f"the cubin is damaged: {error}") from error


def _sections(cubin: bytes) -> tuple[Section, ...]:
    header = _HEADER.unpack_from(cubin)
    start, size, count, names = header[5], header[10], header[11], header[12]
    table = [_SECTION.unpack_from(cubin, start + index * size) for index in range(count)]
    pieces = {
        index: (section[5], section[1] == _NOBITS)
        for index, section in enumerate(table)
        if _name(cubin, table[names][4] + section[0]) in _WRITABLE and section[5]
    }
    variables: dict[int, list[Variable]] = {index: [] for index in pieces}
    managed: list[Section] = []
    for section in table:
        if section[1] != _SYMTAB:
            continue
        strings = table[section[6]][4]
        for at in range(section[4], section[4] + section[5], _SYMBOL.size):
            text, info, other, index, offset, bytes_ = _SYMBOL.unpack_from(cubin, at)
            if info & 15 != _OBJECT or index not in pieces:
                continue
            name = _name(cubin, strings + text)
            if other & _MANAGED:
                managed.append(Section(bytes_, pieces[index][1], (Variable(name, 0),)))
            else:
                variables[index].append(Variable(name, offset))
    fixed = (Section(*pieces[index], tuple(variables[index])) for index in pieces)
    return (*fixed, *managed)


def _name(data: bytes, start: int) -> str:
    return data[start : data.index(b"\0", start)].decode(errors="replace")
