"""`ptxgym run`: an episode from the shell, against a scripted endpoint over HTTP."""

from __future__ import annotations

import json
import os
import pty
import re
import subprocess
import sys
from pathlib import Path

import pytest

from ptxgym.agent.prompting import fenced
from ptxgym.cli.settings import parse_settings
from ptxgym.errors import UsageError
from ptxgym.feedback import CAP_BYTES
from ptxgym.store.reader import StoredRun, read_run
from ptxgym.submission import extract
from ptxgym.task import load_task, oracle
from ptxgym.verdict import Status
from tests.agent.server import Cut, Fail, Item, Say, ScriptedServer

KEY = "sk-very-secret-0123456789"
QUICK = ("--set", "limits.backoff_s=0.01", "--set", "limits.retries=1")


def ptxgym(*arguments: object, columns: str = "140") -> subprocess.CompletedProcess[str]:
    """Run the command in a process of its own."""
    env = {**os.environ, "TEST_KEY": KEY, "COLUMNS": columns}
    command = [sys.executable, "-m", "ptxgym", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, env=env, timeout=500)


def play(
    server: ScriptedServer, folder: Path, *arguments: object, env: str = "PTX-Gemm-H100"
) -> tuple[subprocess.CompletedProcess[str], StoredRun]:
    done = ask(server, folder, *arguments, env=env)
    return done, read_run(folder)


def ask(
    server: ScriptedServer, folder: Path, *arguments: object, env: str = "PTX-Gemm-H100"
) -> subprocess.CompletedProcess[str]:
    return ptxgym(
        *("run", "--env", env, "--agent", "openai", "--device", "emulator", "--out", folder),
        *("--set", f"base_url={server.url}", "--set", "model=scripted", "--set", "api_key_env=TEST_KEY", *QUICK),
        *arguments,
    )


@pytest.fixture(scope="module")
def backward(
    tmp_path_factory: pytest.TempPathFactory,
) -> tuple[subprocess.CompletedProcess[str], StoredRun, ScriptedServer]:
    """Three turns on attention backward for Blackwell: wrong, right without tcgen05, right with it."""
    task = load_task("attn_bwd")
    naive = task.source(task.solutions["b200"][0])
    wrong = naive.replace("store(t.dQ + row * kDim, lane, dq, t.scale);", "store(t.dQ + row * kDim, lane, dq, 1.0f);")
    assert wrong != naive
    script: list[Item] = [
        Say(f"A first version, one warp per row.\n\n{fenced(wrong)}\n", reasoning="Start simple."),
        Fail(429, "too many requests", headers={"Retry-After": "0"}),
        Say(f"dQ lacked the factor 1/sqrt(D).\n\n{fenced(naive)}\n"),
        Say(f"Now with tcgen05.\n\n{fenced(task.source(oracle(task, 'b200')))}\n"),
    ]
    folder = tmp_path_factory.mktemp("runs") / "backward"
    with ScriptedServer(script) as server:
        prices = ("--set", "prices={prompt = 1.0, completion = 4.0}")
        done, stored = play(server, folder, "--turns", 3, *prices, env="PTX-AttnBwd-B200")
    return done, stored, server


Backward = tuple[subprocess.CompletedProcess[str], StoredRun, ScriptedServer]


def test_scores_rise_from_wrong_to_right_to_target_instructions(backward: Backward) -> None:
    done, stored, server = backward
    assert done.returncode == 0, done.stderr
    assert [turn.verdict.status for turn in stored.turns] == [Status.WRONG_OUTPUT, Status.OK, Status.OK]
    wrong, right, target = (turn.score for turn in stored.turns)
    assert 0.05 <= wrong < right == 0.2 < target == 0.5
    assert [turn.parent_turn for turn in stored.turns] == [None, 1, 2]
    assert [turn.attempts for turn in stored.turns] == [1, 2, 1] and len(server.requests) == 4
    evidence = stored.turns[2].verdict.evidence
    assert evidence is not None and evidence.target_ok and evidence.coverage == 1.0
    (episode,) = stored.episodes
    assert (episode.status, episode.best_turn, episode.best_score) == ("done", 3, 0.5)
    assert episode.id == "ptxgym/AttnBwd-B200-v1/base/openai/none/0"


