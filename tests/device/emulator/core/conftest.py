from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from ptxgym.build import find_toolchain
from ptxgym.build.model import Build
from ptxgym.device.emulator.device import EmulatorDevice


@pytest.fixture(scope="session")
def build(tmp_path_factory: pytest.TempPathFactory) -> Build:
    """The kernels of kernels.cu as PTX; nothing else of the build exists."""
    source = Path(__file__).with_name("kernels.cu")
    folder = tmp_path_factory.mktemp("core")
    ptx, nothing = folder / "kernels.ptx", folder / "absent"
    command = [find_toolchain().nvcc, "-std=c++17", "-O3", "-lineinfo", "-arch=sm_90a", "-ptx", source, "-o", ptx]
    subprocess.run([str(part) for part in command], check=True, capture_output=True)
    return Build(
        key="core-tests", arch="sm_90a", folder=folder, source=source, library=nothing, cubin=nothing, ptx=ptx,
        sass=nothing, compiler="test", flags=(), kernels=(), diagnostics=(),
    )  # fmt: skip


@pytest.fixture(scope="session")
def device() -> Iterator[EmulatorDevice]:
    """One device, whose worker serves all tests."""
    shared = EmulatorDevice()
    yield shared
    shared.close()
