"""The judge process of one GPU: `python -m ptxgym.device.cuda.role SOCKET BENCH GPU`.

It is long-lived and trusted: it holds inputs, references and baselines, and gives every submission an executor of its
own. Each request has its own thread; a request that cannot be served is answered with a typed error. It ends
with the evaluator that started it, and takes along everything that it started itself.
"""

from __future__ import annotations

import contextlib
import faulthandler
import importlib
import json
import os
import re
import resource
import signal
import socket
import sys
import threading
import time
import traceback
from concurrent.futures import Future
from typing import Protocol, cast

from ptxgym.device.cuda.channel import Channel, Error, Frame, Kind
from ptxgym.device.cuda.gpu import Gpu
from ptxgym.device.cuda.measure import measure
from ptxgym.device.cuda.model import Announced, Request, Witness
from ptxgym.device.cuda.tools import Tools
from ptxgym.errors import InfrastructureError, UsageError

REAL_BENCH = "ptxgym.device.cuda.bench:Bench"
_WATCH_INTERVAL_S = 0.25
_SHORT = re.compile(
    r"the GPU's memory is short|the CUDA driver refuses a memory region.*CUDA_ERROR_OUT_OF_MEMORY"
    r"|[^:]* is not well: only \d+ MiB of its memory"
)
"""As `measure`, `regions` and `health` say it."""
SWITCH_S = 0.0005
"""After which a thread hands Python's global lock over: the one that times waits for all that read listings."""


class Bench(Protocol):
    """What a judge process has on its GPU."""

    def tools(self) -> Tools:
        """Return the tools; the first call may take seconds.

        Raises:
            InfrastructureError: if the GPU or a package cannot be used.
        """

    def expect(self, announced: Announced, more: int) -> None:
        """Expect so many more such evaluations (−1: one fewer); returns at once, so that calls keep their order."""

    def make_ready(self, announced: Announced) -> None:
        """Have what such an evaluation needs; may take seconds.

        Raises:
            InfrastructureError: if it cannot be had.
        """

    def close(self) -> None:
        """End all processes that were started."""


class Role:
    """Serves requests over a channel until the other side hangs up."""

    def __init__(self, channel: Channel, bench: Bench) -> None:
        self._channel = channel
        self._bench = bench
        self._witnesses: dict[int, Future[Witness]] = {}
        self._was_short = False
        """Whether an evaluation found no memory, and the process went on for those beside it."""
        self._mutex = threading.Lock()

    def serve(self) -> None:
        """Handle frames; returns when there will be no more."""
        while True:
            try:
                frame = self._channel.receive()
            except (EOFError, OSError, ValueError):
                return
            if frame.kind is Kind.CLOSE:
                return
            self._handle(frame)

    def _handle(self, frame: Frame) -> None:
        if frame.kind is Kind.MEASURE:
            with self._mutex:  # before its witness can come
                self._witnesses[frame.number] = Future()
            threading.Thread(target=self._answer, args=(frame,), daemon=True).start()
        elif frame.kind is Kind.WITNESS:
            self._resolve(frame)
        elif frame.kind in (Kind.EXPECT, Kind.FORGET):
            self._expect(frame)

    def _resolve(self, frame: Frame) -> None:
        with self._mutex:
            witness = self._witnesses.get(frame.number)
        if witness is None:  # the request is answered already
            return
        try:
            witness.set_result(frame.value)
        except Exception as error:  # unreadable: whoever waits for it is told
            witness.set_exception(InfrastructureError(f"the emulator's answer is unreadable: {error}"))

    def _expect(self, frame: Frame) -> None:
        """Count an evaluation in the order of the frames: one that is over at once must not be taken back first."""
        with contextlib.suppress(Exception):  # the request that follows says so
            announced = frame.value
            self._bench.expect(announced, 1 if frame.kind is Kind.EXPECT else -1)
            if frame.kind is Kind.EXPECT:
                threading.Thread(target=self._make_ready, args=(announced,), daemon=True).start()

    def _make_ready(self, announced: Announced) -> None:
        with contextlib.suppress(InfrastructureError):
            self._bench.make_ready(announced)

    def _answer(self, frame: Frame) -> None:
        """Serve one request, in a thread of its own."""
        lost = False
        with self._mutex:
            witness = self._witnesses[frame.number]
        try:
            request = frame.value
            if not isinstance(request, Request):
                raise UsageError(f"a request was expected, not {type(request).__name__}")
            answer = measure(request, self._bench.tools(), witness)
            self._send(Kind.ANSWER, frame.number, answer)
        except InfrastructureError as error:
            lost = memory_short(error) and self._is_full()
            self._send(Kind.ERROR, frame.number, Error("infrastructure", str(error), last=lost))
        except UsageError as error:
            self._send(Kind.ERROR, frame.number, Error("usage", str(error)))
        except BaseException as error:
            said = f"the judge process failed: {error!r}\n{traceback.format_exc()}"
            lost = context_lost(error)
            if memory_short(error):
                said = f"the GPU's memory is short: {error}; end what else runs there, or share one Evaluator"
                lost = lost or self._is_full()
            self._send(Kind.ERROR, frame.number, Error("infrastructure", said, last=lost))
        finally:
            with self._mutex:
                self._witnesses.pop(frame.number, None)
        if lost:  # nothing works in this process any more; the evaluator starts another one
            self._channel.close()

    def _is_full(self) -> bool:
        """Return whether to end for want of memory, which a new process does not hold yet.

        Not at once where others are at work here, who would fail too; but the second time.
        """
        with self._mutex:
            full = self._was_short or len(self._witnesses) == 1
            self._was_short = True
        return full

    def _send(self, kind: Kind, number: int, value: object) -> None:
        with contextlib.suppress(OSError):  # the evaluator has gone; the main thread sees it too
            self._channel.send(kind, number, value)


