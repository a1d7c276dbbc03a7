"""Hiring, and a fleet that follows its cluster, on a backend that is none."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import pytest

from ptxgym.cluster import engine
from ptxgym.cluster.results import Results
from ptxgym.cluster.scheduler import Limits
from ptxgym.cluster.station import Description
from ptxgym.cluster.work import Role
from ptxgym.errors import InfrastructureError, ResourcesMissing, UsageError
from tests.cluster.fakes import CPU, GPU, FakeWorker


class Nowhere:
    name = "nowhere"

    def trouble(self) -> str:
        return ""

    def publish(self, status: object) -> None:
        pass

    def close(self) -> None:
        pass


class Hired(FakeWorker):
    """A fake worker that has described itself."""

    description = Description("here", {"ptxgym": "1"})


def looks(*errors: Exception) -> Iterator[Any]:
    """What a cluster says at each look: first these errors, then that there is room for one worker."""
    yield from errors
    while True:
        yield [CPU]


@pytest.mark.parametrize("error", [ResourcesMissing("no GPU is there now"), InfrastructureError("the head is silent")])
def test_a_fleet_goes_on_following_though_a_look_fails(monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    monkeypatch.setattr(engine, "GROW_S", 0.01)
    hired, said = threading.Event(), looks(error, error)

    def look() -> list[Role]:
        found = next(said)
        if isinstance(found, Exception):
            raise found
        return found

    def hire(role: Role, tell: object) -> Any:
        assert role is CPU
        hired.set()
        raise InfrastructureError("nobody is to be had")

    backend: Any = Nowhere()
    made = engine.Engine([], Limits(1, 0), Results(None), backend, hire, {}, look)
    assert hired.wait(30)
    made.close()


@pytest.mark.parametrize("others", [True, False], ids=["another comes up", "nobody else"])
def test_a_role_that_can_never_be_filled_is_no_obstacle_to_the_others(others: bool) -> None:
    tried = threading.Event()

    def hire(role: Role, tell: object) -> Any:
        if role is CPU:
            assert tried.wait(30)
            if others:
                return Hired("cpu", "here")
        raise UsageError(f"no {role.name} here")

    backend: Any = Nowhere()
    made = engine.Engine([GPU, CPU], Limits(1, 0), Results(None), backend, hire, {})
    with pytest.raises(UsageError, match="no H200 0 here"):
        made.description(GPU, 30)
    tried.set()
    if others:
        assert made.versions(30) == {"ptxgym": "1"}
    else:
        with pytest.raises(UsageError, match="no cpu 0 here"):
            made.versions(30)
    made.close()
