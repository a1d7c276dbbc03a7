"""The template functions that only Hopper has, executed on the emulator and compared with numpy."""

from __future__ import annotations

import numpy as np
import pytest

from tests.knowledge.harness import as_float, bf16, run, small_integers

ARCH = "h100"

SHAPES = (
    [(n, which) for n in (64, 96, 128, 256) for which in range(5)]
    + [(64, which) for which in range(5, 9)]
    + [(96, 9), (96, 10)]
)
A_MN, B_MN = {2, 6, 8}, {1, 4, 6, 8, 10}


@pytest.mark.parametrize(("n", "which"), SHAPES)
def test_products_in_every_major_swizzle_and_source(n: int, which: int) -> None:
    a, b = small_integers(8, 64, 64), small_integers(9, n, 64)
    given = {"a": bf16(a.T if which in A_MN else a), "b": bf16(b.T if which in B_MN else b)}
    outputs = {"out": (np.float32, 64 * n)}
    ran = run(ARCH, "wgmma.cu", inputs=given, outputs=outputs, axes={"n": n, "which": which})
    np.testing.assert_array_equal(ran.outputs["out"].reshape(64, n), a @ b.T)
    assert ran.executed(f"wgmma.mma_async.sync.aligned.m64n{n}k16", 4 * 4)


def test_sums_become_operands_rows_are_reduced_and_boxes_stored() -> None:
    a, b, v = small_integers(10, 64, 64), small_integers(11, 64, 64), small_integers(12, 64, 128) / 4
    ran = run(
        ARCH,
        "epilogue.cu",
        inputs={"a": bf16(a), "b": bf16(b), "v": bf16(v)},
        outputs={
            "out": (np.uint16, 64 * 128),
            "extremes": (np.float32, 128),
        },
        axes={},
    )
    scores = a.astype(np.float64) @ b.T
    extremes = ran.outputs["extremes"].reshape(64, 2)
    np.testing.assert_array_equal(extremes[:, 0], scores.max(axis=1))
    np.testing.assert_array_equal(extremes[:, 1], scores.sum(axis=1))
    expected = as_float(bf16(scores)).astype(np.float64) @ v
    np.testing.assert_array_equal(ran.outputs["out"].reshape(64, 128), bf16(expected))
