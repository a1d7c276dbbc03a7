"""What is true of a group's rewards whatever its rollouts were: noise, equal texts, missing rows, conditions, tags."""

from __future__ import annotations

import math
import random
from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ptxgym.adapters.group import Member, MixedConditionsError, group_advantages, group_rewards
from ptxgym.adapters.rollout import Rollout
from ptxgym.episode import Episode
from ptxgym.evaluator import Evaluator
from ptxgym.reward import SCORE_DECIMALS, bounds, score, terms
from ptxgym.verdict import Evidence, Measured, Provenance, Stage, Status, Timing, Verdict

HERE = frozenset({("conditions", "c"), ("device", "NVIDIA H200"), ("tier", "rl")})


Noise = tuple[float, float]


def member(
    reward: float | None, text: str = "", noise: Noise = (0.0, 0.0), task: str = "task", **parts: object
) -> Member:
    found = Member(task, (text or f"text of {reward}",), reward, HERE, noise=noise)
    return replace(found, **parts)  # type: ignore[arg-type]


def timed(low: float, high: float, text: str = "t") -> Verdict:
    """The verdict of a kernel on target instructions whose speed-up lies between `low` and `high`."""
    timing = Timing(
        speedup=math.sqrt(low * high), speedup_low=low, speedup_high=high, candidate_us=1, baseline_us=1, baseline="x"
    )
    evidence = Evidence(
        source="ncu", workload="hardware", required_multiply_adds=1, target_multiply_adds=1, other_multiply_adds=0,
        coverage=1.0, target_ok=True, families={},
    )  # fmt: skip
    return Verdict(
        stage=Stage.JUDGE,
        status=Status.OK,
        code="judge.ok",
        message="",
        score=score(Status.OK, (), evidence, (), timing),
        evidence=evidence,
        provenance=Provenance(
            ptxgym="0", task="gemm", task_revision=1, arch="h100", source_sha256=text, conditions="c",
            device="NVIDIA H200", tier="rl",
        ),
        measured=Measured(timing=timing),
    )  # fmt: skip


class Stopwatch(Evaluator):
    """Measures what it is told, in order: (low, high) of the speed-up."""

    def __init__(self, *measured: tuple[float, float]) -> None:
        super().__init__("emulator", secret="s")
        self.measured = list(measured)

    def evaluate(self, text: str, *arguments: object, **more: object) -> Verdict:  # type: ignore[override]
        return timed(*self.measured.pop(0), text)


def measured(low: float, high: float, text: str, preset: str = "shaped") -> Member:
    """A rollout of one kernel with this speed-up."""
    with Stopwatch((low, high)) as evaluator:
        rollout = Rollout(Episode("PTX-Gemm-H100", evaluator, turns=1, reward=preset))
        rollout.answer(f"```cuda\n{text}\n```")
        return rollout.member


rewards = st.sampled_from([0.0, 0.05, 0.2, 0.3, 0.45, 0.5, 0.735, 0.74, 0.745, 0.9])
members = st.builds(
    member,
    st.one_of(st.none(), rewards),
    st.sampled_from("abcdef"),
    st.tuples(*[st.sampled_from([0.0, 0.002, 0.006, 0.02])] * 2),
    st.sampled_from(["gemm", "attn"]),
)
groups = st.lists(members, min_size=1, max_size=16)


# Noise


def test_kernels_that_cannot_be_told_apart_are_paid_alike_across_the_edge_of_a_grid() -> None:
    """0.7070 and 0.7072 lie on both sides of a grid line, -0.5 in log2; their intervals overlap."""
    below, above = measured(0.7070, 0.7090, "a"), measured(0.7072, 0.7092, "b")
    assert above.reward is not None and below.reward is not None
    assert above.reward - below.reward == pytest.approx(0.005)
    assert group_rewards([above, below]) == [below.reward, below.reward]
    assert group_advantages(group_rewards([above, below])) == [0.0, 0.0]


def test_the_control_kernels_that_differ_by_more_than_their_noise_keep_their_order() -> None:
    slower, faster = measured(0.7070, 0.7071, "a"), measured(0.7072, 0.7073, "b")
    assert group_rewards([faster, slower]) == [faster.reward, slower.reward]
    for factor in (1.05, 2.0):
        one, other = measured(0.5, 0.51, "a"), measured(0.5 * factor, 0.51 * factor, "b")
        found = group_rewards([one, other])
        assert found == [one.reward, other.reward] and found[0] != found[1]


@pytest.mark.parametrize("preset", ["shaped", "final", "ptxbench"])
@given(st.floats(0.05, 1.5), st.floats(1.0, 1.05), st.floats(1.0, 1.05), st.floats(0, 1))
def test_overlapping_intervals_are_equal_after_quantisation(
    preset: str, low: float, width: float, other: float, where: float
) -> None:
    """Wherever the second interval begins inside of the first."""
    one = measured(low, low * width, "a", preset)
    start = low + where * (low * width - low)
    two = measured(start, start * other, "b", preset)
    found = group_rewards([one, two])
    assert found[0] == found[1]


def test_the_least_and_the_most_that_a_verdict_may_be_worth_is_what_its_interval_says() -> None:
    found = timed(0.5, 0.6)
    least, most = bounds(found)
    assert (least["speedup"], most["speedup"]) == (0.5, 0.6)
    exact = 0.5 + 0.5 * (math.log2(0.6) + 5) / 5
    assert least["score"] == found.score < 0.9 < most["score"]
    assert most["score"] == pytest.approx(exact, abs=10**-SCORE_DECIMALS)
    assert bounds(timed(2.0, 3.0))[1]["score"] == 1.0  # parity pays all
    wrong = found.model_copy(update={"status": Status.WRONG_OUTPUT})
    assert bounds(wrong) == (terms(wrong), terms(wrong))


