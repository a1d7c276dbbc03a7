from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ptxgym.content import find
from ptxgym.errors import ContentError, UnknownNameError
from ptxgym.reward import Ledger, RewardPreset, load_reward
from ptxgym.verdict import Evidence, Measured, Provenance, Stage, Status, Timing, Verdict

PRESETS = sorted(find("rewards"))


def verdict(score: float, text: str, speedup: float | None = None, status: Status | None = None) -> Verdict:
    target = score >= 0.5
    time = None
    if speedup is not None:
        time = Timing(
            speedup=speedup, speedup_low=speedup, speedup_high=speedup, candidate_us=1, baseline_us=1, baseline="x"
        )
    return Verdict(
        stage=Stage.JUDGE,
        status=status or (Status.OK if score >= 0.2 else Status.WRONG_OUTPUT),
        code="x",
        message="x",
        score=score,
        evidence=Evidence(
            source="emulator",
            workload="emulation",
            required_multiply_adds=1,
            target_multiply_adds=int(target),
            other_multiply_adds=0,
            coverage=float(target),
            target_ok=target,
            families={},
        ),
        provenance=Provenance(ptxgym="0", task="gemm", task_revision=1, arch="h100", source_sha256=text),
        measured=Measured(timing=time),
    )


def play(preset: RewardPreset, turns: list[Verdict], init: Verdict | None = None) -> list[float]:
    ledger, paid = Ledger.start(preset, init), []
    for index, turn in enumerate(turns):
        payment, ledger = ledger.settle(turn, last=index == len(turns) - 1)
        assert sum(payment.terms.values()) == pytest.approx(payment.reward)
        paid.append(payment.reward)
    return paid


scores = st.sampled_from([0.0, 0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.7, 1.0])
episodes = st.lists(st.tuples(scores, st.sampled_from("abcdef")), min_size=1, max_size=8)


def consistent(episode: list[tuple[float, str]]) -> list[Verdict]:
    """Equal texts get equal scores."""
    by_text: dict[str, float] = {}
    return [verdict(by_text.setdefault(text, score), text) for score, text in episode]


def test_the_four_presets_are_there() -> None:
    assert set(PRESETS) >= {"shaped", "final", "sparse", "ptxbench"}


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("shaped", [0.05, 0.15, 0.0, 0.0, 0.3, 0.0]),
        ("final", [0.0, 0.0, 0.0, 0.0, 0.0, 0.5]),
        ("sparse", [0.0, 0.0, 0.0, 0.0, 0.0, 1.0]),
        ("ptxbench", [0.0, 1.0, 0.0, 0.0, 1.0, 0.0]),
    ],
)
def test_what_a_typical_episode_pays(name: str, expected: list[float]) -> None:
    turns = [verdict(s, t) for s, t in [(0.05, "a"), (0.2, "b"), (0.0, "c"), (0.2, "d"), (0.5, "e"), (0.2, "b")]]
    assert play(load_reward(name), turns) == pytest.approx(expected)


def test_ptxbench_pays_the_best_speedup_of_any_correct_turn() -> None:
    turns = [verdict(0.2, "a", 0.4), verdict(0.6, "b", 0.3), verdict(0.1, "c", 5.0), verdict(0.9, "d", 0.7)]
    assert play(load_reward("ptxbench"), turns) == pytest.approx([1.4, 1.0, 0.0, 0.3])


@pytest.mark.parametrize("name", PRESETS)
@given(episodes, scores)
def test_totals_depend_on_the_best_alone(name: str, episode: list[tuple[float, str]], start: float) -> None:
    """Whatever the order, an episode pays what its best is worth beyond the kernel it started from."""
    preset, turns = load_reward(name), consistent(episode)
    init = verdict(start, "init")
    total = sum(play(preset, turns, init))
    assert total == pytest.approx(sum(play(preset, turns[::-1], init)))
    assert total >= 0.0
    again = sum(play(preset, turns + turns, init))
    assert again == pytest.approx(total)


@pytest.mark.parametrize("name", PRESETS)
@given(episodes)
def test_nothing_is_ever_taken_back(name: str, episode: list[tuple[float, str]]) -> None:
    assert all(reward >= 0.0 for reward in play(load_reward(name), consistent(episode)))


@pytest.mark.parametrize("name", PRESETS)
def test_the_same_text_pays_nothing_again_even_if_measured_faster(name: str) -> None:
    preset = load_reward(name)
    once = sum(play(preset, [verdict(0.6, "a", 0.5), verdict(0.05, "b")]))
    twice = sum(play(preset, [verdict(0.6, "a", 0.5), verdict(0.9, "a", 0.9)]))
    other = sum(play(preset, [verdict(0.6, "a", 0.5), verdict(0.9, "c", 0.9)]))
    assert twice == pytest.approx(once)
    assert other > twice or name == "sparse"


@pytest.mark.parametrize("name", PRESETS)
def test_the_kernel_that_an_episode_starts_from_is_paid(name: str) -> None:
    preset, init = load_reward(name), verdict(0.5, "init", 0.5)
    assert sum(play(preset, [verdict(0.5, "init", 0.5)], init)) == 0.0
    assert sum(play(preset, [verdict(0.2, "other", 0.4)], init)) == 0.0
    assert sum(play(preset, [verdict(0.5, "init", 0.5)])) > 0.0


def test_infra_settles_nothing() -> None:
    ledger = Ledger.start(load_reward("shaped"))
    with pytest.raises(ValueError, match="infrastructure failure"):
        ledger.settle(verdict(0.0, "a", status=Status.INFRA), last=False)


def test_unknown_preset_suggests() -> None:
    with pytest.raises(UnknownNameError, match="did you mean 'shaped'"):
        load_reward("shapd")


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        (
            'summary = "x"\npay = "daily"\n[weights]\nscore = 1',
            "pay: Input should be 'increments' or 'end', found 'daily'",
        ),
        ('summary = "x"\npay = "end"\n[weights]\nscore = -1', "weights must not be negative"),
        ('summary = "x"\npay = "end"\n[weights]\nscore = 0', "one must be positive"),
        (
            'summary = "x"\npay = "end"\n[weights]\nspeed = 1',
            "Input should be 'score', 'correct', 'target' or 'speedup'",
        ),
        ('summary = "x"\npay = "end"\nweight = {score = 1}', "unknown key 'weight'; did you mean 'weights'"),
        ('summary = "x"\npay = \n', "Invalid value (at line 2"),
    ],
)
def test_malformed_presets_are_explained(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, complaint: str
) -> None:
    folder = tmp_path / "rewards"
    folder.mkdir()
    (folder / "mine.toml").write_text(text)
    monkeypatch.setenv("PTXGYM_CONTENT", str(tmp_path))
    with pytest.raises(ContentError) as caught:
        load_reward("mine")
    assert complaint in str(caught.value) and str(folder / "mine.toml") in str(caught.value)
