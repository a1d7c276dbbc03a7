"""What a worker sees of sampled CTAs: which instructions reach global memory, and which bytes were written to."""

from __future__ import annotations

import numpy as np
import pytest

from ptxgym.device.emulator.sample import _touched, loads_globally, stores_globally

STORES = (
    "st.global.b32", "st.b32", "red.global.add.f32", "wmma.store.d.sync.aligned.row.m16n16k16.global.f32",
    "wmma.store.d.sync.aligned.row.m16n16k16.f32", "cp.async.bulk.tensor.2d.global.shared::cta.tile.bulk_group",
    "cp.reduce.async.bulk.global.shared::cta.bulk_group.add.f32", "tensormap.replace.tile.rank.global.b1024.b32",
    "tensormap.cp_fenceproxy.global.shared::cta.tensormap::generic.release.gpu.sync.aligned",
)  # fmt: skip
LOADS = (
    "ld.global.nc.b32", "ld.b32", "wmma.load.a.sync.aligned.row.m16n16k16.global.bf16", "cp.async.ca.shared.global",
    "cp.async.bulk.shared::cta.global.mbarrier::complete_tx::bytes",
    "cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes",
)  # fmt: skip
BOTH = ("atom.global.add.u32", "tensormap.replace.tile.rank.b1024.b32")
NEITHER = (
    "st.shared.b32", "st.local.b32", "st.param.b32", "ld.param.b64", "ld.const.b32", "ld.shared.b32",
    "stmatrix.sync.aligned.m8n8.x4.shared.b16", "wmma.store.d.sync.aligned.row.m16n16k16.shared.f32",
    "wmma.load.a.sync.aligned.row.m16n16k16.shared::cta.f16", "cp.async.commit_group", "cp.async.bulk.wait_group.read",
    "cp.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes", "cp.async.bulk.prefetch.L2.global",
    "tensormap.replace.tile.rank.shared::cta.b1024.b32", "atom.shared.add.u32", "wmma.mma.sync.aligned.row.col",
)  # fmt: skip


def test_which_instructions_reach_global_memory() -> None:
    for form in (*STORES, *LOADS, *BOTH, *NEITHER):
        assert stores_globally(form) == (form in (*STORES, *BOTH)), form
    for form in (*LOADS, *BOTH, *NEITHER, *(form for form in STORES if not form.startswith("tensormap.replace"))):
        assert loads_globally(form) == (form in (*LOADS, *BOTH)), form


@pytest.mark.parametrize("size", [1, 4096, 100_003, 1 << 30])
def test_written_bytes_are_found_wherever_they_lie(size: int) -> None:
    data = np.zeros(size, np.uint8)
    assert sum(int(np.count_nonzero(part)) for _, part in _touched(data)) == 0
    written = sorted({0, size // 3, size // 2, size - 1})
    data[written] = 1
    found = [start + int(at) for start, part in _touched(data) for at in np.flatnonzero(part)]
    assert found == written
    assert sum(part.size for _, part in _touched(data)) <= max(size, 16 << 20)
