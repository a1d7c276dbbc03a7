"""The tracker's file, and what becomes of a run whose wandb fails in every way that it can."""

from __future__ import annotations

import errno
import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ptxgym.errors import UnknownNameError, UsageError
from ptxgym.store.lines import read_lines
from ptxgym.track import JsonlTracker, TrackingWarning, WandbTracker, open_tracker, sender
from ptxgym.track.lines import EVENTS, FOLDER, Artifact, Ended, Event, Line, Logged, Opened, Row
from ptxgym.track.secrets import LEAST_CHARACTERS, Redactor, is_secret
from tests.conftest import CHECKOUT

KEY = "sk-0123456789abcdef"


def events(folder: Path) -> list[Event]:
    return [line.root for line in read_lines(folder / FOLDER / EVENTS, Line)]


def attempt(turn: int, kernel: str = "kernel") -> Row:
    return Row(table="attempts", cells={"turn": turn, "kernel": kernel, "speedup": None})


def test_all_that_is_told_is_in_the_file(tmp_path: Path) -> None:
    with open_tracker("jsonl", tmp_path, "r", {"turns": 8}) as tracker:
        tracker.log({"reward/total": 0.5, "turn/correct": True}, axis="turns", step=1, row=attempt(1))
        tracker.log({"reward/total": float("nan")}, axis="turns", step=2)
        (tmp_path / "turns.jsonl").write_text("{}\n")
        tracker.artifact("records", "records", {"turns.jsonl": tmp_path / "turns.jsonl"}, {"n": 1})
    opened, first, second, artifact, ended = events(tmp_path)
    assert isinstance(opened, Opened) and (opened.name, opened.config) == ("r", {"turns": 8})
    assert opened.system["ptxgym"] and opened.system["isolation"] in ("full", "seccomp", "rlimits")
    assert opened.system["toolkit"].startswith("nvcc 13.")
    assert first == Logged(axis="turns", step=1, values={"reward/total": 0.5, "turn/correct": 1.0}, row=attempt(1))
    assert isinstance(second, Logged) and second.values["reward/total"] != second.values["reward/total"]
    assert artifact == Artifact(name="records", type="records", files={"turns.jsonl": "turns.jsonl"}, metadata={"n": 1})
    assert isinstance(ended, Ended) and not ended.failed


def test_an_exception_is_told_and_a_second_sitting_knows_the_first(tmp_path: Path) -> None:
    with pytest.raises(ZeroDivisionError), open_tracker("jsonl", tmp_path, "r", {}) as tracker:
        tracker.log({"a": 1}, axis="turns", step=1)
        raise ZeroDivisionError
    assert isinstance(last := events(tmp_path)[-1], Ended) and last.failed
    with open_tracker("jsonl", tmp_path, "r", {}) as tracker:
        assert [event.kind for event in tracker.before] == ["opened", "logged", "ended"]


def test_one_process_tracks_a_run(tmp_path: Path) -> None:
    with (
        open_tracker("jsonl", tmp_path, "r", {}),
        pytest.raises(UsageError, match="another process writes to the run"),
    ):
        open_tracker("jsonl", tmp_path, "r", {})
    open_tracker("jsonl", tmp_path, "r", {}).close()


def test_names_of_trackers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UnknownNameError, match="--track wandv: must be jsonl or wandb"):
        open_tracker("wandv", tmp_path, "r", {})
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(UsageError, match=r"the package wandb: pip install 'ptxgym\[wandb\]'"):
        open_tracker("wandb", tmp_path, "r", {})
    assert not list(tmp_path.iterdir())


