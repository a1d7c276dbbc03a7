from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from ptxgym.device.cuda import lock as module
from ptxgym.device.cuda.lock import DeviceLock
from ptxgym.errors import InfrastructureError, UsageError

UUID = "GPU-00000000-1111-2222-3333-444444444444"
HOLDER = """
import sys, time
from pathlib import Path
from ptxgym.device.cuda.lock import DeviceLock
with getattr(DeviceLock({uuid!r}, Path({folder!r})), {mode!r})(timeout_s=60):
    print("held", flush=True)
    sys.stdin.readline()
"""
COUNTER = """
import sys, time
from pathlib import Path
from ptxgym.device.cuda.lock import DeviceLock
lock, total = DeviceLock({uuid!r}, Path({folder!r})), Path({folder!r}) / "total"
for _ in range(25):
    with lock.exclusive(timeout_s=60):
        value = int(total.read_text())
        time.sleep(0.0005)
        fresh = total.with_name("fresh")
        fresh.write_text(str(value + 1))
        fresh.replace(total)
"""


@pytest.fixture
def lock(tmp_path: Path) -> DeviceLock:
    return DeviceLock(UUID, tmp_path)


def started(script: str, folder: Path, mode: str = "") -> subprocess.Popen[str]:
    code = script.format(uuid=UUID, folder=str(folder), mode=mode)
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[3])}
    return subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
    )


@contextlib.contextmanager
def held_elsewhere(folder: Path, mode: str) -> Iterator[subprocess.Popen[str]]:
    with started(HOLDER, folder, mode) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "held\n"
        try:
            yield process
        finally:
            if process.poll() is None:
                process.kill()


def forked() -> int:
    with warnings.catch_warnings():  # Python 3.12 warns if any test before left a thread
        warnings.simplefilter("ignore", DeprecationWarning)
        return os.fork()


def in_thread(take: Callable[[], None]) -> threading.Thread:
    thread = threading.Thread(target=take, daemon=True)
    thread.start()
    return thread


def free(lock: DeviceLock, exclusive: bool) -> bool:
    """Whether another thread would get it at once."""
    found: list[bool] = []

    def attempt() -> None:
        try:
            with lock.exclusive(timeout_s=0.05) if exclusive else lock.shared(timeout_s=0.05):
                found.append(True)
        except InfrastructureError:
            found.append(False)

    in_thread(attempt).join()
    return found[0]


def test_sharers_stand_beside_each_other_and_nobody_beside_one_alone(lock: DeviceLock) -> None:
    with lock.shared():
        assert free(lock, exclusive=False)
        assert not free(lock, exclusive=True)
    with lock.exclusive():
        assert not free(lock, exclusive=False)
        assert not free(lock, exclusive=True)
    assert free(lock, exclusive=True)


def test_who_waits_for_long_work_does_not_hold_up_the_short(lock: DeviceLock) -> None:
    granted = threading.Event()

    def race() -> None:
        with lock.exclusive(timeout_s=30):
            granted.set()

    with lock.shared(long=True):
        waiter = in_thread(race)
        while not module._holders(lock._long.turnstile):
            time.sleep(0.001)
        assert free(lock, exclusive=False)
        with pytest.raises(InfrastructureError, match="not free"):  # another profiler waits behind the race
            in_thread_result(lambda: lock.shared(timeout_s=0.05, long=True))
        assert not granted.is_set()
    assert granted.wait(30)
    waiter.join()


def test_long_work_and_one_alone_exclude_each_other(lock: DeviceLock) -> None:
    with lock.shared(long=True):
        in_thread_result(lambda: lock.shared(timeout_s=1, long=True))
        assert not free(lock, exclusive=True)
    with lock.exclusive():
        with pytest.raises(InfrastructureError, match="not free"):
            in_thread_result(lambda: lock.shared(timeout_s=0.05, long=True))
        with lock.shared(long=True):  # by the one who has it all
            pass
    with lock.shared(long=True), lock.shared():
        pass
    with lock.shared(), pytest.raises(RuntimeError, match="begin with the long work"), lock.shared(long=True):
        pass
    assert free(lock, exclusive=True)


