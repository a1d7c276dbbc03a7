"""Mutation operators on tcgen05: fences, waits, commits, descriptors, columns and lanes of tensor memory."""

from __future__ import annotations

from collections.abc import Iterator

from tests.mutation.operators import (
    ADDRESS,
    ARRIVE,
    BAR_SYNC,
    COMMIT,
    FILL,
    LOAD,
    WAIT,
    Edit,
    Operator,
    descriptor_operators,
    drop,
    move_past,
    operand,
    plus,
    rewrite,
)
from tests.mutation.sites import KernelText, Statement

MMA = r"tcgen05\.mma"
TMEM_LOAD = r"tcgen05\.ld"
TMEM_STORE = r"tcgen05\.st"
WAIT_LOAD = r"tcgen05\.wait::ld"
WAIT_STORE = r"tcgen05\.wait::st"
FENCE_BEFORE = r"tcgen05\.fence::before"
FENCE_AFTER = r"tcgen05\.fence::after"
ALLOC = r"tcgen05\.alloc"
DEALLOC = r"tcgen05\.dealloc"
TOUCH = f"{MMA}|{TMEM_LOAD}|{TMEM_STORE}"
_D_OR_ADDRESS = r"\[(%\w+)"
_A = r"^[^]]*\],\s*(%\w+),"  # not one in tensor memory
_A_IN_TMEM = r"\],\s*\[(%\w+)"
_B = r"\],\s*(?:%\w+|\[[^\]]*\]),\s*(%\w+),"
IDESC = r"\],\s*(?:%\w+|\[[^\]]*\]),\s*%\w+,\s*(%\w+),"
_ENABLE = r",\s*(!?)(%?\w+);"
_COLUMNS = r",\s*(%\w+|\d+);"


def _descriptor(which: int, operation: str, value: int) -> Edit:
    return operand((_A, _B)[which], 64, f"{operation} {{new}}, {{old}}, {value}")


def _instruction_descriptor(operation: str, value: int) -> Edit:
    return operand(IDESC, 32, f"{operation} {{new}}, {{old}}, {value}")


def _halve_columns(kernel: KernelText, statement: Statement) -> dict[int, str] | None:
    """Allocate half of the columns, and free as many, so that only the lack of the others is a fault."""
    edits: dict[int, str] = {}
    half = operand(_COLUMNS, 32, "shr.u32 {new}, {old}, 1")
    for other in (statement, *kernel.matching(DEALLOC)):
        edits |= half(kernel, other) or {}
    return edits or None


def _alone_past(pattern: str) -> Edit:
    """Move a statement behind the next one that matches, but not what stands in the same inline assembly."""

    def edit(kernel: KernelText, statement: Statement) -> dict[int, str] | None:
        moved = move_past(pattern)(kernel, statement)
        if moved is None:
            return None
        block = kernel.block(statement)
        at, text = next((index, new) for index, new in moved.items() if index not in block)
        alone = text.replace("\n".join(kernel.lines[block.start : block.stop]), kernel.lines[statement.index])
        return {statement.index: "", at: alone}

    return edit


def _behind_commit(kernel: KernelText, statement: Statement) -> dict[int, str] | None:
    """Move the last product before a commit behind it."""
    after = kernel.following(statement, f"{MMA}|{COMMIT}")
    if after is None or not after.opcode.startswith("tcgen05.commit"):
        return {}
    return move_past(COMMIT)(kernel, statement)


def _orders() -> Iterator[Operator]:
    past_arrival = _alone_past(f"{ARRIVE}|{BAR_SYNC}")
    past_touch = move_past(TOUCH)
    pairs = f"{TOUCH}|{COMMIT}"
    yield Operator("drop.tcgen05_wait_ld", WAIT_LOAD, drop, before=(TMEM_LOAD,), every=pairs)
    yield Operator("drop.tcgen05_wait_st", WAIT_STORE, drop, before=(TMEM_STORE,), every=pairs)
    yield Operator("move.tcgen05_wait_ld", WAIT_LOAD, past_arrival, before=(TMEM_LOAD,), every=pairs)
    yield Operator("move.tcgen05_wait_st", WAIT_STORE, past_arrival, before=(TMEM_STORE,), every=pairs)
    yield Operator("drop.tcgen05_fence_before", FENCE_BEFORE, drop, before=(TMEM_LOAD,), every=pairs)
    yield Operator("drop.tcgen05_fence_after", FENCE_AFTER, drop, after=(TOUCH,), before=(WAIT,))
    yield Operator("move.tcgen05_fence_after", FENCE_AFTER, past_touch, after=(TOUCH,), before=(WAIT,))
    waits = f"{WAIT}|{TMEM_LOAD}"
    yield Operator("drop.tcgen05_commit", COMMIT, drop, every=waits)
    yield Operator("stage.tcgen05_commit", COMMIT, plus(ADDRESS, 8), every=waits, detail="next barrier")
    yield Operator("move.tcgen05_mma", MMA, _behind_commit, (COMMIT,), every=waits, detail="behind its commit")


