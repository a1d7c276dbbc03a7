"""Cases of barriers and prefetches by other names against what each step must show, whatever a GPU has recorded."""

from __future__ import annotations

import numpy as np
import pytest

from tests.device.emulator.tensor.harness import SCHEDULES, Kernels, succeeded
from tests.gpu.cases import product_cases, spelling_cases
from tests.gpu.cases.spellings import SHAPES, SHARED, STEPS

CASES = {case.name.partition("/")[2]: case for case in spelling_cases()}


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_steps_show_pending_arrivals_and_phases(conformance: Kernels, schedule: str) -> None:
    run = conformance.run(CASES["mbarrier"], schedule)
    assert succeeded(run) and not run.codes(severity=1), run.records
    want = [shows for _, shows in STEPS if shows >= 0]
    assert run.output.view(np.uint32)[: len(want)].tolist() == want


@pytest.mark.parametrize("rank", SHAPES)
def test_prefetched_data_is_what_it_was(conformance: Kernels, rank: int) -> None:
    case = CASES[f"prefetch/{rank}d"]
    run = conformance.run(case)
    assert succeeded(run) and not run.codes(severity=1), run.records
    assert run.output.tobytes() == case.input[: case.out_bytes]


@pytest.mark.parametrize("name", SHARED)
def test_matrices_in_shared_memory_give_what_those_in_global_memory_give(conformance: Kernels, name: str) -> None:
    """An H200 has said what that is (`test_golden.py`)."""
    twin, case = next(c for c in product_cases() if c.name == f"wmma/{name}"), CASES[f"wmma/{name}"]
    run, other = conformance.run(case), conformance.run(twin)
    assert succeeded(run) and not run.codes(severity=1), run.records
    assert ".shared::cta." in case.ptx and ".shared" not in twin.ptx
    np.testing.assert_array_equal(run.output, other.output)
