import contextlib
import signal
import threading
import time

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.utils.env_checker import data_equivalence

import ptxgym  # noqa: F401  (registers the environments)
from ptxgym.cluster import EvaluationService, Fleet
from ptxgym.errors import UsageError
from ptxgym.evaluator import Evaluator
from ptxgym.judging import Overdue
from ptxgym.vector import KernelVectorEnv
from ptxgym.verdict import Status
from tests.cluster.conftest import steps
from tests.store.samples import verdict

ID = "PTX-Gemm-H100"


def test_make_vec_gives_episodes_that_step_at_once_each_with_its_own_text(make, log):
    envs = gym.make_vec(ID, num_envs=64, turns=2, evaluator=make(fleet=Fleet(cpu=2)), deadline_s=300)
    assert isinstance(envs.unwrapped, KernelVectorEnv)
    observations, infos = envs.reset(seed=7)
    assert len(observations["prompt"]) == 64 and envs.np_random_seed == tuple(range(7, 71))
    texts = [f"// env {number}" for number in range(64)]
    observations, rewards, terminated, truncated, infos = envs.step(texts)
    assert observations["source"] == tuple(texts) and not terminated.any() and not truncated.any()
    assert [verdict.message for verdict in infos["verdict"]] == texts
    assert rewards.shape == (64,) and (rewards > 0).all()
    assert len(steps(log)) == 128
    observations, _, terminated, _, _ = envs.step(["// env 0"] * 64)  # known to all
    assert terminated.all() and len(steps(log)) == 128
    envs.close()


def test_a_wedged_evaluation_truncates_its_own_environment_only(make):
    service = make(fleet=Fleet(cpu=2))
    envs = gym.make_vec(ID, num_envs=8, turns=2, evaluator=service, deadline_s=8)
    envs.reset()
    texts = [f"// env {number}" for number in range(8)]
    texts[3] = "// sleep 600"
    _, rewards, _, truncated, infos = envs.step(texts)
    assert truncated.tolist() == [number == 3 for number in range(8)] and rewards[3] == 0.0
    assert not infos["reward_valid"][3] and "DeadlineExceeded" in infos["error"][3]
    assert all(infos["verdict"][number].message == texts[number] for number in range(8) if number != 3)
    observations, _, _, truncated, infos = envs.step(["// again"] * 8)
    assert not truncated.any() and observations["source"][3] == "" and observations["source"][2] == "// again"


@pytest.mark.parametrize("mode", ["NextStep", "SameStep"])
def test_a_deadline_holds_with_a_plain_evaluator_too(scripted, mode):
    envs = gym.make_vec(ID, num_envs=3, turns=2, evaluator=scripted, deadline_s=5, autoreset_mode=mode)
    envs.reset(seed=7)
    assert envs.np_random_seed == (7, 8, 9)
    _, rewards, _, truncated, infos = envs.step(["// a", "// wait", "// c"])
    assert truncated.tolist() == [False, True, False] and (rewards > 0).tolist() == [True, False, True]
    told = infos["final_info"] if mode == "SameStep" else infos
    assert not told["reward_valid"][1] and told["error"][1].startswith("Overdue: an evaluation was not over after 5 s")
    scripted.release.set()
    while "// wait" not in scripted.judged:
        time.sleep(0.01)
    if mode == "NextStep":
        observations, _, terminated, truncated, _ = envs.step(["// d", "// e", "// f"])
        assert observations["source"] == ("// d", "", "// f") and terminated.tolist() == [True, False, True]
        envs.step(["// g", "// h", "// i"])
    else:
        _, _, terminated, truncated, _ = envs.step(["// d", "// h", "// f"])
        assert terminated.tolist() == [True, False, True] and not truncated.any()
    assert [turn.source for turn in envs.envs[1].unwrapped.episode.turns] == ["// h"]
    scripted.release.clear()
    with pytest.raises(Overdue):
        envs.reset(options={"init": "// wait"})


def test_without_a_deadline_a_plain_evaluator_is_waited_for(scripted):
    envs = gym.make_vec(ID, num_envs=2, turns=2, evaluator=scripted)
    envs.reset()
    threading.Timer(0.3, scripted.release.set).start()
    _, rewards, _, truncated, _ = envs.step(["// a", "// wait"])
    assert not truncated.any() and (rewards > 0).all()


