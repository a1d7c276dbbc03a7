"""Baselines on a board of numpy arrays: torch and a GPU come in with `tests/gpu`."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from ptxgym.device.cuda.baselines import (
    AGAIN_AFTER,
    HOST_US,
    MOST_WAITED,
    POISON,
    TRIES,
    Baselines,
    Clocked,
    version_of,
)
from ptxgym.device.cuda.clock import RaceClock
from ptxgym.device.cuda.lock import DeviceLock
from ptxgym.device.cuda.tools import Timed
from ptxgym.errors import InfrastructureError, NotApplicableError
from ptxgym.judge.conditions import Case
from ptxgym.task import Axes, Task, Tensor, load_task
from ptxgym.verdict import Failure

AXES = {"M": 128, "N": 256, "K": 64}
COST_US = {"quick": 100.0, "slow": 130.0}


class ArrayBoard:
    """numpy in the place of torch; a call costs what its function says."""

    def __init__(self) -> None:
        self.allocated: list[Any] = []
        self.ahead: list[bool] = []
        self.waits = False
        """Whether calls wait for the GPU."""
        self.late: list[bool] = []
        """Whether the host is too slow for the gate, in the next calls."""
        self.gaps_us: list[float] = []
        """Of the host, in the next calls."""

    def copied(self, data: Any) -> Any:
        return np.array(data, copy=True)

    def empty(self, size_bytes: int) -> Any:
        self.allocated.append(np.zeros(size_bytes, np.uint8))
        return self.allocated[-1]

    def typed(self, data: Any, tensor: Tensor, axes: Axes) -> Any:
        return data.view(np.uint16).reshape(tensor.sizes(axes))

    def copy(self, target: Any, source: Any) -> None:
        target[:] = source

    def fill(self, target: Any, value: int) -> None:
        target[:] = value

    def clocked(self, call: Callable[[], Any], ahead: bool) -> Clocked:
        self.ahead.append(ahead)
        time_us = float(call() or 1.0)
        gap_us = self.gaps_us.pop(0) if self.gaps_us else 0.0
        held = ahead and not self.waits and not (self.late and self.late.pop(0))
        return Clocked(time_us if held else time_us + max(0.0, gap_us - 2 * HOST_US), 20.0 + gap_us, held)

    def versions(self) -> Mapping[str, str]:
        return {"torch": "2.0", "quick": "7.1"}


def write_first_row(name: str, fault: int = 0) -> Callable[[Mapping[str, Any], Axes], Callable[[], float]]:
    """A library whose C is its A's first element, plus `fault`, everywhere."""

    def prepare(tensors: Mapping[str, Any], axes: Axes) -> Callable[[], float]:
        def call() -> float:
            assert (tensors["C"].view(np.uint8) == POISON).all()
            tensors["C"][:] = tensors["A"][0, 0] + fault
            tensors["A"][0, 0] = 999  # the next call must find it restored
            return COST_US.get(name, 150.0)

        return call

    return prepare


def missing(tensors: Mapping[str, Any], axes: Axes) -> Callable[[], float]:
    raise ImportError("No module named 'flashinfer'")


def unsupported(tensors: Mapping[str, Any], axes: Axes) -> Callable[[], float]:
    raise NotApplicableError("only for causal masks")


class FakeTask:
    """The task `gemm` with libraries that need no GPU."""

    def __init__(self, libraries: Mapping[str, Any]) -> None:
        self._task = load_task("gemm")
        self._libraries = libraries
        self.chooses: set[str] = set()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._task, name)

    def baselines(self) -> Any:
        return SimpleNamespace(BASELINES=self._libraries, CHOOSES=self.chooses)


def draws(count: int = 2) -> list[dict[str, Any]]:
    sizes = load_task("gemm").sizes_bytes(AXES)
    return [{name: np.full(sizes[name], 3 + index, np.uint8) for name in ("A", "B")} for index in range(count)]


def right(draw: int, outputs: Mapping[str, Any]) -> bool:
    return bool((outputs["C"] == 3 + draw).all())


def prepared(libraries: Mapping[str, Any], slots: int = 3) -> Baselines:
    return Baselines(FakeTask(libraries), AXES, draws(), right, ArrayBoard(), slots)  # type: ignore[arg-type]


def test_all_that_are_right_are_ready_on_every_draw() -> None:
    lines = prepared({"quick": write_first_row("quick"), "slow": write_first_row("slow")})
    assert set(lines.calls) == {"quick", "slow"}
    assert lines.time_us == {"quick": 100.0, "slow": 130.0}
    assert lines.best_us == 100.0
    assert lines.versions == {"quick": "quick 7.1, torch 2.0", "slow": "torch 2.0"}
    for draw in (0, 1, 0):
        assert [lines.calls[name](draw) for name in ("quick", "slow")] == [100.0, 130.0]
    assert lines.skipped == {}