KILLED = """
import os, sys, signal
from pathlib import Path
from ptxgym.track import open_tracker
tracker = open_tracker("jsonl", Path(sys.argv[1]), "r", {})
for step in range(1, 1000):
    tracker.log({"a": step}, axis="turns", step=step)
    if step == 5:
        os.write(tracker._file._file, b'{"kind": "logged", "axis": "tu')
        os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_kill_in_the_middle_of_a_line_costs_that_line(tmp_path: Path) -> None:
    done = subprocess.run([sys.executable, "-c", KILLED, str(tmp_path)], cwd=CHECKOUT)
    assert done.returncode == -signal.SIGKILL
    assert [event.step for event in events(tmp_path) if isinstance(event, Logged)] == [1, 2, 3, 4, 5]
    with open_tracker("jsonl", tmp_path, "r", {}) as tracker:
        tracker.log({"a": 6}, axis="turns", step=6)
    assert [event.kind for event in events(tmp_path)] == ["opened", *["logged"] * 5, "opened", "logged", "ended"]


def test_which_variables_are_secret() -> None:
    for name in ("OPENAI_API_KEY", "PTXGYM_SECRET", "HF_TOKEN", "AWS_SECRET_ACCESS_KEY", "PGPASSWORD", "my_token"):
        assert is_secret(name), name
    for name in ("PATH", "HOME", "KEYBOARD", "MAX_TOKENS", "WANDB_MODE", "GIT_AUTHOR_NAME", "TOKENIZERS_PARALLELISM"):
        assert not is_secret(name), name


@settings(max_examples=50, deadline=None)
@given(
    st.text(min_size=LEAST_CHARACTERS).filter(lambda text: len(text.strip()) >= LEAST_CHARACTERS),
    st.recursive(st.text() | st.none(), lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner)),
    st.text(),
    st.text(),
)  # fmt: skip
def test_secrets_are_taken_out_wherever_they_stand(secret: str, value: Any, before: str, behind: str) -> None:
    redacted = Redactor({"SOME_KEY": secret})
    secret = secret.strip()

    def holds(found: Any) -> bool:
        if isinstance(found, dict):
            return any(holds(each) for each in (*found, *found.values()))
        if isinstance(found, list):
            return any(map(holds, found))
        return isinstance(found, str) and secret in found

    planted = {"said": [value, f"{before}{secret}{behind}"], f"{before}{secret}": value}
    assert holds(planted) and not holds(redacted(planted))
    assert Redactor({"SOME_KEY": secret[: LEAST_CHARACTERS - 1], "PATH": secret})(planted) == planted


def test_a_secret_leaves_by_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOME_API_KEY", KEY)
    told: list[str] = []
    (tmp_path / "good.txt").write_text("x" * (1 << 20) + KEY[:-1])
    (tmp_path / "bad.txt").write_text("x" * ((1 << 20) - 5) + KEY)
    with JsonlTracker(tmp_path, "r", {"key": KEY}, secrets=["of the run"], on_problem=told.append) as tracker:
        tracker.log({"a": 1}, axis="turns", step=1, row=attempt(1, f"// {KEY} of the run"))
        tracker.artifact("records", "records", {name: tmp_path / name for name in ("good.txt", "bad.txt", "none")})
    text = (tmp_path / FOLDER / EVENTS).read_text()
    assert KEY not in text and "of the run" not in text
    (artifact,) = (event for event in events(tmp_path) if isinstance(event, Artifact))
    assert list(artifact.files) == ["good.txt"]
    assert len(told) == 2 and "bad.txt is in no artefact" in told[0] and "none is in no artefact" in told[1]


@pytest.fixture
def calls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The log of a wandb that is not wandb's."""
    front = os.pathsep.join([str(Path(__file__).parent / "fake"), str(CHECKOUT)])
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, [front, os.environ.get("PYTHONPATH", "")])))
    monkeypatch.setattr(sender, "check_wandb", lambda: None)
    monkeypatch.setattr("ptxgym.track.tracker.check_wandb", lambda: None)
    monkeypatch.setenv("FAKE_WANDB_LOG", str(tmp_path / "calls"))
    monkeypatch.delenv("WANDB_MODE", raising=False)
    return tmp_path / "calls"


def called(calls: Path, what: str) -> list[dict[str, Any]]:
    return [told for told in map(json.loads, calls.read_text().splitlines()) if told["what"] == what]


def track(folder: Path, turns: range, finish_s: float = 60.0, calls: Path | None = None) -> list[str]:
    """Track some turns, after wandb was first called if `calls` is given; return what is told."""
    told: list[str] = []
    with WandbTracker(folder, "r", {"a": 1}, on_problem=told.append, finish_s=finish_s) as tracker:
        until = time.monotonic() + 60
        while calls is not None and not calls.exists() and time.monotonic() < until:
            time.sleep(0.1)
        for turn in turns:
            tracker.log({"reward/total": turn / 10, "a": 1}, axis="turns", step=turn, row=attempt(turn))
        (folder / "f").write_text("f")
        tracker.artifact("records", "records", {"f": folder / "f"})
    return told


