"""The variables of a cubin's module, which the executor restores before every call.

They are OBJECT symbols of `.nv.global` (zeros), `.nv.global.init` and `.nv.constant3` (constants): "CUDA Binary
Utilities" 2.1 names the sections.
"""

from __future__ import annotations

import struct
from typing import NamedTuple

_HEADER = struct.Struct("<16xHHIQQQIHHHHHH")
_SECTION = struct.Struct("<IIQQQQIIQQ")
_SYMBOL = struct.Struct("<IBBHQQ")
_SYMTAB, _NOBITS = 2, 8
_OBJECT = 1
_WRITABLE = (".nv.global", ".nv.global.init", ".nv.constant3")


class Variable(NamedTuple):
    """A variable, or a section of which the file names none."""

    name: str
    zeros: bool
    """Whether it starts as zeros."""


def variables(cubin: bytes) -> tuple[Variable, ...]:
    """Return what kernels of `cubin` can write of its module, strings and constants included.

    A section that has bytes but no variables stands for itself: no driver knows it by name, so that the module is
    loaded anew for every call.

    Raises:
        ValueError: if it is not a 64-bit little-endian ELF file.
    """
    if cubin[:6] != b"\x7fELF\x02\x01":
        raise ValueError("a cubin is a 64-bit little-endian ELF file, and this is none")
    try:
        return _variables(cubin)
    except (struct.error, IndexError) as error:
        raise ValueError(f"the cubin is damaged: {error}") from error


def _variables(cubin: bytes) -> tuple[Variable, ...]:
    header = _HEADER.unpack_from(cubin)
    start, size, count, names = header[5], header[10], header[11], header[12]
    table = [_SECTION.unpack_from(cubin, start + index * size) for index in range(count)]
    named = {index: _name(cubin, table[names][4] + section[0]) for index, section in enumerate(table)}
    zeros = {
        index: table[index][1] == _NOBITS for index, name in named.items() if name in _WRITABLE and table[index][5]
    }
    found: dict[int, list[Variable]] = {index: [] for index in zeros}
    for section in table:
        if section[1] != _SYMTAB:
            continue
        strings = table[section[6]][4]
        for at in range(section[4], section[4] + section[5], _SYMBOL.size):
            text, info, _, index, _, size_bytes = _SYMBOL.unpack_from(cubin, at)
            if info & 15 == _OBJECT and index in zeros and size_bytes:
                found[index].append(Variable(_name(cubin, strings + text), zeros[index]))
    return tuple(v for index, held in found.items() for v in held or [Variable(named[index], zeros[index])])


def _name(data: bytes, start: int) -> str:
    return data[start : data.index(b"\0", start)].decode(errors="replace")
