"""The evaluator's own logic, with real builds and plans and a scripted device: order, early ends, memory, forks."""

from __future__ import annotations

import asyncio
import copy
import gc
import json
import os
import pickle
import threading
import weakref
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import cloudpickle
import gymnasium as gym
import pytest

import ptxgym  # noqa: F401  (registers the environments)
from ptxgym import measured
from ptxgym.device.cuda.model import Tier
from ptxgym.device.protocol import Execution, RunOptions
from ptxgym.errors import InfrastructureError, UnknownNameError, UsageError, WorkerDied
from ptxgym.evaluator import RANDOM_SCHEDULES, Evaluator
from ptxgym.judge.conditions import conditions
from ptxgym.task import Task, load_task
from ptxgym.verdict import Failure, Finding, Severity, Stage, Status, Verdict
from tests.bad_kernels import BAD, host
from tests.scripted import ScriptedDevice

SECRET = "a secret that must not leak"
TEXT = host("")
CASES = 4
STRESS = 1 + RANDOM_SCHEDULES
HAZARD = Finding(code="shared.race", severity=Severity.ERROR, message="two warps write one word", line=4)


def judge(device: ScriptedDevice, text: str = TEXT) -> Verdict:
    with Evaluator(device, secret=SECRET) as evaluator:
        return evaluator.evaluate(text, "gemm", "h100")


def test_right_kernel_runs_every_case_then_schedules_then_ablation() -> None:
    device = ScriptedDevice()
    verdict = judge(device)
    assert (verdict.status, verdict.score) == (Status.OK, 0.5)
    assert verdict.evidence is not None and verdict.evidence.coverage == 1.0
    assert verdict.evidence.ablation == "depends"
    kinds = [(o.schedule, o.seed, o.zero_target_results) for o in device.calls]
    assert kinds[:CASES] == [("fair", 0, False)] * CASES
    assert kinds[CASES:-1] == [("lazy", 0, False), *(("random", s, False) for s in range(1, STRESS))]
    assert kinds[-1] == ("fair", 0, True)
    assert all(o.warp_instruction_budget > 20_000_000 for o in device.calls)
    assert verdict.printed == "hello\n"
    assert verdict.plan is not None and "launch kernel" in verdict.plan


def test_nothing_is_stressed_or_ablated_where_it_can_tell_nothing() -> None:
    device = ScriptedDevice(family="fma")
    assert judge(device).score == 0.2
    assert len(device.calls) == CASES


def test_error_finding_ends_after_the_cases() -> None:
    device = ScriptedDevice(findings=(HAZARD,))
    verdict = judge(device)
    assert (verdict.status, verdict.code, verdict.score) == (Status.HAZARD, "shared.race", 0.0)
    assert len(device.calls) == CASES


def test_finding_of_an_adversarial_schedule_makes_a_hazard() -> None:
    def interfere(options: RunOptions, execution: Execution) -> Execution:
        if options.schedule != "random" or options.seed != 5:
            return execution
        return Execution(execution.buffers, execution.counts, (HAZARD,))

    verdict = judge(ScriptedDevice(interfere=interfere))
    assert (verdict.status, verdict.code, verdict.score) == (Status.HAZARD, "shared.race", 0.0)


def test_numbers_of_an_adversarial_schedule_are_not_judged() -> None:
    def interfere(options: RunOptions, execution: Execution) -> Execution:
        if options.schedule == "fair":
            return execution
        return Execution({name: data * 0 for name, data in execution.buffers.items()}, execution.counts)

    assert judge(ScriptedDevice(interfere=interfere)).status is Status.OK


