"""A fleet that follows its cluster, on a backend that hires nobody."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import pytest

from ptxgym.cluster import engine
from ptxgym.cluster.results import Results
from ptxgym.cluster.scheduler import Limits
from ptxgym.cluster.work import Role
from ptxgym.errors import InfrastructureError, ResourcesMissing
from tests.cluster.fakes import CPU


class Nowhere:
    name = "nowhere"

    def trouble(self) -> str:
        return ""

    def publish(self, status: object) -> None:
        pass

    def close(self) -> None:
        pass


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
