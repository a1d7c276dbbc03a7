"""What the Hopper pack says of symptoms: mistakes planted in kernels are found under the codes that it lists."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

from ptxgym.knowledge import load_pack
from tests.knowledge.harness import FOLDER, Array, bf16, codes_of, small_integers

ARCH = "h100"
GEMM, EPILOGUE, CLUSTER = "h100/recipe_gemm.cu", "h100/epilogue.cu", "common/cluster.cu"
Case = tuple[dict[str, Array], dict[str, tuple[type, int]], dict[str, int]]
CASES: dict[str, Case] = {
    GEMM: (
        {"A": bf16(small_integers(1, 128, 576)), "B": bf16(small_integers(2, 256, 576))},
        {"C": (np.uint16, 128 * 256)},
        {"M": 128, "N": 256, "K": 576},
    ),
    EPILOGUE: (
        {name: bf16(small_integers(seed, 64, 128 if name == "v" else 64)) for seed, name in enumerate("abv")},
        {"out": (np.uint16, 64 * 128), "extremes": (np.float32, 128)},
        {},
    ),
    CLUSTER: (
        {"in": small_integers(3, 2, 32), "boxes": bf16(small_integers(4, 64, 64))},
        {"out": (np.float32, 128), "sums": (np.float32, 2 * 64 * 64)},
        {"count": 1},
    ),
}
WRONG_MAP = """tensor_map<2>(CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, A, {cuuint64_t(K), cuuint64_t(M)}, {cuuint64_t(K)},
              {64, kM}, CU_TENSOR_MAP_SWIZZLE_128B)"""
PLANTED = [
    (GEMM, "mbarrier_wait(&tiles.full[ring.slot], ring.parity);", "", "async.read_early"),
    (GEMM, "wgmma_wait<1>(sums);", "", "async.overwrite"),
    (GEMM, "if (issues) tma_wait_read<1>();", "", "async.overwrite"),
    (GEMM, "async_proxy_fence();", "", "proxy.missing_fence"),
    (GEMM, "wgmma_commit();", "", "wgmma.not_committed"),
    (GEMM, "wgmma_wait<0>(sums);", "", "wgmma.register_in_flight"),
    (EPILOGUE, "wgmma_fence();\n#pragma unroll\n  for (int k = 0; k < 64; k += 16) {\n    wgmma_rs",
     "#pragma unroll\n  for (int k = 0; k < 64; k += 16) {\n    wgmma_rs", "wgmma.missing_fence"),
    (GEMM, "slice > 0 || step > 0", "1", "wgmma.uninitialised"),
    (GEMM, "wgmma_fence();", "if (threadIdx.x % 32 != 5) wgmma_fence();", "sync.divergent_collective"),
    (GEMM, "wgmma_fence();", "if (threadIdx.x % 32 == 5) return;\n wgmma_fence();", "wgmma.partial_warp"),
    (GEMM, "consumer * 64 * kK);\n        const uint64_t b", "threadIdx.x / 32 % 4 * 64);\n        const uint64_t b",
     "wgmma.operands_differ"),
    (GEMM, "384, kBytes, stream", "352, kBytes, stream", "wgmma.incomplete_warpgroup"),
    (GEMM, "descriptor_k_major<128>(tiles.b", "descriptor_k_major<64>(tiles.b", "descriptor.swizzle_mismatch"),
    (GEMM, "(-smem_address(memory) & 1023)", "(-smem_address(memory) & 1023) + 128", "tma.swizzle_base"),
    (GEMM, "slice * kK, place.n", "(slice + 9) * kK, place.n", "tma.box_outside"),
    (GEMM, "bf16_map(A, M, K, kM)", WRONG_MAP, "tma.overlapping_rows"),
    (GEMM, "mbarrier_init_fence();", "", "mbarrier.init_not_visible"),
    (GEMM, "(full, kStageBytes)", "(full, kStageBytes / 2)", "mbarrier.tx_overflow"),
    (GEMM, "(full, kStageBytes)", "(full, kStageBytes + 16)", "emulator.deadlock"),
    (GEMM, "ring.parity ^ 1", "ring.parity", "emulator.deadlock"),
    (GEMM, "mbarrier_init(&tiles.empty[slot], 2)", "mbarrier_init(&tiles.empty[slot], 3)", "emulator.deadlock"),
    (GEMM, "if (threadIdx.x != 0) return;", "if (threadIdx.x >= 32) return;", "mbarrier.over_arrival"),
    (GEMM, "if (slice > 0 && issues) mbarrier_arrive", "if (slice > 0) mbarrier_arrive", "mbarrier.phase_skipped"),
    (GEMM, "async_proxy_fence();\n        named_barrier_sync(1 + consumer, 128);", "async_proxy_fence();", "smem.race"),
    (GEMM, "named_barrier_sync(1 + consumer, 128);", "__syncthreads();", "barrier.divergent"),
    (GEMM, "named_barrier_sync(1 + consumer, 128);", "named_barrier_sync(1, 128 + 128 * consumer);",
     "barrier.count_mismatch"),
    (GEMM, "tma_commit();", "", "bulk.not_committed"),
    (GEMM, "if (issues) tma_wait<0>();", "", "bulk.pending_at_exit"),
    (GEMM, "registers_grow<232>", "registers_grow<240>", "setmaxnreg.pool"),
    (CLUSTER, "cluster_sync();\n  const uint32_t other", "const uint32_t other", "cluster.not_begun"),
    (CLUSTER, "= read;\n  cluster_sync();", "= read;", "cluster.exited_cta"),
]  # fmt: skip


@pytest.mark.parametrize("file", CASES)
def test_kernels_as_they_are_have_no_findings(file: str) -> None:
    inputs, outputs, axes = CASES[file]
    assert codes_of(ARCH, str(FOLDER / file), inputs=inputs, outputs=outputs, axes=axes) == set()


@pytest.mark.parametrize(
    ("file", "right", "wrong", "code"), PLANTED, ids=[f"{c}-{i}" for i, (*_, c) in enumerate(PLANTED)]
)
def test_mistakes_are_found_under_the_codes_of_the_pack(
    file: str, right: str, wrong: str, code: str, tmp_path: Path
) -> None:
    text = (FOLDER / file).read_text()
    assert right in text
    source = tmp_path / Path(file).name
    source.write_text(text.replace(right, wrong, 1))
    inputs, outputs, axes = CASES[file]
    assert code in codes_of(ARCH, str(source), inputs=inputs, outputs=outputs, axes=axes)
    assert code in re.findall(r"`([\w.]+)`", load_pack(ARCH).read("debugging.md"))
