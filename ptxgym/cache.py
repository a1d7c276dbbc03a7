"""A per-user cache of built things: content-addressed folders, published atomically, evicted by last use.

Layout under the root (mode 0700)::

    <kind>/<k0k1>/<key>/     an entry: its files (read-only) and `manifest.json`, which names their sizes
    tmp/<rand>/              staging folders, job folders and what is being deleted; swept when their owner is gone
    locks/<name>             files that builders of the same thing queue on

An entry appears by one `rename(2)` of a finished staging folder in the same file system, so that a reader sees all of
it or nothing, whatever is killed and when; of two writers of one key the first wins and both get the same path.
Entries in use and folders being filled are held by a shared `flock(2)`, which ends with the process, however it ends;
evictor and sweeper touch only what they can lock exclusively, and the evictor nothing used in the last ten minutes.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import functools
import json
import os
import re
import shutil
import stat
import tempfile
import threading
import time
import weakref
from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from ptxgym.errors import InfrastructureError, UsageError

DEFAULT_MAX_BYTES = 4 * 1024**3
RECENT_S = 600.0
"""An entry used within this time is never evicted, even if the cache is over its cap."""
ABANDONED_S = 24 * 3600.0
"""Where the file system has no `flock(2)` on folders, temporary ones are swept at this age."""
MAX_LEASES = 256
"""File descriptors that one process spends on entries in use; the oldest is given up first."""

_KEY = re.compile(r"[0-9a-f]{16,64}\Z")
_KIND = re.compile(r"[a-z][a-z0-9-]*\Z")
_MANIFEST = "manifest.json"
_FULL = frozenset({errno.ENOSPC, errno.EDQUOT})


@dataclass(frozen=True)
class CacheStats:
    """What the cache holds, per kind and in total."""

    root: Path
    max_bytes: int
    entries: dict[str, int]
    size_bytes: dict[str, int]

    @property
    def total_bytes(self) -> int:
        """Bytes of all entries."""
        return sum(self.size_bytes.values())

    @property
    def total_entries(self) -> int:
        """Number of all entries."""
        return sum(self.entries.values())


def default_root() -> Path:
    """Return `$PTXGYM_CACHE`, else `$XDG_CACHE_HOME/ptxgym`, else `~/.cache/ptxgym`; creates nothing."""
    chosen = os.environ.get("PTXGYM_CACHE")
    if chosen:
        return Path(chosen).expanduser().absolute()
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base and Path(base).is_absolute() else Path.home() / ".cache") / "ptxgym"


@functools.lru_cache(maxsize=4)
def _opened(root: Path) -> Cache:
    return Cache(root)


def default_cache() -> Cache:
    """Return the cache at `default_root()`, one object per root and process; raises as `Cache`."""
    return _opened(default_root())


class Cache:
    """A content-addressed cache of folders, safe under concurrent processes, threads and kills."""

    def __init__(self, root: Path | str | None = None, *, max_bytes: int = DEFAULT_MAX_BYTES) -> None:
        """Open (and create) the cache at `root`, by default `default_root()`.

        Raises:
            UsageError: if the folder belongs to another user or others may write to it.
            InfrastructureError: if it cannot be created or read.
        """
        self.root = Path(root).absolute() if root is not None else default_root()
        self.max_bytes = max_bytes
        self._leases: OrderedDict[Path, int] = OrderedDict()
        weakref.finalize(self, _close_all, self._leases)
        self._staged: dict[Path, int] = {}
        self._mutex = threading.RLock()
        self._published_since_trim = 0
        self._estimated_bytes: int | None = None
        with self._explained("create"):
            self.root.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._check_owner()
        with self._explained("use"):
            for name in ("tmp", "locks"):
                (self.root / name).mkdir(mode=0o700, exist_ok=True)
            self.sweep()

    @contextlib.contextmanager
    def _explained(self, what: str) -> Iterator[None]:
        """Say of what the file system refuses inside that it was the cache's, and the way out."""
        try:
            yield
        except OSError as error:
            way_out = "set PTXGYM_CACHE to a folder of your own"
            if error.errno in _FULL:
                way_out = "free some space there, or set PTXGYM_CACHE to a folder on a larger disk"
            reason = error.strerror or str(error)
            raise InfrastructureError(f"cannot {what} the cache folder {self.root}: {reason}; {way_out}") from error

    def _check_owner(self) -> None:
        status = self.root.stat()
        if status.st_uid != os.geteuid():
            raise UsageError(
                f"the cache folder {self.root} belongs to user {status.st_uid}, not to you (user {os.geteuid()}); "
                "set PTXGYM_CACHE to a folder of your own"
            )
        if status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
            raise UsageError(
                f"the cache folder {self.root} can be written by others (mode {stat.S_IMODE(status.st_mode):04o}); "
                f"run `chmod go-w {self.root}` if you trust what it holds, or set PTXGYM_CACHE to another folder"
            )

    def path(self, kind: str, key: str) -> Path:
        """Return where the entry `key` of `kind` lies or would lie.

        Raises:
            ValueError: if `kind` or `key` is not a plain lower-case name or hex digest.
        """
        if not _KIND.match(kind) or not _KEY.match(key):
            raise ValueError(f"not a cache kind and key: {kind!r}, {key!r}")
        return self.root / kind / key[:2] / key

    def get(self, kind: str, key: str, *, forever: bool = False) -> Path | None:
        """Return the folder of an entry and mark it as used, or None if there is none.

        The entry is leased to this process as one of the last `MAX_LEASES` used; with `forever`, until it ends.
        """
        entry = self.path(kind, key)
        lease = self._lease(entry)
        if lease is None:
            return None
        if not _intact(entry):
            os.close(lease)
            self._remove(entry)
            return None
        with contextlib.suppress(OSError):
            os.utime(entry)
        if not forever:
            self._keep(entry, lease)
        return entry

    def publish(self, kind: str, key: str, folder: Path) -> Path:
        """Make `folder` (from `staging()`, complete) the entry `key`; return its final place.

        If the entry is there already, that one is returned and `folder` is left for `staging()` to remove.

        Raises:
            InfrastructureError: if the file system refuses.
        """
        entry = self.path(kind, key)
        with self._explained("write to"):
            size_bytes = _seal(folder)
        while True:
            try:
                entry.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
                folder.rename(entry)
            except OSError as error:
                if error.errno not in (errno.ENOTEMPTY, errno.EEXIST) and not entry.is_dir():
                    raise InfrastructureError(f"cannot store a cache entry at {entry}: {error.strerror}") from error
                other = self.get(kind, key)
                if other is not None:
                    return other
                continue  # the other one was evicted in between, or was damaged and is gone now
            with self._mutex:
                lease = self._staged.pop(folder, None)
            if lease is not None:
                self._keep(entry, lease)
            self._account(size_bytes)
            return entry

    @contextlib.contextmanager
    def staging(self) -> Iterator[Path]:
        """Give a fresh private folder in the cache's file system; whatever is left of it goes away at the end.

        Raises:
            InfrastructureError: if the folder cannot be made, or the disk is full when the caller fills it.
        """
        while True:
            with self._explained("write to"):
                folder = Path(tempfile.mkdtemp(dir=self.root / "tmp"))
                lease = self._lease(folder)
            if lease is not None:
                break  # else a sweeper was faster than our lock
        with self._mutex:
            self._staged[folder] = lease
        try:
            yield folder
        except OSError as error:
            if error.errno not in _FULL:
                raise
            with self._explained("write to"):
                raise
        finally:
            _delete(folder)
            with self._mutex:
                held = self._staged.pop(folder, None)
            if held is not None:
                os.close(held)

    @contextlib.contextmanager
    def lock(self, name: str) -> Iterator[None]:
        """Hold the exclusive lock `name` among all processes and threads that use this cache."""
        if not re.fullmatch(r"[a-z0-9][a-z0-9.-]*", name):
            raise ValueError(f"not a lock name: {name!r}")
        with self._explained("write to"):
            descriptor = os.open(self.root / "locks" / name, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            yield
        finally:
            os.close(descriptor)

    def stats(self) -> CacheStats:
        """Count entries and bytes by kind."""
        entries: dict[str, int] = {}
        size_bytes: dict[str, int] = {}
        for kind, _, _, size in self._entries():
            entries[kind] = entries.get(kind, 0) + 1
            size_bytes[kind] = size_bytes.get(kind, 0) + size
        return CacheStats(self.root, self.max_bytes, entries, size_bytes)

    def close(self) -> None:
        """Give up the leases of this process, except those taken for ever."""
        with self._mutex:
            _close_all(self._leases)

    def clear(self) -> int:
        """Remove every entry that no process has in use; return the number removed."""
        return sum(self._evict(entry) for _, entry, _, _ in self._entries())

    def trim(self) -> int:
        """Evict least recently used entries until the cache is within 90 % of its cap; return the number removed."""
        entries = sorted(self._entries(), key=lambda item: item[2])
        total = sum(size for _, _, _, size in entries)
        removed = 0
        if total > self.max_bytes:
            newest_to_evict = time.time() - RECENT_S
            for _, entry, used, size in entries:
                if total <= self.max_bytes * 0.9 or used > newest_to_evict:
                    break
                if self._evict(entry):
                    total -= size
                    removed += 1
        with self._mutex:
            self._estimated_bytes = total
            self._published_since_trim = 0
        return removed

    def sweep(self) -> int:
        """Delete temporary folders whose owner is gone; return the number deleted."""
        deleted = 0
        for folder in (self.root / "tmp").iterdir():
            with _exclusive(folder, old_enough_s=ABANDONED_S) as free:
                if free:
                    _delete(folder)
                    deleted += 1
        return deleted

    def _entries(self) -> Iterator[tuple[str, Path, float, int]]:
        for kind in sorted(self.root.iterdir()):
            if kind.name in ("tmp", "locks") or not kind.is_dir():
                continue
            for entry in kind.glob("??/*"):
                with contextlib.suppress(FileNotFoundError, NotADirectoryError):
                    size = sum(file.stat().st_size for file in entry.rglob("*") if file.is_file())
                    yield kind.name, entry, entry.stat().st_mtime, size

    def _lease(self, folder: Path) -> int | None:
        """Open `folder` under a shared lock; None if it is not there (any more)."""
        try:
            descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except (FileNotFoundError, NotADirectoryError):
            return None
        with contextlib.suppress(OSError):  # a file system without flock(2): recency alone protects the entry
            fcntl.flock(descriptor, fcntl.LOCK_SH)
        with contextlib.suppress(FileNotFoundError):
            if os.path.samestat(os.fstat(descriptor), folder.stat()):
                return descriptor
        os.close(descriptor)
        return None

    def _keep(self, entry: Path, lease: int) -> None:
        with self._mutex:
            earlier = self._leases.pop(entry, None)
            self._leases[entry] = lease
            if earlier is not None:
                os.close(earlier)
            while len(self._leases) > MAX_LEASES:
                os.close(self._leases.popitem(last=False)[1])

    def _evict(self, entry: Path) -> bool:
        with _exclusive(entry, old_enough_s=ABANDONED_S) as free:
            return free and self._remove(entry)

    def _remove(self, entry: Path) -> bool:
        """Take `entry` out of sight by a rename, then delete it."""
        with self.staging() as trash:
            try:
                entry.rename(trash / "entry")
            except FileNotFoundError:
                return False
            return True

    def _account(self, size_bytes: int) -> None:
        with self._mutex:
            self._published_since_trim += 1
            if self._estimated_bytes is not None:
                self._estimated_bytes += size_bytes
            known = self._estimated_bytes is not None and self._published_since_trim < 64
            due = not known or (self._estimated_bytes or 0) > self.max_bytes
        if due:
            self.trim()


def _close_all(leases: OrderedDict[Path, int]) -> None:
    while leases:
        os.close(leases.popitem()[1])


@contextlib.contextmanager
def _exclusive(folder: Path, *, old_enough_s: float) -> Iterator[bool]:
    """Say whether nobody holds `folder`, and keep it so meanwhile; without flock(2), whether it is old enough."""
    try:
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except (FileNotFoundError, NotADirectoryError):
        yield False
        return
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            free = True
        except BlockingIOError:
            free = False
        except OSError:
            free = time.time() - os.fstat(descriptor).st_mtime > old_enough_s
        yield free
    finally:
        os.close(descriptor)


def _seal(folder: Path) -> int:
    """Write the manifest and make the files read-only; return the size in bytes."""
    sizes: dict[str, int] = {}
    for file in sorted(folder.rglob("*")):
        if file.is_file() and file.name != _MANIFEST:
            sizes[str(file.relative_to(folder))] = file.stat().st_size
            executable = file.stat().st_mode & 0o100
            file.chmod(0o500 if executable else 0o400)
    manifest = folder / _MANIFEST
    manifest.write_text(json.dumps(sizes), encoding="utf-8")
    manifest.chmod(0o400)
    return sum(sizes.values())


def _intact(entry: Path) -> bool:
    """Whether every file of the manifest has its size (a crash of the machine may leave empty files)."""
    try:
        sizes = json.loads((entry / _MANIFEST).read_text(encoding="utf-8"))
        return all((entry / name).stat().st_size == size for name, size in sizes.items())
    except (OSError, ValueError):
        return False


def _delete(folder: Path) -> None:
    """Delete a folder tree; another process may be deleting it too."""
    shutil.rmtree(folder, ignore_errors=True)
