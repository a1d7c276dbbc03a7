"""What the decoder cannot rule out about an instruction and the core looks at as it runs.

- Registers that may be read before anything has written them: a forward walk over the control flow. Moves hand the lack
  of a value on, since compilers copy what they do not use.
- Shared accesses whose address is computed from that of one array alone: the core checks that they stay inside it. PTX
  fixes no order of arrays, so no compiler computes the address of one from another.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from ptxgym.device.emulator.decode_allocate import DEFINES_VEC, Block, flow, vector_registers
from ptxgym.device.emulator.decode_grammar import FIELD, MODS_AT, OP_AT, Row
from ptxgym.device.emulator.ir import EARLY_READ_DTYPE, OP, SPACE, UNSET_REGISTER, SharedExtent
from ptxgym.device.emulator.ptx import Variable

_SOURCES = tuple(FIELD[name] for name in ("a", "b", "c", "e"))
_A, _B, _C, _D, _D2 = (FIELD[name] for name in ("a", "b", "c", "d", "d2"))
_DEFINING_VEC = DEFINES_VEC | {OP["WGMMA"]}  # which reads its accumulators only where it does not begin anew
_MOVES = frozenset(OP[name] for name in ("MOV", "MOV_PACK", "MOV_UNPACK", "SAVE"))
_PASS_ON = frozenset(OP[name] for name in ("MOV", "CVT", "CVTA", "ADD", "AND", "OR", "XOR", "LOP3", "BFI", "SELP"))
"""Whose result is an address in the same array as that of every operand that is one."""
_LAST_ONLY = frozenset(OP[name] for name in ("MAD_LO", "MAD_WIDE", "MAD24"))
"""Multiply-add: the address is the summand."""
_ACCESSES = frozenset(OP[name] for name in ("LD", "ST", "ATOM", "RED"))
_SHARED = SPACE["S_SHARED"]
_LOCAL_NAME = re.compile(r"^_ZZ.*E(\d+)([A-Za-z_]\w*)$")
_SEVERAL = -1


def early_reads(
    rows: Sequence[Row], pool: Sequence[int], widths: Mapping[int, int], fixed: Sequence[int]
) -> list[tuple[int, int]]:
    """Return (instruction, register) of every read, moves included, that a path reaches before the register is written.

    Predicates are left out, and so are the accumulators of wgmma, which the core watches anyway. A write under a guard
    counts as one.

    Args:
        rows: The kernel's instructions.
        pool: Its pool.
        widths: Register → bytes per lane; 1 for a predicate.
        fixed: Registers that are filled before the kernel starts.
    """
    filled = set(fixed)
    index = {offset: n for n, offset in enumerate(o for o, width in widths.items() if width > 1 and o not in filled)}
    blocks = flow(rows, pool)
    if not blocks:
        return []
    entering = {block.first: 0 for block in blocks}
    entering[0] = (1 << len(index)) - 1
    by_first = {block.first: block for block in blocks}
    reached, work = {0}, [0]
    while work:
        block = by_first[work.pop()]
        leaving = _walk(rows, pool, index, block, entering[block.first], None)
        for successor in block.successors:
            joined = entering[successor] | leaving
            if joined != entering[successor] or successor not in reached:
                reached.add(successor)
                entering[successor] = joined
                work.append(successor)
    found: list[tuple[int, int]] = []
    for first in sorted(reached):
        if entering[first]:
            _walk(rows, pool, index, by_first[first], entering[first], found)
    return found


def _walk(
    rows: Sequence[Row],
    pool: Sequence[int],
    index: Mapping[int, int],
    block: Block,
    unwritten: int,
    found: list[tuple[int, int]] | None,
) -> int:
    """Go through a block with the bits of registers that may be unwritten; return what is left of them at its end."""
    for at in range(block.first, block.last + 1):
        if not unwritten:
            return 0
        row = rows[at]
        first, second = vector_registers(row, pool)
        defines = row[OP_AT] in _DEFINING_VEC
        reads = [row[field] for field in _SOURCES] + list(second) + ([] if defines else list(first))
        missing = [offset for offset in reads if offset in index and unwritten >> index[offset] & 1]
        if missing and found is not None:
            found.extend((at, offset) for offset in dict.fromkeys(missing))
        for offset in _targets(row, pool):
            if offset in index:
                bit = 1 << index[offset]
                unwritten = unwritten | bit if missing and row[OP_AT] in _MOVES else unwritten & ~bit
    return unwritten


def early_read_table(
    rows: Sequence[Row], reads: Sequence[tuple[int, int]], places: Mapping[int, int], widths: Mapping[int, int]
) -> NDArray[np.void]:
    """Return [reads] of `EARLY_READ_DTYPE`, with places in the warp's file; moves only hand on, and are left out."""
    kept = [(at, places[offset], widths[offset], 0) for at, offset in reads if rows[at][OP_AT] not in _MOVES]
    return np.array(kept, EARLY_READ_DTYPE)


