"""`ptxgym doctor`: what this machine has, and the fix for what it lacks."""

from __future__ import annotations

import platform
import shutil
import subprocess
from collections.abc import Callable
from dataclasses import dataclass

import gymnasium
import numpy
from rich.table import Table

import ptxgym
from ptxgym import native
from ptxgym.build import find_toolchain
from ptxgym.cache import Cache
from ptxgym.cli.console import out, plain
from ptxgym.errors import PtxgymError
from ptxgym.sandbox import isolation


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
    for name, check in CHECKS.items():
        try:
            result = check()
        except PtxgymError as error:
            result = Check("missing", str(error).splitlines()[0], "see the message; then run `ptxgym doctor` again")
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
    stats = Cache().stats()
    free_gib = shutil.disk_usage(stats.root).free / 2**30
    found = f"{stats.root}: {stats.total_entries} entries, {stats.total_bytes / 2**20:.0f} MiB, {free_gib:.1f} GiB free"
    if free_gib < 1:
        return Check("limited", found, "free some disk space, or set PTXGYM_CACHE to a larger disk")
    return Check("ok", found)


def _gpu() -> Check:
    tool = shutil.which("nvidia-smi")
    none = Check("limited", "none: kernels are emulated, speed is not measured", "")
    if tool is None:
        return none
    query = [tool, "--query-gpu=name,driver_version", "--format=csv,noheader"]
    try:
        done = subprocess.run(query, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=30)
    except subprocess.TimeoutExpired:
        return Check("limited", "nvidia-smi does not answer", "check the driver")
    if done.returncode:
        return Check("limited", f"nvidia-smi fails: {done.stdout.strip() or done.stderr.strip()}", "check the driver")
    names = "; ".join(line.strip() for line in done.stdout.splitlines())
    return Check("limited", f"{names}: not used by this version, kernels are emulated")


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