def test_a_wrong_number_of_texts_is_told_before_anything_is_judged(make, log):
    envs = gym.make_vec(ID, num_envs=3, turns=1, evaluator=make())
    envs.reset()
    for texts in ((), ("// a", "// b"), ("// a",) * 4):
        with pytest.raises(UsageError, match=rf"each of the 3 environments.*got {len(texts)}: pass a text"):
            envs.step(texts)
    for one in ("// a kernel", b"//", 7, None):
        with pytest.raises(UsageError, match=f"not a single {type(one).__name__}: pass a list"):
            envs.step(one)
    assert steps(log) == []
    for texts in (["// a", "// b", "// c"], np.array(["// a", "// b", "// c"]), iter(["// d", "// e", "// f"])):
        envs.step(texts)
        envs.reset()
    assert {text for _, text in steps(log)} == {f"// {letter}" for letter in "abcdef"}
    envs.close()


@pytest.mark.parametrize("mode", ["NextStep", "SameStep"])
def test_order_seeds_and_autoreset_are_those_of_the_synchronous_vector_environment(make, mode):
    service = make()
    made = [
        gym.make_vec(ID, num_envs=3, turns=2, evaluator=service, autoreset_mode=mode),
        gym.make_vec(
            ID,
            num_envs=3,
            turns=2,
            evaluator=service,
            vectorization_mode="sync",
            vector_kwargs={"autoreset_mode": mode},
        ),
    ]
    for envs in made:
        assert envs.metadata["autoreset_mode"].value == mode
    ours, theirs = ([envs.reset(seed=[5, 3, 9])] for envs in made)
    for turn in range(5):
        texts = [f"// {turn} {number}" for number in range(3)]
        for log, envs in ((ours, made[0]), (theirs, made[1])):
            log.append(envs.step(texts))
        if turn == 2:
            mask = {"reset_mask": np.array([False, True, False])}
            for log, envs in ((ours, made[0]), (theirs, made[1])):
                log.append(envs.reset(options=dict(mask)))
    assert made[0].np_random_seed == made[1].np_random_seed == (5, 3, 9)
    for ours_one, theirs_one in zip(ours, theirs, strict=True):
        assert data_equivalence(plain(ours_one), plain(theirs_one))
    for envs in made:
        envs.close()


def plain(value):
    """Return a value without what differs from run to run or is no plain data."""
    if isinstance(value, dict):
        return {key: plain(one) for key, one in value.items()}
    if isinstance(value, tuple):
        return tuple(plain(one) for one in value)
    if isinstance(value, np.ndarray) and value.dtype == object:
        return tuple(plain(one) if isinstance(one, dict) else repr(one) for one in value)
    return value


class Scripted(Evaluator):
    """Judges anything to be right, but comes upon a fault on some texts, and waits for `release` on others."""

    def __init__(self):
        super().__init__("emulator", secret="s")
        self.judged, self.waiting, self.release = [], threading.Event(), threading.Event()

    def evaluate(self, text, task, arch="h100", workload=None, *, variant=None):
        if "wait" in text:
            self.waiting.set()
            self.release.wait()
        if "fault" in text:
            raise ZeroDivisionError(text)
        self.judged.append(text)
        return verdict(Status.OK)


@contextlib.contextmanager
def interrupted(evaluator):
    """Press Ctrl-C while the block waits for an evaluation, all others of which have ended."""

    def interrupt():
        evaluator.waiting.wait()
        while "// a" not in evaluator.judged:
            time.sleep(0.01)
        time.sleep(0.1)
        signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)

    interrupting = threading.Thread(target=interrupt)
    interrupting.start()
    with pytest.raises(KeyboardInterrupt):
        yield
    interrupting.join()


@pytest.fixture
def scripted():
    evaluator = Scripted()
    yield evaluator
    evaluator.release.set()


