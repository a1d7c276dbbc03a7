"""The process behind an executor: its start under a wrapper, its socket, its end."""

from __future__ import annotations

import contextlib
import os
import select
import shutil
import signal
import socket
import struct
import subprocess
import tempfile
import time
import weakref
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO

from ptxgym.device.cuda import wire
from ptxgym.errors import InfrastructureError, WorkerDied

INHERITED = ("PATH", "LD_LIBRARY_PATH", "HOME", "TMPDIR", "LANG", "LC_ALL")
"""What an executor and its wrapper get of the environment; neither the run's secret nor anyone's keys."""
END_LIMIT_S = 60.0
MAX_SAID_BYTES = 64 << 20
_POLL_S = 0.05
_PEER = struct.Struct("3i")


class TooSlow(Exception):
    """Raised when an answer does not come in time."""


class _Held:
    """What ends with an executor, be it closed, killed or forgotten."""

    def __init__(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="ptxgym-"))
        self.listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.said: IO[bytes] = os.fdopen(os.memfd_create("ptxgym-said", os.MFD_CLOEXEC), "w+b")
        self.stream: socket.socket | None = None
        self.process: subprocess.Popen[bytes] | None = None

    def release(self) -> None:
        """Close everything; the process has ended, or is killed."""
        if self.process is not None and self.process.poll() is None:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()
        if self.stream is not None:
            self.stream.close()
        self.listener.close()
        self.said.close()
        shutil.rmtree(self.folder, ignore_errors=True)


class ExecutorProcess:
    """A process that speaks `wire`, in a session of its own."""

    def __init__(self, program: Path, wrapper: Sequence[str], env: Mapping[str, str]) -> None:
        """Start `program`, behind `wrapper` if there is one; returns at once.

        Raises:
            InfrastructureError: if it cannot be started.
        """
        self._held = held = _Held()
        self._release = weakref.finalize(self, held.release)
        self._peer = 0
        path = held.folder / "s"
        environment = {name: os.environ[name] for name in INHERITED if name in os.environ}
        try:
            held.listener.bind(str(path))
            held.listener.listen(1)
            self._process = held.process = subprocess.Popen(
                [*wrapper, str(program), "--connect", str(path)], stdin=subprocess.DEVNULL, stdout=held.said,
                stderr=held.said, env={**environment, **env}, cwd=held.folder, start_new_session=True,
            )  # fmt: skip
        except OSError as error:
            self._release()
            raise InfrastructureError(f"cannot start {(*wrapper, program)[0]}: {error}") from error

    @property
    def alive(self) -> bool:
        """Whether the process runs."""
        return self._process.poll() is None

    def accept(self, timeout_s: float) -> None:
        """Wait until the program, which may be the wrapper's child, has connected.

        Raises:
            WorkerDied: if it ends before.
            InfrastructureError: if it takes longer than `timeout_s`.
        """
        deadline = time.monotonic() + timeout_s
        held = self._held
        while not select.select([held.listener], [], [], _POLL_S)[0]:
            if not self.alive:
                raise WorkerDied(f"the executor ended before it connected: {self.describe_end()}")
            if time.monotonic() > deadline:
                self.kill()
                raise InfrastructureError(f"the executor did not start within {timeout_s:g} s")
        held.stream, _ = held.listener.accept()
        held.listener.close()
        shutil.rmtree(held.folder, ignore_errors=True)
        (self._peer, _, _) = _PEER.unpack(held.stream.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _PEER.size))

    def send(self, request: wire.Request, body: bytes, descriptor: int | None, timeout_s: float) -> None:
        """Send a request.

        Raises:
            WorkerDied: if the process has gone.
            TooSlow: if it does not take the request.
        """
        stream = self._connected()
        stream.settimeout(timeout_s)
        try:
            wire.send(stream, request, body, descriptor)
        except TimeoutError as error:
            raise TooSlow from error
        except OSError as error:
            raise WorkerDied(f"the executor has gone: {self.describe_end()}") from error

    def receive(self, timeout_s: float) -> tuple[wire.Answer, wire.Reader]:
        """Receive an answer.

        Raises:
            WorkerDied: if the process ended, or sent what is no answer.
            TooSlow: if none comes.
        """
        stream = self._connected()
        stream.settimeout(timeout_s)
        try:
            return wire.receive(stream)
        except TimeoutError as error:
            raise TooSlow from error
        except (EOFError, OSError, ValueError) as error:
            raise WorkerDied(f"the executor ended without an answer: {self.describe_end()}") from error

    def describe_end(self) -> str:
        """Say how the process ended (it is ended if it has not), and what it said last."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(5)
        code = self._process.poll()
        said = self.kill().strip()[-2000:]
        how = "it still ran and was killed" if code is None else f"exit status {code}"
        if code is not None and code < 0:
            how = f"killed by {signal.Signals(-code).name}"
        return f"{how}; it said: {said}" if said else how

    def close(self) -> str:
        """Let the process end in good order; return what it and its wrapper printed."""
        if self._held.stream is None:  # nobody waits for a process that is still starting
            return self.kill()
        self._held.stream.close()
        try:
            self._process.wait(END_LIMIT_S)
        except subprocess.TimeoutExpired:
            return self.kill()
        return self._last_words()

    def kill(self) -> str:
        """End the process and all of its group; return what was printed.

        Raises:
            InfrastructureError: if it does not die, since the driver hangs.
        """
        if self.alive:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            if self._peer not in (0, self._process.pid):  # a wrapper may have given the program a group of its own
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.kill(self._peer, signal.SIGKILL)
        try:
            self._process.wait(END_LIMIT_S)
        except subprocess.TimeoutExpired as error:
            raise InfrastructureError(f"process {self._process.pid} survives SIGKILL: the driver hangs") from error
        return self._last_words()

    def _connected(self) -> socket.socket:
        if self._held.stream is None or not self._release.alive:
            raise WorkerDied("the executor has ended")
        return self._held.stream

    def _last_words(self) -> str:
        if not self._release.alive:
            return ""
        self._held.said.seek(0)
        said = self._held.said.read(MAX_SAID_BYTES).decode(errors="replace")
        self._release()
        return said
