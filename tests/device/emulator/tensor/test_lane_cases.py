"""Cases of single instructions against numpy, whatever a GPU has recorded."""

from __future__ import annotations

import numpy as np
import pytest

from tests.device.emulator.tensor.harness import Kernels, succeeded
from tests.device.emulator.tensor.test_cluster_cases import Bytes, combined
from tests.device.emulator.tensor.test_golden import ABOUT, MISCOMPILED
from tests.gpu.cases import Case, lane_cases

LANES = {case.name: case for case in lane_cases()}
PACKS = [case for case in LANES.values() if "cvt.pack" in case.name]


def ends(case: Case) -> tuple[int, int, int]:
    """Bits, least and greatest number of the type that `cvt.pack` limits to."""
    kind = case.name.split(".")[3]
    bits = int(kind[1:])
    return (bits, -(1 << bits - 1), (1 << bits - 1) - 1) if kind[0] == "s" else (bits, 0, (1 << bits) - 1)


@pytest.mark.parametrize("case", PACKS, ids=lambda c: c.name)
def test_integers_are_limited_and_packed(conformance: Kernels, case: Case) -> None:
    """PTX ISA 9.7.9.22: `b` in the lowest bits, then `a`, then the low bits of `c`, where there is one."""
    bits, low, high = ends(case)
    words = np.frombuffer(case.input, np.uint64).reshape(4, -1).astype(np.uint32)
    a, b = (np.clip(x.view(np.int32).astype(np.int64), low, high) & (1 << bits) - 1 for x in words[:2])
    above = words[2].astype(np.int64) << 2 * bits if "c32" in case.name else 0
    run = conformance.run(case)
    assert succeeded(run)
    np.testing.assert_array_equal(run.output.view(np.uint32), (above | a << bits | b) & 0xFFFFFFFF)


@pytest.mark.parametrize("case", PACKS, ids=lambda c: c.name)
def test_operands_lie_within_beyond_and_at_both_ends(case: Case) -> None:
    _, low, high = ends(case)
    words = np.frombuffer(case.input, np.uint64).reshape(4, -1).astype(np.uint32).view(np.int32)
    for operand in words[:2]:
        assert {low - 1, low, high, high + 1} <= set(operand.tolist())
        assert (operand < 2 * low - 2).any() and (operand > 2 * high + 2).any()


def test_every_form_has_a_case() -> None:
    kinds = {case.name.split(".")[3] for case in PACKS}
    assert kinds == {"u16", "s16", "u8", "s8", "u4", "s4", "u2", "s2"}


def added_to_cells(case: Case, upper: int) -> Bytes:
    """The output of a sum of pairs in shared memory, whose upper operand begins at bit `upper` of the 64 of `b`."""
    kind = case.name.split()[0].split(".")[-1].removesuffix("x2")
    _, b, c, e = np.frombuffer(case.input, np.uint64).reshape(4, -1)
    cells = np.stack([b, c, c, e, e, b, c, e], axis=1)
    halves = cells.view(np.uint16)
    old = halves[:, 8:10].copy()
    for half, shift in enumerate((0, upper)):
        operand = (b >> np.uint64(shift)).astype(np.uint16)
        halves[:, 8 + half] = combined("add", kind, old[:, half].copy().view(np.uint8), operand.view(np.uint8)).view(
            np.uint16
        )
    results = [old.reshape(-1).view(np.uint8)] if "/atom" in case.name else []
    return np.concatenate([*results, cells.reshape(-1).view(np.uint8)])


@pytest.mark.parametrize("name", sorted(MISCOMPILED))
def test_sums_of_pairs_in_shared_memory(conformance: Kernels, name: str) -> None:
    """ptxas 13.0 makes a loop of compare-and-swap with one addition for each half.

    Where the operand is the lower word of a 64-bit register, the second of them reads the upper word: the H200's record
    is the sum with bits 32 to 47. The SASS shows it; an operand that was loaded as a word is added whole.
    """
    case = LANES[name]
    run = conformance.run(case)
    assert succeeded(run)
    np.testing.assert_array_equal(case.comparable(run.output), case.comparable(added_to_cells(case, 16)))
    assert case.condensed(added_to_cells(case, 32)) == ABOUT["digests"][name]