def in_thread_result(take: Callable[[], contextlib.AbstractContextManager[object]]) -> None:
    """Take it in another thread; raises what that raised."""

    def once() -> None:
        with take():
            pass

    with ThreadPoolExecutor(1) as pool:
        pool.submit(once).result()


@pytest.mark.parametrize("mode", ["shared", "exclusive"])
def test_processes_see_each_other(lock: DeviceLock, tmp_path: Path, mode: str) -> None:
    with held_elsewhere(tmp_path, mode):
        assert free(lock, exclusive=False) == (mode == "shared")
        assert not free(lock, exclusive=True)


def test_death_of_the_holder_releases_it(lock: DeviceLock, tmp_path: Path) -> None:
    with held_elsewhere(tmp_path, "exclusive") as process:
        process.send_signal(signal.SIGKILL)
        process.wait()
        with lock.exclusive(timeout_s=10):
            pass


def test_death_while_waiting_leaves_the_turnstile_open(lock: DeviceLock, tmp_path: Path) -> None:
    with lock.shared():
        waiter = started(HOLDER, tmp_path, "exclusive")
        while not module._holders(lock._short.turnstile):  # it stands in the turnstile
            time.sleep(0.01)
        assert not free(lock, exclusive=False)
        waiter.kill()
        waiter.communicate()
        assert free(lock, exclusive=False)


def test_many_processes_count_without_losing_one(tmp_path: Path) -> None:
    (tmp_path / "total").write_text("0")
    processes = [started(COUNTER, tmp_path) for _ in range(5)]
    while int((tmp_path / "total").read_text()) < 20:
        time.sleep(0.001)
    processes[0].kill()  # in the middle of whatever it does
    for process in processes[1:]:
        process.communicate()
        assert process.returncode == 0
    processes[0].communicate()
    assert 100 <= int((tmp_path / "total").read_text()) <= 125


def test_a_stream_of_sharers_does_not_hold_off_one_who_wants_to_be_alone(lock: DeviceLock) -> None:
    stop, turns = threading.Event(), [0, 0, 0]

    def share(index: int) -> None:
        while not stop.is_set():
            with lock.shared():
                turns[index] += 1
                time.sleep(0.01)

    threads = [threading.Thread(target=share, args=(index,)) for index in range(3)]
    for thread in threads:  # three sharers, never all gone at the same time
        thread.start()
        time.sleep(0.004)
    try:
        for _ in range(5):
            with lock.exclusive(timeout_s=20):
                before = sum(turns)
                time.sleep(0.02)
                assert sum(turns) == before
    finally:
        stop.set()
        for thread in threads:
            thread.join()
    assert min(turns) > 0


def test_a_timeout_names_the_holder(lock: DeviceLock, tmp_path: Path) -> None:
    with (
        held_elsewhere(tmp_path, "exclusive") as process,
        pytest.raises(InfrastructureError) as caught,
        lock.shared(timeout_s=0.1),
    ):
        pass
    assert UUID in str(caught.value)
    assert f"pid {process.pid} (exclusive)" in str(caught.value)
    with lock.shared(timeout_s=1):  # who gave up stands in nobody's way
        assert free(lock, exclusive=False)


def test_holders_are_counted_by_mode(lock: DeviceLock) -> None:
    assert lock.holders() == []
    with lock.shared():
        assert lock.holders() == [f"pid {os.getpid()} (shared)"]
    with lock.exclusive():
        assert lock.holders() == [f"pid {os.getpid()} (exclusive)"]


def test_a_thread_may_take_again_what_it_has(lock: DeviceLock) -> None:
    with lock.exclusive() as outer, lock.shared() as inner, lock.exclusive():
        assert inner is outer
    with lock.shared(), lock.shared():
        assert not free(lock, exclusive=True)
    assert free(lock, exclusive=True)
    with lock.shared(), pytest.raises(RuntimeError, match="wait for itself"), lock.exclusive():
        pass
    assert lock.mine is None


def test_hold_says_how_long(lock: DeviceLock) -> None:
    with lock.exclusive() as hold:
        time.sleep(0.02)
        assert hold.held_s >= 0.02
    assert hold.held_s == hold.held_s >= 0.02  # it stands still after the release
    assert hold.waited_s >= 0


