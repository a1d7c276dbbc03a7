import json
import time

from typer.testing import CliRunner

from ptxgym.cli.commands import app
from ptxgym.cluster.backend import Board, boards
from tests.cluster.fakes import CPU, Bench


def run(*arguments: str) -> str:
    result = CliRunner().invoke(app, ["cluster", *arguments], catch_exceptions=False)
    assert result.exit_code == 0
    return result.output


def test_status_shows_the_services_of_this_machine(make, monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.delenv("PTXGYM_CACHE", raising=False)
    assert "no evaluation service is running here" in run("status")
    service = make()
    service.evaluate("// ok", "gemm")
    for _ in range(200):
        if any(status and status.counters.get("evaluated") for _, _, status in boards()):
            break
        time.sleep(0.1)
    shown = run("status")
    assert "this machine:" in shown and "cpu 0 #0" in shown and "build emulate" in shown and "idle" in shown
    (found,) = json.loads(run("status", "--json"))["services"]
    assert found["counters"]["evaluated"] == 1 and found["workers"][0]["done"] == 2
    service.close()
    assert "no evaluation service is running here" in run("status")


def test_what_ended_without_a_word_is_not_shown(monkeypatch, tmp_path):
    monkeypatch.setenv("PTXGYM_CACHE", str(tmp_path))
    board = Board()
    board.write(Bench([CPU]).scheduler.status())
    assert len(boards()) == 1
    (file,) = (tmp_path / "services").glob("*.json")
    written = json.loads(file.read_text())
    file.write_text(json.dumps({**written, "pid": 2**22 - 1}))  # the largest number of a process, rarely in use
    assert boards() == [] and not file.exists()


def test_a_service_of_another_version_is_named_and_keeps_no_other_from_being_shown(monkeypatch, tmp_path):
    monkeypatch.setenv("PTXGYM_CACHE", str(tmp_path))
    monkeypatch.setattr("ptxgym.cluster.fleet.local_gpus", dict)
    older, ours = Board(), Board()
    for board in (older, ours):
        board.write(Bench([CPU]).scheduler.status())
    written = json.loads(older._path.read_text())
    written["status"]["mood"] = "good"
    older._path.write_text(json.dumps(written))
    shown = run("status").split("service of")
    assert len(shown) == 3 and sum("another version of ptxgym" in part for part in shown) == 1
    assert sum("waiting: nothing" in part for part in shown) == 1
    errors = [one.get("error", "") for one in json.loads(run("status", "--json"))["services"]]
    assert len(errors) == 2 and sum("another version" in error for error in errors) == 1
    assert older._path.exists(), "its service still runs"
