"""PPO by RLlib itself over two knobs, on a device that multiplies by numpy; recipes without it."""

from __future__ import annotations

import importlib.util
import json
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from ptxgym.cli.commands import app
from ptxgym.errors import InfrastructureError, UnknownNameError, UsageError
from ptxgym.evaluator import Evaluator
from ptxgym.knobs.journal import read_journals
from ptxgym.train import rllib as train_rllib
from ptxgym.train import runner
from ptxgym.train.recipe import PpoRecipe, load_train_recipe
from ptxgym.train.rllib import BEST, JOURNALS, _stop, ppo
from ptxgym.train.run import CHECKPOINTS, FRONT, MODEL, Front
from tests.bad_kernels import host
from tests.scripted import ScriptedDevice

TEMPLATE = """
summary = "for tests"
env = "PTX-Gemm-H100"
[[knobs]]
name = "kRight"
choices = [false, true]
[[knobs]]
name = "kUnused"
choices = [0, 1, 2]
"""
TEXT = host("// ptxgym: knobs\n  static_assert(kRight && kUnused < 3);").replace("  // ptxgym", "// ptxgym")
QUICK: dict[str, Any] = {
    "num_env_runners": 0, "train_batch_size_per_learner": 8, "minibatch_size": 8, "num_epochs": 4, "lr": 0.02,
}  # fmt: skip


def recipe(folder: Path, **more: Any) -> PpoRecipe:
    (folder / "two.toml").write_text(TEMPLATE)
    (folder / "two.cu.in").write_text(TEXT)
    data = {"name": "two", "summary": "", "template": str(folder / "two.toml"), "iterations": 2, "trainer": QUICK}
    return PpoRecipe.model_validate({**data, "model": {"fcnet_hiddens": [16]}, **more})


# ---- without RLlib


def test_the_recipe_that_ships() -> None:
    found = load_train_recipe("ppo", PpoRecipe, {"trainer.lr": 0.1, "env.turns": 4, "evaluations": 7})
    assert (found.template, found.env.turns, found.evaluations, found.trainer["lr"]) == ("gemm/h100/ring", 4, 7, 0.1)


