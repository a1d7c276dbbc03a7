"""Evaluations that were accepted and not answered yet, on disk: one file each, until the verdict is kept."""

from __future__ import annotations

import contextlib
import fcntl
import os
from pathlib import Path

from pydantic import ValidationError

from ptxgym.cluster.results import write_whole
from ptxgym.errors import InfrastructureError, UsageError
from ptxgym.serve.wire import Asked
from ptxgym.verdict import Value


class Accepted(Value):
    """One evaluation."""

    key: str
    asked: Asked
    until: float
    """Unix time of its last deadline."""


class Journal:
    """A folder of accepted evaluations; safe to share among threads as long as one key is one thread's."""

    def __init__(self, folder: Path) -> None:
        """Open, and make, the folder; it is this process's until `close`.

        Raises:
            InfrastructureError: if that cannot be done.
            UsageError: if another server has it.
        """
        self._folder = folder
        try:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._lock = os.open(folder / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            try:
                fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                os.close(self._lock)
                raise UsageError(
                    f"another server keeps its evaluations in {folder}: give this one another folder"
                ) from None
        except OSError as error:
            raise InfrastructureError(f"evaluations cannot be kept in {folder}: {error.strerror}") from error

    def put(self, accepted: Accepted) -> None:
        """Keep an evaluation.

        Raises:
            InfrastructureError: if the disk refuses.
        """
        path = self._path(accepted.key)
        try:
            write_whole(path, accepted.model_dump_json().encode())
        except OSError as error:
            raise InfrastructureError(f"an evaluation cannot be written to {path}: {error.strerror}") from error

    def drop(self, key: str) -> None:
        """Forget an evaluation that was answered; one that cannot be removed is found done at the next start."""
        with contextlib.suppress(OSError):
            self._path(key).unlink(missing_ok=True)

    def left(self) -> tuple[Accepted, ...]:
        """Return what earlier processes accepted and did not answer; what cannot be read is left out."""
        found = []
        for path in sorted(self._folder.glob("*.json")):
            with contextlib.suppress(OSError, ValidationError):
                found.append(Accepted.model_validate_json(path.read_bytes()))
        return tuple(found)

    def close(self) -> None:
        """Let others have the folder."""
        os.close(self._lock)

    def _path(self, key: str) -> Path:
        return self._folder / f"{key}.json"