def unset_registers(
    reads: Sequence[tuple[int, int]], places: Mapping[int, int], widths: Mapping[int, int]
) -> list[tuple[int, int, int, int]]:
    """Return what registers of early reads hold at the start, as rows of `CONST_DTYPE`: what no kernel computes."""
    value = UNSET_REGISTER << 32 | UNSET_REGISTER
    found = {places[offset]: max(4, widths[offset]) for _, offset in reads}
    return [(place, width, value if width > 4 else UNSET_REGISTER, value) for place, width in found.items()]


def extents(
    rows: Sequence[Row], pool: Sequence[int], bases: Mapping[int, Variable], addresses: Mapping[Variable, int]
) -> tuple[SharedExtent, ...]:
    """Return the array of every shared access whose address comes from one static array alone.

    Args:
        rows: The kernel's instructions.
        pool: Its pool.
        bases: Constant register → the shared variable whose address it holds.
        addresses: Variable → shared address.
    """
    if not bases:
        return ()
    arrays = list(dict.fromkeys(bases.values()))
    origin = {offset: arrays.index(variable) for offset, variable in bases.items()}
    _spread(rows, pool, origin)
    for row in rows:
        if _origin(row, pool, origin) is None:  # a register that also holds what is no address
            origin.update((target, _SEVERAL) for target in _targets(row, pool) if target in origin)
    _spread(rows, pool, origin)
    found = []
    for at, row in enumerate(rows):
        which = origin.get(row[_A], _SEVERAL) if row[_A] >= 0 else _SEVERAL
        if row[OP_AT] not in _ACCESSES or row[MODS_AT] >> 4 & 15 != _SHARED or which == _SEVERAL:
            continue
        variable = arrays[which]
        if variable.extern or not variable.size_bytes:
            continue
        begin = addresses[variable]
        found.append(SharedExtent(at, begin, begin + variable.size_bytes, array_name(variable.name)))
    return tuple(found)


def _spread(rows: Sequence[Row], pool: Sequence[int], origin: dict[int, int]) -> None:
    """Add to `origin` the registers that addresses come to."""
    changed = True
    while changed:
        changed = False
        for row in rows:
            came = _origin(row, pool, origin)
            if came is None:
                continue
            for target in _targets(row, pool):
                known = origin.get(target)
                joined = came if known is None or known == came else _SEVERAL
                if joined != known:
                    origin[target] = joined
                    changed = True


def _targets(row: Row, pool: Sequence[int]) -> list[int]:
    """Registers that an instruction writes."""
    vector = vector_registers(row, pool)[0] if row[OP_AT] in _DEFINING_VEC else ()
    return [offset for offset in (row[_D], row[_D2], *vector) if offset >= 0]


def _origin(row: Row, pool: Sequence[int], origin: Mapping[int, int]) -> int | None:
    """The array in which an instruction's result lies, `_SEVERAL` if that is not sure, None if it is no address."""
    op = row[OP_AT]
    if op in _ACCESSES:
        return None  # what is loaded is another value
    first, second = vector_registers(row, pool)
    came = {origin[offset] for offset in (*(row[field] for field in _SOURCES), *first, *second) if offset in origin}
    if not came:
        return None
    inside = op in _PASS_ON or (op == OP["SUB"] and row[_B] not in origin)
    inside = inside or (op in _LAST_ONLY and row[_A] not in origin and row[_B] not in origin)
    return came.pop() if inside and len(came) == 1 else _SEVERAL


def array_name(symbol: str) -> str:
    """Return the name in the source of a shared variable: a mangled local one loses its function."""
    match = _LOCAL_NAME.match(symbol)
    return match[2][: int(match[1])] if match and int(match[1]) <= len(match[2]) else symbol
