"""`KernelEnv` as Gymnasium sees it; runs on every supported Gymnasium version."""

from __future__ import annotations

import pickle
import warnings
from collections.abc import Callable, Iterator

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.error import ResetNeeded
from gymnasium.utils.env_checker import check_env
from gymnasium.vector import AsyncVectorEnv, SyncVectorEnv

import ptxgym
from ptxgym.env import KernelEnv
from ptxgym.envs import env_names, load_env
from ptxgym.errors import UnknownNameError, UsageError, WorkerDied
from ptxgym.evaluator import Evaluator
from ptxgym.reward import load_reward
from ptxgym.verdict import Status, Verdict
from tests.bad_kernels import BAD, HEAD, host
from tests.scripted import ScriptedDevice

RIGHT = host("")
SYNTAX_ERROR = BAD["syntax_error"]
assert isinstance(SYNTAX_ERROR, str)


@pytest.fixture
def scripted() -> Iterator[Evaluator]:
    """Judges every text that compiles as right, done by fma."""
    with Evaluator(ScriptedDevice(family="fma")) as evaluator:
        yield evaluator


@pytest.fixture
def env(scripted: Evaluator) -> KernelEnv:
    made = gym.make("PTX-Gemm-H100", turns=3, evaluator=scripted).unwrapped
    assert isinstance(made, KernelEnv)
    return made


@pytest.mark.parametrize(
    "env_id", [*env_names(), *(load_env(name).pinned for name in env_names()), "ptxgym:PTX-Gemm-H100"]
)
def test_every_id_passes_the_checker_without_a_warning(env_id: str) -> None:
    env = gym.make(env_id)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        check_env(env.unwrapped)
    assert env.spec is not None and env.spec.nondeterministic
    env.close()


def test_made_environment_is_a_kernel_env_with_overrides() -> None:
    env = ptxgym.make("PTX-Gemm-H100", turns=2, reward="final", stop="target_ok", feedback_bytes=3000)
    assert isinstance(env.unwrapped, KernelEnv)
    config = env.unwrapped.config
    assert (config.turns, config.reward, config.stop, config.feedback_bytes) == (2, "final", "target_ok", 3000)
    with pytest.raises(UnknownNameError, match="did you mean 'PTX-Gemm-H100'"):
        ptxgym.make("PTX-Gem-H100")
    for wrong in ({"turns": 0}, {"stop": "speedup:fast"}, {"feedback_bytes": 10}, {"device": "tpu"}):
        with pytest.raises(UsageError, match=str(next(iter(wrong)))):
            ptxgym.make("PTX-Gemm-H100", **wrong)
    with pytest.raises(UnknownNameError, match="did you mean 'shaped'"):
        ptxgym.make("PTX-Gemm-H100", reward="shapd")


def test_an_episode_from_reset_to_the_last_turn(env: KernelEnv) -> None:
    observation, info = env.reset(seed=1)
    assert observation in env.observation_space
    assert observation["prompt"].startswith("# Dense matrix product")
    assert (observation["feedback"], observation["source"], observation["best_source"]) == ("", "", "")
    assert info == {"turn": 0, "best_score": 0.0, "options": {}}

    steps = [env.step(text) for text in (SYNTAX_ERROR, RIGHT, RIGHT)]
    observations, rewards, terminated, truncated, infos = zip(*steps, strict=True)
    assert all(observation in env.observation_space for observation in observations)
    assert [float(o["turns_left"]) for o in observations] == [2, 1, 0]
    assert [round(float(o["score"]), 6) for o in observations] == [0, 0.2, 0.2]
    assert rewards == (0.0, pytest.approx(0.2), 0.0)
    assert terminated == (False, False, True) and truncated == (False,) * 3
    assert observations[0]["feedback"].startswith("Does not compile.")
    assert "line 5 │ int x = ;" in observations[0]["feedback"]
    assert [o["best_source"] for o in observations] == [SYNTAX_ERROR, RIGHT, RIGHT]
    assert [i["turn"] for i in infos] == [1, 2, 3]
    assert isinstance(infos[1]["verdict"], Verdict) and infos[1]["verdict"].status is Status.OK
    assert infos[1]["score"] == 0.2 and infos[1]["terms"] == {"score": pytest.approx(0.2)}
    assert infos[1]["reward_valid"] is True and infos[1]["conditions"]
    with pytest.raises(ResetNeeded):
        env.step(RIGHT)
    assert env.reset()[0]["feedback"] == ""