def context_lost(error: BaseException) -> bool:
    """Return whether an error of cupy, torch or the driver says that this process's CUDA context is gone.

    Errors that leave the context usable, such as running out of memory, do not count.
    """
    text = f"{type(error).__module__}.{type(error).__name__} {error}".lower()
    gone = ("illegal", "misaligned", "launch_failed", "launch failure", "launch_timeout", "ecc", "context_is_destroyed",
            "hardware_stack", "device-side", "unknown error", "device unavailable")  # fmt: skip
    return "cuda" in text and any(sign in text for sign in gone)


def memory_short(error: BaseException) -> bool:
    """Return whether an evaluation ended since the GPU's memory was short, here or in an executor.

    Only messages that begin as this package's own do: what an executor said last may be a submission's words.
    """
    return type(error).__name__ == "OutOfMemoryError" or _SHORT.match(str(error)) is not None  # cupy's or torch's


def main(arguments: list[str]) -> int:
    """Serve until the evaluator has gone."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the evaluator's business
    faulthandler.enable()
    sys.setswitchinterval(SWITCH_S)
    with contextlib.suppress(ValueError, OSError):  # every exported range of memory holds a descriptor
        most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    parent = os.getppid()
    threading.Thread(target=_end_with, args=(parent,), daemon=True).start()
    stream = socket.socket(fileno=int(arguments[0]))
    module, _, name = arguments[1].partition(":")
    described = json.loads(arguments[2])
    gpu = Gpu(**{**described, "cc": tuple(described["cc"])})
    bench = cast(Bench, getattr(importlib.import_module(module), name)(gpu))
    try:
        Role(Channel(stream), bench).serve()
    finally:
        bench.close()
        sys.stderr.flush()
        _end_group()
    return 0


def _end_with(parent: int) -> None:
    """End this process, and all in its group, when its parent has gone, even in the middle of a request."""
    while os.getppid() == parent:
        time.sleep(_WATCH_INTERVAL_S)
    _end_group()


def _end_group() -> None:
    """End every process of the group that the evaluator made for this one; never one that it shares with others."""
    if os.getpgid(0) == os.getpid():
        os.killpg(0, signal.SIGKILL)
    os._exit(0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
