import asyncio
import os
import pickle
import re
import signal
import threading
import time
from concurrent.futures import CancelledError, ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace

import pytest

import ptxgym
from ptxgym.adapters.rollout import Rollout
from ptxgym.cluster import EvaluationService, Fleet, Request, asking
from ptxgym.cluster import service as service_module
from ptxgym.cluster.backend import LocalBackend, boards
from ptxgym.cluster.fleet import most_of_each
from ptxgym.cluster.protocol import Kind
from ptxgym.cluster.service import START_LIMIT_S
from ptxgym.cluster.station import Description
from ptxgym.device.cuda.gpu import Gpu
from ptxgym.episode import Episode
from ptxgym.errors import (
    DeadlineExceeded,
    InfrastructureError,
    Overloaded,
    ResourcesMissing,
    UnknownNameError,
    UsageError,
)
from ptxgym.task import load_task
from ptxgym.verdict import Status
from tests.cluster.conftest import steps


def request(text: str, **more) -> Request:
    return Request(text=text, task="gemm", **more)


def pids(log: Path) -> set[int]:
    return {int(line.split()[1]) for line in (log / "steps").read_text().splitlines()}


def test_equal_texts_are_evaluated_once_whoever_asks(make, log):
    service = make(fleet=Fleet(cpu=2))
    with ThreadPoolExecutor(16) as threads:
        texts = [f"// ok {number % 5}" for number in range(100)]
        verdicts = list(threads.map(lambda text: service.evaluate(text, "gemm"), texts))
    assert [verdict.message for verdict in verdicts] == texts
    assert sorted(steps(log)) == sorted((kind, f"// ok {n}") for n in range(5) for kind in ("build", "emulate"))
    counters = service.status().counters
    assert (counters["asked"], counters["evaluated"]) == (100, 5)
    assert counters["joined"] + counters["remembered"] == 95


def test_what_differs_in_task_workload_or_generation_is_other_work(make):
    service = make()
    same = {"text": "// ok", "task": "gemm"}
    keys = [
        service.submit(Request(**same)).key,
        service.submit(Request(**same, workload="schedules")).key,
        service.submit(Request(**same, arch="b200")).key,
        service.submit(Request(**same, variant="nn")).key,
        service.submit(Request(text="// ok", task="attn_fwd")).key,
        service.submit(Request(text="// ok ", task="gemm")).key,
    ]
    assert len(set(keys)) == len(keys)
    assert service.submit(Request(**same, workload="emulation", started=True, deadline_s=50)).key == keys[0]
    assert make(epoch=1).submit(Request(**same)).key != keys[0]
    assert make(secret="t").submit(Request(**same)).key != keys[0]


def test_a_worker_that_dies_costs_only_what_it_had(make, log):
    service = make(fleet=Fleet(cpu=2))
    dying = service.submit(request("// die once x"))
    others = [service.submit(request(f"// ok {number}")) for number in range(6)]
    assert dying.result(60).status is Status.OK
    assert all(other.result(60).status is Status.OK for other in others)
    done = steps(log)
    assert done.count(("emulate", "// die once x")) == 2 and done.count(("build", "// die once x")) == 1
    assert len(done) == 15
    assert service.status().counters["deaths"] == 1


def test_the_machine_s_failures_are_retried_and_told_in_the_end(make):
    service = make(retries=1)
    assert service.evaluate("// infra once x", "gemm").status is Status.OK
    with pytest.raises(InfrastructureError, match=r"failed 2 times .*: the disk is full"):
        service.evaluate("// infra", "gemm")


def test_what_is_no_failure_of_the_machine_is_not_retried(make, log):
    service = make()
    with pytest.raises(UsageError, match="other content"):
        service.evaluate("// usage", "gemm")
    with pytest.raises(ZeroDivisionError) as caught:
        service.evaluate("// bug", "gemm")
    assert any("stations.py" in note for note in caught.value.__notes__)  # where it happened, in the worker
    assert len(steps(log)) == 4