@pytest.mark.parametrize("action", ["", "\ud800", "x" * (300 << 10), np.str_("int x;")])
def test_any_text_is_an_observation(env: KernelEnv, action: str) -> None:
    env.reset()
    observation, reward, terminated, truncated, info = env.step(action)
    assert observation in env.observation_space
    assert (reward, terminated, truncated) == (0.0, False, False)
    assert info["verdict"].status in (Status.REJECTED, Status.COMPILE_ERROR)


@pytest.mark.parametrize("action", [None, 7, b"bytes", ["int x;"]])
def test_what_is_no_text_is_the_caller_s_mistake(env: KernelEnv, action: object) -> None:
    env.reset()
    with pytest.raises(UsageError, match=f"not {type(action).__name__}"):
        env.step(action)  # type: ignore[arg-type]
    assert env.step("int x;")[4]["turn"] == 1, "the turn was not spent"


def test_stop_rule_ends_an_episode_early() -> None:
    with Evaluator(ScriptedDevice(family="wgmma")) as evaluator:
        env = KernelEnv("PTX-Gemm-H100", evaluator=evaluator, stop="target_ok")
        env.reset()
        assert env.step(SYNTAX_ERROR)[2] is False
        assert env.step(RIGHT)[2] is True
        env.reset(options={"stop": "speedup:1.5"})
        assert env.step(RIGHT)[2] is False, "the emulator measures no speed"


def test_machine_failure_truncates_and_marks_the_reward(env: KernelEnv) -> None:
    device = ScriptedDevice()

    def die(options: object, execution: object) -> object:
        raise WorkerDied("reproducer at …")

    device.interfere = die  # type: ignore[assignment]
    with Evaluator(device) as evaluator:
        broken = KernelEnv("PTX-Gemm-H100", evaluator=evaluator)
        broken.reset()
        observation, reward, terminated, truncated, info = broken.step(RIGHT)
    assert (reward, terminated, truncated) == (0.0, False, True)
    assert info["reward_valid"] is False and info["error"] == "WorkerDied: reproducer at …"
    assert observation in broken.observation_space and "machine failed" in observation["feedback"]
    with pytest.raises(ResetNeeded):
        broken.step(RIGHT)


def test_reset_options_hold_for_one_episode_and_are_recorded(env: KernelEnv) -> None:
    _, info = env.reset(options={"turns": 1, "reward": "sparse"})
    assert info["options"] == {"turns": 1, "reward": "sparse"}
    assert env.step(RIGHT)[2] is True
    env.reset()
    assert env.step(RIGHT)[2] is False


def test_start_kernel_is_shown_judged_and_already_paid(env: KernelEnv) -> None:
    observation, info = env.reset(options={"init": RIGHT})
    assert observation["source"] == observation["best_source"] == RIGHT
    assert "__global__ void kernel" in observation["prompt"]
    assert observation["feedback"].startswith("Correct.")
    assert info["best_score"] == 0.2 and float(observation["score"]) == pytest.approx(0.2)
    assert env.step(RIGHT + "// again\n")[1] == 0.0


SKELETON = (
    HEAD
    + ("__global__ void kernel(__nv_bfloat16* C) {\n// ptxgym: begin body\n  C[0] = C[1];\n// ptxgym: end\n}\n")
    + RIGHT[RIGHT.index('extern "C"') :]
)