def test_a_forked_child_does_not_keep_it(lock: DeviceLock) -> None:
    ready, done = os.pipe(), os.pipe()
    with lock.exclusive():
        child = forked()
        if child == 0:
            os.write(ready[1], b"x")
            os.read(done[0], 1)
            os._exit(0)
        os.read(ready[0], 1)
        assert not free(lock, exclusive=True)  # the child's fork released nothing of ours
    assert free(lock, exclusive=True)
    os.write(done[1], b"x")
    os.waitpid(child, 0)
    for descriptor in (*ready, *done):
        os.close(descriptor)


def test_files_of_another_user_are_opened_for_reading_only(
    lock: DeviceLock, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A sticky folder with fs.protected_regular refuses O_CREAT on others' files, and 0644 refuses writing."""
    with lock.exclusive():
        pass
    assert {path.stat().st_mode & 0o777 for path in tmp_path.iterdir()} == {0o644}
    real = os.open

    def strict(path: os.PathLike[str] | str, flags: int, mode: int = 0o777) -> int:
        if str(path).startswith(str(tmp_path)) and flags & (os.O_CREAT | os.O_WRONLY | os.O_RDWR):
            raise PermissionError(13, "Permission denied")
        return real(path, flags, mode)

    monkeypatch.setattr(os, "open", strict)
    with lock.exclusive(timeout_s=1):
        pass


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_another_user_shares_the_lock_in_a_sticky_folder(tmp_path: Path) -> None:
    folder = Path("/tmp") / f"ptxgym-test-{os.getpid()}"
    folder.mkdir()
    folder.chmod(0o1777)
    try:
        lock = DeviceLock(UUID, folder)
        with lock.shared():
            child = forked()
            if child == 0:
                os.setuid(65534)
                code = 0
                with DeviceLock(UUID, folder).shared(timeout_s=1):
                    pass
                try:
                    with DeviceLock(UUID, folder).exclusive(timeout_s=0.1):
                        code = 2
                except InfrastructureError:
                    pass
                os._exit(code)
            assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    finally:
        for path in folder.iterdir():
            path.unlink()
        folder.rmdir()


def test_a_narrow_umask_does_not_lock_others_out(lock: DeviceLock, tmp_path: Path) -> None:
    before = os.umask(0o077)
    try:
        with lock.shared():
            pass
    finally:
        os.umask(before)
    assert {path.stat().st_mode & 0o777 for path in tmp_path.iterdir()} == {0o644}


def test_a_removed_file_is_made_anew(lock: DeviceLock, tmp_path: Path) -> None:
    taken, done = threading.Event(), threading.Event()

    def hold() -> None:
        with lock.exclusive():
            taken.set()
            done.wait()

    holder = in_thread(hold)
    taken.wait()
    got: list[str] = []

    def wait() -> None:
        with lock.exclusive(timeout_s=10):
            got.extend(module._holders(lock._long.lock))

    waiter = in_thread(wait)
    while not module._holders(lock._long.turnstile):
        time.sleep(0.001)
    lock._long.lock.unlink()  # the waiter has the old file open
    done.set()
    holder.join()
    waiter.join()
    assert got == [f"pid {os.getpid()} (exclusive)"]  # of the file that has the name now


@pytest.mark.parametrize("kind", ["link", "folder"])
def test_strange_files_are_named(lock: DeviceLock, tmp_path: Path, kind: str) -> None:
    path = lock._short.turnstile
    if kind == "link":
        path.symlink_to(tmp_path / "elsewhere")
    else:
        path.mkdir()
    with pytest.raises(InfrastructureError, match=r"turnstile: .*remove it"), lock.shared(timeout_s=1):
        pass


def test_an_unreadable_file_is_named(lock: DeviceLock, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(path: object, flags: int, mode: int = 0) -> int:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(module, "NO_ACCESS_PATIENCE_S", 0.02)
    monkeypatch.setattr(os, "open", refuse)
    with pytest.raises(InfrastructureError, match="read access"), lock.shared(timeout_s=1):
        pass


@pytest.mark.parametrize("uuid", ["", "../x", "GPU 1", "a" * 101])
def test_a_uuid_is_part_of_a_file_name(uuid: str) -> None:
    with pytest.raises(UsageError, match="UUID"):
        DeviceLock(uuid)
