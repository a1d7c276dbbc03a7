"""Every template function of the Hopper pack, executed on the emulator and compared with numpy."""

from __future__ import annotations

import numpy as np
import pytest

from tests.knowledge.harness import as_float, bf16, run, small_integers

ARCH = "h100"
LOAD_128, LOAD_64, LOAD_32, LOAD_PLANES, STORE, ADD, BF16 = range(7)


@pytest.mark.parametrize("lines", [1, 3, 8])
def test_ring_with_barriers_and_registers_that_change_hands(lines: int) -> None:
    given = small_integers(1, lines, 128)
    ran = run(
        ARCH, "barriers.cu", inputs={"in": given}, outputs={"out": (np.float32, given.size)}, axes={"lines": lines}
    )
    np.testing.assert_array_equal(ran.outputs["out"].reshape(lines, 128), 2 * given[:, ::-1])
    assert ran.executed("setmaxnreg") == 8


def test_named_barriers_order_both_ways() -> None:
    given = small_integers(2, 64)
    ran = run(ARCH, "barriers.cu", inputs={"in": given}, outputs={"out": (np.float32, 64)}, axes={"lines": 0})
    np.testing.assert_array_equal(ran.outputs["out"], given[::-1] + 1)


def tma(which: int, given: np.ndarray, count: int, rows: int, columns: int, x: int, y: int) -> np.ndarray:
    axes = {"which": which, "rows": rows, "columns": columns, "x": x, "y": y}
    return run(ARCH, "tma.cu", inputs={"in": given}, outputs={"out": (np.float32, count)}, axes=axes).outputs["out"]


@pytest.mark.parametrize(("which", "width"), [(LOAD_128, 32), (LOAD_64, 16), (LOAD_32, 8)])
@pytest.mark.parametrize(("x", "y"), [(0, 0), (4, 8), (36, 30), (-4, -3)])
def test_boxes_arrive_swizzled_and_filled_with_zeros(which: int, width: int, x: int, y: int) -> None:
    tensor = np.random.default_rng(3).normal(size=(40, 48)).astype(np.float32)
    padded = np.pad(tensor, 64)
    got = tma(which, tensor, 24 * width, 40, 48, x, y)
    np.testing.assert_array_equal(got.reshape(24, width), padded[64 + y : 88 + y, 64 + x : 64 + x + width])


def test_rows_beyond_a_plane_are_zeros_and_not_the_next_plane() -> None:
    tensor = np.random.default_rng(4).normal(size=(3, 20, 16)).astype(np.float32)
    got = tma(LOAD_PLANES, tensor, 128, 60, 16, 4, 15).reshape(2, 8, 8)
    np.testing.assert_array_equal(got[:, :5], tensor[1:3, 15:20, 4:12])
    assert not got[:, 5:].any()


def test_bf16_map_moves_one_span_a_row() -> None:
    tensor = bf16(np.random.default_rng(5).normal(size=(32, 128)))
    got = tma(BF16, tensor.reshape(-1).view(np.float32), 24 * 64, 32, 128, 64, 8)
    np.testing.assert_array_equal(got.reshape(24, 64), as_float(tensor)[8:32, 64:])


def test_stores_leave_what_lies_outside_alone() -> None:
    boxes = small_integers(6, 2, 24, 32)
    got = tma(STORE, boxes, 40 * 48, 40, 48, 24, 4).reshape(40, 48)
    expected = np.zeros((40, 48), np.float32)
    expected[4:40, 24:48] = boxes.reshape(48, 32)[:36, :24]
    np.testing.assert_array_equal(got, expected)


def test_additions_of_two_ctas_meet() -> None:
    boxes = small_integers(7, 2, 24, 32)
    got = tma(ADD, boxes, 40 * 48, 40, 48, 8, 0).reshape(40, 48)
    expected = np.zeros((40, 48), np.float32)
    for part in range(2):
        expected[8 * part : 8 * part + 24, 8:40] += 2 * boxes[part]
    np.testing.assert_array_equal(got, expected)


SHAPES = [(n, which) for n in (64, 96, 128, 256) for which in range(5)] + [(64, which) for which in range(5, 9)]
A_MN, B_MN = {2, 6, 8}, {1, 4, 6, 8}


@pytest.mark.parametrize(("n", "which"), SHAPES)
def test_products_in_every_major_swizzle_and_source(n: int, which: int) -> None:
    a, b = small_integers(8, 64, 64), small_integers(9, n, 64)
    given = {"a": bf16(a.T if which in A_MN else a), "b": bf16(b.T if which in B_MN else b)}
    outputs = {"out": (np.float32, 64 * n)}
    ran = run(ARCH, "wgmma.cu", inputs=given, outputs=outputs, axes={"n": n, "which": which})
    np.testing.assert_array_equal(ran.outputs["out"].reshape(64, n), a @ b.T)
    assert ran.executed(f"wgmma.mma_async.sync.aligned.m64n{n}k16") == 4 * 4


def test_sums_become_operands_rows_are_reduced_and_boxes_stored() -> None:
    a, b, v = small_integers(10, 64, 64), small_integers(11, 64, 64), small_integers(12, 64, 128) / 4
    x = np.random.default_rng(13).uniform(-20, 20, 256).astype(np.float32)
    ran = run(
        ARCH,
        "epilogue.cu",
        inputs={"a": bf16(a), "b": bf16(b), "v": bf16(v), "x": x},
        outputs={
            "out": (np.uint16, 64 * 128),
            "extremes": (np.float32, 128),
            "y": (np.float32, 256),
            "z": (np.float32, 256),
        },
        axes={},
    )
    scores = a.astype(np.float64) @ b.T
    extremes = ran.outputs["extremes"].reshape(64, 2)
    np.testing.assert_array_equal(extremes[:, 0], scores.max(axis=1))
    np.testing.assert_array_equal(extremes[:, 1], scores.sum(axis=1))
    expected = as_float(bf16(scores)).astype(np.float64) @ v
    np.testing.assert_array_equal(ran.outputs["out"].reshape(64, 128), bf16(expected))
    np.testing.assert_allclose(ran.outputs["y"], np.exp2(x.astype(np.float64)), rtol=1e-6)
    np.testing.assert_array_equal(ran.outputs["z"], as_float(bf16(x)))


@pytest.mark.parametrize("count", [1, 2, 5])
def test_ctas_of_a_cluster_reach_and_feed_each_other(count: int) -> None:
    given, boxes = small_integers(14, 2, 32), small_integers(15, 64, 64 * count)
    ran = run(
        ARCH,
        "cluster.cu",
        inputs={"in": given, "boxes": bf16(boxes)},
        outputs={"out": (np.float32, 128), "sums": (np.float32, 2 * 64 * 64)},
        axes={"count": count},
    )
    out = ran.outputs["out"].reshape(2, 2, 32)
    np.testing.assert_array_equal(out[:, 0], 10 * given[::-1])
    np.testing.assert_array_equal(out[:, 1], given[::-1, ::-1])
    total = boxes.reshape(64, count, 64).sum(axis=1)
    np.testing.assert_array_equal(ran.outputs["sums"].reshape(2, 64, 64), np.stack([total, total]))
