from __future__ import annotations

import errno
import multiprocessing
import os
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from ptxgym import cache as cache_module
from ptxgym.cache import Cache, default_root
from ptxgym.errors import InfrastructureError, UsageError

KEY = "ab" * 32
CHECKOUT = Path(__file__).parents[1]


def key(number: int) -> str:
    return f"{number:064x}"


def store(cache: Cache, name: str, content: bytes = b"content", kind: str = "build") -> Path:
    with cache.staging() as folder:
        (folder / "file").write_bytes(content)
        return cache.publish(kind, name, folder)


def make_old(entry: Path, age_s: float = 3600.0) -> None:
    then = time.time() - age_s
    os.utime(entry, (then, then))


@pytest.fixture
def cache(tmp_path):
    opened = Cache(tmp_path / "cache")
    yield opened
    opened.close()


def test_default_root_follows_the_environment(monkeypatch):
    monkeypatch.setenv("PTXGYM_CACHE", "/somewhere/mine")
    assert default_root() == Path("/somewhere/mine")
    monkeypatch.delenv("PTXGYM_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", "/xdg")
    assert default_root() == Path("/xdg/ptxgym")
    monkeypatch.setenv("XDG_CACHE_HOME", "relative/is/ignored")
    monkeypatch.setenv("HOME", "/home/someone")
    assert default_root() == Path("/home/someone/.cache/ptxgym")


def test_root_is_private(cache):
    assert cache.root.stat().st_mode & 0o777 == 0o700


@pytest.mark.parametrize("mode", [0o770, 0o702])
def test_refuses_a_folder_that_others_may_write(tmp_path, mode):
    (tmp_path / "shared").mkdir()
    (tmp_path / "shared").chmod(mode)
    with pytest.raises(UsageError, match=r"shared can be written by others \(mode 0\d+\); .*chmod go-w"):
        Cache(tmp_path / "shared")
    (tmp_path / "shared").chmod(0o755)
    Cache(tmp_path / "shared")


def test_refuses_a_folder_of_somebody_else(tmp_path, monkeypatch):
    Cache(tmp_path / "mine")
    monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)
    with pytest.raises(UsageError, match=rf"belongs to user {os.getuid()}, not to you"):
        Cache(tmp_path / "mine")


