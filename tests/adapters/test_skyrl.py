"""The adapter for SkyRL-gym, against the library itself."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import pytest

from ptxgym.adapters.group import MixedConditionsError, group_advantages
from ptxgym.errors import UsageError, WorkerDied
from ptxgym.evaluator import Evaluator
from tests.adapters.conftest import DOOMED, NOTHING, RIGHT, FrailDevice

pytestmark = [
    pytest.mark.skipif(not importlib.util.find_spec("skyrl_gym"), reason="skyrl-gym is not installed: ptxgym[skyrl]"),
    pytest.mark.filterwarnings("ignore"),  # what the library warns of is not ours
]
EXTRAS = {"env": "PTX-Gemm-H100", "options": {"variant": "k64"}, "max_turns": 2}


@pytest.fixture
def gym() -> Iterator[ModuleType]:
    """skyrl_gym with the environment registered."""
    import skyrl_gym

    from ptxgym.adapters.skyrl import register

    register()
    register()
    yield skyrl_gym
    skyrl_gym.registry.pop("ptxgym", None)


def make(gym: ModuleType, evaluator: Evaluator, **extras: Any) -> Any:
    return gym.make("ptxgym", env_config={}, extras={**EXTRAS, **extras}, evaluator=evaluator)


def test_a_conversation_of_two_turns(gym: ModuleType, evaluator: Evaluator) -> None:
    env = make(gym, evaluator)
    prompt, about = env.init([{"role": "system", "content": "Be brief."}, {"role": "user", "content": "placeholder"}])
    assert [message["role"] for message in prompt] == ["system", "user"] and about == {}
    assert "You have 2 turns" in prompt[1]["content"] and env.max_turns == 2
    first = env.step(NOTHING)
    assert (first["reward"], first["done"]) == (0.0, False)
    assert first["observations"][0]["role"] == "user" and "no kernel file" in first["observations"][0]["content"]
    assert first["metadata"]["code"] == "submission.no_code"
    second = env.step(RIGHT)
    assert (second["reward"], second["done"], second["observations"]) == (pytest.approx(0.2), True, [])
    assert env.get_metrics()["best_score"] == 0.2
    with pytest.raises(UsageError, match="over after turn 2"):
        env.step(RIGHT)
    env.close()


@pytest.mark.parametrize("preset", ["shaped", "final"])
def test_the_last_step_of_a_rollout_may_tell_its_whole_reward(
    gym: ModuleType, evaluator: Evaluator, preset: str
) -> None:
    """SkyRL reads the last step alone under `step_wise_trajectories`, whichever turn its limits let be the last."""
    options = {"variant": "k64", "reward": preset}
    told, paid = (make(gym, evaluator, options=options, max_turns=3, cumulative=whole) for whole in (True, False))
    rewards = [(told.step(answer)["reward"], paid.step(answer)["reward"]) for answer in (NOTHING, RIGHT, NOTHING)]
    assert [so_far for so_far, _ in rewards] == pytest.approx([0.0, 0.2, 0.2])
    by_turn = {"shaped": [0.0, 0.2, 0.0], "final": [0.0, 0.0, 0.2]}
    assert [turn for _, turn in rewards] == pytest.approx(by_turn[preset]), "the control: these sum to the whole"


def test_a_failing_machine_raises_and_costs_no_turn(gym: ModuleType, evaluator: Evaluator, device: FrailDevice) -> None:
    env, sibling = make(gym, evaluator), make(gym, evaluator)
    device.dying = True
    with pytest.raises(WorkerDied):
        env.step(DOOMED)
    assert env.get_metrics()["lost"] == 1.0
    device.dying = False
    assert sibling.step(RIGHT)["reward"] == pytest.approx(0.2)


def test_a_failed_rollout_changes_no_siblings_advantage(gym: ModuleType, evaluator: Evaluator) -> None:
    def rewards(*answers: str) -> list[float | None]:
        found: list[float | None] = []
        for answer in answers:
            try:
                found.append(make(gym, evaluator, max_turns=1).step(answer)["reward"])
            except WorkerDied:
                found.append(None)
        return found

    alone = rewards(NOTHING, RIGHT, RIGHT)
    beside = rewards(NOTHING, DOOMED, RIGHT, RIGHT)
    assert beside == [alone[0], None, *alone[1:]] and alone == pytest.approx([0.0, 0.2, 0.2])
    first, lost, *others = group_advantages(beside)
    assert ([first, *others], lost) == (group_advantages(alone), 0.0)


def test_metrics_are_averaged_and_mixed_conditions_refused(gym: ModuleType, device: FrailDevice) -> None:
    from skyrl_gym.metrics import aggregate_for_environment

    found = []
    for secret, answer in (("one", RIGHT), ("one", NOTHING), ("two", RIGHT)):
        with Evaluator(device, secret=secret) as evaluator:
            env = make(gym, evaluator)
            env.step(answer)
            found.append(env.get_metrics())
    averaged = aggregate_for_environment("ptxgym", found[:2])
    assert averaged["best_score"] == pytest.approx(0.1) and averaged["correct"] == 0.5
    with pytest.raises(MixedConditionsError):
        aggregate_for_environment("ptxgym", found)


def test_rows_are_of_the_shape_that_the_trainer_reads(gym: ModuleType, evaluator: Evaluator) -> None:
    from ptxgym.adapters.skyrl import skyrl_rows

    row = skyrl_rows("train", ["PTX-Gemm-H100"])[0]
    assert (row["env_class"], row["data_source"], row["prompt"][0]["role"]) == ("ptxgym", "ptxgym", "user")
    whole = skyrl_rows("train", ["PTX-Gemm-H100"], cumulative=True)[0]
    assert whole == {**row, "cumulative": True} and row["cumulative"] is False
    env = gym.make(row["env_class"], env_config={}, extras={**row, "max_turns": 5}, evaluator=evaluator)
    assert "You have 5 turns" in env.init(row["prompt"])[0][0]["content"]
