"""Cases of rewritten tensor maps against the copies of the maps that come of it, whatever a GPU has recorded."""

from __future__ import annotations

import numpy as np
import pytest

from tests.device.emulator.tensor.harness import SCHEDULES, Kernels, succeeded
from tests.device.emulator.tensor.reference_copies import Bytes, box_elements, fill_bytes, shared_address
from tests.gpu.cases import Case, map_edit_cases
from tests.gpu.cases.maps import DUMP, EDITS

CASES = list(map_edit_cases())


def tile(case: Case) -> Bytes:
    edit = EDITS[case.name.rpartition("/")[2]]
    found, size = np.zeros(DUMP, np.uint8), edit.after.element_bytes
    for step, at in box_elements(edit.after, edit.place):
        start = None if at is None else edit.after.offset + at
        element = fill_bytes(edit.after) if start is None else case.input[start : start + size]
        address = shared_address(edit.after, step, 0)
        found[address : address + size] = np.frombuffer(element, np.uint8)
    return found


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("case", CASES, ids=lambda c: c.name)
def test_a_tile_comes_by_the_rewritten_map(conformance: Kernels, case: Case, schedule: str) -> None:
    run = conformance.run(case, schedule)
    assert succeeded(run) and not run.codes(severity=1), run.records
    np.testing.assert_array_equal(run.output, tile(case))


def test_every_edit_but_none_changes_the_tile() -> None:
    tiles = {case.name.rpartition("/")[2]: tile(case).tobytes() for case in CASES}
    assert len(set(tiles.values())) == len(EDITS)
