"""The process that sends a run to wandb, as the run sees it: started, watched, given up, and never waited for long.

Nothing of wandb is imported here. It may hang, end its process or fill its disk: all that is lost is that process.
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import queue
import select
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

from ptxgym.extras import missing
from ptxgym.track.secrets import without_secrets

START_S = 60.0
"""The longest that wandb may take to begin, before it is begun anew without a network."""
FINISH_S = 120.0
"""The longest that the end of a run waits for wandb."""
_STOP_S = 3.0
"""Between asking a process to end and ending it."""
_KEEPS = "WANDB_"
"""Begins the names of the variables that the process gets though they may hold a secret: wandb's own key."""


def check_wandb() -> None:
    """Raise unless wandb is installed; it is not imported, which takes seconds.

    Raises:
        UsageError: says what to install.
    """
    if importlib.util.find_spec("wandb") is None:
        raise missing("wandb", "--track wandb needs", "wandb")


class Sender:
    """Feeds wandb from the file of a tracker, from where the last sitting came to."""

    def __init__(self, folder: Path, start_s: float = START_S) -> None:
        """Begin to send, in the background.

        Args:
            folder: Of the run.
            start_s: The longest that wandb may take to begin.
        """
        self._folder = folder
        self._start_s = start_s
        self.where = ""
        """Address of wandb's run, or the folder of an offline one; empty before it has begun."""
        self._problems: queue.SimpleQueue[str] = queue.SimpleQueue()
        self._guard = threading.Lock()
        self._ending = self._given_up = False
        self._process: subprocess.Popen[bytes] | None = None
        self._thread = threading.Thread(target=self._watch, name="wandb", daemon=True)
        self._watched = True
        try:
            self._thread.start()
        except RuntimeError as error:  # no thread is left to be had
            self._watched = False
            self._problem(f"wandb cannot begin ({error})")

    def problems(self) -> list[str]:
        """Return what went wrong since the last call."""
        found = []
        with contextlib.suppress(queue.Empty):
            while True:
                found.append(self._problems.get_nowait())
        return found

    def finish(self, wait_s: float) -> None:
        """Let the process send the rest and end; wait for that up to a bound, then end it.

        Args:
            wait_s: 0 leaves the process to itself: it ends in `FINISH_S` at the latest.
        """
        with self._guard:
            self._ending = True
            self._no_more()
        if not wait_s or not self._watched:
            return
        self._thread.join(wait_s)
        if self._thread.is_alive():
            self._problem(f"wandb did not finish within {wait_s:g} s")
            self._given_up = True
            _end(self._process)
            self._thread.join(_STOP_S)

    def _watch(self) -> None:
        """Begin as wandb's variables say; where that fails, offline; where that fails too, not at all."""
        reasons: list[str] = []
        for mode in ({}, {"WANDB_MODE": "offline"}):
            try:
                process = self._started(mode)
            except OSError as error:  # no memory, no process or no file is left to be had
                reasons.append(f"its process cannot be started: {error.strerror or error}")
                continue
            why = self._began(process)
            if why is None:
                if reasons:
                    self._problem(f"wandb cannot begin ({reasons[0]}) and writes an offline run to {self.where}", True)
                self._ended(process)
                return
            reasons.append(why)
            if self._given_up:
                return
        self._problem(f"wandb cannot begin ({'; offline: '.join(dict.fromkeys(reasons))})")

    def _started(self, mode: dict[str, str]) -> subprocess.Popen[bytes]:
        with self._guard:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "ptxgym.track.wandb_process", str(self._folder)],
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, bufsize=0,
                env={**without_secrets(os.environ, _KEEPS), **mode}, start_new_session=True,
            )  # fmt: skip
            if self._ending:
                self._no_more()
            return self._process

    def _began(self, process: subprocess.Popen[bytes]) -> str | None:
        """Return why a process did not begin to send, or None; then it says nothing more until it fails."""
        line, until = b"", time.monotonic() + self._start_s
        assert process.stdout is not None
        output = process.stdout.fileno()
        while not line.endswith(b"\n"):
            if not select.select([output], [], [], max(0.0, until - time.monotonic()))[0]:
                why = f"no sign within {self._start_s:g} s"
                break
            letter = os.read(output, 1)
            if not letter:
                why = f"its process ended with {process.wait()}"
                break
            line += letter
        else:
            told = _parsed(line)
            self.where, why = told.get("ready", ""), told.get("problem", "")
            if not why:
                return None
        _end(process)
        process.stdout.close()
        with self._guard:
            self._no_more()
        return why

    def _ended(self, process: subprocess.Popen[bytes]) -> None:
        """Wait for the end of a process that sends."""
        assert process.stdout is not None
        with process.stdout as output:
            said = output.read()
        code = process.wait()
        why = next((told["problem"] for told in map(_parsed, said.splitlines()) if "problem" in told), None)
        if not self._given_up and (why is not None or code):
            self._problem(f"wandb failed ({why or f'its process ended with {code}'})")

    def _no_more(self) -> None:
        """Let the process end: by a word, since others may hold the pipe open."""
        if self._process is not None and self._process.stdin is not None and not self._process.stdin.closed:
            with contextlib.suppress(OSError):
                self._process.stdin.write(b"\n")
            self._process.stdin.close()

    def _problem(self, message: str, offline: bool = False) -> None:
        way = "`wandb sync` sends it" if offline else "--resume --track wandb sends what is missing"
        self._problems.put(f"{message}; the run goes on, and {self._folder}/track holds all of it: {way}")


def _parsed(line: bytes) -> dict[str, Any]:
    with contextlib.suppress(ValueError):
        found = json.loads(line)
        if isinstance(found, dict):
            return found
    return {}


def _end(process: subprocess.Popen[bytes] | None) -> None:
    """End a process and those that it has started: first asked to, then made to."""
    if process is None:
        return
    for number in (signal.SIGTERM, signal.SIGKILL):
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, number)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(_STOP_S)
