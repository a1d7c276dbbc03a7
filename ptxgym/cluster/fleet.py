"""How many workers of which kind, and whether they can be had."""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType

from ptxgym.availability import missing_packages
from ptxgym.cluster.protocol import Kind
from ptxgym.cluster.work import Role
from ptxgym.content import unknown
from ptxgym.device.cuda.gpu import Gpu, gpus
from ptxgym.errors import ResourcesMissing, UnknownNameError, UsageError

ACCELERATORS: Mapping[str, str] = MappingProxyType(
    {"H100": "h100", "H200": "h100", "GH200": "h100", "B200": "b200", "GB200": "b200"}
)
"""Ray's names of GPUs (`ray.util.accelerators`), and the generation whose kernels they run."""

GPU_SLOTS = 8
"""Evaluations that a GPU worker has in work at a time: while one is timed alone, others are recorded, emulated beside
it and compared. With 8 one H200 with 16 cores came to 105.8 new texts a minute of tier `rl`."""


@dataclass(frozen=True)
class Fleet:
    """Workers of a service."""

    cpu: int = 0
    """That build and emulate, whatever is due; one core each."""
    build: int = 0
    """That only build, so that no GPU waits for a compiler."""
    gpus: Mapping[str, int] = field(default_factory=dict)
    """That measure, one GPU each: how many by accelerator, such as `{"H200": 4}`."""
    gpu_slots: int = GPU_SLOTS
    """Evaluations that each GPU worker has in work at a time."""

    def __post_init__(self) -> None:
        """Accept a fleet that can do something.

        Raises:
            UsageError: if a number is negative, an accelerator is unknown, or nobody builds or runs.
        """
        for name in self.gpus:
            if name not in ACCELERATORS:
                raise UnknownNameError(unknown("accelerator", name, ACCELERATORS))
        numbers = {"cpu": self.cpu, "build": self.build, **self.gpus}
        if odd := [f"{name}={number}" for name, number in numbers.items() if number < 0]:
            raise UsageError(f"a fleet cannot have fewer than 0 workers: {', '.join(odd)}")
        if self.gpu_slots < 1:
            raise UsageError(f"gpu_slots must be at least 1, not {self.gpu_slots}")
        for arch in sorted(set(ACCELERATORS.values())):
            same = [name for name, count in self.gpus.items() if count and ACCELERATORS[name] == arch]
            if len(same) > 1:
                raise UsageError(
                    f"{' and '.join(same)} both measure kernels for {arch}, and their speed-ups do not compare: make a "
                    "service for each"
                )
        if not self.cpu + self.build:
            raise UsageError("nobody in this fleet builds: give it `cpu` workers, or `build` workers beside GPUs")
        if not self.cpu and not any(self.gpus.values()):
            raise UsageError("nobody in this fleet runs what is built: give it `cpu` workers or GPUs")

    def roles(self) -> tuple[Role, ...]:
        """Return one role per worker."""
        both, only = frozenset({Kind.BUILD, Kind.EMULATE}), frozenset({Kind.BUILD})
        found = [Role(f"cpu {number}", both) for number in range(self.cpu)]
        found += [Role(f"build {number}", only) for number in range(self.build)]
        for name, count in self.gpus.items():
            measure = frozenset({Kind.MEASURE})
            found += [
                Role(f"{name} {number}", measure, self.gpu_slots, ACCELERATORS[name], name) for number in range(count)
            ]
        return tuple(found)

    def measures(self, arch: str) -> bool:
        """Whether kernels for `arch` are measured, not emulated."""
        return any(count and ACCELERATORS[name] == arch for name, count in self.gpus.items())

    def grown(self, now: Fleet) -> Fleet:
        """Return this fleet with whatever `now` has more of; what was not measured before is not measured later."""
        return Fleet(
            cpu=max(self.cpu, now.cpu) if self.cpu else 0,
            build=max(self.build, now.build) if self.build else 0,
            gpus={name: max(count, now.gpus.get(name, 0)) for name, count in self.gpus.items()},
            gpu_slots=self.gpu_slots,
        )

    def __str__(self) -> str:
        """Return such as `2 cpu, 4 build, 1 H200`."""
        numbers = {"cpu": self.cpu, "build": self.build, **self.gpus}
        return ", ".join(f"{number} {name}" for name, number in numbers.items() if number)


