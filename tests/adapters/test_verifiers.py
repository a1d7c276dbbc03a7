"""The adapter for verifiers, against the library, its own harness and an endpoint that answers by script."""

from __future__ import annotations

import asyncio
import importlib.util
import shutil
from pathlib import Path
from typing import Any

import pytest

from ptxgym.adapters.group import group_advantages
from ptxgym.evaluator import Evaluator
from tests.adapters.chat_server import scripted_endpoint
from tests.adapters.conftest import DOOMED, NOTHING, RIGHT, FrailDevice

pytestmark = [
    pytest.mark.skipif(
        not importlib.util.find_spec("verifiers"), reason="verifiers is not installed: ptxgym[verifiers]"
    ),
    pytest.mark.skipif(not shutil.which("uv"), reason="verifiers starts its harness by uv, which is not installed"),
    pytest.mark.filterwarnings("ignore"),  # what the library warns of is not ours
]
PLUGIN = 'from ptxgym.adapters.verifiers import KernelEnv, KernelTaskset\n\n__all__ = ["KernelEnv", "KernelTaskset"]\n'


@pytest.fixture(autouse=True)
def plugin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The module by whose name verifiers finds the taskset."""
    (tmp_path / "ptxgym_kernels.py").write_text(PLUGIN)
    monkeypatch.syspath_prepend(tmp_path)


def load(evaluator: Evaluator, retries: int = 0) -> Any:
    from verifiers.v1.utils.loaders import load_environment

    from ptxgym.adapters.verifiers import KernelEnvConfig

    config = KernelEnvConfig(
        taskset={"id": "ptxgym_kernels", "envs": ["PTX-Gemm-H100"], "options": {"turns": 2}},
        agent={"runtime": {"type": "subprocess"}},
        retries={"max_retries": retries},
    )
    env = load_environment(config)
    env.evaluator = evaluator
    return env


def play(env: Any, *scripts: list[str], episodes: int = 1) -> list[Any]:
    from verifiers.v1.clients import ModelContext
    from verifiers.v1.configs.client import EvalClientConfig

    async def run() -> list[Any]:
        with scripted_endpoint(*scripts) as address:
            context = ModelContext(model="m", client=EvalClientConfig(base_url=address, api_key_var="NONE"))
            task = next(each for each in env.taskset if each.data.options["variant"] == "k64")
            async with env.serving():
                return await asyncio.gather(*(env.run_slot(slot, context) for slot in env.slots(task, episodes)))

    return asyncio.run(run())


def test_taskset_yields_rows(evaluator: Evaluator) -> None:
    tasks = list(load(evaluator).taskset)
    assert len(tasks) == 45 and len({task.key for task in tasks}) == 45
    assert tasks[0].data.name.startswith("PTX-Gemm-H100/") and tasks[0].data.options["turns"] == 2


def test_a_conversation_of_two_turns(evaluator: Evaluator) -> None:
    one, two = play(load(evaluator), [NOTHING, RIGHT], episodes=2)
    assert one.ok and two.ok
    (trace,) = one.traces
    assert trace.reward == two.traces[0].reward == pytest.approx(0.2)
    assert trace.metrics["turns"] == 2.0 and trace.metrics["lost"] == 0.0
    about = trace.info["ptxgym"]
    assert [turn["code"] for turn in about["turns"]] == ["submission.no_code", "judge.ok"]
    assert about["circumstances"] == two.traces[0].info["ptxgym"]["circumstances"] != {}


def test_a_machine_that_keeps_failing_is_an_error_without_reward(evaluator: Evaluator, device: FrailDevice) -> None:
    device.dying = True
    (episode,) = play(load(evaluator), [DOOMED])
    assert not episode.ok and "WorkerDied: gone" in episode.errors[-1].message
    assert episode.errors[-1].type == "EnvError"  # what a retry rule names
    assert all(trace.rewards == {} and not trace.ok for trace in episode.traces)


def test_a_failed_episode_changes_no_siblings_reward(evaluator: Evaluator) -> None:
    scripts = [[NOTHING, NOTHING], [RIGHT, NOTHING], ["Let me think.", RIGHT], [DOOMED, NOTHING]]

    def rewards(count: int) -> list[float | None]:
        played = play(load(evaluator), *scripts[:count], episodes=count)
        found = [trace.reward if episode.ok else None for episode in played for trace in episode.traces]
        return sorted(found, key=lambda reward: (reward is None, reward))

    alone, beside = rewards(3), rewards(4)
    assert beside == [*alone, None] and alone == pytest.approx([0.0, 0.2, 0.2])
    assert group_advantages(beside)[:3] == group_advantages(alone)


def test_the_error_can_be_retried(evaluator: Evaluator, device: FrailDevice) -> None:
    def die_three_times(options: object, execution: Any) -> Any:
        device.deaths += 1
        return device_dies() if device.deaths <= 3 else execution

    def device_dies() -> Any:
        from ptxgym.errors import WorkerDied

        raise WorkerDied("gone")

    device.interfere = die_three_times
    (episode,) = play(load(evaluator, retries=1), [RIGHT, NOTHING])
    assert episode.ok and episode.traces[0].reward == pytest.approx(0.2)
