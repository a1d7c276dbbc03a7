"""Files of one JSON object a line that survive a kill at any point.

A line is one `write`, then `fsync`. What a kill or a full disk leaves of a last line is dropped, by readers and by the
next writer; anything else that cannot be read is an error that names file and line.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import threading
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar

from pydantic import BaseModel, ValidationError

from ptxgym.errors import ContentError, InfrastructureError

Line = TypeVar("Line", bound=BaseModel)


class LineWriter:
    """Appends models to a file, one a line; safe to share among threads, not among processes."""

    def __init__(self, path: Path) -> None:
        """Open (and create) `path`, and drop what is torn at its end.

        Raises:
            InfrastructureError: if it cannot be opened or written.
        """
        self.path = path
        self._lock = threading.Lock()
        self._unsure = False
        """Whether the file may end otherwise than `_size` says."""
        with explained(path):
            self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
            self._size = _sound_bytes(path.read_bytes())
            os.ftruncate(self._file, self._size)
            os.fsync(self._file)
            sync_folder(path.parent)

    def append(self, line: BaseModel) -> None:
        """Write `line` and wait until it is on the disk.

        Raises:
            InfrastructureError: if it cannot be written whole, or may not be on the disk; the file is then as it was.
                Where it could not be made so, no more is written until it is opened anew.
        """
        data = f"{to_json(line)}\n".encode()
        with self._lock:
            if self._unsure:
                raise InfrastructureError(f"{self.path} was left with half a line when the disk failed; open it anew")
            try:
                written = os.write(self._file, data)
                if written == len(data):
                    os.fsync(self._file)
                why = "" if written == len(data) else "the disk is full"
            except OSError as error:
                why = error.strerror or str(error)
            if why:
                self._take_back()
                raise InfrastructureError(f"cannot write to {self.path}: {why}; free space, or mend the disk")
            self._size += written

    def _take_back(self) -> None:
        """Cut the file to what is certainly on the disk: a line that is there but was not vouched for comes twice."""
        self._unsure = True
        with contextlib.suppress(OSError):
            os.ftruncate(self._file, self._size)
            os.fsync(self._file)
            self._unsure = False

    def in_place(self) -> bool:
        """Return whether what is written stands at `path`: the file is open, and neither removed nor replaced."""
        with self._lock:
            if self._file < 0:
                return False
            try:
                return os.path.samestat(os.fstat(self._file), self.path.stat())
            except OSError:
                return False

    def close(self) -> None:
        """Close the file; calling it again does nothing."""
        with self._lock:
            if self._file >= 0:
                os.close(self._file)
                self._file = -1

    def __enter__(self) -> Self:
        """Return the writer."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close the file."""
        self.close()


def read_lines(path: Path, model: type[Line]) -> Iterator[Line]:
    """Yield the lines of `path` as `model`; none if there is no such file, and no line that is torn at its end.

    Raises:
        ContentError: if a line is not what it should be; names file, line and key.
    """
    if not path.exists():
        return
    data = path.read_bytes()
    for number, line in enumerate(data[: _sound_bytes(data)].splitlines(), 1):
        try:
            yield model.model_validate(json.loads(line))
        except ValidationError as error:
            first = error.errors()[0]
            where = ".".join(str(part) for part in first["loc"])
            raise ContentError(
                f"{path}, line {number}: {where}: {first['msg']}; it was written by another version"
            ) from error
        except ValueError as error:
            raise ContentError(f"{path}, line {number}: {error}; the file was changed after it was written") from error


def write_whole(path: Path, text: str, mode: int = 0o644) -> None:
    """Write a file that is there whole or not at all, whatever is killed and when.

    Raises:
        InfrastructureError: if it cannot be written.
    """
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    with explained(path):
        file = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, mode)
        with os.fdopen(file, "w", encoding="utf-8") as stream:
            stream.write(text)
            stream.flush()
            os.fsync(stream.fileno())
        beside.rename(path)
        sync_folder(path.parent)


def to_json(value: BaseModel) -> str:
    """Return `value` as one line of strict JSON in ASCII.

    A model may answer with lone surrogates, which no UTF-8 holds: they stay escapes. Infinities and NaN are strings.
    """
    return json.dumps(_strict(value.model_dump(mode="json")), ensure_ascii=True, allow_nan=False)


def sync_folder(folder: Path) -> None:
    """Wait until the names in `folder` are on the disk."""
    file = os.open(folder, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(file)
    finally:
        os.close(file)


def _strict(value: Any) -> Any:
    """Replace the numbers that JSON lacks by the strings that pydantic reads as them."""
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    if isinstance(value, dict):
        return {key: _strict(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_strict(item) for item in value]
    return value


def _sound_bytes(data: bytes) -> int:
    """Return how many bytes are whole lines; a power cut may also leave a last line of zeros, or of half a page."""
    end = data.rfind(b"\n") + 1
    last = data[data.rfind(b"\n", 0, max(0, end - 1)) + 1 : end]
    if not last:
        return end
    try:
        json.loads(last)
    except ValueError:
        return end - len(last)
    return end


@contextlib.contextmanager
def explained(path: Path) -> Iterator[None]:
    """Turn what the system says about `path` into an `InfrastructureError` that names it."""
    try:
        yield
    except OSError as error:
        raise InfrastructureError(f"cannot write {path}: {error.strerror or error}") from error