@given(groups)
def test_different_rewards_of_a_group_differ_by_more_than_their_noise(group: list[Member]) -> None:
    found = group_rewards(group)
    for task in ("gemm", "attn"):
        mine = [(each, paid) for each, paid in zip(group, found, strict=True) if each.task == task and paid is not None]
        for low, high in pairwise(sorted({paid for _, paid in mine})):
            above = max((each.noise[1] for each, _ in mine if each.reward == low), default=0.0)
            below = min((each.noise[0] for each, _ in mine if each.reward == high), default=0.0)
            assert high - below > low + above - 1e-9


@given(groups)
def test_no_reward_is_raised_and_rungs_of_the_emulator_stay(group: list[Member]) -> None:
    for each, reward in zip(group, group_rewards(group), strict=True):
        assert (reward is None) == (each.reward is None)
        assert reward is None or each.reward is None or reward <= each.reward
    exact = [replace(each, noise=(0.0, 0.0), texts=(f"{at}",)) for at, each in enumerate(group)]
    assert group_rewards(exact) == [each.reward for each in exact]


# Equal texts


@given(groups)
def test_equal_texts_of_a_task_get_equal_rewards(group: list[Member]) -> None:
    paid: dict[tuple[str, tuple[str, ...]], set[float]] = {}
    for each, reward in zip(group, group_rewards(group), strict=True):
        if reward is not None:
            paid.setdefault((each.task, each.texts), set()).add(reward)
    assert all(len(found) == 1 for found in paid.values())


@given(groups, st.randoms(use_true_random=False))
def test_the_order_of_a_batch_makes_no_difference(group: list[Member], luck: random.Random) -> None:
    order = list(range(len(group)))
    luck.shuffle(order)
    found = group_rewards(group)
    assert group_rewards([group[at] for at in order]) == [found[at] for at in order]


@given(groups, groups)
def test_groups_of_other_tasks_make_no_difference(group: list[Member], others: list[Member]) -> None:
    apart = [replace(each, task=f"{each.task} elsewhere") for each in others]
    assert group_rewards([*group, *apart]) == [*group_rewards(group), *group_rewards(apart)]


# Missing rows


@given(groups, st.integers(0, 16), st.integers(1, 4))
def test_missing_rows_change_no_siblings_reward_or_advantage(group: list[Member], at: int, count: int) -> None:
    """Even if they were judged elsewhere, and whatever text they were lost on."""
    elsewhere = frozenset({("conditions", "others")})
    lost = [member(None, "a", (0.5, 0.5), group[0].task, circumstances=elsewhere) for _ in range(count)]
    at = min(at, len(group))
    found, without = group_rewards([*group[:at], *lost, *group[at:]]), group_rewards(group)
    assert found[at : at + count] == [None] * count and [*found[:at], *found[at + count :]] == without
    advantages = group_advantages(found)
    assert advantages[at : at + count] == [0.0] * count
    assert [*advantages[:at], *advantages[at + count :]] == group_advantages(without)


def test_as_a_zero_a_missing_row_would_change_every_siblings_advantage() -> None:
    """The control of the case above."""
    group = [member(0.2, "a"), member(0.5, "b")]
    zero = group_advantages(group_rewards([*group, member(0.0, "c")]))
    assert zero[:2] != pytest.approx(group_advantages(group_rewards(group)))


# Conditions


@pytest.mark.parametrize("name", ["conditions", "device", "tier"])
def test_groups_with_mixed_circumstances_are_refused(name: str) -> None:
    other = frozenset({*(pair for pair in HERE if pair[0] != name), (name, "another")})
    odd = member(0.5, "b", circumstances=other)
    with pytest.raises(MixedConditionsError, match=f"different {name}: "):
        group_rewards([member(0.2, "a"), odd])
    assert group_rewards([member(0.2, "a"), replace(odd, task="another task")]) == [0.2, 0.5]
    assert group_rewards([member(0.2, "a"), replace(odd, reward=None)]) == [0.2, None]
    nothing_judged = member(0.0, "c", circumstances=frozenset())
    assert group_rewards([member(0.2, "a"), nothing_judged]) == [0.2, 0.0]


# Off-policy tags


@given(groups, st.lists(st.sampled_from(["", "7", "8"]), min_size=16, max_size=16))
def test_which_policy_wrote_a_text_changes_no_reward(group: list[Member], tags: list[str]) -> None:
    tagged = [replace(each, policies=(tag,)) for each, tag in zip(group, tags, strict=False)]
    assert group_rewards(tagged) == group_rewards(group)


def test_the_tag_of_each_turn_is_carried() -> None:
    with Stopwatch((0.5, 0.51), (0.6, 0.61)) as evaluator:
        rollout = Rollout(Episode("PTX-Gemm-H100", evaluator, turns=2))
        rollout.answer("```cuda\na\n```", policy="7")
        rollout.answer("```cuda\nb\n```", policy="8")
        found = rollout.member
    assert [text.strip() for text in found.texts] == ["a", "b"] and found.policies == ("7", "8")
    best = timed(0.6, 0.61)
    assert found.noise == (0.0, pytest.approx(bounds(best)[1]["score"] - best.score))  # of the best turn
