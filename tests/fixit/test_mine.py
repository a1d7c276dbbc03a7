from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ptxgym.errors import UsageError
from ptxgym.fixit.mine import mine
from ptxgym.fixit.recipe import MineRules
from ptxgym.fixit.sampling import apportion
from ptxgym.store.reader import StoredRun
from ptxgym.verdict import Provenance, Stage, Status
from tests.fixit.fakes import ENV
from tests.store import samples


def a_run(count: int = 60, variant: str = "bias", folder: str = "anywhere", **turn: Any) -> StoredRun:
    """Episodes of four turns: kinds go around, and of `count` kernels every seventh passes."""
    episodes, turns = [], []
    statuses = (Status.COMPILE_ERROR, Status.WRONG_OUTPUT, Status.WRONG_OUTPUT, Status.HANG, Status.HAZARD)
    for number in range(count):
        name = f"{ENV}/{variant}/a/none/{number // 4}"
        status, target = (Status.OK, True) if number % 7 == 6 else (statuses[number % 5], False)
        found = samples.verdict(status, target)
        found = found.model_copy(
            update={
                "stage": Stage.JUDGE,
                "provenance": Provenance(
                    ptxgym="0", task="gemm", task_revision=1, variant=variant, arch="h100", source_sha256="0",
                    conditions="run-0",
                ),
            }
        )  # fmt: skip
        turns.append(samples.turn(name, number % 4 + 1, found, source=f"kernel {variant} {number}", **turn))
        if number % 4 == 0:
            episodes.append(samples.episode(name, env=ENV, variant=variant))
    return StoredRun(Path(folder), samples.front(), tuple(episodes), tuple(turns), ())


def test_only_failures_are_mined_and_each_with_its_kind() -> None:
    run = a_run()
    found = mine([run], MineRules(), seed=0)
    by_source = {turn.source: turn for turn in run.turns}
    assert len(found) == sum(turn.verdict.status is not Status.OK for turn in run.turns)
    expected = {"compile_error": "compile", "wrong_output": "numerical", "hang": "hang", "hazard": "hazard"}
    for kernel in found:
        turn = by_source[kernel.source]
        assert kernel.kind == expected[turn.verdict.status]
        assert (kernel.turn, kernel.feedback, kernel.split) == (turn.turn, turn.feedback, "train")


@pytest.mark.parametrize(
    ("change", "mined"),
    [
        ({}, True),
        ({"status": Status.INTEGRITY}, False),
        ({"status": Status.REJECTED}, False),
        ({"status": Status.INFRA}, False),
        ({"status": Status.NOT_EMULATED}, False),
        ({"code": "submission.no_code"}, False),
    ],
)
def test_cheats_answers_without_kernel_and_faults_of_the_machine_are_not_mined(change: Any, mined: bool) -> None:
    run = a_run(2)
    first, other = run.turns
    other = other.model_copy(update={"source": "another", "verdict": other.verdict.model_copy(update=change)})
    found = mine([StoredRun(run.folder, run.record, run.episodes, (first, other), ())], MineRules(), seed=0)
    assert {kernel.source for kernel in found} == {first.source, *(["another"] if mined else [])}


def test_the_order_and_place_of_records_make_no_difference() -> None:
    run, other = a_run(), a_run(40, "scale")
    rules = MineRules(per_task=12)
    first = mine([run, other], rules, seed=5)
    turns, episodes = list(run.turns), list(run.episodes)
    random.Random(1).shuffle(turns)
    random.Random(2).shuffle(episodes)
    moved = StoredRun(Path("elsewhere"), run.record, tuple(episodes), tuple(turns), ())
    assert mine([other, moved], rules, seed=5) == first
    assert mine([run, other], rules, seed=6) != first
    assert len(first) == 24


def test_a_sample_keeps_to_turns_size_and_strata() -> None:
    runs = [a_run(100)]
    assert {kernel.turn for kernel in mine(runs, MineRules(last_turn=2), seed=0)} == {1, 2}
    equal = mine(runs, MineRules(per_task=16, balance="equal"), seed=0)
    counts = [sum((k.kind, k.turn) == stratum for k in equal) for stratum in {(k.kind, k.turn) for k in equal}]
    assert sorted(counts) == [1] * 16
    proportional = mine(runs, MineRules(per_task=40), seed=0)
    share = sum(kernel.kind == "numerical" for kernel in proportional) / 40
    assert 0.35 <= share <= 0.45  # two of five statuses
    assert len(mine(runs, MineRules(size=7), seed=0)) == 7


def test_held_out_tasks_are_mined_only_on_request() -> None:
    with pytest.raises(UsageError, match="held-out"):
        mine([a_run(variant="base")], MineRules(), seed=0)
    found = mine([a_run(variant="base")], MineRules(splits=("train", "eval")), seed=0)
    assert {kernel.split for kernel in found} == {"eval"}


def test_the_same_failure_counts_once() -> None:
    assert mine([a_run(), a_run()], MineRules(), seed=0) == mine([a_run()], MineRules(), seed=0)


@given(
    st.lists(st.integers(0, 20), min_size=1, max_size=8), st.integers(0, 60), st.sampled_from(["proportional", "equal"])
)
def test_places_are_divided_whole_and_no_stratum_overflows(sizes: list[int], places: int, balance: Any) -> None:
    found = apportion(sizes, places, balance)
    assert sum(found) == min(places, sum(sizes))
    assert all(0 <= quota <= size for quota, size in zip(found, sizes, strict=True))
    if balance == "equal":  # who has less than another gives all it has
        assert all(a >= b - 1 or a == size for a, size in zip(found, sizes, strict=True) for b in found)
    elif sum(sizes) > places:
        exact = [size * places / sum(sizes) for size in sizes]
        assert all(abs(quota - share) < 1 for quota, share in zip(found, exact, strict=True))
