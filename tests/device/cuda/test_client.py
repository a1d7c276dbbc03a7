"""The judge process and its client, with a fake GPU in a real process: deaths, bad requests, forks, what is left."""

from __future__ import annotations

import os
import resource
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import pytest

from ptxgym.device.cuda.channel import Channel, Kind
from ptxgym.device.cuda.client import CudaJudge
from ptxgym.device.cuda.model import Announced, Outcome, Request, Witness
from ptxgym.device.cuda.role import SWITCH_S, Role, memory_short
from ptxgym.errors import InfrastructureError, UsageError, WorkerDied
from ptxgym.verdict import Status
from tests.device.cuda import fakes

BENCH = "tests.device.cuda.fakes:ProcessBench"
PATIENCE_S = 60.0


@pytest.fixture
def room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder through which a test tells the judge process what to do."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    return tmp_path


@pytest.fixture
def judge(room: Path) -> Iterator[CudaJudge]:
    client = CudaJudge(fakes.GPU, bench=BENCH)
    yield client
    client.close()


def ask(judge: CudaJudge, request: Request | None = None, witness: Future[Witness] | None = None) -> Outcome:
    with judge.expected(fakes.announced()) as measure:
        return measure(request or fakes.request(), witness or fakes.witness())


def wait_for(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline, "it did not happen"
        time.sleep(0.01)


def gone(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return True
    return state in "ZX"


def test_nothing_starts_before_the_first_request_and_one_process_serves_all(judge: CudaJudge) -> None:
    assert judge.pid is None
    outcomes = [ask(judge) for _ in range(2)]
    assert {outcome.libraries["pid"] for outcome in outcomes} == {str(judge.pid)}
    assert outcomes[0].result.status is Status.OK and outcomes[0].timing is not None
    assert outcomes[0].libraries["switch_s"] == str(SWITCH_S)


def test_threads_are_served_beside_each_other(judge: CudaJudge) -> None:
    late: Future[Witness] = Future()
    with ThreadPoolExecutor(4) as pool:
        slow = pool.submit(ask, judge, None, late)
        others = [pool.submit(ask, judge) for _ in range(3)]
        assert all(other.result(PATIENCE_S).result.status is Status.OK for other in others)
        assert not slow.done()
        late.set_result(fakes.witness().result())
        assert slow.result(PATIENCE_S).result.status is Status.OK


@pytest.mark.parametrize("interrupted", [False, True])
def test_emulator_that_breaks_keeps_nobody_waiting(judge: CudaJudge, interrupted: bool) -> None:
    broken: Future[Witness] = Future()
    with ThreadPoolExecutor(1) as pool:
        answer = pool.submit(ask, judge, None, broken)
        if interrupted:
            broken.cancel()
        else:
            broken.set_exception(KeyError("tcgen05.mma"))
        outcome = answer.result(PATIENCE_S)
    assert outcome.result.status is Status.OK and outcome.timing is not None  # Nsight Compute counts without it
    said = "CancelledError" if interrupted else "KeyError: 'tcgen05.mma'"
    assert any(said in note for note in outcome.notes)


def test_expectations_are_taken_back(judge: CudaJudge) -> None:
    for _ in range(3):
        with judge.expected(fakes.announced("rl")):
            pass
    assert int(ask(judge).libraries["expected"]) <= 1


def test_expectations_are_counted_in_their_order() -> None:
    """One that is over at once is not taken back before it is counted, which would leave it counted for good."""
    ours, theirs = socket.socketpair()
    seen: list[int] = []
    readied = threading.Semaphore(0)

    class Counting:
        def expect(self, announced: Announced, more: int) -> None:
            seen.append(more)

        def make_ready(self, announced: Announced) -> None:
            readied.release()
            raise InfrastructureError("no package")

    with ours, theirs:
        channel = Channel(ours)
        serving = threading.Thread(target=Role(Channel(theirs), Counting()).serve)  # type: ignore[arg-type]
        serving.start()
        for _ in range(50):
            channel.send(Kind.EXPECT, 0, fakes.announced("rl"))
            channel.send(Kind.FORGET, 0, fakes.announced("rl"))
        channel.send(Kind.CLOSE)
        serving.join(60)
    assert seen == [1, -1] * 50
    assert all(readied.acquire(timeout=60) for _ in range(50))


def test_bad_requests_are_answered_and_the_next_is_served(judge: CudaJudge, room: Path) -> None:
    pid = ask(judge).libraries["pid"]
    with pytest.raises(UsageError, match="request was expected, not str"):
        ask(judge, "no request")  # type: ignore[arg-type]
    (room / "behaviour").write_text("infrastructure")
    with pytest.raises(InfrastructureError, match="no room left"):
        ask(judge)
    (room / "behaviour").write_text("bug")
    with pytest.raises(InfrastructureError, match=r"(?s)judge process failed.*ZeroDivisionError.*a bug"):
        ask(judge)
    (room / "behaviour").unlink()
    assert ask(judge).libraries["pid"] == pid


@pytest.mark.parametrize(
    ("behaviour", "said"),
    [
        ("memory", r"^the GPU's memory is short: .*512 bytes; end what else"),
        ("region", "refuses a memory region: <CUresult.CUDA_ERROR_OUT_OF_MEMORY: 2>"),
    ],
)
def test_process_that_finds_no_memory_ends_and_the_next_begins_with_none_taken(
    judge: CudaJudge, room: Path, behaviour: str, said: str
) -> None:
    first = ask(judge).libraries["pid"]
    (room / "behaviour").write_text(behaviour)
    with pytest.raises(InfrastructureError, match=said):
        ask(judge)
    wait_for(lambda: gone(int(first)))
    (room / "behaviour").unlink()
    assert ask(judge).libraries["pid"] != first


def test_process_that_finds_no_memory_goes_on_once_for_those_beside_it(judge: CudaJudge, room: Path) -> None:
    first = ask(judge).libraries["pid"]
    (room / "behaviour").write_text("sleep")
    with ThreadPoolExecutor(1) as pool:
        beside = pool.submit(ask, judge)
        wait_for((room / "sleeping").exists)
        (room / "behaviour").write_text("memory")
        with pytest.raises(InfrastructureError, match="memory is short"):
            ask(judge)
        (room / "behaviour").unlink()
        assert ask(judge).libraries["pid"] == first
        (room / "behaviour").write_text("memory")
        with pytest.raises(InfrastructureError, match="memory is short"):
            ask(judge)
        with pytest.raises(WorkerDied):
            beside.result(PATIENCE_S)
    (room / "behaviour").unlink()
    assert ask(judge).libraries["pid"] != first


@pytest.mark.parametrize(
    ("error", "short"),
    [
        (fakes.OutOfMemoryError("Out of memory allocating 512 bytes"), True),
        (InfrastructureError("the GPU's memory is short, though the submission asks for 0.1 GiB"), True),
        (InfrastructureError("NVIDIA H200 is not well: only 300 MiB of its memory are free"), True),
        (InfrastructureError("NVIDIA H200 is not well: its memory had an uncorrectable error"), False),
        (InfrastructureError("no room left"), False),
        (WorkerDied("the executor has gone: exit status 1; it said: the GPU's memory is short"), False),
        (WorkerDied("the executor ended without an answer: CUDA_ERROR_OUT_OF_MEMORY"), False),
    ],
)
def test_what_says_that_memory_is_short(error: Exception, short: bool) -> None:
    assert memory_short(error) is short


def test_what_cannot_be_unpickled_spoils_only_itself(judge: CudaJudge) -> None:
    ask(judge)
    process = judge._role
    assert process is not None
    answer: Future[Outcome] = Future()
    process._waiting[99] = answer
    process._channel.send(Kind.MEASURE, 99, _Unreadable())
    with pytest.raises(InfrastructureError, match="will not be read"):
        answer.result(PATIENCE_S)
    assert ask(judge).libraries["pid"] == str(judge.pid)


class _Unreadable:
    def __reduce__(self) -> object:
        return (_refuse, ())


def _refuse() -> None:
    raise ValueError("will not be read")


def test_death_in_the_middle_fails_what_is_in_flight_and_the_next_starts_another(judge: CudaJudge, room: Path) -> None:
    first = ask(judge).libraries["pid"]
    (room / "behaviour").write_text("die")
    with pytest.raises(WorkerDied, match=r"killed by SIGABRT"):
        ask(judge)
    second = ask(judge).libraries["pid"]
    assert second != first


def test_kill_from_outside_fails_all_that_wait(judge: CudaJudge, room: Path) -> None:
    ask(judge)
    (room / "behaviour").write_text("sleep")
    with ThreadPoolExecutor(3) as pool:
        waiting = [pool.submit(ask, judge) for _ in range(3)]
        wait_for(lambda: (room / "sleeping").exists() and (room / "sleeping").read_text() == "zzz")
        assert judge.pid is not None
        os.kill(judge.pid, signal.SIGKILL)
        for one in waiting:
            with pytest.raises(WorkerDied, match="SIGKILL"):
                one.result(PATIENCE_S)
    (room / "behaviour").unlink()
    assert ask(judge).result.status is Status.OK


def test_lost_context_ends_the_process(judge: CudaJudge, room: Path) -> None:
    first = ask(judge).libraries["pid"]
    (room / "behaviour").write_text("context")
    with pytest.raises(InfrastructureError, match="illegal memory access"):
        ask(judge)
    wait_for(lambda: gone(int(first)))
    assert ask(judge).libraries["pid"] != first


def test_process_that_cannot_start_says_why(room: Path) -> None:
    judge = CudaJudge(fakes.GPU, bench="no.such.module:Bench")
    with pytest.raises(WorkerDied, match=r"(?s)exit status 1.*No module named 'no'"):
        ask(judge)
    judge.close()


def test_closing_ends_the_process_and_its_children_and_what_waits(judge: CudaJudge, room: Path) -> None:
    (room / "behaviour").write_text("child sleep")
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(ask, judge)
        wait_for((room / "sleeping").exists)
        pid, child = judge.pid, int((room / "child").read_text())
        assert pid is not None
        judge.close()
        with pytest.raises(InfrastructureError):
            waiting.result(PATIENCE_S)
    wait_for(lambda: gone(pid) and gone(child))
    judge.close()
    with pytest.raises(UsageError, match="closed"):
        ask(judge)


def test_judge_that_is_forgotten_ends(room: Path) -> None:
    judge = CudaJudge(fakes.GPU, bench=BENCH)
    ask(judge)
    pid = judge.pid
    assert pid is not None
    del judge
    wait_for(lambda: gone(pid))


PARENT = """
import os, sys, time
from tests.device.cuda import fakes
from tests.device.cuda.test_client import BENCH, ask
from ptxgym.device.cuda.client import CudaJudge
judge = CudaJudge(fakes.GPU, bench=BENCH)
print(judge.pid, flush=True)
threading = __import__("threading")
threading.Thread(target=ask, args=(judge,), daemon=True).start()
while judge.pid is None:
    time.sleep(0.01)
print(judge.pid, flush=True)
time.sleep(600)
"""


def test_process_ends_with_a_parent_that_is_killed_even_in_the_middle_of_a_request(room: Path) -> None:
    (room / "behaviour").write_text("child sleep")
    with subprocess.Popen([sys.executable, "-c", PARENT], stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        assert parent.stdout.readline() == "None\n"
        pid = int(parent.stdout.readline())
        wait_for((room / "sleeping").exists)
        child = int((room / "child").read_text())
        parent.kill()
    wait_for(lambda: gone(pid) and gone(child))


def test_forked_child_leaves_the_parents_process_alone(judge: CudaJudge) -> None:
    ask(judge)
    child = os.fork()
    if child == 0:
        status = 1
        try:
            own = CudaJudge(fakes.GPU, bench=BENCH)
            outcome = ask(own)
            status = 0 if outcome.libraries["pid"] != str(judge.pid) else 2
            own.close()
            assert judge._role is not None
            judge._role._cleanup()
        finally:
            os._exit(status)
    assert os.waitpid(child, 0)[1] == 0
    assert ask(judge).libraries["pid"] == str(judge.pid)


def test_process_may_open_as_many_files_as_the_machine_allows(judge: CudaJudge) -> None:
    pid = int(ask(judge).libraries["pid"])
    soft, hard = resource.prlimit(pid, resource.RLIMIT_NOFILE)
    assert soft == hard


def test_secret_and_keys_do_not_reach_the_process(judge: CudaJudge, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOME_API_KEY", "a key")
    ask(judge)
    inside = Path(f"/proc/{judge.pid}/environ").read_bytes()
    assert b"PTXGYM_SECRET" not in inside and b"SOME_API_KEY" not in inside
    assert b"CUDA_VISIBLE_DEVICES=GPU-fake" in inside


def test_no_thread_is_left_after_closing(room: Path) -> None:
    before = threading.active_count()
    judge = CudaJudge(fakes.GPU, bench=BENCH)
    ask(judge)
    judge.close()
    wait_for(lambda: threading.active_count() <= before)
