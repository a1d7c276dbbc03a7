"""Template functions of the Hopper pack on a Hopper GPU: the emulator's tests once more.

pytest -m gpu tests/gpu/test_knowledge.py
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from ptxgym.device.cuda.gpu import Gpu
from ptxgym.evaluator import Evaluator
from tests.knowledge import harness
from tests.knowledge.test_common import (
    test_additions_of_two_ctas_meet,
    test_bf16_map_moves_one_span_a_row,
    test_boxes_arrive_swizzled_and_filled_with_zeros,
    test_ctas_of_a_cluster_reach_and_feed_each_other,
    test_named_barriers_order_both_ways,
    test_powers_of_two_and_matrices_from_registers,
    test_ring_with_barriers_and_registers_that_change_hands,
    test_rows_beyond_a_plane_are_not_written,
    test_rows_beyond_a_plane_are_zeros_and_not_the_next_plane,
    test_stores_leave_what_lies_outside_alone,
)
from tests.knowledge.test_h100 import (
    test_products_in_every_major_swizzle_and_source,
    test_sums_become_operands_rows_are_reduced_and_boxes_stored,
)
from tests.knowledge.test_recipes import test_kernel_by_the_recipe_is_right_on_target_and_clean

pytestmark = [pytest.mark.gpu, pytest.mark.filterwarnings("default")]
__all__ = [
    "test_additions_of_two_ctas_meet",
    "test_bf16_map_moves_one_span_a_row",
    "test_boxes_arrive_swizzled_and_filled_with_zeros",
    "test_ctas_of_a_cluster_reach_and_feed_each_other",
    "test_kernel_by_the_recipe_is_right_on_target_and_clean",
    "test_named_barriers_order_both_ways",
    "test_powers_of_two_and_matrices_from_registers",
    "test_products_in_every_major_swizzle_and_source",
    "test_ring_with_barriers_and_registers_that_change_hands",
    "test_rows_beyond_a_plane_are_not_written",
    "test_rows_beyond_a_plane_are_zeros_and_not_the_next_plane",
    "test_stores_leave_what_lies_outside_alone",
    "test_sums_become_operands_rows_are_reduced_and_boxes_stored",
]


@pytest.fixture
def arch() -> str:
    return "h100"


@pytest.fixture(scope="module")
def evaluator() -> Iterator[Evaluator]:
    with Evaluator("cuda", tier="rl") as shared:
        yield shared


@pytest.fixture(autouse=True)
def on_gpu(gpu: Gpu, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(harness, "GPU", gpu)
