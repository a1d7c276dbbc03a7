"""What a judge process lends, with executors and profilers that are none."""

from __future__ import annotations

import functools
import importlib.util
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from ptxgym.device.cuda import bench as benches
from ptxgym.device.cuda import judging, ncu
from ptxgym.device.cuda.bench import Bench
from ptxgym.device.cuda.judging import NumberJudge
from ptxgym.device.cuda.lock import DeviceLock
from ptxgym.device.cuda.tools import Unusable
from ptxgym.errors import InfrastructureError, UsageError
from tests.device.cuda import fakes


class Plan(SimpleNamespace):
    has_side_streams = False


PLANS: Any = [Plan(), Plan()]


class Process:
    """An executor, or a profiler around one."""

    made: list[Process]
    failing = False
    renewable = False
    usable = True

    def __init__(self, observes: bool = True) -> None:
        if self.failing:
            raise InfrastructureError("no room for a context")
        self.observes, self.ended = observes, False
        self.made.append(self)

    def connected(self) -> None:
        pass

    ready = connected

    def kill(self) -> None:
        self.ended = True

    def renewed(self) -> Process:
        successor = type(self)(self.observes)
        successor.of = self  # type: ignore[attr-defined]
        return successor

    close = kill

    def profile(self, build: Any, plan: Any, inputs: Any, results: Any, **options: Any) -> Any:
        with options["on_gpu"]():
            return ("profiled", self)


class Memory:
    def __init__(self) -> None:
        self.drawn: list[str] = []

    def inputs(self, task: Any, case: Any) -> dict[str, Any]:
        self.drawn.append(case.name)
        return {}


@pytest.fixture
def bench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Bench]:
    class Executor(Process):
        made: list[Process] = []  # noqa: RUF012

        @classmethod
        def start(cls, gpu: Any, *, side_streams: bool) -> Process:
            return cls(side_streams)

    class Profiler(Process):
        made: list[Process] = []  # noqa: RUF012

    monkeypatch.setattr(benches, "Executor", Executor)
    monkeypatch.setattr(ncu, "ProfiledExecutor", Profiler)
    monkeypatch.setattr(ncu, "start", lambda gpu, observe=True, ahead=True: Profiler(observe))
    monkeypatch.setattr(benches, "DeviceLock", functools.partial(DeviceLock, folder=tmp_path))
    lent = SimpleNamespace(memory=Memory(), judging=NumberJudge(np))
    monkeypatch.setattr(Bench, "tools", lambda self: lent)
    made = Bench(fakes.GPU)
    yield made
    made.close()


def settle(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.002)


def executors() -> list[Process]:
    return benches.Executor.made  # type: ignore[attr-defined,no-any-return]


def profilers() -> list[Process]:
    return ncu.ProfiledExecutor.made  # type: ignore[attr-defined,no-any-return]


def test_every_executor_is_used_once_and_ended(bench: Bench) -> None:
    for number in range(2 * benches.AT_ONCE):  # places come back
        with bench._executor(PLANS) as running:
            assert running.executor is executors()[number] and not executors()[number].ended
        settle(lambda number=number: executors()[number].ended)  # type: ignore[misc]


def test_side_streams_get_an_executor_of_their_own(bench: Bench) -> None:
    bench.expect(fakes.announced("rl"), 2)
    settle(lambda: len(executors()) == 2)
    with bench._executor([Plan(), Plan(has_side_streams=True)]) as running:  # type: ignore[list-item]
        assert running.executor is executors()[2] and executors()[2].observes
        executors()[2].renewable = True  # and yet it does not come to those of one stream
    settle(lambda: executors()[2].ended)
    with bench._executor(PLANS) as running:
        assert running.executor is executors()[0] and not executors()[0].observes
    assert bench._executors.expected == 0


def test_who_lends_no_executor_leaves_none_expected(bench: Bench) -> None:
    for _ in range(3):
        bench.expect(fakes.announced("rl"), 1)
        bench._forgo()
    bench.expect(fakes.announced("rl"), 1)
    assert bench._executors.expected == 1
    settle(lambda: len(executors()) == 1)  # the first one waits for whoever comes, and is started once
    with bench._executor(PLANS) as running:
        assert running.executor is executors()[0] and bench._executors.expected == 0


