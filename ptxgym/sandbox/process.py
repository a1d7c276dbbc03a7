"""Starts a command under the launcher `ptxgym/native/sandbox` and answers for its whole process tree.

The launcher stays as the parent and subreaper of the command, confines it, enforces the time limit and, when the
command ends, time is up or this process dies (it holds the other end of a "lifeline" pipe), kills every descendant,
those that left their session included. It then reports how the command ended.
"""

from __future__ import annotations

import contextlib
import os
import selectors
import subprocess
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import IO, Literal

from ptxgym import native
from ptxgym.errors import InfrastructureError
from ptxgym.sandbox.isolation import Filesystem, isolation

SCRUBBED_ENVIRONMENT: Mapping[str, str] = {"PATH": "/usr/bin:/bin", "LC_ALL": "C"}
_DEVICES = ("/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom")
_LAUNCHER_GRACE_S = 60.0


@dataclass(frozen=True)
class Access:
    """What of the file system a command can open; paths that do not exist are skipped."""

    read: tuple[Path, ...] = ()
    execute: tuple[Path, ...] = ()
    """Includes reading. A dynamically linked program needs its loader and libraries here."""
    write: tuple[Path, ...] = ()
    """Includes reading, creating and removing, not executing."""


@dataclass(frozen=True)
class Limits:
    """Limits per process of the tree; None leaves the limit of the caller."""

    cpu_s: int | None = None
    address_space_bytes: int | None = None
    """Counts reservations too; a process that reserves a large range wants `data_bytes` instead."""
    data_bytes: int | None = None
    """Heap and private writable mappings."""
    file_size_bytes: int | None = None
    open_files: int | None = None


@dataclass(frozen=True)
class Ended:
    """How a command ended."""

    outcome: Literal["exited", "signalled", "timeout", "killed"]
    """`killed` if `Process.kill` or the caller's own end came first."""
    code: int
    """Exit status or signal number; 0 for the other outcomes."""
    cpu_s: float
    """CPU time of the whole tree."""
    peak_bytes: int
    """Largest resident set of any process of the tree."""


@dataclass(frozen=True)
class Completed(Ended):
    """How a command ended and what it wrote."""

    stdout: bytes
    stderr: bytes
    truncated: bool
    """Whether output beyond `max_output_bytes` of either stream was thrown away."""
    wall_s: float


class Process:
    """A command that runs in the sandbox; use it as a context manager, or call `kill` in the end."""

    def __init__(self, popen: subprocess.Popen[bytes], status_fd: int, lifeline_fd: int) -> None:
        """Take over a started launcher; `spawn` calls this."""
        self._popen = popen
        self._status_fd = status_fd
        self._lifeline_fd: int | None = lifeline_fd
        self._ended: Ended | InfrastructureError | None = None

    @property
    def pid(self) -> int:
        """Process id of the launcher, the root of the command's tree."""
        return self._popen.pid

    @property
    def stdin(self) -> IO[bytes] | None:
        """Unbuffered pipe to the command, where one was asked for."""
        return self._popen.stdin

    @property
    def stdout(self) -> IO[bytes] | None:
        """Unbuffered pipe from the command, where one was asked for."""
        return self._popen.stdout

    @property
    def stderr(self) -> IO[bytes] | None:
        """Unbuffered pipe from the command, where one was asked for."""
        return self._popen.stderr

    def poll(self) -> Ended | None:
        """Return how the command ended, or None while it runs."""
        return self.wait(0.0)

    def wait(self, timeout_s: float | None = None) -> Ended | None:
        """Wait until command and descendants are gone; return how it ended, or None if `timeout_s` passed first.

        Raises:
            InfrastructureError: if the launcher could not execute the command at all.
        """
        if self._ended is None:
            try:
                self._popen.wait(timeout_s)
            except subprocess.TimeoutExpired:
                return None
            self._ended = _parse_status(_read_present(self._status_fd), self._popen.returncode)
            self._close()
        if isinstance(self._ended, InfrastructureError):
            raise self._ended
        return self._ended

    def kill(self) -> Ended:
        """End the command and every descendant, if they still run; wait until they are gone."""
        if self._lifeline_fd is not None:
            os.close(self._lifeline_fd)
            self._lifeline_fd = None
        self._popen.terminate()  # a child that another thread forked may hold our end of the lifeline
        ended = self.wait(_LAUNCHER_GRACE_S)
        if ended is None:
            self._popen.kill()  # the command itself goes with its parent (PR_SET_PDEATHSIG)
            ended = self.wait()
        assert ended is not None
        return ended

    def __enter__(self) -> Process:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        with contextlib.suppress(InfrastructureError):  # a failure to start is for `wait` to raise
            self.kill()
        for stream in (self.stdin, self.stdout, self.stderr):
            if stream is not None:
                with contextlib.suppress(BrokenPipeError):
                    stream.close()

    def _close(self) -> None:
        os.close(self._status_fd)
        if self._lifeline_fd is not None:
            os.close(self._lifeline_fd)
            self._lifeline_fd = None


