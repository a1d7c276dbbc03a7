"""Verdicts that outlive the process: one file each, written whole, under the key of their work.

A folder of results also holds the secret that its conditions are drawn from, so that a driver which starts again asks
for the same work. Layout (mode 0700): `secret`, `verdicts/<k0k1>/<key>.json`.
"""

from __future__ import annotations

import contextlib
import os
import re
import secrets
import tempfile
from collections import OrderedDict
from pathlib import Path

from pydantic import ValidationError

from ptxgym.errors import InfrastructureError
from ptxgym.verdict import Verdict

KEPT = 4096
"""Verdicts in memory."""
_KEY = re.compile(r"[0-9a-f]{64}\Z")


class Results:
    """Finished work by key, in memory, and on disk where a folder was given; one thread at a time may call it."""

    def __init__(self, folder: Path | None = None) -> None:
        """Open, and make, the folder.

        Raises:
            InfrastructureError: if that cannot be done.
        """
        self.folder = folder
        self._recent: OrderedDict[str, Verdict] = OrderedDict()
        if folder is None:
            return
        try:
            (folder / "verdicts").mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError as error:
            raise InfrastructureError(f"results cannot be kept in {folder}: {error.strerror}") from error

    def secret(self, given: bytes | None) -> bytes | None:
        """Return the secret that was given, else the folder's, which is drawn now where it has none yet.

        Raises:
            InfrastructureError: if it cannot be read or written.
        """
        if self.folder is None or given is not None:
            return given
        path = self.folder / "secret"
        try:
            with contextlib.suppress(FileExistsError):
                write_whole(path, secrets.token_hex(32).encode(), new=True)
            return path.read_bytes()
        except OSError as error:
            raise InfrastructureError(f"the secret of {self.folder} cannot be kept: {error.strerror}") from error

    def get(self, key: str) -> Verdict | None:
        """Return the verdict under a key; what cannot be read is evaluated again."""
        found = self._recent.get(key)
        if found is not None:
            self._recent.move_to_end(key)
            return found
        if self.folder is None or not _KEY.match(key):
            return None
        try:
            found = Verdict.model_validate_json(self._path(key).read_bytes())
        except (OSError, ValidationError):
            return None
        self._keep(key, found)
        return found

    def put(self, key: str, verdict: Verdict) -> None:
        """Keep a verdict.

        Raises:
            InfrastructureError: if the disk refuses; it stays in memory.
        """
        self._keep(key, verdict)
        if self.folder is None:
            return
        path = self._path(key)
        try:
            path.parent.mkdir(mode=0o700, exist_ok=True)
            write_whole(path, verdict.model_dump_json().encode())
        except OSError as error:
            raise InfrastructureError(f"a result cannot be written to {path}: {error.strerror}") from error

    def _path(self, key: str) -> Path:
        assert self.folder is not None
        return self.folder / "verdicts" / key[:2] / f"{key}.json"

    def _keep(self, key: str, verdict: Verdict) -> None:
        self._recent[key] = verdict
        self._recent.move_to_end(key)
        while len(self._recent) > KEPT:
            self._recent.popitem(last=False)


def write_whole(path: Path, data: bytes, *, new: bool = False) -> None:
    """Write a file so that it is there as a whole or not at all; with `new`, only if it is not there yet."""
    descriptor, name = tempfile.mkstemp(dir=path.parent, prefix=".")
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        if new:
            os.link(name, path)
        else:
            Path(name).replace(path)
    finally:
        Path(name).unlink(missing_ok=True)
