"""Faults planted in each native target: what shows that a run without a report means something.

No part of the suite, which builds without sanitizers: `make sanitize` names this file.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from ptxgym import native
from tests.sanitize.builds import sanitized, traps

# Each is an initialiser, and runs as soon as the program or library is loaded: `{0}` is 0, or 1 for the fault.
PLANTED = {
    "overflow": "[] {{ volatile int most = 2147483646 + {0}; return most + 1; }}()",
    "index": "[] {{ std::vector<int> four(4); volatile unsigned at = 3 + {0}; return four[at]; }}()",
    "stack": "[] {{ char four[4]; volatile unsigned size = 4 + {0}; std::memset(four, 0, size); return four[3]; }}()",
    "heap": "[] {{ int* four = new int[4](); volatile int at = 3 + {0}; const int got = four[at]; delete[] four; "
    "return got; }}()",
}
SAID = {
    "overflow": "signed integer overflow",
    "index": "Assertion '__n < this->size()' failed",
    "stack": "stack-buffer-overflow",
    "heap": "heap-buffer-overflow",
}
ENDS = {"overflow": signal.SIGILL, "index": signal.SIGABRT, "stack": signal.SIGABRT}
"""Where there is no report; what lies beyond memory of the heap needs AddressSanitizer."""
ARGUMENTS = {"recorder": ["--unconfined"], "sandbox": ["--probe"], "executor": ["--connect", "/nowhere"]}


def ended(name: str, unconfined: bool, initialiser: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """Load the target with one more static object."""
    target = native.targets()[name]
    own = Path(shutil.copytree(target.folder, folder / target.folder.name))
    source = own / target.source_files()[0].name
    planted = f"\n#include <cstring>\n#include <vector>\nextern const int planted = {initialiser};\n"
    source.write_text(source.read_text() + planted)
    built = native.build(sanitized(target.model_copy(update={"folder": own}), unconfined))
    load = [sys.executable, "-c", f"import ctypes; ctypes.CDLL({str(built)!r})"]
    environment = {key: value for key, value in os.environ.items() if key not in ("ASAN_OPTIONS", "UBSAN_OPTIONS")}
    return subprocess.run(
        [built, *ARGUMENTS[name]] if target.kind == "program" else load,
        env=environment | {"ASAN_OPTIONS": "detect_leaks=0"}, input="", capture_output=True, text=True, check=False,
    )  # fmt: skip


def check(name: str, fault: str, unconfined: bool, folder: Path) -> None:
    """The fault is noticed, and the same code without it is not."""
    done = ended(name, unconfined, PLANTED[fault].format(1), folder / "fault")
    twin = ended(name, unconfined, PLANTED[fault].format(0), folder / "twin")
    if traps(name, unconfined):
        assert -done.returncode == ENDS[fault] and twin.returncode >= 0
    else:
        assert SAID[fault] in done.stderr and done.returncode != 0
        assert SAID[fault] not in twin.stderr and twin.returncode >= 0


@pytest.mark.parametrize("fault", PLANTED)
def test_emulator(fault: str, tmp_path: Path) -> None:
    check("emulator", fault, False, tmp_path)


@pytest.mark.parametrize("fault", PLANTED)
def test_executor(fault: str, tmp_path: Path) -> None:
    check("executor", fault, False, tmp_path)


@pytest.mark.parametrize("fault", ENDS)
@pytest.mark.parametrize("name", ["recorder", "sandbox"])
def test_confined(name: str, fault: str, tmp_path: Path) -> None:
    check(name, fault, False, tmp_path)


@pytest.mark.parametrize("fault", PLANTED)
@pytest.mark.parametrize("name", ["recorder", "sandbox"])
def test_unconfined(name: str, fault: str, tmp_path: Path) -> None:
    check(name, fault, True, tmp_path)
