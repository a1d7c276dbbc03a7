"""The environment over templates: spaces, turns, rewards, faults; on a device that multiplies by numpy."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from gymnasium.error import InvalidAction, ResetNeeded
from gymnasium.utils.env_checker import check_env

from ptxgym.errors import InfrastructureError, ToolchainError, UnknownNameError, UsageError
from ptxgym.evaluator import Evaluator
from ptxgym.knobs import Knob, KnobEnv, KnobTemplate
from ptxgym.knobs.journal import Evaluated, Journal, journalled, key, read_journals
from tests.bad_kernels import host
from tests.scripted import ScriptedDevice

NAMES = ("kRight", "kUnused")
TEMPLATE = KnobTemplate(
    name="t",
    summary="",
    env="PTX-Gemm-H100",
    knobs=(Knob(name="kRight", choices=(True, False)), Knob(name="kUnused", choices=(1, 2))),
    text=host("// ptxgym: knobs\n  static_assert(kRight && kUnused);").replace("  // ptxgym", "// ptxgym"),
)
GOOD, BAD = np.array([0, 0]), np.array([1, 0])


@pytest.fixture(scope="module")
def scripted() -> Iterator[Evaluator]:
    with Evaluator(ScriptedDevice(), secret="s") as evaluator:
        yield evaluator


def test_gymnasium_has_nothing_to_say(scripted: Evaluator, recwarn: pytest.WarningsRecorder) -> None:
    check_env(KnobEnv(TEMPLATE, turns=2, evaluator=scripted), skip_render_check=True)
    assert not [str(warning.message) for warning in recwarn]


def test_an_episode_of_three_turns(scripted: Evaluator) -> None:
    env = KnobEnv(TEMPLATE, turns=3, ladder=0.4, evaluator=scripted)
    first, info = env.reset(seed=1)
    assert info == {"turn": 0, "best_score": 0.0}
    at = {name: place for place, name in enumerate(env.feature_names)}
    assert first[at["turns_left"]] == 1.0 and np.count_nonzero(first) == 1

    seen, reward, terminated, truncated, info = env.step(BAD)
    assert (reward, terminated, truncated) == (pytest.approx(0.1), False, False)  # did not compile: a rung of four
    assert info["terms"] == {"score": 0.0, "ladder": pytest.approx(0.1)}
    assert info["setting"] == {"kRight": False, "kUnused": 1} and info["verdict"].status == "compile_error"
    assert seen[at["status=compile_error"]] == seen[at["kRight=False"]] == 1.0 and seen[at["kRight=True"]] == 0.0

    seen, reward, terminated, _, info = env.step(GOOD)
    assert reward == pytest.approx(0.5 + 0.3) and not terminated
    assert (info["score"], info["best_score"], info["turn"]) == (0.5, 0.5, 2)
    assert seen[at["turns_left"]] == pytest.approx(1 / 3) and seen[at["score"]] == 0.5

    seen, reward, terminated, _, info = env.step(BAD)
    assert (reward, terminated) == (0.0, True)  # neither a rung nor a score is paid twice
    assert seen[at["best_score"]] == 0.5 and seen[at["score"]] == 0.0
    with pytest.raises(ResetNeeded):
        env.step(GOOD)
    env.reset()
    assert env.step(GOOD)[1] == pytest.approx(0.5 + 0.4)


def test_without_a_ladder_scores_alone_are_paid(scripted: Evaluator) -> None:
    env = KnobEnv(TEMPLATE, evaluator=scripted)
    env.reset()
    assert env.step(BAD)[1:3] == (0.0, True)
    env.reset()
    stepped = env.step(GOOD)
    assert stepped[1] == 0.5 and stepped[4]["terms"] == {"score": 0.5}


@pytest.mark.parametrize("action", [[2, 0], [0, -1], [0], [0.0, 0.0], [0, 0, 0]])
def test_what_is_no_action_is_refused(scripted: Evaluator, action: list[float]) -> None:
    env = KnobEnv(TEMPLATE, evaluator=scripted)
    env.reset()
    with pytest.raises(InvalidAction, match=r"a choice for each of \(2, 2\)"):
        env.step(np.array(action))
    assert env.step(GOOD)[1] == 0.5


def test_equal_choices_are_seen_alike(scripted: Evaluator) -> None:
    rollouts = []
    for _ in range(2):
        env = KnobEnv(TEMPLATE, turns=4, evaluator=scripted)
        env.action_space.seed(7)
        env.reset(seed=7)
        rollouts.append([env.step(env.action_space.sample())[:2] for _ in range(4)])
    for one, other in zip(*rollouts, strict=True):
        assert np.array_equal(one[0], other[0]) and one[1] == other[1]


def test_a_fault_of_the_machine_truncates(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*of: object, **more: object) -> None:
        raise InfrastructureError("the disk is full")

    with Evaluator(ScriptedDevice(), secret="s") as evaluator:
        env = journalled(KnobEnv(TEMPLATE, turns=3, evaluator=evaluator), tmp_path / "runner-0.jsonl")
        env.reset()
        env.step(GOOD)
        monkeypatch.setattr(evaluator, "evaluate", fail)
        seen, reward, terminated, truncated, info = env.step(BAD)
        assert (reward, terminated, truncated, info["reward_valid"]) == (0.0, False, True, False)
        assert info["error"] == "InfrastructureError: the disk is full" and "verdict" not in info
        assert env.observation_space.contains(seen) and info["best_score"] == 0.5
        with pytest.raises(ResetNeeded):
            env.step(GOOD)
    assert [line.setting for line in read_journals(tmp_path)] == [{"kRight": True, "kUnused": 1}]


class Failing:
    """An evaluation that fails some times, then does what it did."""

    def __init__(self, evaluator: Evaluator, error: Exception, times: int) -> None:
        self.evaluate, self.error, self.left = evaluator.evaluate, error, times

    def __call__(self, *of: Any, **more: Any) -> Any:
        if self.left:
            self.left -= 1
            raise self.error
        return self.evaluate(*of, **more)


@pytest.mark.parametrize(
    ("error", "times", "valid", "waited"),
    [
        (InfrastructureError("the service has no room"), 2, True, [1.0, 5.0]),
        (InfrastructureError("the disk is full"), 3, False, [1.0, 5.0]),
        (ToolchainError("there is no nvcc"), 1, False, []),
        (InfrastructureError("never raised"), 0, True, []),
    ],
)
def test_a_turn_that_the_machine_failed_at_is_tried_again_after_each_pause(
    monkeypatch: pytest.MonkeyPatch, error: Exception, times: int, valid: bool, waited: list[float]
) -> None:
    slept: list[float] = []
    monkeypatch.setattr("ptxgym.knobs.env.time", SimpleNamespace(sleep=slept.append))
    with Evaluator(ScriptedDevice(), secret="s") as evaluator:
        env = KnobEnv(TEMPLATE, turns=2, evaluator=evaluator, pauses_s=(1, 5))
        env.reset()
        env.step(BAD)
        monkeypatch.setattr(evaluator, "evaluate", Failing(evaluator, error, times))
        _, reward, terminated, truncated, info = env.step(GOOD)
    assert (info["reward_valid"], truncated, terminated) == (valid, not valid, valid) and slept == waited
    assert (reward, info["turn"]) == ((0.5, 2) if valid else (0.0, 1))


def test_what_an_environment_does_not_take_is_said(scripted: Evaluator) -> None:
    with pytest.raises(UnknownNameError, match="did you mean 'gemm/h100/ring'"):
        KnobEnv("gemm/h100/rin", evaluator=scripted)
    with pytest.raises(UnknownNameError, match="unknown environment 'PTX-Gem-H100'"):
        KnobEnv(TEMPLATE.model_copy(update={"env": "PTX-Gem-H100"}), evaluator=scripted)
    with pytest.raises(UnknownNameError, match="shaped"):
        KnobEnv(TEMPLATE, reward="shape", evaluator=scripted)
    with pytest.raises(UsageError, match="turns"):
        KnobEnv(TEMPLATE, turns=0, evaluator=scripted)
    with pytest.raises(UsageError, match="ladder must be 0 or more, not -1"):
        KnobEnv(TEMPLATE, ladder=-1, evaluator=scripted)
    with pytest.raises(UsageError, match=r"pauses_s must be seconds, 0 or more, not \[1, -1\]"):
        KnobEnv(TEMPLATE, pauses_s=(1, -1), evaluator=scripted)
    env = KnobEnv(TEMPLATE, evaluator=scripted)
    with pytest.raises(ResetNeeded):
        env.step(GOOD)
    with pytest.raises(UsageError, match="takes no reset options, such as 'turns'"):
        env.reset(options={"turns": 2})
    env.close()
    with pytest.raises(UsageError, match="closed"):
        env.reset()


def test_a_journal_has_each_setting_once_and_goes_on(scripted: Evaluator, tmp_path: Path) -> None:
    env = KnobEnv(TEMPLATE, turns=1, evaluator=scripted)
    verdicts = {}
    for action in (GOOD, BAD):
        env.reset()
        verdicts[tuple(action)] = env.step(action)[4]["verdict"]
    file = tmp_path / "runner-0.jsonl"
    journal = Journal(file)
    good, bad = (TEMPLATE.setting(tuple(map(int, action))) for action in (GOOD, BAD))
    for setting, action in [(good, GOOD), (good, GOOD), (bad, BAD)]:
        journal.note(setting, verdicts[tuple(action)])
    journal = Journal(file)
    journal.note(bad, verdicts[tuple(BAD)])
    journal.note({**good, "kUnused": 2}, verdicts[tuple(GOOD)])
    lines = read_journals(tmp_path)
    assert [(line.setting["kRight"], line.setting["kUnused"], line.score) for line in lines] == [
        (True, 1, 0.5), (False, 1, 0.0), (True, 2, 0.5),
    ]  # fmt: skip
    assert [line.turn for line in lines] == [1, 3, 5]  # a sitting goes on from the last line of the one before
    (tmp_path / "runner-1.jsonl").write_text(
        Evaluated(setting=dict(good), score=0.25, status="ok", code="", turn=2).model_dump_json() + "\n"
    )
    assert [line.score for line in read_journals(tmp_path)] == [0.5, 0.0, 0.5]
    assert key({"a": 1, "b": 2}) == key({"b": 2, "a": 1}) != key({"a": True, "b": 2})


def turned(env: Any, action: Any) -> None:
    env.reset()
    env.step(action)


def open_files(folder: Path) -> list[str]:
    """What this process has open of a folder, removed files too."""
    links = [str(link.readlink()) for link in Path("/proc/self/fd").iterdir() if link.is_symlink()]
    return [link for link in links if link.startswith(str(folder))]


def test_the_last_environment_closes_the_journal(scripted: Evaluator, tmp_path: Path) -> None:
    file = tmp_path / "runner-0.jsonl"
    one, two = (journalled(KnobEnv(TEMPLATE, evaluator=scripted), file) for _ in range(2))
    assert open_files(tmp_path) == [str(file)]
    turned(one, GOOD)
    one.close()
    one.close()
    turned(two, BAD)
    assert [line.turn for line in read_journals(tmp_path)] == [1, 2] and open_files(tmp_path) == [str(file)]
    two.close()
    assert open_files(tmp_path) == []
    with pytest.raises(UsageError, match="closed"):
        one.reset()
    three = journalled(KnobEnv(TEMPLATE, evaluator=scripted), file)
    turned(three, GOOD)
    assert [line.turn for line in read_journals(tmp_path)] == [1, 2]  # it goes on with what is there
    three.close()


def test_a_folder_that_was_made_anew_gets_a_file_of_its_own(scripted: Evaluator, tmp_path: Path) -> None:
    folder = tmp_path / "evaluations"
    file = folder / "runner-0.jsonl"
    old = journalled(KnobEnv(TEMPLATE, evaluator=scripted), file)
    turned(old, GOOD)
    shutil.rmtree(folder)  # as another process may do, which then begins a run there
    folder.mkdir()
    file.touch()
    new = journalled(KnobEnv(TEMPLATE, evaluator=scripted), file)
    turned(new, GOOD)
    assert [line.turn for line in read_journals(folder)] == [1]
    again = journalled(KnobEnv(TEMPLATE, evaluator=scripted), file)
    turned(again, BAD)
    old.close()
    assert [line.turn for line in read_journals(folder)] == [1, 2], "one journal for both: no turn is counted twice"
    new.close()
    again.close()
    assert open_files(tmp_path) == []
