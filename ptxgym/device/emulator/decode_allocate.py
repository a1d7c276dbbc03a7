"""Registers share places where no thread can tell: liveness over the control flow, then a linear scan.

PTX has thousands of virtual registers, and a warp's file must stay in cache. The result is exact, for each thread as
for the finding of hazards:
- a thread's path decides what it needs and lanes never share storage, so liveness of one thread is enough;
- a register that may be read before it is written lives from the start of the kernel, hence still reads as the core's
  poison;
- registers of asynchronous matrix instructions, constants and special registers keep places of their own;
- a place is free only after the instruction that last reads it, so no instruction sees new aliases of its operands.
"""

from __future__ import annotations

import heapq
from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from ptxgym.device.emulator.decode_grammar import (
    FIELD,
    GUARD_AT,
    NVEC2_AT,
    NVEC_AT,
    OP_AT,
    TARGET_AT,
    VEC2_AT,
    VEC_AT,
    Row,
)
from ptxgym.device.emulator.ir import OP

_D, _D2 = FIELD["d"], FIELD["d2"]
_SOURCES = tuple(FIELD[name] for name in ("a", "b", "c", "e", "guard"))
_OPERANDS = (_D, _D2, *_SOURCES)
DEFINES_VEC = frozenset(
    OP[name]
    for name in (
        "LD",
        "MOV_UNPACK",
        "LDMATRIX",
        "ATOM",
        "MMA",
        "TCGEN05_LD",
        "CLC_FIRST_CTAID",
        "WMMA_LOAD",
        "WMMA_MMA",
        "RESTORE",
    )
)
"""Whose first vector is written, and not read."""
_ASYNCHRONOUS = OP["WGMMA"]
_REGISTERS_IN_VEC2 = frozenset(OP[name] for name in ("ATOM", "RED", "MMA", "WGMMA", "WMMA_MMA"))
_BRX, _BRA, _CALL, _CALL_INDIRECT, _RET = (OP[name] for name in ("BRX", "BRA", "CALL", "CALL_INDIRECT", "RET"))
_TARGETS_IN_VEC = frozenset({_BRX, _CALL_INDIRECT})
_STOPS = frozenset(OP[name] for name in ("EXIT", "TRAP"))
_JUMPS = frozenset({_BRX, _BRA, _CALL, _CALL_INDIRECT, _RET})
_PLACE_BYTES = {1: 4, 2: 128, 4: 128, 8: 256, 16: 512}


@dataclass(frozen=True)
class Allocation:
    """Where every register of the decoder lies in the end."""

    places: Mapping[int, int]
    """Offset that the decoder gave → offset in the warp's file."""
    reg_bytes: int


@dataclass
class Block:
    """Instructions [first, last] that run one after the other."""

    first: int
    last: int
    successors: tuple[int, ...] = ()
    """First instructions of the blocks that may follow."""
    reads: int = 0
    """Bits of registers that are read before they are surely written."""
    writes: int = 0
    """Bits of registers that are surely written."""
    live_in: int = 0
    live_out: int = 0


def vector_registers(row: Row, pool: Sequence[int]) -> tuple[Sequence[int], Sequence[int]]:
    """Registers in `vec` and in `vec2`; other pool values (branch targets, address offsets) are left out."""
    op = row[OP_AT]
    first = pool[row[VEC_AT] : row[VEC_AT] + row[NVEC_AT]] if row[NVEC_AT] and op not in _TARGETS_IN_VEC else ()
    second = pool[row[VEC2_AT] : row[VEC2_AT] + row[NVEC2_AT]] if row[NVEC2_AT] and op in _REGISTERS_IN_VEC2 else ()
    return first, second


def allocate(rows: Sequence[Row], pool: Sequence[int], widths: Mapping[int, int], fixed: Sequence[int]) -> Allocation:
    """Place all registers.

    Args:
        rows: The kernel's instructions.
        pool: Its pool.
        widths: Offset → bytes per lane (1: a predicate) of every register, those in `fixed` included.
        fixed: Offsets of constants and special registers, which are filled before the kernel starts.
    """
    pinned: dict[int, None] = {}
    for row in rows:
        if row[OP_AT] == _ASYNCHRONOUS:
            first, second = vector_registers(row, pool)
            pinned.update(dict.fromkeys((*first, *second)))
    pinned.update(dict.fromkeys(fixed))
    spans = _live_spans(rows, pool, {offset for offset in widths if offset not in pinned})
    return _place(widths, pinned, spans)


def _live_spans(rows: Sequence[Row], pool: Sequence[int], candidates: set[int]) -> dict[int, tuple[int, int]]:
    """First and last instruction at which each candidate may hold a value that matters."""
    index = {offset: number for number, offset in enumerate(sorted(candidates))}
    starts, ends = [len(rows)] * len(index), [-1] * len(index)
    blocks = flow(rows, pool)
    for block in blocks:
        for at in range(block.first, block.last + 1):
            row = rows[at]
            reads, writes = _reads_and_writes(row, pool, index)
            if row[GUARD_AT] >= 0:
                reads = (*reads, *writes)  # what a false guard leaves in place
            for number in reads:
                bit = 1 << number
                if not block.writes & bit:
                    block.reads |= bit
            for number in writes:
                block.writes |= 1 << number
            for number in (*reads, *writes):
                starts[number] = min(starts[number], at)
                ends[number] = max(ends[number], at)
    _propagate(blocks)
    for block in blocks:
        for number in _bits(block.live_in):
            starts[number] = min(starts[number], block.first)
            ends[number] = max(ends[number], block.first)
        for number in _bits(block.live_out):
            starts[number] = min(starts[number], block.last)
            ends[number] = max(ends[number], block.last)
    return {offset: (starts[number], ends[number]) for offset, number in index.items()}


