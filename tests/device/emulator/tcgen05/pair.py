"""Kernels of a pair of CTAs (`.cta_group::2`): what their bodies share. Each CTA has its own input and output."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from tests.device.emulator.tcgen05.harness import COLUMNS, PROLOGUE, START, Body, Run, copy_in, dump, run
from tests.device.emulator.tcgen05.operands import Layout, bf16

IMAGE = 64 * 1024
"""Bytes of input of each CTA, copied to its shared memory at `data`."""
START_B = 32 * 1024
K_128 = Layout(128, False, 16, 1024)
COMMIT_BOTH = """
mov.b16 h1, 3;
tcgen05.commit.cta_group::2.mbarrier::arrive::one.shared::cluster.multicast::cluster.b64 [mbar], h1;
"""
AFTER = "tcgen05.fence::after_thread_sync;"
ALLOC = "tcgen05.alloc.cta_group::2.sync.aligned.shared::cta.b32 [slot], {};"
FREE = "tcgen05.dealloc.cta_group::2.sync.aligned.b32 tmem, {};"
TAKE = "ld.shared.u32 tmem, [slot];"


def ranked(out_bytes: int = 0) -> Body:
    """The beginning: the rank, its part of input and output, barriers that all CTAs know of."""
    body = Body().add(PROLOGUE)
    body.add(f"""
    mov.u32 rank, %cluster_ctarank;
    mul.wide.u32 off, rank, {IMAGE};
    add.u64 from, from, off;
    mul.wide.u32 off, rank, {out_bytes};
    add.u64 to, to, off;
    """)
    body.thread(0, START)
    return cluster_sync(body)


def cluster_sync(body: Body) -> Body:
    """All threads of the cluster meet, with what they did to tensor memory."""
    return body.add(
        "tcgen05.fence::before_thread_sync;\nbarrier.cluster.arrive.aligned;\nbarrier.cluster.wait.aligned;\n" + AFTER
    )


def one(body: Body, rank: int, text: str, thread: int = 0) -> Body:
    """`text` in one thread of one CTA; the others of that CTA wait for it."""
    body._labels += 1
    label = f"ONE{body._labels}"
    skip = f"setp.ne.u32 q, rank, {rank};\nsetp.ne.u32 q2, tid, {thread};\nor.pred q, q, q2;\n@q bra {label};"
    return body.add(f"{skip}\n{text}\n{label}:").sync()


def in_cta(body: Body, rank: int, text: str) -> Body:
    """`text` in all threads of one CTA."""
    body._labels += 1
    label = f"CTA{body._labels}"
    return body.add(f"setp.ne.u32 q, rank, {rank};\n@q bra {label};\n{text}\n{label}:")


def allocated(columns: int = COLUMNS, out_bytes: int = 0) -> Body:
    body = ranked(out_bytes).warp(0, ALLOC.format(columns))
    return cluster_sync(body).add(TAKE)


def freed(body: Body, columns: int = COLUMNS) -> Body:
    return cluster_sync(body).warp(0, FREE.format(columns))


def image(a: NDArray[np.uint16] | None, b: NDArray[np.uint16], layout_a: Layout, layout_b: Layout) -> bytes:
    """Input of one CTA: its rows of A, its columns of B (as rows [n, K])."""
    memory = np.zeros(IMAGE, np.uint8)
    if a is not None:
        layout_a.place(memory, 0, a)
    layout_b.place(memory, START_B, b)
    return memory.tobytes()


def images(a: NDArray[np.float32], b: NDArray[np.float32], layout_a: Layout = K_128, layout_b: Layout = K_128) -> bytes:
    """Inputs of both: the even CTA has the first half of the rows of A and of the columns of B."""
    m, n = a.shape[0] // 2, b.shape[0] // 2
    return b"".join(image(bf16(a[p * m : p * m + m]), bf16(b[p * n : p * n + n]), layout_a, layout_b) for p in range(2))


def descriptors(layout_a: Layout = K_128, layout_b: Layout = K_128) -> str:
    """Descriptors of A and B: 18 bits of an address, which are the same in both CTAs."""
    return f"""
    and.b32 r3, data, 0x3ffff;
    cvt.u64.u32 da, r3;
    shr.u64 da, da, 4;
    add.u64 db, da, {START_B >> 4};
    or.b64 da, da, {layout_a.descriptor()};
    or.b64 db, db, {layout_b.descriptor()};
    """


def mma(idesc: int, enable: bool, more: str = "", d: str = "tmem", a: str = "da", masks: str = "") -> str:
    return (
        f"mov.u32 r2, {idesc};\nsetp.ne.u32 p, {int(enable)}, 0;\n"
        f"tcgen05.mma.cta_group::2.kind::f16 [{d}], {a}, db, r2{masks}, p{more};"
    )


def operands(body: Body, layout_a: Layout = K_128, layout_b: Layout = K_128) -> Body:
    """A and B in the shared memory of both CTAs, ready for the tensor core."""
    return cluster_sync(body.add(copy_in(IMAGE)).add(descriptors(layout_a, layout_b)))


def product(
    issue: str,
    columns: int,
    data: bytes,
    layout_a: Layout = K_128,
    layout_b: Layout = K_128,
    *,
    issuer: int = 0,
    before: str = "",
    schedule: str = "fair",
    seed: int = 0,
    zero: bool = False,
) -> Run:
    """Run `issue` in thread 0 of one CTA and return the first columns of all lanes of both, [2, 128, columns]."""
    size = 128 * 4 * columns
    body = operands(allocated(out_bytes=size).add(before), layout_a, layout_b)
    one(body, issuer, issue + COMMIT_BOTH)
    body.wait().add(AFTER).add(dump(columns))
    return run(freed(body), data, out_bytes=2 * size, ctas=2, schedule=schedule, seed=seed, zero=zero)


def accumulator(cells: NDArray[np.generic], m: int, n: int) -> NDArray[np.generic]:
    """D [m, n] from the cells of both CTAs, [2, 128, columns]: PTX ISA 9.7.16.10.5, layouts A and B."""
    if m == 256:
        return np.concatenate([cells[0, :, :n], cells[1, :, :n]])
    half = n // 2
    parts = [np.concatenate([cells[p, :64, :half], cells[p, 64:, :half]], axis=1) for p in range(2)]
    return np.concatenate(parts)


def floats(done: Run) -> NDArray[np.float32]:
    return done.output.view(np.float32).reshape(2, 128, -1)
