"""The executor as a process: wrappers, start, end, and nothing left behind."""

from __future__ import annotations

import gc
import os
import socket
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from ptxgym.device.cuda import job, wire
from ptxgym.device.cuda.executor import MOST_SUBMISSIONS, Call, Executor, first_byte
from ptxgym.errors import InfrastructureError, UsageError, WorkerDied
from ptxgym.verdict import Failure

from .harness import GPU, MIB, Fake, launch, literal, plan, pointer

COPY = plan(
    [("A", "input", 64), ("C", "output", 64)], launch("copy", pointer("C"), pointer("A"), literal(64, 8))
)  # fmt: skip


class Exported:
    """A file that stands for exported device memory."""

    def __init__(self, size_bytes: int, serial: int) -> None:
        self.size_bytes, self.serial, self.mapped_bytes = size_bytes, serial, 2 * MIB
        self.fd = os.memfd_create("exported", os.MFD_CLOEXEC)
        os.ftruncate(self.fd, self.mapped_bytes)


def children() -> set[int]:
    own = f"/proc/self/task/{os.getpid()}/children"
    return {int(pid) for pid in Path(own).read_text().split()}


def descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def test_regions_are_imported_once_and_mapped_for_the_copies_alone(fake: Fake) -> None:
    given, taken, back = Exported(64, 1), Exported(64, 2), Exported(64, 3)
    os.pwrite(given.fd, bytes(range(64)), 0)
    with fake.loaded(COPY) as executor:
        for _ in range(3):
            assert isinstance(executor.call(0, {"A": given}, {"C": taken, "A": back}, timeout_s=20), Call)
        assert os.pread(taken.fd, 64, 0) == os.pread(back.fd, 64, 0) == bytes(range(64))
        assert len(fake.log("^import")) == 3
        executor.forget(given)
        assert len(fake.log("^release 0")) == 1
        assert isinstance(executor.call(0, {"A": given}, {"C": taken}, timeout_s=20), Call)
        assert len(fake.log("^import")) == 4
    mapped: set[str] = set()
    for words in map(str.split, fake.log("^map region|^unmap|^launch")):
        if words[0] == "map":
            mapped.add(words[2])
        elif words[0] == "unmap":
            mapped.discard(words[1])
        else:
            assert not mapped
    assert len(fake.log("^map region")) == 3 * 3 + 2
    for region in (given, taken, back):
        os.close(region.fd)


def test_places_are_the_buffers_themselves_at_fresh_addresses(fake: Fake) -> None:
    """Nothing is copied: a kernel reads what lies in the place of its input, and writes to that of its output."""
    given, taken, other = Exported(64, 1), Exported(64, 2), Exported(64, 3)
    at = first_byte(given)
    assert at == 2 * MIB - 512
    for place in (given, taken, other):
        os.pwrite(place.fd, bytes(range(64)), at)
    with fake.loaded(COPY) as executor:
        for place in (taken, other, taken):
            os.pwrite(place.fd, bytes(64), at)
            called = executor.call(0, {}, {}, timeout_s=20, places={"A": given, "C": place})
            assert isinstance(called, Call)
            assert os.pread(place.fd, 64, at) == bytes(range(64))
        assert len(fake.log("^import")) == 3 and fake.log("^create") == []
        visible = [int(line.split()[2]) for line in fake.log("^visible")]
        assert visible == [2 * MIB] * 6, "the two of the call, and no other"
        assert len({line.split()[2] for line in fake.log("^map region")}) > 4
        poisoned = executor.call(0, {}, {}, timeout_s=20, places={"A": given, "C": other}, poison={"C": np.uint8(7)})
        assert isinstance(poisoned, Call) and fake.log("^memset8 .* 7 64 ")
        mixed = np.zeros(64, np.uint8)
        assert isinstance(executor.call(0, {}, {"C": mixed}, timeout_s=20, places={"A": given}), Call)
        assert mixed.tolist() == list(range(64))
        with pytest.raises(UsageError, match="no memory for the inputs A"):
            executor.call(0, {}, {}, timeout_s=20, places={"C": taken})
        with pytest.raises(UsageError, match="memory for place C has 65 bytes; the plan wants 64"):
            executor.call(0, {}, {}, timeout_s=20, places={"A": given, "C": Exported(65, 4)})
        assert not executor.ended
    assert executor.ended


@pytest.mark.parametrize("place", [True, False])
def test_what_a_kernel_writes_beside_its_place_is_seen(fake: Fake, place: bool) -> None:
    region = Exported(64, 1)
    poke = plan([("C", "output", 64)], launch("poke", pointer("C"), literal(64, 8), literal(1, 4)))
    with fake.loaded(poke) as executor:
        failed = executor.call(0, {}, {}, timeout_s=20, places={"C": region} if place else {})
    assert isinstance(failed, Failure) and "C" in failed.message
    assert os.pread(region.fd, 448, first_byte(region) + 64) == (b"\x01" + b"\xa5" * 447 if place else bytes(448))


