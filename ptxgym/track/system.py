"""The machine that a run goes on on, in a few words: what `ptxgym doctor` looks at, without its advice."""

from __future__ import annotations

import os
import platform
from collections.abc import Callable

import ptxgym
from ptxgym import native
from ptxgym.build import find_toolchain
from ptxgym.device.cuda.gpu import gpus
from ptxgym.device.cuda.ncu import find_ncu
from ptxgym.errors import PtxgymError
from ptxgym.sandbox import isolation


def system_info() -> dict[str, str]:
    """Return versions, processors, GPUs, driver, toolkit and isolation level; what is missing says why."""
    facts: dict[str, Callable[[], str]] = {
        "ptxgym": lambda: ptxgym.__version__,
        "python": platform.python_version,
        "platform": lambda: f"{platform.system()} {platform.release()} on {platform.machine()}",
        "cpu_cores": lambda: str(len(os.sched_getaffinity(0))),
        "gpu": _gpu,
        "driver": lambda: gpus()[0].driver if gpus() else "none",
        "toolkit": lambda: find_toolchain().name,
        "host_compiler": lambda: native.host_compiler()[1],
        "profiler": _profiler,
        "isolation": lambda: isolation().level,
    }
    return {name: _told(fact) for name, fact in facts.items()}


def _told(fact: Callable[[], str]) -> str:
    try:
        return fact()
    except (PtxgymError, OSError) as error:
        return f"unknown: {next(iter(str(error).splitlines()), type(error).__name__)}"


def _gpu() -> str:
    return "; ".join(f"{gpu.name}, {gpu.memory_bytes >> 30} GiB" for gpu in gpus()) or "none"


def _profiler() -> str:
    found = find_ncu()
    return f"Nsight Compute {found.version}" if found is not None else "none"
