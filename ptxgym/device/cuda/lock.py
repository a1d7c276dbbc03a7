"""Who may use a GPU now: many beside each other, or one alone, across threads, processes and users.

Two files in the temp folder, named by the GPU's UUID, are locked with flock(2), which the kernel releases when a holder
dies. Everybody passes a *turnstile* to get at the lock proper; who waits to be alone keeps the turnstile, so that a
stream of newcomers cannot hold him off. Whoever comes first creates the files; others open them for reading only, which
flock permits and which `fs.protected_regular` (Documentation/admin-guide/sysctl/fs.rst of Linux) does not forbid.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import random
import re
import stat
import threading
import time
import weakref
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from ptxgym.errors import InfrastructureError, UsageError

TIMEOUT_S = 600.0
POLL_S = 0.001
"""How often a waiting thread asks: flock(2) itself knows no time limit."""
FOLDER = Path("/tmp")
"""Not $TMPDIR: users and jobs must agree on it."""
NO_ACCESS_PATIENCE_S = 1.0
"""How long a file may be unreadable: its creator is about to widen a mode that his umask narrowed."""


@dataclass(eq=False)
class Hold:
    """A lock that was granted."""

    exclusive: bool
    waited_s: float
    granted_s: float
    """By `time.monotonic`."""
    released_s: float | None = None
    descriptor: int | None = field(default=None, repr=False)

    @property
    def held_s(self) -> float:
        """How long it is, or was, held."""
        return (time.monotonic() if self.released_s is None else self.released_s) - self.granted_s


class DeviceLock:
    """The lock of one GPU; every instance for the same UUID is the same lock.

    A thread that holds it may take it again, unless it holds it shared and wants it alone: that would wait for itself.
    """

    def __init__(self, uuid: str, folder: Path = FOLDER) -> None:
        """Name the lock; nothing is opened before it is taken.

        Args:
            uuid: of the GPU, as NVML spells it; of the MIG instance where there is one.
            folder: where the files lie; everybody who shares the GPU must use the same.

        Raises:
            UsageError: if `uuid` could not be part of a file name.
        """
        if not re.fullmatch(r"[A-Za-z0-9._-]{1,100}", uuid):
            raise UsageError(f"{uuid!r} is no UUID of a GPU; pass what `nvidia-smi -L` prints, such as GPU-1a2b…")
        self.uuid = uuid
        self._turnstile = folder / f"ptxgym-{uuid}.turnstile"
        self._file = folder / f"ptxgym-{uuid}.lock"
        self._mine = threading.local()

    def shared(self, timeout_s: float = TIMEOUT_S) -> contextlib.AbstractContextManager[Hold]:
        """Hold the GPU beside other sharers; nobody is alone on it meanwhile.

        Raises:
            InfrastructureError: if it was not granted within `timeout_s`; names the holders where they are known.
        """
        return self._taken(exclusive=False, timeout_s=timeout_s)

    def exclusive(self, timeout_s: float = TIMEOUT_S) -> contextlib.AbstractContextManager[Hold]:
        """Hold the GPU alone.

        Raises:
            InfrastructureError: if it was not granted within `timeout_s`; names the holders where they are known.
            RuntimeError: if this thread holds it shared.
        """
        return self._taken(exclusive=True, timeout_s=timeout_s)

    @property
    def mine(self) -> Hold | None:
        """What this thread holds."""
        hold: Hold | None = getattr(self._mine, "hold", None)
        return hold if hold is None or hold.descriptor is not None else None

    @contextlib.contextmanager
    def _taken(self, exclusive: bool, timeout_s: float) -> Iterator[Hold]:
        if outer := self.mine:
            if exclusive and not outer.exclusive:
                raise RuntimeError(f"this thread shares GPU {self.uuid} and would wait for itself to be alone on it")
            yield outer
            return
        hold = self._granted(exclusive, timeout_s)
        self._mine.hold = hold
        try:
            yield hold
        finally:
            self._mine.hold = None
            _release(hold)

    def _granted(self, exclusive: bool, timeout_s: float) -> Hold:
        began = time.monotonic()
        deadline = began + timeout_s
        mode = fcntl.LOCK_EX if exclusive else fcntl.LOCK_SH
        gate = self._locked(self._turnstile, fcntl.LOCK_EX, deadline, timeout_s)
        try:
            descriptor = self._locked(self._file, mode, deadline, timeout_s)
        finally:
            os.close(gate)
        now = time.monotonic()
        hold = Hold(exclusive, now - began, now, descriptor=descriptor)
        _HELD.add(hold)
        return hold

    def _locked(self, path: Path, mode: int, deadline: float, timeout_s: float) -> int:
        """Return a descriptor of `path` that holds its flock."""
        while True:
            descriptor = _opened(path, deadline)
            try:
                while not _tried(descriptor, mode, path):
                    if time.monotonic() >= deadline:
                        raise InfrastructureError(self._too_long(timeout_s))
                    time.sleep(POLL_S * random.uniform(0.5, 1.5))
                if _still_named(descriptor, path):
                    return descriptor
            except BaseException:
                os.close(descriptor)
                raise
            os.close(descriptor)  # removed under us: whoever comes now locks another file

    def _too_long(self, timeout_s: float) -> str:
        holders = [*self.holders(self._file), *self.holders(self._turnstile)]
        who = ", ".join(dict.fromkeys(holders)) or "processes that /proc/locks does not show here"
        return (
            f"GPU {self.uuid} was not free within {timeout_s:g} s; its lock {self._file} is held or awaited by {who}; "
            "end what hangs there, or wait longer"
        )

    def holders(self, path: Path | None = None) -> list[str]:
        """Return who holds the lock, such as `pid 4242 (exclusive)`; nobody where the kernel hides it."""
        try:
            found = (path or self._file).stat()
            lines = Path("/proc/locks").read_text(encoding="ascii").splitlines()
        except OSError:
            return []
        place = f"{os.major(found.st_dev):02x}:{os.minor(found.st_dev):02x}:{found.st_ino}"
        rows = [line.split() for line in lines if "->" not in line]
        modes = {"READ": "shared", "WRITE": "exclusive"}
        return [f"pid {row[4]} ({modes[row[3]]})" for row in rows if row[1] == "FLOCK" and row[5] == place]


_HELD: weakref.WeakSet[Hold] = weakref.WeakSet()


def _release(hold: Hold) -> None:
    descriptor, hold.descriptor = hold.descriptor, None
    hold.released_s = time.monotonic()
    _HELD.discard(hold)
    if descriptor is not None:
        os.close(descriptor)


def _leave_to_parent() -> None:
    """Close a forked child's copies, which would keep the lock beyond its holder's life."""
    for hold in list(_HELD):
        _release(hold)


os.register_at_fork(after_in_child=_leave_to_parent)


def _opened(path: Path, deadline: float) -> int:
    """Open `path` for reading; create it where nobody has."""
    patience = min(deadline, time.monotonic() + NO_ACCESS_PATIENCE_S)
    flags = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW
    while True:
        try:
            descriptor = os.open(path, flags)
            break
        except FileNotFoundError:
            _create(path)
        except PermissionError as error:
            if time.monotonic() >= patience:
                raise InfrastructureError(
                    f"{path}: cannot be read; its owner must give everybody read access"
                ) from error
            time.sleep(POLL_S)
        except OSError as error:
            raise InfrastructureError(f"{path}: {error.strerror}; remove it, it must be a plain file") from error
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise InfrastructureError(f"{path}: is no plain file; remove it")
    return descriptor


def _create(path: Path) -> None:
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW, 0o644)
    except FileExistsError:
        return
    except OSError as error:
        raise InfrastructureError(f"{path}: {error.strerror}; the GPU's lock must be creatable there") from error
    try:
        os.fchmod(descriptor, 0o644)
    finally:
        os.close(descriptor)


def _tried(descriptor: int, mode: int, path: Path) -> bool:
    try:
        fcntl.flock(descriptor, mode | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno in (errno.EWOULDBLOCK, errno.EINTR):
            return False
        raise InfrastructureError(f"{path}: {error.strerror}; the folder must support flock(2)") from error
    return True


def _still_named(descriptor: int, path: Path) -> bool:
    mine = os.fstat(descriptor)
    try:
        named = path.stat(follow_symlinks=False)
    except FileNotFoundError:
        return False
    return (mine.st_dev, mine.st_ino) == (named.st_dev, named.st_ino)
