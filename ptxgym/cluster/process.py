"""A worker in a process of its own, as who started it sees it."""

from __future__ import annotations

import contextlib
import itertools
import os
import signal
import socket
import subprocess
import sys
import threading
import weakref
from concurrent.futures import Future
from multiprocessing.connection import Connection
from pathlib import Path
from typing import IO, Any

from ptxgym.cluster.station import Description, StationConfig
from ptxgym.cluster.work import Outcome, Step, WorkerGone
from ptxgym.errors import InfrastructureError
from ptxgym.judge.conditions import SECRET_VARIABLE
from ptxgym.tools import cannot_start

START_LIMIT_S = 300.0
"""Until a worker is ready: it may have to build the emulator first."""
MAX_SAID_BYTES = 2000
BLAS_THREADS = ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS")
"""Read by numpy's BLAS when it is loaded, long before the worker takes its core."""


class WorkerProcess:
    """One process that does steps; safe to share among threads. It ends with this object, or with this process."""

    def __init__(self, config: StationConfig, name: str, gpu: str | None = None) -> None:
        """Start the process, and wait until it is ready.

        Args:
            config: What it must know.
            name: For messages.
            gpu: UUID or number of the only GPU that it may see; None leaves what is visible here.

        Raises:
            InfrastructureError: if it does not come up.
            UsageError: if it cannot do what is asked.
        """
        self.name = name
        self._stderr = os.fdopen(os.memfd_create("ptxgym-worker-stderr", os.MFD_CLOEXEC), "w+b")
        ours, theirs = socket.socketpair()
        environment = {key: value for key, value in os.environ.items() if key != SECRET_VARIABLE}
        package = str(Path(__file__).parents[2])
        environment["PYTHONPATH"] = os.pathsep.join([package, *filter(None, [os.environ.get("PYTHONPATH")])])
        if config.pinned:
            environment |= dict.fromkeys(BLAS_THREADS, "1")
        if gpu is not None:
            environment["CUDA_VISIBLE_DEVICES"] = gpu
        command = [
            sys.executable, "-m", "ptxgym.cluster.worker",
            str(theirs.fileno()), "pinned" if config.pinned else "free", config.cache or "",
        ]  # fmt: skip
        try:
            self._process = subprocess.Popen(
                command, pass_fds=(theirs.fileno(),), stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                stderr=self._stderr, env=environment, start_new_session=True,
            )  # fmt: skip
        except OSError as error:
            self._stderr.close()
            ours.close()
            raise cannot_start("an evaluation worker", error) from error
        finally:
            theirs.close()
        self.pid = self._process.pid
        """Of the process, which leads the group of all that it starts."""
        self._stream = Connection(ours.detach())
        self._cleanup = weakref.finalize(self, _end, self._process.pid, os.getpid())
        self._numbers = itertools.count()
        self._mutex = threading.Lock()
        self._waiting: dict[int, Future[Any]] = {}
        self._ended_by: WorkerGone | None = None
        self.gone: Future[str] = Future()
        """Resolved when the process has ended: why."""
        ready: Future[Description] = self._ask("begin", config)
        reader = threading.Thread(
            target=_listen,
            args=(weakref.ref(self), self._cleanup, self._stream, self._process, self._stderr),
            daemon=True,
        )
        reader.start()
        try:
            self.description = ready.result(START_LIMIT_S)
        except TimeoutError as error:
            self.kill()
            raise InfrastructureError(f"worker {name} was not ready within {START_LIMIT_S:g} s") from error
        except BaseException:
            self.kill()
            raise
        self.place = self.description.place

    def run(self, step: Step) -> Future[Outcome]:
        """Do a step; see `work.Worker`."""
        return self._ask("step", step)

    def probe(self) -> Future[None]:
        """Try the GPU; see `work.Worker`."""
        return self._ask("probe", None)

    def kill(self) -> None:
        """End the process and all that it started."""
        self._cleanup()

    def _ask(self, what: str, argument: object) -> Future[Any]:
        answer: Future[Any] = Future()
        with self._mutex:
            if self._ended_by is not None:
                answer.set_exception(self._ended_by)
                return answer
            number = next(self._numbers)
            self._waiting[number] = answer
            with contextlib.suppress(OSError):  # the listener tells whoever waits
                self._stream.send((number, what, argument))
        return answer

    def _deliver(self, number: int, value: object) -> None:
        with self._mutex:
            answer = self._waiting.pop(number, None)
        if answer is None:
            return
        if isinstance(value, BaseException):
            answer.set_exception(value)
        else:
            answer.set_result(value)

    def _ended(self, how: str) -> None:
        error = WorkerGone(f"worker {self.name} ended: {how}")
        with self._mutex:
            self._ended_by = error
            waiting, self._waiting = list(self._waiting.values()), {}
        for answer in waiting:
            answer.set_exception(error)
        self.gone.set_result(str(error))


def _listen(
    owner: weakref.ref[WorkerProcess],
    cleanup: weakref.finalize[..., WorkerProcess],
    stream: Connection,
    process: subprocess.Popen[bytes],
    stderr: IO[bytes],
) -> None:
    """Deliver answers until the process hangs up, or cannot be read; holds no reference to the owner while it waits."""
    unread = ""
    while True:
        try:
            number, value = stream.recv()
        except (EOFError, OSError):
            break
        except Exception as error:  # of what was pickled there; whose answer it was is not known
            unread = f"its answer cannot be read: {type(error).__name__}: {error}"
            break
        if (worker := owner()) is not None:
            worker._deliver(number, value)
        del worker
    cleanup()  # before its number may become another process's
    code = process.wait()
    stderr.seek(0)
    said = stderr.read()[-MAX_SAID_BYTES:].decode(errors="replace").strip()
    stderr.close()
    stream.close()
    if (worker := owner()) is not None:
        how = unread or (f"killed by {signal.Signals(-code).name}" if code < 0 else f"exit status {code}")
        worker._ended(f"{how}; it said: {said}" if said else how)


def _end(pid: int, owner: int) -> None:
    """Kill a process group; in a forked child, whose it is not, do nothing."""
    if os.getpid() == owner:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(pid, signal.SIGKILL)
