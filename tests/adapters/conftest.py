"""What the adapters' tests share: scripted answers, and a device that fails when it is told to."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import pytest

from ptxgym.adapters import rollout
from ptxgym.agent.prompting import fenced
from ptxgym.build import Build
from ptxgym.device.protocol import Bytes, RunOptions
from ptxgym.errors import WorkerDied
from ptxgym.evaluator import Evaluator
from ptxgym.plan import LaunchPlan
from tests.bad_kernels import host
from tests.scripted import Answer, ScriptedDevice

NOTHING = "I would use TMA."
RIGHT = f"Here it is.\n{fenced(host(''))}\n"
"""Correct on CUDA cores: 0.2."""
DOOMED = f"Another.\n{fenced(host('').replace('kernel', 'doomed'))}\n"
"""On this one the machine dies, every time."""


class FrailDevice(ScriptedDevice):
    """Dies on the doomed kernel, and on any for as long as `dying` is set."""

    def __init__(self) -> None:
        super().__init__(family="fma")
        self.dying = False
        self.deaths = 0

    def run(
        self, build: Build, plan: LaunchPlan, buffers: Mapping[str, Bytes], options: RunOptions = RunOptions()
    ) -> Answer:
        if self.dying or "doomed" in str(plan):
            self.deaths += 1
            raise WorkerDied("gone")
        return super().run(build, plan, buffers, options)


@pytest.fixture
def device() -> FrailDevice:
    return FrailDevice()


@pytest.fixture
def evaluator(device: FrailDevice) -> Iterator[Evaluator]:
    with Evaluator(device) as made:
        yield made


@pytest.fixture(autouse=True)
def _no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    """Repeat at once what the machine failed at."""
    monkeypatch.setattr(rollout, "JUDGE_PAUSES_S", (0.0, 0.0))