def _reads_and_writes(
    row: Row, pool: Sequence[int], index: Mapping[int, int]
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    first, second = vector_registers(row, pool)
    reads = [row[field] for field in _SOURCES]
    writes = [row[_D], row[_D2]]
    (writes if row[OP_AT] in DEFINES_VEC else reads).extend(first)
    reads.extend(second)
    return (
        tuple([index[offset] for offset in reads if offset in index]),
        tuple([index[offset] for offset in writes if offset in index]),
    )


def flow(rows: Sequence[Row], pool: Sequence[int]) -> list[Block]:
    """Return the basic blocks in order, with the blocks that may follow each."""
    returns = _returns(rows, pool)
    leaders = {0}
    for at, row in enumerate(rows):
        op = row[OP_AT]
        if op in _JUMPS:
            leaders.update(_targets(row, pool))
        if op in _JUMPS or op in _STOPS:
            leaders.add(at + 1)
    ordered = sorted(leader for leader in leaders if leader < len(rows))
    blocks = [Block(first, following - 1) for first, following in zip(ordered, [*ordered[1:], len(rows)], strict=True)]
    for block in blocks:
        row = rows[block.last]
        op, falls = row[OP_AT], row[GUARD_AT] >= 0
        targets = returns.get(block.last, ()) if op == _RET else _targets(row, pool) if op in _JUMPS else ()
        if falls or (op not in _JUMPS and op not in _STOPS):
            targets = (*targets, block.last + 1)
        block.successors = tuple(target for target in targets if target < len(rows))
    return blocks


def _targets(row: Row, pool: Sequence[int]) -> tuple[int, ...]:
    op = row[OP_AT]
    if op in (_BRA, _CALL):
        return (row[TARGET_AT],)
    if op == _RET:
        return ()
    named = pool[row[VEC_AT] : row[VEC_AT] + row[NVEC_AT]]
    return tuple(target for target in named if target or op == _BRX)


def _returns(rows: Sequence[Row], pool: Sequence[int]) -> dict[int, tuple[int, ...]]:
    """Return for every RET where its function may return to: behind the calls of the function that it ends."""
    callers: dict[int, list[int]] = {}
    for at, row in enumerate(rows):
        if row[OP_AT] in (_CALL, _CALL_INDIRECT):
            for target in _targets(row, pool):
                callers.setdefault(target, []).append(at + 1)
    starts = sorted(callers)
    found = {}
    for at, row in enumerate(rows):
        if row[OP_AT] == _RET:  # functions lie one after the other
            found[at] = tuple(callers[starts[bisect_right(starts, at) - 1]])
    return found


def _propagate(blocks: Sequence[Block]) -> None:
    """Solve for what is live at the ends of every block."""
    by_first = {block.first: block for block in blocks}
    changed = True
    while changed:
        changed = False
        for block in reversed(blocks):
            out = 0
            for successor in block.successors:
                out |= by_first[successor].live_in
            into = block.reads | (out & ~block.writes)
            if out != block.live_out or into != block.live_in:
                block.live_out, block.live_in, changed = out, into, True


def _bits(mask: int) -> Iterator[int]:
    while mask:
        low = mask & -mask
        yield low.bit_length() - 1
        mask ^= low


def _place(widths: Mapping[int, int], pinned: Mapping[int, None], spans: Mapping[int, tuple[int, int]]) -> Allocation:
    """Give the pinned registers their own places, in their order, and scan the others class by class."""
    places: dict[int, int] = {}
    end = 0
    for width in (2, 4, 8, 16, 1):
        size = _PLACE_BYTES[width]
        for offset in pinned:
            if widths[offset] == width:
                places[offset] = end
                end += size
        free: list[int] = []
        busy: list[tuple[int, int]] = []
        for offset in sorted((o for o in spans if widths[o] == width), key=lambda o: spans[o]):
            start, last = spans[offset]
            while busy and busy[0][0] < start:
                heapq.heappush(free, heapq.heappop(busy)[1])
            if free:
                place = heapq.heappop(free)
            else:
                place, end = end, end + size
            places[offset] = place
            heapq.heappush(busy, (last, place))
    return Allocation(places, (end + 127) // 128 * 128)


def relocate(rows: Sequence[Row], pool: list[int], allocation: Allocation) -> None:
    """Rewrite every register of `rows` and `pool` to its place."""
    places = allocation.places
    moved: set[int] = set()
    for row in rows:
        for field in _OPERANDS:
            if row[field] >= 0:
                row[field] = places[row[field]]
        op = row[OP_AT]
        for at, count, holds in (
            (VEC_AT, NVEC_AT, op not in _TARGETS_IN_VEC),
            (VEC2_AT, NVEC2_AT, op in _REGISTERS_IN_VEC2),
        ):
            if holds:
                for position in range(row[at], row[at] + row[count]):
                    if position not in moved:
                        moved.add(position)
                        if pool[position] >= 0:
                            pool[position] = places[pool[position]]
