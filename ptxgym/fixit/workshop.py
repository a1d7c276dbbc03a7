"""The folder in which a training set is made, over as many sittings as it takes.

fixit.json         recipe, seed and runs: written once, by `mine`
mined.jsonl        the failed kernels
secret             what inputs and hidden shapes are drawn from when repairs are judged, for this user alone
repairs.jsonl      a line when a failure is settled
rationales.jsonl   a line when a rationale is settled
repair/, rationale/, rationale-direct/   the answers of teachers, on disk before they are looked at

Nothing that is on record is asked or settled again.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import secrets
from collections.abc import Iterable, Iterator
from pathlib import Path

from ptxgym.bench.journal import Journal
from ptxgym.errors import ContentError, UsageError
from ptxgym.fixit.recipe import FixitRecipe
from ptxgym.fixit.records import FailedKernel, Rationale, Repair
from ptxgym.store.lines import LineWriter, read_lines, to_json, write_whole
from ptxgym.store.records import SCHEMA
from ptxgym.verdict import Value

FRONT = "fixit.json"
MINED = "mined.jsonl"
REPAIRS = "repairs.jsonl"
RATIONALES = "rationales.jsonl"
SECRET = "secret"


class Front(Value):
    """What a training set is made of."""

    schema_version: int = SCHEMA
    ptxgym: str
    recipe: FixitRecipe
    seed: int
    runs: tuple[str, ...]
    """SHA-256 of each run's front matter, sorted."""
    canaries: tuple[str, ...]
    """Of the runs: strings that must not stand in any row."""


class Workshop:
    """A folder that `mine` has filled."""

    def __init__(self, folder: Path) -> None:
        """Open a folder.

        Raises:
            UsageError: if `mine` has not written there.
            ContentError: if a file was changed.
        """
        path = folder / FRONT
        if not path.is_file():
            raise UsageError(f"{folder} holds no mined kernels: there is no {FRONT}; begin with `ptxgym fixit mine`")
        front = next(read_lines(path, Front), None)
        if front is None:
            raise ContentError(f"{path} is empty or cut off: it was changed after it was written")
        self.folder = folder
        self.front = front
        self.mined = tuple(read_lines(folder / MINED, FailedKernel))

    @classmethod
    def begin(cls, folder: Path, front: Front, mined: Iterable[FailedKernel]) -> Workshop:
        """Write a sample; one that is there already is left as it is, if it is the same.

        Raises:
            UsageError: if the folder holds another sample.
            InfrastructureError: if it cannot be written.
        """
        folder.mkdir(parents=True, exist_ok=True)
        lines, head = "".join(f"{to_json(each)}\n" for each in mined), f"{to_json(front)}\n"
        files = {folder / MINED: lines, folder / FRONT: head}
        if (folder / FRONT).is_file():
            changed = [path.name for path, text in files.items() if path.read_text(encoding="utf-8") != text]
            if changed:
                raise UsageError(f"{folder} holds another sample ({', '.join(changed)} differ); choose another folder")
        else:
            if not (folder / SECRET).is_file():
                write_whole(folder / SECRET, secrets.token_hex(32), 0o600)
            for path, text in files.items():  # the front last: with it the folder is complete
                write_whole(path, text)
        return cls(folder)

    @property
    def secret(self) -> str:
        """What repairs are judged with.

        Raises:
            UsageError: if it was taken away.
        """
        path = self.folder / SECRET
        if not path.is_file():
            raise UsageError(f"{path} is not there: repairs that are settled were judged with it; put it back")
        return path.read_text(encoding="utf-8")

    def repairs(self) -> dict[str, Repair]:
        """Return what became of failures so far, by `FailedKernel.id`."""
        return {repair.failure: repair for repair in read_lines(self.folder / REPAIRS, Repair)}

    def rationales(self, direct: bool) -> dict[str, Rationale]:
        """Return the rationales so far, by row."""
        found = read_lines(self.folder / RATIONALES, Rationale)
        return {rationale.row: rationale for rationale in found if rationale.direct is direct}

    @contextlib.contextmanager
    def writing(self, file: str, journal: str) -> Iterator[tuple[LineWriter, Journal]]:
        """Open a file of results and a journal of answers, for this process alone.

        Raises:
            UsageError: if another process writes here.
            InfrastructureError: if they cannot be written.
        """
        answers = self.folder / journal
        answers.mkdir(exist_ok=True)
        lock = os.open(self.folder / FRONT, os.O_RDONLY | os.O_CLOEXEC)
        try:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise UsageError(f"another process writes to {self.folder}; wait for it, or end it") from None
            replies = Journal(answers)
            try:
                with LineWriter(self.folder / file) as lines:
                    yield lines, replies
            finally:
                replies.close()
        finally:
            os.close(lock)
