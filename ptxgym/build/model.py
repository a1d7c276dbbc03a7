"""What the build stage produces: files by content, and what the compiler said about them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from ptxgym.verdict import Diagnostic

MAX_MODULE_BYTES = 1 << 30
"""Most bytes that the variables of a module may have together: each run restores them."""


@dataclass(frozen=True)
class KernelResources:
    """What ptxas reports for one entry function, and what its PTX directives demand."""

    name: str
    """Mangled name, as in the PTX, the cubin and `__cudaRegisterFunction`."""
    registers: int
    static_smem_bytes: int
    stack_bytes: int
    spill_store_bytes: int
    spill_load_bytes: int
    param_bytes: tuple[int, ...]
    """Size of each `.param`, in order."""
    param_aligns: tuple[int, ...]
    max_ntid: tuple[int, int, int] | None = None
    req_ntid: tuple[int, int, int] | None = None
    cluster: tuple[int, int, int] | None = None
    """`.reqnctapercluster`; None where the PTX names none."""
    max_cluster_rank: int | None = None
    """`.maxclusterrank`, the third argument of `__launch_bounds__`."""
    blocks_are_clusters: bool = False
    """`.blocksareclusters`: grids of its launches count clusters."""


@dataclass(frozen=True)
class Build:
    """One compiled submission; every path lies in the cache entry `folder` and is read-only."""

    key: str
    arch: str
    """`sm_90a` or `sm_100a`."""
    folder: Path
    source: Path
    library: Path
    cubin: Path
    ptx: Path
    sass: Path
    """Written by `ptxgym.build.disassemble` when somebody asks for it."""
    compiler: str
    """Such as `nvcc 13.0.88`."""
    flags: tuple[str, ...]
    kernels: tuple[KernelResources, ...]
    diagnostics: tuple[Diagnostic, ...]
    """Warnings of a build that succeeded."""

    def kernel(self, name: str) -> KernelResources:
        """Return the resources of the kernel `name` (mangled).

        Raises:
            KeyError: if the build has no such kernel.
        """
        for kernel in self.kernels:
            if kernel.name == name:
                return kernel
        raise KeyError(name)