def test_a_place_that_does_not_fit_ends_the_executor(fake: Fake) -> None:
    wide = Exported(64, 1)
    wide.mapped_bytes = 4 * MIB
    with fake.loaded(COPY) as executor, pytest.raises(WorkerDied, match="a place that does not fit its buffer"):
        executor.call(0, {}, {}, timeout_s=20, places={"A": wide})


def test_arrays_of_growing_size_and_any_layout(fake: Fake) -> None:
    big = plan([("A", "input", 9000)], launch("copy", pointer("A"), pointer("A"), literal(9000, 8)))
    strided = np.arange(128, dtype=np.uint8).reshape(64, 2)[:, 1]
    out = np.zeros((64, 2), np.uint8)
    with fake.loaded(COPY, big) as executor:
        assert isinstance(executor.call(0, {"A": strided}, {"C": out[:, 0]}, timeout_s=20), Call)
        after = np.zeros(9000, np.uint8)
        ones = np.ones(9000, np.uint8)
        assert isinstance(executor.call(1, {"A": ones}, {"A": after}, timeout_s=20), Call)
    assert np.array_equal(out[:, 0], strided)
    assert not out[:, 1].any()
    assert after.all()


def test_shared_host_memory_cannot_be_made_smaller_by_the_other_side(fake: Fake) -> None:
    array = np.arange(64, dtype=np.uint8)
    with fake.loaded(COPY) as executor:
        assert isinstance(executor.call(0, {"A": array}, {"C": np.zeros(64, np.uint8)}, timeout_s=20), Call)
        files = list(executor._files.values())
        assert len(files) == 2
        for file in files:
            for size in (0, 1 << 20):
                with pytest.raises(PermissionError):
                    os.ftruncate(file.descriptor, size)


@pytest.mark.parametrize(
    ("answer", "body"),
    [(wire.Answer.CALLED, b"short"), (wire.Answer.FAILED, b"\xff\xff\xff\xff"), (wire.Answer.OVERRUN, b"\x63" * 13)],
)
def test_what_is_no_answer_to_a_call_is_the_machine_s(
    fake: Fake, monkeypatch: pytest.MonkeyPatch, answer: wire.Answer, body: bytes
) -> None:
    with fake.loaded(COPY) as executor:
        monkeypatch.setattr(executor, "_ask", lambda *arguments: (answer, wire.Reader(body)))
        monkeypatch.setattr(executor, "_region", lambda *arguments: 1)
        with pytest.raises(WorkerDied, match="sent what is no answer"):
            executor.call(0, {"A": fake_memory()}, {}, timeout_s=20)
        assert not executor.usable


def fake_memory() -> Exported:
    return Exported(64, 1)


def test_fifty_executors_leave_nothing_behind(fake: Fake) -> None:
    hang = plan([], launch("hang"))
    fake.loaded(COPY).close()
    processes, files = children(), descriptors()
    folders = set(Path(os.environ.get("TMPDIR", "/tmp")).glob("ptxgym-*"))
    for number in range(50):
        executor = fake.loaded(COPY, hang)
        array = np.zeros(64, np.uint8)
        assert isinstance(executor.call(0, {"A": array}, {"C": array}, timeout_s=20), Call)
        match number % 4:
            case 0:
                executor.close()
            case 1:
                executor.call(1, {}, {}, timeout_s=0.01)
            case 2:
                executor.kill()
            case _:
                fake.start().kill()
                executor.close()
                executor.close()
    assert children() == processes
    assert descriptors() == files
    assert set(Path(os.environ.get("TMPDIR", "/tmp")).glob("ptxgym-*")) <= folders


def test_a_process_takes_submissions_one_after_another_and_keeps_nothing(fake: Fake) -> None:
    region = Exported(64, 1)
    processes = children()
    executor = fake.loaded(COPY)
    files = []
    for number in range(1, 6):
        array, out = np.full(64, number, np.uint8), np.zeros(64, np.uint8)
        assert isinstance(executor.call(0, {"A": array}, {"C": out, "A": region}, timeout_s=20), Call)
        assert out.tolist() == [number] * 64
        before, executor = executor, executor.renewed()
        assert not before.usable and not before.renewable
        assert before.kill() == before.close() == "" and executor.usable, (
            "it has nothing to do with the process any more"
        )
        assert len(fake.log("^context GPU-fake")) == number + 1
        assert len(fake.log("^context ends")) == len(fake.log("^free addresses")) == number
        assert len(fake.log("^load module")) == len(fake.log("^unload")) > 0
        assert len(fake.log("^create|^import")) == len(fake.log("^release")) > 0
        files.append((descriptors(), len(list(Path(f"/proc/{executor._process._peer}/fd").iterdir()))))
        assert executor.load(fake.build(), [COPY]) is None
    assert len(children() - processes) == 1
    assert len(set(files)) == 1
    executor.close()
    os.close(region.fd)


