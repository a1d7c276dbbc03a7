"""Cases of tensor reductions of every rank against numpy, whatever a GPU has recorded (PTX ISA 9.7.9.25.5.3)."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from ptxgym.device.emulator.core import Outcome
from tests.device.emulator.tensor.harness import Kernels
from tests.device.emulator.tensor.reference_copies import box_elements, shared_address
from tests.device.emulator.tensor.test_cluster_cases import Bytes, combined, outputs, same
from tests.gpu.cases import Case, reduction_cases
from tests.gpu.cases.reductions import OPEN

CASES = list(reduction_cases())
LISTED = [case for case in CASES if case.map is not None and "/open/" not in case.name]
ADDED = "add.TFLOAT32"
HINTED = [case for case in CASES if "/hint/" in case.name]


def reduced(case: Case) -> Bytes:
    """Memory after the case; elements beyond the ends of the tensor are dropped."""
    _, _, op, kind, *_ = case.name.split("/")
    assert case.map is not None
    size, coords = case.map.element_bytes, case.args[1 : 1 + case.map.rank]
    data = np.frombuffer(case.input, np.uint8)
    memory, image = data[: case.out_bytes].copy(), data[case.out_bytes :]
    places = [(at, shared_address(case.map, step, 0)) for step, at in box_elements(case.map, coords) if at is not None]
    target, source = ((np.array(list(x))[:, None] + np.arange(size)).reshape(-1) for x in zip(*places, strict=True))
    memory[target] = combined(op, kind, memory[target], image[source])
    return memory


@pytest.mark.parametrize("case", LISTED, ids=lambda c: c.name)
def test_boxes_are_combined_with_what_lies_there(conformance: Kernels, case: Case) -> None:
    want = reduced(case)
    for got in outputs(conformance, case):
        same(case, got, want)
    assert (want != np.frombuffer(case.input, np.uint8)[: case.out_bytes]).any(), "no reduction would pass too"


@pytest.mark.parametrize("case", HINTED, ids=lambda c: c.name)
def test_a_cache_policy_changes_nothing(conformance: Kernels, case: Case) -> None:
    _, _, op, kind = case.name.split("/")
    memory, image = np.frombuffer(case.input, np.uint8).reshape(2, -1)
    for got in outputs(conformance, case):
        same(case, got, combined(op, kind, memory, image))


@pytest.mark.parametrize("name", [case.name for case in LISTED if case.name.endswith("/clip")])
def test_clipped_boxes_leave_the_tensor(name: str) -> None:
    case = next(c for c in LISTED if c.name == name)
    assert case.map is not None
    outside = [at is None for _, at in box_elements(case.map, case.args[1 : 1 + case.map.rank])]
    assert any(outside) and not all(outside)


def test_tf32_is_added_as_fp32(conformance: Kernels) -> None:
    """The ISA does not list it; an H200 keeps all bits of both (tests/golden)."""
    case = next(c for c in CASES if c.name == f"reduce/open/{ADDED.replace('.', '/')}")
    want = reduced(case)
    for got in outputs(conformance, case):
        same(replace(case, nan_type="f32"), got, want)
    words = np.frombuffer(case.input, np.uint32)[: want.size // 4]
    changed = want.view(np.uint32)[want.view(np.uint32) != words]
    assert (changed & 0x1FFF).any(), "sums of 11 bits would pass too"


@pytest.mark.parametrize("operation", [operation for operation in OPEN if operation != ADDED])
def test_what_the_isa_does_not_list_faults(conformance: Kernels, operation: str) -> None:
    case = next(c for c in CASES if c.name == f"reduce/open/{operation.replace('.', '/')}")
    run = conformance.run(case)
    assert run.launch.outcome == Outcome.RUNTIME_FAULT and run.codes() == {"tma.reduction_type"}
