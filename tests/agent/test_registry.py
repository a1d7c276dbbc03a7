"""Agents by name: content, settings, anchors and replay."""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path
from typing import Any

import pytest

from ptxgym import content
from ptxgym.agent import (
    Agent,
    Checking,
    Identity,
    NoMoreAnswers,
    Reply,
    TurnContext,
    agent_names,
    load_agent,
)
from ptxgym.agent.chat import ChatAgent
from ptxgym.envs import load_env
from ptxgym.errors import ContentError, UnknownNameError, UsageError
from ptxgym.submission import extract
from ptxgym.task import load_task, oracle
from ptxgym.variants import load_variant
from tests.conftest import CHECKOUT

LOCAL: dict[str, Any] = {"api_key_env": ""}


def answer(
    agent: Agent, *, env: str = "PTX-Gemm-H100", variant: str = "base", number: int = 1, trajectory: int = 0
) -> Reply:
    config = load_env(env)
    turn = TurnContext(
        env=config,
        task=load_variant(config.task, variant),
        arch=config.arch,
        number=number,
        turns_left=1,
        identity=Identity(config.pinned, agent.name, variant, trajectory=trajectory),
    )
    return asyncio.run(agent.reply((), turn, lambda text: None))


def test_the_agents_that_are_shipped() -> None:
    assert agent_names() == ("naive", "openai", "oracle", "replay")
    with pytest.raises(UnknownNameError, match="unknown agent 'opena'; did you mean 'openai'"):
        load_agent("opena")


def test_no_file_of_an_agent_holds_a_kernel() -> None:
    for file in (CHECKOUT / "agents").rglob("*"):
        if file.is_file():
            text = file.read_text()
            assert file.suffix in (".toml", ".j2")
            assert "__global__" not in text and 'extern "C"' not in text and "#include" not in text


@pytest.mark.parametrize("env", ["PTX-Gemm-H100", "PTX-AttnBwd-B200"])
def test_anchors_answer_with_proven_kernels(env: str) -> None:
    config = load_env(env)
    task = load_task(config.task)
    best, simple = load_agent("oracle"), load_agent("naive")
    assert extract(answer(best, env=env).text).text == task.source(oracle(task, config.arch))
    assert extract(answer(simple, env=env).text).text == task.source(task.solutions[config.arch][0])
    assert answer(best, env=env).usage.cost_usd == 0.0
    assert best.describe() == {
        "name": "oracle",
        "kind": "solution",
        "which": "oracle",
        "summary": best.describe()["summary"],
    }


def test_anchors_of_variants() -> None:
    task = load_variant("gemm", "nn-bias")
    assert extract(answer(load_agent("naive"), variant="nn-bias").text).text == task.source(task.solutions["h100"][0])
    with pytest.raises(UsageError, match="no solution for h100 with `oracle = true`"):
        answer(load_agent("oracle"), variant="nn-bias")
    best = load_agent("oracle")
    assert isinstance(best, Checking)
    best.check(Identity("ptxgym/Gemm-H100-v1", "oracle"), load_task("gemm"), "h100")
    with pytest.raises(
        UsageError, match=r"agent oracle cannot play ptxgym/Gemm-H100-v1, variant nn-bias: .*no solution"
    ):
        best.check(Identity("ptxgym/Gemm-H100-v1", "oracle", "nn-bias"), task, "h100")


