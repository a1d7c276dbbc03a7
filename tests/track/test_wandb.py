"""Runs that go to wandb itself: offline, read back by wandb's own reader; streamed; without a network; killed."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from ptxgym.agent.prompting import fenced
from ptxgym.judge.conditions import conditions
from ptxgym.store.lines import read_lines
from ptxgym.store.reader import StoredRun, read_run
from ptxgym.task import expected, load_task
from ptxgym.track.lines import EVENTS, FOLDER, Artifact, Event, Line, Logged
from ptxgym.track.sender import FINISH_S
from ptxgym.track.turns import turn_values
from tests.agent.server import Say, ScriptedServer
from tests.conftest import CHECKOUT
from tests.track.server import WandbServer

pytestmark = pytest.mark.skipif(not importlib.util.find_spec("wandb"), reason="wandb is not installed: ptxgym[wandb]")

KEY, SECRET, TOKEN = "sk-of-the-endpoint-0123", "what the draws are made of", "hf_0123456789abcdef"
RECIPE = """
summary = "a proven kernel and a model, several episodes at once"
device = "emulator"
trajectories = 4
turns = 2
envs = ["PTX-Gemm-H100"]
agents = [
    { use = "naive", anchor = true, trajectories = 1, turns = 1 },
    { use = "openai", label = "model", settings = { base_url = "URL", model = "m", api_key_env = "SOME_VARIABLE" } },
]
[limits]
model_calls = 4
"""


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("home")


def environ(home: Path, **others: str) -> dict[str, str]:
    """What a run gets: secrets of every kind, wandb's files in a folder of their own, and nothing of the user's."""
    own = {name: value for name, value in os.environ.items() if not name.startswith("WANDB_")}
    places = {f"WANDB_{name}_DIR": str(home / name.lower()) for name in ("DATA", "CACHE", "CONFIG", "ARTIFACT")}
    secrets = {"SOME_VARIABLE": KEY, "PTXGYM_SECRET": SECRET, "HF_TOKEN": TOKEN}
    return {**own, **places, **secrets, "WANDB_ERROR_REPORTING": "false", **others}


def events(folder: Path) -> list[Event]:
    return [line.root for line in read_lines(folder / FOLDER / EVENTS, Line)]


def logged(folder: Path, axis: str) -> list[Logged]:
    return [event for event in events(folder) if isinstance(event, Logged) and event.axis == axis]


def ptxgym(*arguments: object, env: dict[str, str]) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "ptxgym", *map(str, arguments)]
    return subprocess.Popen(
        command, cwd=CHECKOUT, env=env, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )  # fmt: skip


def synced(home: Path, server: WandbServer, folder: Path) -> str:
    """Let wandb read its offline runs in a folder and send them; return the id."""
    runs = sorted((folder / FOLDER / "wandb").glob("offline-run-*"))
    assert runs
    env = environ(home, WANDB_BASE_URL=server.url, WANDB_API_KEY="a" * 40)
    done = subprocess.run(
        [sys.executable, "-m", "wandb", "sync", "--yes", *map(str, runs)], env=env, cwd=folder, capture_output=True,
        text=True, timeout=300,
    )  # fmt: skip
    assert done.returncode == 0 and done.stderr.count("Finished syncing") == len(runs), done.stderr
    (run,) = server.inserted
    return run


def by_axis(history: list[dict[str, Any]], axis: str) -> list[dict[str, Any]]:
    return [row for row in history if axis in row]


@dataclass
class Read:
    """A sweep, and what wandb's reader found of it."""

    folder: Path
    stored: StoredRun
    server: WandbServer
    run: str
    said: tuple[str, str]


def script(body: dict[str, Any]) -> Say:
    """No kernel at first, then one that is right."""
    turn = sum(message["role"] == "assistant" for message in body["messages"])
    if turn == 0:
        return Say("I would begin with the tensor maps.")
    task = load_task("gemm")
    return Say(fenced(task.source(expected(task, "h100")[0])))