@pytest.mark.parametrize(("call", "said"), [(0, ""), (3, "draw hidden/")])
def test_failing_run_ends_the_evaluation_and_says_where(call: int, said: str) -> None:
    failure = Failure(stage=Stage.EXECUTE, status=Status.HANG, code="hang.deadlock", message="All wait.")
    device = ScriptedDevice()
    device.interfere = lambda options, execution: failure if len(device.calls) == call + 1 else execution
    verdict = judge(device)
    assert (verdict.status, verdict.code, verdict.stage, verdict.score) == (
        Status.HANG,
        "hang.deadlock",
        Stage.EXECUTE,
        0.0,
    )
    assert len(device.calls) == call + 1
    assert said in verdict.message and verdict.message.endswith("All wait.")


def test_deadlock_of_an_adversarial_schedule_is_a_warning_and_ends_nothing() -> None:
    failure = Failure(
        stage=Stage.EXECUTE, status=Status.HANG, code="hang.deadlock", message="All wait.", findings=(HAZARD,)
    )
    device = ScriptedDevice(interfere=lambda options, run: failure if options.schedule == "lazy" else run)
    verdict = judge(device)
    assert (verdict.status, verdict.score) == (Status.OK, 0.5)
    assert [(f.code, f.severity.value) for f in verdict.findings] == [
        ("schedule.hang", "warning"),
        ("shared.race", "warning"),
    ]
    assert "lazy" in verdict.findings[0].message and verdict.findings[0].message.endswith("All wait.")
    assert len(device.calls) == CASES + STRESS + 1


def test_output_that_survives_ablation_earns_nothing_for_target_instructions() -> None:
    def interfere(options: RunOptions, execution: Execution) -> Execution:
        return execution if not options.zero_target_results else right

    device = ScriptedDevice()
    right = None

    def remember(options: RunOptions, execution: Execution) -> Execution:
        nonlocal right
        right = right or execution
        return interfere(options, execution)

    device.interfere = remember
    verdict = judge(device)
    assert verdict.evidence is not None and verdict.evidence.ablation == "independent"
    assert verdict.score == 0.2


@pytest.mark.parametrize(
    ("text", "status"),
    [("", Status.REJECTED), (BAD["syntax_error"], Status.COMPILE_ERROR), (BAD["host_abort"], Status.PLAN_ERROR)],
)
def test_earlier_stage_keeps_the_device_idle(text: str, status: Status) -> None:
    device = ScriptedDevice()
    assert judge(device, text).status is status
    assert device.calls == []


def test_equal_texts_share_a_verdict_and_different_conditions_do_not() -> None:
    device = ScriptedDevice(family="fma")
    with Evaluator(device, secret=SECRET) as first, Evaluator(device, secret="another") as other:
        verdict = first.evaluate(TEXT, "gemm")
        assert first.evaluate(TEXT, "gemm") is verdict
        assert len(device.calls) == CASES
        first.evaluate(TEXT + "\n", "gemm")
        assert len(device.calls) == 2 * CASES
        elsewhere = other.evaluate(TEXT, "gemm")
        assert len(device.calls) == 3 * CASES
    assert verdict.provenance.conditions != elsewhere.provenance.conditions
    with Evaluator(device, secret=SECRET) as again, Evaluator(device, secret=SECRET, epoch=1) as later:
        assert again.evaluate(TEXT, "gemm").deterministic() == verdict.deterministic()
        assert later.evaluate(TEXT, "gemm").provenance.conditions != verdict.provenance.conditions


def test_edited_task_with_the_same_revision_is_judged_anew(gemm: Task) -> None:
    device = ScriptedDevice(family="fma")
    edited = gemm.model_copy(update={"title": "another title"})
    with Evaluator(device, secret=SECRET) as evaluator:
        evaluator.evaluate(TEXT, gemm)
        evaluator.evaluate(TEXT, edited)
    assert len(device.calls) == 2 * CASES


def test_threads_that_ask_the_same_wait_for_one_evaluation() -> None:
    device = ScriptedDevice(family="fma")
    together = threading.Barrier(4)
    with Evaluator(device, secret=SECRET) as evaluator, ThreadPoolExecutor(4) as pool:

        def ask(_: int) -> Verdict:
            together.wait()
            return evaluator.evaluate(TEXT, "gemm")

        verdicts = list(pool.map(ask, range(4)))
    assert len(device.calls) == CASES
    assert all(verdict is verdicts[0] for verdict in verdicts)


