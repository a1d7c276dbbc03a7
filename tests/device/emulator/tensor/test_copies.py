"""Tensor, bulk and group copies against numpy, on the cases of the golden file and on random boxes."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.device.emulator.tensor import reference_copies as reference
from tests.device.emulator.tensor.harness import SCHEDULES, Kernels, succeeded
from tests.gpu.cases import DATA_TYPES, FILLS, SWIZZLES, Case, Map, copy_cases, form_cases, load, store

REFERENCES = {
    "tensor_load": reference.load,
    "tensor_store": reference.store,
    "bulk_load": reference.bulk_load,
    "bulk_store": reference.bulk_store,
    "cp_async_": reference.cp_async,
}
BROKEN = ("coordinate", "misaligned", "store/clip/low", "store/clip/corner", "store/clip/far")
"""Cases that break a rule: a fault, tested with the findings."""
CASES = [c for c in copy_cases() if not any(part in c.name for part in BROKEN)]
CASES += [c for c in form_cases() if c.name.endswith(("_load", "_store"))]


def expected(case: Case) -> np.ndarray:
    return next(f for prefix, f in REFERENCES.items() if case.kernel.startswith(prefix))(case)


@pytest.mark.parametrize(
    "case", [c for c in CASES if c.name not in ("cp_async/arrive", "mbarrier/trace")], ids=lambda c: c.name
)
@pytest.mark.parametrize("schedule", SCHEDULES)
def test_copies_move_the_bytes_that_numpy_moves(conformance: Kernels, case: Case, schedule: str) -> None:
    run = conformance.run(case, schedule)
    assert succeeded(run)
    want = expected(case)
    np.testing.assert_array_equal(run.output[: want.size], want)
    if "/tx/" not in case.name:
        assert not run.codes(severity=1)


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_an_mbarrier_tracks_cp_async(conformance: Kernels, schedule: str) -> None:
    """With .noinc the arrivals count; without, one more arrival of each thread ends the phase (9.7.13.15.15)."""
    case = next(c for c in CASES if c.name == "cp_async/arrive")
    run = conformance.run(case, schedule)
    assert run.output[:12].view(np.uint32).tolist() == [1, 0, 1]
    np.testing.assert_array_equal(run.output[16:], np.frombuffer(case.input, np.uint8))
    assert not run.codes()


@st.composite
def boxes(draw: st.DrawFn, *, to_global: bool) -> tuple[Map, tuple[int, ...], int]:
    """A tensor map that cuTensorMapEncodeTiled accepts, coordinates that hardware accepts, and a shared offset."""
    kind = draw(st.sampled_from(DATA_TYPES))
    size = reference_size(kind)
    swizzle = draw(st.sampled_from(SWIZZLES))
    rank = draw(st.integers(1, 5))
    unit = 16 // size if size < 16 else 1
    widest = 16 if swizzle == "NONE" else int(swizzle[:-1]) // 16
    inner = draw(st.integers(1, min(widest, 256 // unit))) * unit
    box = [inner, *(draw(st.integers(1, 6)) for _ in range(rank - 1))]
    dims = [draw(st.integers(1, 3 * inner)), *(draw(st.integers(1, 9)) for _ in range(rank - 1))]
    steps = [1, *(draw(st.integers(1, 4)) for _ in range(rank - 1))]
    strides: list[int] = []
    extent = dims[0] * size
    for dim in range(1, rank):
        stride = -(-extent // 16) * 16 + 16 * draw(st.integers(0, 2))
        strides.append(stride)
        extent = stride * dims[dim]
    fill = FILLS[0] if to_global or "FLOAT" not in kind else draw(st.sampled_from(FILLS))
    m = Map(tuple(dims), tuple(box), tuple(strides), kind, swizzle, fill, tuple(steps), "out" if to_global else "in")
    low = 0 if to_global else -3
    coords = [draw(st.integers(low, 3)) * unit, *(draw(st.integers(2 * low, dims[d] + 1)) for d in range(1, rank))]
    return m, tuple(coords), 128 * draw(st.integers(0, 9))


def reference_size(kind: str) -> int:
    return Map((1,), (1,), type=kind).element_bytes


QUICK = settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)


@QUICK
@given(boxes(to_global=False), st.integers(0, 2**32))
def test_any_box_loads_as_numpy_says(conformance: Kernels, box: tuple[Map, tuple[int, ...], int], seed: int) -> None:
    m, coords, offset = box
    case = load("any", m, coords, offset=offset, seed=seed)
    run = conformance.run(case, "lazy")
    assert succeeded(run), run.launch.records
    np.testing.assert_array_equal(run.output, reference.load(case))


@QUICK
@given(boxes(to_global=True), st.integers(0, 2**32))
def test_any_box_stores_as_numpy_says(conformance: Kernels, box: tuple[Map, tuple[int, ...], int], seed: int) -> None:
    m, coords, offset = box
    case = store("any", m, coords, offset=offset, seed=seed, image=32768)
    run = conformance.run(case, "lazy")
    assert succeeded(run), run.launch.records
    np.testing.assert_array_equal(run.output, reference.store(case))


def test_tensor_copies_count_their_bytes(conformance: Kernels) -> None:
    case = load("count", Map((160, 48), (64, 16), swizzle="128B"), (136, 40))
    assert conformance.run(case).launch.tma_bytes == 64 * 16 * 2  # the full box, though most of it lies outside
