"""Cases of single instructions against numpy, whatever a GPU has recorded."""

from __future__ import annotations

import numpy as np
import pytest

from tests.device.emulator.tensor.harness import Kernels, succeeded
from tests.gpu.cases import Case, lane_cases

PACKS = [case for case in lane_cases() if "cvt.pack" in case.name]


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
