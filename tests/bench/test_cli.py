"""`ptxgym bench`: a sweep at the command line, its tables, and how it ends."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from ptxgym.bench import runner
from ptxgym.cli import main
from ptxgym.store.reader import read_run
from tests.agent.server import Fail, Say, ScriptedServer

RECIPE = """
summary = "a naive kernel and a model that says little"
device = "emulator"
trajectories = 2
turns = 1
envs = ["PTX-Gemm-H100"]
agents = [{ use = "naive", anchor = true, trajectories = 1 }, { use = "openai", label = "model" }]
"""
SMALL = ("--set", "model.api_key_env=", "--set", "model.model=m", "--set", "model.limits.retries=0")


@dataclass(frozen=True)
class Ran:
    code: int
    out: str
    err: str


Run = Callable[..., Ran]


@pytest.fixture
def recipe(tmp_path: Path) -> Path:
    path = tmp_path / "little.toml"
    path.write_text(RECIPE)
    return path


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Run:
    """Run the command line in this process, in a folder of its own."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(runner, "INFRA_PAUSE_S", 0.0)

    def call(*arguments: object) -> Ran:
        monkeypatch.setattr(sys, "argv", ["ptxgym", *map(str, arguments)])
        capsys.readouterr()
        with pytest.raises(SystemExit) as ended:
            main()
        said = capsys.readouterr()
        return Ran(int(ended.value.code or 0), said.out, said.err)

    return call


def test_a_sweep_is_played_shown_and_judged_again(run: Run, recipe: Path, tmp_path: Path) -> None:
    with ScriptedServer(lambda body: Say("no kernel")) as server:
        ran = run("bench", recipe, "--remeasure", "--set", f"model.base_url={server.url}", *SMALL)
        assert ran.code == 0, ran.err
        stored = read_run(tmp_path / "runs" / "little")
        assert f"sweep {stored.record.sweep_sha256[:16]}, device emulator" in ran.out
        rows = [line.split() for line in ran.out.splitlines() if line.strip().startswith("Gemm-H100-v1")]
        assert [row[:8] for row in rows] == [
            ["Gemm-H100-v1", "none", "naive", "1", "1/1", "0/1", "0%–79%", "emulated"],
            ["Gemm-H100-v1", "none", "model", "2", "0/2", "0/2", "0%–66%", "emulated"],
        ]
        assert [row[8] for row in rows] == ["1/1", "-"]
        assert "no_code" in ran.out and "ptxgym/Gemm-H100-v1/base/model/none/1: done, best 0.00" in ran.err

        ran = run("bench", recipe, "--set", f"model.base_url={server.url}", *SMALL)
        assert (ran.code, ran.out) == (2, "")
        assert "holds a run already; go on with --resume" in ran.err
        ran = run("bench", recipe, "--resume", "--set", f"model.base_url={server.url}", *SMALL)
        assert ran.code == 0 and "3 of 3 episodes are on record" in ran.err
        assert len(server.requests) == 2


def test_what_the_machine_failed_at_is_said_and_ends_with_3(run: Run, recipe: Path) -> None:
    def script(body: dict[str, object]) -> Fail:
        return Fail(500)

    with ScriptedServer(script) as server:
        ran = run("bench", recipe, "--out", "there", "--set", f"model.base_url={server.url}", *SMALL)
        assert ran.code == 3
        assert "2 episodes failed by the machine are in no rate; --resume plays them." in ran.out
        assert "ModelError" in ran.out and "500" in ran.err
        assert len([line for line in ran.out.splitlines() if line.strip().startswith("Gemm-H100-v1")]) == 1
        assert len(server.requests) == 2 * 3


def test_what_cannot_be_played_is_said_before_anything_is_written(run: Run, recipe: Path, tmp_path: Path) -> None:
    ran = run("bench", recipe, "--set", "modl.model=m")
    assert ran.code == 2 and "begin with the label of an agent: naive, model" in ran.err
    recipe.write_text(RECIPE.replace("PTX-Gemm-H100", "PTX-Gem-H100"))
    ran = run("bench", recipe, *SMALL)
    assert ran.code == 2 and "did you mean 'PTX-Gemm-H100'" in ran.err
    assert run("bench", "smok").code == 2
    assert not (tmp_path / "runs").exists()


