"""The process that runs the core: `python -m ptxgym.device.emulator.worker SOCKET ARENA LIBRARY`.

It serves jobs over an inherited socket until the other side hangs up. Inputs and outputs lie in an inherited memory
file. Whatever a submission does to the core ends here.
"""

from __future__ import annotations

import json
import mmap
import os
import signal
import socket
import sys
import threading
import time
import traceback
from pathlib import Path
from typing import Any

import numpy as np

from ptxgym.device.emulator import wire
from ptxgym.device.emulator.core import Bytes, Core
from ptxgym.device.emulator.sample import run_sample
from ptxgym.device.emulator.session import Session

_WATCH_INTERVAL_S = 0.25


def main(arguments: list[str]) -> int:
    """Serve until the evaluator has gone."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the evaluator's business
    if arguments[0] == "--replay":
        return replay(Path(arguments[1]), Path(arguments[2]))
    parent = os.getppid()
    threading.Thread(target=_end_with, args=(parent,), daemon=True).start()
    stream = socket.socket(fileno=int(arguments[0]))
    arena = _Arena(int(arguments[1]))
    session = Session(Core(Path(arguments[2])))
    wire.send(stream, {"ready": True})
    while True:
        try:
            job, blobs = wire.receive(stream)
        except EOFError:
            return 0
        answer, out = _answer(session, job, blobs, arena)
        wire.send(stream, answer, out)


def replay(folder: Path, library: Path) -> int:
    """Run the job of a reproducer (`pool.py` writes them) again in this process."""
    job = json.loads((folder / "job.json").read_text(encoding="utf-8"))
    blobs = [(folder / f"blob{index}.bin").read_bytes() for index in range(job["blobs"])]
    job["module"]["ptx"] = str(folder / "kernel.ptx")
    arena = np.frombuffer(bytearray((folder / "arena.bin").read_bytes()), np.uint8)
    answer, _ = Session(Core(library)).run(job, blobs, arena)
    sys.stderr.write(json.dumps({key: answer[key] for key in ("outcome", "warp_instructions") if key in answer}) + "\n")
    return 0


def _answer(
    session: Session, job: dict[str, Any], blobs: list[bytes], arena: _Arena
) -> tuple[dict[str, Any], list[bytes]]:
    try:
        if "sample" in job:
            return run_sample(session, job, blobs, arena.descriptor)
        return session.run(job, blobs, arena.view(job["arena_bytes"]))
    except Exception:  # a fault of the emulator itself: the evaluator raises it as InfrastructureError
        return {"outcome": "error", "trace": traceback.format_exc()}, []


def _end_with(parent: int) -> None:
    """End this process when its parent has gone, even in the middle of a job.

    A parent-death signal would not do: it comes when the *thread* that started the worker ends.
    """
    while os.getppid() == parent:
        time.sleep(_WATCH_INTERVAL_S)
    os._exit(0)


class _Arena:
    """The shared memory file, mapped as far as jobs need it."""

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor
        self._map: mmap.mmap | None = None

    def view(self, size: int) -> Bytes:
        if self._map is None or len(self._map) < size:
            self._map = mmap.mmap(self.descriptor, max(size, mmap.PAGESIZE))
        return np.frombuffer(self._map, np.uint8)[:size]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
