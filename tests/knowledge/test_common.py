"""The template functions that Hopper and Blackwell share, executed on the emulator for both, compared with numpy."""

from __future__ import annotations

import numpy as np
import pytest

from tests.knowledge.harness import as_float, bf16, run, small_integers

pytestmark = pytest.mark.parametrize("arch", ["h100", "b200"])

LOAD_128, LOAD_64, LOAD_32, LOAD_PLANES, STORE, ADD, BF16, STORE_PLANES = range(8)


@pytest.mark.parametrize("lines", [1, 3, 8])
def test_ring_with_barriers_and_registers_that_change_hands(arch: str, lines: int) -> None:
    given = small_integers(1, lines, 128)
    ran = run(
        arch, "barriers.cu", inputs={"in": given}, outputs={"out": (np.float32, given.size)}, axes={"lines": lines}
    )
    np.testing.assert_array_equal(ran.outputs["out"].reshape(lines, 128), 2 * given[:, ::-1])
    assert ran.executed("setmaxnreg", 8)


def test_named_barriers_order_both_ways(arch: str) -> None:
    given = small_integers(2, 64)
    ran = run(arch, "barriers.cu", inputs={"in": given}, outputs={"out": (np.float32, 64)}, axes={"lines": 0})
    np.testing.assert_array_equal(ran.outputs["out"], given[::-1] + 1)


def tma(arch: str, which: int, given: np.ndarray, count: int, rows: int, columns: int, x: int, y: int) -> np.ndarray:
    axes = {"which": which, "rows": rows, "columns": columns, "x": x, "y": y}
    return run(arch, "tma.cu", inputs={"in": given}, outputs={"out": (np.float32, count)}, axes=axes).outputs["out"]


@pytest.mark.parametrize(("which", "width"), [(LOAD_128, 32), (LOAD_64, 16), (LOAD_32, 8)])
@pytest.mark.parametrize(("x", "y"), [(0, 0), (4, 8), (36, 30), (-4, -3)])
def test_boxes_arrive_swizzled_and_filled_with_zeros(arch: str, which: int, width: int, x: int, y: int) -> None:
    tensor = np.random.default_rng(3).normal(size=(40, 48)).astype(np.float32)
    padded = np.pad(tensor, 64)
    got = tma(arch, which, tensor, 24 * width, 40, 48, x, y)
    np.testing.assert_array_equal(got.reshape(24, width), padded[64 + y : 88 + y, 64 + x : 64 + x + width])


def test_rows_beyond_a_plane_are_zeros_and_not_the_next_plane(arch: str) -> None:
    tensor = np.random.default_rng(4).normal(size=(3, 20, 16)).astype(np.float32)
    got = tma(arch, LOAD_PLANES, tensor, 128, 60, 16, 4, 15).reshape(2, 8, 8)
    np.testing.assert_array_equal(got[:, :5], tensor[1:3, 15:20, 4:12])
    assert not got[:, 5:].any()


def test_rows_beyond_a_plane_are_not_written(arch: str) -> None:
    boxes = np.random.default_rng(14).normal(size=(2, 8, 8)).astype(np.float32)
    got = tma(arch, STORE_PLANES, boxes, 60 * 16, 60, 16, 4, 15).reshape(3, 20, 16)
    expected = np.zeros((3, 20, 16), np.float32)
    expected[1:3, 15:20, 4:12] = boxes[:, :5]
    np.testing.assert_array_equal(got, expected)


def test_bf16_map_moves_one_span_a_row(arch: str) -> None:
    tensor = bf16(np.random.default_rng(5).normal(size=(32, 128)))
    got = tma(arch, BF16, tensor.reshape(-1).view(np.float32), 24 * 64, 32, 128, 64, 8)
    np.testing.assert_array_equal(got.reshape(24, 64), as_float(tensor)[8:32, 64:])


def test_stores_leave_what_lies_outside_alone(arch: str) -> None:
    boxes = small_integers(6, 2, 24, 32)
    got = tma(arch, STORE, boxes, 40 * 48, 40, 48, 24, 4).reshape(40, 48)
    expected = np.zeros((40, 48), np.float32)
    expected[4:40, 24:48] = boxes.reshape(48, 32)[:36, :24]
    np.testing.assert_array_equal(got, expected)


def test_additions_of_two_ctas_meet(arch: str) -> None:
    boxes = small_integers(7, 2, 24, 32)
    got = tma(arch, ADD, boxes, 40 * 48, 40, 48, 8, 0).reshape(40, 48)
    expected = np.zeros((40, 48), np.float32)
    for part in range(2):
        expected[8 * part : 8 * part + 24, 8:40] += 2 * boxes[part]
    np.testing.assert_array_equal(got, expected)


@pytest.mark.parametrize("count", [1, 2, 5])
def test_ctas_of_a_cluster_reach_and_feed_each_other(arch: str, count: int) -> None:
    given, boxes = small_integers(14, 2, 32), small_integers(15, 64, 64 * count)
    ran = run(
        arch,
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


def test_powers_of_two_and_matrices_from_registers(arch: str) -> None:
    x = np.random.default_rng(13).uniform(-20, 20, 256).astype(np.float32)
    outputs = {"y": (np.float32, 256), "z": (np.float32, 256)}
    ran = run(arch, "registers.cu", inputs={"x": x}, outputs=outputs, axes={})
    np.testing.assert_allclose(ran.outputs["y"], np.exp2(x.astype(np.float64)), rtol=1e-6)
    np.testing.assert_array_equal(ran.outputs["z"], as_float(bf16(x)))
