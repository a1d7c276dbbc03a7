"""The other spellings of barriers, group copies and warp instructions do what the PTX ISA says, worked out by hand."""

from __future__ import annotations

import numpy as np
import pytest

from tests.device.emulator.tensor.harness import Kernels, Run, succeeded
from tests.gpu.cases import Case, form_cases

CASES = {case.name: case for case in form_cases()}


def ran(kernels: Kernels, name: str) -> tuple[Case, Run, np.ndarray]:
    case = CASES[f"form/{name}"]
    run = kernels.run(case)
    assert succeeded(run) and not run.codes(severity=2)
    return case, run, run.output.view(np.uint32)


def test_group_copies_arrive_group_by_group(conformance: Kernels) -> None:
    case, run, _ = ran(conformance, "cp_async_groups")
    np.testing.assert_array_equal(run.output[512:], np.frombuffer(case.input, np.uint8))
    np.testing.assert_array_equal(run.output[:512], np.frombuffer(case.input, np.uint8)[:512])


def test_mbarrier_counts_and_phases(conformance: Kernels) -> None:
    """PTX ISA 9.7.13.15: two arrivals, then with bytes, then fewer and fewer arrivals."""
    _, _, seen = ran(conformance, "mbarrier")
    first = [2, 0, 1, 1, 1, 1, 1, 0]  # pending before an arrival; the phase completes with the second
    second = [2, 1, 0, 0, 1]  # all arrived but 64 bytes missing; complete
    dropped = [2, 0, 1, 0, 1, 1, 1, 0]  # one arrival and 16 bytes missing; then the bytes; then the arrival
    last = [5, 3, 1, 1, 0, 2, 0, 1]  # five, of which three are dropped: two complete the phase after
    known = [*first, *second, *dropped, *last]
    assert seen[: len(known)].tolist() == known
    assert (seen[len(known) :] == 0xEEEEEEEE).all()


@pytest.mark.parametrize(("name", "bits"), [("all", 1), ("none", 0)])
def test_barriers_reduce_over_all_threads(conformance: Kernels, name: str, bits: int) -> None:
    _, _, seen = ran(conformance, f"barrier/{name}")
    rows = seen.reshape(128, 6)
    assert (rows[:, 0] == 128 * bits).all() and (rows[:, 3] == 128 * bits).all()
    assert (rows[:, 1] == bits).all() and (rows[:, 4] == bits).all()
    assert (rows[:, 2] == 1 - bits).all()  # its predicate is negated
    assert (rows[:96, 5] == bits).all() and (rows[96:, 5] == bits | 0xA5A5 << 8).all()


def test_the_lowest_lane_is_elected_and_all_others_are_active(conformance: Kernels) -> None:
    _, _, seen = ran(conformance, "warp")
    rows = seen.reshape(32, 8)
    assert (rows[5:, 4] == 5).all() and rows[5, 5] == 1 and not rows[6:, 5].any()
    assert (rows[5:, 6] == 0xFFFFFFE0).all()


@pytest.mark.parametrize(("kernel", "signed"), [("mma_s8_m8", np.int8), ("mma_su8_m8", np.uint8)])
def test_mma_of_eight_rows(conformance: Kernels, kernel: str, signed: type[np.generic]) -> None:
    """PTX ISA 9.7.14.5.9: lane l holds A[l / 4, 4 (l % 4) …], B alike by columns, C[l / 4, 2 (l % 4) …]."""
    case, _, seen = ran(conformance, kernel)
    words = np.frombuffer(case.input, np.uint32).reshape(32, 4)
    a = words[:, 0].copy().view(np.int8).reshape(8, 16).astype(np.int64)
    b = words[:, 1].copy().view(signed).reshape(8, 16).astype(np.int64)
    c = words[:, 2:].copy().view(np.int32).reshape(8, 8).astype(np.int64)
    np.testing.assert_array_equal(seen.reshape(8, 8), ((c + a @ b.T) & 0xFFFFFFFF).astype(np.uint32))
