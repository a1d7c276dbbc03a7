"""Run pytest on native code with AddressSanitizer and UndefinedBehaviorSanitizer: `python -m tests.sanitize [tests …]`.

The compiler is the script `g++` beside this file. A sanitizer's runtime must come before everything else in a process:
it is preloaded into Python, and into the emulator's workers, which otherwise get a clean environment. What sanitizers
say is kept in files, since the workers' own output is not shown; a single one makes the run fail.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).parent
_DEVICE = "tests/device/emulator/core/test_device.py"
LEFT_OUT = (
    f"{_DEVICE}::test_a_crash_of_the_core_is_contained",  # has a worker end by a signal, which a sanitizer would report
    f"{_DEVICE}::test_workers_end_with_their_evaluator",  # its own Python knows no plugin, so workers have no runtime
)
EMULATOR = ("tests/device/emulator", "tests/fuzz")


def main() -> int:
    """Run the tests named on the command line, those of the emulator where there are none; return the exit status."""
    arguments = sys.argv[1:] or list(EMULATOR)
    found = [subprocess.run(["g++", f"-print-file-name=lib{name}.so"], capture_output=True, text=True, check=True)
             for name in ("asan", "ubsan", "stdc++")]  # fmt: skip
    with tempfile.TemporaryDirectory() as folder:
        reports = Path(folder) / "report"
        common = f"log_path={reports}:halt_on_error=1:print_stacktrace=1"
        environment = os.environ | {
            "CXX": str(HERE / "g++"),
            "LD_PRELOAD": ":".join(done.stdout.strip() for done in found),
            # Python keeps memory to its end; it and numpy allocate more than there is where a size is absurd.
            "ASAN_OPTIONS": f"{common}:detect_leaks=0:allocator_may_return_null=1",
            "UBSAN_OPTIONS": common,
        }
        command = [
            sys.executable,
            "-m",
            "pytest",
            "-p",
            "tests.sanitize.plugin",
            "-q",
            *(f"--deselect={test}" for test in LEFT_OUT),
            *arguments,
        ]
        status = subprocess.run(command, env=environment, check=False).returncode
        for report in sorted(reports.parent.glob("report.*")):
            sys.stderr.write(report.read_text(encoding="utf-8", errors="replace") + "\n")
            status = status or 1
    return status


if __name__ == "__main__":
    sys.exit(main())
