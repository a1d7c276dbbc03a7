"""Every template function of the Blackwell pack, executed on the emulator and compared with numpy."""

from __future__ import annotations

import numpy as np
import pytest

from tests.knowledge.harness import Ran, as_float, bf16, run, small_integers

ARCH = "b200"
N_OF = {0: 256, 1: 128, 2: 64, 3: 64, 4: 64, 5: 32, 6: 64, 7: 96, 8: 128, 9: 256}
A_MN, B_MN = {2, 4, 6}, {1, 4, 6, 9}
SHAPES = [(m, which) for m in (64, 128) for which in range(8)] + [(128, which) for which in (8, 9)]


def executed(ran: Ran, form: str) -> int:
    """How often warps executed instructions whose PTX begins with `form`."""
    assert ran.execution is not None
    return sum(count.warp for count in ran.execution.counts if count.form.startswith(form))


@pytest.mark.parametrize(("m", "which"), SHAPES)
def test_products_in_every_major_swizzle_and_source(m: int, which: int) -> None:
    n = N_OF[which]
    a, b = small_integers(1, m, 64), small_integers(2, n, 64)
    given = {"a": bf16(a.T if which in A_MN else a), "b": bf16(b.T if which in B_MN else b)}
    ran = run(ARCH, "mma.cu", inputs=given, outputs={"out": (np.float32, m * n)}, axes={"m": m, "which": which})
    np.testing.assert_array_equal(ran.outputs["out"].reshape(m, n), a @ b.T)
    assert executed(ran, "tcgen05.mma.cta_group::1") == 4


@pytest.mark.parametrize("which", range(8))
def test_cells_are_stored_loaded_and_turned_into_fragments(which: int) -> None:
    given = np.random.default_rng(3).normal(size=(128, 64)).astype(np.float32)
    outputs = {"out": (np.float32, given.size), "rows": (np.uint16, 32 * 32)}
    ran = run(ARCH, "tmem.cu", inputs={"in": given}, outputs=outputs, axes={"which": which})
    np.testing.assert_array_equal(ran.outputs["out"].reshape(128, 64), given + np.float32(1))
    lines = given.reshape(-1)[: 32 * 32].reshape(32, 32)
    np.testing.assert_array_equal(ran.outputs["rows"].reshape(32, 32), bf16(lines))


def test_rows_are_masked_weighed_rescaled_and_stored() -> None:
    a, b, v = small_integers(4, 128, 64), small_integers(5, 128, 64), small_integers(6, 128, 64) / 4
    ran = run(
        ARCH,
        "rows.cu",
        inputs={"a": bf16(a), "b": bf16(b), "v": bf16(v)},
        outputs={"out": (np.uint16, 128 * 64), "sums": (np.float32, 128 * 32), "statistics": (np.float32, 256)},
        axes={},
    )
    scores = np.where(np.tri(128, dtype=bool), a.astype(np.float64) @ b.T, -np.inf)
    maximum = scores.max(axis=1)
    powers = np.exp2(0.125 * (scores - maximum[:, None]))
    statistics = ran.outputs["statistics"].reshape(128, 2)
    np.testing.assert_array_equal(statistics[:, 0], maximum)
    np.testing.assert_allclose(statistics[:, 1], powers.sum(axis=1), rtol=1e-5)
    sums = 1.5 * (powers @ v)  # half of the first round, and the second
    np.testing.assert_allclose(ran.outputs["sums"].reshape(128, 32), 2 * sums[:, 32:], atol=0.02, rtol=0.01)
    expected = sums / powers.sum(axis=1)[:, None]
    np.testing.assert_allclose(as_float(ran.outputs["out"]).reshape(128, 64), expected, atol=0.02, rtol=0.01)


@pytest.mark.parametrize("slices", [1, 2, 5])
def test_pair_shares_a_product(slices: int) -> None:
    a, b = small_integers(7, 256, 64 * slices), small_integers(8, 128, 64 * slices)
    outputs = {"out": (np.float32, 256 * 128)}
    ran = run(ARCH, "pair.cu", inputs={"a": bf16(a), "b": bf16(b)}, outputs=outputs, axes={"slices": slices})
    np.testing.assert_array_equal(ran.outputs["out"].reshape(256, 128), a @ b.T)
    assert executed(ran, "tcgen05.mma.cta_group::2") == 4 * slices


def test_pair_takes_a_from_tensor_memory() -> None:
    a, b = small_integers(9, 256, 16), small_integers(10, 16, 128)
    outputs = {"out": (np.float32, 256 * 128)}
    ran = run(ARCH, "pair.cu", inputs={"a": bf16(a), "b": bf16(b)}, outputs=outputs, axes={"slices": 0})
    np.testing.assert_array_equal(ran.outputs["out"].reshape(256, 128), a @ b)


def test_commits_tell_both_ctas_of_a_cluster() -> None:
    a, b = small_integers(11, 256, 64), small_integers(12, 64, 64)
    outputs = {"out": (np.float32, 256 * 64)}
    ran = run(ARCH, "pair.cu", inputs={"a": bf16(a), "b": bf16(b)}, outputs=outputs, axes={"slices": -1})
    np.testing.assert_array_equal(ran.outputs["out"].reshape(256, 64), a @ b.T)
    assert executed(ran, "tcgen05.commit.cta_group::1") == 2
