from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest

from ptxgym.judge.conditions import Conditions, conditions
from ptxgym.task import Task, load_task


def _load_fakes() -> ModuleType:
    path = Path(__file__).parents[1] / "judge" / "fakes.py"
    spec = importlib.util.spec_from_file_location("judge_fakes", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["judge_fakes"] = module
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="session")
def fakes() -> ModuleType:
    return _load_fakes()


@pytest.fixture(scope="session")
def task() -> Task:
    return load_task("gemm")


@pytest.fixture(scope="session")
def drawn(task: Task, fakes: ModuleType) -> Conditions:
    return conditions(task, "emulation", secret=fakes.SECRET)
