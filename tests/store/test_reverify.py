"""Kernels of a run judged again: nothing changes by itself, and what changed is named."""

from __future__ import annotations

import hashlib
import json
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ptxgym.bench.recipe import Recipe
from ptxgym.bench.session import Sweep
from ptxgym.cli import main
from ptxgym.errors import UsageError
from ptxgym.store.reader import read_run
from ptxgym.store.reverify import changed_parts, gone, kernels, reverify
from ptxgym.store.solutions import kernel_of
from tests.bad_kernels import host
from tests.store.samples import verdict


@pytest.fixture(scope="module")
def run_of_naive(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A real run: the naive kernel twice, a kernel that writes nothing, and an answer without one."""
    folder = tmp_path_factory.mktemp("reverify")
    answers = folder / "answers"
    answers.mkdir()
    (answers / "1.cu").write_text(host(""))
    (answers / "2.md").write_text("No kernel today.")
    recipe = Recipe.model_validate(
        {
            "name": "r", "summary": "s", "envs": ("PTX-Gemm-H100",), "trajectories": 1, "turns": 2,
            "device": "emulator", "agents": ("naive", {"use": "replay", "settings": {"path": str(answers)}}),
        }
    )  # fmt: skip
    Sweep(recipe, folder / "run").play()
    return folder / "run"


@pytest.fixture
def run(run_of_naive: Path, tmp_path: Path) -> Path:
    """A copy that a test may change."""
    return Path(shutil.copytree(run_of_naive, tmp_path / "run"))


def tamper(run: Path, change: Callable[[dict[str, Any]], object], solution: str) -> None:
    """Change the verdicts on record of one proven solution, or of all kernels."""
    lines = [json.loads(line) for line in (run / "turns.jsonl").read_text().splitlines()]
    for line in lines:
        if solution in line["solution"]:
            change(line["verdict"])
    (run / "turns.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))


def test_distinct_kernels_are_judged_once_and_answers_without_one_never(run: Path) -> None:
    found = kernels(read_run(run))
    assert sorted(len(kernel.places) for kernel in found) == [1, 2]
    assert {kernel.task.name for kernel in found} == {"gemm"}


def test_a_solution_is_found_by_its_hash_and_named_where_it_is_gone(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stored = read_run(run)
    solution = next(turn for turn in stored.turns if turn.solution)
    text = kernel_of(solution)
    assert solution.source == "" and text is not None and "__global__" in text
    assert solution.verdict.provenance.source_sha256 == hashlib.sha256(text.encode()).hexdigest()
    assert gone(stored) == ()
    own = [
        json.dumps(line.strip())[1:-1] for line in text.splitlines() if len(line.strip()) > 60 and "extern" not in line
    ]
    assert len(own) >= 5
    assert not [line for file in run.iterdir() for line in own if line in file.read_text()]
    monkeypatch.setattr("ptxgym.task.Task.source", lambda task, found: text + "// mended\n")
    assert gone(stored) == (solution.solution,) and len(kernels(stored)) == 1


def test_nothing_changes_by_itself(run: Path) -> None:
    steps: list[tuple[int, int]] = []
    assert reverify(run, on_progress=lambda done, total: steps.append((done, total))) == ()
    assert steps == [(0, 2), (1, 2), (2, 2)]


def test_a_verdict_that_is_another_one_now_is_named_with_all_its_places(run: Path) -> None:
    tamper(run, lambda found: found.update(score=0.5, status="hazard"), "naive")
    tamper(run, lambda found: found["provenance"].update(judge_revision=0, emulator_revision="older"), "")
    tamper(run, lambda found: found["measured"].update(durations_s={"build": 99.0}), "")
    (change,) = reverify(run)
    assert change.parts == ("status", "score")
    assert (change.kernel.verdict.score, change.now.score) == (0.5, 0.2)
    assert [turn for _, turn in change.kernel.places] == [1, 2]


def test_without_its_secret_a_run_cannot_be_judged_again(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    secret = (run / "secret").read_text()
    (run / "secret").unlink()
    monkeypatch.setenv("PTXGYM_SECRET", "another")
    with pytest.raises(UsageError, match=r"put it into .*secret, or into PTXGYM_SECRET"):
        reverify(run)
    monkeypatch.setenv("PTXGYM_SECRET", secret)
    assert reverify(run) == ()


def test_what_a_gpu_judged_is_not_compared_with_the_emulator(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ptxgym.evaluator.usable_gpu", lambda device, arch: None)
    tamper(run, lambda found: found["provenance"].update(device="NVIDIA H200"), "naive")
    record = json.loads((run / "run.json").read_text())
    (run / "run.json").write_text(json.dumps({**record, "device": "NVIDIA H200"}))
    with pytest.raises(UsageError, match="h100 were judged on NVIDIA H200, and here that would be the emulator"):
        reverify(run)


def test_parts_that_differ_are_named_in_order_and_provenance_is_none() -> None:
    before = verdict(target=True)
    assert changed_parts(before, verdict(target=True)) == ()
    assert changed_parts(before, before.model_copy(update={"notes": ("new",), "message": "m"})) == ("message", "notes")
    other = before.provenance.model_copy(update={"emulator_revision": "x"})
    assert changed_parts(before, before.model_copy(update={"provenance": other})) == ()
    measured = verdict(target=True, speedup=0.5)
    assert changed_parts(measured, verdict(target=True, speedup=0.6)) == ()


@pytest.mark.parametrize("changed", [False, True])
def test_the_command_lists_changes_and_ends_with_1_if_there_are_any(
    run: Path, changed: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    if changed:
        tamper(run, lambda found: found.update(score=0.45), "naive")
    monkeypatch.setattr(sys, "argv", ["ptxgym", "reverify", str(run)])
    with pytest.raises(SystemExit) as ended:
        main()
    said = capsys.readouterr().out
    assert ended.value.code == int(changed)
    if changed:
        assert "1 of 2 kernels have another verdict now" in said
        assert said.count("ok 0.450") == said.count("ok 0.200") == 2
    else:
        assert "2 kernels judged again, nothing changed" in said


WAITS = """
import sys, time
from ptxgym import cli
from ptxgym.evaluator import Evaluator
def judge(*_):
    sys.stderr.write("waiting\\n")
    time.sleep(600)
Evaluator._judge = judge
sys.argv = ["ptxgym", "reverify", sys.argv[1]]
cli.main()
"""


def test_an_interrupt_does_not_wait_for_what_is_being_judged(run: Path) -> None:
    command = [sys.executable, "-c", WAITS, str(run)]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        try:
            assert process.stderr is not None
            while "waiting" not in process.stderr.readline():
                assert process.poll() is None
            process.send_signal(signal.SIGINT)
            assert process.wait(60) == 130
            assert "ptxgym: interrupted" in process.stderr.read()
        finally:
            process.kill()