def test_overrides_reach_tables_and_are_checked() -> None:
    agent = load_agent("openai", context="last", sampling={"temperature": 0.5}, **LOCAL, **{"limits.retries": 1})
    assert isinstance(agent, ChatAgent)
    assert agent.prompting.context == "last"
    assert agent.config.sampling == {"max_completion_tokens": 65536, "temperature": 0.5}
    assert (agent.config.limits.retries, agent.config.limits.timeout_s) == (1, 3600)
    assert agent.describe()["templates"] == agent.prompting.hashes()
    json.dumps(agent.describe())


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"modl": "x"}, "agent openai: unknown setting 'modl'; did you mean 'model'"),
        ({"context": "most"}, r"context: Input should be 'full', 'last' or 'folded', not 'most'"),
        ({"base_url": "localhost:8000"}, "base_url: must be an http or https address"),
        ({"base_url": "http://user:pw@host/v1"}, "base_url: must hold no user, password or query"),
        ({"api_key_env": "sk-abc"}, "api_key_env: must be the name of an environment variable"),
        ({"sampling.n": 4}, "sampling: must not set n"),
        ({"limits.retries": -1}, "limits.retries: "),
        ({"prices": {"prompt": 1.0}}, "prices.completion: "),
        ({"context.x": 1}, "context: "),
    ],
)
def test_wrong_settings_name_the_way_out(settings: dict[str, Any], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        load_agent("openai", **{**LOCAL, **settings})


def test_a_users_own_agent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "agents" / "mine"
    folder.mkdir(parents=True)
    (folder / "agent.toml").write_text('kind = "openai"\nbase_url = "http://h/v1"\nmodel = "m"\n')
    monkeypatch.setenv(content.VARIABLE, str(tmp_path))
    agent = load_agent("mine")
    assert (agent.name, agent.describe()["model"], agent.prompting.templates) == ("mine", "m", {})
    (folder / "agent.toml").write_text('kind = "openia"\n')
    with pytest.raises(ContentError, match=r"kind: must be 'openai', 'replay', 'solution', found 'openia'"):
        load_agent("mine")
    (folder / "agent.toml").write_text('kind = "openai"\nbase_url = "http://h/v1"\n')
    with pytest.raises(ContentError, match="model: missing"):
        load_agent("mine")


@pytest.mark.parametrize("package", ["openai", "jinja2"])
def test_a_missing_package_names_the_extra(package: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    said = rf"need the package {package}: pip install 'ptxgym\[agents\]'"
    with pytest.raises(UsageError, match=said):
        load_agent("openai", **LOCAL).prompting.messages(opening(), ())
    load_agent("naive").prompting.messages(opening(), ())


def opening() -> Any:
    from ptxgym.agent.prompting import Opening

    return Opening("prompt", 2)


def test_replay_of_a_folder(tmp_path: Path) -> None:
    (tmp_path / "1.cu").write_text("first\n")
    (tmp_path / "2.md").write_text("second, in words")
    (tmp_path / "notes.txt").write_text("not an answer")
    agent = load_agent("replay", path=str(tmp_path))
    assert [answer(agent, number=n).text for n in (1, 2)] == ["```cuda\nfirst\n```\n", "second, in words"]
    with pytest.raises(NoMoreAnswers, match="has no answer for turn 3: it holds 2"):
        answer(agent, number=3)


def line(episode: str, turn: int, response: str, **more: object) -> str:
    return json.dumps({"episode": episode, "turn": turn, "response": response, "score": 0.2, **more}) + "\n"


def test_replay_of_a_run(tmp_path: Path) -> None:
    gemm = "ptxgym/Gemm-H100-v1"
    (tmp_path / "turns.jsonl").write_text(
        line(f"{gemm}/base/m/none/0", 1, "a0")
        + line(f"{gemm}/base/m/none/1", 1, "a1", finish_reason="length", reasoning="why", refused=True)
        + line(f"{gemm}/nn-bias/m/none/0", 1, "b0")
        + line(f"{gemm}/base/m/none/0", 2, "a0 again")
        + '{"episode": "torn'
    )
    agent = load_agent("replay", path=str(tmp_path))
    assert answer(agent).text == "a0" and answer(agent, number=2).text == "a0 again"
    assert answer(agent, variant="nn-bias").text == "b0"
    other = answer(agent, trajectory=1)
    assert (other.text, other.finish_reason, other.reasoning, other.refused) == ("a1", "length", "why", True)
    with pytest.raises(NoMoreAnswers, match="has no answer for turn 3"):
        answer(agent, number=3)
    assert isinstance(agent, Checking)
    agent.check(Identity(gemm, "replay"), load_task("gemm"), "h100")
    with pytest.raises(UsageError, match="has no turn 1 of an episode like ptxgym/Gemm-H100-v1/d64/replay/none/0"):
        agent.check(Identity(gemm, "replay", "d64"), load_task("gemm"), "h100")


def test_a_damaged_record_is_named_by_line(tmp_path: Path) -> None:
    (tmp_path / "turns.jsonl").write_text("<!doctype html>\n" + line("ptxgym/Gemm-H100-v1/base/m/none/0", 1, "a0"))
    agent = load_agent("replay", path=str(tmp_path))
    with pytest.raises(ContentError, match=r"turns\.jsonl, line 1: .*was changed after it was written"):
        answer(agent)


def test_a_proven_solution_is_on_no_record_to_repeat(tmp_path: Path) -> None:
    name = "gemm/solutions/h100/naive.cu"
    (tmp_path / "turns.jsonl").write_text(line("ptxgym/Gemm-H100-v1/base/naive/none/0", 1, "a", solution=name))
    with pytest.raises(UsageError, match=f"are the proven solution {name}, whose text is on no record"):
        answer(load_agent("replay", path=str(tmp_path)))


def test_replay_of_a_run_of_several_never_mixes_them(tmp_path: Path) -> None:
    gemm = "ptxgym/Gemm-H100-v1/base"
    turns = tmp_path / "turns.jsonl"
    turns.write_text(
        line(f"{gemm}/m/all/0", 1, "all 1")
        + line(f"{gemm}/m/none/0", 1, "none 1")
        + line(f"{gemm}/m/none/0", 2, "none 2")
        + line(f"{gemm}/m/all/0", 2, "all 2")
    )
    agent = load_agent("replay", path=str(tmp_path))
    assert [answer(agent, number=n).text for n in (1, 2)] == ["none 1", "none 2"]
    turns.write_text(turns.read_text() + line(f"{gemm}/n/none/0", 3, "of another model"))
    with pytest.raises(UsageError, match=r"has several episodes like .*base/m/none/0, .*base/n/none/0; repeat"):
        answer(agent, number=3)


def test_replay_needs_something_to_repeat(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="agent replay: set `path`"):
        load_agent("replay")
    with pytest.raises(UsageError, match="is no folder"):
        load_agent("replay", path=str(tmp_path / "absent"))
    with pytest.raises(UsageError, match=r"holds neither turns\.jsonl nor"):
        load_agent("replay", path=str(tmp_path))