@pytest.fixture(scope="module")
def read(tmp_path_factory: pytest.TempPathFactory, home: Path) -> Iterator[Read]:
    """`ptxgym bench` of five episodes, four of them at once, with `WANDB_MODE=offline`."""
    place = tmp_path_factory.mktemp("bench")
    with ScriptedServer(script) as models:
        (place / "little.toml").write_text(RECIPE.replace("URL", models.url))
        process = ptxgym(
            *("bench", place / "little.toml", "--out", place / "run", "--track", "wandb"),
            env=environ(home, WANDB_MODE="offline", WANDB_PROJECT="kernels", WANDB_API_KEY="b" * 40),
        )
        out, err = process.communicate(timeout=500)
    assert process.returncode == 0, err
    with WandbServer() as server:
        run = synced(home, server, place / "run")
        yield Read(place / "run", read_run(place / "run"), server, run, (out, err))


def test_scalars_of_every_turn_and_episode_are_there(read: Read) -> None:
    turns = by_axis(read.server.history(read.run), "turns")
    assert [row["turns"] for row in turns] == list(range(1, 10)), "five episodes at once, and one axis that only grows"
    steps = [row["_step"] for row in read.server.history(read.run)]
    assert steps == sorted(set(steps))
    told = {
        (each["episode"], each["turn"]): number for number, each in enumerate(read.server.table(read.run, "attempts"))
    }
    assert len(told) == len(read.stored.turns) == 9
    for record in read.stored.turns:
        row = turns[told[record.episode, record.turn]]
        for name, value in turn_values(record).items():
            assert row[name] == pytest.approx(value), name
        assert row["reward/total"] == pytest.approx(record.reward) and row["turn/score"] == record.score
        assert {name for name in row if name.startswith("reward/")} == {
            "reward/total", *(f"reward/{name}" for name in record.terms)
        }  # fmt: skip
    assert {row["turn/correct"] for row in turns} == {0, 1}
    episodes = by_axis(read.server.history(read.run), "episodes_ended")
    assert [row["episodes_ended"] for row in episodes] == [1, 2, 3, 4, 5]
    assert sorted(row["episode/best_score"] for row in episodes) == [0.2] * 5
    assert [row["solved/model"] for row in episodes if "solved/model" in row] == [0.0] * 4
    assert read.server.complete == {read.run: 0}


def test_axes_are_defined_for_every_group(read: Read) -> None:
    """Fields of wandb's metric records: 1 name, 2 glob, 5 number of the metric that is its axis."""
    found = read.server.metrics(read.run)
    named = {each.get("1") or each.get("2"): each for each in found}
    for group, axis in (("turn/*", "turns"), ("reward/*", "turns"), ("episode/*", "episodes_ended")):
        assert found[named[group]["5"] - 1]["1"] == axis


def test_attempts_hold_kernel_and_feedback(read: Read) -> None:
    rows = {(row["episode"], row["turn"]): row for row in read.server.table(read.run, "attempts")}
    for record in read.stored.turns:
        row = rows[record.episode, record.turn]
        assert row["kernel"] == record.source and row["feedback"] == record.feedback
        assert (row["status"], row["score"]) == (record.verdict.status, record.score)
    kernels = {row["kernel"] for row in rows.values()}
    task = load_task("gemm")
    assert task.source(expected(task, "h100")[0]).strip() in {kernel.strip() for kernel in kernels}
    (naive,) = (row for row in rows.values() if row["solution"])
    assert naive["kernel"] == "" and naive["score"] == 0.2, "a proven solution that an agent hands in stays at home"
    episodes = read.server.table(read.run, "episodes")
    assert {row["id"] for row in episodes} == {episode.id for episode in read.stored.episodes}