@pytest.mark.parametrize("error", [KeyboardInterrupt(), SystemExit(1)])
def test_an_interrupt_in_one_thread_leaves_the_others_their_verdict(error: BaseException) -> None:
    device = ScriptedDevice(family="fma")
    started, waiting = threading.Event(), threading.Event()
    run = device.run

    def interrupted(*arguments: Any, **options: Any) -> Any:
        device.run = run  # type: ignore[method-assign]
        started.set()
        waiting.wait(10)
        raise error

    device.run = interrupted  # type: ignore[method-assign]
    with Evaluator(device, secret=SECRET) as evaluator, ThreadPoolExecutor(2) as pool:
        first = pool.submit(evaluator.evaluate, TEXT, "gemm")
        started.wait(10)
        (shared,) = evaluator._memory._running.values()
        result = shared.result

        def wait() -> Verdict:
            waiting.set()
            return result()

        shared.result = wait  # type: ignore[method-assign,assignment]
        second = pool.submit(evaluator.evaluate, TEXT, "gemm")
        assert second.result().status is Status.OK
        assert first.exception() is error


def test_event_loop_is_not_blocked() -> None:
    device = ScriptedDevice(family="fma")

    async def both() -> tuple[Verdict, Verdict]:
        with Evaluator(device, secret=SECRET) as evaluator:
            return await asyncio.gather(evaluator.aevaluate(TEXT, "gemm"), evaluator.aevaluate(TEXT, "gemm"))

    first, second = asyncio.run(both())
    assert first is second and first.status is Status.OK


def test_infrastructure_failure_is_raised_as_it_is_and_never_remembered() -> None:
    device = ScriptedDevice(family="fma")

    def die(options: RunOptions, execution: Execution) -> Execution:
        raise WorkerDied("the worker ended; reproducer at …")

    device.interfere = die
    with Evaluator(device, secret=SECRET) as evaluator:
        with pytest.raises(WorkerDied, match="reproducer"):
            evaluator.evaluate(TEXT, "gemm")
        with pytest.raises(InfrastructureError):
            evaluator.evaluate(TEXT, "gemm")
        device.interfere = lambda options, execution: execution
        assert evaluator.evaluate(TEXT, "gemm").status is Status.OK


def test_verdict_holds_what_a_rerun_needs_and_not_the_secret() -> None:
    verdict = judge(ScriptedDevice())
    provenance = verdict.provenance
    assert (provenance.task, provenance.task_revision, provenance.arch) == ("gemm", 1, "h100")
    assert provenance.build_key and provenance.plan_hash and provenance.compiler and provenance.conditions
    assert provenance.device == "emulator" and provenance.device_profile == "h100" and provenance.isolation
    assert {"build", "plan", "execute", "judge", "schedules", "ablation"} <= set(verdict.measured.durations_s)
    dumped = verdict.model_dump_json()
    assert SECRET not in dumped
    assert Verdict.model_validate(json.loads(dumped)) == verdict


def test_secret_does_not_reach_the_host_code_of_a_submission() -> None:
    text = host(
        "  extern char** environ;\n  for (char** e = environ; *e != nullptr; ++e)\n"
        '    if (strstr(*e, "PTXGYM") != nullptr) abort();',
        "#include <cstdlib>\n#include <cstring>\n",
    )
    assert judge(ScriptedDevice(family="fma"), text).status is Status.OK


