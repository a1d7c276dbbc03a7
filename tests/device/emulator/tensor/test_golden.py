"""The emulator against what an H200 did: every case of `tests/gpu/cases.py`, bit for bit, faults included.

`tests/gpu/run_conformance.py` makes the golden file. Outputs of more than a few kilobytes are kept there as a digest.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ptxgym.device.emulator.core import Outcome
from tests.device.emulator.tensor.harness import Kernels
from tests.gpu.cases import Case, all_cases

GOLDEN = Path(__file__).parents[3] / "golden" / "h200.npz"
MEASURED = np.load(GOLDEN)
ABOUT: dict[str, Any] = json.loads(str(MEASURED["about"]))


@pytest.mark.parametrize("case", all_cases(), ids=lambda c: c.name)
def test_the_emulator_does_what_the_gpu_did(conformance: Kernels, case: Case) -> None:
    assert ABOUT["inputs"][case.name] == hashlib.sha256(case.job()).hexdigest()[:16], "the case changed: measure again"
    run = conformance.run(case)
    if ABOUT["status"][case.name] != 0:
        assert run.launch.outcome == Outcome.RUNTIME_FAULT
        return
    assert run.launch.outcome == Outcome.OK, run.codes()
    measured = MEASURED[case.name]
    output = run.output
    if case.kernel == "tensor_load_global_map":  # behind the dump lies the opaque map
        output, measured = output[: 16 + case.args[2]], measured[: 16 + case.args[2]]
    if case.name == "load/tx/less":  # whether the phase ends differed from run to run on the GPU
        output, measured = output[4:], measured[4:]
    if measured.size == 32 != output.size:
        assert hashlib.sha256(output.tobytes()).digest() == measured.tobytes()
        return
    np.testing.assert_array_equal(output, measured)


def test_the_file_names_the_gpu_and_covers_the_cases() -> None:
    assert "H200" in ABOUT["device"]
    assert set(ABOUT["status"]) == {case.name for case in all_cases()}
    assert GOLDEN.stat().st_size < 300 * 1024