def test_a_missing_setting_is_named_as_the_command_takes_it(run: Run, tmp_path: Path) -> None:
    ran = run("bench", "smoke", "--set", "model.api_key_env=")
    assert ran.code == 2 and "such as with --set replay.path=runs/first" in ran.err
    ran = run("bench", "smoke", "--set", "model.api_key_env=NO_SUCH_KEY")
    assert ran.code == 2 and "such as with --set replay.path=runs/first; agent openai: the variable NO_SUCH" in ran.err
    ran = run("run", "--env", "PTX-Gemm-H100", "--agent", "replay")
    assert ran.code == 2 and "such as with --set path=runs/first" in ran.err
    assert not (tmp_path / "runs").exists()


def test_what_an_agent_cannot_play_makes_no_folder(run: Run, tmp_path: Path) -> None:
    ran = run("run", "--env", "PTX-Gemm-H100", "--agent", "oracle", "--variant", "nn-bias", "--device", "emulator")
    assert ran.code == 2 and "agent oracle cannot play ptxgym/Gemm-H100-v1, variant nn-bias" in ran.err
    assert not (tmp_path / "runs").exists()


def test_a_wrong_setting_leaves_the_folder_free(run: Run, tmp_path: Path) -> None:
    def play(server: ScriptedServer) -> Ran:
        return run(
            *("run", "--env", "PTX-Gemm-H100", "--agent", "openai", "--device", "emulator", "--turns", 1),
            *("--set", f"base_url={server.url}", "--set", "model=m", "--set", "api_key_env=", "--out", "there"),
        )

    with ScriptedServer([Fail(401)]) as server:
        ran = play(server)
    assert ran.code == 2 and "let nobody in" in ran.err and not (tmp_path / "there").exists()
    with ScriptedServer([Say("no kernel")]) as server:
        assert play(server).code == 0
        assert play(server).code == 2 and len(server.requests) == 1, "what is on record stays"
    assert len(read_run(tmp_path / "there").turns) == 1


def test_a_run_goes_on_with_resume(run: Run, tmp_path: Path) -> None:
    with ScriptedServer([Say("one"), *[Fail(500)] * 3, Say("two")]) as server:
        play = (
            *("run", "--env", "PTX-Gemm-H100", "--agent", "openai", "--device", "emulator", "--turns", 2),
            *("--set", f"base_url={server.url}", "--set", "model=m", "--set", "api_key_env="),
            *("--set", "limits.retries=0"),
        )
        ran = run(*play, "--resume")
        assert ran.code == 2 and "--resume goes on with the run in the folder that --out names" in ran.err
        ran = run(*play, "--out", "there")
        assert ran.code == 3 and "go on with the same command, --out there --resume" in ran.out
        ran = run(*play, "--out", "there")
        assert ran.code == 2 and "go on with --resume" in ran.err
        ran = run(*play, "--out", "there", "--resume")
        assert ran.code == 0 and "1 of 2 turns are on record" in ran.out and "scores 0.00 → 0.00" in ran.out
        assert [turn.response for turn in read_run(tmp_path / "there").turns] == ["one", "two"]
        ran = run(*play, "--out", "there", "--resume")
        assert ran.code == 0 and "the episode is over" in ran.out and len(server.requests) == 5


def test_replay_of_fewer_answers_than_turns_ends_when_they_do(run: Run, tmp_path: Path) -> None:
    answers = tmp_path / "answers"
    answers.mkdir()
    (answers / "1.md").write_text("I cannot.")
    ran = run(
        *("run", "--env", "PTX-Gemm-H100", "--agent", "replay", "--set", f"path={answers}"),
        *("--turns", 4, "--device", "emulator", "--out", "there"),
    )
    assert (
        ran.code == 0 and "ended after turn 1 of 4: " in ran.out and "has no answer for turn 2: it holds 1" in ran.out
    )
    (episode,) = read_run(tmp_path / "there").episodes
    assert (episode.status, episode.turns) == ("done", 1)


def test_recipes_are_listed(run: Run) -> None:
    ran = run("list")
    assert ran.code == 0
    assert "ablation" in ran.out and "architecture parameters, template functions and contract" in ran.out
