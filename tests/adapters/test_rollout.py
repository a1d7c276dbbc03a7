"""Rollouts as trainers see them, with no trainer."""

from __future__ import annotations

import asyncio
import sys
from dataclasses import replace
from importlib import import_module

import pytest

from ptxgym.adapters.group import Member, MixedConditionsError, group_advantages, group_rewards
from ptxgym.adapters.rollout import Rollout, dataset_rows
from ptxgym.errors import UnknownNameError, UsageError, WorkerDied
from ptxgym.evaluator import Evaluator
from ptxgym.submission import extract
from ptxgym.verdict import Status
from tests.adapters.conftest import DOOMED, NOTHING, RIGHT, FrailDevice

OPEN = "// ptxgym: begin all\n// ptxgym: end\n"
ROW = {"env": "PTX-Gemm-H100", "options": {"turns": 3}}


def test_answers_earn_what_an_episode_pays(evaluator: Evaluator, device: FrailDevice) -> None:
    played = Rollout.of_row(ROW, evaluator)
    assert "You have 3 turns" in played.opening()
    first = played.answer(NOTHING)
    assert (first.verdict.code, played.reward, played.done) == ("submission.no_code", 0.0, False)
    second = played.answer(RIGHT)
    assert (second.verdict.status, second.reward, played.reward) == (Status.OK, pytest.approx(0.2), pytest.approx(0.2))
    device.family = "wgmma"
    assert played.answer(RIGHT.replace("```cuda\n", "```cuda\n// wgmma\n")).done
    assert played.reward == pytest.approx(0.5) and played.done
    assert played.metrics == {
        "lost": 0.0, "turns": 3.0, "best_score": 0.5, "correct": 1.0, "target_ok": 1.0, "last_score": 0.5,
    }  # fmt: skip
    with pytest.raises(UsageError, match="over after turn 3"):
        played.answer(RIGHT)


def test_a_machine_that_fails_for_a_moment_costs_nothing(evaluator: Evaluator, device: FrailDevice) -> None:
    played = Rollout.of_row(ROW, evaluator)

    def recover_after_two(options: object, execution: object) -> object:
        device.deaths += 1
        if device.deaths <= 2:
            raise WorkerDied("gone")
        return execution

    device.interfere = recover_after_two  # type: ignore[assignment]
    assert played.answer(RIGHT).score == 0.2
    assert (played.reward, played.lost) == (pytest.approx(0.2), "")


@pytest.mark.parametrize("asynchronous", [False, True])
def test_a_machine_that_keeps_failing_takes_the_reward_away(
    evaluator: Evaluator, device: FrailDevice, asynchronous: bool
) -> None:
    played = Rollout.of_row(ROW, evaluator)
    played.answer(RIGHT)
    with pytest.raises(WorkerDied):
        asyncio.run(played.aanswer(DOOMED)) if asynchronous else played.answer(DOOMED)
    assert device.deaths == 3
    assert (played.reward, played.done, played.metrics) == (None, True, {"lost": 1.0})
    assert played.lost == "WorkerDied: gone" and played.member.reward is None
    with pytest.raises(UsageError, match="has no reward"):
        played.answer(RIGHT)


def test_a_bug_takes_the_reward_away_even_where_a_trainer_catches_it(evaluator: Evaluator, device: FrailDevice) -> None:
    def break_(options: object, execution: object) -> object:
        raise ZeroDivisionError("ours")

    played = Rollout.of_row(ROW, evaluator)
    device.interfere = break_  # type: ignore[assignment]
    with pytest.raises(ZeroDivisionError):
        played.answer(RIGHT)
    assert played.reward is None and played.lost == "ZeroDivisionError: ours"


def test_what_is_paid_at_the_end_is_not_lost_when_a_trainer_stops_early(evaluator: Evaluator) -> None:
    played = Rollout.of_row({**ROW, "options": {"reward": "final", "turns": 3}}, evaluator)
    assert played.answer(RIGHT).reward == 0.0
    assert played.reward == pytest.approx(0.2)
    played.answer(NOTHING)
    assert played.answer(NOTHING).reward == pytest.approx(0.2)
    assert played.reward == pytest.approx(0.2) and played.episode.due == 0.0


def test_rows_say_what_they_ask_for(evaluator: Evaluator) -> None:
    mixed = {"env": "PTX-Gemm-H100", "options": {"variant": "nn", "init": None}, "difficulty": 3}
    assert Rollout.of_row(mixed, evaluator, turns=2).episode.config.turns == 2
    assert Rollout.of_row(mixed, evaluator).episode.config.variant == "nn"
    with pytest.raises(UsageError, match="names its environment in 'env'"):
        Rollout.of_row({"options": {}}, evaluator)
    with pytest.raises(UsageError, match="'trns' is unknown"):
        Rollout.of_row({"env": "PTX-Gemm-H100", "options": {"trns": 1}}, evaluator)
    rows = dataset_rows("train", ["PTX-Gemm-B200"])
    assert {row["env"] for row in rows} == {"PTX-Gemm-B200"} and len(rows) == 45
    assert "base" not in {row["options"]["variant"] for row in rows}
    with pytest.raises(UnknownNameError):
        dataset_rows("tran")


