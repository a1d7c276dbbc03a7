"""What has no result of its own: fences between proxies, registers that change hands; and where an address lies.

Each kernel is PTX that is written here. Data goes through the fences, so that a case shows more than that they run.
"""

from __future__ import annotations

from collections.abc import Iterator

from tests.gpu.cases.cluster import in_cluster
from tests.gpu.cases.model import Case
from tests.gpu.cases.values import random_bytes

HEAD = """.visible .entry {name}(.param .align 128 .b8 params[256])
.maxntid 128 .minnctapersm 1
{{
.reg .b64 in, out, at, from, scratch; .reg .b32 tid, cell, w0, w1, w2, w3, one; .reg .pred first, done;
.shared .align 128 .b8 tile[1024]; .shared .align 8 .b8 bar[8];
ld.param.u64 in, [params+128]; ld.param.u64 out, [params+136]; mov.u32 tid, %tid.x;
mad.wide.u32 from, tid, 16, in; mad.wide.u32 at, tid, 16, out; setp.eq.u32 first, tid, 0;
mov.u32 cell, tile; mad.lo.u32 cell, tid, 16, cell;
{body}
ret;
}}
"""
FENCES = """griddepcontrol.wait;
ld.global.v4.u32 {w0, w1, w2, w3}, [from]; st.global.v4.u32 [at+512], {w0, w1, w2, w3};
@first mbarrier.init.shared::cta.b64 [bar], 1; @first fence.mbarrier_init.release.cluster;
fence.proxy.alias; membar.proxy.alias; fence.proxy.async.global; bar.sync 0;
@first mbarrier.arrive.expect_tx.shared::cta.b64 _, [bar], 512; add.u64 scratch, out, 512;
@first cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [tile], [scratch], 512, [bar];
WAIT: mbarrier.try_wait.parity.shared::cta.b64 done, [bar], 0; @!done bra WAIT;
fence.acquire.sync_restrict::shared::cluster.cluster;
fence.proxy.async::generic.acquire.sync_restrict::shared::cluster.cluster;
ld.shared.v4.u32 {w0, w1, w2, w3}, [cell]; mov.u32 one, 1; add.u32 w0, w0, one; add.u32 w3, w3, tid;
st.shared.v4.u32 [cell+512], {w0, w1, w2, w3};
fence.release.sync_restrict::shared::cta.cluster;
fence.proxy.async::generic.release.sync_restrict::shared::cta.cluster;
fence.proxy.async.shared::cluster; bar.sync 0; add.u32 cell, cell, 512;
@first cp.async.bulk.global.shared::cta.bulk_group [out], [cell], 512;
cp.async.bulk.commit_group; cp.async.bulk.wait_group 0; griddepcontrol.launch_dependents;"""
"""Words to global memory, from there to shared memory by a bulk copy, changed, and back by another one."""
REGISTERS = """ld.global.v4.u32 {w0, w1, w2, w3}, [from];
setmaxnreg.dec.sync.aligned.u32 24; add.u32 w0, w0, w1; xor.b32 w1, w1, w2;
bar.sync 0; setmaxnreg.inc.sync.aligned.u32 40; add.u32 w2, w2, w3; xor.b32 w3, w3, w0;
st.global.v4.u32 [at], {w0, w1, w2, w3};"""
"""What registers hold stays, fewer or more of them."""
SPACES = ("global", "local", "shared::cta", "shared::cluster")
ADDRESSES = """.local .align 4 .b8 mine[16]; .reg .b32 rank, word, bits, other; .reg .b64 wide, far; .reg .pred inside;
mov.u32 rank, %cluster_ctarank; mad.wide.u32 at, rank, 128, out; xor.b32 other, rank, 1;
mov.u32 cell, tile; mapa.shared::cluster.u32 one, cell, other; getctarank.shared::cluster.u32 word, one;
@first st.global.u32 [at], word; getctarank.shared::cluster.u32 word, cell; @first st.global.u32 [at+4], word;
cvt.u64.u32 wide, one; cvta.shared::cluster.u64 far, wide; getctarank.u64 word, far; @first st.global.u32 [at+8], word;
{places}"""


def _places() -> str:
    """For an address of each kind the set of spaces that it lies in, a bit each."""
    lines = []
    for index, (space, name) in enumerate([("global", "in"), ("local", "mine"), ("shared::cta", "tile"), ("", "far")]):
        lines.append(f"mov.u64 wide, {name};")
        if space in ("local", "shared::cta"):
            lines.append(f"cvta.{space}.u64 wide, wide;")
        lines.append("mov.u32 bits, 0;")
        for bit, asked in enumerate(SPACES):
            lines.append(f"isspacep.{asked} inside, wide; @inside or.b32 bits, bits, {1 << bit};")
        lines.append(f"@first st.global.u32 [at+{16 + 4 * index}], bits;")
    return "\n".join(lines)


def proxy_cases() -> Iterator[Case]:
    yield _case("proxy_fences", FENCES, 32, random_bytes(512, 120), 1024)
    yield _case("registers", REGISTERS, 128, random_bytes(2048, 121), 2048)
    yield _case("addresses", ADDRESSES.format(places=_places()), in_cluster(2, 32), random_bytes(512, 122), 256)


def _case(name: str, body: str, threads: int, data: bytes, out_bytes: int) -> Case:
    return Case(f"proxy/{name}", name, threads, data, out_bytes, ptx=HEAD.format(name=name, body=body))