def test_artefacts_are_the_records_and_the_best_kernel(read: Read) -> None:
    records = read.server.artifact("records-run")["files"]
    assert set(records) == {"run.json", "episodes.jsonl", "turns.jsonl"}
    for name, data in records.items():
        assert data == (read.folder / name).read_bytes()
    kernels = read.server.artifact("kernels-run")
    (kernel,) = (
        turn.source for turn in read.stored.turns if turn.score == 0.2 and turn.source and "/0" in turn.episode
    )
    assert kernels["files"] == {"Gemm-H100-v1-base.cu": kernel.encode()}
    assert kernels["metadata"] == {"scores": {"Gemm-H100-v1-base.cu": 0.2}}


def test_the_machine_and_the_sweep_are_the_configuration(read: Read) -> None:
    config = read.server.config(read.run)
    assert {"ptxgym", "gpu", "driver", "toolkit", "isolation", "platform"} <= set(config["system"])
    assert config["sweep_sha256"] == read.stored.record.sweep_sha256
    assert config["recipe"]["trajectories"] == 4 and config["versions"]["emulator"]
    assert read.server.runs[read.run]["project"] == "kernels" and read.server.runs[read.run]["displayName"] == "run"


def test_no_secret_and_no_hidden_shape_has_left(read: Read) -> None:
    sent = b"\n".join(read.server.bodies)
    kept = b"\n".join(path.read_bytes() for path in (read.folder / FOLDER).rglob("*") if path.is_file())
    for secret in (KEY, SECRET, TOKEN):
        assert secret.encode() not in sent and secret.encode() not in kept
    assert b"b" * 40 not in kept and b"a" * 40 not in sent, "wandb's own key goes by its header alone"
    assert read.stored.turns[0].source.encode()[:40] in sent, "what is not secret has left"
    hidden = conditions(load_task("gemm"), secret=SECRET.encode()).cases[-1]
    values = [str(size) for size in hidden.axes.values()]
    shape = re.compile(r"\D{1,12}".join(rf"\b{value}\b" for value in values).encode())
    assert hidden.hidden and shape.search(b"M = %b, N = %b, K = %b" % tuple(value.encode() for value in values))
    assert not shape.search(sent) and not shape.search(kept)
    assert (read.folder / "secret").read_text() == SECRET


def test_the_command_says_where_it_went_and_nothing_of_wandb_s_own(read: Read) -> None:
    out, err = read.said
    assert re.search(r"^wandb: .*/run/track/wandb/offline-run-\S+$", err, re.MULTILINE)
    assert "wandb" not in out and "Syncing" not in err and "Traceback" not in err


ANSWERS = ("one", "two", "three")


def play(folder: Path, home: Path, *arguments: object, track: str = "wandb", **env: str) -> subprocess.Popen[str]:
    """`ptxgym run` of three answers without a kernel."""
    answers = folder.parent / "answers"
    answers.mkdir(exist_ok=True)
    for number, answer in enumerate(ANSWERS, 1):
        (answers / f"{number}.md").write_text(answer)
    return ptxgym(
        *("run", "--env", "PTX-Gemm-H100", "--agent", "replay", "--set", f"path={answers}", "--turns", 3),
        *("--device", "emulator", "--out", folder, "--track", track, *arguments), env=environ(home, **env),
    )  # fmt: skip


def told(folder: Path) -> list[Any]:
    """What of the events does not depend on the clock."""
    return [
        (event.axis, event.step, {name: value for name, value in event.values.items() if not name.endswith("_s")})
        if isinstance(event, Logged)
        else event.kind
        for event in events(folder)
    ]


@pytest.fixture(scope="module")
def quiet(tmp_path_factory: pytest.TempPathFactory, home: Path) -> list[Any]:
    """What a run without wandb leaves in its file."""
    folder = tmp_path_factory.mktemp("quiet") / "run"
    process = play(folder, home, track="jsonl")
    _, err = process.communicate(timeout=300)
    assert process.returncode == 0 and err == ""
    assert [event[1] for event in told(folder) if event[0] == "turns"] == [1, 2, 3]
    return told(folder)


