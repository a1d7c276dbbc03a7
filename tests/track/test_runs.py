"""What a run or a training tells its tracker: numbers by name, each turn once, whatever was killed and when."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from ptxgym.adapters.rollout import Rollout
from ptxgym.agent import Judged
from ptxgym.agent.prompting import fenced
from ptxgym.bench.sweep import Planned
from ptxgym.cli import main
from ptxgym.cli.commands import app
from ptxgym.episode import Episode
from ptxgym.evaluator import Evaluator
from ptxgym.store.lines import read_lines
from ptxgym.store.records import EpisodeRecord, TurnRecord, Usage
from ptxgym.store.writer import RunWriter
from ptxgym.track.lines import EVENTS, FOLDER, Artifact, Event, Line, Logged, Opened
from ptxgym.track.runs import TrackedRun
from ptxgym.track.training import ATTEMPT_AXIS, AXIS, TrackedTraining
from ptxgym.track.turns import episode_values, turn_row, turn_values
from ptxgym.train.run import TrainRun
from ptxgym.verdict import Finding, KernelProfile, OutputError, Severity, Stage, Status
from tests.bad_kernels import host
from tests.scripted import ScriptedDevice
from tests.store.samples import episode, front, turn, verdict
from tests.train.test_run import checkpoint
from tests.train.test_run import front as train_front


def events(folder: Path) -> list[Event]:
    return [line.root for line in read_lines(folder / FOLDER / EVENTS, Line)]


def logged(folder: Path, axis: str) -> list[Logged]:
    return [event for event in events(folder) if isinstance(event, Logged) and event.axis == axis]


def test_numbers_of_a_measured_turn() -> None:
    profile = KernelProfile(kernel="k", launches=1, duration_us=3.5, tensor_pipe_percent=80.0)
    found = verdict(target=True, speedup=0.5)
    measured = found.measured.model_copy(update={"profile": (profile,), "durations_s": {"build": 2.0}})
    findings = (
        Finding(code="a", severity=Severity.NOTE, message=""),
        Finding(code="b", severity=Severity.NOTE, message=""),
        Finding(code="c", severity=Severity.WARNING, message=""),
    )
    record = turn(
        found=found.model_copy(update={"measured": measured, "findings": findings}),
        reward=0.25, terms={"speed": 0.2, "gain": 0.05}, usage=Usage(prompt_tokens=7, completion_tokens=3), model_s=1.5,
    )  # fmt: skip
    values = turn_values(record)
    assert values["reward/total"] == 0.25 and values["reward/speed"] == 0.2 and values["reward/gain"] == 0.05
    assert values["time/speedup"] == 0.5 and values["time/candidate_us"] == 1.0 and "time/tflops" not in values
    assert values["ncu/duration_us"] == 3.5 and values["ncu/tensor_pipe_percent"] == 80.0
    assert "ncu/occupancy_percent" not in values and "ncu/kernel" not in values
    assert (values["findings/note"], values["findings/warning"], values["findings/error"]) == (2, 1, 0)
    assert values["turn/correct"] == values["evidence/target_ok"] == values["evidence/coverage"] == 1
    assert values["turn/prompt_tokens"] == 7 and "turn/cost_usd" not in values and values["stage/build_s"] == 2.0
    assert turn_row(record).cells["speedup"] == 0.5


def test_numbers_of_a_turn_that_does_not_compile_or_is_wrong() -> None:
    values = turn_values(turn(found=verdict(Status.COMPILE_ERROR, stage=Stage.BUILD)))
    assert values["turn/compiled"] == values["turn/correct"] == 0
    assert not [name for name in values if name.startswith(("time/", "check/", "evidence/", "ncu/"))]
    outputs = tuple(
        OutputError(
            name=name, ok=False, relative_error=error, relative_budget=0.1, worst_tile_error=1, tile_budget=1,
            closeness=closeness,
        )
        for name, error, closeness in (("C", 0.5, 0.75), ("D", 0.25, 0.5))
    )  # fmt: skip
    values = turn_values(turn(found=verdict(Status.WRONG_OUTPUT, outputs=outputs)))
    assert (values["turn/compiled"], values["check/relative_error"], values["check/closeness"]) == (1, 0.5, 0.5)
    outputs = (outputs[0].model_copy(update={"relative_error": float("inf")}),)
    assert "check/relative_error" not in turn_values(turn(found=verdict(Status.WRONG_OUTPUT, outputs=outputs)))


def test_numbers_of_an_episode() -> None:
    values = episode_values(episode(best_score=0.5))
    assert values == {
        "episode/best_score": 0.5, "episode/best_turn": 1, "episode/turns": 1, "episode/solved": 1,
        "episode/refused": 0, "episode/prompt_tokens": 100, "episode/completion_tokens": 50, "episode/cost_usd": 0.5,
    }  # fmt: skip
    values = episode_values(episode(best_score=0.2, best_turn=None, usage=Usage()))
    assert values["episode/solved"] == 0 and not {"episode/best_turn", "episode/cost_usd"} & values.keys()


PLANNED: Any = None
"""The tracker does not look at it."""


def watch(folder: Path, *records: TurnRecord | EpisodeRecord, told: list[str] | None = None) -> None:
    """Play a sitting: what is stored is told to the watcher."""
    with RunWriter(folder) as run, TrackedRun(folder, "jsonl", (told if told is not None else []).append) as tracked:
        planned: Planned = PLANNED
        for record in records:
            if isinstance(record, TurnRecord):
                run.turn(record)
                tracked.on_event(planned, Judged(record))
            else:
                run.episode(record)
                tracked.on_end(planned, record)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    RunWriter.begin(tmp_path / "run", front(name="sweep"), "the secret of the run").close()
    return tmp_path / "run"


def test_turns_of_many_episodes_have_one_axis(folder: Path) -> None:
    watch(
        folder,
        *(turn(name, number) for number in (1, 2) for name in ("e", "f", "g")),
        episode("e", agent="a", best_score=0.5),
        episode("f", agent="b", best_score=0.2),
        episode("g", agent="b", best_score=0.6),
    )
    found = logged(folder, "turns")
    assert [event.step for event in found] == [1, 2, 3, 4, 5, 6]
    assert [event.row.cells["episode"] for event in found if event.row] == ["e", "f", "g"] * 2
    ended = logged(folder, "episodes_ended")
    assert [event.step for event in ended] == [1, 2, 3]
    rates = [{name: value for name, value in event.values.items() if name.startswith("solved/")} for event in ended]
    assert rates == [{"solved/a": 1.0}, {"solved/b": 0.0}, {"solved/b": 0.5}]


def test_what_a_kill_left_untold_is_told_once_by_the_next_sitting(folder: Path) -> None:
    watch(folder, turn("e", 1), turn("e", 2))
    with RunWriter(folder) as run:  # a kill between the record and the tracker's line
        run.turn(turn("e", 3))
        run.episode(episode("e", best_score=0.5))
    watch(folder, turn("f", 1))
    watch(folder, episode("f", best_score=0.2))
    cells = [(event.step, event.row.cells) for event in logged(folder, "turns") if event.row]
    found = [(step, each["episode"], each["turn"]) for step, each in cells]
    assert found == [(1, "e", 1), (2, "e", 2), (3, "e", 3), (4, "f", 1)]
    assert [event.row.cells["id"] for event in logged(folder, "episodes_ended") if event.row] == ["e", "f"]
    assert [event.values["solved/a"] for event in logged(folder, "episodes_ended")] == [1.0, 0.5]


def test_what_the_machine_failed_at_is_told_when_it_has_been_played(folder: Path) -> None:
    watch(folder, turn("e", 1), episode("e", status="infra", problem="no memory"))
    assert logged(folder, "episodes_ended") == []
    watch(folder, episode("e", status="done"))
    assert [event.step for event in logged(folder, "episodes_ended")] == [1]


def test_artefacts_hold_records_and_the_best_kernels_but_no_proven_solution(folder: Path) -> None:
    right = verdict(target=True)
    watch(
        folder,
        turn("e", 1, verdict(), source="slow"), turn("e", 2, right, source="fast"), turn("e", 3, right, source="later"),
        turn("f", 1, verdict(target=True, score=0.9), source="", solution="gemm/solutions/h100/pair.cu"),
        episode("e"), episode("f", variant="nn-bias"),
    )  # fmt: skip
    records, kernels = (event for event in events(folder) if isinstance(event, Artifact))
    assert set(records.files) == {"run.json", "episodes.jsonl", "turns.jsonl"} and "secret" not in str(records.files)
    (path,) = kernels.files.values()
    assert (folder / path).read_text() == "fast" and kernels.metadata == {"scores": {"Gemm-H100-v1-base.cu": 0.5}}
    assert "the secret of the run" not in (folder / FOLDER / EVENTS).read_text()
    assert isinstance(opened := events(folder)[0], Opened) and opened.config["run"] == "sweep"


def test_a_run_without_an_answer_leaves_nothing(folder: Path) -> None:
    watch(folder)
    assert not (folder / FOLDER).exists()


def training(folder: Path, steps: range, resume: bool, failed: bool = False) -> None:
    run = TrainRun(folder, train_front(), resume=resume)
    with TrackedTraining(folder, "jsonl", print) as tracked:
        log = run.writer((tracked.log,))
        for step in steps:
            log(step, {"loss": 1 / step, "rewards/kernel_reward/mean": 0.5})


def test_training_tells_what_its_trainer_logs(tmp_path: Path) -> None:
    training(tmp_path / "run", range(1, 4), resume=False)
    checkpoint(tmp_path / "run", 2)
    training(tmp_path / "run", range(3, 5), resume=True)
    found = logged(tmp_path / "run", AXIS)
    assert [event.step for event in found] == [1, 2, 3, 3, 4], "what lay behind the checkpoint is told again"
    assert found[1].values == {"train/loss": 0.5, "rewards/kernel_reward/mean": 0.5}
    opened = [event for event in events(tmp_path / "run") if isinstance(event, Opened)]
    assert len(opened) == 2 and opened[0].config["method"] == "sft"
    artifact = next(event for event in events(tmp_path / "run") if isinstance(event, Artifact))
    assert set(artifact.files) == {"train.json", "metrics.jsonl"}


def test_rollouts_of_training_are_attempts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def play(*answers: str) -> Rollout:
        rollout = Rollout(Episode("PTX-Gemm-H100", evaluator, turns=2))
        for answer in answers:
            rollout.answer(fenced(answer))
        return rollout

    def sitting(resume: bool, *rollouts: Rollout) -> None:
        TrainRun(tmp_path / "run", train_front(), resume=resume)
        with TrackedTraining(tmp_path / "run", "jsonl", print) as tracked:
            for each in rollouts:
                tracked.rollout(each)

    with Evaluator(ScriptedDevice(), secret="s") as evaluator:
        sitting(False, play(host(""), "no C++"), play(host("")))
        sitting(True, play("no C++"))
        monkeypatch.setenv("RANK", "1")
        with TrackedTraining(tmp_path / "run", "jsonl", print) as tracked:
            tracked.rollout(play("no C++"))
    found = logged(tmp_path / "run", ATTEMPT_AXIS)
    cells = [event.row.cells for event in found if event.row is not None]
    assert [event.step for event in found] == [1, 2, 3, 4]
    name = "ptxgym/Gemm-H100-v1/base"
    assert [(each["episode"], each["turn"]) for each in cells] == [
        (f"{name}/1", 1), (f"{name}/1", 2), (f"{name}/2", 1), (f"{name}/3", 1),
    ]  # fmt: skip
    assert [each["status"] for each in cells] == ["ok", "compile_error", "ok", "compile_error"]
    assert cells[0]["kernel"] == host("") and cells[2]["kernel"] == "", "a text that was told stands by its hash"
    assert cells[0]["source_sha256"] == cells[2]["source_sha256"] and cells[3]["kernel"] == ""
    assert "Correct" in str(cells[0]["feedback"])
    assert [event.values["turn/score"] for event in found] == [0.5, 0.0, 0.5, 0.0]
    assert found[0].values["reward/total"] == 0.5


def test_training_that_does_not_begin_leaves_nothing(tmp_path: Path) -> None:
    with TrackedTraining(tmp_path / "run", "jsonl", print):
        pass
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("method", ["sft", "grpo"])
def test_the_command_hands_its_tracker_to_the_trainer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, method: str
) -> None:
    from ptxgym.train import grpo, sft

    def train(recipe: Any, folder: Path, *, resume: bool, logs: Any, **others: Any) -> sft.Trained:
        run = TrainRun(folder, train_front(recipe), resume=resume)
        run.writer(tuple(logs))(1, {"loss": 0.5, "reward": 0.1})
        return sft.Trained(folder, 1, run.metrics(), 1)

    monkeypatch.setattr(sft, "sft", train)
    monkeypatch.setattr(grpo, "grpo", train)
    done = CliRunner().invoke(app, ["train", method, method, "--set", "model=m", "--out", str(tmp_path / "run")])
    assert done.exit_code == 0, done.output
    assert [event.values for event in logged(tmp_path / "run", AXIS)] == [{"train/loss": 0.5, "train/reward": 0.1}]


def test_a_tracker_that_is_none_is_told_before_anything_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    play = ("--env", "PTX-Gemm-H100", "--agent", "naive", "--device", "emulator", "--out", "there")
    for command in (("run", *play), ("bench", "smoke"), ("train", "sft", "sft"), ("train", "grpo", "grpo")):
        monkeypatch.setattr(sys, "argv", ["ptxgym", *command, "--track", "wanda"])
        with pytest.raises(SystemExit) as ended:
            main()
        assert ended.value.code == 2 and "--track wanda: must be jsonl or wandb" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())
