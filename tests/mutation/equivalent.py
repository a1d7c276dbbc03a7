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
_MULTIPLY = r"wgmma_m64n256k16\(.*\);"
_EXPECT = r"barrier_expect\(.*\);"

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

EQUIVALENCES = (
    *(Equivalence(kernel, "drop.proxy_fence", _SETUP_FENCE, _TWO_FENCES) for kernel in ("wgmma", "oracle")),
    *(Equivalence(kernel, "drop.mbarrier_init_fence", _INIT_FENCE, _TWO_FENCES) for kernel in ("wgmma", "oracle")),
    *(Equivalence(kernel, "move.proxy_fence", _SETUP_FENCE, _TWO_FENCES) for kernel in ("wgmma", "oracle")),
    Equivalence("oracle", "move.proxy_fence", _STORE_FENCE, _READER_FENCE),
    *(Equivalence(kernel, "move.expect", _EXPECT, _LATE_EXPECT) for kernel in ("wgmma", "oracle")),
    *(
        Equivalence(kernel, f"descriptor.leading.{operand}", _MULTIPLY, _LEADING)
        for kernel in ("wgmma", "oracle")
        for operand in "AB"
    ),
    *(Equivalence(kernel, "launch.smem", "", _SPARE) for kernel in ("wgmma", "oracle")),
)


def reason(kernel: str, operator: str, source_line: str) -> str | None:
    """Return why a surviving mutant is equivalent, or None if nobody has justified it."""
    for known in EQUIVALENCES:
        if (kernel, operator) == known[:2] and re.fullmatch(known.source, source_line.strip()):
            return known.reason
    return None
