"""What can be had on this machine: which device judges kernels for an architecture, and whether it measures."""

from __future__ import annotations

import functools
import importlib.util

from ptxgym.device.cuda.gpu import Gpu, gpu_for, why_none
from ptxgym.device.cuda.model import TIERS, Tier
from ptxgym.errors import UsageError
from ptxgym.serve.connection import check_address, is_address
from ptxgym.task import ARCHITECTURES, Task

GPU_PACKAGES = {"torch": "torch", "cupy-cuda13x": "cupy", "cuda-bindings": "cuda.bindings"}
"""Distributions of the extra `gpu`, and what they are imported as."""


@functools.cache
def missing_packages() -> tuple[str, ...]:
    """Return which packages of the extra `gpu` are not installed, without importing any."""
    return tuple(name for name, module in GPU_PACKAGES.items() if not _importable(module))


def check_evaluator(evaluator: object) -> None:
    """Accept what evaluates: an `Evaluator`, or whatever else has its methods, such as a cluster's service.

    Raises:
        UsageError: if it has none.
    """
    if not hasattr(evaluator, "evaluate") or not hasattr(evaluator, "check_measures"):
        raise UsageError(
            f"evaluator must be a ptxgym.Evaluator, such as Evaluator('emulator'), not {evaluator!r}; to choose a "
            "device alone, pass device='emulator'"
        )


def check_device(name: object) -> None:
    """Accept the name of a device that can be had here, or the address of a service, which is not asked yet.

    Raises:
        UsageError: if there is none of that name, or `cuda` cannot be had: no GPU, or a package is missing.
    """
    if isinstance(name, str) and is_address(name):
        check_address(name)
        return
    if name not in ("auto", "emulator", "cuda"):
        raise UsageError(
            f"device must be 'auto', 'emulator' or 'cuda', not {name!r}; or the address of a service, http://host:port"
        )
    if name != "cuda":
        return
    if all(gpu_for(arch) is None for arch in ARCHITECTURES):
        raise UsageError(f"device 'cuda': {why_none(next(iter(ARCHITECTURES)))}; or use 'emulator', which needs no GPU")
    if missing := missing_packages():
        raise UsageError(f"device 'cuda': {_unusable(missing)}")


def check_tier(name: str) -> Tier:
    """Return the tier `name`.

    Raises:
        UsageError: if there is none of that name.
    """
    for tier in TIERS:
        if tier == name:
            return tier
    raise UsageError(f"tier must be 'rl', 'standard' or 'publish', not {name!r}")


def usable_gpu(device: object, arch: str) -> Gpu | None:
    """Return the GPU that measures kernels for `arch` where `device` was chosen; None where they are emulated.

    Raises:
        UsageError: if device `cuda` was chosen and there is no such GPU, or a package is missing.
    """
    if device not in ("auto", "cuda"):
        return None
    found, missing = gpu_for(arch), missing_packages()
    if found is not None and not missing:
        return found
    if device == "auto":
        return None
    raise UsageError(f"device 'cuda': {_unusable(missing) if found is not None else why_none(arch)}")


def why_emulated(arch: str) -> str:
    """Return why device `auto` emulates kernels for `arch`."""
    missing = missing_packages() if gpu_for(arch) is not None else ()
    return _unusable(missing) if missing else why_none(arch)


def idle_gpu(arch: str) -> str | None:
    """Return the note on a GPU that device `auto` leaves idle because packages are missing; None if there is none."""
    idle = gpu_for(arch)
    return None if idle is None else f"speed: {idle.name} is here, but {_unusable(missing_packages())}"


def unmeasured_tier(tier: Tier, why: str) -> UsageError:
    """Return the error of who asks for a tier where kernels are emulated."""
    return UsageError(f"tier {tier!r} is how a GPU measures, but kernels are emulated here: {why}; leave the tier out")


def default_workload(task: Task, gpu: Gpu | None) -> str:
    """Return the workload that is judged where none is named."""
    return "hardware" if gpu is not None and "hardware" in task.workloads else "emulation"


def _importable(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:  # the package above it is missing
        return False


def _unusable(missing: tuple[str, ...]) -> str:
    return f'{", ".join(missing)} {"are" if len(missing) > 1 else "is"} not installed: pip install "ptxgym[gpu]"'
