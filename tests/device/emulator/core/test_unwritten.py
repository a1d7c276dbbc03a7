"""Whatever reads global memory that nothing has written says so: matrices of wmma, and copies into shared memory."""

from __future__ import annotations

import numpy as np
import pytest

from ptxgym.device.emulator import tensor_map
from ptxgym.device.emulator.placement import place
from ptxgym.plan.model import BufferRef, TensorMap
from tests.device.emulator.core.harness import Run, kernel, run

ROWS, COLUMNS = 8, 16
"""Words of `work` where a tensor map says so; 4 bytes each."""
BOX = TensorMap(
    data_type="FLOAT32", global_address=BufferRef(buffer="work"), global_dim=(COLUMNS, ROWS),
    global_strides_bytes=(4 * COLUMNS,), box_dim=(COLUMNS, 4), element_strides=(1, 1), swizzle="NONE", oob_fill="NONE",
)  # fmt: skip

START = """
  .shared .align 128 .b8 tile[1024]; .shared .align 8 .b64 bar;
  mov.u32 %r10, tile; mov.u32 %r11, bar; setp.ne.u32 %p1, %r0, 0; @%p1 bra END;
  mbarrier.init.shared::cta.b64 [%r11], 1; fence.mbarrier_init.release.cluster;
"""
WAIT = "W: mbarrier.try_wait.parity.shared::cta.b64 %p2, [%r11], 0; @!%p2 bra W; ld.shared.u32 %r12, [%r10]; END:"
"""The thread reads what came: a byte of it tells of nothing, since the copy has written it."""


def bulk(offset: int, size: int) -> str:
    return f"""{START}
      mbarrier.arrive.expect_tx.shared::cta.b64 %rd10, [%r11], {size}; add.s64 %rd11, %rd1, {offset};
      cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%r10], [%rd11], {size}, [%r11];
      {WAIT}"""


def tensor(row: int) -> str:
    return f"""{START}
      mbarrier.arrive.expect_tx.shared::cta.b64 %rd10, [%r11], 256; mov.u32 %r13, 0; mov.u32 %r14, {row};
      cp.async.bulk.tensor.2d.shared::cta.global.mbarrier::complete_tx::bytes [%r10], [%rd2, {{%r13, %r14}}], [%r11];
      {WAIT}"""


def cp_async(offset: int, size: str) -> str:
    return f"""
      .shared .align 128 .b8 tile[1024]; mov.u32 %r10, tile; mad.lo.u32 %r10, %r0, 16, %r10;
      mad.wide.u32 %rd10, %r0, 16, %rd1; add.s64 %rd10, %rd10, {offset}; mov.u32 %r13, {size};
      cp.async.cg.shared.global [%r10], [%rd10], 16, %r13; cp.async.wait_all; ld.shared.u32 %r12, [%r10];"""


def wmma(offset: int) -> str:
    registers = ", ".join(f"%f{i}" for i in range(8))
    load = f"wmma.load.c.sync.aligned.row.m16n16k16.global.f32 {{{registers}}}, [%rd10], 16;"
    return f"add.s64 %rd10, %rd1, {offset}; {load}"


def go(body: str, filled: int) -> Run:
    """Run `body` in a warp, of whose `work` (2 KiB; %rd1) it has stored the words before `filled` itself."""
    buffers = {"out": np.zeros(4, "<u4"), "work": np.zeros(512, "<u4"), "map": np.zeros(128, np.uint8)}
    address = place((name, array.nbytes) for name, array in buffers.items())["work"]
    buffers["map"][:] = np.frombuffer(tensor_map.pack(BOX, address), np.uint8)
    fill = f"""
      mov.u32 %r20, %r0;
    FILL: setp.ge.u32 %p8, %r20, {filled}; @%p8 bra FULL;
      mad.wide.u32 %rd20, %r20, 4, %rd1; st.global.u32 [%rd20], %r20; add.u32 %r20, %r20, 32; bra FILL;
    FULL: fence.proxy.async; bar.warp.sync 0xffffffff;
    """
    return run(kernel(fill + body), buffers, inputs=["map"], written=False)


@pytest.mark.parametrize(
    ("body", "needs", "says"),
    [
        (bulk(64, 128), 48, "bulk copy of 128 bytes at byte 64 of work"),
        (tensor(2), 96, "tensor copy of 64 bytes at byte 320 of work"),
        (cp_async(32, "16"), 136, "cp.async of 16 bytes at byte 528 of work"),
        (cp_async(32, "8"), 134, "cp.async of 8 bytes at byte 528 of work"),
        (wmma(128), 288, "wmma.load of 64 bytes at byte 1088 of work"),
    ],
    ids=["bulk", "tensor", "cp.async", "part", "wmma"],
)
def test_what_reads_unwritten_memory_says_so(body: str, needs: int, says: str) -> None:
    """`needs` words make all of it written; without the last one the line or lane that holds it is named."""
    assert go(body, needs).codes == []
    done = go(body, needs - 1)
    assert done.codes == ["memory.uninitialised"]
    (record,) = done.records
    assert (int(record["severity"]), int(record["count"])) == (1, 1)
    assert done.message("memory.uninitialised") == f"{says} reads memory that nothing has written"


def test_copies_say_it_once_though_all_of_it_is_unwritten() -> None:
    for body in (bulk(64, 128), tensor(2), cp_async(32, "16"), wmma(128)):
        done = go(body, 0)
        assert [(r["code"], int(r["count"])) for r in done.records] == [(b"memory.uninitialised", 1)]


def test_what_a_copy_leaves_out_may_be_unwritten() -> None:
    """Rows of a box outside of the tensor are filled with zeros, and so is what cp.async does not read."""
    assert go(tensor(6), 128).codes == []
    assert go(tensor(6), 127).codes == ["memory.uninitialised"]
    assert go(cp_async(32, "0"), 0).codes == []
