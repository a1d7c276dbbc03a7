"""Trackers: where a run tells its numbers, its attempts and its artefacts while it goes on.

A tracker never ends a run that could go on, and nothing waits for a network: what a run tells goes into a file, and
wandb is fed from that file by a process of its own.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Iterable, Mapping
from contextlib import ExitStack
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import Literal, Protocol, Self

from pydantic import JsonValue

from ptxgym.errors import UnknownNameError
from ptxgym.store.lines import LineWriter, explained, read_lines
from ptxgym.store.lock import FolderLock
from ptxgym.track.lines import EVENTS, FOLDER, Artifact, Ended, Event, Line, Logged, Opened, Row
from ptxgym.track.secrets import Redactor
from ptxgym.track.sender import FINISH_S, Sender, check_wandb

TRACKERS = ("jsonl", "wandb")


class TrackingWarning(UserWarning):
    """Given once when something of a run is not tracked; the run goes on, and its files are complete."""


class Tracker(Protocol):
    """Takes what a run tells. Safe to share among threads."""

    def log(self, values: Mapping[str, float], *, axis: str, step: int, row: Row | None = None) -> None:
        """Take numbers at a step of an axis, and the row of a table that belongs to them."""

    def artifact(
        self, name: str, type: str, files: Mapping[str, Path], metadata: Mapping[str, JsonValue] | None = None
    ) -> None:
        """Take files of the run's folder, by their names in the artefact."""


def _warn(message: str) -> None:
    warnings.warn(message, TrackingWarning, stacklevel=2)


class JsonlTracker:
    """Writes `track/events.jsonl` in the folder of a run; one process at a time, in any number of sittings."""

    def __init__(
        self,
        folder: Path,
        name: str,
        config: Mapping[str, JsonValue],
        *,
        secrets: Iterable[str] = (),
        on_problem: Callable[[str], None] = _warn,
    ) -> None:
        """Begin a sitting.

        Args:
            folder: Of the run.
            name: Of the run.
            config: What is run.
            secrets: To take out of whatever is told, besides those that the environment holds.
            on_problem: Takes, in a sentence, what is not tracked; by default a `TrackingWarning`.

        Raises:
            UsageError: if another process tracks this run.
            InfrastructureError: if the file cannot be written.
            ContentError: if it was changed by someone else.
        """
        from ptxgym.track.system import system_info  # the process that feeds wandb needs no compilers

        self.folder = folder
        self._closed = False
        self._redacted = Redactor(os.environ, secrets)
        self._on_problem = on_problem
        own = folder / FOLDER
        with explained(own):
            own.mkdir(parents=True, exist_ok=True)
        with ExitStack() as opened:
            self._lock = opened.enter_context(FolderLock(own))
            self._file = opened.enter_context(LineWriter(own / EVENTS))
            self.before: tuple[Event, ...] = tuple(line.root for line in read_lines(own / EVENTS, Line))
            """What earlier sittings told."""
            self._write(Opened(at=_now(), name=name, config=dict(config), system=system_info()))
            opened.pop_all()

    def log(self, values: Mapping[str, float], *, axis: str, step: int, row: Row | None = None) -> None:
        """Take numbers; see `Tracker.log`.

        Raises:
            InfrastructureError: if they cannot be written.
        """
        numbers = {name: float(value) for name, value in values.items()}
        self._write(Logged(axis=axis, step=step, values=numbers, row=row))

    def artifact(
        self, name: str, type: str, files: Mapping[str, Path], metadata: Mapping[str, JsonValue] | None = None
    ) -> None:
        """Take files; see `Tracker.artifact`. One in which a secret stands is left out, and told.

        Raises:
            InfrastructureError: if they cannot be written down.
            ValueError: if a file is not in the run's folder.
        """
        kept = {}
        for label, path in files.items():
            if self._redacted.clean(path):
                kept[label] = str(path.relative_to(self.folder))
            else:
                self.problem(f"{path} is in no artefact: it cannot be read, or holds a key or another secret")
        if kept:
            self._write(Artifact(name=name, type=type, files=kept, metadata=dict(metadata or {})))

    def problem(self, message: str) -> None:
        """Tell what is not tracked."""
        self._on_problem(message)

    def close(self, *, failed: bool = False) -> None:
        """End the sitting; calling it again does nothing."""
        if self._closed:
            return
        self._closed = True
        try:
            self._write(Ended(at=_now(), failed=failed))
        finally:
            self._file.close()
            self._lock.close()

    def _write(self, event: Event) -> None:
        self._file.append(type(event).model_validate(self._redacted(event.model_dump(mode="json"))))

    def __enter__(self) -> Self:
        """Return the tracker."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End the sitting."""
        self.close(failed=kind is not None)