def handing_over(late: bool) -> Callable[..., Any]:
    """A library that returns a tensor of its own, and what copies it when the call is over."""

    def prepare(tensors: Mapping[str, Any], axes: Axes) -> Any:
        made: dict[str, Any] = {}
        calls = 0

        def call() -> float:
            nonlocal calls
            calls += 1
            made["C"] = tensors["A"][0, 0] + 0
            return 90.0

        def hand_over() -> None:
            assert calls == 1, "results are taken where they are checked, not after timed calls"
            tensors["C"][:] = made["C"] if not late else made["C"] + 1

        def counted() -> None:
            nonlocal calls
            hand_over()
            calls = 0

        return call, counted

    return prepare


def test_results_of_a_librarys_own_are_handed_over_to_be_checked() -> None:
    lines = prepared({"quick": handing_over(late=False), "other": handing_over(late=True)})
    assert lines.time_us == {"quick": 90.0}
    assert lines.calls["quick"](1) == 90.0
    assert lines.skipped == {"other": "its output is wrong on draw 0"}


def test_slots_take_turns() -> None:
    lines = prepared({"quick": write_first_row("quick")}, slots=3)
    for slot in lines._slots:
        slot["C"][:] = 0
    for _ in range(40):
        lines.calls["quick"](1)
    assert all((slot["C"] == 4).all() for slot in lines._slots)


def test_wrong_missing_and_unsupported_libraries_do_not_count() -> None:
    libraries = {
        "quick": write_first_row("quick", fault=1),
        "slow": write_first_row("slow"),
        "FlashInfer": missing,
        "other": unsupported,
    }
    lines = prepared(libraries)
    assert set(lines.calls) == {"slow"}
    assert lines.skipped == {
        "quick": "its output is wrong on draw 0",
        "FlashInfer": "not installed (No module named 'flashinfer')",
        "other": "only for causal masks",
    }


def test_without_any_baseline_nothing_can_be_said() -> None:
    with pytest.raises(InfrastructureError, match=r"FlashInfer: not installed"):
        prepared({"FlashInfer": missing})
    with pytest.raises(InfrastructureError, match="names none"):
        prepared({})


@pytest.mark.parametrize(
    ("name", "version"),
    [
        ("cuBLAS", "cuBLAS 13.1, torch 2.11"),
        ("cuBLASLt", "cuBLAS 13.1, torch 2.11"),
        ("cuDNN, deterministic", "cuDNN 9.19.0, torch 2.11"),
        ("something", "torch 2.11"),
    ],
)
def test_versions_are_told_by_the_beginning_of_the_name(name: str, version: str) -> None:
    versions = {"torch": "2.11", "cuBLAS": "13.1", "cuDNN": "9.19.0"}
    assert version_of(name, versions) == version


def test_the_real_task_names_its_libraries_without_importing_them() -> None:
    assert set(load_task("gemm").baselines().BASELINES) == {"cuBLAS", "cuBLASLt"}


# The clock, which keeps baselines and queues races.


@pytest.fixture
def lock(tmp_path: Path) -> DeviceLock:
    return DeviceLock("GPU-test", tmp_path)


class Counted:
    """How often baselines were prepared, and under which lock."""

    def __init__(self, lock: DeviceLock) -> None:
        self.lock, self.holds = lock, list[bool]()

    def __call__(self, task: Task, axes: Axes, given: Any, check: Any) -> Baselines:
        assert self.lock.mine is not None
        assert self.lock.mine.exclusive or self.lock.mine.long, "it takes up to seconds"
        self.holds.append(self.lock.mine.exclusive)
        time.sleep(0.01)
        return Baselines(task, axes, given, check, ArrayBoard(), 2)


def clock_on(lock: DeviceLock, gpu: str = "unknown") -> tuple[RaceClock, Counted]:
    counted = Counted(lock)

    def inputs(task: Task, case: Case) -> Mapping[str, Any]:
        return draws(1)[0]

    def is_right(task: Task, case: Case, outputs: Mapping[str, Any]) -> bool:
        return bool((outputs["C"] == 3).all())

    return RaceClock(lock, gpu, inputs, is_right, counted), counted


def request_for(task: Any, tier: str = "rl") -> Any:
    return SimpleNamespace(task=task, tier=tier, conditions=SimpleNamespace(hash="abc"))


CASES = (Case("timing/normal", AXES, "normal", 1, False), Case("timing/normal", AXES, "normal", 2, False))


def test_only_calls_of_a_race_are_enqueued_ahead() -> None:
    """First calls may wait for the GPU, and beside others they would wait for each other."""
    board = ArrayBoard()
    lines = Baselines(FakeTask({"quick": write_first_row("quick")}), AXES, draws(), right, board, 3)  # type: ignore[arg-type]
    assert board.ahead and not any(board.ahead)
    board.ahead.clear()
    assert lines.calls["quick"](1) == COST_US["quick"]
    assert board.ahead == [True]


def racing(waits: bool) -> tuple[ArrayBoard, Callable[[], float | Failure]]:
    """A board, and calls of one baseline on it."""
    board = ArrayBoard()
    lines = Baselines(FakeTask({"quick": write_first_row("quick")}), AXES, draws(), right, board, 3)  # type: ignore[arg-type]
    board.waits = waits
    board.ahead.clear()
    return board, lambda: lines.calls["quick"](1)


