"""Worker processes as the evaluator sees them: started on demand, reused, replaced when they die or grow."""

from __future__ import annotations

import contextlib
import hashlib
import json
import mmap
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
import weakref
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ptxgym import native
from ptxgym.cache import Cache
from ptxgym.device.emulator import wire
from ptxgym.device.emulator.core import Bytes
from ptxgym.errors import InfrastructureError, WorkerDied
from ptxgym.tools import cannot_start

START_LIMIT_S = 60.0
MAX_JOBS = 500
"""A worker that has run so many is replaced."""
MAX_RSS_BYTES = 3 * 1024**3
INHERITED = ("PATH", "LD_LIBRARY_PATH", "PYTHONHOME", "LANG", "LC_ALL")
"""What a worker gets of the environment: enough to start Python, and neither the run's secret nor anyone's keys."""


@dataclass(frozen=True)
class Job:
    """One plan, ready to run; see `session.Session.run`."""

    header: dict[str, Any]
    blobs: tuple[bytes, ...]
    arena_bytes: int


class Worker:
    """One process and its shared memory."""

    def __init__(self, library: Path) -> None:
        """Start the process.

        Raises:
            InfrastructureError: if it does not come up.
        """
        self._arena_file = os.memfd_create("ptxgym-arena", os.MFD_CLOEXEC)
        os.ftruncate(self._arena_file, mmap.PAGESIZE)
        self._arena: mmap.mmap | None = None
        self._stderr = os.fdopen(os.memfd_create("ptxgym-stderr", os.MFD_CLOEXEC), "w+b")  # /tmp may be full
        self._stream, theirs = socket.socketpair()
        self.jobs = 0
        self.peak_rss_bytes = 0
        command = [
            sys.executable, "-m", "ptxgym.device.emulator.worker",
            str(theirs.fileno()), str(self._arena_file), str(library),
        ]  # fmt: skip
        package = str(Path(__file__).parents[3])
        environment = {name: os.environ[name] for name in INHERITED if name in os.environ}
        environment["PYTHONPATH"] = os.pathsep.join([package, *filter(None, [os.environ.get("PYTHONPATH")])])
        try:
            self._process = subprocess.Popen(
                command, pass_fds=(theirs.fileno(), self._arena_file), stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL, stderr=self._stderr, env=environment,
            )  # fmt: skip
        except OSError as error:
            for opened in (self._stderr, self._stream, theirs):
                opened.close()
            os.close(self._arena_file)
            raise cannot_start("an emulator worker", error) from error
        theirs.close()
        self._receive(START_LIMIT_S)

    @property
    def worn(self) -> bool:
        """Whether the worker should be replaced."""
        return self.jobs >= MAX_JOBS or self.peak_rss_bytes > MAX_RSS_BYTES or self._process.poll() is not None

    def arena(self, size: int) -> Bytes:
        """Return the shared memory, at least `size` bytes of it."""
        if self._arena is None or len(self._arena) < size:
            os.ftruncate(self._arena_file, max(size, mmap.PAGESIZE))
            self._arena = mmap.mmap(self._arena_file, max(size, mmap.PAGESIZE))
        return np.frombuffer(self._arena, np.uint8)[:size]

    def run(self, job: Job, wall_limit_s: float) -> tuple[dict[str, Any], list[bytes]]:
        """Run a job whose inputs are in the arena.

        Raises:
            WorkerDied: if the process ended without an answer.
            InfrastructureError: if it takes longer than `wall_limit_s`.
        """
        self.jobs += 1
        try:
            wire.send(self._stream, {**job.header, "arena_bytes": job.arena_bytes}, job.blobs)
        except OSError as error:
            raise WorkerDied(f"the emulator worker is gone ({self._end()}): {error}") from error
        answer, blobs = self._receive(wall_limit_s)
        self.peak_rss_bytes = int(answer.get("peak_rss_bytes", self.peak_rss_bytes))
        return answer, blobs

    def _receive(self, limit_s: float) -> tuple[dict[str, Any], list[bytes]]:
        self._stream.settimeout(limit_s)
        try:
            return wire.receive(self._stream)
        except TimeoutError as error:
            self.close()
            raise InfrastructureError(f"the emulator did not answer within {limit_s:g} s of wall time") from error
        except (EOFError, OSError, ValueError) as error:
            raise WorkerDied(f"the emulator worker ended without an answer: {self._end()}") from error

    def _end(self) -> str:
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(5)
        code = self._process.poll()
        self._stderr.seek(0)
        said = self._stderr.read()[-2000:].decode(errors="replace").strip()
        how = f"killed by {signal.Signals(-code).name}" if code is not None and code < 0 else f"exit status {code}"
        self.close()
        return f"{how}; it said: {said}" if said else how

    def close(self) -> None:
        """End the process and give its memory back."""
        self._stream.close()
        self._process.kill()
        self._process.wait()
        self._stderr.close()
        if self._arena_file >= 0:
            os.close(self._arena_file)
            self._arena_file = -1
        self._arena = None


class Pool:
    """Idle workers of this process; every caller has one for itself as long as it needs it."""

    def __init__(self) -> None:
        self._idle: list[Worker] = []
        self._mutex = threading.Lock()
        self._owner = os.getpid()
        self._cleanup = weakref.finalize(self, _close_all, self._idle, self._owner)

    @contextlib.contextmanager
    def worker(self) -> Iterator[Worker]:
        """Lend a worker; one that fails is not used again.

        Raises:
            InfrastructureError: if none can be started.
        """
        if os.getpid() != self._owner:  # after a fork: the workers are the parent's
            self._idle, self._owner = [], os.getpid()
        with self._mutex:
            worker = self._idle.pop() if self._idle else None
        if worker is None:
            worker = Worker(native.library("emulator"))
        healthy = False
        try:
            yield worker
            healthy = True
        finally:
            if healthy and not worker.worn:
                with self._mutex:
                    self._idle.append(worker)
            else:
                worker.close()

    def close(self) -> None:
        """End all idle workers."""
        with self._mutex:
            _close_all(self._idle, self._owner)


def _close_all(workers: list[Worker], owner: int) -> None:
    if os.getpid() == owner:
        while workers:
            workers.pop().close()


def keep_reproducer(cache: Cache, job: Job, arena: Bytes) -> Path:
    """Store a job that killed its worker in the cache; `worker --replay FOLDER LIBRARY` runs it again."""
    digest = hashlib.sha256(json.dumps(job.header, sort_keys=True).encode())
    for blob in job.blobs:
        digest.update(blob)
    with cache.staging() as folder:
        (folder / "job.json").write_text(json.dumps({**job.header, "blobs": len(job.blobs)}), encoding="utf-8")
        for index, blob in enumerate(job.blobs):
            (folder / f"blob{index}.bin").write_bytes(blob)
        (folder / "arena.bin").write_bytes(arena.tobytes())
        shutil.copyfile(job.header["module"]["ptx"], folder / "kernel.ptx")
        return cache.publish("crash", digest.hexdigest(), folder)
