"""What the Blackwell pack says of symptoms: mistakes planted in the test kernels get the codes that it lists.

All faulty copies of a file are built as one submission, which an axis `copy` chooses from.
"""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

from ptxgym.knowledge import load_pack
from tests.knowledge.harness import FOLDER, TYPES, Array, bf16, codes_of, small_integers

ARCH = "b200"
Case = tuple[dict[str, Array], dict[str, tuple[type, int]], dict[str, int]]
CASES: dict[str, Case] = {
    "rows.cu": (
        {name: bf16(small_integers(seed, 128, 64)) for seed, name in enumerate("abv")},
        {"out": (np.uint16, 128 * 64), "sums": (np.float32, 128 * 32), "statistics": (np.float32, 256)},
        {},
    ),
    "pair.cu": (
        {"a": bf16(small_integers(4, 256, 192)), "b": bf16(small_integers(5, 128, 192))},
        {"out": (np.float32, 256 * 128)},
        {"slices": 3},
    ),
}
MORE = "mma_ss(tmem, descriptor_k_major<128>(a), descriptor_k_major<128>(b), instruction_bf16(128, 128), false);"
PLANTED = [
    ("rows.cu", "tmem_wait_store();\n    warp_arrive(&weights)", "warp_arrive(&weights)", "tmem.read_early"),
    ("rows.cu", "mbarrier_wait(&done, 1);", "", "tmem.read_early"),
    ("rows.cu", "mbarrier_wait(&scores, 0);", "", "tmem.uninitialised"),
    ("rows.cu", "round ? &again : &weights", "&weights", "tmem.overwrite"),
    ("rows.cu", "round > 0 || k > 0", "true", "tmem.uninitialised"),
    ("rows.cu", "round > 0 || k > 0", "false", "tmem.sums_lost"),
    ("rows.cu", "tmem + tmem_own_lanes()", "tmem", "tmem.lanes"),
    ("rows.cu", "tmem + tmem_own_lanes()", "tmem + (threadIdx.x << 16)", "tcgen05.operands_differ"),
    ("rows.cu", "kColumns = 256", "kColumns = 128", "tmem.not_allocated"),
    ("rows.cu", "kColumns = 256", "kColumns = 192", "tmem.bad_columns"),
    ("rows.cu", "if (warp == 5) tmem_dealloc(tmem, kColumns);", "", "tmem.leak"),
    ("rows.cu", "tmem_dealloc(tmem, kColumns)", "tmem_dealloc(tmem, kColumns / 2)", "tmem.bad_dealloc"),
    ("rows.cu", "__syncthreads();\n  tcgen05_fence_after();\n  if (warp == 5)", "if (warp == 5)",
     "tmem.dealloc_in_use"),
    ("rows.cu", "instruction_bf16(128, 128)", "instruction_bf16(96, 128)", "tcgen05.instruction_descriptor"),
    ("rows.cu", "tcgen05_commit(&done);\n      }", "tcgen05_commit(&done);\n      }\n" + MORE, "tcgen05.not_committed"),
    ("rows.cu", "tcgen05_commit(&scores);", "", "emulator.deadlock"),
    ("rows.cu", "tcgen05_fence_after();\n    tmem_load", "tmem_load", "tcgen05.missing_fence"),
    ("rows.cu", "tmem_load(own + kScores, s[0]);", "if (row % 32) tmem_load(own + kScores, s[0]);",
     "sync.divergent_collective"),
    ("rows.cu", "descriptor_k_major<128>(a)", "(descriptor_k_major<128>(a) & ~(1ull << 46))", "descriptor.version"),
    ("rows.cu", "descriptor_k_major<128>(a)", "descriptor_k_major<64>(a)", "descriptor.swizzle_mismatch"),
    ("rows.cu", "3 * kRows * 128", "2 * kRows * 128", "async.read_early"),
    ("rows.cu", "3 * kRows * 128", "4 * kRows * 128", "emulator.deadlock"),
    ("rows.cu", "mbarrier_init(&weights, 4)", "mbarrier_init(&weights, 3)", "tmem.read_early"),
    ("rows.cu", "async_proxy_fence();", "", "proxy.missing_fence"),
    ("rows.cu", "named_barrier_sync(1, 128);", "", "smem.race"),
    ("pair.cu", "tcgen05_commit_multicast(&done, kBoth)", "tcgen05_commit_multicast(&done, 0b01)",
     "tcgen05.commit_unseen"),
    ("pair.cu", "tcgen05_commit_multicast(&done, kBoth)", "tcgen05_commit_multicast(&done, 0b111)", "cluster.bad_mask"),
    ("pair.cu", "__cluster_dims__(2, 1, 1) __launch_bounds__(192)", "__launch_bounds__(192)", "tcgen05.no_pair"),
    ("pair.cu", "tcgen05_commit_multicast(&empty[ring.slot], kBoth)",
     "mbarrier_arrive_at(&empty[ring.slot], 0), mbarrier_arrive_at(&empty[ring.slot], 1)", "async.overwrite"),
    ("pair.cu", "2 * (sizeof(a[0]) + sizeof(b[0]))", "sizeof(a[0]) + sizeof(b[0])", "async.read_early"),
]  # fmt: skip


