"""A folder that one process writes to at a time, and whose others are told which one that is."""

from __future__ import annotations

import fcntl
import os
import platform
import sys
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import Self

from ptxgym.errors import UsageError
from ptxgym.store.lines import explained

LOCK = "lock"


class FolderLock:
    """An exclusive `flock` on a file in the folder; it ends with its process, however that ends.

    A file that its holder has removed meanwhile is none: of that name there may be another by now.
    """

    def __init__(self, folder: Path) -> None:
        """Take the lock.

        Raises:
            UsageError: if another process, or another part of this one, holds it; names that process.
            InfrastructureError: if the file cannot be opened, or its file system keeps no locks.
        """
        path = folder / LOCK
        self._file = -1
        with explained(path):
            while not self._same_file(path):
                self.close()
                self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
                try:
                    fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except BlockingIOError:
                    holder = os.read(self._file, 1000).decode(errors="replace").strip() or "it has not said which"
                    self.close()
                    raise UsageError(
                        f"another process writes to the run in {folder}: {holder}; wait for it, or end it"
                    ) from None
                except OSError:
                    self.close()
                    raise
            os.ftruncate(self._file, 0)
            os.write(self._file, f"{_this_process()}\n".encode(errors="backslashreplace"))

    def close(self) -> None:
        """Release the lock; calling it again does nothing."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1

    def _same_file(self, path: Path) -> bool:
        """Whether the open file is the one of that name."""
        if self._file < 0:
            return False
        try:
            return os.path.samestat(os.fstat(self._file), path.stat())
        except FileNotFoundError:
            return False

    def __enter__(self) -> Self:
        """Return the lock."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Release it."""
        self.close()


def _this_process() -> str:
    """Say who this is; without arguments, which may hold what should not be on record."""
    began = datetime.now(UTC).isoformat(timespec="seconds")
    return f"process {os.getpid()} ({Path(sys.argv[0] or sys.executable).name}) on {platform.node()}, since {began}"
