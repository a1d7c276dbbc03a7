"""Keywords and values that no caller means: each is refused with what would be accepted, and its neighbour is not."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

import ptxgym
from ptxgym.errors import UsageError
from ptxgym.evaluator import Evaluator
from tests.scripted import ScriptedDevice

ENV = "PTX-Gemm-H100"


@pytest.fixture(scope="module")
def evaluator() -> Evaluator:
    return Evaluator(ScriptedDevice(), secret="s")


@pytest.mark.parametrize("make", [gym.make, ptxgym.make])
@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"turnz": 3}, "unknown argument of PTX-Gemm-H100 'turnz'; did you mean 'turns'?"),
        ({"seed": 3}, "seed is not accepted here; pass it to reset(seed=...)"),
        ({"workload": "emulation"}, "pass it to reset(options={'workload': ...})"),
        ({"turns": "3"}, "turns must be a whole number from 1 to 1000, not '3' (a text: leave the quotes out)"),
        ({"turns": 3.0}, "turns must be a whole number from 1 to 1000, not 3.0"),
        ({"turns": True}, "turns must be a whole number from 1 to 1000, not True"),
        ({"turns": 1001}, "turns must be a whole number from 1 to 1000, not 1001"),
        ({"feedback_bytes": 999}, "feedback_bytes must be a whole number of bytes from 1000 to 100000, not 999"),
        ({"reward": 3}, "reward must be the name of a preset"),
        ({"stop": 1}, "stop must be 'never', 'target_ok' or 'speedup:<number above 0>', not 1"),
        ({"knowledge": 5}, "knowledge must be a list of names of parts, such as ['parameters'], not 5"),
        ({"device": 0}, "device must be 'auto', 'emulator' or 'cuda', not 0"),
        ({"evaluator": "emulator"}, "to choose a device alone, pass device='emulator'"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_keywords_of_make_are_checked(make: Callable[..., object], given: dict[str, Any], said: str) -> None:
    with pytest.raises(UsageError) as caught:
        make(ENV, **given)
    assert said in str(caught.value)


def test_turns_rule_and_no_other_number_of_steps(evaluator: Evaluator) -> None:
    with pytest.raises(UsageError, match=r"max_episode_steps is not accepted; turns rule instead: pass turns=3"):
        ptxgym.make(ENV, max_episode_steps=3)
    with pytest.raises(UsageError, match="max_episode_steps is not accepted here; turns are the length of an episode"):
        gym.make_vec(ENV, num_envs=1, max_episode_steps=3, evaluator=evaluator)
    env = ptxgym.make(ENV, evaluator=evaluator, turns=1)
    env.reset()
    *_, terminated, truncated, info = env.step("no kernel")
    assert (terminated, truncated) == (True, False) and info["reward_valid"]
    env = gym.make(ENV, evaluator=evaluator, max_episode_steps=1)  # Gymnasium's own wrapper, of which nobody is told
    env.reset()
    *_, terminated, truncated, info = env.step("no kernel")
    assert (terminated, truncated) == (False, True) and info["reward_valid"]


def test_numpy_integers_are_whole_numbers(evaluator: Evaluator) -> None:
    env = gym.make(ENV, turns=np.int64(3), feedback_bytes=np.uint16(2000), evaluator=evaluator)
    config = env.unwrapped.config  # type: ignore[attr-defined]
    assert (type(config.turns), config.turns, config.feedback_bytes) == (int, 3, 2000)
    env.reset(options={"turns": np.int8(2)})
    assert env.unwrapped.episode.turns_left == 2  # type: ignore[attr-defined]


@pytest.mark.parametrize("options", [["turns"], "turns", {"turns": "3"}, {"turns": 0}, {"stop": None, "turns": 2.5}])
def test_reset_options_are_checked(evaluator: Evaluator, options: Any) -> None:
    env = gym.make(ENV, evaluator=evaluator)
    with pytest.raises(UsageError, match=r"options must be a dict|turns must be a whole number"):
        env.reset(options=options)
    env.reset(options={"turns": 3})


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"epoch": "x"}, "epoch must be a whole number of at least 0, not 'x'"),
        ({"random_schedules": -1}, "random_schedules must be a whole number of at least 0, not -1"),
        ({"builds": "2"}, "builds must be a whole number of at least 1, not '2' (a text: leave the quotes out)"),
        ({"cache": "/tmp/x"}, "set PTXGYM_CACHE"),
        ({"device": 3}, "device must be"),
        ({"secret": 12345}, "the secret must be a text, or None for the run's, not int"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_values_of_an_evaluator_are_checked(given: dict[str, Any], said: str) -> None:
    with pytest.raises(UsageError) as caught:
        Evaluator(**given)
    assert said in str(caught.value) and "12345" not in str(caught.value)


def test_other_calls_name_what_they_take(evaluator: Evaluator) -> None:
    with pytest.raises(UsageError, match="task must be a Task or the name of one, not 3"):
        evaluator.evaluate("", 3)  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="unknown workload of task gemm 3"):
        evaluator.evaluate("", "gemm", "h100", 3)  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="env must be the id of an environment"):
        ptxgym.Episode(3, evaluator)  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="the id of an environment is a text"):
        ptxgym.make(3)  # type: ignore[arg-type]