def test_says_when_it_cannot_be_created(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(InfrastructureError, match="set PTXGYM_CACHE"):
        Cache(tmp_path / "file" / "cache")


def test_publishes_and_finds(cache):
    assert cache.get("build", KEY) is None
    entry = store(cache, KEY)
    assert cache.get("build", KEY) == entry
    assert (entry / "file").read_bytes() == b"content"
    assert (entry / "file").stat().st_mode & 0o222 == 0
    assert cache.get("native", KEY) is None


def test_the_first_writer_wins(cache):
    first = store(cache, KEY, b"first")
    assert store(cache, KEY, b"second") == first
    assert (first / "file").read_bytes() == b"first"
    assert list((cache.root / "tmp").iterdir()) == []


@pytest.mark.parametrize("bad", ["../escape", "AB" * 32, "ab", "ab" * 32 + "/x", ""])
def test_keys_cannot_leave_the_cache(cache, bad):
    with pytest.raises(ValueError, match="not a cache kind and key"):
        cache.path("build", bad)
    with pytest.raises(ValueError, match="not a cache kind and key"):
        cache.path(f"{bad}/", KEY)


def test_staging_is_removed_whatever_happens(cache):
    with pytest.raises(RuntimeError), cache.staging() as folder:
        (folder / "deep").mkdir()
        (folder / "deep" / "file").write_text("x")
        raise RuntimeError
    assert not folder.exists()


def test_a_damaged_entry_is_dropped_and_rebuilt(cache):
    entry = store(cache, KEY, b"content")
    (entry / "file").chmod(0o600)
    (entry / "file").write_bytes(b"")  # what a crash of the machine may leave
    assert cache.get("build", KEY) is None
    assert not entry.exists()
    assert store(cache, KEY, b"again") == entry
    assert (entry / "file").read_bytes() == b"again"


def test_stats_count_by_kind(cache):
    store(cache, key(1), b"x" * 100)
    store(cache, key(2), b"x" * 50)
    store(cache, key(3), b"x" * 10, kind="native")
    stats = cache.stats()
    assert stats.entries == {"build": 2, "native": 1}
    assert 150 <= stats.size_bytes["build"] < 150 + 2 * 40  # each with its small manifest
    assert stats.total_entries == 3
    assert stats.total_bytes == sum(stats.size_bytes.values())


def test_evicts_the_least_recently_used_beyond_the_cap(tmp_path):
    cache = Cache(tmp_path / "cache", max_bytes=1000)
    entries = [store(cache, key(n), b"x" * 300) for n in range(5)]
    for age, entry in enumerate(reversed(entries), 1):
        make_old(entry, 3600.0 * age)
    cache.get("build", key(0))  # the oldest, but used now
    cache.close()
    assert cache.trim() == 3
    assert [entry.exists() for entry in entries] == [True, False, False, False, True]
    assert cache.trim() == 0


def test_recent_entries_stay_even_beyond_the_cap(tmp_path):
    cache = Cache(tmp_path / "cache", max_bytes=100)
    entry = store(cache, key(1), b"x" * 1000)
    cache.close()
    assert cache.trim() == 0
    make_old(entry)
    assert cache.trim() == 1


def test_publishing_trims(tmp_path):
    cache = Cache(tmp_path / "cache", max_bytes=1000)
    first = store(cache, key(1), b"x" * 900)
    cache.close()
    make_old(first)
    store(cache, key(2), b"x" * 900)
    assert not first.exists()


def test_entries_in_use_elsewhere_are_not_torn(tmp_path):
    user, evictor = Cache(tmp_path / "cache"), Cache(tmp_path / "cache", max_bytes=1)
    entry = store(user, KEY)
    make_old(entry)
    assert evictor.trim() == 0
    assert evictor.clear() == 0
    assert (entry / "file").read_bytes() == b"content"
    user.close()
    assert evictor.trim() == 1
    assert not entry.exists()


def test_for_ever_outlives_close(tmp_path):
    user, evictor = Cache(tmp_path / "cache"), Cache(tmp_path / "cache")
    entry = store(user, KEY)
    assert user.get("build", KEY, forever=True) == entry
    user.close()
    assert evictor.clear() == 0


def test_leases_are_bounded(tmp_path, monkeypatch):
    monkeypatch.setattr(cache_module, "MAX_LEASES", 3)
    user, evictor = Cache(tmp_path / "cache"), Cache(tmp_path / "cache")
    for number in range(5):
        store(user, key(number))
        user.get("build", key(number))
    assert evictor.clear() == 2
    assert [evictor.path("build", key(n)).exists() for n in range(5)] == [False, False, True, True, True]
    user.close()


def test_clear_spares_nothing_that_is_free(cache):
    store(cache, key(1))
    store(cache, key(2), kind="native")
    cache.close()
    assert cache.clear() == 2
    assert cache.stats().total_entries == 0


WRITER = """
import sys, time
from ptxgym.cache import Cache
cache = Cache(sys.argv[1])
with cache.staging() as folder:
    (folder / "half").write_text("half of an entry")
    print(folder, flush=True)
    time.sleep(60)
"""


def test_a_killed_writer_leaves_nothing_behind(tmp_path):
    command = [sys.executable, "-c", WRITER, tmp_path / "cache"]
    with subprocess.Popen(command, cwd=CHECKOUT, stdout=subprocess.PIPE, text=True) as writer:
        folder = Path(writer.stdout.readline().strip())
        Cache(tmp_path / "cache")
        assert folder.exists()  # its owner lives: not swept
        writer.send_signal(signal.SIGKILL)
    reopened = Cache(tmp_path / "cache")
    assert not folder.exists()
    assert reopened.stats().total_entries == 0


def _publish_many(root: Path, start: object, results: object) -> None:
    cache = Cache(root)
    start.wait()
    for number in range(20):
        content = f"{os.getpid()} {number}".encode() * 100
        entry = store(cache, key(number), content)
        results.put((number, (entry / "file").read_bytes()))


def test_processes_agree_on_every_entry(tmp_path):
    context = multiprocessing.get_context("spawn")
    start, results = context.Event(), context.Queue()
    processes = [context.Process(target=_publish_many, args=(tmp_path / "cache", start, results)) for _ in range(3)]
    for process in processes:
        process.start()
    start.set()
    seen: dict[int, set[bytes]] = {}
    for _ in range(60):
        number, content = results.get(timeout=60)
        seen.setdefault(number, set()).add(content)
    for process in processes:
        process.join(60)
        assert process.exitcode == 0
    assert len(seen) == 20
    assert all(len(contents) == 1 for contents in seen.values())
    assert list((tmp_path / "cache" / "tmp").iterdir()) == []


def test_readers_never_see_half_an_entry_while_it_is_cleared(tmp_path):
    writer, reader, cleaner = (Cache(tmp_path / "cache") for _ in range(3))
    stop = time.monotonic() + 1.0

    def write() -> None:
        while time.monotonic() < stop:
            store(writer, KEY, b"x" * 1000)
            writer.close()

    def clean() -> None:
        while time.monotonic() < stop:
            cleaner.clear()

    with ThreadPoolExecutor(2) as pool:
        jobs = [pool.submit(write), pool.submit(clean)]
        hits = 0
        while time.monotonic() < stop:
            entry = reader.get("build", KEY)
            if entry is not None:
                assert (entry / "file").read_bytes() == b"x" * 1000
                hits += 1
                reader.close()
        for job in jobs:
            job.result()
    assert hits > 0


def test_locks_exclude_threads_too(cache):
    inside = []

    def enter(number: int) -> None:
        with cache.lock("one"):
            inside.append(number)
            assert len(inside) == 1
            time.sleep(0.01)
            inside.remove(number)

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(enter, range(8)))
    with pytest.raises(ValueError, match="not a lock name"), cache.lock("../x"):
        pass


@pytest.mark.parametrize(
    ("number", "way_out"),
    [(errno.EROFS, "set PTXGYM_CACHE to a folder of your own"), (errno.ENOSPC, "free some space there, or set PTXGYM")],
)
def test_a_folder_that_cannot_be_written_is_named_with_the_way_out(cache, monkeypatch, number, way_out):
    store(cache, key(1))

    def refuse(**_):
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(cache_module.tempfile, "mkdtemp", refuse)
    assert Cache(cache.root).get("build", key(1)) is not None  # what is there can still be read
    with pytest.raises(InfrastructureError, match=f"{cache.root}: {os.strerror(number)}; {way_out}"), cache.staging():
        pass


def test_a_disk_that_fills_up_is_the_caches_and_other_errors_are_not(cache):
    with pytest.raises(InfrastructureError, match=f"{cache.root}: No space left"), cache.staging():
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    with pytest.raises(PermissionError), cache.staging():
        raise PermissionError(errno.EACCES, "denied")
    assert list((cache.root / "tmp").iterdir()) == []


def test_a_lock_that_cannot_be_made_names_the_cache(cache):
    with cache.lock("good"):
        pass
    (cache.root / "locks" / "bad").mkdir()
    with pytest.raises(InfrastructureError, match=f"{cache.root}: Is a directory; set PTXGYM_CACHE"), cache.lock("bad"):
        pass
