"""What of a cubin's module outlives a call: variables, which the executor restores, and the heap, which it cannot.

They are OBJECT symbols of `.nv.global` (zeros), `.nv.global.init` and `.nv.constant3` (constants): "CUDA Binary
Utilities" 2.1 names the sections.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import NamedTuple

_HEADER = struct.Struct("<16xHHIQQQIHHHHHH")
_SECTION = struct.Struct("<IIQQQQIIQQ")
_SYMBOL = struct.Struct("<IBBHQQ")
_SYMTAB, _NOBITS = 2, 8
_OBJECT, _FUNC = 1, 2
_UNDEFINED = 0
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
    sections, symbols = _read(cubin)
    zeros = {i: one.kind == _NOBITS for i, one in enumerate(sections) if one.name in _WRITABLE and one.size_bytes}
    found: dict[int, list[Variable]] = {index: [] for index in zeros}
    for symbol in symbols:
        if symbol.kind == _OBJECT and symbol.section in zeros and symbol.size_bytes:
            found[symbol.section].append(Variable(symbol.name, zeros[symbol.section]))
    return tuple(v for i, held in found.items() for v in held or [Variable(sections[i].name, zeros[i])])


def uses_device_heap(cubin: bytes) -> bool:
    """Return whether kernels of `cubin` call the driver's allocator, whose memory outlives a call.

    Its functions are undefined symbols: `malloc`, and `__cuda_syscall_aligned_malloc` (nvcc 13.0).

    Raises:
        ValueError: as `variables`.
    """
    undefined = (one for one in _read(cubin)[1] if one.kind == _FUNC and one.section == _UNDEFINED)
    return any(one.name.endswith("malloc") for one in undefined)


class _Section(NamedTuple):
    name: str
    kind: int
    size_bytes: int


class _Symbol(NamedTuple):
    name: str
    kind: int
    section: int
    size_bytes: int


def _read(cubin: bytes) -> tuple[list[_Section], list[_Symbol]]:
    if cubin[:6] != b"\x7fELF\x02\x01":
        raise ValueError("a cubin is a 64-bit little-endian ELF file, and this is none")
    try:
        header = _HEADER.unpack_from(cubin)
        start, size, count, names = header[5], header[10], header[11], header[12]
        table = [_SECTION.unpack_from(cubin, start + index * size) for index in range(count)]
        sections = [_Section(_name(cubin, table[names][4] + one[0]), one[1], one[5]) for one in table]
        return sections, [symbol for one in table if one[1] == _SYMTAB for symbol in _symbols(cubin, table, one)]
    except (struct.error, IndexError) as error:
        raise ValueError(f"the cubin is damaged: {error}") from error


def _symbols(cubin: bytes, table: list[tuple[int, ...]], section: tuple[int, ...]) -> Iterator[_Symbol]:
    strings = table[section[6]][4]
    for at in range(section[4], section[4] + section[5], _SYMBOL.size):
        text, info, _, index, _, size_bytes = _SYMBOL.unpack_from(cubin, at)
        yield _Symbol(_name(cubin, strings + text), info & 15, index, size_bytes)


def _name(data: bytes, start: int) -> str:
    return data[start : data.index(b"\0", start)].decode(errors="replace")
