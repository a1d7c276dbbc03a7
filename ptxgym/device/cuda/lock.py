"""Who may use a GPU now: many beside each other, or one alone, across threads, processes and users.

Files in the temp folder, named by the GPU's UUID, are locked with flock(2), which the kernel releases when a holder
dies. Everybody passes a *turnstile* to get at the lock proper; who waits to be alone keeps the turnstile, so that a
stream of newcomers cannot hold him off. Whoever comes first creates the files; others open them for reading only, which
flock permits and which `fs.protected_regular` (Documentation/admin-guide/sysctl/fs.rst of Linux) does not forbid.

There are two such pairs of files: one for work of milliseconds, one for work of seconds (a profiler, a sanitizer, the
start of a process). Who wants to be alone first waits for the long work to end, while the short goes on beside it, and
then for the short. With one pair, every step of every evaluation would wait whenever a race waits for a profiler.
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
    long: bool = False
    """Beside short work; a race waits for it first."""
    descriptors: tuple[int, ...] = field(default=(), repr=False)

    @property
    def held_s(self) -> float:
        """How long it is, or was, held."""
        return (time.monotonic() if self.released_s is None else self.released_s) - self.granted_s


@dataclass(frozen=True)
class _Gate:
    """A lock that many may share, or one have alone, and the turnstile in front of it."""

    turnstile: Path
    lock: Path


class DeviceLock:
    """The lock of one GPU; every instance for the same UUID is the same lock.

    A thread that holds it may take it again, unless it wants more than it has: it would wait for itself.
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
        self._short = _Gate(folder / f"ptxgym-{uuid}.turnstile", folder / f"ptxgym-{uuid}.lock")
        self._long = _Gate(folder / f"ptxgym-{uuid}.long-turnstile", folder / f"ptxgym-{uuid}.long-lock")
        self._mine = threading.local()

    def shared(self, timeout_s: float = TIMEOUT_S, *, long: bool = False) -> contextlib.AbstractContextManager[Hold]:
        """Hold the GPU beside other sharers; nobody is alone on it meanwhile.

        Args:
            timeout_s: how long to wait.
            long: the work may take seconds.

        Raises:
            InfrastructureError: if it was not granted within `timeout_s`; names the holders where they are known.
            RuntimeError: if this thread holds it for short work and wants it for long.
        """
        return self._taken(Hold(False, 0.0, 0.0, long=long), timeout_s)

    def exclusive(self, timeout_s: float = TIMEOUT_S) -> contextlib.AbstractContextManager[Hold]:
        """Hold the GPU alone.

        Raises:
            InfrastructureError: if it was not granted within `timeout_s`; names the holders where they are known.
            RuntimeError: if this thread holds it shared.
        """
        return self._taken(Hold(True, 0.0, 0.0), timeout_s)

    @property
    def mine(self) -> Hold | None:
        """What this thread holds."""
        hold: Hold | None = getattr(self._mine, "hold", None)
        return hold if hold is None or hold.descriptors else None

    @contextlib.contextmanager
    def _taken(self, wanted: Hold, timeout_s: float) -> Iterator[Hold]:
        if outer := self.mine:
            if wanted.exclusive and not outer.exclusive:
                raise RuntimeError(f"this thread shares GPU {self.uuid} and would wait for itself to be alone on it")
            if wanted.long and not (outer.long or outer.exclusive):
                raise RuntimeError(f"this thread has GPU {self.uuid} for short work; begin with the long work")
            yield outer
            return
        self._grant(wanted, timeout_s)
        self._mine.hold = wanted
        try:
            yield wanted
        finally:
            self._mine.hold = None
            _release(wanted)

    def _grant(self, hold: Hold, timeout_s: float) -> None:
        began = time.monotonic()
        deadline = began + timeout_s
        gates = (self._long, self._short) if hold.exclusive else (self._long,) if hold.long else (self._short,)
        try:
            for gate in gates:
                hold.descriptors += (self._passed(gate, hold.exclusive, deadline, timeout_s),)
        except BaseException:
            _release(hold)
            raise
        hold.granted_s = time.monotonic()
        hold.waited_s = hold.granted_s - began
        _HELD.add(hold)

    def _passed(self, gate: _Gate, exclusive: bool, deadline: float, timeout_s: float) -> int:
        """Return a descriptor that holds the gate's lock."""
        turnstile = self._locked(gate.turnstile, fcntl.LOCK_EX, deadline, timeout_s)
        try:
            return self._locked(gate.lock, fcntl.LOCK_EX if exclusive else fcntl.LOCK_SH, deadline, timeout_s)
        finally:
            os.close(turnstile)

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
        waiting = (self._short.turnstile, self._long.turnstile)
        holders = [*self.holders(), *(who for path in waiting for who in _holders(path))]
        who = ", ".join(dict.fromkeys(holders)) or "processes that /proc/locks does not show here"
        return (
            f"GPU {self.uuid} was not free within {timeout_s:g} s; its lock {self._short.lock} is held or awaited by "
            f"{who}; end what hangs there, or wait longer"
        )

    def holders(self) -> list[str]:
        """Return who holds the lock, such as `pid 4242 (exclusive)`; nobody where the kernel hides it."""
        return list(dict.fromkeys([*_holders(self._short.lock), *_holders(self._long.lock)]))


def _holders(path: Path) -> list[str]:
    try:
        found = path.stat()
        lines = Path("/proc/locks").read_text(encoding="ascii").splitlines()
    except OSError:
        return []
    place = f"{os.major(found.st_dev):02x}:{os.minor(found.st_dev):02x}:{found.st_ino}"
    rows = [line.split() for line in lines if "->" not in line]
    modes = {"READ": "shared", "WRITE": "exclusive"}
    return [f"pid {row[4]} ({modes[row[3]]})" for row in rows if row[1] == "FLOCK" and row[5] == place]


_HELD: weakref.WeakSet[Hold] = weakref.WeakSet()


def _release(hold: Hold) -> None:
    descriptors, hold.descriptors = hold.descriptors, ()
    hold.released_s = time.monotonic()
    _HELD.discard(hold)
    for descriptor in descriptors:
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