def test_the_transcript_is_what_a_model_needs(backward: Backward) -> None:
    _, stored, server = backward
    first, second, third = stored.turns
    sent = [request.messages for request in server.requests]
    assert sent[1] == sent[2], "a retry asks the same"
    for turn, messages in zip(stored.turns, (sent[0], sent[2], sent[3]), strict=True):
        assert [message.model_dump() for message in turn.messages] == messages, "what is stored is what was sent"
    system, opening = (message.content for message in first.messages)
    assert "```cuda" in system and "whole file" in system
    assert "# Attention backward (BF16, D = 128) for B200" in opening and 'extern "C" void run(' in opening
    assert "dQ" in first.feedback and re.search(r"dQ\b.*\b11\.3|factor", first.feedback), "the cause is named"
    conversation = [message.content for message in third.messages]
    assert [message.role for message in third.messages] == ["system", "user", "assistant", "user", "assistant", "user"]
    assert conversation[2] == first.response.strip() and conversation[4] == second.response.strip()
    assert conversation[3].startswith(first.feedback) and conversation[5].startswith(second.feedback)
    assert "1 turn is left" in conversation[5] and "2 turns are left" in conversation[3]
    whole = "\n".join(conversation)
    for once in (opening.strip()[:400], first.source, second.source, first.feedback.strip(), second.feedback.strip()):
        assert whole.count(once) == 1, "nothing twice"
    assert all(len(turn.feedback.encode()) <= CAP_BYTES for turn in stored.turns)


def test_nothing_is_leaked(backward: Backward) -> None:
    done, stored, server = backward
    task = load_task("attn_bwd")
    best = task.source(oracle(task, "b200"))
    told = "\n".join(message["content"] for request in server.requests for message in request.messages)
    known = task.source(task.solutions["b200"][0]) + task.signature.declaration()
    own = [line.strip() for line in best.splitlines() if len(line.strip()) > 40 and line.strip() not in known]
    assert len(own) > 200 and not [line for line in own if line in told], "before the model wrote it"
    assert "oracle" not in told and "naive" not in told and "solutions/" not in told and "/tmp" not in told
    assert stored.record.canary in told and all(
        stored.record.canary in turn.messages[0].content for turn in stored.turns
    )
    for text in (done.stdout, done.stderr):
        assert KEY not in text and "Traceback" not in text


def test_the_run_folder_holds_everything_but_the_key(backward: Backward) -> None:
    _, stored, _ = backward
    folder = stored.folder
    files = [path for path in folder.rglob("*") if path.is_file()]
    assert len(files) > 3
    for file in files:
        assert KEY.encode() not in file.read_bytes(), file
    front = json.loads((folder / "run.json").read_text())
    assert "api_key_env" in json.dumps(front["sweep"]) and front["device"] == "emulator"
    usage = stored.episodes[0].usage
    assert usage.cost_usd == pytest.approx((usage.prompt_tokens * 1.0 + usage.completion_tokens * 4.0) / 1e6)
    assert stored.turns[0].reasoning == "Start simple." and "Start simple." not in str(stored.turns[2].messages)
    assert extract(stored.turns[2].response).text == stored.turns[2].source


def test_progress_in_plain_lines(backward: Backward) -> None:
    done, _, _ = backward
    assert "\x1b" not in done.stdout
    lines = done.stdout.splitlines()
    assert lines[0].startswith("PTX-AttnBwd-B200 · openai · emulator")
    assert [line for line in lines if re.match(r"turn \d of 3: (wrong_output · \S+|ok · judge\.ok)  ", line)] != []
    assert any("failed, the next in 0.0 s: HTTP 429: too many requests" in line for line in lines)
    assert re.search(r"^scores 0\.\d+ → 0\.20 → 0\.50; the best is 0\.50, of turn 3$", done.stdout, re.MULTILINE)
    assert re.search(r"^[\d,]+ tokens read, [\d,]+ written; \$0\.\d{4}$", done.stdout, re.MULTILINE)


def test_a_refusal_exits_with_1_and_an_endpoint_that_fails_with_3(tmp_path: Path) -> None:
    with ScriptedServer([Say("", refusal="No.")] * 2) as server:
        done, stored = play(server, tmp_path / "refused", "--turns", 2)
    assert (done.returncode, stored.episodes[0].status) == (1, "refused")
    assert "refused: the model refused all 2 turns" in done.stdout
    with ScriptedServer(lambda body: Cut(how="before")) as server:
        done, stored = play(server, tmp_path / "infra", "--turns", 2)
    assert (done.returncode, stored.episodes[-1].status, stored.turns) == (3, "infra", ())
    assert "gave no answer in 2 attempts" in done.stdout


