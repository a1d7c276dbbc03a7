"""Baselines, race and lock on a GPU: `pytest -m gpu tests/gpu/test_timing.py`; `benchmarks/aa.py` is the long form."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from ptxgym.device.cuda import roofline
from ptxgym.device.cuda.baselines import Baselines
from ptxgym.device.cuda.timing import PROTOCOLS, Race, race
from ptxgym.judge.conditions import Case, conditions
from ptxgym.judge.correctness import passes
from ptxgym.judge.references import expect
from ptxgym.task import Axes, Task, load_task

pytestmark = [pytest.mark.gpu, pytest.mark.filterwarnings("default")]
SECRET = b"the tests' own secret"


@pytest.fixture(scope="module", autouse=True)
def torch() -> Any:
    """Baselines are torch's."""
    return pytest.importorskip("torch")


@pytest.fixture(scope="module")
def task() -> Task:
    return load_task("gemm")


def cases(task: Task, workload: str) -> list[Case]:
    drawn = conditions(task, workload, secret=SECRET).cases
    return [case for case in drawn if case.draw in task.workload(workload).draws]


def prepared(task: Task, drawn: list[Case], cupy: Any) -> Baselines:
    def right(draw: int, outputs: Mapping[str, Any]) -> bool:
        expected = expect(task, drawn[draw], cupy)
        return all(passes(expected.outputs[name], cupy.from_dlpack(data)) for name, data in outputs.items())

    return Baselines(task, drawn[0].axes, [expect(task, case, cupy).inputs for case in drawn], right)


@pytest.mark.parametrize("workload", ["emulation", "hardware"])
def test_every_baseline_is_right_on_every_draw(cupy: Any, task: Task, workload: str) -> None:
    lines = prepared(task, cases(task, workload), cupy)
    assert lines.skipped == {}
    assert set(lines.calls) == {"cuBLAS", "cuBLASLt"}
    assert all(version.startswith("cuBLAS 1") for version in lines.versions.values())


def test_a_library_that_lies_is_caught(cupy: Any, task: Task) -> None:
    """The control: half of the product is not the product."""

    def half(tensors: Mapping[str, Any], axes: Axes) -> Any:
        rows = axes["M"] // 2
        return lambda: tensors["C"][:rows].copy_(tensors["A"][:rows] @ tensors["B"].T)

    honest = task.baselines().BASELINES
    honest["half"] = half
    try:
        lines = prepared(task, cases(task, "emulation"), cupy)
    finally:
        del honest["half"]
    assert lines.skipped == {"half": "its output is wrong on draw 0"}


def test_a_library_against_itself(cupy: Any, task: Task) -> None:
    drawn = cases(task, "hardware")
    lines = prepared(task, drawn, cupy)
    call = lines.calls["cuBLAS"]
    result = race({"one": call}, {"other": call}, PROTOCOLS["standard"], draws=len(drawn))["other"]
    assert isinstance(result, Race)
    assert result.speedup.median == pytest.approx(1, abs=0.01)
    assert result.speedup.width < 0.02
    peak = roofline.peak_of(cupy.cuda.runtime.getDeviceProperties(0)["name"].decode())
    if peak is not None:
        least_us = roofline.roofline_us(task, drawn[0].axes, peak)
        assert roofline.too_fast(result.candidate_us, least_us) is None
        assert roofline.too_fast(result.candidate_us / 2, least_us) is not None