@pytest.mark.parametrize("network", ["refuses", "hangs"])
def test_without_a_network_a_run_ends_in_time_and_is_complete(
    tmp_path: Path, home: Path, quiet: list[Any], network: str
) -> None:
    with socket.socket() as port:
        port.bind(("127.0.0.1", 0))
        if network == "hangs":
            port.listen(100)  # connections are taken by the system, and never answered
        address = f"http://127.0.0.1:{port.getsockname()[1]}"
        start = time.monotonic()
        process = play(
            tmp_path / "run", home, WANDB_BASE_URL=address, WANDB_API_KEY="a" * 40, WANDB_INIT_TIMEOUT="5"
        )  # fmt: skip
        out, err = process.communicate(timeout=600)
        took_s = time.monotonic() - start
    assert process.returncode == 0 and "scores 0.00 → 0.00 → 0.00" in out
    assert took_s < FINISH_S + 120, "the run itself, and what its end waits for wandb"
    assert told(tmp_path / "run") == quiet
    assert len(re.findall(r"wandb cannot begin \((CommError: |no sign)", err)) == 1
    assert err.count("writes an offline run to") == 1
    with WandbServer() as server:
        run = synced(home, server, tmp_path / "run")
        assert [row["turns"] for row in by_axis(server.history(run), "turns")] == [1, 2, 3]


def test_without_a_key_it_goes_on_offline(tmp_path: Path, home: Path, quiet: list[Any]) -> None:
    process = play(tmp_path / "run", home, HOME=str(tmp_path))
    _, err = process.communicate(timeout=300)
    assert process.returncode == 0 and told(tmp_path / "run") == quiet
    assert re.search(r"wandb cannot begin \((UsageError: |no sign)", err) and "offline-run-" in err


def test_a_resumed_run_streams_to_the_same_run(tmp_path: Path, home: Path) -> None:
    with WandbServer() as server, ScriptedServer(lambda body: Say("no")) as models:

        def sitting(turns: int, *arguments: str) -> str:
            process = ptxgym(
                *("run", "--env", "PTX-Gemm-H100", "--agent", "openai", "--device", "emulator", "--turns", turns),
                *("--set", f"base_url={models.url}", "--set", "model=m", "--set", "api_key_env=SOME_VARIABLE"),
                *("--out", tmp_path / "run", "--track", "wandb", *arguments),
                env=environ(home, WANDB_BASE_URL=server.url, WANDB_API_KEY="a" * 40),
            )
            _, err = process.communicate(timeout=300)
            assert process.returncode == 0 and "wandb failed" not in err and "wandb cannot" not in err, err
            return err

        assert f"wandb: {server.url}/me/ptxgym/runs/" in sitting(3)
        (run,) = server.inserted
        whole = server.history(run)
        assert [row["turns"] for row in by_axis(whole, "turns")] == [1, 2, 3]

        lines = (tmp_path / "run" / "episodes.jsonl").read_text()
        (tmp_path / "run" / "episodes.jsonl").write_text("")
        sitting(3, "--resume")
        assert server.inserted == [run] and server.history(run) == whole, "nothing twice"
        assert (tmp_path / "run" / "episodes.jsonl").read_text() != lines  # it ended again, at another time


TRAINED = """
import os, signal, sys
from pathlib import Path
from ptxgym.track.training import TrackedTraining

folder, start, stop, killed = Path(sys.argv[1]), *map(int, sys.argv[2:])
(folder / "train.json").write_text("{}")
with TrackedTraining(folder, "wandb", print) as tracked:  # as transformers logs: loss, then evaluation, then the end
    for step in range(start, stop + 1):
        tracked.log(step, {"loss": 1 / step, "epoch": step / 4})
        if step == killed:
            os.kill(os.getpid(), signal.SIGKILL)
        if step % 2 == 0:
            tracked.log(step, {"eval_loss": 2 / step, "epoch": step / 4})
    tracked.log(stop, {"train_runtime": 9.0, "train_loss": 0.5, "epoch": stop / 4})
"""


