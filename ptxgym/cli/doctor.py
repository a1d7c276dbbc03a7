"""`ptxgym doctor`: what this machine has, and the fix for what it lacks."""

from __future__ import annotations

import importlib.metadata
import platform
import shutil
from collections.abc import Callable
from dataclasses import dataclass

import gymnasium
import numpy
from rich.table import Table

import ptxgym
from ptxgym import native
from ptxgym.availability import GPU_PACKAGES, missing_packages
from ptxgym.build import find_toolchain
from ptxgym.cache import Cache
from ptxgym.cli.console import out, plain
from ptxgym.device.cuda.gpu import Gpu, gpu_for, gpus, why_none
from ptxgym.device.cuda.lock import FOLDER, DeviceLock
from ptxgym.device.cuda.ncu import find_ncu, ncu_obstacle, ncu_permission
from ptxgym.device.cuda.sanitizer import find_sanitizer, sanitizer_version
from ptxgym.errors import PtxgymError
from ptxgym.sandbox import isolation
from ptxgym.task import ARCHITECTURES

LOCK_LIMIT_S = 10.0


@dataclass(frozen=True)
class Check:
    """The state of one thing."""

    state: str
    """`ok`; `limited`: works with less; `missing`: nothing can be judged."""
    found: str
    fix: str = ""


_MARKS = {"ok": ("✓", "green"), "limited": ("!", "yellow"), "missing": ("✗", "red")}


def examine() -> bool:
    """Print one line per check; return whether kernels can be judged here."""
    table = Table("", "what", "found", "fix", box=None, header_style="bold")
    good = True
    checks = CHECKS if _measuring_gpu() is None else {**CHECKS, **GPU_CHECKS}
    for name, check in checks.items():
        try:
            result = check()
        except (PtxgymError, OSError) as error:
            state = "limited" if name in GPU_CHECKS else "missing"  # the emulator judges without a GPU
            found, _, fix = str(error).splitlines()[0].partition("; ")
            result = Check(state, found, fix or "see the message; then run `ptxgym doctor` again")
        good = good and result.state != "missing"
        mark, style = _MARKS[result.state]
        table.add_row(plain(mark, style), name, plain(result.found), plain(result.fix))
    out.print(table)
    return good


def _python() -> Check:
    found = f"ptxgym {ptxgym.__version__}, Python {platform.python_version()}"
    return Check("ok", f"{found}, gymnasium {gymnasium.__version__}, numpy {numpy.__version__}")


def _platform() -> Check:
    found = f"{platform.system()} {platform.release()} on {platform.machine()}"
    if (platform.system(), platform.machine()) == ("Linux", "x86_64"):
        return Check("ok", found)
    return Check("missing", found, "use Linux on x86-64; on Windows, WSL 2")


def _toolchain() -> Check:
    toolchain = find_toolchain()
    return Check("ok", f"{toolchain.name} from {'wheels' if toolchain.source == 'wheels' else toolchain.root}")


def _disassembler() -> Check:
    found = find_toolchain().nvdisasm
    if found is None:
        return Check("limited", "no nvdisasm: SASS is not shown", 'pip install "ptxgym[toolchain]"')
    return Check("ok", "nvdisasm")


def _host_compiler() -> Check:
    path, version = native.host_compiler()
    return Check("ok", f"{version} ({path})")


def _native() -> Check:
    for target in native.targets().values():
        native.build(target)
    return Check("ok", f"built: {', '.join(native.targets())}")


def _isolation() -> Check:
    found = isolation()
    if found.level == "full":
        return Check("ok", found.explain())
    return Check(
        "limited", found.explain(), "allow Landlock (Linux 5.13 or newer), user namespaces or seccomp in this container"
    )


def _cache() -> Check:
    cache = Cache()
    with cache.staging():  # or say that it cannot be written
        stats = cache.stats()
    free_gib = shutil.disk_usage(stats.root).free / 2**30
    found = f"{stats.root}: {stats.total_entries} entries, {stats.total_bytes / 2**20:.0f} MiB, {free_gib:.1f} GiB free"
    if free_gib < 1:
        return Check("limited", found, "free some disk space, or set PTXGYM_CACHE to a larger disk")
    return Check("ok", found)


def _gpu() -> Check:
    found = gpus()
    if not found:
        return Check("limited", "none that this process may use: kernels are emulated, speed is not measured", "")
    names = "; ".join(f"{gpu.name}, {gpu.memory_bytes >> 30} GiB{', split by MIG' if gpu.mig else ''}" for gpu in found)
    text = f"{names}; driver {found[0].driver}"
    if all(gpu_for(arch) is None for arch in ARCHITECTURES):
        return Check("limited", text, _gpu_fix())
    return Check("ok", text)


def _gpu_fix() -> str:
    return f"kernels are emulated, since {why_none(next(iter(ARCHITECTURES)))}"


def _gpu_packages() -> Check:
    missing = missing_packages()
    versions = ", ".join(f"{name} {importlib.metadata.version(name)}" for name in GPU_PACKAGES if name not in missing)
    if missing:
        return Check("limited", f"{versions or 'none'}; missing: {', '.join(missing)}", 'pip install "ptxgym[gpu]"')
    return Check("ok", versions)


def _profiler() -> Check:
    found = find_ncu()
    name = f"Nsight Compute {found.version}" if found is not None else "no Nsight Compute"
    gpu = _measuring_gpu()
    obstacle = ncu_obstacle() or (ncu_permission(gpu) if gpu is not None else None)
    if obstacle is not None:
        fix = obstacle.fix or "see the message; until then the emulator counts instructions"
        return Check("limited", f"{name}: {obstacle.reason}", fix)
    return Check("ok", f"{name}, may profile")


def _sanitizer() -> Check:
    if find_sanitizer() is None:
        return Check(
            "limited", "none: faults are not located", "install the CUDA toolkit's compute-sanitizer; put it on PATH"
        )
    return Check("ok", f"compute-sanitizer {sanitizer_version() or 'that tells no version'}")


def _device_lock() -> Check:
    gpu = _measuring_gpu()
    assert gpu is not None  # _gpu_checks asks only where there is one
    lock = DeviceLock(gpu.uuid)
    with lock.shared(LOCK_LIMIT_S):
        return Check("ok", f"granted beside {max(0, len(lock.holders()) - 1)} others; files in {FOLDER}")


def _measuring_gpu() -> Gpu | None:
    return next((gpu for arch in ARCHITECTURES if (gpu := gpu_for(arch)) is not None), None)


CHECKS: dict[str, Callable[[], Check]] = {
    "packages": _python,
    "platform": _platform,
    "CUDA compiler": _toolchain,
    "disassembler": _disassembler,
    "host compiler": _host_compiler,
    "native parts": _native,
    "isolation": _isolation,
    "cache": _cache,
    "GPU": _gpu,
}

GPU_CHECKS: dict[str, Callable[[], Check]] = {
    "GPU packages": _gpu_packages,
    "profiler": _profiler,
    "sanitizer": _sanitizer,
    "device lock": _device_lock,
}
"""Where there is a GPU to measure on."""