def test_wandb_gets_it_all_by_axes_of_its_own(tmp_path: Path, calls: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOME_API_KEY", KEY)
    monkeypatch.setenv("WANDB_API_KEY", "w" * 40)
    monkeypatch.setenv("WANDB_PROJECT", "mine")
    assert track(tmp_path / "run", range(1, 31)) == []
    (init,) = called(calls, "init")
    assert init["told"]["project"] == "mine" and init["told"]["resume"] == "allow" and init["told"]["name"] == "r"
    assert init["environ"]["WANDB_API_KEY"] == "w" * 40 and KEY not in json.dumps(init)
    assert "PTXGYM_SECRET" not in init["environ"] and "PATH" in init["environ"]
    assert [(told["name"], told["how"]) for told in called(calls, "define_metric")] == [
        ("turns", {}), ("reward/*", {"step_metric": "turns"}), ("a", {"step_metric": "turns"}),
    ]  # fmt: skip
    rows = [told for told in called(calls, "log") if "turns" in told["values"]]
    assert [told["values"] for told in rows] == [
        {"turns": str(turn), "reward/total": str(turn / 10), "a": "1.0"} for turn in range(1, 31)
    ]
    steps = [told["step"] for told in called(calls, "log")]
    assert steps == sorted(steps) and len({told["step"] for told in rows}) == 30
    tables = [told["values"]["attempts"] for told in called(calls, "log") if "attempts" in told["values"]]
    assert tables[:10] == [f"table of {rows}" for rows in range(1, 11)] and tables[-1] == "table of 30"
    assert len(tables) < 25, "later pieces are larger"
    assert [told["files"] for told in called(calls, "artifact")] == [["f"]]
    assert [told["exit_code"] for told in called(calls, "finish")] == [0]


def test_the_next_sitting_goes_on_with_it(tmp_path: Path, calls: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WANDB_PROJECT", "mine")
    track(tmp_path / "run", range(1, 4))
    monkeypatch.setenv("WANDB_PROJECT", "another")
    track(tmp_path / "run", range(3, 6))  # as training repeats what is behind its checkpoint
    first, second = called(calls, "init")
    assert first["told"]["id"] == second["told"]["id"] and second["told"]["project"] == "mine"
    turns = [told["values"]["turns"] for told in called(calls, "log") if "turns" in told["values"]]
    assert turns == ["1", "2", "3", "4", "5"]
    assert len(called(calls, "artifact")) == 2 and len(called(calls, "config")) == 3


LOSS = {"train/loss": 0.5, "train/epoch": 1.0}
EVALUATED = {"train/eval_loss": 0.7, "train/epoch": 1.0}
ENDED = {"train/train_runtime": 9.0, "train/train_loss": 0.6, "train/epoch": 1.0}
"""As a trainer of Hugging Face logs them, at one step."""


def trained(folder: Path, *logs: tuple[int, dict[str, float]]) -> None:
    with WandbTracker(folder, "r", {}, on_problem=pytest.fail, finish_s=60.0) as tracker:
        for step, values in logs:
            tracker.log(values, axis="train/global_step", step=step)


def test_all_that_is_logged_at_one_step_is_sent_once(tmp_path: Path, calls: Path) -> None:
    trained(tmp_path / "run", (1, LOSS), (2, LOSS), (2, EVALUATED), (2, ENDED))

    def sent() -> list[tuple[str, set[str]]]:
        rows = [told["values"] for told in called(calls, "log")]
        return [(row["train/global_step"], set(row) - {"train/global_step"}) for row in rows]

    first = [
        ("1", {"train/loss", "train/epoch"}), ("2", {"train/loss", "train/epoch"}), ("2", {"train/eval_loss"}),
        ("2", {"train/train_runtime", "train/train_loss"}),
    ]  # fmt: skip
    assert sent() == first
    # From the checkpoint of step 1: what is repeated is not sent, what is new at the same step is.
    trained(tmp_path / "run", (2, LOSS), (2, EVALUATED), (2, {**ENDED, "train/flos": 4.0}), (3, LOSS), (3, EVALUATED))
    assert sent()[len(first) :] == [
        ("2", {"train/flos"}), ("3", {"train/loss", "train/epoch"}), ("3", {"train/eval_loss"}),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("fails", "says", "finish_s"),
    [
        ("init:raise", "wandb cannot begin (RuntimeError: no such run); the run goes on", 60),
        ("init:exit", "wandb cannot begin (its process ended with 7); the run goes on", 60),
        ("log:raise", "wandb failed (RuntimeError: no such run); the run goes on", 60),
        ("log:full", "wandb failed (OSError: [Errno 28] No space left on device); the run goes on", 60),
        ("log:exit", "wandb failed (its process ended with 7); the run goes on", 60),
        ("log:hang", "wandb did not finish within 2 s; the run goes on", 2),
        ("finish:hang", "wandb did not finish within 5 s; the run goes on", 5),
        ("artifact:raise", "wandb failed (RuntimeError: no such run); the run goes on", 60),
    ],
)
def test_whatever_wandb_does_the_run_ends_well_and_says_it_once(
    tmp_path: Path, calls: Path, monkeypatch: pytest.MonkeyPatch, fails: str, says: str, finish_s: float
) -> None:
    monkeypatch.setenv("FAKE_WANDB", fails)
    told = track(tmp_path / "run", range(1, 200), finish_s, calls)
    assert len(told) == 1 and told[0].startswith(says), told
    assert "--resume --track wandb sends what is missing" in told[0]
    found = events(tmp_path / "run")
    assert [event.step for event in found if isinstance(event, Logged)] == list(range(1, 200))
    assert [event.kind for event in found[-2:]] == ["artifact", "ended"]


def test_what_was_not_sent_is_sent_by_the_next_sitting(
    tmp_path: Path, calls: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FAKE_WANDB", "log:exit")
    assert len(track(tmp_path / "run", range(1, 4))) == 1
    monkeypatch.setenv("FAKE_WANDB", "")
    calls.unlink()
    assert track(tmp_path / "run", range(4, 6)) == []
    sent = [each["values"]["turns"] for each in called(calls, "log") if "turns" in each["values"]]
    assert sent == ["1", "2", "3", "4", "5"]


@pytest.mark.parametrize("fails", ["process", "thread", "nothing"])
def test_a_process_that_cannot_be_started_is_told_once(
    tmp_path: Path, calls: Path, monkeypatch: pytest.MonkeyPatch, fails: str
) -> None:
    """As where no process, no memory or no thread is left to be had."""
    popen, start = subprocess.Popen, threading.Thread.start

    def started(command: list[str], *more: Any, **others: Any) -> Any:
        if fails == "process" and "ptxgym.track.wandb_process" in command:
            raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN))
        return popen(command, *more, **others)

    def begin(thread: threading.Thread) -> None:
        if fails == "thread" and thread.name == "wandb":
            raise RuntimeError("can't start new thread")
        start(thread)

    monkeypatch.setattr(subprocess, "Popen", started)
    monkeypatch.setattr(threading.Thread, "start", begin)
    told = track(tmp_path / "run", range(1, 4))
    why = {
        "process": "its process cannot be started: Resource temporarily unavailable",
        "thread": "can't start new thread",
    }
    assert [problem.partition("; the run")[0] for problem in told] == [
        f"wandb cannot begin ({said})" for name, said in why.items() if name == fails
    ]
    assert [event.kind for event in events(tmp_path / "run")][-2:] == ["artifact", "ended"]
    assert calls.exists() == (fails == "nothing")


@pytest.mark.parametrize(("fails", "why"), [("raise", "RuntimeError: no such run"), ("hang", "no sign within 12 s")])
def test_without_a_network_it_goes_on_offline(
    tmp_path: Path, calls: Path, monkeypatch: pytest.MonkeyPatch, fails: str, why: str
) -> None:
    monkeypatch.setenv("FAKE_WANDB", f"online-init:{fails}")
    monkeypatch.setattr("ptxgym.track.tracker.Sender", lambda folder: sender.Sender(folder, start_s=12.0))
    (problem,) = track(tmp_path / "run", range(1, 3))
    assert problem.startswith(f"wandb cannot begin ({why}) and writes an offline run to ")
    assert "`wandb sync` sends it" in problem
    assert [each["environ"].get("WANDB_MODE") for each in called(calls, "init")] == [None, "offline"]
    assert [each["exit_code"] for each in called(calls, "finish")] == [0]


def test_wandb_that_is_disabled_is_not_started(tmp_path: Path, calls: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WANDB_MODE", "disabled")
    assert track(tmp_path / "run", range(1, 3)) == [] and not calls.exists()
    monkeypatch.delenv("WANDB_MODE")
    assert track(tmp_path / "run", range(3, 4)) == []
    assert [each["values"]["turns"] for each in called(calls, "log") if "turns" in each["values"]] == ["1", "2", "3"]


def test_a_problem_nobody_takes_is_a_warning(tmp_path: Path, calls: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAKE_WANDB", "init:raise")
    with pytest.warns(TrackingWarning, match="wandb cannot begin"), WandbTracker(tmp_path / "run", "r", {}):
        pass


STARTED = """
import sys, time
from pathlib import Path
from ptxgym.track import WandbTracker
tracker = WandbTracker(Path(sys.argv[1]), "r", {}, on_problem=print)
tracker.log({"a": 1}, axis="turns", step=1)
while tracker._sender._process is None:  # who kills the run before leaves nobody who could send
    time.sleep(0.01)
print("ready", flush=True)
time.sleep(600)
"""


def test_a_process_whose_run_is_killed_sends_the_rest_and_ends(tmp_path: Path, calls: Path) -> None:
    process = subprocess.Popen([sys.executable, "-c", STARTED, str(tmp_path / "run")], stdout=subprocess.PIPE)
    assert process.stdout is not None and process.stdout.readline() == b"ready\n"
    process.kill()
    process.communicate()
    until = time.monotonic() + 60
    while not (calls.exists() and called(calls, "finish")):
        assert time.monotonic() < until
        time.sleep(0.1)
    assert [each["exit_code"] for each in called(calls, "finish")] == [1]
    assert [each["values"]["turns"] for each in called(calls, "log")] == ["1"]
