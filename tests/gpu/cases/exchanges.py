"""What one CTA of a cluster does to the memory and the barriers of the other, in the types that `cluster` leaves out.

Each kernel is PTX that is written here. in: per CTA a part that its memory holds, then a part for the other one; a
thread brings one value, or one vector. out: the parts that memory holds in the end.
"""

from __future__ import annotations

from collections.abc import Iterator

from tests.gpu.cases.cluster import in_cluster
from tests.gpu.cases.lines import alternatives, width
from tests.gpu.cases.model import Case
from tests.gpu.cases.values import random_bytes

THREADS = 64
HEAD = """.visible .entry {name}(.param .align 128 .b8 params[256])
.maxntid 64
{{
.reg .b64 in, out, at, from, fars, state; .reg .b32 tid, rank, other, cell, own, far, there, word, old;
.reg .b32 v<4>; .reg .b64 vd<4>; .reg .pred first, done;
.shared .align 128 .b8 tile[{tile}]; .shared .align 8 .b8 bar[8];
ld.param.u64 in, [params+128]; ld.param.u64 out, [params+136]; mov.u32 tid, %tid.x; setp.eq.u32 first, tid, 0;
mov.u32 rank, %cluster_ctarank; xor.b32 other, rank, 1; mov.u32 own, tile; mad.lo.u32 cell, tid, {size}, own;
mad.wide.u32 from, rank, {tile}, in; mad.wide.u32 from, tid, {size}, from;
{copies}
@first mbarrier.init.shared::cta.b64 [bar], {arrivals}; @first fence.mbarrier_init.release.cluster;
fence.proxy.async.shared::cta; bar.sync 0; {expect}
barrier.cluster.arrive.release.aligned; barrier.cluster.wait.acquire.aligned;
mapa.shared::cluster.u32 far, cell, other; mov.u32 there, bar; mapa.shared::cluster.u32 there, there, other;
{body}
bar.sync 0; barrier.cluster.arrive.aligned; barrier.cluster.wait.aligned;
mad.wide.u32 at, rank, {part}, out; mad.wide.u32 at, tid, {size}, at;
{results}
ret;
}}
"""
WAIT = "WAIT: mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 done, [bar], 0; @!done bra WAIT;"
ST_ASYNC = (
    *alternatives("{b32,u32,s32,f32,b64,u64,s64,f64}"),
    *alternatives("v2.{b32,u32,s64,f64,b64}"),
    *alternatives("v4.{u32,s32,f32}"),
)
RED_ASYNC = ("add.s32", "add.s64", "min.u32", "max.s32")
SHARE_REDUCE = ("add.s32", "min.u32", "max.s32")
ARRIVALS = """@!first bra ASKED;
mbarrier.arrive.release.cluster.shared::cluster.b64 _, [there];
mbarrier.arrive.relaxed.cluster.shared::cluster.b64 _, [there], 1;
mbarrier.arrive.expect_tx.release.cluster.shared::cluster.b64 _, [there], 48;
mbarrier.complete_tx.relaxed.cluster.shared::cluster.b64 [there], 32;
mbarrier.expect_tx.relaxed.cluster.shared::cluster.b64 [there], 16;
mbarrier.complete_tx.relaxed.cluster.shared::cluster.b64 [there], 32;
mbarrier.arrive_drop.release.cluster.shared::cluster.b64 _, [there];
ASKED: {wait}
@first mbarrier.arrive.release.cluster.shared::cluster.b64 _, [there], 2;
barrier.cluster.arrive.aligned; barrier.cluster.wait.aligned;
mbarrier.test_wait.parity.acquire.cluster.shared::cta.b64 done, [bar], 1; selp.u32 word, 1, 0, done;
barrier.cluster.arrive.aligned; barrier.cluster.wait.aligned;
@first mbarrier.arrive.expect_tx.relaxed.cluster.shared::cluster.b64 _, [there], 0;
LAST: mbarrier.try_wait.parity.relaxed.cluster.shared::cta.b64 done, [bar], 1; @!done bra LAST;
st.shared.u32 [cell], word; st.shared.u32 [cell+4], tid;"""
"""Four arrivals, one of which drops; then two are too few and a third one is enough."""


def exchange_cases() -> Iterator[Case]:
    for number, form in enumerate(ST_ASYNC):
        kind, count = form.split(".")[-1], int(form[1]) if form[0] == "v" else 1
        yield _exchange(f"st_async/{form}", kind, count, number, _asynchronous("st.async", "", form, kind, count))
    for number, form in enumerate(RED_ASYNC):
        kind = form.split(".")[1]
        body = _asynchronous("red.async", ".relaxed.cluster", form, kind, 1)
        yield _exchange(f"red_async/{form.replace('.', '/')}", kind, 1, 20 + number, body)
    for number, form in enumerate(SHARE_REDUCE):
        body = (
            f"mapa.shared::cluster.u32 far, own, other; add.u32 old, own, {4 * THREADS}; @first cp.reduce.async.bulk."
            f"shared::cluster.shared::cta.mbarrier::complete_tx::bytes.{form} [far], [old], {4 * THREADS}, [there];"
        )
        yield _exchange(f"share_reduce/{form.replace('.', '/')}", form.split(".")[1], 1, 30 + number, f"{body}\n{WAIT}")
    yield _exchange("arrivals", "u64", 1, 40, ARRIVALS.format(wait=WAIT), arrivals=4)


def _asynchronous(opcode: str, order: str, form: str, kind: str, count: int) -> str:
    size, part = int(width(kind)) // 8, int(width(kind)) // 8 * count * THREADS
    names = [f"v{'d' if size == 8 else ''}{i}" for i in range(count)]
    loads = " ".join(f"ld.shared.b{8 * size} {name}, [cell+{part + size * i}];" for i, name in enumerate(names))
    value = names[0] if count == 1 else f"{{{', '.join(names)}}}"
    scope = f"{opcode}{order or '.weak'}.shared::cluster.mbarrier::complete_tx::bytes"
    return f"{loads}\n{scope}.{form} [far], {value}, [there];\n{WAIT}"


def _exchange(name: str, kind: str, count: int, seed: int, body: str, arrivals: int = 1) -> Case:
    size = int(width(kind)) // 8 * count
    part, words = size * THREADS, range(0, size, 4)
    kernel = f"exchange_{name.replace('/', '_').replace('.', '_')}"
    text = HEAD.format(
        name=kernel,
        tile=2 * part,
        part=part,
        size=size,
        arrivals=arrivals,
        copies="\n".join(
            f"ld.global.u32 word, [from+{at}]; st.shared.u32 [cell+{at}], word;"
            for at in (*words, *(part + w for w in words))
        ),
        expect=f"@first mbarrier.arrive.expect_tx.shared::cta.b64 _, [bar], {part};" if arrivals == 1 else "",
        body=body,
        results="\n".join(f"ld.shared.u32 word, [cell+{at}]; st.global.u32 [at+{at}], word;" for at in words),
    )
    data = random_bytes(4 * part, 500 + seed)
    return Case(f"cluster/{name}", kernel, in_cluster(2, THREADS), data, 2 * part, ptx=text)