class WandbTracker(JsonlTracker):
    """Writes the file, and has a process of its own send it to wandb, in whichever mode wandb's variables say.

    Whatever becomes of wandb, the run goes on: what went wrong is told once, and what was not sent is sent by the next
    sitting of the run.
    """

    def __init__(
        self,
        folder: Path,
        name: str,
        config: Mapping[str, JsonValue],
        *,
        secrets: Iterable[str] = (),
        on_problem: Callable[[str], None] = _warn,
        finish_s: float = FINISH_S,
    ) -> None:
        """Begin a sitting; see `JsonlTracker`.

        Args:
            folder: Of the run.
            name: Of the run.
            config: What is run.
            secrets: To take out of whatever is told.
            on_problem: Takes what is not tracked.
            finish_s: The longest that the end of the run waits for wandb.

        Raises:
            UsageError: if wandb is not installed, or another process tracks this run.
        """
        check_wandb()
        self._finish_s = finish_s
        self._sender: Sender | None = None
        super().__init__(folder, name, config, secrets=secrets, on_problem=on_problem)
        self._sender = Sender(folder) if os.environ.get("WANDB_MODE") != "disabled" else None

    @property
    def where(self) -> str:
        """Address of wandb's run, or the folder of an offline one; empty before it has begun."""
        return self._sender.where if self._sender is not None else ""

    def close(self, *, failed: bool = False) -> None:
        """End the sitting and wait for wandb, up to a bound; where the run failed, let it end by itself."""
        try:
            super().close(failed=failed)
        finally:
            if self._sender is not None:
                self._sender.finish(0.0 if failed else self._finish_s)
                self._tell()

    def _write(self, event: Event) -> None:
        super()._write(event)
        self._tell()

    def _tell(self) -> None:
        """Tell what the sender met, in the thread of whoever tracks."""
        for message in self._sender.problems() if self._sender is not None else ():
            self.problem(message)


def open_tracker(
    tracker: str,
    folder: Path,
    name: str,
    config: Mapping[str, JsonValue],
    *,
    secrets: Iterable[str] = (),
    on_problem: Callable[[str], None] = _warn,
) -> JsonlTracker:
    """Begin a sitting with `jsonl` or `wandb`; see `JsonlTracker`.

    Raises:
        UnknownNameError: if there is no such tracker.
        UsageError: if wandb is not installed, or another process tracks this run.
        InfrastructureError: if the file cannot be written.
    """
    kind = WandbTracker if check_tracker(tracker) == "wandb" else JsonlTracker
    return kind(folder, name, config, secrets=secrets, on_problem=on_problem)


def check_tracker(tracker: str) -> Literal["jsonl", "wandb"]:
    """Return the name of a tracker that can be had.

    Raises:
        UnknownNameError: if there is none of that name.
        UsageError: if wandb is not installed.
    """
    if tracker == "wandb":
        check_wandb()
        return "wandb"
    if tracker == "jsonl":
        return "jsonl"
    raise UnknownNameError(f"--track {tracker}: must be {' or '.join(TRACKERS)}")


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds")