@pytest.mark.parametrize(
    ("text", "said"), [("// odd", r"Odd\('an operation of none'\) cannot be sent: "), ("// local", "cannot be sent: ")]
)
def test_what_cannot_be_sent_is_told_instead_of_it(make, log, text, said):
    service = make()
    with pytest.raises(RuntimeError, match=said) as told:
        service.evaluate(text, "gemm")
    assert text != "// odd" or any("stations.py" in note for note in told.value.__notes__)  # where it was raised
    assert service.evaluate("// ok", "gemm").status is Status.OK and len(pids(log)) == 1


def test_a_worker_whose_answer_cannot_be_read_is_replaced(make, log):
    service = make(retries=1)
    with pytest.raises(InfrastructureError, match=r"failed 2 times .* cannot be read: ZeroDivisionError: made"):
        service.evaluate("// foreign", "gemm")
    assert service.evaluate("// ok", "gemm").status is Status.OK
    assert service.status().counters["deaths"] == 2 and len(pids(log)) >= 2
    eventually(lambda: sum(alive(pid) for pid in pids(log)) == 1)


def test_a_wedged_evaluation_ends_at_its_deadline_and_others_do_not_wait_for_it(make, log):
    service = make()
    service.evaluate("// ok", "gemm")
    before = pids(log)
    wedged = service.submit(request("// sleep 600", deadline_s=1))
    other = service.submit(request("// ok 2"))
    with pytest.raises(DeadlineExceeded, match="emulate on cpu 0"):
        wedged.result(60)
    assert other.result(60).status is Status.OK
    assert not before & (pids(log) - before) and not any(alive(pid) for pid in before)


def alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def test_a_ticket_may_be_waited_for_in_turns_and_cancelled(make):
    service = make()
    ticket = service.submit(request("// sleep 600"))
    with pytest.raises(DeadlineExceeded, match="still being worked on"):
        ticket.result(0.1)
    ticket.cancel()
    with pytest.raises(CancelledError):
        ticket.result(60)
    assert service.evaluate("// ok", "gemm").status is Status.OK


def test_a_full_queue_pushes_back(make):
    service = make(capacity=1)
    running = service.submit(request("// sleep 1"))
    with pytest.raises(Overloaded):
        service.submit(request("// ok"), wait_s=0)
    assert service.submit(request("// sleep 1"), wait_s=0).key == running.key
    later = service.submit(request("// ok"))  # returns once there is room
    assert running.done() and later.result(60).status is Status.OK


def test_async_callers_wait_without_threads_and_their_cancellation_cancels(make):
    service = make()

    async def main():
        slow = asyncio.create_task(service.aevaluate("// sleep 600", "gemm"))
        verdicts = await asyncio.gather(service.aevaluate("// a", "gemm", workload="schedules"))
        slow.cancel()
        with pytest.raises(asyncio.CancelledError):
            await slow
        return verdicts

    service.evaluate("// a", "gemm", workload="schedules")
    assert asyncio.run(main())[0].message == "// a"
    assert service.evaluate("// ok", "gemm").status is Status.OK
    assert service.status().counters["cancelled"] == 1


def by_submission(service):
    return Episode("PTX-Gemm-H100", service).asubmit("// sleep 600")


def by_answer(service):
    return Episode("PTX-Gemm-H100", service).aanswer("```cuda\n// sleep 600\n```")


def by_rollout(service):
    return Rollout.of_row({"env": "PTX-Gemm-H100"}, service).aanswer("```cuda\n// sleep 600\n```")


def by_first_kernel(service):
    return Rollout.aof_row({"env": "PTX-Gemm-H100", "options": {"init": "// sleep 600"}}, service)


@pytest.mark.parametrize("ask", [by_submission, by_answer, by_rollout, by_first_kernel])
def test_whoever_is_cancelled_lets_go_of_what_was_asked_for_it(make, log, ask):
    """The service has one worker, which would be busy for ten minutes."""
    service = make()

    async def main():
        waiting = asyncio.create_task(ask(service))
        while not any(kind == "emulate" for kind, _ in steps(log)):
            await asyncio.sleep(0.01)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        return await Episode("PTX-Gemm-H100", service).asubmit("// ok")

    assert asyncio.run(main()).verdict.status is Status.OK
    assert service.status().counters["cancelled"] == 1


