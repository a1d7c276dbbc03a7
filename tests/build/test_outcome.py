"""Whose fault a failed build is: words that a submission can have printed put nothing down to the machine."""

from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace

import pytest

from ptxgym.build import Build, nvcc, outcome
from ptxgym.build.outcome import judge_outcome
from ptxgym.errors import InfrastructureError, PtxgymError, ToolchainError
from ptxgym.verdict import Failure
from tests.build.conftest import DECLARATION, GOOD, Builder, failed

HOST_REFUSED = (
    "/usr/cuda/include/crt/host_config.h:1:2: error: #error -- unsupported GNU version! gcc versions later than 14"
)
NO_SPACE = "/kernel.cu:1:1: fatal error: error writing to kernel.ii: No space left on device"


def judged(folder: Path, said: str, *, code: int = 1, compiles_nothing: bool = True) -> Failure:
    """What is said of a run of nvcc that ended with status `code`, on a machine with room."""
    found, _ = judge_outcome(failed(folder, said, code=code), GOOD, DECLARATION, 60.0, lambda: compiles_nothing)
    assert found is not None
    return found


def room(monkeypatch: pytest.MonkeyPatch, free_bytes: int, free_files: int = 1000) -> None:
    """Have every file system so much left."""
    left = SimpleNamespace(f_bavail=free_bytes, f_frsize=1, f_files=2000, f_favail=free_files)
    monkeypatch.setattr(os, "statvfs", lambda _: left)


@pytest.mark.parametrize(
    "words",
    [
        "No space left on device",
        HOST_REFUSED,
        "died due to signal 9",
        "nvcc error   : 'cicc' died due to signal 9 (Kill signal)",
        "nvcc error   : 'cicc' died due to signal 15",
        "died due to signal 24",
        "CPU time limit exceeded",
        "fatal error: /etc/x: Permission denied",
        "out of memory",
    ],
)
def test_an_error_of_the_text_is_one_whatever_it_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: str
) -> None:
    room(monkeypatch, 1 << 40)
    assert judged(tmp_path, f"/kernel.cu:1:2: error: #error {words}\n").code == "build.syntax"


@pytest.mark.parametrize(
    "line",
    [NO_SPACE, HOST_REFUSED, "nvcc error   : 'cicc' died due to signal 9 (Kill signal)", "x\ndied due to signal 15"],
)
def test_a_line_of_its_own_proves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, line: str) -> None:
    r"""As of `#line 1 "x\n…"`, which g++ prints with its line feed."""
    room(monkeypatch, 1 << 40)
    assert judged(tmp_path, f"{line}\n/kernel.cu:1:2: error: #error x\n").code == "build.syntax"


def test_a_full_disk_is_the_machines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for free_bytes, free_files in ((outcome.ROOM_BYTES - 1, 1000), (1 << 40, 0)):
        room(monkeypatch, free_bytes, free_files)
        with pytest.raises(InfrastructureError, match="no disk space"):
            judged(tmp_path, NO_SPACE)
        assert judged(tmp_path, "/kernel.cu:1:2: error: #error x\n").code == "build.syntax"


def test_a_host_compiler_that_compiles_nothing_is_the_machines(tmp_path: Path) -> None:
    with pytest.raises(ToolchainError, match="does not accept this host compiler"):
        judged(tmp_path, HOST_REFUSED + "\n", compiles_nothing=False)


@pytest.mark.parametrize(
    ("said", "code", "result"),
    [
        ("Killed\n", 128 + 9, InfrastructureError),
        ("Terminated\n", 128 + 15, InfrastructureError),
        ("nvcc error   : 'cicc' died due to signal 9 (Kill signal)\n", 9, InfrastructureError),
        ("Segmentation fault\n", 128 + 11, "build.crash"),
        ("CPU time limit exceeded\n", 128 + 24, "build.timeout"),
        ("Internal error: CPU time limit exceeded.\nCompilation aborted.\nAborted\n", 128 + 6, "build.timeout"),
        ("g++: fatal error: CPU time limit exceeded signal terminated program cc1plus\n", 1, "build.timeout"),
        (
            "g++: internal compiler error: File size limit exceeded signal terminated program as\n",
            4,
            "build.too_large_output",
        ),
        ("nvcc error   : 'cicc' died due to signal 24 (CPU time limit exceeded)\n", 1, "build.timeout"),
        ("LLVM ERROR: cannot allocate a page\n", 1, "build.memory"),
        ("cc1plus: out of memory allocating 65536 bytes\n", 1, "build.memory"),
    ],
)
def test_what_ended_a_tool(tmp_path: Path, said: str, code: int, result: type[PtxgymError] | str) -> None:
    if isinstance(result, str):
        assert judged(tmp_path, said, code=code).code == result
    else:
        with pytest.raises(result):
            judged(tmp_path, said, code=code)


def test_a_real_line_of_its_own(compile_text: Builder) -> None:
    line = HOST_REFUSED.replace("host_config.h:1:2", "host_config.h")
    forged = f'#line 1 "x\\n{line.split(": error")[0]}"\n#error -- unsupported GNU version\n'
    found = compile_text(GOOD + forged)
    assert isinstance(found, Failure) and found.code.startswith("build."), found


def test_what_the_compiler_says_may_not_be_cut(compile_text: Builder, monkeypatch: pytest.MonkeyPatch) -> None:
    """A flood of warnings could push what ptxas says out, and leave what a forger said before."""
    warned = "#warning of some length\n" + GOOD
    assert isinstance(compile_text(warned), Build)
    monkeypatch.setattr(nvcc, "MAX_SAID_BYTES", 100)
    found = compile_text("#warning of other length\n" + GOOD)
    assert isinstance(found, Failure) and found.code == "build.too_large_output"


def test_files_that_are_too_large_are_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    read = failed(tmp_path, "", ptx="0123456789")
    monkeypatch.setattr(nvcc, "MAX_OUTPUT_BYTES", 10)
    monkeypatch.setattr(nvcc, "MAX_PREPROCESSED_BYTES", 10)
    assert (read.ptx_text, read.preprocessed) == ("0123456789", "")
    (tmp_path / "kernel.cpp4.ii").write_bytes(b"a\r\xff\r\n")
    assert read.preprocessed == "a\r\ufffd\r\n"  # line ends decide where a line marker may stand
    (tmp_path / "kernel.cpp4.ii").write_bytes(bytes(11))
    assert read.preprocessed is None
    assert failed(tmp_path, "", ptx="0123456789a").ptx_text is None
