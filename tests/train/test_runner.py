"""What an env runner steps, without RLlib: machine failures are raised, never returned, and end a run in the end."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gymnasium.error import InvalidAction

from ptxgym.errors import InfrastructureError
from ptxgym.evaluator import Evaluator
from ptxgym.knobs.journal import read_journals
from ptxgym.train import runner
from ptxgym.train.recorder import Recorder
from tests.scripted import ScriptedDevice
from tests.train.test_rllib import TEMPLATE, TEXT

RIGHT, WRONG = np.array([1, 0]), np.array([0, 1])


@pytest.fixture
def evaluator() -> Iterator[Evaluator]:
    with Evaluator(ScriptedDevice(), secret="s") as scripted:
        yield scripted


@pytest.fixture
def settings(tmp_path: Path, evaluator: Evaluator) -> Iterator[dict[str, Any]]:
    """As `ppo` gives them to RLlib, for an evaluator that is lent."""
    (tmp_path / "two.toml").write_text(TEMPLATE)
    (tmp_path / "two.cu.in").write_text(TEXT)
    runner.LENT["here"] = evaluator
    yield {
        "template": str(tmp_path / "two.toml"), "keep": {}, "turns": 1, "reward": "shaped", "ladder": 0.0,
        "device": "auto", "tier": "standard", "journals": str(tmp_path / "evaluations"), "pauses_s": (0.0, 0.0),
        "sitting": "here", "recorder": "",
    }  # fmt: skip
    runner.forget("here")


def broken(monkeypatch: pytest.MonkeyPatch, evaluator: Evaluator) -> None:
    def fail(*of: object, **more: object) -> None:
        raise InfrastructureError("the disk is full")

    monkeypatch.setattr(evaluator, "evaluate", fail)


def dropped(settings: dict[str, Any]) -> None:
    """An episode as RLlib has it: an environment that raised is closed and made anew."""
    env = runner.make_env(settings)
    env.reset()
    with pytest.raises(InfrastructureError, match="the disk is full"):
        env.step(RIGHT)
    env.close()


def test_what_the_machine_failed_at_is_raised_and_in_no_journal(
    settings: dict[str, Any], evaluator: Evaluator, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    env = runner.make_env(settings)
    env.reset()
    assert env.step(WRONG)[1:4] == (0.0, True, False)  # a bad kernel is paid, the machine's failure is not
    env.close()
    with monkeypatch.context() as failing:
        broken(failing, evaluator)
        dropped(settings)
    env = runner.make_env(settings)
    env.reset()
    assert env.step(RIGHT)[1] == 0.5
    env.close()
    assert [line.score for line in read_journals(tmp_path / "evaluations")] == [0.0, 0.5]


def test_failures_in_a_row_end_the_run_and_a_turn_that_was_judged_begins_anew(
    settings: dict[str, Any], evaluator: Evaluator, monkeypatch: pytest.MonkeyPatch
) -> None:
    for _ in range(2):
        with monkeypatch.context() as failing:
            broken(failing, evaluator)
            for _ in range(runner.MOST_DROPPED - 1):
                dropped(settings)
        env = runner.make_env(settings)
        env.reset()
        env.step(RIGHT)
        env.close()
    broken(monkeypatch, evaluator)
    for _ in range(runner.MOST_DROPPED):
        dropped(settings)
    with pytest.raises(InfrastructureError, match=r"failed at 3 episodes in a row.*--resume.*\(.*the disk is full\)"):
        runner.make_env(settings)
    runner.LENT["there"] = evaluator
    runner.make_env({**settings, "sitting": "there"}).close()  # another sitting counts for itself
    runner.forget("there")


def test_what_is_not_the_machine_s_fault_is_raised_at_once(settings: dict[str, Any]) -> None:
    env = runner.make_env(settings)
    env.reset()
    with pytest.raises(InvalidAction, match="a choice for each of"):
        env.step(np.array([7, 7]))
    with pytest.raises(InvalidAction, match="a choice for each of"):
        runner.make_env(settings)


def test_the_recorder_keeps_a_file_for_each_runner(settings: dict[str, Any], tmp_path: Path) -> None:
    env = runner.make_env(settings)
    env.reset()
    env.step(RIGHT)
    (line,) = read_journals(tmp_path / "evaluations")
    folder = tmp_path / "driver"
    folder.mkdir()
    recorder = Recorder(folder)
    for number in (1, 2, 2):
        recorder.take(number, line.model_copy(update={"turn": 0}))
    recorder.take(2, line.model_copy(update={"setting": {"kRight": False, "kUnused": 1}}))
    assert {path.name for path in folder.iterdir()} == {"runner-1.jsonl", "runner-2.jsonl"}
    assert [each.turn for each in read_journals(folder)] == [1, 3]
    found = folder.stat()
    assert recorder.same_folder((found.st_dev, found.st_ino))
    assert not recorder.same_folder((found.st_dev, found.st_ino + 1))
    assert not Recorder(tmp_path / "elsewhere").same_folder((found.st_dev, found.st_ino))