def test_processes_started_before_the_first_evaluation_share_the_secret(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PTXGYM_SECRET")
    with Evaluator(ScriptedDevice()) as evaluator:
        assert len(os.environ["PTXGYM_SECRET"]) == 64
        drawn = evaluator.evaluate(TEXT, "gemm").provenance.conditions
    with Evaluator(ScriptedDevice()) as other:  # as in a process that inherits the environment
        assert other.evaluate(TEXT, "gemm").provenance.conditions == drawn


def test_usage_errors_name_the_value_and_the_way_out() -> None:
    with Evaluator(ScriptedDevice()) as evaluator:
        with pytest.raises(UnknownNameError, match="gemm"):
            evaluator.evaluate(TEXT, "gem")
        with pytest.raises(UnknownNameError, match="h100"):
            evaluator.evaluate(TEXT, "gemm", "h10")
        with pytest.raises(UnknownNameError, match="emulation"):
            evaluator.evaluate(TEXT, "gemm", "h100", "emulatoin")
        with pytest.raises(UsageError, match="timed on a GPU"):
            evaluator.evaluate(TEXT, "gemm", "h100", "hardware")
        with pytest.raises(UsageError, match="not bytes"):
            evaluator.evaluate(b"text", "gemm")  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="closed"):
        evaluator.evaluate(TEXT, "gemm")
    with pytest.raises(UsageError, match=r"tier must be .*'fast'"):
        Evaluator(tier="fast")  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="'gpu'"):
        Evaluator("gpu")
    with pytest.raises(UsageError, match="secret is empty"):
        Evaluator(ScriptedDevice(), secret="")


