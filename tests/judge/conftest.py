from __future__ import annotations

from types import ModuleType

import pytest

from ptxgym.judge.conditions import Conditions, conditions
from ptxgym.task import Task, load_task
from tests.judge import fakes as fake_kernels


@pytest.fixture(scope="session")
def fakes() -> ModuleType:
    return fake_kernels


@pytest.fixture(scope="session")
def task() -> Task:
    return load_task("gemm")


@pytest.fixture(scope="session")
def drawn(task: Task) -> Conditions:
    return conditions(task, "emulation", secret=fake_kernels.SECRET)
