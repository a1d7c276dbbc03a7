"""Barriers, prefetches and wmma by the orders, scopes and state spaces that `forms` and `products` leave out.

Each kernel is PTX that is written here.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace

from tests.gpu.cases.model import Case, Map
from tests.gpu.cases.products import product_cases
from tests.gpu.cases.values import random_bytes

HEAD = """.visible .entry {name}(.param .align 128 .b8 params[256])
.maxntid 128
{{
.reg .b64 out, state, map; .reg .b32 tid, b, word; .reg .pred p, first; .shared .align 8 .b8 bar[8];
ld.param.u64 out, [params+136]; mov.u32 tid, %tid.x; setp.eq.u32 first, tid, 0; mov.u32 b, bar;
{body}
ret;
}}
"""
STEPS: tuple[tuple[str, int], ...] = (
    ("mbarrier.init.shared.b64 [b], 4", -1),
    ("mbarrier.arrive.expect_tx.shared.b64 state, [b], 16", -1),
    ("count", 4),
    ("mbarrier.test_wait.relaxed.cta.shared::cta.b64 p, [b], state", 0),
    ("mbarrier.arrive_drop.release.cta.shared.b64 state, [b]", -1),
    ("count", 3),
    ("mbarrier.arrive_drop.expect_tx.release.cta.shared.b64 state, [b], 32", -1),
    ("count", 2),
    ("mbarrier.complete_tx.relaxed.cta.shared.b64 [b], 48", -1),
    ("mbarrier.test_wait.parity.relaxed.cta.shared.b64 p, [b], 0", 0),
    ("mbarrier.arrive.release.cta.shared::cta.b64 state, [b]", -1),
    ("count", 1),
    ("mbarrier.try_wait.acquire.cta.shared.b64 p, [b], state", 1),
    ("mbarrier.try_wait.relaxed.cluster.shared::cta.b64 p, [b], state", 1),
    ("mbarrier.try_wait.parity.acquire.cluster.shared.b64 p, [b], 0", 1),
    ("mbarrier.test_wait.parity.acquire.cluster.shared::cta.b64 p, [b], 1", 0),
    ("mbarrier.arrive_drop.noComplete.release.cta.shared::cta.b64 state, [b], 1", -1),
    ("count", 2),
    ("mbarrier.arrive_drop.expect_tx.relaxed.cta.shared::cta.b64 state, [b], 0", -1),
    ("count", 1),
    ("mbarrier.test_wait.relaxed.cluster.shared.b64 p, [b], state", 1),
    ("mbarrier.inval.shared.b64 [b]", -1),
)
"""One thread's statements and what each shows: a count of pending arrivals, whether the phase is over, −1: nothing."""
SHAPES = {
    1: ((512,), (64,)),
    3: ((32, 6, 5), (16, 3, 2)),
    4: ((32, 5, 4, 3), (16, 2, 2, 2)),
    5: ((32, 4, 3, 3, 2), (16, 2, 2, 1, 2)),
}
"""Tensors and boxes of f32."""
PREFETCH = """.reg .b64 policy, in, at; .reg .b32 words<4>; mov.u64 map, params; cvta.param.u64 map, map;
createpolicy.fractional.L2::evict_first.b64 policy, 0f3F800000; ld.param.u64 in, [params+128];
@first cp.async.bulk.prefetch.tensor.{rank}d.L2.global.tile [map, {{{place}}}];
@first cp.async.bulk.prefetch.tensor.{rank}d.L2.global.L2::cache_hint [map, {{{place}}}], policy;
mad.wide.u32 at, tid, 16, in; ld.global.v4.u32 {{words0, words1, words2, words3}}, [at];
mad.wide.u32 at, tid, 16, out; st.global.v4.u32 [at], {{words0, words1, words2, words3}};"""

SHARED = ("f16/normal", "f16_half/normal", "f16_m8/wide", "bf16_m32/normal", "tf32/wide", "s8", "u8_m8", "f64")
"""Cases of wmma of `products` that have a twin in shared memory."""
RESULT_AT = 4096
TO_SHARED = """.shared .align 128 .b8 tile[8192]; .reg .b64 image, step, last; .reg .pred more;
mov.u64 image, tile; mul.wide.u32 step, tid, 4; mov.u64 last, {bytes};
COPY: add.u64 at, in, step; ld.global.u32 word, [at]; add.u64 at, image, step; st.shared.u32 [at], word;
add.u64 step, step, 128; setp.lt.u64 more, step, last; @more bra COPY;
bar.warp.sync -1;
"""
FROM_SHARED = """bar.warp.sync -1; mul.wide.u32 step, tid, 4; mov.u64 last, {bytes};
BACK: add.u64 at, image, step; ld.shared.u32 word, [at+{from_}]; add.u64 at, out, step; st.global.u32 [at], word;
add.u64 step, step, 128; setp.lt.u64 more, step, last; @more bra BACK;
"""


def in_shared(case: Case) -> Case:
    """Return the case with its matrices in shared memory."""
    kernel = f"{case.kernel}_shared"
    text = case.ptx.replace(case.kernel, kernel).replace("add.u64 from, in,", "add.u64 from, image,")
    head, load, rest = text.partition("add.u64 from, image,")
    work = (load + rest).replace(".global.", ".shared::cta.").replace("[out]", f"[image+{RESULT_AT}]")
    work = work.replace("ret;", FROM_SHARED.format(bytes=case.out_bytes, from_=RESULT_AT) + "ret;")
    text = head + TO_SHARED.format(bytes=len(case.input)) + work
    return replace(case, name=f"spelling/{case.name}", kernel=kernel, ptx=text)


def spelling_cases() -> Iterator[Case]:
    wmma = {case.name: case for case in product_cases()}
    for name in SHARED:
        yield in_shared(wmma[f"wmma/{name}"])
    lines = ["@!first bra DONE;"]
    for number, (step, shows) in enumerate(STEPS):
        at = 4 * sum(1 for _, other in STEPS[:number] if other >= 0)
        if step == "count":
            lines.append("mbarrier.pending_count.b64 word, state;")
        else:
            lines.append(f"{step};" + (" selp.u32 word, 1, 0, p;" if shows >= 0 else ""))
        if shows >= 0:
            lines.append(f"st.global.u32 [out+{at}], word;")
    text = HEAD.format(name="mbarrier_spellings", body="\n".join([*lines, "DONE:"]))
    yield Case("spelling/mbarrier", "mbarrier_spellings", 32, b"", 256, ptx=text)
    for rank, (dims, box) in SHAPES.items():
        kernel = f"prefetch_{rank}d"
        body = PREFETCH.format(rank=rank, place=", ".join("0" * rank))
        yield Case(f"spelling/prefetch/{rank}d", kernel, 128, random_bytes(4 * math.prod(dims), 480 + rank), 2048,
                   map=Map(dims, box, type="FLOAT32"), ptx=HEAD.format(name=kernel, body=body))  # fmt: skip
