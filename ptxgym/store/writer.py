"""A run's folder while it is written: by one process at a time, in any number of sittings.

run.json          front matter, there before the first episode
secret            what inputs and hidden shapes are drawn from, for this user alone; not a record
episodes.jsonl    a line when an episode ends; the last line of an id counts
turns.jsonl       a line when a turn is complete
remeasured.jsonl  a line when a kernel has been judged under new conditions
lock              who writes, or wrote last; locked as long as it does
"""

from __future__ import annotations

import contextlib
from pathlib import Path
from types import TracebackType
from typing import Self

from ptxgym.errors import UsageError
from ptxgym.store import reader
from ptxgym.store.lines import LineWriter, explained, to_json, write_whole
from ptxgym.store.lock import LOCK, FolderLock
from ptxgym.store.reader import StoredRun, read_record, read_run
from ptxgym.store.records import EpisodeRecord, Remeasurement, RunRecord, TurnRecord

SECRET = "secret"


class RunWriter:
    """Appends to a run. What is on record is never written again."""

    def __init__(self, folder: Path) -> None:
        """Open the run in `folder` for this process alone.

        Raises:
            UsageError: if the folder holds no run, or another process writes to it.
            InfrastructureError: if it cannot be written.
        """
        read_record(folder)  # a folder without a run is left as it is
        self._open(folder, FolderLock(folder))

    @classmethod
    def begin(cls, folder: Path, record: RunRecord, secret: str) -> Self:
        """Write the front matter of a new run, and open it.

        Raises:
            UsageError: if the folder holds a run already, or another process begins one there.
            InfrastructureError: if it cannot be written.
        """
        with contextlib.ExitStack() as opened:
            with explained(folder):
                folder.mkdir(parents=True, exist_ok=True)
            lock = opened.enter_context(FolderLock(folder))
            if (folder / reader.RUN).exists():
                raise UsageError(f"{folder} holds a run already; resume it, or choose another folder")
            write_whole(folder / SECRET, secret, 0o600)
            write_whole(folder / reader.RUN, to_json(record) + "\n")
            opened.pop_all()
        writer = cls.__new__(cls)
        writer._open(folder, lock)
        return writer

    def _open(self, folder: Path, lock: FolderLock) -> None:
        """Open the files of a run that this process has locked."""
        with contextlib.ExitStack() as opened:  # whatever fails here must not keep the run locked
            self._lock = opened.enter_context(lock)
            self.folder = folder
            self.record = read_record(folder)
            self._episodes = opened.enter_context(LineWriter(folder / reader.EPISODES))
            self._turns = opened.enter_context(LineWriter(folder / reader.TURNS))
            self._remeasured = opened.enter_context(LineWriter(folder / reader.REMEASURED))
            self.stored: StoredRun = read_run(folder)
            """What was on record when the run was opened."""
            self._known = {(turn.episode, turn.turn) for turn in self.stored.turns}
            opened.pop_all()

    def turn(self, record: TurnRecord) -> bool:
        """Store a turn and return True; one that is on record, from before a kill, stays as it is."""
        key = record.episode, record.turn
        if key in self._known:
            return False
        self._turns.append(record)
        self._known.add(key)
        return True

    def episode(self, record: EpisodeRecord) -> None:
        """Store how an episode ended."""
        self._episodes.append(record)

    def remeasured(self, record: Remeasurement) -> None:
        """Store what a kernel came to under new conditions."""
        self._remeasured.append(record)

    def discard(self) -> bool:
        """Remove a run of which nothing is on record, and return whether it was one.

        Such as one that a wrong setting ended before its first answer: with the setting put right it would be another
        sweep, for which the folder should be free.
        """
        lines = list(self.folder.glob("*.jsonl"))
        if any(path.stat().st_size for path in lines):
            return False
        for path in (self.folder / reader.RUN, self.folder / SECRET, *lines, self.folder / LOCK):
            path.unlink(missing_ok=True)
        with contextlib.suppress(OSError):  # somebody's own files are in it
            self.folder.rmdir()
        return True

    def close(self) -> None:
        """Close all files and let other processes write; calling it again does nothing."""
        for file in (self._episodes, self._turns, self._remeasured, self._lock):
            file.close()

    def __enter__(self) -> Self:
        """Return the writer."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close it."""
        self.close()


def stored_secret(folder: Path) -> str | None:
    """Return the secret of the run in `folder`; None where it was taken away, as from a run that is published."""
    path = folder / SECRET
    return path.read_text(encoding="utf-8") if path.is_file() else None
