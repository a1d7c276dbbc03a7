"""One run of nvcc in the sandbox: device code to PTX and cubin, host code to a shared library."""

from __future__ import annotations

import functools
import math
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from ptxgym import native
from ptxgym.build.entry import SUBMISSION_FILE
from ptxgym.build.hostfiles import FileView
from ptxgym.build.toolchain import Toolchain
from ptxgym.sandbox import Access, Completed, Limits, isolation, run

MAX_FILE_BYTES = 256 << 20
"""Largest file that a compiler process may write."""
MEMORY_BYTES = 4 << 30
"""Address space of each compiler process."""
MAX_OUTPUT_BYTES = 64 << 20
"""Largest library, cubin or PTX of a submission."""
MAX_PREPROCESSED_BYTES = 16 << 20
"""All of CUDA's and the C++ library's headers make some 5 MB."""
MAX_SAID_BYTES = 1 << 20
_PLAIN_PATH = re.compile(r"[\w/.+@-]+")


@dataclass(frozen=True)
class Products:
    """Files of one nvcc run; those that were not reached do not exist."""

    library: Path
    cubin: Path
    ptx: Path
    completed: Completed

    @property
    def said(self) -> str:
        """What the tools printed."""
        return (self.completed.stderr + self.completed.stdout).decode(errors="replace")

    @functools.cached_property
    def ptx_text(self) -> str | None:
        """The PTX, if compilation came that far and it is not too large."""
        return _text_of(self.ptx, MAX_OUTPUT_BYTES)

    @property
    def preprocessed(self) -> str | None:
        """What the host's preprocessor made of the file: nothing if it did not run, None if it is too much."""
        file = self.ptx.with_name("kernel.cpp4.ii")
        return _text_of(file, MAX_PREPROCESSED_BYTES) if file.exists() else ""


def _text_of(file: Path, max_bytes: int) -> str | None:
    """Return a compiler's file with the line ends that it has, unless there is none or it has more than `max_bytes`."""
    if not file.exists() or file.stat().st_size > max_bytes:
        return None
    return file.read_bytes().decode(errors="replace")


def flags(arch: str) -> tuple[str, ...]:
    """Return the options that determine what nvcc makes of a text, for `arch` such as `sm_90a`.

    The random seed and the source name are fixed: kernels of anonymous namespaces carry a hash of both in their names.
    """
    return (
        "-std=c++17",
        "-O3",
        "-lineinfo",
        "-gencode",
        f"arch={arch.replace('sm_', 'compute_')},code={arch}",
        "-shared",
        "-Xcompiler",
        "-fPIC,-gdwarf-4,-g1",  # lines of host code: 2 % more time and bytes (measured on the GEMM oracle)
        "-cudart",
        "none",
        "-Xptxas",
        "-v",
        "-frandom-seed=ptxgym",
        "-Xcudafe",
        f"--orig_src_path_name,{SUBMISSION_FILE}",
    )


def _host_options(folder: Path) -> Iterator[str]:
    if _PLAIN_PATH.fullmatch(str(folder)):  # nvcc takes options apart at commas, g++ this one at an equals sign
        yield f"-fdebug-prefix-map={folder}=."  # equal texts give equal libraries
    if "clang" not in native.host_compiler()[1]:
        yield from ("-fno-crossjumping", "-fno-tree-tail-merge")  # or g++ makes one call, of one line, of equal ones


def compile_unit(
    toolchain: Toolchain, host: str, view: FileView, unit: str, arch: str, folder: Path, timeout_s: float
) -> Products:
    """Compile the translation unit `unit` in the empty `folder`, which is all that the compiler can write to.

    Args:
        toolchain: The CUDA compiler.
        host: Path of the host compiler.
        view: What the compiler can read and execute, beside `folder`.
        unit: Text from `entry.translation_unit`.
        arch: Such as `sm_90a`.
        folder: Working folder; the caller removes it.
        timeout_s: CPU seconds per compiler process. Wall-clock time for all of them is limited far above that: it is
            the machine's fault if it runs out.
    """
    source = folder / "kernel.cu"
    source.write_bytes(unit.encode())
    os.utime(source, (0, 0))  # __TIMESTAMP__
    temporary = folder / "tmp"
    temporary.mkdir()
    completed = run(
        [
            toolchain.nvcc,
            *flags(arch),
            "-ccbin",
            host,
            *(word for option in _host_options(folder) for word in ("-Xcompiler", option)),
            "--keep",
            source.name,
            "-o",
            "kernel.so",
        ],
        timeout_s=2 * timeout_s + 60,
        access=Access(read=view.read, execute=view.execute, write=(folder,)),
        limits=Limits(
            cpu_s=math.ceil(timeout_s), address_space_bytes=MEMORY_BYTES, file_size_bytes=MAX_FILE_BYTES, open_files=256
        ),
        env={
            "PATH": "/usr/bin:/bin",
            "LC_ALL": "C",
            "TMPDIR": str(temporary),
            "HOME": str(temporary),
            "SOURCE_DATE_EPOCH": "0",  # __DATE__ and __TIME__ of the host compiler
        },
        cwd=folder,
        max_output_bytes=MAX_SAID_BYTES,
        # Landlock does not hide whether a file exists, for which `__has_include` asks; a mount namespace does.
        filesystem="namespace" if isolation().namespace == "ok" else None,
    )
    return Products(folder / "kernel.so", folder / "kernel.cubin", folder / "kernel.ptx", completed)
