"""Mutants that survive, each with the reason: most are as correct as the original; some the emulator cannot judge."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Literal, NamedTuple

from tests.mutation import reasons

Kind = Literal["equivalent", "unspecified", "hole"]
"""As correct as the original; a fault only if hardware does what no document rules out; a fault that nothing shows."""


class Survivor(NamedTuple):
    """One kind of survivor, and what became of the search for its fault."""

    kernel: str
    operator: str
    source: str
    """Pattern that the mutated line of the source matches wholly; empty for the host side."""
    reason: str
    before: str = ""
    """Pattern that the line before matches wholly, where one text stands at several places."""
    kind: Kind = "equivalent"


_INIT_FENCE = r'asm volatile\("fence\.mbarrier_init\.release\.cluster;" ::: "memory"\);'
_SETUP_FENCE = r'asm volatile\("fence\.proxy\.async\.shared::cta;" ::: "memory"\);'
_STORE_FENCE = _SETUP_FENCE + r"  // TMA reads what ordinary stores wrote"
_MULTIPLY = (
    r"wgmma_m64n(256k16\(|128k16\(scores,).*\);|multiply_dimensions\(.*\);|multiply_add\(sums,.*"
    r"|multiply\(tensor_memory \+ kScores.*"
)
_EXPECT = r"barrier_expect\(.*\);|next\(map_[kv],.*\);|load_tile\(shared\.q(,|\[side\],).*\);"
_FENCE_AFTER = r"fence_after_sync\(\);"
_NEXT_TILE = r"const int (values|keys) = .* next\(\) : 0;"
_STATISTICS_WAIT = r"if constexpr \(kept == Kept::Keys\) barrier_wait\(.*\);  // for statistics"

_HANDS_OVER_SUMS = r".*barrier_arrive(_even)?\(&shared\.(drained|p_full).*\);|warp_arrive\(&shared\.scores_used\);"
_TAKES_SUMS = (
    r"barrier_wait\(&shared\.(drained|done|scores|scores_used|derivatives)\b.*\);|[spo]_full\.wait\(shared\..*\);"
)
_FINAL_WAIT = (
    r"for \(int side = 0; side < kSides; \+\+side\) q_empty\.wait\(.*|barrier_wait\(&shared\.empty.*parity \^ 1\);"
)
_PRODUCT = r"multiply_dimensions\(scores, .*\);|multiply_add_tmem\(d, .*\);"

_FORWARD = ("attn_fwd", "attn_fwd_causal")
_BACKWARD = ("attn_bwd", "attn_bwd_causal")
_WITH_WGMMA = ("wgmma", "oracle", *_FORWARD, *_BACKWARD)
_FORWARD_B200 = ("attn_fwd_b200", "attn_fwd_causal_b200")
_BACKWARD_B200 = ("attn_bwd_b200", "attn_bwd_causal_b200")
_GEMM_B200 = ("gemm_b200", "gemm_pair_b200")
_BLACKWELL = (*_GEMM_B200, *_FORWARD_B200, *_BACKWARD_B200)
_TENSOR = (*_WITH_WGMMA, *_BLACKWELL)
_WITH_STORES = ("oracle", *_BLACKWELL, *_FORWARD, *_BACKWARD)

SURVIVORS = (
    *(Survivor(kernel, "drop.proxy_fence", _SETUP_FENCE, reasons.TWO_FENCES) for kernel in _TENSOR),
    *(Survivor(kernel, "drop.mbarrier_init_fence", _INIT_FENCE, reasons.TWO_FENCES) for kernel in _TENSOR),
    *(Survivor(kernel, "move.proxy_fence", _SETUP_FENCE, reasons.TWO_FENCES) for kernel in _TENSOR),
    *(Survivor(kernel, "move.proxy_fence", _STORE_FENCE, reasons.READER_FENCE) for kernel in _WITH_STORES),
    *(Survivor(kernel, "move.expect", _EXPECT, reasons.LATE_EXPECT) for kernel in _TENSOR),
    *(
        Survivor(kernel, f"descriptor.leading.{operand}", _MULTIPLY, reasons.LEADING)
        for kernel in _TENSOR
        for operand in "AB"
    ),
    *(Survivor(kernel, "launch.smem", "", reasons.SPARE) for kernel in _TENSOR),
    *(
        Survivor(kernel, "drop.bar_sync", r"if \(consumer\.index == 0\) take_turn\(0\);.*", reasons.TURNS)
        for kernel in _FORWARD
    ),
    *(
        Survivor(kernel, f"{change}.wgmma_fence", r"wgmma_fence\(\);", reasons.REGISTER_FENCE)
        for kernel in (*_FORWARD, *_BACKWARD)
        for change in ("drop", "move")
    ),
    *(Survivor(kernel, "stage.wait", r"next\(map_[kv],.*\);", reasons.LATER_SLOT) for kernel in _FORWARD),
    *(
        Survivor(kernel, "drop.tcgen05_fence_before", r"fence_before_sync\(\);|warp_arrive\(.*\);", reasons.READ_BEFORE)
        for kernel in _BLACKWELL
    ),
    *(
        Survivor(kernel, f"{change}.tcgen05_fence_after", *where)
        for where in ((_NEXT_TILE, reasons.SHARED_ONLY), (_FENCE_AFTER, reasons.SHARED_ONLY, r"q_full\.wait\(.*"))
        for kernel in _FORWARD_B200
        for change in ("drop", "move")
    ),
    *(
        Survivor(kernel, f"{change}.tcgen05_fence_after", _FENCE_AFTER, reasons.FENCED_AGAIN, r"__syncthreads\(\);")
        for kernel in (*_FORWARD_B200, *_BACKWARD_B200)
        for change in ("drop", "move")
    ),
    *(
        Survivor(kernel, f"{change}.tcgen05_wait_ld", *where)
        for kernel in _BACKWARD_B200
        for change in ("drop", "move")
        for where in (
            (r"load_columns\(values, sums \+ part \* 32\);", reasons.REGISTERS_ONLY),
            (r"load_columns\((p|ds), cells \+ k\w+\);", reasons.NEXT_WAIT),
        )
    ),
    *(
        Survivor(kernel, "move.tcgen05_wait_ld", r"wait_loads\([so]\);", reasons.REGISTERS_ONLY)
        for kernel in _FORWARD_B200
    ),
    *(Survivor(kernel, "drop.tcgen05_wait_ld", r"wait_loads\(o\);", reasons.STORED_BACK) for kernel in _FORWARD_B200),
    *(Survivor(kernel, "relaxed.arrive", _HANDS_OVER_SUMS, reasons.RELAXED) for kernel in _BLACKWELL),
    *(Survivor(kernel, "relaxed.wait", _TAKES_SUMS, reasons.RELAXED) for kernel in _BLACKWELL),
    *(Survivor(kernel, "relaxed.wait", _STATISTICS_WAIT, reasons.STATISTICS) for kernel in _BACKWARD_B200),
    Survivor(
        "attn_bwd_causal", "relaxed.arrive", r"release\(.*\);", reasons.NOTHING_READ, r"if \(block < diagonal\) \{.*"
    ),
    *(Survivor(kernel, "idesc.n", _PRODUCT, reasons.WIDER) for kernel in _BACKWARD_B200),
    *(
        Survivor(kernel, "stage.wait", r"barrier_wait\(&shared\.scores, block % 2\);", reasons.LATER_COMMIT)
        for kernel in _BACKWARD_B200
    ),
    *(Survivor(kernel, "stage.wait", r"next\(map_k,.*\);", reasons.VALUES_LATER) for kernel in _FORWARD_B200),
    Survivor("attn_fwd_b200", "move.mbarrier_wait", _NEXT_TILE, reasons.KEYS_LATER),
    *(
        Survivor(kernel, "drop.mbarrier_wait", _FINAL_WAIT, reasons.COMMIT_BEFORE, kind="unspecified")
        for kernel in _FORWARD_B200
    ),
    *(Survivor(kernel, "relaxed.wait", _FINAL_WAIT, reasons.LAST_WAIT) for kernel in _FORWARD_B200),
    Survivor(
        "gemm_pair_b200",
        "relaxed.cluster_arrive",
        r"cluster_sync\(\);.*leaves.*",
        reasons.REMOTE_ARRIVAL,
        "",
        "unspecified",
    ),
    *(Survivor(kernel, "drop.warp_sync", ".*", reasons.LANES, kind="hole") for kernel in _TENSOR),
    Survivor("attn_fwd_causal_b200", "move.mbarrier_wait", _NEXT_TILE, reasons.SECOND_SIDE),
    *(Survivor(kernel, "drop.mbarrier_wait", _STATISTICS_WAIT, reasons.STATISTICS) for kernel in _BACKWARD_B200),
    *(Survivor(kernel, "move.mbarrier_wait", _STATISTICS_WAIT, reasons.STATISTICS) for kernel in _BACKWARD_B200),
    *(
        Survivor(kernel, "stage.wait", r"barrier_wait\(&shared\.scores_used, block % 2\);", reasons.LATER_ARRIVAL)
        for kernel in _BACKWARD_B200
    ),
    *(
        Survivor(kernel, f"{change}.tcgen05_fence_after", _FENCE_AFTER, why, before)
        for kernel in _GEMM_B200
        for change in ("drop", "move")
        for before, why in (
            (r"__syncthreads\(\);|cluster_sync\(\);.*|barrier_wait\(.*\.drained.*", reasons.FENCED_AGAIN),
            (r"barrier_wait\(.*\.full.*", reasons.SHARED_ONLY),
        )
    ),
    *(
        Survivor(kernel, "drop.tcgen05_relinquish", r'asm volatile\("tcgen05\.relinquish.*', reasons.ONE_CTA)
        for kernel in _BLACKWELL
    ),
    Survivor("split_k", "flag.other_counter", r'asm volatile\("atom\.relaxed.*', reasons.ONE_COUNTER),
    Survivor("grid_barrier", "flag.early", r'asm volatile\("ld\.acquire.*', reasons.LAST_ARRIVAL, kind="hole"),
    Survivor("cluster_sum", "drop.mbarrier_init_fence", _INIT_FENCE, reasons.CLUSTER_BARRIER),
    Survivor("cluster_sum", "relaxed.cluster_arrive", r'asm volatile\("barrier\.cluster\.arrive.*', reasons.INIT_FENCE),
    Survivor("cluster_sum", "count.init_less", r'asm volatile\("mbarrier\.init.*', reasons.LANES, kind="hole"),
)


def argued(kernel: str, operator: str, source: Sequence[str], line: int) -> Survivor | None:
    """Return what is known of a surviving mutant, or None if nobody has argued it.

    Args:
        kernel: Name of the target.
        operator: Name of the operator.
        source: Lines of the kernel.
        line: The line that was mutated, from 1; 0 for the host side.
    """
    here = source[line - 1].strip() if line else ""
    before = source[line - 2].strip() if line > 1 else ""
    for known in SURVIVORS:
        if (kernel, operator) != known[:2] or not re.fullmatch(known.source, here):
            continue
        if not known.before or re.fullmatch(known.before, before):
            return known
    return None