def _memory() -> Iterator[Operator]:
    yield Operator("drop.tcgen05_alloc", ALLOC, drop, every=TOUCH)
    yield Operator("drop.tcgen05_dealloc", DEALLOC, drop, every=ALLOC)
    yield Operator("drop.tcgen05_relinquish", r"tcgen05\.relinquish", drop, every=ALLOC)
    yield Operator("columns.alloc", ALLOC, _halve_columns, every=TOUCH, detail="half as many")
    yield Operator("columns.dealloc", DEALLOC, operand(_COLUMNS, 32, "shr.u32 {new}, {old}, 1"), every=ALLOC)
    accumulators = f"{TOUCH}|{COMMIT}"
    yield Operator("column.mma", MMA, plus(_D_OR_ADDRESS, 64), every=accumulators, detail="column + 64")
    yield Operator("column.mma_a", MMA, plus(_A_IN_TMEM, 8), every=accumulators, detail="A: column + 8")
    yield Operator("column.ld", TMEM_LOAD, plus(_D_OR_ADDRESS, 16), every=accumulators, detail="column + 16")
    yield Operator("column.st", TMEM_STORE, plus(_D_OR_ADDRESS, 16), every=accumulators, detail="column + 16")
    next_lanes = 32 << 16
    yield Operator("lane.ld", TMEM_LOAD, plus(_D_OR_ADDRESS, next_lanes), detail="lane + 32")
    yield Operator("lane.st", TMEM_STORE, plus(_D_OR_ADDRESS, next_lanes), detail="lane + 32")
    flip = rewrite(_ENABLE, lambda m: f", {'' if m[1] else '!'}{m[2]};")
    yield Operator("mma.enable_input", MMA, flip, every=TMEM_LOAD, detail="enable-input-d inverted")


def _instruction_descriptors() -> Iterator[Operator]:
    changes = (
        ("n", "xor.b32", 1 << 20, "N ± 64"),
        ("m", "xor.b32", 12 << 24, "M 64 instead of 128"),
        ("transpose_a", "xor.b32", 1 << 15, "A transposed"),
        ("transpose_b", "xor.b32", 1 << 16, "B transposed"),
        ("types", "xor.b32", 1 << 7 | 1 << 10, "A and B are FP16"),
        ("type_a", "xor.b32", 1 << 7, "A is FP16"),
        ("d_type", "xor.b32", 1 << 4, "D is FP16"),
        ("negate_a", "xor.b32", 1 << 13, "A negated"),
        ("reserved", "xor.b32", 1 << 23, "reserved bit set"),
    )
    for field, operation, value, detail in changes:
        edit = _instruction_descriptor(operation, value)
        yield Operator(f"idesc.{field}", MMA, edit, every=f"{TMEM_LOAD}|{LOAD}", detail=detail)


def _shared_descriptors(stages: tuple[int, int]) -> Iterator[Operator]:
    yield from descriptor_operators(MMA, _descriptor, stages, f"{LOAD}|{FILL}")
    for which, letter in enumerate("AB"):
        edit = _descriptor(which, "xor.b64", 1 << 46)
        yield Operator(f"descriptor.version.{letter}", MMA, edit, detail="version 0")


def tcgen05_operators(stage_bytes: dict[str, int]) -> tuple[Operator, ...]:
    """Return the operators on tcgen05.

    Args:
        stage_bytes: Bytes of one stage of operand `A` and `B`.
    """
    stages = stage_bytes["A"], stage_bytes["B"]
    return (*_orders(), *_memory(), *_instruction_descriptors(), *_shared_descriptors(stages))
