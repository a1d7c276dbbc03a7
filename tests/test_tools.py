"""Tools that do not start: a typed failure of the machine, with the way out."""

from __future__ import annotations

import errno
import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from ptxgym import native
from ptxgym.build import toolchain
from ptxgym.device.emulator.pool import Worker
from ptxgym.errors import InfrastructureError, ToolchainError
from ptxgym.tools import run_tool


@pytest.fixture
def exhausted(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A machine that has no process left to give."""

    def refuse(*_: object, **__: object) -> None:
        raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN))

    monkeypatch.setattr(subprocess, "Popen", refuse)
    native.host_compiler.cache_clear()
    yield
    native.host_compiler.cache_clear()


def test_a_tool_that_runs_tells_what_it_said() -> None:
    done = run_tool(["sh", "-c", "echo out; echo err >&2; exit 7"])
    assert (done.returncode, done.stdout, done.stderr) == (7, "out\n", "err\n")


def test_a_tool_that_is_missing_is_named() -> None:
    with pytest.raises(InfrastructureError, match=r"cannot start /nowhere/g\+\+: No such file or directory$"):
        run_tool([Path("/nowhere/g++")])


@pytest.mark.parametrize(
    "start", [native.host_compiler, lambda: toolchain._version(Path("nvcc")), lambda: Worker(Path("unused"))]
)
@pytest.mark.usefixtures("exhausted")
def test_a_machine_without_processes_is_no_missing_compiler(start: Callable[[], object]) -> None:
    with pytest.raises(
        InfrastructureError, match=r"cannot start .*Resource temporarily unavailable; no more processes"
    ) as info:
        start()
    assert not isinstance(info.value, ToolchainError)


def test_a_file_that_is_no_program_is_no_compiler(tmp_path: Path) -> None:
    (tmp_path / "nvcc").write_text("text")
    assert toolchain._version(tmp_path / "nvcc") is None
