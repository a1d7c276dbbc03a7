"""Cases of what CTAs of a cluster do to each other's memory against numpy, whatever a GPU has recorded."""

from __future__ import annotations

import numpy as np
import pytest

from tests.device.emulator.tensor.harness import Kernels
from tests.device.emulator.tensor.test_cluster_cases import combined, outputs, same
from tests.gpu.cases import exchange_cases
from tests.gpu.cases.exchanges import THREADS

CASES = {case.name: case for case in exchange_cases()}
MOVED = [name for name in CASES if "/st_async/" in name]
REDUCED = [name for name in CASES if "reduce/" in name or "red_async/" in name]


@pytest.mark.parametrize("name", MOVED)
def test_words_come_from_the_other_cta(conformance: Kernels, name: str) -> None:
    data = np.frombuffer(CASES[name].input, np.uint8).reshape(2, 2, -1)
    for got in outputs(conformance, CASES[name]):
        np.testing.assert_array_equal(got.reshape(2, -1), data[::-1, 1])


@pytest.mark.parametrize("name", REDUCED)
def test_words_are_combined_with_the_other_cta(conformance: Kernels, name: str) -> None:
    _, _, op, kind = name.split("/")
    data = np.frombuffer(CASES[name].input, np.uint8).reshape(2, 2, -1)
    want = [combined(op, kind, data[rank, 0].copy(), data[1 - rank, 1].copy()) for rank in range(2)]
    for got in outputs(conformance, CASES[name]):
        same(CASES[name], got, np.concatenate(want))


def test_arrivals_from_the_other_cta(conformance: Kernels) -> None:
    """After three phases' worth of arrivals but one the phase is open, then it ends: all wait for it."""
    for got in outputs(conformance, CASES["cluster/arrivals"]):
        words = got.view(np.uint32).reshape(2, THREADS, 2)
        assert (words[..., 0] == 0).all() and (words[..., 1] == np.arange(THREADS)).all()


def test_every_case_is_tried() -> None:
    assert {*MOVED, *REDUCED, "cluster/arrivals"} == set(CASES)
