from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from ptxgym.cluster import EvaluationService, Fleet
from tests.cluster.stations import MAKER


@pytest.fixture
def log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder where scripted workers write what they do."""
    folder = tmp_path / "log"
    folder.mkdir()
    monkeypatch.setenv("PTXGYM_TEST_LOG", str(folder))
    return folder


@pytest.fixture
def make(log: Path) -> Iterator[Callable[..., EvaluationService]]:
    """Makes services of scripted worker processes, and closes them."""
    made: list[EvaluationService] = []

    def make(**settings: object) -> EvaluationService:
        settings = {"fleet": Fleet(cpu=1), "secret": "s", "maker": MAKER} | settings
        made.append(EvaluationService(**settings))  # type: ignore[arg-type]
        return made[-1]

    yield make
    for service in made:
        service.close()


def steps(log: Path) -> list[tuple[str, str]]:
    """Return kind and first line of the text of each step that was begun."""
    path = log / "steps"
    lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    return [(kind, text) for kind, _, text in (line.split(" ", 2) for line in lines)]