def test_a_call_that_waits_for_the_gpu_is_made_again_and_soon_not_enqueued_ahead() -> None:
    board, call = racing(waits=True)
    assert [call() for _ in range(5)] == [COST_US["quick"]] * 5
    assert board.ahead == [True] * MOST_WAITED + [False] * 5


def test_a_busy_host_switches_no_gate_off() -> None:
    board, call = racing(waits=False)
    for _ in range(3 * MOST_WAITED):
        board.ahead.clear()
        board.late = [True] * (MOST_WAITED - 1)  # never so often in a row
        assert call() == COST_US["quick"]
        assert board.ahead == [True] * MOST_WAITED


def test_a_gate_that_was_given_up_is_tried_again() -> None:
    board, call = racing(waits=True)
    for _ in range(AGAIN_AFTER):
        call()
    assert board.ahead == [True] * MOST_WAITED + [False] * AGAIN_AFTER
    call()
    assert board.ahead[-2:] == [True, False], "once"
    board.waits = False
    board.ahead.clear()
    for _ in range(AGAIN_AFTER + 20):
        call()
    assert board.ahead == [False] * (AGAIN_AFTER - 1) + [True] * 21


def test_where_nothing_is_enqueued_ahead_calls_with_gaps_of_the_host_are_made_again() -> None:
    board, call = racing(waits=True)
    call()
    board.ahead.clear()
    board.gaps_us = [8000.0, 15000.0, 30.0]
    assert call() == COST_US["quick"] and len(board.ahead) == 3
    board.gaps_us = [9000.0, 700.0, 8000.0, 8000.0, 8000.0]
    assert call() == COST_US["quick"] + 500.0 and len(board.ahead) == 3 + TRIES, "one that waits for the GPU itself"
    board.gaps_us = [60.0]
    assert call() == COST_US["quick"] and len(board.ahead) == 4 + TRIES, "the control"


def test_clock_times_against_the_best_and_prepares_once(lock: DeviceLock) -> None:
    def absent(tensors: Any, axes: Axes) -> Any:
        raise NotApplicableError("not here")

    task = FakeTask({"slow": write_first_row("slow"), "quick": write_first_row("quick"), "absent": absent})
    clock, counted = clock_on(lock)
    try:
        assert clock.baseline_us(task, CASES[0]) is None  # type: ignore[arg-type]
        clock.prepare(request_for(task), CASES)
        assert clock.baseline_us(task, CASES[0]) == 100.0  # type: ignore[arg-type]
        for us, speedup in ((200.0, 0.5), (80.0, 1.25)):
            timed = clock.race(request_for(task), CASES, lambda draw, us=us: us)
            assert isinstance(timed, Timed), timed
            assert timed.timing.speedup == speedup
            assert timed.timing.baseline == "quick"
            assert timed.timing.roofline_us is None  # of this GPU nothing is known
            assert timed.timing.baselines[0].version == "quick 7.1, torch 2.0"
            assert timed.lock_held_s > 0
            assert timed.skipped == {"absent": "not here"}
        assert counted.holds == [False]  # once, shared
        assert lock.holders() == []
    finally:
        clock.close()


def test_what_times_alternatives_has_the_gpu_alone_the_first_time(lock: DeviceLock) -> None:
    task = FakeTask({"quick": write_first_row("quick")})
    task.chooses = {"quick"}
    clock, counted = clock_on(lock)
    later = tuple(replace(case, seed=case.seed + 10) for case in CASES)
    other = tuple(replace(case, axes={**AXES, "batch": 1}) for case in CASES)
    try:
        for cases in (CASES, CASES, later, other):
            clock.prepare(request_for(task), cases)
        assert counted.holds == [True, False, True]  # the choice is kept for other draws of the same shape
    finally:
        clock.close()


def test_clock_refuses_what_no_gpu_can_do(lock: DeviceLock) -> None:
    clock, _ = clock_on(lock, "NVIDIA H200")
    task = FakeTask({"quick": write_first_row("quick")})
    large = tuple(Case(case.name, {"M": 8192, "N": 7168, "K": 5120}, "normal", case.seed, False) for case in CASES)
    clock._prepare = lambda *arguments: SimpleNamespace(  # type: ignore[assignment,return-value]
        calls={"quick": lambda draw: 740.0}, best_us=740.0, versions={}, skipped={}
    )
    try:
        refused = clock.race(request_for(task), large, lambda draw: 400.0)
        assert isinstance(refused, Failure)
        assert refused.code == "timing.faster_than_roofline"
        believed = clock.race(request_for(task), large, lambda draw: 600.0)
        assert isinstance(believed, Timed)
        assert believed.timing.roofline_us == pytest.approx(561.7, rel=0.001)
        assert believed.timing.tflops == pytest.approx(601.3 / 0.6, rel=0.001)
    finally:
        clock.close()