@pytest.mark.parametrize(
    ("key", "value", "said"),
    [
        ("trainer.seed", 1, "seed is decided by the key seed"),
        ("trainer.env", "CartPole-v1", "env is decided by the key template"),
        ("trainer.restart_failed_sub_environments", False, "an episode that the machine failed at is dropped"),
        ("trainer.gym_env_vectorize_mode", "async", "num_env_runners evaluates in several processes"),
        ("iterations", 0, "iterations"),
        ("env.turn", 3, "env.turn"),
        ("env.ladder", -1, "env.ladder"),
        ("evaluation", 3, "did you mean 'evaluations'"),
    ],
)
def test_what_a_recipe_may_not_say(key: str, value: object, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        load_train_recipe("ppo", PpoRecipe, {key: value})  # type: ignore[dict-item]


def test_without_rllib_the_extra_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("torch", "ray", "ray.rllib"):
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(UsageError, match=r"training by RLlib needs the package torch: pip install 'ptxgym\[ray\]'"):
        ppo(recipe(tmp_path), tmp_path / "run")
    with pytest.raises(UnknownNameError, match="unknown template 'gemm/h100/rung'"):
        ppo(recipe(tmp_path, template="gemm/h100/rung"), tmp_path / "run")
    ended = CliRunner().invoke(app, ["train", "rllib", "ppo", "--out", str(tmp_path / "run")])
    assert ended.exit_code != 0 and not (tmp_path / "run").exists()


class Group:
    """Env runners as RLlib has them: `stop` waits for each, however long its turn takes."""

    def __init__(self, *busy: threading.Event) -> None:
        self.busy, self._worker_manager = dict(enumerate(busy)), self

    def actors(self) -> dict[int, threading.Event]:
        return self.busy

    def stop(self) -> None:
        for ended in self.busy.values():
            assert ended.wait(60)


class Stopping:
    """An algorithm with such env runners; stands for Ray, too."""

    def __init__(self, group: Group, evaluating: Group | None = None) -> None:
        self.env_runner_group, self.eval_env_runner_group = group, evaluating
        self.killed: list[threading.Event] = []

    def stop(self) -> None:
        self.env_runner_group.stop()
        if self.eval_env_runner_group is not None:
            self.eval_env_runner_group.stop()

    def kill(self, actor: threading.Event) -> None:
        self.killed.append(actor)
        actor.set()


def test_env_runners_that_do_not_end_are_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(train_rllib, "STOP_LIMIT_S", 0.5)
    one, two, three = threading.Event(), threading.Event(), threading.Event()
    stopping = Stopping(Group(one, two), Group(three))
    began = time.monotonic()
    _stop(stopping, stopping)
    assert 0.5 <= time.monotonic() - began < 5 and stopping.killed == [one, two, three]


def test_env_runners_that_end_are_not_killed(caplog: pytest.LogCaptureFixture) -> None:
    ended = threading.Event()
    stopping = Stopping(Group(ended))
    threading.Timer(0.3, ended.set).start()
    _stop(stopping, stopping)
    assert stopping.killed == [] and ended.is_set()
    assert caplog.records == []


class Late(TimeoutError):
    """As `ray.exceptions.GetTimeoutError` is one."""


@pytest.mark.parametrize("error", [ZeroDivisionError, Late])
def test_errors_of_the_end_are_raised_and_no_env_runner_is_killed_for_them(
    monkeypatch: pytest.MonkeyPatch, error: type[Exception]
) -> None:
    stopping = Stopping(Group(threading.Event()))

    def fails() -> None:
        raise error("of its own")

    monkeypatch.setattr(stopping, "stop", fails)
    with pytest.raises(error, match="of its own"):
        _stop(stopping, stopping)
    assert stopping.killed == []


def test_an_error_after_env_runners_were_killed_is_raised(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(train_rllib, "STOP_LIMIT_S", 0.3)
    runner = threading.Event()
    stopping = Stopping(Group(runner))

    def fails() -> None:
        assert runner.wait(60)
        raise Late("of its own")

    monkeypatch.setattr(stopping, "stop", fails)
    with pytest.raises(Late, match="of its own"):
        _stop(stopping, stopping)
    assert stopping.killed == [runner]


def test_an_end_that_does_not_come_is_warned_of(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """As where a learner hangs, which is not killed."""
    monkeypatch.setattr(train_rllib, "STOP_LIMIT_S", 0.3)
    learner, runner = threading.Event(), threading.Event()
    stopping = Stopping(Group(runner))
    monkeypatch.setattr(stopping, "stop", lambda: learner.wait(60))
    _stop(stopping, stopping)
    learner.set()
    assert stopping.killed == [runner]
    assert [record.getMessage() for record in caplog.records] == [
        "RLlib has not ended 0.3 s after its env runners were killed, and is left: what still runs may start Ray anew"
    ]


# ---- with it

rllib = pytest.mark.skipif(
    not (
        importlib.util.find_spec("ray") and importlib.util.find_spec("ray.rllib") and importlib.util.find_spec("torch")
    ),
    reason="RLlib is not installed: ptxgym[ray] (it needs torch)",
)
quiet = pytest.mark.filterwarnings("ignore")  # what the libraries warn of is not ours


@pytest.fixture(scope="module")
def evaluator() -> Iterator[Evaluator]:
    with Evaluator(ScriptedDevice(), secret="s") as scripted:
        yield scripted


@rllib
@quiet
def test_a_run_finds_what_is_right_and_goes_on(tmp_path: Path, evaluator: Evaluator) -> None:
    logged: list[tuple[int, dict[str, float]]] = []
    run = tmp_path / "run"

    def log(step: int, values: Any) -> None:
        logged.append((step, dict(values)))

    done = ppo(recipe(tmp_path, save_iterations=1), run, logs=[log], evaluator=evaluator)
    assert (done.iterations, [step for step, _ in logged]) == (2, [1, 2])
    assert done.best.score == 0.5 and done.best.setting["kRight"] is True
    assert "constexpr bool kRight = true;" in done.kernel.read_text() and done.kernel == run / BEST
    lines = read_journals(run / JOURNALS)
    assert done.evaluations == len(lines) <= 6 and {line.status for line in lines} <= {"ok", "compile_error"}
    values = logged[-1][1]
    assert values["turns"] == 16 and values["evaluations"] == len(lines) and values["best_score"] == 0.5
    assert values["entropy"] > 0 and "policy_loss" in values
    assert Front.model_validate_json((run / FRONT).read_bytes()).method == "ppo"
    assert sorted(path.name for path in (run / CHECKPOINTS).iterdir()) == ["checkpoint-1", "checkpoint-2"]

    from ray.rllib.core.rl_module.rl_module import RLModule

    assert RLModule.from_checkpoint(done.model) is not None and done.model == run / MODEL

    with pytest.raises(UsageError, match="another iterations"):
        ppo(recipe(tmp_path, save_iterations=1, iterations=3), run, resume=True, evaluator=evaluator)
    with pytest.raises(UsageError, match="holds a run; go on with it by --resume"):
        ppo(recipe(tmp_path, save_iterations=1), run, evaluator=evaluator)

    # A kill after the first checkpoint, in the middle of the second: the run goes on from the first.
    (run / CHECKPOINTS / "checkpoint-2" / "trainer_state.json").write_text("{")
    again = ppo(recipe(tmp_path, save_iterations=1), run, resume=True, evaluator=evaluator)
    assert again.iterations == 2 and [line.step for line in again.metrics] == [1, 2]
    assert again.metrics[-1].values["turns"] == 16  # eight of them were those of the checkpoint
    assert json.loads((run / CHECKPOINTS / "checkpoint-2" / "trainer_state.json").read_text()) == {"iteration": 2}


@rllib
@quiet
def test_it_learns_and_ends_when_enough_was_evaluated(tmp_path: Path, evaluator: Evaluator) -> None:
    done = ppo(recipe(tmp_path, iterations=12), tmp_path / "learns", evaluator=evaluator)
    returns = [line.values["return_mean"] for line in done.metrics]
    assert len(returns) == 12
    assert done.metrics[-1].values["entropy"] < done.metrics[0].values["entropy"]
    ended = ppo(recipe(tmp_path, iterations=12, evaluations=2), tmp_path / "ends", evaluator=evaluator)
    assert ended.iterations < 12 and ended.evaluations >= 2


class Flaky:
    """Fails for the machine's part at some evaluations, counted from 1."""

    def __init__(self, evaluator: Evaluator, at: Callable[[int], bool]) -> None:
        self.evaluate, self.at, self.asked, self.failed = evaluator.evaluate, at, 0, 0

    def __call__(self, *of: Any, **more: Any) -> Any:
        self.asked += 1
        if self.at(self.asked):
            self.failed += 1
            raise InfrastructureError("the worker has died")
        return self.evaluate(*of, **more)


@rllib
@quiet
@pytest.mark.parametrize("failing", [True, False])
def test_what_the_machine_failed_at_is_not_learnt_from(
    tmp_path: Path, evaluator: Evaluator, monkeypatch: pytest.MonkeyPatch, failing: bool
) -> None:
    """Every setting is right, so that a mean return below 0.5 would be made of failures."""
    monkeypatch.setattr(runner, "PAUSES_S", ())
    flaky = Flaky(evaluator, lambda asked: failing and asked in (3, 5, 6))
    monkeypatch.setattr(evaluator, "evaluate", flaky)
    done = ppo(recipe(tmp_path, keep={"kRight": True}), tmp_path / "run", evaluator=evaluator)
    assert [line.values["return_mean"] for line in done.metrics] == [0.5, 0.5]
    assert [line.values["turns"] for line in done.metrics] == [8, 16]
    assert flaky.failed == (3 if failing else 0)


@rllib
@quiet
def test_a_machine_that_fails_for_good_ends_the_run_which_goes_on_when_it_is_mended(
    tmp_path: Path, evaluator: Evaluator, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runner, "PAUSES_S", (0.0,))
    run, asked = tmp_path / "run", recipe(tmp_path, iterations=3)
    with monkeypatch.context() as broken:
        flaky = Flaky(evaluator, lambda asked: asked > 20)
        broken.setattr(evaluator, "evaluate", flaky)
        with pytest.raises(InfrastructureError, match=r"3 episodes in a row, .*--resume.*\(.*the worker has died\)"):
            ppo(asked, run, evaluator=evaluator)
    assert flaky.failed == 2 * runner.MOST_DROPPED and not runner.LENT, "each turn is tried twice"
    assert [path.name for path in (run / CHECKPOINTS).iterdir()] == ["checkpoint-2"]
    done = ppo(asked, run, resume=True, evaluator=evaluator)
    assert done.iterations == 3 and [line.values["turns"] for line in done.metrics] == [8, 16, 24]


@rllib
@quiet
def test_an_evaluator_is_let_go_of_whatever_keeps_a_run_from_beginning(tmp_path: Path, evaluator: Evaluator) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / FRONT).write_text("{}")
    with pytest.raises(UsageError, match="holds a run"):
        ppo(recipe(tmp_path), tmp_path / "run", evaluator=evaluator)
    assert not runner.LENT


@rllib
@quiet
@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"trainer": {**QUICK, "learning_rates": 1}}, r"\[trainer\]: unknown setting of PPOConfig 'learning_rates'"),
        ({"model": {"fcnet_hidden": [1]}}, r"\[model\]: .*did you mean 'fcnet_hiddens'"),
        ({"trainer": {**QUICK, "minibatch_size": 9999}}, r"\[trainer\]: PPOConfig does not accept these settings"),
        ({"trainer": {**QUICK, "num_env_runners": 2}}, "cannot be lent to 2 env runners"),
    ],
)
def test_what_rllib_does_not_take_is_said_before_a_run_begins(
    tmp_path: Path, evaluator: Evaluator, more: dict[str, Any], said: str
) -> None:
    with pytest.raises(UsageError, match=said):
        ppo(recipe(tmp_path, **more), tmp_path / "run", evaluator=evaluator)
    assert not (tmp_path / "run").exists()
