"""The process of a worker: `python -m ptxgym.cluster.worker SOCKET CORES CACHE`. It ends with who started it.

Messages are pickles between a process and its own child, which trust each other: `(number, what, argument)` one way,
`(number, value or exception)` the other. Nothing that a submission runs in has the socket.
"""

from __future__ import annotations

import contextlib
import fcntl
import importlib
import os
import pickle
import platform
import signal
import socket
import sys
import threading
import traceback
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from multiprocessing.connection import Connection
from multiprocessing.reduction import ForkingPickler
from typing import Any

from ptxgym.cache import Cache


def claim_core(cache: Cache) -> int | None:
    """Keep this process, and what it starts, to a core that no other worker of this user has taken; None if none is.

    The core is held by a lock that ends with the process.
    """
    for core in sorted(os.sched_getaffinity(0)):
        name = "".join(letter if letter.isalnum() else "-" for letter in platform.node().lower())
        path = cache.root / "locks" / f"core-{name}-{core}"
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(descriptor)
            continue
        os.sched_setaffinity(0, {core})
        return core  # the descriptor stays open
    return None


def _packed(number: int, value: object) -> memoryview:
    """Return an answer as `Connection.recv` reads it; in place of what it could not read, an error that says so."""
    try:
        data = ForkingPickler.dumps((number, value))
        if isinstance(value, BaseException):
            pickle.loads(data)  # one with arguments of its own may be written, and not read
    except Exception as error:
        told = RuntimeError(f"{value!r} cannot be sent: {error}")
        for note in getattr(value, "__notes__", ()):  # where it was raised
            told.add_note(note)
        data = ForkingPickler.dumps((number, told))
    return data


def serve(stream: Connection) -> None:
    """Do what comes in until the other side hangs up."""
    replies = threading.Lock()

    def reply(number: int, value: object) -> None:
        data = _packed(number, value)
        with replies, contextlib.suppress(OSError):
            stream.send_bytes(data)

    def answer(number: int, function: Callable[..., Any], *arguments: object) -> None:
        try:
            value = function(*arguments)
        except BaseException as error:
            error.add_note("".join(traceback.format_exception(error)))
            value = error
        reply(number, value)

    number, _, config = stream.recv()
    try:
        module, _, name = config.maker.partition(":")
        station = getattr(importlib.import_module(module), name)(config)
        reply(number, station.describe())
    except BaseException as error:
        reply(number, error)
        return
    with ThreadPoolExecutor(config.slots + 1) as threads:
        while True:
            try:
                number, what, argument = stream.recv()
            except (EOFError, OSError):
                os.killpg(0, signal.SIGKILL)  # nobody is there to take an answer: end all that was started, too
            if what == "step":
                threads.submit(answer, number, station.step, argument)
            else:
                threads.submit(answer, number, station.probe)


def main() -> None:
    """Serve the socket that the arguments name."""
    descriptor, cores, cache = sys.argv[1:]
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for who started it
    if cores == "pinned":
        claim_core(Cache(cache or None))  # what it starts counts one core, too
    serve(Connection(socket.socket(fileno=int(descriptor)).detach()))


if __name__ == "__main__":
    main()