def test_who_gave_the_process_away_asks_it_for_nothing(fake: Fake) -> None:
    before = fake.start()
    before.ready()
    executor = before.renewed()
    with pytest.raises(UsageError, match="has another submission"):
        before.load(fake.build(), [COPY])
    assert executor.load(fake.build(), [COPY]) is None
    executor.close()


def test_a_process_in_which_something_went_wrong_takes_no_other_submission(fake: Fake) -> None:
    array = np.zeros(64, np.uint8)
    spoilt = [
        fake.loaded(plan([], launch("fault", literal(700, 4)))),
        fake.loaded(plan([("C", "output", 64)], launch("poke", pointer("C"), literal(64, 8), literal(1, 4)))),
        fake.loaded(plan([], launch("hang"))),
    ]
    for executor in spoilt:
        assert executor.renewable
        assert not isinstance(executor.call(0, {}, {}, timeout_s=0.1), Call)
    spoilt += [fake.loaded(COPY, env={"FAKE_CUDA_PAGEABLE": "1"}), fake.start()]
    for executor in spoilt:
        assert not executor.renewable
        with pytest.raises(UsageError, match="start another one"):
            executor.renewed()
    executor = fake.loaded(COPY)
    assert isinstance(executor.call(0, {"A": array}, {}, timeout_s=20), Call)
    executor._submissions = MOST_SUBMISSIONS - 1
    executor = executor.renewed()
    executor.spoil()
    assert not executor.renewable
    executor._flawless, executor._submissions = True, MOST_SUBMISSIONS
    assert not executor.renewable


@pytest.mark.parametrize(
    ("script", "said"),
    [
        ("fail cuDevicePrimaryCtxRetain 802 2", "cuDevicePrimaryCtxRetain returned CUDA_ERROR_802"),
        ("fail cuDevicePrimaryCtxRelease 2 1", "cuDevicePrimaryCtxRelease returned"),  # so that the old one is left
    ],
)
def test_a_process_whose_next_context_does_not_come_is_ended(fake: Fake, script: str, said: str) -> None:
    executor = fake.loaded(COPY, script=[script])
    processes = children()
    with pytest.raises(InfrastructureError, match=said):
        executor.renewed()
    assert len(processes - children()) == 1


def test_what_one_submission_printed_is_not_told_to_the_next(fake: Fake) -> None:
    prints = plan([], launch("print", literal(3, 4)))
    executor = fake.loaded(prints, script=["fail cuModuleLoadData 209 2"])  # the second submission's
    called = executor.call(0, {}, {}, timeout_s=20)
    assert isinstance(called, Call) and called.printed
    executor = executor.renewed()
    answer, body = executor._ask(wire.Request.LOAD, job.load_request(fake.build(), [prints]))
    _, (result,), *_ = body.text(), body.numbers("i"), body.text(), body.text(), body.numbers("i")
    assert (answer, result, body.text()) == (wire.Answer.FAILED, 209, "")
    executor.close()


def test_an_abandoned_executor_is_ended(fake: Fake) -> None:
    processes = children()
    executor = Executor.start(GPU, env={"LD_LIBRARY_PATH": "/nonexistent"})
    assert children() > processes
    del executor
    gc.collect()
    assert children() == processes


def test_a_wrapper_runs_around_it_and_its_words_come_back(fake: Fake) -> None:
    wrapper = ("/bin/sh", "-c", 'echo before; "$@"; echo after $?', "wrapper")
    with fake.loaded(COPY, wrapper=wrapper) as executor:
        array = np.zeros(64, np.uint8)
        assert isinstance(executor.call(0, {"A": array}, {}, timeout_s=20), Call)
        assert executor.close() == "before\nafter 0\n"


def test_a_hang_under_a_wrapper_ends_both(fake: Fake) -> None:
    wrapper = ("/bin/sh", "-c", '"$@"; echo after $?', "wrapper")
    executor = fake.loaded(plan([], launch("hang")), wrapper=wrapper)
    processes = children()
    assert not isinstance(executor.call(0, {}, {}, timeout_s=0.1), Call)
    assert len(processes - children()) == 1
    running = subprocess.run(["pgrep", "-f", str(fake.folder)], capture_output=True, text=True, check=False).stdout
    assert running == ""


