"""Where workers live: on this machine, or wherever Ray puts them."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

from ptxgym.cache import default_root
from ptxgym.cluster.engine import Described
from ptxgym.cluster.fleet import Fleet, check_local, local_fleet, local_gpus
from ptxgym.cluster.process import WorkerProcess
from ptxgym.cluster.protocol import ServiceStatus
from ptxgym.cluster.station import StationConfig
from ptxgym.cluster.work import Role
from ptxgym.device.cuda.gpu import Gpu
from ptxgym.errors import InfrastructureError


class Backend(Protocol):
    """Starts workers."""

    name: str
    ships: bool
    """Whether builds travel with their files between its workers."""

    def fleet(self, device: str) -> Fleet:
        """Return the fleet that uses what is there well.

        Raises:
            UsageError: if `device` is not `auto`, `emulator` or `cuda`.
            ResourcesMissing: if it cannot be had.
        """
        ...

    def check(self, fleet: Fleet) -> None:
        """Accept a fleet that can be had, within 10 s.

        Raises:
            ResourcesMissing: if something is missing; names what is there.
        """
        ...

    def hire(self, role: Role, config: StationConfig, tell: Callable[[str], None]) -> Described:
        """Start a worker and wait until it is ready.

        Args:
            role: The place that it fills.
            config: What it must know.
            tell: Takes what is waited for, where that takes long, and "" when it has come.

        Raises:
            InfrastructureError: if it does not come up; trying again may help.
            UsageError: if no try will ever succeed.
        """
        ...

    def shun(self, worker: Any) -> None:
        """Rather hire elsewhere than where this worker was, which was refused: its node has other versions."""
        ...

    def trouble(self) -> str:
        """Say why no worker can be reached, now or later; nothing where all is well. Never waits."""
        ...

    def give_up(self) -> None:
        """Let go of what is lost, so that this process outlives it; what is left is `close`."""
        ...

    def publish(self, status: ServiceStatus) -> None:
        """Show a status to `ptxgym cluster status`."""
        ...

    def close(self) -> None:
        """Let go of what is not a worker."""
        ...


class LocalBackend:
    """Worker processes on this machine."""

    name = "local"
    ships = False

    def __init__(self) -> None:
        self._numbers = itertools.count()
        self._mutex = threading.Lock()
        self._gpus: dict[str, Gpu] = {}
        self._board = Board()

    def fleet(self, device: str) -> Fleet:
        """Return the fleet for this machine; see `Backend.fleet`."""
        return local_fleet(device)

    def check(self, fleet: Fleet) -> None:
        """Accept a fleet that this machine can hold; see `Backend.check`."""
        check_local(fleet)

    def hire(self, role: Role, config: StationConfig, tell: Callable[[str], None]) -> Described:
        """Start a worker; see `Backend.hire`."""
        gpu = self._gpu(role)
        return WorkerProcess(config, f"{role.name} #{next(self._numbers)}", gpu.uuid if gpu is not None else "")

    def shun(self, worker: Any) -> None:
        """Do nothing: there is one machine."""

    def trouble(self) -> str:
        """Say nothing: this machine is there as long as this process."""
        return ""

    def give_up(self) -> None:
        """Do nothing; never called."""

    def publish(self, status: ServiceStatus) -> None:
        """Write the status to this process's file."""
        self._board.write(status)

    def close(self) -> None:
        """Take the file away."""
        self._board.remove()

    def _gpu(self, role: Role) -> Gpu | None:
        """Return the GPU of a role, always the same."""
        if not role.accelerator:
            return None
        with self._mutex:
            if role.name not in self._gpus:
                taken = {gpu.uuid for gpu in self._gpus.values()}
                free = [gpu for gpu in local_gpus().get(role.accelerator, []) if gpu.uuid not in taken]
                if not free:
                    raise InfrastructureError(f"no {role.accelerator} is left for worker {role.name}")
                self._gpus[role.name] = free[0]
            return self._gpus[role.name]


class Board:
    """The status of this process's service, in a file of the user's cache that others may read while it runs."""

    _numbers = itertools.count()

    def __init__(self) -> None:
        self._path = default_root() / "services" / f"{os.getpid()}-{next(self._numbers)}.json"

    def write(self, status: ServiceStatus) -> None:
        """Write the status; where the disk refuses, the old one stays."""
        temporary = self._path.with_suffix(".tmp")
        with contextlib.suppress(OSError):
            self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            temporary.write_text(
                json.dumps({"pid": os.getpid(), "at": time.time(), "status": status.model_dump(mode="json")}),
                encoding="utf-8",
            )
            temporary.replace(self._path)

    def remove(self) -> None:
        """Take the file away."""
        with contextlib.suppress(OSError):
            self._path.unlink(missing_ok=True)


def boards(folder: Path | None = None) -> list[tuple[int, float, ServiceStatus | None]]:
    """Return process, age in seconds and status of each service of this user that still runs on this machine.

    The status is None where another version of ptxgym wrote one that this version cannot read.
    """
    found = []
    for path in sorted((folder or default_root() / "services").glob("*.json")):
        try:
            written = json.loads(path.read_text(encoding="utf-8"))
            os.kill(written["pid"], 0)
        except (OSError, ValueError, KeyError):
            with contextlib.suppress(OSError):
                path.unlink()  # its process has ended without taking it away
            continue
        found.append((written["pid"], time.time() - written["at"], ServiceStatus.read(written["status"])))
    return found
