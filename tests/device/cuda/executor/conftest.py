from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from ptxgym import native
from ptxgym.build.toolchain import find_toolchain

from .harness import Fake


@pytest.fixture(scope="session")
def fake_driver(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a libcuda.so.1 that keeps device memory in host memory."""
    folder = tmp_path_factory.mktemp("fake-cuda")
    compiler, _ = native.host_compiler()
    source = Path(__file__).with_name("fake_cuda.cpp")
    subprocess.run(
        [compiler, "-std=c++17", "-O1", "-shared", "-fPIC", "-Wall", "-Wextra", "-Werror",
         f"-isystem{find_toolchain().include}", source, "-o", folder / "libcuda.so.1"],
        check=True,
    )  # fmt: skip
    native.program("executor")
    return folder


@pytest.fixture
def fake(fake_driver: Path, tmp_path: Path) -> Iterator[Fake]:
    """A GPU that is none; executors that a test leaves behind are killed."""
    machine = Fake(fake_driver, tmp_path)
    yield machine
    machine.close()
