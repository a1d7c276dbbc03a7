"""Mutants that survive, each with the reason why no report is due: the changed kernel is as correct as the original."""

from __future__ import annotations

import re
from typing import NamedTuple


class Equivalence(NamedTuple):
    """One justified survivor."""

    kernel: str
    operator: str
    source: str
    """Pattern that the mutated line of the source matches wholly; empty for the host side."""
    reason: str


_INIT_FENCE = r'asm volatile\("fence\.mbarrier_init\.release\.cluster;" ::: "memory"\);'
_SETUP_FENCE = r'asm volatile\("fence\.proxy\.async\.shared::cta;" ::: "memory"\);'
_STORE_FENCE = _SETUP_FENCE + r"  // TMA reads what ordinary stores wrote"
_MULTIPLY = r"wgmma_m64n(256k16\(|128k16\(scores,).*\);|multiply_dimensions\(.*\);"
_EXPECT = r"barrier_expect\(.*\);|next\(map_[kv],.*\);|load_tile\(shared\.q,.*\);"

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

_FORWARD = ("attn_fwd", "attn_fwd_causal")
_BACKWARD = ("attn_bwd", "attn_bwd_causal")
_WITH_WGMMA = ("wgmma", "oracle", *_FORWARD, *_BACKWARD)
_WITH_STORES = ("oracle", *_FORWARD, *_BACKWARD)

EQUIVALENCES = (
    *(Equivalence(kernel, "drop.proxy_fence", _SETUP_FENCE, _TWO_FENCES) for kernel in _WITH_WGMMA),
    *(Equivalence(kernel, "drop.mbarrier_init_fence", _INIT_FENCE, _TWO_FENCES) for kernel in _WITH_WGMMA),
    *(Equivalence(kernel, "move.proxy_fence", _SETUP_FENCE, _TWO_FENCES) for kernel in _WITH_WGMMA),
    *(Equivalence(kernel, "move.proxy_fence", _STORE_FENCE, _READER_FENCE) for kernel in _WITH_STORES),
    *(Equivalence(kernel, "move.expect", _EXPECT, _LATE_EXPECT) for kernel in _WITH_WGMMA),
    *(
        Equivalence(kernel, f"descriptor.leading.{operand}", _MULTIPLY, _LEADING)
        for kernel in _WITH_WGMMA
        for operand in "AB"
    ),
    *(Equivalence(kernel, "launch.smem", "", _SPARE) for kernel in _WITH_WGMMA),
    *(Equivalence(kernel, "drop.bar_sync", r"(if .*)?take_turn\(.*\);.*", _TURNS) for kernel in _FORWARD),
    *(
        Equivalence(kernel, f"{change}.wgmma_fence", r"wgmma_fence\(\);", _REGISTER_FENCE)
        for kernel in (*_FORWARD, *_BACKWARD)
        for change in ("drop", "move")
    ),
    *(Equivalence(kernel, "stage.wait", r"next\(map_[kv],.*\);", _LATER_SLOT) for kernel in _FORWARD),
    *(Equivalence(kernel, "count.init_less", r"barrier_init\(.*\.empty.*", _SPARE_ARRIVAL) for kernel in _BACKWARD),
)


def reason(kernel: str, operator: str, source_line: str) -> str | None:
    """Return why a surviving mutant is equivalent, or None if nobody has justified it."""
    for known in EQUIVALENCES:
        if (kernel, operator) == known[:2] and re.fullmatch(known.source, source_line.strip()):
            return known.reason
    return None