def test_evaluations_of_training_get_there_each_once_through_a_kill(tmp_path: Path, home: Path) -> None:
    """Killed between the loss and the evaluation of step 4; it goes on from the checkpoint of step 2."""
    folder = tmp_path / "run"
    folder.mkdir()
    env = environ(home, WANDB_MODE="offline")
    for sitting, status in ((("1", "4", "4"), -signal.SIGKILL), (("3", "6", "0"), 0)):
        done = subprocess.run([sys.executable, "-c", TRAINED, str(folder), *sitting], cwd=CHECKOUT, env=env)
        assert done.returncode == status
    with WandbServer() as server:
        run = synced(home, server, folder)
        rows = by_axis(server.history(run), "train/global_step")
        assert sorted(row["_step"] for row in rows) == sorted({row["_step"] for row in rows})
        found = {
            name: [(row["train/global_step"], row[f"train/{name}"]) for row in rows if f"train/{name}" in row]
            for name in ("loss", "eval_loss", "epoch", "train_runtime", "train_loss")
        }
    assert found == {
        "loss": [(step, pytest.approx(1 / step)) for step in range(1, 7)],
        "eval_loss": [(step, pytest.approx(2 / step)) for step in (2, 4, 6)],
        "epoch": [(step, pytest.approx(step / 4)) for step in range(1, 7)],
        "train_runtime": [(6, 9.0)],
        "train_loss": [(6, 0.5)],
    }


def test_a_killed_run_goes_on_and_wandb_has_each_turn_once(tmp_path: Path, home: Path) -> None:
    """Killed while the third turn's answer is awaited; the process that feeds wandb outlives it and ends well."""
    let = threading.Event()

    def slow(body: dict[str, Any]) -> Say:
        turn = sum(message["role"] == "assistant" for message in body["messages"])
        if turn == 2:
            let.wait(300)
        return Say(f"answer {turn + 1}")

    folder = tmp_path / "run"
    with ScriptedServer(slow) as models:
        command = (
            *("run", "--env", "PTX-Gemm-H100", "--agent", "openai", "--device", "emulator", "--turns", 4),
            *("--set", f"base_url={models.url}", "--set", "model=m", "--set", "api_key_env="),
            *("--out", folder, "--track", "wandb"),
        )
        env = environ(home, WANDB_MODE="offline")
        process = ptxgym(*command, env=env)
        until = time.monotonic() + 300
        while not (folder / FOLDER / EVENTS).exists() or len(logged(folder, "turns")) < 2:
            assert process.poll() is None and time.monotonic() < until
            time.sleep(0.05)
        process.send_signal(signal.SIGKILL)
        process.communicate()
        let.set()
        assert [event.step for event in logged(folder, "turns")] == [1, 2]
        assert all(line.endswith(b"\n") for line in (folder / FOLDER / EVENTS).read_bytes().splitlines(keepends=True))
        process = ptxgym(*command, "--resume", env=env)
        _, err = process.communicate(timeout=500)
    assert process.returncode == 0, err
    assert [event.step for event in logged(folder, "turns")] == [1, 2, 3, 4]
    assert [event.row.cells["turn"] for event in logged(folder, "turns") if event.row is not None] == [1, 2, 3, 4]
    assert sum(isinstance(event, Artifact) for event in events(folder)) == 1
    with WandbServer() as server:
        run = synced(home, server, folder)
        assert json.loads((folder / FOLDER / "wandb.json").read_text())["id"] == run
        assert [row["turns"] for row in by_axis(server.history(run), "turns")] == [1, 2, 3, 4]
        assert [row["turn"] for row in server.table(run, "attempts")] == [1, 2, 3, 4]
        assert server.complete == {run: 0}