def spawn(
    argv: Sequence[str | Path],
    *,
    access: Access = Access(),
    limits: Limits = Limits(),
    timeout_s: float | None = None,
    env: Mapping[str, str] = SCRUBBED_ENVIRONMENT,
    cwd: Path | None = None,
    network: bool = False,
    processes: bool = True,
    pass_fds: Sequence[int] = (),
    stdin: int = subprocess.DEVNULL,
    stdout: int = subprocess.DEVNULL,
    stderr: int = subprocess.DEVNULL,
    filesystem: Filesystem | None = None,
) -> Process:
    """Start `argv` in the sandbox, as strictly as the machine allows.

    Args:
        argv: Program (absolute path) and arguments.
        access: What it can open, beside the harmless devices.
        limits: Limits for each of its processes.
        timeout_s: Wall-clock limit, None for a long-lived worker.
        env: Its whole environment.
        cwd: Its working directory.
        network: Whether it may create sockets.
        processes: Whether it may start processes and signal others; threads are always allowed.
        pass_fds: Descriptors that it inherits beside 0, 1 and 2.
        stdin: As for `subprocess.Popen`; so are `stdout` and `stderr`.
        stdout: See `stdin`.
        stderr: See `stdin`.
        filesystem: How to restrict the file view; by default the best way that works here.

    Raises:
        InfrastructureError: if the launcher cannot be started.
    """
    offered = isolation()
    options = ["--filesystem", filesystem or offered.filesystem]
    if offered.seccomp == "ok":
        options.append("--seccomp")
    options += _access_options(access) + _limit_options(limits)
    if not network:
        options += ["--deny", "network"]
    if not processes:
        options += ["--deny", "processes"]
    if cwd is not None:
        options += ["--directory", str(cwd)]
    if timeout_s is not None:
        options += ["--timeout-ms", str(max(1, round(timeout_s * 1000)))]
    for fd in pass_fds:
        options += ["--keep-fd", str(fd)]
    status_read, status_write = _pipe()
    try:
        lifeline_read, lifeline_write = _pipe()
    except InfrastructureError:
        os.close(status_read)
        os.close(status_write)
        raise
    options += ["--status-fd", str(status_write), "--lifeline-fd", str(lifeline_read), "--"]
    try:
        popen = subprocess.Popen(
            [native.program("sandbox"), *options, *argv],
            bufsize=0,
            stdin=stdin,
            stdout=stdout,
            stderr=stderr,
            env=dict(env),
            pass_fds=(*pass_fds, status_write, lifeline_read),
            start_new_session=True,  # a Ctrl-C at the terminal reaches us alone; we then end the tree
        )
    except OSError as error:
        os.close(status_read)
        os.close(lifeline_write)
        raise InfrastructureError(f"cannot start the sandbox launcher: {error.strerror}") from error
    finally:
        os.close(status_write)
        os.close(lifeline_read)
    return Process(popen, status_read, lifeline_write)


def run(
    argv: Sequence[str | Path],
    *,
    timeout_s: float,
    access: Access = Access(),
    limits: Limits = Limits(),
    env: Mapping[str, str] = SCRUBBED_ENVIRONMENT,
    cwd: Path | None = None,
    network: bool = False,
    processes: bool = True,
    pass_fds: Sequence[int] = (),
    stdin: bytes | None = None,
    max_output_bytes: int = 1 << 20,
    error_tail_bytes: int | None = None,
    filesystem: Filesystem | None = None,
    given_up: threading.Event | None = None,
) -> Completed:
    """Run `argv` in the sandbox to its end and return how it ended and what it wrote.

    Args:
        argv: Program (absolute path) and arguments.
        timeout_s: Wall-clock limit.
        access: What it can open, beside the harmless devices.
        limits: Limits for each of its processes.
        env: Its whole environment.
        cwd: Its working directory.
        network: Whether it may create sockets.
        processes: Whether it may start processes and signal others; threads are always allowed.
        pass_fds: Descriptors that it inherits beside 0, 1 and 2.
        stdin: What it reads; None is an empty input.
        max_output_bytes: How much of each output stream is kept; the rest is read and thrown away.
        error_tail_bytes: Of standard error, keep so much of its end instead; it truncates nothing.
        filesystem: How to restrict the file view; by default the best way that works here.
        given_up: Ends the command within a second once it is set: nobody waits for it any more.

    Raises:
        InfrastructureError: if the command could not be executed at all.
    """
    started = time.monotonic()
    given_up = given_up or threading.Event()
    process = spawn(
        argv,
        access=access,
        limits=limits,
        timeout_s=timeout_s,
        env=env,
        cwd=cwd,
        network=network,
        processes=processes,
        pass_fds=pass_fds,
        stdin=subprocess.DEVNULL if stdin is None else subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        filesystem=filesystem,
    )
    with process:
        deadline = started + timeout_s + _LAUNCHER_GRACE_S
        outputs, truncated = _exchange(process, stdin or b"", max_output_bytes, error_tail_bytes, deadline, given_up)
        ended = process.wait(0.0 if given_up.is_set() else _LAUNCHER_GRACE_S) or process.kill()
    return Completed(
        ended.outcome,
        ended.code,
        ended.cpu_s,
        ended.peak_bytes,
        outputs[0],
        outputs[1],
        truncated,
        time.monotonic() - started,
    )


