"""Is the GPU well after a fault? A trusted kernel in the judge's own context, and what the driver counts.

A submission's fault ends its own context and nothing else; whatever shows beyond that is the machine's failure.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

from ptxgym.device.cuda.gpu import Gpu, counters
from ptxgym.device.cuda.nvml import Counters, NvmlError, XidWatch
from ptxgym.errors import InfrastructureError

PROBE_LIMIT_S = 20.0
TRIES = 2
LEAST_FREE = 0.05
"""Share of the memory below which the next submission would fail for want of it."""

HARDWARE_XIDS = frozenset({48, 61, 62, 63, 64, 74, 79, 92, 94, 95, 119, 120, 121, 140})
"""Xid errors that name hardware or firmware, not a program ("Xid Errors", docs.nvidia.com/deploy/xid-errors): double
bit ECC, remapped rows, NVLink, a GPU that fell off the bus, GSP time-outs. A program's faults are 13, 31, 43, 45."""


class Health:
    """Watches one GPU from the start of the judge process on."""

    def __init__(
        self,
        gpu: Gpu,
        probe: Callable[[], bool],
        count: Callable[[Gpu], Counters] = counters,
        xids: Callable[[], tuple[int, ...]] | None = None,
    ) -> None:
        """Take the counters as they are now for normal.

        Args:
            gpu: The GPU.
            probe: Runs something trusted on it; returns whether the result is right, or raises.
            count: Reads the driver's counters.
            xids: Xid errors since the last call; by default those that NVML reports.
        """
        self._gpu = gpu
        self._probe = probe
        self._count = count
        self._xids = xids or _watch(gpu)
        self._before = count(gpu)
        self._mutex = threading.Lock()

    def check(self) -> None:
        """Accept a GPU that is well.

        Raises:
            InfrastructureError: if it is not; says what to do.
        """
        with self._mutex:
            problem = self._hardware_problem() or self._probe_problem() or self._memory_problem()
        if problem is not None:
            raise InfrastructureError(f"{self._gpu.name} is not well: {problem}")

    def _hardware_problem(self) -> str | None:
        seen = [number for number in self._xids() if number in HARDWARE_XIDS]
        if seen:
            return f"the driver reported Xid {', '.join(map(str, seen))}; see `dmesg`, then reset or replace the GPU"
        now = self._count(self._gpu)
        before = self._before
        if (now.uncorrected_ecc or 0) > (before.uncorrected_ecc or 0):
            return "its memory had an uncorrectable error; reset it (`nvidia-smi --gpu-reset`)"
        if now.remap_failed:
            return "rows of its memory could not be remapped; replace it"
        if now.remap_pending and not before.remap_pending:
            return "rows of its memory wait for being remapped; reset it (`nvidia-smi --gpu-reset`)"
        return None

    def _probe_problem(self) -> str | None:
        """Run the probe; a second time, since the first may have met the driver cleaning up."""
        problem: str | None = None
        for _ in range(TRIES):
            problem = _tried(self._probe)
            if problem is None:
                return None
        return f"{problem}; see `nvidia-smi` and `dmesg`, end what hangs there, or reset it (`nvidia-smi --gpu-reset`)"

    def _memory_problem(self) -> str | None:
        free = self._count(self._gpu).free_bytes
        if free >= LEAST_FREE * self._gpu.memory_bytes:
            return None
        return f"only {free / 2**20:.0f} MiB of its memory are free; end what else runs there (`nvidia-smi`)"


def _tried(probe: Callable[[], bool]) -> str | None:
    """Run the probe on a thread of its own, since a GPU that hangs never returns; say what is wrong."""
    said: list[str | None] = []

    def run() -> None:
        try:
            said.append(None if probe() else "a trusted kernel computes wrong numbers")
        except Exception as error:
            said.append(f"a trusted kernel fails: {error}")

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(PROBE_LIMIT_S)
    return said[0] if said else f"a trusted kernel does not end within {PROBE_LIMIT_S:g} s"


def _watch(gpu: Gpu) -> Callable[[], tuple[int, ...]]:
    try:
        return XidWatch(gpu.uuid).seen
    except NvmlError:  # containers may hide events; counters and probe remain
        return tuple
