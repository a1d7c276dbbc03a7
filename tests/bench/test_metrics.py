"""Metrics of made-up records: what counts, what does not, and what is shown only after a second measurement."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ptxgym.bench.metrics import (
    Outcome,
    Rate,
    Trajectory,
    best_speedup,
    cell,
    confirmed,
    contrasts,
    emulated,
    failures_by_turn,
    fast,
    grouped,
    horizons,
    outcome_of,
    shift,
    trajectories,
)
from ptxgym.bench.recipe import Recipe
from ptxgym.bench.statistics import wilson
from ptxgym.bench.tables import tables
from ptxgym.errors import ContentError
from ptxgym.store.reader import StoredRun
from ptxgym.store.records import EpisodeRecord, Remeasurement, RunRecord, TurnRecord, Usage
from ptxgym.verdict import Status, Verdict
from tests.store.samples import episode, front, turn, verdict


def outcomes(*turns: str) -> tuple[Outcome, ...]:
    """`-` wrong, `r` right, `t` right on target, `t0.5` measured."""
    found = []
    for number, text in enumerate(turns, 1):
        speed = float(text[1:]) if text[1:] else None
        found.append(Outcome(number, "wrong_output" if text[0] == "-" else "", text[0] == "t", speed))
    return tuple(found)


def one(*turns: str, task: str = "ptxgym/Gemm-H100-v1", agent: str = "m", again: str = "", **more: Any) -> Trajectory:
    second = outcomes(again)[0] if again else None
    return Trajectory(f"{task}/{agent}", task, "h100", agent, "none", outcomes(*turns), again=second, **more)


def stored(episodes: list[EpisodeRecord], turns: list[TurnRecord], again: tuple[Remeasurement, ...] = ()) -> StoredRun:
    return StoredRun(Path("run"), front(), tuple(episodes), tuple(turns), again)


def test_verdicts_as_outcomes() -> None:
    assert outcome_of(verdict(), 1) == Outcome(1, "", False, None, 0.2)
    assert outcome_of(verdict(target=True, speedup=0.7), 2) == Outcome(2, "", True, 0.7, 0.5)
    hazard = verdict(Status.HAZARD, target=True, speedup=0.9)
    assert outcome_of(hazard, 1) == Outcome(1, "hazard", False, None, 0.0)
    for code, name in (("submission.no_code", "no_code"), ("submission.truncated_response", "truncated")):
        refused = verdict(Status.REJECTED, code=code)
        assert outcome_of(refused, 1).failure == name
        assert outcome_of(refused, 1, refused=True).failure == "refused"
    assert outcome_of(verdict(Status.REJECTED, code="submission.too_large"), 1).failure == "rejected"


def test_records_as_trajectories() -> None:
    def at(id: str, *verdicts: Verdict, **more: Any) -> list[TurnRecord]:
        return [turn(id, number, found, **more) for number, found in enumerate(verdicts, 1)]

    episodes = [
        episode("done", variant="d64", usage=Usage(prompt_tokens=100, completion_tokens=50, cost_usd=0.5)),
        episode("infra", status="infra"),
        episode("refused", status="refused", arm="full"),
        episode("without turns"),
    ]
    turns = [
        *reversed(at("done", verdict(Status.COMPILE_ERROR), verdict(target=True, speedup=0.4))),
        *at("infra", verdict(target=True)),
        *at("refused", verdict(Status.REJECTED), refused=True),
        *at("unfinished", verdict()),
    ]
    again = Remeasurement(
        episode="done", turn=2, epoch=1, verdict=verdict(target=True, speedup=0.3), measured_at="2026"
    )
    done, refused = trajectories(stored(episodes, turns, (again,)))
    assert (done.emulated, refused.emulated) == (False, True)  # by its verdict; by the front matter, as none ran
    assert (done.id, done.task, done.agent, done.arm) == ("done", "ptxgym/Gemm-H100-v1/d64", "a", "none")
    assert [(each.turn, each.failure, each.target) for each in done.outcomes] == [
        (1, "compile_error", False), (2, "", True),
    ]  # fmt: skip
    assert (done.tokens, done.cost_usd, done.emulated, done.fastest(2), done.fastest(1)) == (150, 0.5, False, 0.4, 0.0)
    assert done.again is not None and done.again.speedup == 0.3
    assert (refused.task, refused.arm) == ("ptxgym/Gemm-H100-v1", "full")
    assert [each.failure for each in refused.outcomes] == ["refused"]


def test_whether_it_was_emulated_is_what_the_records_say() -> None:
    def judged(record: RunRecord, *verdicts: Verdict) -> bool:
        return emulated(record, "e", [turn("e", number, found) for number, found in enumerate(verdicts, 1)])

    gpu, both = front(device="NVIDIA H200"), front(device="NVIDIA H200, emulator")
    never, ran = verdict(Status.COMPILE_ERROR), verdict()
    on_gpu = verdict(speedup=0.5)
    for record in (front(), gpu, both):  # a verdict of a kernel that ran is the best witness
        assert judged(record, never, ran) and not judged(record, on_gpu, never)
    assert judged(front(), never) and not judged(gpu, never)
    assert not judged(both.model_copy(update={"devices": {"h100": "NVIDIA H200", "b200": "emulator"}}), never)
    assert judged(both.model_copy(update={"devices": {"h100": "emulator", "b200": "NVIDIA B200"}}), never)
    with pytest.raises(ContentError, match=r"e: no record says where kernels for h100 were executed"):
        judged(both, never)
    with pytest.raises(ContentError, match=r"e: its kernels were judged on NVIDIA H200, emulator"):
        judged(both, ran, on_gpu)


def test_rates_within_so_many_turns() -> None:
    found = [one("t"), one("-", "r", "t"), one("-", "-", "-", "-", "r"), one("-")]
    summary = cell(found, (1, 4, 8))
    assert summary.correct == {1: Rate(1, 4), 4: Rate(2, 4), 8: Rate(3, 4)}
    assert summary.target == {1: Rate(1, 4), 4: Rate(2, 4), 8: Rate(2, 4)}
    assert summary.target[8].interval == wilson(2, 4)
    assert (summary.trajectories, summary.turns) == (4, 10)
    assert summary.correct_turns.value == pytest.approx(4 / 10)
    assert summary.target_turns.value == pytest.approx(2 / 10)
    assert summary.failures == {"wrong_output": 6}
    assert failures_by_turn(found)[1] == {"wrong_output": 3, "ok": 1}
    assert failures_by_turn(found)[5] == {"ok": 1}
    with pytest.raises(ValueError, match="no trajectory ended"):
        cell([], (1,))


def test_horizons_end_with_the_last_turn() -> None:
    assert [horizons(turns) for turns in (1, 3, 4, 8, 10)] == [(1,), (1, 3), (1, 4), (1, 4, 8), (1, 4, 8, 10)]


def test_cost_and_tokens_of_all_are_shared_by_those_that_succeed() -> None:
    found = [one("t", tokens=100, cost_usd=1.0), one("-", tokens=300, cost_usd=2.0), one("r", tokens=200, cost_usd=0.0)]
    summary = cell(found, (1,))
    assert (summary.tokens_per_solved, summary.cost_per_solved_usd) == (600.0, 3.0)
    assert cell(found[1:], (1,)).tokens_per_solved is None
    unpriced = cell([*found, one("t", tokens=0)], (1,))
    assert (unpriced.tokens_per_solved, unpriced.cost_per_solved_usd) == (300.0, None)


def test_tokens_that_no_endpoint_tells_are_none_and_not_0() -> None:
    silent, free = Usage(), Usage(cost_usd=0.0)  # an endpoint without usage; an agent that asks no model
    assert not silent.told and free.told and Usage(completion_tokens=1).told
    episodes = [episode(name, agent=name, usage=usage) for name, usage in (("silent", silent), ("free", free))]
    found = trajectories(stored(episodes, [turn(name, 1, verdict(target=True)) for name in ("silent", "free")]))
    assert [one.tokens for one in found] == [None, 0]
    assert cell(found[:1], (1,)).tokens_per_solved is None and cell(found, (1,)).tokens_per_solved is None
    assert cell(found[1:], (1,)).tokens_per_solved == 0
    recipe = Recipe.model_validate(
        {
            "name": "r",
            "summary": "",
            "envs": ["PTX-Gemm-H100"],
            "agents": ["silent", "free"],
            "trajectories": 1,
            "turns": 1,
        }
    )
    totals = next(table for table in tables(recipe, found) if table.title == "All operators")
    assert [row[totals.columns.index("tokens/solved")] for row in totals.rows] == ["-", "0"]


def test_speed_counts_on_target_and_where_it_is_measured() -> None:
    found = [one("t0.3", "r0.9", emulated=False), one("t0.8", "t0.5", emulated=False), one("-", emulated=False)]
    assert {p: rate.successes for p, rate in fast(found, 2).items()} == {0.25: 2, 0.5: 1, 0.75: 1, 1.0: 0}
    assert cell(found, (2,)).fast == fast(found, 2)
    assert cell([one("t")], (1,)).fast is None


def test_best_speed_is_shown_after_a_second_measurement_and_at_equal_numbers() -> None:
    fresh = [one("t0.9", emulated=False), one("t0.5", emulated=False), one("-", emulated=False)]
    assert best_speedup(fresh, 3, 1) is None
    again = [
        one("t0.9", emulated=False, again="t0.7"), one("t0.5", emulated=False, again="t0.6"), one("-", emulated=False),
    ]  # fmt: skip
    assert best_speedup(again, 3, 1) == pytest.approx(0.7)
    assert best_speedup(again, 1, 1) == pytest.approx(1.3 / 3)
    assert best_speedup(again, 2, 1) == pytest.approx((0.7 + 0.7 + 0.6) / 3)
    lost = [one("t0.9", emulated=False, again="-"), *again[1:]]
    assert best_speedup(lost, 3, 1) == 0.0
    assert best_speedup([one("-", emulated=False)], 1, 1) is None


def test_a_kernel_holds_if_it_is_as_good_under_new_conditions() -> None:
    found = [one("t", again="t"), one("t", again="r"), one("r", again="r"), one("r", again="-"), one("-")]
    assert confirmed(found) == Rate(2, 4)
    assert confirmed([one("t")]) is None


def test_models_are_compared_task_by_task() -> None:
    tasks = ("ptxgym/Gemm-H100-v1", "ptxgym/AttnFwd-H100-v1")
    good = [one("t", task=task, agent="good") for task in tasks for _ in range(6)]
    bad = [one("r", task=task, agent="bad") for task in tasks for _ in range(6)]
    found = contrasts(grouped([*good, *bad], lambda each: (each.agent,)), 1, ("target", "correct"))
    assert [(each.metric, each.first, each.second, each.tasks, each.difference) for each in found] == [
        ("target", ("good",), ("bad",), 2, 1.0), ("correct", ("good",), ("bad",), 2, 0.0),
    ]  # fmt: skip
    assert {each.emulated for each in found} == {True}
    assert found[0].p_value == pytest.approx(2 / 924**2)  # C(12, 6) deals a task; two of all are as extreme
    assert (found[0].corrected, found[1].corrected) == (pytest.approx(2 * found[0].p_value), 1.0)


def test_models_are_compared_within_what_both_were_given() -> None:
    """Alike up to turn 4; the one plays on."""
    solved_at = (4, 6, 6, 9)  # 9: never

    def played(agent: str, turns: int, given: int | None) -> list[Trajectory]:
        kernels = (["t" if turn == at else "-" for turn in range(1, turns + 1)] for at in solved_at * 3)
        return [one(*each, agent=agent, given=given) for each in kernels]

    four, eight = played("four", 4, 4), played("eight", 8, 8)
    (fair,) = contrasts({("four",): four, ("eight",): eight}, 8)
    assert (fair.turns, fair.difference, fair.p_value) == (4, 0.0, 1.0)
    (unfair,) = contrasts({("four",): played("four", 4, 8), ("eight",): eight}, 8)  # the control: it gave up
    assert (unfair.turns, unfair.difference) == (8, 3 / 12 - 9 / 12)
    assert cell(four, (1, 4, 8)).target == {1: Rate(0, 12), 4: Rate(3, 12)}
    assert cell(eight, (1, 4, 8)).target == {1: Rate(0, 12), 4: Rate(3, 12), 8: Rate(9, 12)}
    assert cell(four, (8,)).correct == {}
    assert cell(played("anchor", 4, None), (8,)).target == {8: Rate(3, 12)}
    moved = shift(four, eight, 8)
    assert (moved.turns, moved.before, moved.after) == (4, Rate(3, 12), Rate(3, 12))


def test_what_a_model_was_given_is_what_the_recipe_says() -> None:
    agents = [{"label": "anchor", "anchor": True, "turns": 1}, {"label": "few", "turns": 2}, {"label": "many"}]
    record = front(sweep={"recipe": {"turns": 4, "agents": agents}})
    labels = ("anchor", "few", "many")
    episodes = [episode(label, agent=label) for label in labels]
    turns = [turn(label, 1, verdict()) for label in labels]
    found = trajectories(StoredRun(Path("run"), record, tuple(episodes), tuple(turns), ()))
    assert {each.agent: each.given for each in found} == {"anchor": None, "few": 2, "many": 4}
    assert {each.given for each in trajectories(stored(episodes, turns))} == {None}


def test_what_is_emulated_is_not_compared_with_what_is_measured() -> None:
    """Pooled, the two would differ; on either device they do not."""
    kinds = {True: ("t", "-"), False: ("-", "t")}
    found = [one(kinds[kind][agent == "b"], agent=agent, emulated=kind) for kind in kinds for agent in ("a", "b")]
    split = contrasts(grouped(found, lambda each: (each.agent,)), 1)
    assert [(each.emulated, each.tasks, each.difference) for each in split] == [(True, 1, 1.0), (False, 1, -1.0)]
    apart = [one("t", agent="a", emulated=True), one("-", agent="b", emulated=False)]
    assert contrasts(grouped(apart, lambda each: (each.agent,)), 1) == ()


def test_a_shift_between_generations() -> None:
    moved = shift([one("t")] * 4, [one("t"), one("r"), one("-"), one("-")], 1)
    assert (moved.before, moved.after, moved.difference) == (Rate(4, 4), Rate(1, 4), -0.75)
    assert moved.p_value == pytest.approx(2 * 4 / 56)  # Fisher: C(4,1)·C(4,0) ÷ C(8,3), both sides
    with pytest.raises(ValueError, match="both environments"):
        shift([one("t")], [], 1)


def recipe(**changes: Any) -> Recipe:
    parts: dict[str, Any] = {
        "name": "r", "summary": "s", "envs": ("PTX-Gemm-H100", "PTX-Gemm-B200"), "trajectories": 2, "turns": 2,
        "agents": ({"use": "oracle", "anchor": True}, {"use": "openai", "label": "m"}, {"use": "openai", "label": "w"}),
        "transfers": ({"before": "PTX-Gemm-H100", "after": "PTX-Gemm-B200"},),
    }  # fmt: skip
    return Recipe.model_validate({**parts, **changes})


def test_tables_say_what_is_not_measured_and_leave_anchors_out_of_tests() -> None:
    blackwell = "ptxgym/Gemm-B200-v1"
    found = [
        one("t0.9", agent="w", emulated=False), one("t0.8", agent="w", emulated=False),
        one("t0.5", agent="m", emulated=False, again="t0.4"), one("-", agent="m", emulated=False),
        one("t1.0", agent="oracle", emulated=False, again="t1.0"),
        one("-", "t", agent="m", task=blackwell), one("r", agent="oracle", task=blackwell, again="r"),
    ]  # fmt: skip
    shown = {table.title: table for table in tables(recipe(), found)}
    rates = shown["Trajectories that succeed within so many turns"]
    assert [(row[0], row[2], row[3]) for row in rates.rows] == [
        ("Gemm-H100-v1", "oracle", "1"), ("Gemm-H100-v1", "m", "2"), ("Gemm-H100-v1", "w", "2"),
        ("Gemm-B200-v1", "oracle", "1"), ("Gemm-B200-v1", "m", "1"),
    ]  # fmt: skip
    column = rates.columns.index("best speed-up")
    assert [row[column] for row in rates.rows] == ["1.000 (1)", "0.400 (2)", "not re-measured", "emulated", "emulated"]
    assert [row[-1] for row in rates.rows] == ["1/1", "1/1", "-", "1/1", "-"]
    assert any("--remeasure" in note for note in rates.notes)
    assert any("takes no times" in note for note in rates.notes)
    (versus,) = shown["Comparisons, paired by task"].rows
    assert versus[:5] == ("m / none", "w / none", "measured", "1", "2")
    moved = shown["Transfer, target within so many turns"]
    assert [row[2:] for row in moved.rows] == [
        ("oracle", "2", "1/1 measured", "0/1 emulated", "-", "-"),
        ("m", "2", "1/2 measured", "1/1 emulated", "-", "-"),
    ]  # fmt: skip
    assert moved.notes[-1] == "What was emulated is not compared with what was measured."
    same = [replace(each, emulated=False) for each in found]
    alike = {table.title: table for table in tables(recipe(), same)}[moved.title]
    assert [row[6] for row in alike.rows] == ["-100%", "+50%"] and len(alike.notes) == 1
    assert shown["Failed turns"].rows[1] == ("h100", "none", "m", "4", "2")
    assert tables(recipe(), []) == ()
    assert moved.title not in {table.title for table in tables(recipe(transfers=()), found)}


def test_tables_have_dashes_where_an_agent_was_given_fewer_turns() -> None:
    found = [one("t", agent="oracle"), *[one("-", "t", agent="m", given=2)] * 2, *[one("-", agent="w", given=1)] * 2]
    shown = {table.title: table for table in tables(recipe(), found)}
    rates = shown["Trajectories that succeed within so many turns"]
    at = rates.columns.index("target ≤1")
    assert {row[2]: row[at : at + 3] for row in rates.rows} == {
        "oracle": ("1/1", "1/1", "21%–100%"), "m": ("0/2", "2/2", "34%–100%"), "w": ("0/2", "-", "-"),
    }  # fmt: skip
    assert any("more turns than the agent was given" in note for note in rates.notes)
    totals = shown["All operators"]
    assert {row[2]: row[totals.columns.index("target ≤2")] for row in totals.rows}["w"] == "-"
    (versus,) = shown["Comparisons, paired by task"].rows
    assert versus[3:6] == ("1", "1", "+0%")
    alike = [replace(each, given=2) if each.agent == "w" else each for each in found]  # the control: it gave up
    shown = {table.title: table for table in tables(recipe(), alike)}
    assert shown["Comparisons, paired by task"].rows[0][3:6] == ("1", "2", "+100%")
    assert not any("was given" in note for note in shown[rates.title].notes)
