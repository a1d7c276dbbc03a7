"""SASS text of a build. The emulator needs none, and nvdisasm takes a third of a second, so it is made on demand."""

from __future__ import annotations

import tempfile
from pathlib import Path

from ptxgym.build.model import Build
from ptxgym.build.toolchain import INSTALL, find_toolchain
from ptxgym.errors import InfrastructureError, ToolchainError
from ptxgym.sandbox import Access, Limits, run


def disassemble(build: Build, timeout_s: float = 60.0) -> Path:
    """Return `build.sass`, writing it first if it is not there: SASS with lines, those of inlined calls too.

    Raises:
        ToolchainError: if there is no nvdisasm.
        InfrastructureError: if nvdisasm fails.
    """
    if build.sass.exists():
        return build.sass
    nvdisasm = find_toolchain().nvdisasm
    if nvdisasm is None:
        raise ToolchainError(f"no nvdisasm was found, so there is no SASS; {INSTALL}")
    done = run(
        [nvdisasm, "--print-line-info-inline", "--print-code", build.cubin],
        timeout_s=timeout_s,
        access=Access(read=(build.cubin,), execute=(nvdisasm, *(Path(p) for p in ("/lib", "/lib64", "/usr/lib")))),
        limits=Limits(address_space_bytes=4 << 30),
        max_output_bytes=256 << 20,
    )
    if done.outcome != "exited" or done.code or done.truncated:
        raise InfrastructureError(f"nvdisasm {done.outcome} {done.code}: {done.stderr.decode(errors='replace')[:500]}")
    with tempfile.NamedTemporaryFile(dir=build.folder, prefix=".sass-", delete=False) as file:
        file.write(done.stdout)
    return Path(file.name).replace(build.sass)