def cores() -> int:
    """Return how many cores this process may keep busy: those of its affinity, and its control group's quota."""
    allowed = len(os.sched_getaffinity(0))
    try:  # Documentation/admin-guide/cgroup-v2.rst: "$MAX $PERIOD", or "max"
        quota, period = Path("/sys/fs/cgroup/cpu.max").read_text(encoding="ascii").split()
        return max(1, min(allowed, math.ceil(int(quota) / int(period))))
    except (OSError, ValueError):
        return allowed


def accelerator(gpu: Gpu) -> str | None:
    """Return Ray's name of a GPU; None for one that nothing is measured on."""
    words = gpu.name.upper().replace("-", " ").split()
    return next((name for name in ACCELERATORS if name in words), None)


def most_of_each(gpus: Mapping[str, int]) -> dict[str, int]:
    """Return the most numerous accelerator of each generation: speed-ups on different ones do not compare."""
    chosen: dict[str, str] = {}
    for name, count in gpus.items():
        if count > gpus.get(chosen.get(ACCELERATORS[name], ""), 0):
            chosen[ACCELERATORS[name]] = name
    return {name: gpus[name] for name in chosen.values()}


def local_gpus() -> dict[str, list[Gpu]]:
    """Return this machine's whole GPUs by accelerator; none where the packages that measure are missing."""
    found: dict[str, list[Gpu]] = {}
    for gpu in () if missing_packages() else gpus():
        if (name := accelerator(gpu)) is not None and not gpu.mig:
            found.setdefault(name, []).append(gpu)
    return found


def local_fleet(device: str) -> Fleet:
    """Return the fleet that uses this machine well.

    Args:
        device: `auto` (GPUs where there are any, the emulator for the rest), `emulator` or `cuda` (GPUs, or an error).

    Raises:
        UsageError: if `device` is unknown.
        ResourcesMissing: if there is no GPU for `cuda`.
    """
    if device not in ("auto", "emulator", "cuda"):
        raise UsageError(f"device must be 'auto', 'emulator' or 'cuda', not {device!r}")
    have = {} if device == "emulator" else most_of_each({name: len(found) for name, found in local_gpus().items()})
    if device == "cuda" and not have:
        lacks = f' ({", ".join(missing_packages())} missing: pip install "ptxgym[gpu]")' if missing_packages() else ""
        raise ResourcesMissing(f"device 'cuda': no GPU can be used here{lacks}; there {_there(gpus())}")
    if not have:
        return Fleet(cpu=cores())
    return Fleet(cpu=max(1, cores() // 4), build=max(1, cores() // 2), gpus=have)


def check_local(fleet: Fleet) -> None:
    """Accept a fleet that this machine can hold.

    Raises:
        ResourcesMissing: if it lacks GPUs; names those that are there.
    """
    have = local_gpus()
    for name, count in fleet.gpus.items():
        if count > len(have.get(name, [])):
            packages = f"; {', '.join(missing_packages())} not installed" if gpus() and missing_packages() else ""
            raise ResourcesMissing(
                f"asked for {count} × {name}, but there {_there(gpus())}{packages}; ask for what is there, or emulate: "
                "a fleet without gpus"
            )


def _there(found: Iterable[Gpu]) -> str:
    names = [gpu.name for gpu in found]
    if not names:
        return "is no NVIDIA GPU on this machine"
    counted = ", ".join(f"{names.count(name)} × {name}" for name in dict.fromkeys(names))
    return f"{'is' if len(names) == 1 else 'are'} {counted}"
