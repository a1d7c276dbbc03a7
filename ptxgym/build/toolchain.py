"""Finds the CUDA compiler: the wheels of `ptxgym[toolchain]` first, else a system installation."""

from __future__ import annotations

import functools
import importlib.util
import os
import re
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

from ptxgym.errors import ToolchainError
from ptxgym.tools import cannot_start, run_tool, scarce

INSTALL = 'install the compiler wheels with `pip install "ptxgym[toolchain]"` (CUDA 13.0), or set CUDA_HOME'
MINIMUM = (13, 0)
SYSTEM_ROOT = Path("/usr/local/cuda")


@dataclass(frozen=True)
class Toolchain:
    """Where the CUDA compiler lies and what it is."""

    root: Path
    """Toolkit root: holds `bin/`, `include/`, `nvvm/`; symbolic links resolved."""
    nvcc: Path
    nvdisasm: Path | None
    """May come from elsewhere than `root`; None where none is installed."""
    include: Path
    version: str
    """Of nvcc, such as `13.0.88`."""
    source: str
    """`wheels` or `system`."""

    @property
    def name(self) -> str:
        """Such as `nvcc 13.0.88`, as stored with every build."""
        return f"nvcc {self.version}"


@functools.cache
def find_toolchain() -> Toolchain:
    """Return the toolchain of this machine: wheels, `$CUDA_HOME`, `nvcc` on PATH, `/usr/local/cuda`, in this order.

    Raises:
        ToolchainError: if there is none, or it is older than CUDA 13.0; says what to install.
    """
    tried: list[str] = []
    for source, root in _candidates():
        nvcc = root / "bin" / "nvcc"
        if not nvcc.is_file():
            continue
        version = _version(nvcc)
        if version is None or tuple(int(part) for part in version.split(".")[:2]) < MINIMUM:
            tried.append(f"{nvcc} ({'does not run' if version is None else f'version {version}'})")
            continue
        include = next(
            (p for p in (root / "include", *root.glob("targets/*/include")) if (p / "cuda.h").exists()), None
        )
        if include is None or not (root / "nvvm" / "bin" / "cicc").exists():
            tried.append(f"{nvcc} (cuda.h or cicc is missing beside it)")
            continue
        return Toolchain(root, nvcc, _nvdisasm(root), include.resolve(), version, source)
    found = f"found only {'; '.join(tried)}" if tried else "no nvcc was found"
    raise ToolchainError(f"no usable CUDA 13 compiler: {found}; {INSTALL}")


def _candidates() -> list[tuple[str, Path]]:
    roots: list[tuple[str, Path]] = [("wheels", root) for root in _wheel_roots()]
    home = os.environ.get("CUDA_HOME")
    if home:
        roots.append(("system", Path(home)))
    on_path = shutil.which("nvcc")
    if on_path:
        roots.append(("system", _root_of(Path(on_path))))
    roots.append(("system", SYSTEM_ROOT))
    return [(source, root.resolve()) for source, root in roots if root.is_dir()]


def _wheel_roots() -> list[Path]:
    """The wheels unpack into the namespace package `nvidia`, folder `cu13`."""
    spec = importlib.util.find_spec("nvidia")
    places = spec.submodule_search_locations if spec else None
    return [Path(place) / "cu13" for place in places or ()]


def _root_of(nvcc: Path) -> Path:
    """Ask `nvcc` where its toolkit is, since what lies on PATH may be a script."""
    done = run_tool([nvcc, "--dryrun", "-E", "-x", "cu", "/dev/null"])
    top = re.search(r"^#\$ TOP=(.+)$", done.stderr, re.MULTILINE)
    return Path(top.group(1)) if top else nvcc.resolve().parent.parent


def _version(nvcc: Path) -> str | None:
    try:
        done = subprocess.run(
            [nvcc, "--version"], stdin=subprocess.DEVNULL, capture_output=True, encoding="utf-8", errors="replace"
        )
    except OSError as error:
        if scarce(error):
            raise cannot_start(str(nvcc), error) from error
        return None  # no program
    match = re.search(r"\bV(\d+\.\d+\.\d+)", done.stdout)
    return match.group(1) if match else None


def _nvdisasm(root: Path) -> Path | None:
    places = [root, *_wheel_roots()]
    beside = next((p / "bin" / "nvdisasm" for p in places if (p / "bin" / "nvdisasm").is_file()), None)
    if beside is not None:
        return beside.resolve()
    on_path = shutil.which("nvdisasm")
    return Path(on_path).resolve() if on_path else None