@pytest.mark.parametrize("tier", ["rl", "publish"])
def test_a_tier_that_measures_is_refused_where_kernels_are_emulated(
    tier: Tier, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ptxgym.availability.gpu_for", lambda _: None)
    with pytest.raises(UsageError, match=f"tier '{tier}' is how a GPU measures.*does not measure; leave the tier out"):
        Evaluator("emulator", tier=tier)
    with pytest.raises(UsageError, match=f"tier '{tier}'.*does not measure"):
        Evaluator(ScriptedDevice(), tier=tier)
    with (
        Evaluator("auto", tier=tier) as evaluator,
        pytest.raises(UsageError, match=f"tier '{tier}'.*emulated here: .*; leave the tier out"),
    ):
        evaluator.evaluate(TEXT, "gemm")
    with pytest.raises(UsageError, match=f"tier '{tier}'"):
        gym.make("PTX-Gemm-H100", tier=tier)
    with Evaluator("emulator", tier="standard") as evaluator:
        evaluator.check_measures("h100")
    gym.make("PTX-Gemm-H100").close()


def test_an_evaluator_pickles_to_its_configuration_and_keeps_its_secret(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PTXGYM_SECRET", SECRET)
    with Evaluator("emulator", epoch=3, random_schedules=2) as evaluator:
        pickled = pickle.dumps(evaluator)
    assert SECRET.encode() not in pickled and len(pickled) < 200
    with pickle.loads(pickled) as again:
        assert again is not evaluator and again._closed is False
        assert (again._chosen, again._epoch, again._random_schedules) == ("emulator", 3, 2)
        assert again._secret == SECRET.encode(), "from the environment of the process that unpickles it"
    shared = Evaluator.shared("emulator")
    assert pickle.loads(pickle.dumps(shared)) is shared and copy.copy(shared) is shared


@pytest.mark.parametrize(
    ("given", "named"),
    [({"secret": SECRET}, "a secret of its own"), ({"device": ScriptedDevice()}, "a device of its own")],
)
def test_an_evaluator_with_something_of_the_callers_says_why_it_cannot_be_pickled(
    given: dict[str, Any], named: str
) -> None:
    with Evaluator(**given) as evaluator, pytest.raises(TypeError, match=f"{named} cannot be pickled: .*PTXGYM_SECRET"):
        pickle.dumps(evaluator)


@pytest.mark.parametrize("dumps", [pickle.dumps, cloudpickle.dumps])
def test_an_environment_pickles_with_its_episode(
    dumps: Callable[[object], bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PTXGYM_SECRET", SECRET)
    env = gym.make("PTX-Gemm-H100", device="emulator")
    fresh = pickle.loads(dumps(env))
    assert fresh.unwrapped.config == env.unwrapped.config  # type: ignore[attr-defined]
    env.reset(seed=1)
    env.step("")  # rejected before anything is compiled
    pickled = dumps(env)
    assert SECRET.encode() not in pickled
    again = pickle.loads(pickled)
    observed, *_, info = again.step("")
    assert info["turn"] == 2 and observed["turns_left"] == again.unwrapped.config.turns - 2
    branch = copy.deepcopy(env)
    branch.step("")
    assert len(env.unwrapped.episode.turns) == 1  # type: ignore[attr-defined]
    assert env.unwrapped.episode.turns[0].verdict == again.unwrapped.episode.turns[0].verdict  # type: ignore[attr-defined]


def test_shared_evaluator_lives_as_long_as_someone_holds_it() -> None:
    first = Evaluator.shared()
    assert Evaluator.shared() is first
    watch = weakref.ref(first)
    first.close()
    second = Evaluator.shared()
    assert second is not first
    del first, second
    gc.collect()
    assert watch() is None


def test_forked_child_judges_on_its_own_even_while_a_parent_thread_holds_the_lock() -> None:
    device = ScriptedDevice(family="fma")
    with Evaluator(device, secret=SECRET) as evaluator:
        parent = evaluator.evaluate(TEXT, "gemm")
        with evaluator._lock:
            child = os.fork()
            if child == 0:
                status = 1
                try:
                    verdict = evaluator.evaluate(TEXT + "\n", "gemm")
                    status = 0 if verdict.score == parent.score else 2
                finally:
                    os._exit(status)
        assert os.waitpid(child, 0)[1] == 0


def test_no_more_evaluations_run_at_once_than_allowed() -> None:
    """Four texts, two at a time; a third finds no room before one of them ends."""
    inside, most, lock = 0, 0, threading.Lock()
    pair = threading.Barrier(2, timeout=60)

    def interfere(options: RunOptions, execution: Execution) -> Execution:
        nonlocal inside, most
        with lock:
            inside += 1
            most = max(most, inside)
        if options == RunOptions(warp_instruction_budget=options.warp_instruction_budget):
            pair.wait()  # both of a pair have come this far: two run beside one another
        with lock:
            inside -= 1
        return execution

    device = ScriptedDevice(family="fma", interfere=interfere)
    with Evaluator(device, secret=SECRET, builds=1, runs=2) as evaluator, ThreadPoolExecutor(4) as callers:
        texts = [f"{TEXT}\n// {number}\n" for number in range(4)]
        verdicts = list(callers.map(lambda text: evaluator.evaluate(text, "gemm", "h100"), texts))
    assert [verdict.status for verdict in verdicts] == [Status.OK] * 4
    assert most == 2


def test_limits_are_at_least_one_and_travel_with_a_pickle() -> None:
    with pytest.raises(UsageError, match="runs must be a whole number of at least 1, not 0"):
        Evaluator("emulator", runs=0)
    again = pickle.loads(pickle.dumps(Evaluator("emulator", builds=3, runs=2)))
    assert again._limits == (3, 2)


@pytest.mark.parametrize("extra", [0, 2])
def test_open_draws_alone_are_timed(monkeypatch: pytest.MonkeyPatch, extra: int) -> None:
    """Hidden draws that are made on the open shape are not."""
    monkeypatch.setattr(measured, "EXTRA_DRAWS", {"standard": extra})
    task = load_task("gemm")
    spec = task.workload("emulation")
    task = task.model_copy(update={"workloads": {**task.workloads, "hardware": spec}})
    with Evaluator(ScriptedDevice(), secret=SECRET) as evaluator:
        for epoch in range(30):
            drawn = conditions(task, "hardware", epoch, SECRET.encode())
            assert sum(case.axes == spec.axes for case in drawn.cases) == 3
            timed = evaluator._timing_draws(task, drawn)
            assert [case.draw for case in timed] == ["normal", "shifted"] * (1 + extra)
            assert all(case.axes == spec.axes for case in timed)
