"""The process that sends a run to wandb: `python -m ptxgym.track.wandb_process FOLDER`.

It reads `track/events.jsonl` as it grows, and ends when whoever started it says so or is gone. It says on its standard
output that it has begun and where the run is to be seen, or what went wrong. `track/wandb.json` holds under which id
the run goes on and which lines were sent. This is the only file that knows wandb.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import sys
import threading
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ptxgym.errors import UsageError
from ptxgym.extras import need
from ptxgym.store.lines import to_json, write_whole
from ptxgym.store.lock import FolderLock
from ptxgym.track.lines import EVENTS, FOLDER, Artifact, Ended, Event, Line, Logged, Opened, Row
from ptxgym.track.sender import FINISH_S
from ptxgym.verdict import Value

STATE = "wandb.json"
PROJECT = "ptxgym"
"""Where `WANDB_PROJECT` names none."""
INIT_S = 20.0
"""wandb's own patience when it begins; its default is 90 s."""
POLL_S = 0.5
MARK_S = 20.0
"""wandb writes to its own file every 15 s: a line that was handed over so long ago survives a kill."""
EARLIER_S = 20.0
"""How long the process of an earlier sitting, which is ending, is waited for."""
GROWN_BY = 0.1
"""By which share a table grows before it is sent again: wandb shows the last 100 pieces of one."""


class State(Value):
    """What a later sitting must know."""

    id: str
    project: str
    entity: str | None = None
    sent: int = 0
    """So many lines of the file are wandb's."""


class EventReader:
    """Reads the whole lines of a file that grows."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._at = 0

    def new(self) -> Iterator[Event]:
        """Yield what has come since the last call."""
        with self._path.open("rb") as file:
            file.seek(self._at)
            for line in file:
                if not line.endswith(b"\n"):
                    return
                self._at += len(line)
                yield Line.model_validate_json(line).root


class WandbRun:
    """A run of wandb's, fed with events in their order."""

    def __init__(self, folder: Path, first: Opened) -> None:
        """Begin the run, or go on with it.

        Raises:
            Exception: whatever wandb raises.
        """
        self._wandb: Any = need("wandb", "tracking needs", "wandb")
        self._folder = folder
        self._path = folder / FOLDER / STATE
        self.state = self._stored() or State(
            id=os.environ.get("WANDB_RUN_ID") or uuid.uuid4().hex[:8],
            project=os.environ.get("WANDB_PROJECT") or PROJECT,
            entity=os.environ.get("WANDB_ENTITY") or None,
        )
        write_whole(self._path, to_json(self.state) + "\n")
        wanted = {
            "console": "off",  # the run's output is not this process's
            "disable_git": True,  # an address of a remote may hold a token
            "disable_code": True,
            "silent": True,
            "init_timeout": INIT_S,
            "finish_timeout": FINISH_S - INIT_S,
        }
        wanted = {name: value for name, value in wanted.items() if f"WANDB_{name.upper()}" not in os.environ}
        known = self._wandb.Settings.model_fields
        self.run: Any = self._wandb.init(
            dir=None if os.environ.get("WANDB_DIR") else str(folder / FOLDER),
            id=self.state.id,
            project=self.state.project,
            entity=self.state.entity,
            name=None if os.environ.get("WANDB_NAME") else first.name,
            resume="allow",
            settings=self._wandb.Settings(**{name: value for name, value in wanted.items() if name in known}),
        )
        self._sent, self._marked, self._marked_at = 0, self.state.sent, time.monotonic()
        self._seen: dict[str, tuple[int, set[str]]] = {}
        """By axis: the highest step, and the names of the numbers that came at it."""
        self._defined: set[str] = set()
        self._tables: dict[str, Any] = {}
        self._pending: dict[str, int] = {}

    @property
    def where(self) -> str:
        """Address of the run, or the folder of an offline one."""
        return str(self.run.url or Path(self.run.dir).parent)

    def take(self, event: Event) -> None:
        """Send an event, unless an earlier sitting did so."""
        number, self._sent = self._sent, self._sent + 1
        known = number < self.state.sent
        if isinstance(event, Opened):
            self.run.config.update({**event.config, "system": event.system}, allow_val_change=True)
        elif isinstance(event, Logged):
            self._log(event, number, known)
        elif isinstance(event, Artifact) and not known:
            self._artifact(event)
        if time.monotonic() - self._marked_at > MARK_S:
            self._mark(self._marked)
            self._marked, self._marked_at = self._sent, time.monotonic()

    def finish(self, failed: bool) -> None:
        """Send what is left, and remember that all is sent."""
        for name in self._tables:
            self._send_table(name)
        self.run.finish(exit_code=int(failed))
        self._mark(self._sent)

    def _log(self, event: Logged, number: int, known: bool) -> None:
        """Send numbers by their own axis; wandb's step is the number of the line, which only grows."""
        values = self._new(event)
        if event.row is not None and not (known and self.run.resumed):
            self._add(event.row)
        if known or values is None:
            return
        self._define(event)
        self.run.log({event.axis: event.step, **values}, step=number)
        if event.row is not None and self._pending[event.row.table] >= GROWN_BY * self._rows(event.row.table):
            self._send_table(event.row.table, number)

    def _new(self, event: Logged) -> dict[str, float] | None:
        """Return what of an event has not come before, None if all has.

        Training that goes on from a checkpoint repeats some steps; one step may come in several events, as a trainer
        logs its loss, its evaluation and its run time.
        """
        step, names = self._seen.get(event.axis, (-1, set()))
        if event.step < step:
            return None
        if event.step > step:
            names = set()
        values = {name: value for name, value in event.values.items() if name not in names}
        self._seen[event.axis] = event.step, names | values.keys()
        return values if values or event.step > step else None

    def _define(self, event: Logged) -> None:
        """Let each group of numbers be drawn over its own axis."""
        groups = [f"{name.rpartition('/')[0]}/*" if "/" in name else name for name in event.values]
        for name in (event.axis, *groups):
            if name not in self._defined:
                self.run.define_metric(name, **({} if name == event.axis else {"step_metric": event.axis}))
                self._defined.add(name)

    def _add(self, row: Row) -> None:
        if row.table not in self._tables:
            self._tables[row.table] = self._wandb.Table(
                columns=list(row.cells), allow_mixed_types=True, log_mode="INCREMENTAL"
            )
            self._pending[row.table] = 0
        table = self._tables[row.table]
        table.add_data(*(row.cells.get(column) for column in table.columns))
        self._pending[row.table] += 1

    def _rows(self, name: str) -> int:
        return len(self._tables[name].data)

    def _send_table(self, name: str, number: int | None = None) -> None:
        if self._pending[name]:
            self.run.log({name: self._tables[name]}, step=self._sent if number is None else number)
            self._pending[name] = 0

    def _artifact(self, event: Artifact) -> None:
        found = self._wandb.Artifact(event.name, type=event.type, metadata=event.metadata)
        for name, path in event.files.items():
            if (self._folder / path).is_file():
                found.add_file(str(self._folder / path), name=name)
        self.run.log_artifact(found)

    def _mark(self, sent: int) -> None:
        if sent > self.state.sent:
            write_whole(self._path, to_json(self.state.model_copy(update={"sent": sent})) + "\n")

    def _stored(self) -> State | None:
        return State.model_validate_json(self._path.read_bytes()) if self._path.is_file() else None


