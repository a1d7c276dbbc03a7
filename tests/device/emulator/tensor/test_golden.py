"""The emulator against what an H200 did: every case of `tests/gpu/cases`, faults included.

`tests/gpu/run_conformance.py` makes the golden file. Everything agrees bit for bit, except approximate functions: there
hardware and emulator each lie within the bound of the PTX ISA; and except four cases that ptxas compiled wrongly.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ptxgym.device.emulator.core import Outcome
from tests.device.emulator.tensor.harness import Kernels
from tests.gpu.cases import (
    Case,
    all_cases,
    cluster_cases,
    control_cases,
    copy_cases,
    element_cases,
    exchange_cases,
    form_cases,
    lane_cases,
    map_edit_cases,
    product_cases,
    proxy_cases,
    reduction_cases,
    shape_cases,
    spelling_cases,
    warp_cases,
    wgmma_cases,
    width_cases,
)
from tests.gpu.cases.lanes import bound_of, outside_bound

GOLDEN = Path(__file__).parents[3] / "golden" / "h200.npz"
MEASURED = np.load(GOLDEN)
ABOUT: dict[str, Any] = json.loads(str(MEASURED["about"]))
_LIST = GOLDEN.with_name("waiting.txt")
WAITING = set(_LIST.read_text().splitlines()) if _LIST.exists() else set()
"""Names of cases that no GPU has run yet."""

MISCOMPILED = {
    f"lanes/{instruction}"
    for kind in ("f16x2", "bf16x2")
    for instruction in (f"atom.shared.add.noftz.{kind} d32, [a32], b32", f"red.shared.add.noftz.{kind} [a32], b32")
}
"""Cases in which ptxas took an operand from the wrong register, so that the GPU ran another program (`test_lane_cases`
says which): the emulator does as the PTX says, and must differ."""

REPLAYED: set[str] = set()
"""Names of the cases of all tests below."""


def replayed(family: Callable[[], Any]) -> Any:
    """Parametrise by the cases of a family that the golden file holds."""
    cases = [case for case in family() if case.name in ABOUT["status"]]
    REPLAYED.update(case.name for case in cases)
    return pytest.mark.parametrize("case", cases, ids=lambda c: c.name)


@replayed(copy_cases)
def test_copies_and_barriers(conformance: Kernels, case: Case) -> None:
    agrees(conformance, case)


@replayed(form_cases)
def test_other_spellings(conformance: Kernels, case: Case) -> None:
    agrees(conformance, case)


@replayed(wgmma_cases)
def test_wgmma(conformance: Kernels, case: Case) -> None:
    agrees(conformance, case)


@replayed(shape_cases)
def test_wgmma_at_every_width(conformance: Kernels, case: Case) -> None:
    agrees(conformance, case)


@replayed(width_cases)
def test_wgmma_of_every_float_at_every_width(conformance: Kernels, case: Case) -> None:
    agrees(conformance, case)


@replayed(element_cases)
def test_wgmma_of_other_elements(conformance: Kernels, case: Case) -> None:
    agrees(conformance, case)


@replayed(warp_cases)
def test_matrices_of_a_warp(conformance: Kernels, case: Case) -> None:
    agrees(conformance, case)


@replayed(lane_cases)
def test_single_instructions(conformance: Kernels, case: Case) -> None:
    agrees(conformance, case)


@replayed(product_cases)
def test_later_products_and_rewritten_maps(conformance: Kernels, case: Case) -> None:
    agrees(conformance, case)


@replayed(cluster_cases)
def test_clusters_and_reductions(conformance: Kernels, case: Case) -> None:
    agrees(conformance, case)


@replayed(reduction_cases)
def test_tensor_reductions_of_every_rank(conformance: Kernels, case: Case) -> None:
    agrees(conformance, case)


@replayed(map_edit_cases)
def test_tensor_maps_that_kernels_rewrite(conformance: Kernels, case: Case) -> None:
    agrees(conformance, case)


@replayed(exchange_cases)
def test_exchanges_between_two_ctas(conformance: Kernels, case: Case) -> None:
    agrees(conformance, case)


@replayed(spelling_cases)
def test_barriers_and_prefetches_by_other_names(conformance: Kernels, case: Case) -> None:
    agrees(conformance, case)


@replayed(control_cases)
def test_control_flow(conformance: Kernels, case: Case) -> None:
    agrees(conformance, case)


@replayed(proxy_cases)
def test_fences_registers_and_addresses(conformance: Kernels, case: Case) -> None:
    agrees(conformance, case)


def agrees(conformance: Kernels, case: Case) -> None:
    assert ABOUT["inputs"][case.name] == case.digest, "the case changed: measure again"
    run = conformance.run(case)
    if ABOUT["status"][case.name] != 0:
        assert run.launch.outcome == Outcome.RUNTIME_FAULT
        return
    assert run.launch.outcome == Outcome.OK, run.codes()
    if digest := ABOUT["digests"].get(case.name):
        assert (case.condensed(run.output) == digest) == (case.name not in MISCOMPILED)
        return
    measured, output = MEASURED[case.name], run.output
    if case.family == "lanes" and bound_of(case.name.partition("/")[2]):
        assert outside_bound(case, measured) == []
        assert outside_bound(case, output) == []
        return
    if case.kernel == "tensor_load_global_map":  # behind the dump lies the opaque map
        output, measured = output[: 16 + case.args[2]], measured[: 16 + case.args[2]]
    if case.name == "load/tx/less":  # whether the phase ends differed from run to run on the GPU
        output, measured = output[4:], measured[4:]
    np.testing.assert_array_equal(case.comparable(output), case.comparable(measured))


def test_the_file_names_the_gpu_and_holds_nothing_else() -> None:
    assert "H200" in ABOUT["device"]
    assert set(ABOUT["status"]) <= {case.name for case in all_cases()}
    assert GOLDEN.stat().st_size < 1200 * 1024


def test_everything_that_is_measured_is_replayed() -> None:
    assert set(ABOUT["status"]) == REPLAYED
    assert set(ABOUT["digests"]) > MISCOMPILED


def test_every_case_is_measured_or_waits_for_a_gpu() -> None:
    """Once they are measured, `waiting.txt` goes."""
    assert {case.name for case in all_cases() if case.name not in ABOUT["status"]} == WAITING
