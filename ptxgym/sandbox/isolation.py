"""What this machine offers to hold a process: probed once by trying it, never guessed from versions."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Literal

from ptxgym import native
from ptxgym.errors import InfrastructureError
from ptxgym.tools import run_tool

Level = Literal["full", "seccomp", "rlimits"]
Filesystem = Literal["landlock", "namespace", "none"]


@dataclass(frozen=True)
class Isolation:
    """The mechanisms that work here; where one does not, its field holds the system's reason instead of `ok`."""

    landlock: str
    landlock_abi: int
    """0 where there is none; TCP rules need 4, signal scoping 6."""
    namespace: str
    """Private mount namespace, the stand-in for Landlock."""
    seccomp: str

    @property
    def filesystem(self) -> Filesystem:
        """How the file view is restricted."""
        if self.landlock == "ok":
            return "landlock"
        return "namespace" if self.namespace == "ok" else "none"

    @property
    def level(self) -> Level:
        """`full` = system-call filter and file view; `seccomp` = filter only; `rlimits` = neither, or no filter."""
        if self.seccomp != "ok":
            return "rlimits"
        return "seccomp" if self.filesystem == "none" else "full"

    def explain(self) -> str:
        """Say in one line what is there and what is not, and why."""
        landlock = f"Landlock ABI {self.landlock_abi}" if self.landlock == "ok" else f"no Landlock ({self.landlock})"
        namespace = "mount namespaces" if self.namespace == "ok" else f"no mount namespaces ({self.namespace})"
        seccomp = "seccomp" if self.seccomp == "ok" else f"no seccomp ({self.seccomp})"
        return f"{self.level}: {seccomp}, {landlock}, {namespace}"


@functools.cache
def isolation() -> Isolation:
    """Probe the machine, once per process.

    Raises:
        InfrastructureError: if the launcher does not run.
    """
    launcher = native.program("sandbox")
    done = run_tool([launcher, "--probe"])
    if done.returncode:
        raise InfrastructureError(f"the sandbox launcher {launcher} failed its probe: {done.stderr.strip()[:500]}")
    found = dict(line.split(" ", 1) for line in done.stdout.splitlines())
    return Isolation(found["landlock"], int(found["landlock_abi"]), found["namespace"], found["seccomp"])
