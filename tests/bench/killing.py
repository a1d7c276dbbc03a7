"""Play a sweep in processes that are killed, and compare what is on record with an undisturbed run.

`python -m tests.bench.killing` does so with all ten environments, which takes minutes; a test does it with two.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ptxgym.agent.prompting import fenced
from ptxgym.envs import env_names, load_env
from ptxgym.store.reader import read_run
from ptxgym.task import expected, load_task, oracle
from tests.agent.server import Say, ScriptedServer
from tests.conftest import CHECKOUT

RECIPE = """
summary = "four agents, killed at any time"
device = "emulator"
trajectories = 2
turns = 3
seed = 1
envs = {envs}
agents = [
    {{ use = "oracle", anchor = true, trajectories = 1, turns = 1 }},
    {{ use = "naive", anchor = true, trajectories = 1, turns = 1 }},
    {{ use = "replay", trajectories = 1, settings = {{ path = "{answers}" }} }},
    {{ use = "openai", label = "model", settings = {{ base_url = "{url}", model = "scripted-1", api_key_env = "" }} }},
]
[limits]
model_calls = 3
builds = 2
evaluations = 2
"""
UNTIMED = {"started_at", "ended_at", "measured_at", "created_at", "model_s", "evaluate_s", "measured"}


TASKS = tuple(map(load_task, ("gemm", "attn_fwd", "attn_fwd_causal", "attn_bwd", "attn_bwd_causal")))


def scripted(body: dict[str, Any]) -> Say:
    """Answer without a kernel, then with one without target instructions, then with one on them."""
    opening = next(message["content"] for message in body["messages"] if message["role"] == "user")
    found = [(f"{task.title} for {arch.upper()} (", task, arch) for task in TASKS for arch in task.solutions]
    task, arch = next((task, arch) for title, task, arch in found if title in opening)
    turn = sum(message["role"] == "assistant" for message in body["messages"])
    if turn == 0:
        return Say("I would begin with the tensor maps. (No file yet.)", delay_s=0.02)
    solution = expected(task, arch)[0] if turn == 1 else oracle(task, arch)
    return Say(fenced(task.source(solution)), reasoning="Let me think.", delay_s=0.01)


@dataclass(frozen=True)
class Result:
    """What two runs of one sweep came to."""

    undisturbed: dict[str, Any]
    disturbed: dict[str, Any]
    killed_at: tuple[int, ...]
    """Turns on record at each kill."""
    asked: tuple[int, int]
    """Requests of the undisturbed and of the disturbed run."""
    seconds: tuple[float, float]


def compare(folder: Path, envs: Sequence[str], kills: Sequence[int]) -> Result:
    """Play a sweep once without and once with a kill at each of these numbers of turns."""
    answers = folder / "answers"
    answers.mkdir()
    (answers / "1.md").write_text("First I look at the shapes. No file yet.\n")
    (answers / "2.cu").write_text("this is no C++\n")
    (answers / "3.md").write_text('```cuda\nextern "C" void run(int) {}\n```\n')
    with ScriptedServer(scripted) as server:
        recipe = folder / "killed.toml"
        recipe.write_text(RECIPE.format(envs=json.dumps(list(envs)), answers=answers, url=server.url))
        start = time.monotonic()
        finished(started(recipe, folder / "whole"))
        between, asked = time.monotonic(), len(server.requests)
        at = tuple(
            kill(started(recipe, folder / "killed", *resume), folder / "killed", turns)
            for turns, resume in zip(kills, [(), *[("--resume",)] * len(kills)], strict=False)
        )
        finished(started(recipe, folder / "killed", "--resume"))
        seconds = (between - start, time.monotonic() - between)
        return Result(
            records(folder / "whole"), records(folder / "killed"), at, (asked, len(server.requests) - asked), seconds
        )


def started(recipe: Path, out: Path, *options: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "ptxgym", "bench", str(recipe), "--out", str(out), *options],
        cwd=CHECKOUT, env={**os.environ, "PTXGYM_SECRET": "of the killed run"}, text=True,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    )  # fmt: skip


def finished(process: subprocess.Popen[str]) -> str:
    said, _ = process.communicate()
    assert process.returncode == 0, said
    return said


def kill(process: subprocess.Popen[str], out: Path, turns: int) -> int:
    """Kill -9 as soon as so many turns are on record."""
    path = out / "turns.jsonl"
    while not path.exists() or path.read_bytes().count(b"\n") < turns:
        assert process.poll() is None, process.communicate()[0]
        time.sleep(0.01)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    return path.read_bytes().count(b"\n")


def records(folder: Path) -> dict[str, Any]:
    """Everything on record by id, less what the clock says."""
    stored = read_run(folder)
    lines = {
        "turns": [(f"{turn.episode} {turn.turn}", turn.model_dump(mode="json")) for turn in stored.turns],
        "episodes": [(episode.id, episode.model_dump(mode="json")) for episode in stored.episodes],
    }
    for kind, name in (("turns", "turns.jsonl"), ("episodes", "episodes.jsonl")):
        assert len((folder / name).read_text().splitlines()) == len(lines[kind]), f"{name} holds something twice"
    return {
        "run": timeless(stored.record.model_dump(mode="json")),
        **{kind: {name: timeless(line) for name, line in sorted(found)} for kind, found in lines.items()},
    }


def timeless(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: timeless(item) for name, item in value.items() if name not in UNTIMED}
    return [timeless(item) for item in value] if isinstance(value, list) else value


def main() -> None:
    """Kill a sweep over all environments twice."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        result = compare(folder, env_names(), (12, 35))
        same = result.undisturbed == result.disturbed
        arches = {load_env(env).arch for env in env_names()}
        sys.stdout.write(
            f"{len(env_names())} environments on {', '.join(sorted(arches))}: {len(result.undisturbed['episodes'])} "
            f"episodes, {len(result.undisturbed['turns'])} turns; killed at {result.killed_at} turns; equal: {same}; "
            f"requests {result.asked}; seconds {tuple(round(each) for each in result.seconds)}\n"
        )
        sys.stdout.write(finished(started(folder / "killed.toml", folder / "killed", "--resume")))
        if not same:
            raise SystemExit(1)


if __name__ == "__main__":
    main()