def test_an_episode_goes_on_after_a_failure_and_tells_each_turn_once(tmp_path: Path) -> None:
    cut = Cut(how="before")
    with ScriptedServer([Say("no"), cut, cut, Say("never")]) as server:
        done, stored = play(server, tmp_path / "run", "--turns", 2)
    assert (done.returncode, stored.episodes[-1].status, len(server.requests)) == (0, "done", 4)
    assert [turn.response for turn in stored.turns] == ["no", "never"]
    assert done.stdout.count("turn 1 of 2: rejected") == done.stdout.count("turn 2 of 2: rejected") == 1
    assert "the machine failed, and the episode goes on" in done.stdout and "scores 0.00 → 0.00;" in done.stdout


def test_wrong_settings_exit_with_2_before_anything_is_written(tmp_path: Path) -> None:
    run = ("run", "--env", "PTX-Gemm-H100", "--out", tmp_path / "run")
    for arguments, said in (
        (("--agent", "opena"), "did you mean 'openai'"),
        (("--agent", "openai", "--set", "api_key_env=NO_SUCH_KEY"), "the variable NO_SUCH_KEY is not set"),
        (("--agent", "openai", "--set", "modl=x"), "did you mean 'model'"),
        (("--agent", "openai", "--set", "model"), "must be key=value"),
        (("--agent", "naive", "--knowledge", "recipe"), "did you mean 'recipes'"),
        (("--agent", "naive", "--turns", "0"), "turns must be a whole number from 1 to 1000, not 0"),
        (("--agent", "naive", "--device", "gpu"), "not 'gpu'"),
    ):
        done = ptxgym(*run, *arguments)
        assert done.returncode == 2 and said in " ".join(done.stderr.split()), done.stderr
        assert not (tmp_path / "run").exists()


def test_an_endpoint_that_knows_no_such_model_exits_with_2(tmp_path: Path) -> None:
    with ScriptedServer([Fail(404, "no model scripted")]) as server:
        done = ask(server, tmp_path / "run")
    assert done.returncode == 2 and "no model scripted" in done.stderr and done.stderr.count("\n") == 1
    assert not (tmp_path / "run").exists(), "with another model it would be another run"


def test_knowledge_and_variant_reach_prompt_and_records(tmp_path: Path) -> None:
    with ScriptedServer([Say("no")]) as server:
        arguments = ("--turns", 1, "--variant", "nn-bias", "--knowledge", "parameters")
        done, stored = play(server, tmp_path / "run", *arguments)
    assert done.returncode == 0, done.stderr
    assert stored.episodes[0].id == "ptxgym/Gemm-H100-v1/nn-bias/openai/parameters/0"
    bare = ptxgym("show", "PTX-Gemm-H100", "--variant", "nn-bias").stdout
    assert len(stored.turns[0].messages[1].content) > len(bare) + 200


def test_a_terminal_sees_a_moving_line(tmp_path: Path) -> None:
    with ScriptedServer([Say("no " * 300, piece=30, delay_s=0.05)]) as server:
        command = [sys.executable, "-m", "ptxgym", "run", "--env", "PTX-Gemm-H100", "--agent", "openai", "--turns", "1"]
        command += ["--set", f"base_url={server.url}", "--set", "api_key_env=", "--out", str(tmp_path / "run")]
        parent, child = pty.openpty()
        process = subprocess.Popen(
            [*command, "--device", "emulator"], stdout=child, stderr=child, stdin=subprocess.DEVNULL,
            env={**os.environ, "TERM": "xterm-256color", "COLUMNS": "120", "NO_COLOR": ""},
        )  # fmt: skip
        os.close(child)
        shown = b""
        try:
            while piece := os.read(parent, 65536):
                shown += piece
        except OSError:  # the other end is closed
            pass
        os.close(parent)
        assert process.wait() == 0
    text = shown.decode()
    assert re.search(r"turn 1 of 1: the model answers · [\d,]+ characters · \d+ s", text)
    assert "rejected · submission.no_code" in text and "\x1b[2K" in text


def test_settings_are_toml_where_they_can_be() -> None:
    texts = [
        "a=1",
        "b = 0.5",
        "c=true",
        "d=gpt-5",
        "e.f='1'",
        "g=[1, 'x']",
        "h={i = 1}",
        "j=",
        "k=2024-01-01",
        "l=a=b",
        "m=inf",
    ]
    assert parse_settings(texts) == {
        "a": 1, "b": 0.5, "c": True, "d": "gpt-5", "e.f": "1", "g": [1, "x"], "h": {"i": 1}, "j": "", "k": "2024-01-01",
        "l": "a=b", "m": "inf",
    }  # fmt: skip
    with pytest.raises(UsageError, match="a is set twice"):
        parse_settings(["a=1", "a=2"])
    for wrong in ("a", "=1"):
        with pytest.raises(UsageError, match="must be key=value"):
            parse_settings([wrong])
