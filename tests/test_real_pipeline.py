"""The real pipeline where Gymnasium and Unix make it hard: vector environments, forks, sudden ends."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import gymnasium as gym
import pytest
from gymnasium.vector import AsyncVectorEnv, SyncVectorEnv, VectorEnv

import ptxgym
from ptxgym.evaluator import Evaluator
from ptxgym.task import Solution, Task, oracle
from ptxgym.verdict import Severity, Status
from tests.conftest import CHECKOUT

Kernels = dict[str, tuple[Solution, str]]


def _descendants(process: int) -> Iterator[int]:
    for task in Path(f"/proc/{process}/task").iterdir():
        for child in map(int, (task / "children").read_text().split()):
            yield child
            yield from _descendants(child)


def _make() -> gym.Env[object, str]:
    return gym.make("PTX-Gemm-H100", turns=3)


@pytest.mark.parametrize("vectorize", [SyncVectorEnv, AsyncVectorEnv])
def test_vector_environments_judge_real_kernels_and_leave_no_process(
    vectorize: Callable[..., VectorEnv[object, object, object]], kernels: Kernels
) -> None:
    before = set(_descendants(os.getpid()))
    envs = vectorize([_make, _make])
    envs.reset(seed=0)
    observation, rewards, *_, infos = envs.step((kernels["oracle"][1], kernels["naive"][1]))
    assert rewards.tolist() == [pytest.approx(0.5), pytest.approx(0.2)]
    assert observation["coverage"].tolist() == [1.0, 0.0]
    assert [feedback.startswith("Correct.") for feedback in observation["feedback"]] == [True, True]
    assert infos["conditions"][0] == infos["conditions"][1], "members of a group are judged alike"
    observation, rewards, *_ = envs.step((kernels["naive"][1], kernels["wgmma_missing_wait"][1]))
    assert rewards.tolist() == [0.0, 0.0]
    assert observation["feedback"][1].startswith("The numbers are right, but")
    envs.close()
    del envs
    assert set(_descendants(os.getpid())) <= before


def test_missing_wait_is_named_at_its_line(kernels: Kernels, evaluator: Evaluator) -> None:
    text = kernels["wgmma_missing_wait"][1]
    verdict = evaluator.evaluate(text, "gemm")
    lines = text.splitlines()
    named = {
        line
        for finding in verdict.findings
        if finding.severity is Severity.ERROR
        for line in (finding.line, *(party.line for party in finding.parties))
        if line is not None
    }
    assert any("wgmma_m64n256k16(sums" in lines[line - 1] for line in named)
    assert any("wgmma.wait_group" in (finding.remedy or "") for finding in verdict.findings)


def test_equal_texts_get_equal_verdicts_in_every_process(kernels: Kernels, evaluator: Evaluator) -> None:
    here = evaluator.evaluate(kernels["oracle"][1], "gemm")
    code = (
        "import sys; from ptxgym import Evaluator\n"
        "with Evaluator() as e: sys.stdout.write(e.evaluate(sys.stdin.read(), 'gemm').model_dump_json())"
    )
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(CHECKOUT), os.environ.get("PYTHONPATH", "")])}
    done = subprocess.run(
        [sys.executable, "-c", code], input=kernels["oracle"][1], capture_output=True, text=True, env=env
    )
    there = ptxgym.Verdict.model_validate_json(done.stdout)
    assert there.deterministic() == here.deterministic()


def test_two_host_threads_or_one_make_no_difference(
    kernels: Kernels, evaluator: Evaluator, monkeypatch: pytest.MonkeyPatch
) -> None:
    two = evaluator.evaluate(kernels["mma_sync"][1], "gemm")
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: {0})
    with Evaluator() as alone:
        one = alone.evaluate(kernels["mma_sync"][1], "gemm")
    assert one.deterministic() == two.deterministic()


def test_forked_child_judges_with_workers_of_its_own(kernels: Kernels) -> None:
    with Evaluator() as evaluator:
        assert evaluator.evaluate(kernels["naive"][1], "gemm").status is Status.OK
        child = os.fork()
        if child == 0:
            status = 1
            try:
                status = 0 if evaluator.evaluate(kernels["oracle"][1], "gemm").score == 0.5 else 2
                evaluator.close()
            finally:
                os._exit(status)
        assert os.waitpid(child, 0)[1] == 0
        assert evaluator.evaluate(kernels["mma_sync"][1], "gemm").score == 0.2, "the parent's worker still serves it"


@pytest.mark.parametrize("how", ["forgotten", "killed"])
def test_no_worker_outlives_its_owner(kernels: Kernels, how: str) -> None:
    code = (
        "import sys, time; from ptxgym import Evaluator\n"
        "e = Evaluator(); e.evaluate(sys.stdin.read(), 'gemm'); print('judged', flush=True)\n"
        f"time.sleep({2 if how == 'forgotten' else 600})"
    )
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(CHECKOUT), os.environ.get("PYTHONPATH", "")])}
    with subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=env
    ) as owner:
        assert owner.stdin is not None and owner.stdout is not None
        owner.stdin.write(kernels["naive"][1])
        owner.stdin.close()
        assert owner.stdout.readline() == "judged\n"
        workers = set(_descendants(owner.pid))
        assert workers
        if how == "killed":
            owner.send_signal(signal.SIGKILL)
        owner.wait()
    while any(_alive(worker) for worker in workers):  # the suite's time-out is the limit
        time.sleep(0.05)
    assert not any(_alive(worker) for worker in workers)


def _alive(process: int) -> bool:
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


@pytest.mark.parametrize("arch", ["h100", "b200"])
def test_a_persistent_kernel_that_takes_one_tile_a_cta_is_wrong(evaluator: Evaluator, gemm: Task, arch: str) -> None:
    """The public size has fewer tiles than a GPU has SMs; on the emulator the hidden one is judged with few SMs."""
    text = gemm.source(oracle(gemm, arch))
    assert "index += gridDim.x" in text
    verdict = evaluator.evaluate(text.replace("index += gridDim.x", "index += 1 << 28"), gemm, arch)
    assert (verdict.status, verdict.code) == (Status.WRONG_OUTPUT, "judge.wrong_output"), verdict.message
    assert "however few SMs there are" in str(verdict.outputs)
