"""The evaluator's side of a judge process: started at the first need, replaced when it died, ended with its owner."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import weakref
from collections.abc import Callable, Iterator
from concurrent.futures import CancelledError, Future
from dataclasses import asdict
from pathlib import Path
from typing import IO, Any, cast

from ptxgym.device.cuda.channel import Channel, Error, Kind
from ptxgym.device.cuda.gpu import Gpu
from ptxgym.device.cuda.model import Announced, Outcome, Request, Witness
from ptxgym.device.cuda.role import REAL_BENCH
from ptxgym.errors import InfrastructureError, UsageError, WorkerDied
from ptxgym.verdict import Failure, Stage, Status

CLOSE_LIMIT_S = 10.0
MAX_SAID_BYTES = 8000
"""Of the last words of a judge process that died: where its threads were."""
INHERITED = (
    "PATH", "LD_LIBRARY_PATH", "PYTHONHOME", "PYTHONPATH", "HOME", "TMPDIR", "LANG", "LC_ALL", "XDG_CACHE_HOME",
    "CUDA_HOME", "CUDA_PATH", "CUPY_CACHE_DIR", "PTXGYM_CACHE", "PTXGYM_CONTENT",
)  # fmt: skip
"""What a judge process gets of the environment: neither the run's secret nor anyone's keys."""


class CudaJudge:
    """Measures submissions on one GPU; safe to share among threads. After a fork the child needs one of its own."""

    def __init__(self, gpu: Gpu, *, bench: str = REAL_BENCH) -> None:
        """Make a client; nothing is started yet.

        Args:
            gpu: Where to measure.
            bench: `module:class` of what the judge process works with.
        """
        self.gpu = gpu
        self._bench = bench
        self._mutex = threading.Lock()
        self._role: _Process | None = None
        self._closed = False

    @contextlib.contextmanager
    def expected(self, announced: Announced) -> Iterator[Callable[[Request, Future[Witness]], Outcome]]:
        """Announce an evaluation, so that all is ready when the compiler is; yields what measures it.

        The function yielded is to be called at most once; see `measure`. Leaving without a call takes the
        announcement back.
        """
        role = self._running()
        role.send(Kind.EXPECT, 0, announced)
        measured = False

        def measure(request: Request, witness: Future[Witness]) -> Outcome:
            nonlocal measured
            measured = True
            return self.measure(request, witness)

        try:
            yield measure
        finally:
            if not measured:
                role.send(Kind.FORGET, 0, announced)

    def measure(self, request: Request, witness: Future[Witness]) -> Outcome:
        """Measure one submission.

        Args:
            request: What to measure.
            witness: What the emulator will have said; sent on when it is there.

        Raises:
            InfrastructureError: if the machine failed, or the judge process died.
            UsageError: if the tier cannot be had on this machine.
        """
        role = self._running()
        answer = role.ask(request, witness)
        return answer.result()

    def close(self) -> None:
        """End the judge process and all that it started; calling it again does nothing."""
        with self._mutex:
            self._closed = True
            role, self._role = self._role, None
        if role is not None:
            role.close()

    @property
    def pid(self) -> int | None:
        """The judge process; None where none runs."""
        role = self._role
        return role.pid if role is not None and role.alive else None

    def _running(self) -> _Process:
        with self._mutex:
            if self._closed:
                raise UsageError("the evaluator is closed; make a new one")
            if self._role is None or not self._role.alive:
                if self._role is not None:
                    self._role.close()
                self._role = _Process(self.gpu, self._bench)
            return self._role


class _Process:
    """One judge process and what waits for it."""

    def __init__(self, gpu: Gpu, bench: str) -> None:
        self._stderr = os.fdopen(os.memfd_create("ptxgym-judge-stderr", os.MFD_CLOEXEC), "w+b")
        ours, theirs = socket.socketpair()
        package = str(Path(__file__).parents[3])
        environment = {name: os.environ[name] for name in INHERITED if name in os.environ}
        environment["PYTHONPATH"] = os.pathsep.join([package, *filter(None, [os.environ.get("PYTHONPATH")])])
        environment["CUDA_VISIBLE_DEVICES"] = gpu.uuid
        command = [
            sys.executable, "-m", "ptxgym.device.cuda.role", str(theirs.fileno()), bench, json.dumps(asdict(gpu)),
        ]  # fmt: skip
        try:
            self._process = subprocess.Popen(
                command, pass_fds=(theirs.fileno(),), stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                stderr=self._stderr, env=environment, start_new_session=True,
            )  # fmt: skip
        except OSError as error:
            raise InfrastructureError(f"the judge process cannot be started: {error}") from error
        finally:
            theirs.close()
        self._channel = Channel(ours)
        self._numbers = itertools.count(1)
        self._mutex = threading.Lock()
        self._waiting: dict[int, Future[Outcome]] = {}
        self._ended: str | None = None
        threading.Thread(target=_listen, args=(weakref.ref(self), self._channel), daemon=True).start()
        self._cleanup = weakref.finalize(self, _end, self._process, self._channel, self._stderr, os.getpid())

    @property
    def pid(self) -> int:
        """The process."""
        return self._process.pid

    @property
    def alive(self) -> bool:
        """Whether it takes requests."""
        return self._ended is None and self._process.poll() is None

    def ask(self, request: Request, witness: Future[Witness]) -> Future[Outcome]:
        """Send a request; the answer comes to the future."""
        answer: Future[Outcome] = Future()
        with self._mutex:
            number = next(self._numbers)
            if self._ended is not None:
                raise WorkerDied(self._ended)
            self._waiting[number] = answer
        self.send(Kind.MEASURE, number, request)
        witness.add_done_callback(lambda done: self._send_witness(number, done))
        return answer

    def _send_witness(self, number: int, witness: Future[Witness]) -> None:
        """Send what the emulator said; where it broke, say that, so that the judge process does not wait for ever."""
        error = CancelledError("it was interrupted") if witness.cancelled() else witness.exception()
        if error is None:
            self.send(Kind.WITNESS, number, witness.result())
            return
        message = f"the emulator failed: {type(error).__name__}: {error}"
        failed = Failure(stage=Stage.EXECUTE, status=Status.INFRA, code="emulator.failed", message=message)
        self.send(Kind.WITNESS, number, Witness(failed))

    def send(self, kind: Kind, number: int, value: object) -> None:
        """Send a frame; where the process has gone, whoever waits for it learns it from the listener."""
        with contextlib.suppress(OSError):
            self._channel.send(kind, number, value)

    def deliver(self, number: int, value: Outcome | Error) -> None:
        """Hand an answer to who waits for it."""
        with self._mutex:
            answer = self._waiting.pop(number, None)
            if isinstance(value, Error) and value.last:
                self._ended = (
                    "the judge process of the GPU lost its context or was full; the next evaluation starts one"
                )
        if answer is None:
            return
        if not isinstance(value, Error):
            answer.set_result(value)
        elif value.kind == "usage":
            answer.set_exception(UsageError(value.message))
        else:
            answer.set_exception(InfrastructureError(value.message))

    def end(self) -> None:
        """Tell all that wait that the process has gone."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(5)
        with self._mutex:
            if self._ended is None:
                self._ended = f"the judge process of the GPU ended: {self._how()}; the next evaluation starts another"
            waiting, self._waiting = list(self._waiting.values()), {}
        for answer in waiting:
            answer.set_exception(WorkerDied(self._ended))

    def _how(self) -> str:
        code = self._process.poll()
        self._stderr.seek(0)
        said = self._stderr.read()[-MAX_SAID_BYTES:].decode(errors="replace").strip()
        how = f"killed by {signal.Signals(-code).name}" if code is not None and code < 0 else f"exit status {code}"
        return f"{how}; it said: {said}" if said else how

    def close(self) -> None:
        """End the process and its group."""
        with self._mutex:
            self._ended = self._ended or "the evaluator was closed"
        self.send(Kind.CLOSE, 0, None)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(CLOSE_LIMIT_S)
        self._cleanup()
        self.end()


def _listen(process: weakref.ref[_Process], channel: Channel) -> None:
    """Deliver answers until the judge process hangs up; holds no reference while it waits."""
    while True:
        try:
            frame = channel.receive()
            value: Any = frame.value
        except Exception:  # hung up, or no frame that can be read: either way there is no more to come
            break
        role = process()
        if role is None:
            return
        role.deliver(frame.number, cast("Outcome | Error", value))
        del role
    role = process()
    if role is not None:
        role.end()


def _end(process: subprocess.Popen[bytes], channel: Channel, stderr: IO[bytes], owner: int) -> None:
    """Kill the process and its group, and reap it; in a forked child, which has neither, do nothing."""
    if os.getpid() != owner:
        return
    channel.close()
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    stderr.close()
