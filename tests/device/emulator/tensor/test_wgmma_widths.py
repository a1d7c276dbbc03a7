"""wgmma of floats at every N against sums over real numbers, which a misplaced element is far from."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from tests.device.emulator.tensor import reference
from tests.device.emulator.tensor.harness import Kernels, succeeded
from tests.device.emulator.tensor.test_wgmma_elements import FORMATS, numbers
from tests.gpu.cases import IMAGE, Case, width_cases
from tests.gpu.cases.widths import MN_MAJOR_WIDTHS

CASES = list(width_cases())
ALL_WIDTHS = ("f32.tf32.tf32", "f16.e4m3.e5m2")
"""Types of which every width is tried here; of the others the few below, and the H200's record holds them all."""


def width_of(case: Case) -> int:
    return int(case.name.split("/")[2].partition("k")[0].removeprefix("m64n"))


CHOSEN = [c for c in CASES if c.name.endswith(ALL_WIDTHS) or "/mn/" in c.name or width_of(c) in MN_MAJOR_WIDTHS]


def numeric(elements: NDArray[np.uint16], kind: str) -> NDArray[np.float64]:
    """Rows of 32 bytes as numbers."""
    if kind in FORMATS:
        return numbers(kind)[elements.view(np.uint8)]
    return reference.as_float(elements.view(np.uint32) if kind == "tf32" else elements, kind)


VALUES = {2: ((2, 2, 2), (64, 8, 512)), 1: ((4, 2, 2), (64, 8, 1024)), 4: ((2, 2), (8, 256))}
"""Of a thread, by bytes of an element: shape and stride of its elements of A (PTX ISA 9.7.15.5.1.1)."""


def in_rows(fragments: NDArray[np.uint8], kind: str) -> NDArray[np.uint16]:
    """Rows of 32 bytes of A, from the registers of 128 threads."""
    size = {"f16": 2, "tf32": 4}.get(kind, 1)
    places = reference.thread_values(((4, 8, 4), (64 * 4 // size, 1, 16)), VALUES[size], 64)
    a = np.empty((64, 32 // size, size), np.uint8)
    a[places] = fragments.reshape(128, -1, size)
    return a.reshape(64, 32).view(np.uint16)


def parts(case: Case) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.float64]]:
    """A [64, k], B [n, k] and the accumulators in fragments."""
    form = case.name.split("/")[2].split(".")
    n = width_of(case)
    memory = np.frombuffer(case.input, np.uint8)
    word: Any = np.uint16 if form[1] == "f16" else np.uint32
    size = 128 * n // 2 * word().nbytes
    before = reference.as_float(memory[IMAGE:][:size].view(word).reshape(128, n // 2), form[1])
    if case.name.endswith("/registers"):
        a = numeric(in_rows(memory[IMAGE + size :], form[2]), form[2])
    else:
        a = numeric(reference.operand(memory, case.wide[0], 64, mn_major=False), form[2])
    b = numeric(reference.operand(memory, case.wide[1], n, mn_major="/mn/" in case.name), form[3])
    return a, b, before


@pytest.mark.parametrize("case", CHOSEN, ids=lambda c: c.name)
def test_results_lie_where_they_belong(conformance: Kernels, case: Case) -> None:
    """Bounds: 13 places of the greatest term for elements of 8 bits, 24 for others; 11 of an fp16 result."""
    run = conformance.run(case)
    assert succeeded(run) and not run.codes(severity=1)
    a, b, before = parts(case)
    places = reference.accumulator_places(width_of(case))
    exact = (a @ b.T)[places] + before
    result, element = case.name.split("/")[2].split(".")[1:3]
    got = reference.as_float(run.output.view(np.uint16 if result == "f16" else np.uint32).reshape(128, -1), result)
    greatest = np.maximum((np.abs(a).max(axis=1)[:, None] * np.abs(b).max(axis=1))[places], np.abs(before))
    bound = (a.shape[1] + 1) * greatest * 2.0 ** (-13 if element in FORMATS else -24)
    bound += np.abs(exact) * 2.0**-11 + 2.0**-25 if result == "f16" else 0
    assert (np.abs(got - exact) <= bound).all()
    assert (np.abs(np.roll(got, 1, axis=1) - exact) > bound).mean() > 0.9, "a misplaced element would pass"


def test_every_width_of_every_type_has_a_case() -> None:
    found = {tuple(c.name.split("/")[2].split(".")[1:]) for c in CASES}
    assert len(found) == 6 + 5
    for types in found:
        widths = {width_of(c) for c in CASES if c.name.endswith(".".join(types)) and "/mn/" not in c.name}
        assert widths == set(range(8, 257, 8))