def test_process_in_which_all_went_well_is_used_again(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    def use(*, well: bool) -> Process:
        with bench._executor(PLANS) as running:
            running.executor.renewable = well  # type: ignore[misc]
        settle(lambda: bench._at_work == 0)
        return running.executor  # type: ignore[return-value]

    first = use(well=True)
    second = use(well=False)
    third = use(well=True)
    assert second.of is first and not first.ended  # type: ignore[attr-defined]
    assert second.ended and not hasattr(third, "of")

    for error in (InfrastructureError("the context did not come"), UsageError("it has ended"), ValueError("no answer")):
        before = use(well=True)

        def lost(self: Process, error: Exception = error) -> Process:
            raise error

        with monkeypatch.context() as patch:
            patch.setattr(Process, "renewed", lost)
            again = use(well=True)
        assert again.of is before and again.ended  # type: ignore[attr-defined]
        after = use(well=False)
        assert not hasattr(after, "of"), "nobody is told of it"


def test_process_that_ended_while_it_waited_is_not_taken(bench: Bench) -> None:
    bench.expect(fakes.announced("rl"), 1)
    settle(lambda: len(executors()) == 1)
    executors()[0].usable = False
    with bench._executor(PLANS) as running:
        assert running.executor is executors()[1]
    assert executors()[0].ended


def test_executor_ends_even_where_the_lock_is_not_granted(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    def never(*, long: bool = False) -> Any:
        raise InfrastructureError("GPU-fake was not free within 600 s")

    for number in range(benches.AT_ONCE + 1):
        with monkeypatch.context() as patch:
            with bench._executor(PLANS):
                patch.setattr(bench._lock, "shared", never)
            settle(lambda number=number: executors()[number].ended)  # type: ignore[misc]


def test_profilers_are_started_when_it_is_quiet(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(benches, "QUIET_S", 0.01)
    with bench._executor(PLANS):
        pass
    settle(lambda: bench._at_work == 0)
    time.sleep(0.05)
    assert profilers() == []  # nobody has asked for one ever
    bench._profiles = True
    with bench._executor(PLANS):
        with bench._executor(PLANS):
            pass
        settle(lambda: bench._at_work == 1)
        time.sleep(0.05)
        assert profilers() == []
    settle(lambda: len(profilers()) == benches.WARM_PROFILERS)


@pytest.mark.parametrize("ahead", [True, False])
def test_a_profiler_has_the_gpu_only_while_it_uses_it(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, ahead: bool
) -> None:
    """Its process takes a second to come up, for which no race has to wait."""
    holds: dict[str, Any] = {}
    began: list[bool] = []
    begin = ncu.start

    def start(gpu: Any, observe: bool = True, ahead: bool = True) -> Any:
        holds["start"] = bench._lock.mine
        began.append(ahead)
        return begin(gpu, observe=observe)

    def profile(self: Process, *arguments: Any, on_gpu: Callable[[], Any], **options: Any) -> str:
        with on_gpu():
            holds["use"] = bench._lock.mine
        holds["read"] = bench._lock.mine
        return "profiled"

    monkeypatch.setattr(ncu, "start", start)
    monkeypatch.setattr(ncu.ProfiledExecutor, "connected", lambda self: holds.update(connect=bench._lock.mine))
    monkeypatch.setattr(ncu.ProfiledExecutor, "ready", lambda self: holds.update(ready=bench._lock.mine))
    monkeypatch.setattr(ncu.ProfiledExecutor, "profile", profile)
    request = fakes.request()
    if ahead:
        bench.expect(fakes.announced(), 1)
    assert bench._profile(Memory(), request, request.conditions.cases[0], {}, True, False) == "profiled"  # type: ignore
    assert began == [ahead]
    if ahead:
        assert holds["connect"] is None and holds["ready"].long
    assert holds["start"] is None and holds["use"].long and holds["read"] is None


def test_who_is_profiled_alone_has_the_gpu_and_asks_for_no_place(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """Places to profile are held by who waits for the GPU: whoever has it must not ask for one."""
    request = fakes.request()
    held: list[Any] = []

    class Alone(Process):
        made: list[Process] = []  # noqa: RUF012

        def profile(self, *arguments: Any, on_gpu: Callable[[], Any], **options: Any) -> str:
            with on_gpu():
                held.append(bench._lock.mine)
            return "profiled"

    monkeypatch.setattr(ncu, "ProfiledExecutor", Alone)
    monkeypatch.setattr(ncu, "start", lambda gpu, observe=True, ahead=True: Alone(observe))
    with ExitStack() as places:
        for _ in range(benches.PROFILERS_AT_ONCE):
            places.enter_context(bench._profilers_at_once)
        assert bench._profile(Memory(), request, request.conditions.cases[0], {}, True, True) == "profiled"  # type: ignore
    assert bench._profile(Memory(), request, request.conditions.cases[0], {}, True, False) == "profiled"  # type: ignore
    assert [hold.exclusive for hold in held] == [True, False]


def test_where_many_come_no_profiler_is_started_ahead(bench: Bench) -> None:
    for _ in range(benches.WARM_PROFILERS):
        bench.expect(fakes.announced(), 1)
    settle(lambda: len(profilers()) == benches.WARM_PROFILERS)
    bench._profilers.take(), bench._profilers.take()
    bench.expect(fakes.announced(), 1)
    settle(lambda: len(executors()) == benches.WARM_PROFILERS + 1)
    assert len(profilers()) == benches.WARM_PROFILERS


def test_closing_ends_what_evaluations_use(bench: Bench) -> None:
    with bench._executor(PLANS):
        pass
    settle(lambda: bench._at_work == 0 and executors()[0].ended)
    executors()[0].ended = False
    with bench._executor(PLANS), bench._executor(PLANS):
        assert not any(process.ended for process in executors())
        bench.close()
        assert [process.ended for process in executors()] == [False, True, True], "none that was given back"


def test_failing_start_gives_its_place_back(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(benches.Executor, "failing", True, raising=False)
    for _ in range(2 * benches.AT_ONCE):
        with pytest.raises(InfrastructureError, match="no room"), bench._executor(PLANS):
            pass


@pytest.mark.parametrize(("tier", "ahead"), [("rl", 0), ("standard", 1), ("publish", 1)])
def test_profiler_is_started_ahead_where_the_tier_profiles(bench: Bench, tier: Any, ahead: int) -> None:
    bench.expect(fakes.announced(tier), 1)
    settle(lambda: len(executors()) == 1 and len(profilers()) == ahead)
    bench.close()
    settle(lambda: all(process.ended for process in (*executors(), *profilers())))


def test_inputs_are_drawn_ahead(bench: Bench) -> None:
    announced = fakes.announced("rl")
    bench.expect(announced, 1)
    assert bench.tools().memory.drawn == []  # type: ignore[attr-defined]
    bench.make_ready(announced)
    assert bench.tools().memory.drawn == [case.name for case in announced.cases]  # type: ignore[attr-defined]


def test_judge_rehearses_once_per_task(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    rehearsed: list[str] = []
    monkeypatch.setattr(judging, "rehearse", lambda task, xp: rehearsed.append(task.name))
    announced = fakes.announced("rl")
    for _ in range(2):
        bench.make_ready(announced)
    assert rehearsed == [announced.task.name]


@pytest.mark.parametrize("observe", [True, False])
def test_profiler_that_was_started_ahead_is_replaced_where_less_is_to_be_seen(bench: Bench, observe: bool) -> None:
    bench.expect(fakes.announced(), 1)
    settle(lambda: len(profilers()) == 1)
    request = fakes.request()
    seen: Any = bench._profile(Memory(), request, request.conditions.cases[0], {}, observe, False)  # type: ignore[arg-type]
    assert seen == ("profiled", profilers()[-1]) and profilers()[-1].observes is observe
    assert len(profilers()) == (1 if observe else 2)
    assert profilers()[0].ended is not observe


def test_profiler_that_cannot_be_had_is_named_with_its_fix(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ncu, "start", lambda gpu, observe=True, ahead=True: ncu.Unavailable("it may not", "let it"))
    request = fakes.request()
    seen = bench._profile(Memory(), request, request.conditions.cases[0], {}, True, False)  # type: ignore[arg-type]
    assert seen == Unusable("it may not; let it")


@pytest.mark.skipif(importlib.util.find_spec("cupy") is not None, reason="cupy is installed here")
def test_missing_package_is_named_with_its_extra() -> None:
    with pytest.raises(InfrastructureError, match=r"cupy.*pip install \"ptxgym\[gpu\]\""):
        Bench(fakes.GPU).tools()