@pytest.fixture(scope="module")
def copies(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A file for each case: the kernel as it is (copy 0), and with the mistakes of `PLANTED`, in order."""
    paths = {file: tmp_path_factory.mktemp("copies") / file for file in CASES}
    for file, path in paths.items():
        path.write_text(_copies(file))
    return paths


def _copies(file: str) -> str:
    inputs, outputs, axes = CASES[file]
    own = (FOLDER / ARCH / file).read_text()
    texts = [own, *(own.replace(right, wrong, 1) for name, right, wrong, _ in PLANTED if name == file)]
    assert len(set(texts)) == len(texts), "an edit changes nothing, or two do the same"
    pointers = [f"const {TYPES[array.dtype]}* {name}" for name, array in inputs.items()]
    pointers += [f"{TYPES[np.dtype(kind)]}* {name}" for name, (kind, _) in outputs.items()]
    parameters = ", ".join([*pointers, *(f"int {axis}" for axis in (*axes, "copy")), "cudaStream_t stream"])
    given = ", ".join([*inputs, *outputs, *axes, "stream"])
    inner = [text.replace('extern "C" void run', "void run") for text in texts]
    spaces = [f"namespace copy_{i} {{\n{text}\n}}" for i, text in enumerate(inner)]
    calls = "".join(f"if (copy == {i}) copy_{i}::run({given});\n" for i in range(len(texts)))
    return "\n".join([*spaces, f'extern "C" void run({parameters}) {{\n{calls}}}\n'])


def _codes(copies: dict[str, Path], file: str, copy: int) -> set[str]:
    inputs, outputs, axes = CASES[file]
    return codes_of(ARCH, str(copies[file]), inputs=inputs, outputs=outputs, axes={**axes, "copy": copy})


@pytest.mark.parametrize("file", CASES)
def test_kernels_as_they_are_have_no_findings(copies: dict[str, Path], file: str) -> None:
    assert _codes(copies, file, 0) == set()


@pytest.mark.parametrize("mistake", PLANTED, ids=[f"{code}: {wrong or right}" for _, right, wrong, code in PLANTED])
def test_mistakes_are_found_under_the_codes_of_the_pack(
    copies: dict[str, Path], mistake: tuple[str, str, str, str]
) -> None:
    file, _, _, code = mistake
    copy = 1 + [planted for planted in PLANTED if planted[0] == file].index(mistake)
    assert code in _codes(copies, file, copy)
    assert code in re.findall(r"`([\w.]+)`", load_pack(ARCH).read("debugging.md"))