@pytest.mark.parametrize("wrapper", [(), ("/usr/bin/env",)], ids=["bare", "wrapped"])
def test_a_kernel_does_not_outlive_who_launched_it(fake: Fake, wrapper: tuple[str, ...]) -> None:
    executor = fake.loaded(plan([], launch("hang")), wrapper=wrapper)
    with ThreadPoolExecutor(1) as pool:
        call = pool.submit(executor.call, 0, {}, {}, timeout_s=30)
        deadline = time.monotonic() + 30
        while not fake.log("^launch hang") and time.monotonic() < deadline:
            time.sleep(0.01)
        assert executor._process.alive
        executor._process._connected().shutdown(socket.SHUT_RDWR)  # as the kernel does when a judge process is killed
        executor._process._process.wait(3)
        with pytest.raises(WorkerDied):
            call.result()


def test_who_runs_no_kernel_has_time_for_an_end_in_good_order(fake: Fake) -> None:
    wrapper = ("/bin/sh", "-c", '"$@"; sleep 0.1; echo after $?', "wrapper")
    executor = fake.loaded(COPY, wrapper=wrapper)
    array = np.zeros(64, np.uint8)
    assert isinstance(executor.call(0, {"A": array}, {}, timeout_s=20), Call)
    assert executor.close() == "after 0\n"
    assert len(fake.log("^context ends")) == 1


def test_a_wrapper_that_does_not_start_is_named(fake: Fake) -> None:
    with pytest.raises(InfrastructureError, match="cannot start /nonexistent/ncu"):
        fake.start(wrapper=("/nonexistent/ncu",))
    with pytest.raises(WorkerDied, match=r"exit status 3; it said: no permission"):
        fake.start(wrapper=("/bin/sh", "-c", "echo no permission; exit 3")).ready()
    with pytest.raises(InfrastructureError, match=r"did not start within 0.2 s"):
        fake.start(wrapper=("/bin/sh", "-c", "sleep 100")).ready(0.2)


def test_a_machine_without_a_driver_is_named(tmp_path: Path) -> None:
    (tmp_path / "libcuda.so.1").write_text("no library")
    with (
        Executor.start(GPU, env={"LD_LIBRARY_PATH": str(tmp_path)}) as executor,
        pytest.raises(InfrastructureError, match=r"libcuda\.so\.1"),
    ):
        executor.ready()


def test_a_context_that_does_not_come_is_the_machine_s(fake: Fake) -> None:
    with pytest.raises(InfrastructureError, match="cuDevicePrimaryCtxRetain returned CUDA_ERROR_802"):
        fake.start(["fail cuDevicePrimaryCtxRetain 802 1"]).ready()


def test_no_secret_of_the_environment_reaches_it(fake: Fake, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PTXGYM_SECRET", "hidden")
    executor = fake.start(wrapper=("/bin/sh", "-c", 'env; "$@"', "wrapper"))
    executor.ready()
    said = executor.close()
    assert "CUDA_VISIBLE_DEVICES=GPU-fake" in said
    assert "hidden" not in said


def test_side_streams_need_queues(fake: Fake) -> None:
    on_two = COPY.model_copy(update={"operations": (*COPY.operations, launch("hang", stream=3))})
    said = {}
    for side_streams in (True, False):
        executor = fake.start(wrapper=("/bin/sh", "-c", 'env; "$@"', "wrapper"), side_streams=side_streams)
        executor.ready()
        if side_streams:
            assert executor.load(fake.build(), [COPY, on_two]) is None
        else:
            with pytest.raises(UsageError, match="side_streams"):
                executor.load(fake.build(), [COPY, on_two])
            assert executor.load(fake.build(), [COPY]) is None
        said[side_streams] = executor.close()
    assert "CUDA_DEVICE_MAX_CONNECTIONS" not in said[True]
    assert "CUDA_DEVICE_MAX_CONNECTIONS=1\n" in said[False]


def test_it_ends_with_the_process_that_started_it(fake: Fake) -> None:
    script = """
import sys, os
from pathlib import Path
sys.path.insert(0, os.getcwd())
from tests.device.cuda.executor.harness import Fake
fake = Fake(Path(sys.argv[1]), Path(sys.argv[2]))
executor = fake.start()
executor.ready()
print(executor._process._process.pid, flush=True)
os._exit(0)
"""
    done = subprocess.run(
        [sys.executable, "-c", script, str(fake._driver), str(fake.folder)], capture_output=True, text=True, check=True,
        cwd=Path(__file__).parents[4],
    )  # fmt: skip
    orphan = Path("/proc") / done.stdout.strip()
    deadline = time.monotonic() + 30
    while orphan.exists() and "Z" not in (orphan / "stat").read_text().split()[2] and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not orphan.exists() or "Z" in (orphan / "stat").read_text().split()[2]