def send(folder: Path, say: Any) -> None:
    """Send a run until whoever started this process ends it.

    Args:
        folder: Of the run.
        say: Takes what the starter should know.

    Raises:
        Exception: whatever goes wrong.
    """
    parent = os.getppid()
    reader = EventReader(folder / FOLDER / EVENTS)
    with _alone(folder / FOLDER / "wandb"):
        events = list(reader.new())
        run = WandbRun(folder, next(event for event in events if isinstance(event, Opened)))
        say({"ready": run.where})
        over, last, sent = False, events[-1], False
        try:
            while events or not over:
                for last in events:
                    run.take(last)
                if not over and (select.select([0], [], [], POLL_S)[0] or os.getppid() != parent):
                    over = True
                    _end_soon()
                events = list(reader.new())
            run.finish(failed=not isinstance(last, Ended) or last.failed)
            sent = True
        finally:
            if not sent:
                _end_soon()
                with contextlib.suppress(Exception):  # what wandb has taken so far shall not be lost
                    run.run.finish(exit_code=1)


@contextlib.contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """Keep others from sending the same run; one of an earlier sitting may still be ending."""
    folder.mkdir(exist_ok=True)
    until = time.monotonic() + EARLIER_S
    while True:
        try:
            lock = FolderLock(folder)
            break
        except UsageError:
            if time.monotonic() > until:
                raise
            time.sleep(POLL_S)
    with lock:
        yield


def _end_soon() -> None:
    """End this process, and what wandb has started, at the latest in `FINISH_S`."""
    timer = threading.Timer(FINISH_S, lambda: os.killpg(os.getpgid(0), signal.SIGKILL))
    timer.daemon = True
    timer.start()


def main() -> None:
    """Send the run in the folder that the command line names."""
    told = os.dup(1)  # what wandb prints is for nobody
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, 1)
    os.dup2(null, 2)

    def say(message: dict[str, str]) -> None:
        with contextlib.suppress(OSError):
            os.write(told, f"{json.dumps(message)}\n".encode())

    status = 0
    try:
        send(Path(sys.argv[1]), say)
    except BaseException as error:
        first = next(iter(str(error).splitlines()), "")
        say({"problem": f"{type(error).__name__}: {first}" if first else type(error).__name__})
        status = 1
    os._exit(status)  # whatever wandb registered to be done at the end has had its time


if __name__ == "__main__":
    main()