def _access_options(access: Access) -> list[str]:
    options: list[str] = []
    for device in _DEVICES:
        options += ["--write", device]
    for name, paths in (("--read", access.read), ("--execute", access.execute), ("--write", access.write)):
        for path in paths:
            options += [name, str(path)]
    return options


def _limit_options(limits: Limits) -> list[str]:
    named = {
        "cpu": limits.cpu_s,
        "address-space": limits.address_space_bytes,
        "data": limits.data_bytes,
        "file-size": limits.file_size_bytes,
        "open-files": limits.open_files,
    }
    return [part for name, value in named.items() if value is not None for part in ("--limit", f"{name}={value}")]


def _exchange(
    process: Process,
    to_send: bytes,
    max_output_bytes: int,
    error_tail_bytes: int | None,
    deadline: float,
    given_up: threading.Event,
) -> tuple[tuple[bytes, bytes], bool]:
    """Feed the command and collect its output until both output pipes close, or nobody is there or waits any more.

    A pipe stays open although the launcher is gone where another thread forked while it was made.
    """
    assert process.stdout is not None and process.stderr is not None
    outputs = {process.stdout.fileno(): bytearray(), process.stderr.fileno(): bytearray()}
    tails = {} if error_tail_bytes is None else {process.stderr.fileno(): error_tail_bytes}
    truncated = False
    unsent = memoryview(to_send)
    with selectors.DefaultSelector() as selector:
        for fd in outputs:
            selector.register(fd, selectors.EVENT_READ)
        if process.stdin is not None:
            os.set_blocking(process.stdin.fileno(), False)
            selector.register(process.stdin.fileno(), selectors.EVENT_WRITE)
        while selector.get_map() and time.monotonic() < deadline and not given_up.is_set():
            ready = selector.select(1.0)
            if not ready and process.poll() is not None:
                break
            for key, _ in ready:
                kept = outputs.get(key.fd)
                if kept is None:
                    unsent = _feed(key.fd, unsent)
                    if not unsent and process.stdin is not None:
                        selector.unregister(key.fd)
                        process.stdin.close()
                    continue
                data = os.read(key.fd, 65536)
                if not data:
                    selector.unregister(key.fd)
                if (tail := tails.get(key.fd)) is not None:
                    kept += data
                    del kept[:-tail]
                    continue
                room = max_output_bytes - len(kept)
                kept += data[:room]
                truncated = truncated or len(data) > room
    stdout, stderr = (bytes(kept) for kept in outputs.values())
    return (stdout, stderr), truncated


def _feed(fd: int, data: memoryview) -> memoryview:
    """Write what fits; nothing is left to send if the command has closed its input."""
    try:
        return data[os.write(fd, data) :]
    except BrokenPipeError:
        return data[:0]


def _pipe() -> tuple[int, int]:
    try:
        return os.pipe()
    except OSError as error:
        raise InfrastructureError(f"cannot start the sandbox launcher: {error.strerror}") from error


def _read_present(fd: int) -> str:
    """Read what lies in a pipe whose writer has ended; others may still hold it open (see `_exchange`)."""
    os.set_blocking(fd, False)
    parts: list[bytes] = []
    with contextlib.suppress(BlockingIOError):
        while part := os.read(fd, 4096):
            parts.append(part)
    return b"".join(parts).decode(errors="replace").strip()


def _parse_status(line: str, launcher_status: int) -> Ended | InfrastructureError:
    """Read the launcher's line (`ptxgym/native/sandbox/supervise.hpp`)."""
    word, _, rest = line.partition(" ")
    if word == "error":
        return InfrastructureError(f"the sandbox cannot run its command: {rest}")
    numbers = [int(number) for number in rest.split()]
    if word in ("exited", "signalled") and len(numbers) == 3:
        outcome: Literal["exited", "signalled"] = "exited" if word == "exited" else "signalled"
        return Ended(outcome, numbers[0], numbers[1] / 1000, numbers[2] * 1024)
    if word == "timeout" and len(numbers) == 2:
        return Ended("timeout", 0, numbers[0] / 1000, numbers[1] * 1024)
    if word == "abandoned" and len(numbers) == 2:
        return Ended("killed", 0, numbers[0] / 1000, numbers[1] * 1024)
    if launcher_status < 0:
        return Ended("killed", 0, 0.0, 0)
    return InfrastructureError(f"the sandbox launcher ended with status {launcher_status} and said {line!r}")