@pytest.mark.parametrize("mode", ["NextStep", "SameStep", "Disabled"])
def test_what_is_no_text_is_told_before_anything_is_judged(scripted, mode):
    envs = gym.make_vec(ID, num_envs=3, turns=1, evaluator=scripted, autoreset_mode=mode)
    envs.reset()
    for number, texts in enumerate([(None, "// b", "// c"), ("// a", 7, "// c"), ("// a", "// b", b"// c")]):
        with pytest.raises(UsageError, match=rf"a submission is a str, not \w+ \(environment {number}\)"):
            envs.step(texts)
    assert scripted.judged == []
    _, rewards, *_ = envs.step(["// d", "// e", "// f"])
    assert sorted(scripted.judged) == ["// d", "// e", "// f"] and (rewards > 0).all()
    if mode == "NextStep":
        observations, *_ = envs.step([None] * 3)  # which nobody looks at
        assert observations["source"] == ("",) * 3


@pytest.mark.parametrize("mode", ["NextStep", "SameStep", "Disabled"])
@pytest.mark.parametrize("first", [True, False], ids=["the first", "the last"])
def test_after_a_fault_the_others_have_had_their_turn_and_the_next_step_goes_on(scripted, mode, first):
    """The episode of the one whose text was judged is over, whether it was asked before the fault or not at all."""
    envs = gym.make_vec(ID, num_envs=2, turns=1, evaluator=scripted, autoreset_mode=mode)
    envs.reset()
    with pytest.raises(ZeroDivisionError):
        envs.step(("// fault", "// a") if first else ("// a", "// fault"))
    assert scripted.judged == ["// a"]
    ended = np.array([not first, first])
    if mode == "Disabled":  # there it is the caller who resets
        envs.reset(options={"reset_mask": ended})
    observations, rewards, *_ = envs.step(["// b", "// c"])
    if mode == "NextStep":
        assert observations["source"] == (("// b", "") if first else ("", "// c"))
        assert (rewards > 0).tolist() == (~ended).tolist()
        observations, rewards, *_ = envs.step(["// d", "// e"])
        assert observations["source"] == (("", "// e") if first else ("// d", ""))
    else:
        assert (rewards > 0).all() and sorted(scripted.judged) == ["// a", "// b", "// c"]


@pytest.mark.parametrize("mode", ["NextStep", "SameStep"])
def test_an_interrupt_is_raised_at_once_and_the_next_step_waits_for_what_was_begun(scripted, mode):
    envs = gym.make_vec(ID, num_envs=2, turns=1, evaluator=scripted, autoreset_mode=mode)
    envs.reset()

    for texts in (("// wait", "// a"), ("// b", "// c")):  # the second one while it waits for the first
        with interrupted(scripted):
            envs.step(texts)
    assert scripted.judged == ["// a"]
    threading.Timer(0.1, scripted.release.set).start()
    if mode == "NextStep":
        observations, rewards, *_ = envs.step(["// b", "// c"])
        assert observations["source"] == ("", "") and rewards.tolist() == [0.0, 0.0]
    _, rewards, *_ = envs.step(["// d", "// e"])
    assert (rewards > 0).all()
    assert scripted.judged[:2] == ["// a", "// wait"] and sorted(scripted.judged[2:]) == ["// d", "// e"]


def test_a_reset_waits_for_an_interrupted_step_and_one_that_fails_is_made_up_for(scripted):
    envs = gym.make_vec(ID, num_envs=2, turns=1, evaluator=scripted)
    envs.reset()
    with interrupted(scripted):
        envs.step(["// wait", "// a"])
    threading.Timer(0.1, scripted.release.set).start()
    envs.reset()
    assert sorted(scripted.judged) == ["// a", "// wait"]
    envs.step(["// b", "// c"])
    with pytest.raises(UsageError, match="workload"):
        envs.reset(options={"workload": "hardware"})
    observations, _, terminated, *_ = envs.step(["// d", "// e"])  # both are over still
    assert observations["source"] == ("", "") and not terminated.any()


def test_a_vector_environment_lets_go_of_the_process_s_service():
    envs = gym.make_vec(ID, num_envs=2, device="emulator")
    service = envs.unwrapped.evaluator
    assert service is EvaluationService.shared("emulator") and service._engine is None  # nothing was started
    envs.close()
    assert envs.unwrapped.evaluator is None


@pytest.mark.parametrize("settings", [{"num_envs": 0}, {"deadline_s": 0.0}, {"device": "tpu"}, {"turns": 0}])
def test_settings_are_checked(settings):
    with pytest.raises(UsageError):
        KernelVectorEnv(**({"num_envs": 1, "env": ID, "device": "emulator"} | settings))