def test_who_leaves_before_there_is_room_leaves_nothing_behind(make):
    service = make(capacity=1)
    service.submit(request("// sleep 2"))

    async def main():
        waiting = asyncio.create_task(service.aevaluate("// sleep 600", "gemm"))
        while not service.status().lobby:
            await asyncio.sleep(0.01)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting

    asyncio.run(main())
    assert service.evaluate("// ok", "gemm").status is Status.OK
    assert service.status().counters["cancelled"] == 1


def test_a_restarted_driver_finds_finished_work(make, log, tmp_path):
    first = make(secret=None, results=tmp_path / "results")
    ticket = first.submit(request("// ok"))
    verdict = ticket.result(60)
    first.close()
    second = make(secret=None, results=tmp_path / "results")
    assert second.finished(ticket.key) == verdict
    assert second.evaluate("// ok", "gemm") == verdict
    assert len(steps(log)) == 2
    assert (tmp_path / "results" / "secret").stat().st_mode & 0o077 == 0
    other = make(secret=None, results=tmp_path / "other")
    assert other.finished(ticket.key) is None
    assert other.submit(request("// ok")).key != ticket.key  # another secret, other conditions


def test_a_result_that_was_cut_off_is_evaluated_again(make, log, tmp_path):
    first = make(results=tmp_path)
    ticket = first.submit(request("// ok"))
    ticket.result(60)
    first.close()
    (file,) = tmp_path.glob("verdicts/*/*.json")
    file.write_text(file.read_text()[:100])
    assert make(results=tmp_path).evaluate("// ok", "gemm").status is Status.OK
    assert len(steps(log)) == 4


def test_workers_with_other_versions_are_refused(make, monkeypatch):
    service = make(retries=0)
    service.evaluate("// ok", "gemm")
    monkeypatch.setenv("PTXGYM_TEST_VERSION", "2")
    with pytest.raises(InfrastructureError, match="failed once"):
        service.evaluate("// die", "gemm")
    refused = f"cpu 0: here has ptxgym 2 instead of {ptxgym.__version__}; .*install the same on all nodes"
    eventually(lambda: re.search(refused, service.status().missing))
    began = time.monotonic()
    with pytest.raises(InfrastructureError, match=f"no worker came up though each was tried several times: {refused}"):
        make().evaluate("// ok", "gemm")  # its first worker
    assert time.monotonic() - began < START_LIMIT_S / 2  # waiting longer would not help


def test_a_fleet_measures_a_generation_on_one_kind_of_gpu():
    with pytest.raises(
        UsageError, match="H100 and H200 both measure kernels for h100, and their speed-ups do not compare"
    ):
        Fleet(cpu=1, gpus={"H100": 1, "H200": 1})
    assert most_of_each({"H100": 1, "H200": 3, "B200": 1}) == {"H200": 3, "B200": 1}
    fleet = Fleet(cpu=1, build=2, gpus={"H200": 1})
    assert fleet.grown(Fleet(cpu=2, build=1, gpus={"H200": 3, "B200": 1})) == Fleet(cpu=2, build=2, gpus={"H200": 3})


def test_closing_tells_who_waits_and_ends_all_processes(make, log):
    service = make()
    service.evaluate("// ok", "gemm")
    ticket = service.submit(request("// sleep 600"))
    service.close()
    with pytest.raises(InfrastructureError, match="was closed"):
        ticket.result(10)
    with pytest.raises(UsageError, match="closed"):
        service.evaluate("// ok", "gemm")
    eventually(lambda: not any(alive(pid) for pid in pids(log)))
    service.close()


def eventually(condition) -> None:
    for _ in range(1800):  # a worker may take long to start on a busy machine
        if condition():
            return
        time.sleep(0.05)
    raise AssertionError("it did not happen")


def test_a_worker_ends_with_who_started_it(log):
    if (child := os.fork()) == 0:
        try:
            from tests.cluster.stations import MAKER

            service = EvaluationService(fleet=Fleet(cpu=1), secret="s", maker=MAKER)
            service.evaluate("// ok", "gemm")
        finally:
            os.kill(os.getpid(), signal.SIGKILL)
    os.waitpid(child, 0)
    (worker,) = pids(log)
    eventually(lambda: not alive(worker))


