"""Places of inputs and outputs, in memory that is numpy's."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

from ptxgym.device.cuda.executor import Call, first_byte
from ptxgym.device.cuda.placed import PlacedExecutor
from ptxgym.device.cuda.regions import Region, RegionPool
from ptxgym.errors import InfrastructureError, UsageError
from ptxgym.plan.model import Buffer, LaunchPlan
from ptxgym.verdict import Failure, Stage, Status

MIB = 1 << 20


class Memory(Region):
    """A region whose copies are over when `finish` is called, and not before."""

    begun: list[tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]] = []  # noqa: RUF012

    def __init__(self, size_bytes: int, fill: int = 0) -> None:
        super().__init__(size_bytes, 2 * MIB, None, 0, -1)
        self.bytes = np.full(self.mapped_bytes, fill, np.uint8)

    def fill(self, at: int, source: Region) -> None:
        assert isinstance(source, Memory)
        self.begun.append((self.bytes[at:][: source.size_bytes], source.bytes[: source.size_bytes]))

    def take(self, source: Region, at: int) -> None:
        assert isinstance(source, Memory)
        self.begun.append((self.bytes[: self.size_bytes], source.bytes[at:][: self.size_bytes]))

    def close(self) -> None:
        pass


class Adds:
    """An executor whose kernel adds one to A, and writes what A was to C."""

    ended = False
    fails = False

    def __init__(self) -> None:
        self.seen: list[Mapping[str, Memory]] = []
        self.forgotten: list[Memory] = []

    def forget(self, region: Memory) -> None:
        assert not self.ended
        self.forgotten.append(region)

    def load(self, build: Any, plans: Any) -> None:
        pass

    def call(self, plan: int, inputs: Any, results: Any, **options: Any) -> Call | Failure:
        assert inputs == results == {} and options["timeout_s"] == 9 and options["flush"]
        assert Memory.begun == [], "what was begun before is over"
        places = options["places"]
        self.seen.append(places)
        if self.fails:
            return Failure(stage=Stage.EXECUTE, status=Status.HANG, code="cuda.hang", message="")
        a, c = (places[name].bytes[first_byte(places[name]) :][:100] for name in "AC")
        c[:] = a
        a += 1
        return Call(1.0, 2.0, 1.5, "", ())


@pytest.fixture
def placed(monkeypatch: pytest.MonkeyPatch) -> PlacedExecutor:
    def finish() -> None:
        for target, source in Memory.begun:
            target[:] = source
        Memory.begun.clear()

    monkeypatch.setattr(Region, "allocate", lambda size_bytes: Memory(size_bytes, fill=0xEE))
    monkeypatch.setattr(Region, "finish", staticmethod(finish))
    buffers = [("A", "input"), ("C", "output"), ("W", "workspace"), ("table", "symbol")]
    plans = [
        LaunchPlan(
            build_key="b", device_profile="h200", axes={}, operations=(), isolation="full", recorder_revision=1,
            buffers=tuple(Buffer.model_validate({"name": n, "role": r, "size_bytes": size}) for n, r in buffers),
        )
        for size in (100, 200)
    ]  # fmt: skip
    executor = PlacedExecutor(Adds(), RegionPool(1 << 40))  # type: ignore[arg-type]
    assert executor.load(None, plans) is None  # type: ignore[arg-type]
    return executor


def adds(placed: PlacedExecutor) -> Adds:
    assert isinstance(placed.executor, Adds)
    return placed.executor


def test_inputs_stay_pristine_and_results_are_what_the_call_left(placed: PlacedExecutor) -> None:
    given, after, out = Memory(100, fill=7), Memory(100), Memory(100)
    for _ in range(5):
        called = placed.call(0, {"A": given, "unused": given}, {"A": after, "C": out}, timeout_s=9, flush=True)
        assert isinstance(called, Call)
        assert set(given.bytes[:100]) == {7} == set(out.bytes[:100]) and set(after.bytes[:100]) == {8}
        assert set(after.bytes[100:]) == {0} == set(out.bytes[100:])


def test_places_are_drawn_among_one_more_than_a_call_needs(placed: PlacedExecutor) -> None:
    for _ in range(60):
        placed.call(0, {"A": Memory(100)}, {}, timeout_s=9, flush=True)
    pairs = {(places["A"].serial, places["C"].serial) for places in adds(placed).seen}
    assert len(pairs) == 6, "all orders of two of three come in sixty draws, but for once in ten thousand"
    assert all(set(places) == {"A", "C"} for places in adds(placed).seen), "workspaces are the executor's own"
    assert adds(placed).forgotten == []


def test_places_of_another_size_are_given_up(placed: PlacedExecutor) -> None:
    placed.call(0, {"A": Memory(100)}, {}, timeout_s=9, flush=True)
    placed.call(1, {"A": Memory(200)}, {}, timeout_s=9, flush=True)
    assert len(adds(placed).forgotten) == 3 == len(placed._pool._idle[100])
    assert {place.size_bytes for place in adds(placed).seen[1].values()} == {200}
    placed.call(0, {"A": Memory(100)}, {}, timeout_s=9, flush=True)
    assert adds(placed).seen[2]["A"] in adds(placed).forgotten, "the pool lends it again"


def test_call_goes_on_without_a_spare_place_where_memory_is_short(
    placed: PlacedExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    left, asked = [Memory(100), Memory(100)], []

    def allocate(size_bytes: int) -> Memory:
        asked.append(size_bytes)
        if not left:
            raise InfrastructureError("the CUDA driver refuses a memory region")
        return left.pop()

    monkeypatch.setattr(Region, "allocate", allocate)
    idle = Memory(300)
    placed._pool.give_back(idle)
    for _ in range(3):
        assert isinstance(placed.call(0, {"A": Memory(100)}, {}, timeout_s=9, flush=True), Call)
    assert len({place.serial for places in adds(placed).seen for place in places.values()}) == 2
    assert asked == [100] * 3, "it is not asked for again"
    assert placed._pool._idle[300] == [idle], "what others may want is not closed for it"
    with pytest.raises(InfrastructureError, match="refuses"):
        placed.call(1, {"A": Memory(200)}, {}, timeout_s=9, flush=True)


def test_memory_that_does_not_fit_is_a_slip_of_the_caller(placed: PlacedExecutor) -> None:
    def call(inputs: dict[str, Memory], results: dict[str, Memory]) -> None:
        placed.call(0, inputs, results, timeout_s=9, flush=True)

    with pytest.raises(UsageError, match="no memory for the input A"):
        call({"C": Memory(100)}, {})
    with pytest.raises(UsageError, match="the memory for A has 101 bytes; the plan wants 100"):
        call({"A": Memory(101)}, {})
    with pytest.raises(UsageError, match="the memory for C has 99 bytes"):
        call({"A": Memory(100)}, {"C": Memory(99)})
    call({"A": Memory(100)}, {"C": Memory(100), "unknown": Memory(5)})
    assert len(adds(placed).seen) == 1


def test_what_a_call_that_failed_has_left_is_not_taken(placed: PlacedExecutor) -> None:
    adds(placed).fails = True
    out = Memory(100)
    assert isinstance(placed.call(0, {"A": Memory(100)}, {"C": out}, timeout_s=9, flush=True), Failure)
    assert not out.bytes.any()


@pytest.mark.parametrize("ended", [True, False])
def test_memory_goes_back_when_nothing_can_write_to_it_any_more(placed: PlacedExecutor, ended: bool) -> None:
    placed.call(0, {"A": Memory(100)}, {}, timeout_s=9, flush=True)
    adds(placed).ended = ended
    placed.release()
    placed.release()
    held = list(itertools.chain.from_iterable(placed._pool._idle.values()))
    assert len(held) == len({region.serial for region in held}) == (3 if ended else 0)
    assert {type(region) for region in held} <= {Memory}