def test_skeleton_binds_everything_but_its_regions(env: KernelEnv) -> None:
    observation, _ = env.reset(options={"skeleton": SKELETON})
    assert "// ptxgym: begin body" in observation["prompt"]
    inside = SKELETON.replace("C[0] = C[1];", "C[threadIdx.x] = C[0];")
    assert env.step(inside)[4]["verdict"].status is Status.OK
    info = env.step(inside.replace("<<<1, 32", "<<<1, 64"))[4]
    assert info["verdict"].code == "submission.skeleton_changed"
    assert "after region 'body'" in info["verdict"].message
    with pytest.raises(UsageError, match="not int"):
        env.step(7)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"trns": 3}, "did you mean 'turns'"),
        ({"variant": "nn-bais"}, "did you mean 'nn-bias'"),
        ({"variant": 3}, "a name, not int"),
        ({"outputs": ["C"]}, "variants of a task ask for fewer outputs"),
        ({"knowledge": "all"}, "a list of names of parts"),
        ({"knowledge": ["template"]}, "did you mean 'templates'"),
        ({"turns": 0}, "not 0"),
        ({"init": 3}, "kernel's text, not int"),
        ({"skeleton": "no region"}, "no region"),
        ({"workload": "emulatoin"}, "did you mean 'emulation'"),
        ({"workload": "hardware"}, "timed on a GPU"),
        ({"workload": 3}, "a name, not int"),
    ],
)
def test_bad_reset_options_are_refused_with_a_way_out(env: KernelEnv, options: dict[str, object], match: str) -> None:
    with pytest.raises(UsageError, match=match):
        env.reset(options=options)


def test_render_closing_and_order(scripted: Evaluator) -> None:
    env = gym.make("PTX-Gemm-H100", evaluator=scripted, render_mode="ansi")
    env.reset()
    env.step(RIGHT)
    assert env.render().startswith("Correct.")  # type: ignore[union-attr]
    env.close()
    env.close()
    with pytest.raises(UsageError, match="closed"):
        env.unwrapped.reset()
    with pytest.raises(ResetNeeded):
        KernelEnv("PTX-Gemm-H100", evaluator=scripted).step(RIGHT)
    with pytest.raises(UsageError, match="render_mode"):
        KernelEnv("PTX-Gemm-H100", evaluator=scripted, render_mode="human")


def test_seed_fixes_the_generator_and_never_the_draws(env: KernelEnv) -> None:
    conditions = set()
    for seed in (1, 2):
        env.reset(seed=seed)
        conditions.add(env.step(RIGHT)[4]["conditions"])
    assert len(conditions) == 1
    env.reset(seed=1)
    first = env.np_random.integers(1 << 30)
    env.reset(seed=1)
    assert env.np_random.integers(1 << 30) == first


def _make() -> gym.Env[object, str]:
    return gym.make("PTX-Gemm-H100", turns=3, evaluator=Evaluator(ScriptedDevice(family="fma")))


@pytest.mark.parametrize("vectorize", [SyncVectorEnv, AsyncVectorEnv])
def test_vector_environments_bring_each_its_own_texts(vectorize: Callable[..., gym.vector.VectorEnv]) -> None:
    envs = vectorize([_make, _make])
    try:
        observation, _ = envs.reset(seed=0)
        assert observation["prompt"][0] == observation["prompt"][1] != ""
        observation, rewards, terminated, truncated, infos = envs.step((RIGHT, "no kernel"))
        assert observation in envs.observation_space
        assert observation["source"] == (RIGHT, "no kernel")
        assert observation["feedback"][0].startswith("Correct.")
        assert observation["feedback"][1].startswith("Does not compile.")
        assert rewards.tolist() == [pytest.approx(0.2), 0.0]
        assert not terminated.any() and not truncated.any()
        assert [verdict.status for verdict in infos["verdict"]] == [Status.OK, Status.COMPILE_ERROR]
        observation, *_ = envs.step(("no kernel", RIGHT))
        assert observation["source"] == ("no kernel", RIGHT)
        assert observation["best_source"] == (RIGHT, RIGHT)
    finally:
        envs.close()


def test_make_vec_works_by_id(scripted: Evaluator) -> None:
    envs = gym.make_vec("PTX-Gemm-H100", num_envs=2, turns=2, evaluator=scripted)
    observation, _ = envs.reset()
    assert len(observation["prompt"]) == 2
    assert envs.step((RIGHT, RIGHT))[0]["source"] == (RIGHT, RIGHT)
    envs.close()


def test_spaces_pickle_and_a_shipped_reward_each_makes_an_environment(scripted: Evaluator) -> None:
    for name in ("shaped", "final", "sparse", "ptxbench"):
        assert load_reward(name).summary
        env = KernelEnv("PTX-Gemm-H100", evaluator=scripted, reward=name, turns=1)
        env.reset()
        _, reward, terminated, _, info = env.step(RIGHT)
        assert terminated and reward == pytest.approx(sum(info["terms"].values()))
    assert pickle.loads(pickle.dumps(env.observation_space)) == env.observation_space
