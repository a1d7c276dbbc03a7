"""The adapter for OpenEnv, against the library: in process, and over a socket with its own client."""

from __future__ import annotations

import importlib.util
import threading
import time
from typing import Any

import pytest

from ptxgym.adapters.group import group_advantages
from ptxgym.errors import UsageError
from ptxgym.evaluator import Evaluator
from tests.adapters.conftest import DOOMED, NOTHING, RIGHT, FrailDevice

pytestmark = [
    pytest.mark.skipif(not importlib.util.find_spec("openenv"), reason="openenv is not installed: ptxgym[openenv]"),
    pytest.mark.filterwarnings("ignore"),  # what the library warns of is not ours
]
START = {"env": "PTX-Gemm-H100", "options": {"variant": "k64", "turns": 2}}


def action(answer: str) -> Any:
    from ptxgym.adapters.openenv import KernelAction

    return KernelAction(answer=answer)


def test_a_session(evaluator: Evaluator) -> None:
    from ptxgym.adapters.openenv import KernelEnvironment

    env = KernelEnvironment(evaluator)
    with pytest.raises(UsageError, match="no episode"):
        env.step(action(RIGHT))
    opened = env.reset(seed=3, episode_id="e1", **START)
    assert "You have 2 turns" in opened.text and (opened.reward, opened.done) == (None, False)
    first = env.step(action(NOTHING))
    assert (first.reward, first.done, first.metadata["code"]) == (0.0, False, "submission.no_code")
    assert (env.state.episode_id, env.state.step_count, env.state.turns_left) == ("e1", 1, 1)
    second = env.step(action(RIGHT))
    assert (second.reward, second.done) == (pytest.approx(0.2), True)
    assert second.metadata["reward_valid"] is True and second.metadata["conditions"]
    assert env.state.best_score == 0.2 and env.state.variant == "k64"
    with pytest.raises(UsageError, match="over after turn 2"):
        env.step(action(RIGHT))


def test_a_machine_that_keeps_failing_has_no_reward(evaluator: Evaluator, device: FrailDevice) -> None:
    from ptxgym.adapters.openenv import KernelEnvironment

    env = KernelEnvironment(evaluator)
    env.reset(**START)
    device.dying = True
    lost = env.step(action(DOOMED))
    assert (lost.reward, lost.done, lost.metadata) == (
        None, True, {"reward_valid": False, "problem": "WorkerDied: gone"},
    )  # fmt: skip
    assert env.state.turns_left == 0
    with pytest.raises(UsageError, match="has no reward"):
        env.step(action(RIGHT))
    device.dying = False
    env.reset(**START)
    assert env.step(action(RIGHT)).reward == pytest.approx(0.2)


def test_a_failed_session_changes_no_siblings_advantage(evaluator: Evaluator) -> None:
    from ptxgym.adapters.openenv import KernelEnvironment

    def rewards(*answers: str) -> list[float | None]:
        found = []
        for answer in answers:
            env = KernelEnvironment(evaluator)
            env.reset(**START)
            found.append(env.step(action(answer)).reward)
        return found

    alone, beside = rewards(NOTHING, RIGHT, RIGHT), rewards(NOTHING, RIGHT, RIGHT, DOOMED)
    assert beside == [*alone, None] and alone == pytest.approx([0.0, 0.2, 0.2])
    assert group_advantages(beside) == [*group_advantages(alone), 0.0]


def test_tasks_are_provided(evaluator: Evaluator) -> None:
    from ptxgym.adapters.openenv import KernelEnvironment

    env = KernelEnvironment(evaluator)
    assert env.list_splits() == ["train", "eval"]
    tasks = env.list_tasks("train")
    assert env.num_tasks("train") == len(tasks) > 100
    assert env.get_task("train", 3) == tasks[3] and env.get_task_range("train", 1, 3) == tasks[1:3]
    assert "You have 8 turns" in env.reset(**tasks[0]).text


def test_a_server_and_its_client(evaluator: Evaluator) -> None:
    import uvicorn
    from openenv import GenericEnvClient

    from ptxgym.adapters.openenv import make_app

    server = uvicorn.Server(uvicorn.Config(make_app(evaluator), port=0, log_level="error"))
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    while not server.started:
        time.sleep(0.05)
    port = server.servers[0].sockets[0].getsockname()[1]
    try:
        with GenericEnvClient(base_url=f"http://127.0.0.1:{port}").sync() as client:
            opened = client.reset(**START)
            assert "You have 2 turns" in opened.observation["text"]
            assert client.step({"answer": NOTHING}).reward == 0.0
            ended = client.step({"answer": RIGHT})
            assert (ended.reward, ended.done) == (pytest.approx(0.2), True)
    finally:
        server.should_exit = True
        thread.join(20)