def test_a_fork_is_told_that_the_service_is_its_parent_s(make):
    service = make()
    service.evaluate("// ok", "gemm")
    read, write = os.pipe()
    if (child := os.fork()) == 0:
        try:
            service.evaluate("// ok", "gemm")
        except UsageError as error:
            os.write(write, str(error).encode())
        finally:
            os._exit(0)
    os.waitpid(child, 0)
    os.close(write)
    assert b"a fork of it: make a service here" in os.read(read, 1000)
    assert service.evaluate("// ok 2", "gemm").status is Status.OK  # the parent's goes on


def test_episodes_take_a_service_for_an_evaluator(make):
    service = make()
    episode = Episode("PTX-Gemm-H100", service, turns=2)
    assert "emulator takes no times" in episode.prompt()
    assert episode.submit("// ok").reward > 0 and episode.answer("no code").verdict.code == "submission.no_code"


def test_texts_that_cannot_travel_are_rejected_as_anywhere(make):
    verdict = make().evaluate("\ud800", "gemm")
    assert verdict.status is Status.REJECTED and verdict.provenance.conditions


@pytest.mark.parametrize(
    ("error", "asked"),
    [
        (UnknownNameError, {"task": "gem"}),
        (UnknownNameError, {"task": "gemm", "variant": "upside-down"}),
        (UnknownNameError, {"task": "gemm", "arch": "h10"}),
        (UnknownNameError, {"task": "gemm", "workload": "emu"}),
        (UsageError, {"task": "gemm", "workload": "hardware"}),
    ],
)
def test_requests_that_cannot_be_served_are_refused_at_once(make, error, asked):
    with pytest.raises(error):
        make().submit(Request(text="// ok", **asked))


def test_a_task_that_no_content_folder_holds_is_refused(make):
    task = load_task("gemm").model_copy(update={"summary": "another"})
    with pytest.raises(UsageError, match="not what the content folders say"):
        make().evaluate("// ok", task)
    assert make().evaluate("// ok", load_task("gemm")).status is Status.OK


def test_settings_are_checked(make, tmp_path):
    for settings, said in [
        ({"backend": "slurm"}, "'local' or 'ray'"),
        ({"tier": "rl"}, "emulated"),
        ({"capacity": 0}, "capacity"),
        ({"retries": -1}, "retries"),
        ({"deadline_s": 0}, "deadline_s"),
        ({"fleet": None, "device": "tpu"}, "device"),
    ]:
        with pytest.raises(UsageError, match=said):
            make(**settings)
    for numbers in ({}, {"build": 2}, {"cpu": -1}, {"cpu": 1, "gpus": {"H2000": 1}}, {"cpu": 1, "gpu_slots": 0}):
        with pytest.raises(UsageError):
            Fleet(**numbers)


def test_a_gpu_that_is_not_there_is_an_error_that_names_what_is(make):
    with pytest.raises(ResourcesMissing, match=r"asked for 1 × B200, but there is no NVIDIA GPU"):
        make(fleet=Fleet(cpu=1, gpus={"B200": 1}))
    with pytest.raises(ResourcesMissing, match="no GPU can be used here"):
        make(fleet=None, device="cuda")


def test_a_service_stays_in_its_process(make):
    with pytest.raises(TypeError, match="ptxgym serve"):
        pickle.dumps(make())


def test_the_deadline_and_the_start_of_an_episode_come_from_the_block(make):
    service = make()
    service.evaluate("// ok", "gemm")
    with asking(deadline_s=0.5), pytest.raises(DeadlineExceeded):
        service.evaluate("// sleep 600", "gemm")
    assert service.evaluate("// sleep 1", "gemm").status is Status.OK


class LateEngine:
    """Whose worker comes up after so many seconds of a clock that only it moves, if that is waited for."""

    def __init__(self, after_s, monkeypatch):
        self.now, self._up_at, self.asked = 100.0, 100.0 + after_s, []
        monkeypatch.setattr(service_module, "time", SimpleNamespace(monotonic=lambda: self.now))

    def versions(self, limit_s):
        if self.now + limit_s < self._up_at:
            self.now += limit_s
            raise InfrastructureError(f"no worker came up within {limit_s:g} s")
        self.now = max(self.now, self._up_at)
        return {}

    def measuring(self, arch, limit_s):
        self.versions(limit_s)
        return Description("here", {}, Gpu("GPU-1", 0, "NVIDIA H200", (9, 0), 1 << 37, "580"))

    def withdraw(self, ticket):
        pass

    def ask(self, ticket, work, deadline_s, wait_s):
        self.asked.append((self.now + deadline_s, wait_s))


