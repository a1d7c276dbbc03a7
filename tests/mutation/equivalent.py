"""Mutants that survive, each with the reason why no report is due: the changed kernel is as correct as the original."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple


class Equivalence(NamedTuple):
    """One justified survivor."""

    kernel: str
    operator: str
    source: str
    """Pattern that the mutated line of the source matches wholly; empty for the host side."""
    reason: str
    before: str = ""
    """Pattern that the line before matches wholly, where one text stands at several places."""


_INIT_FENCE = r'asm volatile\("fence\.mbarrier_init\.release\.cluster;" ::: "memory"\);'
_SETUP_FENCE = r'asm volatile\("fence\.proxy\.async\.shared::cta;" ::: "memory"\);'
_STORE_FENCE = _SETUP_FENCE + r"  // TMA reads what ordinary stores wrote"
_MULTIPLY = (
    r"wgmma_m64n(256k16\(|128k16\(scores,).*\);|multiply_dimensions\(.*\);|multiply_add\(sums,.*"
    r"|multiply\(tensor_memory \+ kScores.*"
)
_EXPECT = r"barrier_expect\(.*\);|next\(map_[kv],.*\);|load_tile\(shared\.q(,|\[side\],).*\);"

_TWO_FENCES = (
    "After mbarrier.init stand fence.mbarrier_init and fence.proxy.async; either makes the barriers visible to the "
    "async proxy, so one of them alone is enough."
)
_LEADING = (
    "The leading offset of a K-major operand with a swizzle is not used: the two 8-column halves lie inside one "
    "swizzle span (PTX ISA 9.7.15.5.1.2, strides)."
)
_LATE_EXPECT = (
    "The copy may be issued before expect_tx: the phase cannot complete before this arrival, which is its only one, "
    "and a tx-count may be negative in between (PTX ISA 9.7.13.15.5)."
)
_SPARE = (
    "The kernel rounds its base up to 1024 bytes and reserves 1024 more for it; dynamic shared memory begins at a "
    "multiple of 1024 already, so the spare bytes are not used."
)
_READER_FENCE = (
    "Every thread executes the fence after the barrier instead of before it, the one that issues the store too: a "
    "proxy fence may stand anywhere on the path from the write to the copy (PTX ISA 8.9.5)."
)

_TURNS = (
    "Turns at the tensor core are for speed: no value depends on who multiplies first. At this size every CTA has an "
    "even number of turns, so that the last bar.sync still finds its partner."
)
_REGISTER_FENCE = (
    "What stands between is arithmetic on registers, which a note names; the compiler may move it past the fence "
    "anyway, and ptxas puts the missing WARPGROUP.ARRIVE where it sees such a use (it warns: C7519)."
)
_LATER_SLOT = (
    "Consumers release slots in the order of the ring, so that a slot is free where its next one is; at this size the "
    "site never fills the last slot, which has no next one."
)
_SPARE_ARRIVAL = (
    "Slots with keys are read by wgmma alone, whose groups belong to the warpgroup: seven of eight arrivals already "
    "say that both consumers are done. One arrival too many a round adds up to a fault only in longer sequences."
)

_READ_BEFORE = (
    "tcgen05.wait has completed loads and stores, and the arrival or barrier after it releases what came before: the "
    "standard memory model applies to tcgen05, too (PTX ISA 9.7.16.6.3). The fence is for relaxed arrivals."
)
_FENCED_AGAIN = (
    "A fence after another wait stands between this one and the thread's next asynchronous operation on tensor memory; "
    "tcgen05.dealloc is none (PTX ISA 9.7.16.6.1), so that barriers order it."
)
_SHARED_ONLY = (
    "The wait is for operands in shared memory, which mbarriers order; what tensor memory needs, the fence at the "
    "beginning of the tile has ordered, and products of one thread follow each other."
)
_ONE_CTA = (
    "Giving up the right to allocate is for CTAs that wait for columns on the same SM; this kernel takes all columns "
    "and almost all shared memory, so that there is none."
)
_LATER_TILE = (
    "The barrier after it belongs to the next tile, which is complete later; at this size every CTA has an even number "
    "of tiles, so that there is always a next one."
)
_FENCE_AFTER = r"fence_after_sync\(\);"
_NEXT_TILE = r"const int (values|keys) = .* next\(\) : 0;"
_STATISTICS_WAIT = r"if constexpr \(kept == Kept::Keys\) barrier_wait\(.*\);  // for statistics"
_STATISTICS = (
    "Whoever multiplies waits for the same phase before the product whose commit is waited for next: what it has seen "
    "is handed on with the commit (causality order, PTX ISA 8.9.3)."
)
_REGISTERS_ONLY = (
    "What stands between uses the registers, for which the same thread waits anyway (PTX ISA 9.7.16.6.4.5); the sums "
    "are final, and nothing writes their cells again."
)
_SECOND_SIDE = (
    "In the turn after the last only the second side has a product, since a causal first side ends a tile earlier: the "
    "wait has moved behind a product that is left out, and still stands before the one that is done."
)
_LATER_ARRIVAL = (
    "The barrier after it is complete when the same warps are done with the other half of the same block: a longer "
    "wait for the same warps, which need nothing that comes after it."
)

_FORWARD = ("attn_fwd", "attn_fwd_causal")
_BACKWARD = ("attn_bwd", "attn_bwd_causal")
_WITH_WGMMA = ("wgmma", "oracle", *_FORWARD, *_BACKWARD)
_FORWARD_B200 = ("attn_fwd_b200", "attn_fwd_causal_b200")
_BACKWARD_B200 = ("attn_bwd_b200", "attn_bwd_causal_b200")
_BLACKWELL = ("gemm_b200", *_FORWARD_B200, *_BACKWARD_B200)
_TENSOR = (*_WITH_WGMMA, *_BLACKWELL)
_WITH_STORES = ("oracle", *_BLACKWELL, *_FORWARD, *_BACKWARD)

EQUIVALENCES = (
    *(Equivalence(kernel, "drop.proxy_fence", _SETUP_FENCE, _TWO_FENCES) for kernel in _TENSOR),
    *(Equivalence(kernel, "drop.mbarrier_init_fence", _INIT_FENCE, _TWO_FENCES) for kernel in _TENSOR),
    *(Equivalence(kernel, "move.proxy_fence", _SETUP_FENCE, _TWO_FENCES) for kernel in _TENSOR),
    *(Equivalence(kernel, "move.proxy_fence", _STORE_FENCE, _READER_FENCE) for kernel in _WITH_STORES),
    *(Equivalence(kernel, "move.expect", _EXPECT, _LATE_EXPECT) for kernel in _TENSOR),
    *(
        Equivalence(kernel, f"descriptor.leading.{operand}", _MULTIPLY, _LEADING)
        for kernel in _TENSOR
        for operand in "AB"
    ),
    *(Equivalence(kernel, "launch.smem", "", _SPARE) for kernel in _TENSOR),
    *(Equivalence(kernel, "drop.bar_sync", r"(if .*)?take_turn\(.*\);.*", _TURNS) for kernel in _FORWARD),
    *(
        Equivalence(kernel, f"{change}.wgmma_fence", r"wgmma_fence\(\);", _REGISTER_FENCE)
        for kernel in (*_FORWARD, *_BACKWARD)
        for change in ("drop", "move")
    ),
    *(Equivalence(kernel, "stage.wait", r"next\(map_[kv],.*\);", _LATER_SLOT) for kernel in _FORWARD),
    *(Equivalence(kernel, "count.init_less", r"barrier_init\(.*\.empty.*", _SPARE_ARRIVAL) for kernel in _BACKWARD),
    *(
        Equivalence(kernel, "drop.tcgen05_fence_before", r"fence_before_sync\(\);", _READ_BEFORE)
        for kernel in _BLACKWELL
    ),
    *(
        Equivalence(
            kernel, f"{change}.tcgen05_fence_after", r"const int (values|keys) = .* next\(\) : 0;", _SHARED_ONLY
        )
        for kernel in _FORWARD_B200
        for change in ("drop", "move")
    ),
    *(
        Equivalence(kernel, f"{change}.tcgen05_fence_after", _FENCE_AFTER, _FENCED_AGAIN, r"__syncthreads\(\);")
        for kernel in (*_FORWARD_B200, *_BACKWARD_B200)
        for change in ("drop", "move")
    ),
    *(
        Equivalence(kernel, "move.tcgen05_wait_ld", r"load_columns\(values, sums \+ part \* 32\);", _REGISTERS_ONLY)
        for kernel in _BACKWARD_B200
    ),
    Equivalence("attn_fwd_causal_b200", "move.mbarrier_wait", _NEXT_TILE, _SECOND_SIDE),
    *(Equivalence(kernel, "drop.mbarrier_wait", _STATISTICS_WAIT, _STATISTICS) for kernel in _BACKWARD_B200),
    *(Equivalence(kernel, "move.mbarrier_wait", _STATISTICS_WAIT, _STATISTICS) for kernel in _BACKWARD_B200),
    *(
        Equivalence(kernel, "stage.wait", r"barrier_wait\(&shared\.scores_used, block % 2\);", _LATER_ARRIVAL)
        for kernel in _BACKWARD_B200
    ),
    *(
        Equivalence("gemm_b200", f"{change}.tcgen05_fence_after", r"fence_after_sync\(\);", why, before)
        for change in ("drop", "move")
        for before, why in (
            (r"__syncthreads\(\);|barrier_wait\(.*\.drained.*", _FENCED_AGAIN),
            (r"barrier_wait\(.*\.full.*", _SHARED_ONLY),
        )
    ),
    *(
        Equivalence(kernel, "drop.tcgen05_relinquish", r'asm volatile\("tcgen05\.relinquish.*', _ONE_CTA)
        for kernel in _BLACKWELL
    ),
    Equivalence("gemm_b200", "stage.wait", r"barrier_wait\(.*\.done.*", _LATER_TILE),
)


def reason(kernel: str, operator: str, source: Sequence[str], line: int) -> str | None:
    """Return why a surviving mutant is equivalent, or None if nobody has justified it.

    Args:
        kernel: Name of the target.
        operator: Name of the operator.
        source: Lines of the kernel.
        line: The line that was mutated, from 1; 0 for the host side.
    """
    here = source[line - 1].strip() if line else ""
    before = source[line - 2].strip() if line > 1 else ""
    for known in EQUIVALENCES:
        if (kernel, operator) != known[:2] or not re.fullmatch(known.source, here):
            continue
        if not known.before or re.fullmatch(known.before, before):
            return known.reason
    return None
