"""Fixit from the shell: real kernels on the emulator, teachers behind a scripted endpoint over HTTP."""

from __future__ import annotations

import contextlib
import io
import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from ptxgym.agent.prompting import fenced
from ptxgym.cli import main
from ptxgym.evaluator import Evaluator
from ptxgym.fixit.pack import read_manifest, read_rows
from ptxgym.fixit.records import passes
from ptxgym.fixit.workshop import Workshop
from ptxgym.submission import extract
from tests.agent.server import Say, ScriptedServer
from tests.fixit.scripted import GOOD, Cell, failing_run, kernel, naive

CELLS = (Cell("h100", "k64-bias", 3, seed=3), Cell("b200", "k64-bias", 3, seed=3))


@dataclass(frozen=True)
class Ran:
    returncode: int
    stdout: str
    stderr: str


def ptxgym(*arguments: object) -> Ran:
    """Run `ptxgym fixit` in this process."""
    out, err = io.StringIO(), io.StringIO()
    with (
        pytest.MonkeyPatch.context() as patch,
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
        pytest.raises(SystemExit) as ended,
    ):
        patch.setattr(sys, "argv", ["ptxgym", "fixit", *map(str, arguments)])
        main()
    return Ran(int(ended.value.code or 0), out.getvalue(), err.getvalue())


class Teachers:
    """Answers repair teacher and reasoning teacher: one kernel of each architecture is never mended but by a cheat."""

    def __init__(self) -> None:
        self.cheated: dict[str, str] = {}
        """By architecture: the failing kernel of which the repair is a cheat."""

    def __call__(self, body: dict[str, Any]) -> Say:
        text = "\n".join(message["content"] for message in body["messages"])
        arch = "b200" if "(sm_100a)" in text else "h100"
        if "smallest change" not in text:
            return Say(GOOD.format(headline="what is said above"))
        wrong = extract(text.split("## Start from this kernel")[1].split("\n# ")[0]).text
        if self.cheated.setdefault(arch, wrong) == wrong:
            return Say(fenced(naive("k64-bias")))
        return Say(fenced(kernel(arch)))


@pytest.fixture(scope="module")
def work(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Mined, repaired and explained, in both ways."""
    folder = tmp_path_factory.mktemp("fixit")
    with Evaluator("emulator", secret="s", random_schedules=1) as evaluator:
        failing_run(folder / "run", CELLS, evaluator, "s")
    done = ptxgym("mine", folder / "run", "--seed", 1, "--out", folder / "work")
    assert done.returncode == 0, done.stderr
    assert "ptxgym/Gemm-B200-v1 k64-bias train" in done.stdout
    with ScriptedServer(Teachers()) as server:
        agent = ("--agent", "openai", "--set", f"base_url={server.url}", "--set", "api_key_env=", "--set", "model=m")
        done = ptxgym("repair", folder / "work", *agent, "--device", "emulator")
        assert done.returncode == 0, done.stderr
        for direct in ((), ("--direct",)):
            done = ptxgym("rationalise", folder / "work", *agent, *direct)
            assert done.returncode == 0, done.stderr
        asked = len(server.requests)
        for command in ("repair", "rationalise"):
            done = ptxgym(command, folder / "work", *agent)
            assert "nothing new" in done.stdout, done.stderr
        assert len(server.requests) == asked
    return folder / "work"


def test_only_kernels_that_pass_by_target_instructions_are_in_the_set(work: Path, tmp_path: Path) -> None:
    workshop = Workshop(work)
    assert len(workshop.mined) == 6
    repairs = workshop.repairs()
    assert sorted(found.status for found in repairs.values()) == ["failed"] * 2 + ["repaired"] * 4
    done = ptxgym("build", work, "--out", tmp_path / "set")
    assert done.returncode == 0, done.stderr
    assert "4 rows" in done.stdout
    rows = read_rows(tmp_path / "set")
    assert {row.arch for row in rows} == {"h100", "b200"}
    assert all(row.completion[0].content.startswith("<think>\n") for row in rows)
    answers = {row.completion[0].content.split("</think>")[1]: row for row in rows}
    with Evaluator("emulator", secret="another", epoch=9, random_schedules=1) as evaluator:
        for answer, row in answers.items():
            assert passes(evaluator.evaluate(extract(answer).text, row.task, row.arch, variant=row.variant))
    failing = {kernel_.id: kernel_ for kernel_ in workshop.mined}
    for row in rows:
        assert extract(row.prompt[1].content).text.rstrip() == failing[row.id].source.rstrip()
        assert row.prompt[2].content == failing[row.id].feedback
        assert repairs[row.id].conditions not in ("", failing[row.id].conditions)


def test_a_set_verifies_until_it_is_changed_and_reports_its_strata(work: Path, tmp_path: Path) -> None:
    assert ptxgym("build", work, "--out", tmp_path, "--jsonl-only").returncode == 0
    done = ptxgym("verify", tmp_path)
    assert (done.returncode, done.stdout) == (0, "4 rows; every hash is as the manifest says\n")
    done = ptxgym("report", tmp_path)
    assert "Rows by task and kind" in done.stdout
    assert "ptxgym/Gemm-H100-v1 k64-bias train" in done.stdout
    path = tmp_path / "rows.jsonl"
    path.write_text(path.read_text().replace("__syncthreads", "__syncwarp", 1))
    done = ptxgym("verify", tmp_path)
    assert done.returncode == 1
    assert "rows.jsonl: SHA-256 is" in done.stdout


def test_direct_rows_are_the_same_kernels_without_their_failures(work: Path, tmp_path: Path) -> None:
    done = ptxgym("build", work, "--direct", "--out", tmp_path)
    assert done.returncode == 0, done.stderr
    rows = read_rows(tmp_path)
    assert {(row.arch, row.kind, len(row.prompt)) for row in rows} == {("h100", "direct", 1), ("b200", "direct", 1)}
    assert read_manifest(tmp_path).direct
    kernels = {found.source for found in Workshop(work).repairs().values() if found.source}
    assert {extract(row.completion[0].content).text.rstrip() for row in rows} == {text.rstrip() for text in kernels}


def test_mining_again_gives_the_same_bytes_elsewhere(work: Path, tmp_path: Path) -> None:
    done = ptxgym("mine", work.parent / "run", "--seed", 1, "--out", tmp_path / "again")
    assert done.returncode == 0
    assert (tmp_path / "again" / "mined.jsonl").read_bytes() == (work / "mined.jsonl").read_bytes()
    done = ptxgym("mine", work.parent / "run", "--seed", 2, "--out", work)
    assert done.returncode == 2
    assert "another sample" in done.stderr


def test_mistakes_are_named(work: Path, tmp_path: Path) -> None:
    assert "fixit mine" in ptxgym("build", tmp_path, "--out", tmp_path / "set").stderr
    assert "no training set" in ptxgym("verify", tmp_path).stderr
    done = ptxgym("mine", tmp_path, "--out", tmp_path / "out")
    assert done.returncode == 2
    assert "holds no run" in done.stderr
    assert json.loads((work / "fixit.json").read_text())["recipe"]["name"] == "default"