@pytest.mark.parametrize("fleet", [Fleet(cpu=1), Fleet(cpu=1, gpus={"H200": 1})], ids=["emulated", "measured"])
@pytest.mark.parametrize("after_s", [0.0, 5.0])
def test_a_deadline_is_counted_from_the_call_however_long_workers_took_to_come_up(make, monkeypatch, fleet, after_s):
    monkeypatch.setattr("ptxgym.cluster.backend.check_local", lambda fleet: None)
    service = make(fleet=fleet)
    service._engine = engine = LateEngine(after_s, monkeypatch)
    service.submit(request("// ok", deadline_s=9.0), wait_s=3.0)
    assert engine.asked == [(109.0, 3.0)] and engine.now == 100.0 + after_s


@pytest.mark.parametrize(("deadline_s", "error"), [(9.0, DeadlineExceeded), (1000.0, InfrastructureError)])
def test_whose_deadline_passes_before_a_worker_is_there_is_told_of_that(make, monkeypatch, deadline_s, error):
    service = make()
    service._engine = engine = LateEngine(2000.0, monkeypatch)
    said = f"no worker came up within {min(deadline_s, START_LIMIT_S):g} s"
    with pytest.raises(InfrastructureError, match=said) as told:
        service.submit(request("// ok", deadline_s=deadline_s))
    assert type(told.value) is error and not engine.asked and engine.now <= 100.0 + deadline_s


def test_a_text_that_cannot_travel_is_waited_for_no_longer_than_any(make, monkeypatch):
    monkeypatch.setattr("ptxgym.cluster.backend.check_local", lambda fleet: None)
    service = make(fleet=Fleet(cpu=1, gpus={"H200": 1}))
    service._engine = engine = LateEngine(2000.0, monkeypatch)
    with asking(deadline_s=9.0), pytest.raises(DeadlineExceeded):
        service.evaluate("\ud800", "gemm")
    assert engine.now == 109.0


def test_others_can_read_the_status(make, monkeypatch, tmp_path):
    service = make(fleet=Fleet(cpu=2))
    service.evaluate("// ok", "gemm")
    here = os.getpid()  # other services of this user may run

    def shown():
        return [(age_s, one) for pid, age_s, one in boards() if pid == here and one.counters.get("evaluated")]

    eventually(shown)
    age_s, status = shown()[0]
    assert age_s < 60 and status.wanted[Kind.BUILD] == 2
    service.close()
    assert not [board for board in boards() if board[0] == here]


def test_the_service_of_the_process_is_shared_and_ends_with_its_last_user(make):
    one = EvaluationService.shared("emulator")
    assert EvaluationService.shared("emulator") is one and EvaluationService.shared("auto") is not one
    one.close()
    assert EvaluationService.shared("emulator") is not one


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_shared_service_whose_scheduler_has_failed_is_followed_by_another(monkeypatch):
    def nobody(*_):
        raise InfrastructureError("nobody is to be had")

    monkeypatch.setattr(LocalBackend, "hire", nobody)
    one = EvaluationService.shared("emulator").start()
    assert EvaluationService.shared("emulator") is one and one.status().lobby == 0
    one._engine._inbox.put(lambda: 1 / 0)  # a bug
    with pytest.raises(RuntimeError, match="the scheduler has failed"):  # told, not truncated: no machine's failure
        for _ in range(100):
            one.status()
    other = EvaluationService.shared("emulator").start()
    assert other is not one and other.status().lobby == 0
    one.close()
    other.close()


def test_callers_on_many_threads_are_each_answered(make):
    service = make(fleet=Fleet(cpu=2))
    failures: list[BaseException] = []

    def ask(number: int) -> None:
        try:
            assert service.evaluate(f"// {number % 7}", "gemm").message == f"// {number % 7}"
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=ask, args=(number,)) for number in range(200)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures
