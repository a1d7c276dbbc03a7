"""Which numbers a status becomes, without a cluster; `test_ray.py` looks at them where Ray exports them."""

from __future__ import annotations

from typing import Any

import pytest

from ptxgym.cluster.protocol import Kind
from tests.cluster.fakes import BUILDER, CPU, Bench

pytest.importorskip("ray", reason='needs Ray: pip install "ptxgym[cluster]"')


class Kept:
    """A metric that keeps its last values."""

    values: dict[tuple[str, str | None], float]

    def __init__(self, name: str, *rest: Any) -> None:
        self.name = name

    def set(self, value: float, labels: dict[str, str]) -> None:
        self.values[self.name, labels.get("kind")] = value

    inc = set


def test_workers_that_start_are_told_beside_those_that_are_wanted(monkeypatch: pytest.MonkeyPatch) -> None:
    from ptxgym.cluster import ray_metrics

    monkeypatch.setattr(Kept, "values", {}, raising=False)
    monkeypatch.setattr(ray_metrics, "Gauge", Kept)
    monkeypatch.setattr(ray_metrics, "Counter", Kept)
    bench, metrics = Bench([CPU, BUILDER]), ray_metrics.Metrics("here/1/0")
    told = []
    for _ in range(2):
        metrics.export(bench.scheduler.status())
        told.append([Kept.values[f"ptxgym_workers_{which}", kind] for which in ("wanted", "starting") for kind in Kind])
        bench.staff()
    assert told == [[2, 1, 0, 2, 1, 0], [2, 1, 0, 0, 0, 0]]  # to build, emulate and measure