def test_equal_texts_get_equal_rewards_and_a_lost_one_changes_no_sibling(evaluator: Evaluator) -> None:
    played = [Rollout.of_row({**ROW, "options": {"turns": 1}}, evaluator) for _ in range(4)]
    for rollout, answer in zip(played, (NOTHING, RIGHT, RIGHT), strict=False):
        rollout.answer(answer)
    with pytest.raises(WorkerDied):
        played[3].answer(DOOMED)
    rewards = group_rewards([each.member for each in played])
    assert rewards == [0.0, pytest.approx(0.2), pytest.approx(0.2), None]
    whole, without = group_advantages(rewards), group_advantages(rewards[:3])
    assert whole[:3] == without and whole[3] == 0.0 and whole[0] == pytest.approx(-0.4 / 3)
    assert group_advantages([None, None]) == [0.0, 0.0]


def test_one_text_measured_twice_gets_the_lower_reward(evaluator: Evaluator) -> None:
    rollout = Rollout.of_row(ROW, evaluator)
    rollout.answer(RIGHT)
    slow = rollout.member
    fast = replace(slow, reward=0.9)
    other = replace(slow, texts=("x",), reward=0.9)
    others = frozenset({("conditions", "others")})
    elsewhere = replace(slow, task="PTX-Gemm-H100/nn", reward=0.7, circumstances=others)
    found = group_rewards([fast, slow, other, elsewhere])
    assert found == [pytest.approx(0.2), pytest.approx(0.2), 0.9, 0.7]


@pytest.mark.parametrize(
    "options",
    [{"init": extract(RIGHT).text}, {"reward": "ptxbench"}, {"turns": 2}, {"stop": "target_ok"}, {"skeleton": OPEN}],
)
def test_one_text_is_paid_by_the_rules_of_its_own_row(evaluator: Evaluator, options: dict[str, object]) -> None:
    row = {**ROW, "options": {"variant": "k64", "turns": 3}}
    one, same, other = (
        Rollout.of_row({**row, "options": {**row["options"], **changed}}, evaluator).member  # type: ignore[dict-item]
        for changed in ({}, {"knowledge": ["parameters"]}, options)
    )
    assert one.task == same.task == other.task
    assert group_rewards([paid(one, 0.5), paid(other, 0.0)]) == [0.5, 0.0], "two groups"
    assert group_rewards([paid(one, 0.5), paid(same, 0.2)]) == [0.2, 0.2], "the control: one group, one text"
    elsewhere = replace(other, circumstances=frozenset({("conditions", "others")}))
    with pytest.raises(MixedConditionsError):
        group_rewards(
            [replace(one, reward=0.5, circumstances=frozenset({("conditions", "these")})), paid(elsewhere, 0.0)]
        )


def test_a_repaired_kernel_keeps_the_reward_that_its_own_start_leaves(evaluator: Evaluator) -> None:
    scratch = Rollout.of_row({**ROW, "options": {"turns": 1}}, evaluator)
    repair = Rollout.of_row({**ROW, "options": {"turns": 1, "init": extract(RIGHT).text}}, evaluator)
    for rollout in (scratch, repair):
        rollout.answer(RIGHT)
    assert (scratch.reward, repair.reward) == (pytest.approx(0.2), 0.0), "what the start is worth counts as paid"
    assert group_rewards([scratch.member, repair.member]) == [pytest.approx(0.2), 0.0]


def paid(member: Member, reward: float) -> Member:
    return replace(member, texts=("one text",), reward=reward)


def test_mixed_conditions_are_refused(device: FrailDevice) -> None:
    members = []
    for secret in ("one", "two"):
        with Evaluator(device, secret=secret) as evaluator:
            played = Rollout.of_row(ROW, evaluator)
            played.answer(RIGHT)
            members.append(played.member)
    assert [reward is not None for reward in group_rewards(members[:1])] == [True]
    with pytest.raises(MixedConditionsError, match=r"under different conditions: .*PTXGYM_SECRET"):
        group_rewards(members)
    unjudged = Rollout.of_row(ROW, Evaluator(device, secret="three"))
    unjudged.answer(NOTHING)
    assert group_rewards([members[0], unjudged.member]) == [pytest.approx(0.2), 0.0]


@pytest.mark.parametrize(
    ("adapter", "package", "name"),
    [
        ("skyrl", "skyrl_gym", "skyrl_gym"),
        ("openenv", "openenv", "openenv"),
        ("verifiers", "verifiers", "verifiers"),
        ("trl", "trl", "trl"),
        ("verl", "verl", "verl"),
        ("nemo_gym", "nemo_gym", "nemo-gym"),
    ],
)
def test_a_missing_library_is_named_with_its_extra(
    adapter: str, package: str, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for loaded in [each for each in sys.modules if each.split(".")[0] in (package, "resources_servers")]:
        monkeypatch.delitem(sys.modules, loaded)
    monkeypatch.setitem(sys.modules, package, None)
    monkeypatch.delitem(sys.modules, f"ptxgym.adapters.{adapter}", raising=False)
    extra = adapter.replace("_", "-")
    with pytest.raises(UsageError, match=rf"package {name}: pip install 'ptxgym\[{extra}\]'"):
        import_module(f"ptxgym.adapters.{adapter}")
