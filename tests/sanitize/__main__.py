"""Run pytest on native code that is built with sanitizers: `python -m tests.sanitize [tests and options of pytest …]`.

Three runs: the emulator, whose runtime must come before everything else in a process, so that it is preloaded into
Python and into the emulator's workers, which otherwise get a clean environment; the executor, and the recorder and the
launcher confined as they always are; those two once more, the recorder unconfined (see `builds`). Each begins with
`controls`. Reports of AddressSanitizer are kept in files, since most output is not shown; one makes the run fail.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

_DEVICE = "tests/device/emulator/core/test_device.py"
_FAULTS = "tests/device/cuda/executor/test_faults.py"
_CONTROLS = "tests/sanitize/controls.py"
# Misdeeds that the system-call filter or the limit of memory stops.
_STOPPED = (9, 10, 13, 14, 15, 16, 17, 18, 31, 42, 43, 47, 48, 49, 55, 56, 60, 61)


@dataclass(frozen=True)
class Run:
    """One run of pytest."""

    tests: tuple[str, ...]
    controls: tuple[str, ...]
    left_out: tuple[str, ...]
    preloaded: bool = False
    options: tuple[str, ...] = ()


RUNS = (
    Run(
        ("tests/device/emulator", "tests/fuzz"),
        ("test_emulator",),
        (f"{_DEVICE}::test_a_crash_of_the_core_is_contained",),  # by a signal, which a sanitizer would report
        preloaded=True,
    ),
    Run(
        ("tests/plan", "tests/sandbox", "tests/device/cuda/executor"),
        ("test_executor", "test_confined"),
        (f"{_FAULTS}::test_a_process_that_dies_is_the_machine_s",),  # the same
    ),
    Run(
        ("tests/plan", "tests/sandbox"),
        ("test_unconfined",),
        (
            *(f"tests/plan/test_hosts.py::test_misdeed_has_its_code[{mode}]" for mode in _STOPPED),
            "tests/plan/test_hosts.py::test_nothing_is_left_behind",  # commits some of them
            "tests/plan/test_hosts.py::test_what_is_next_to_a_misdeed_makes_a_plan[62]",  # needs the filter's refusal
            "tests/plan/test_loading.py::test_constructors_run_confined",
            "tests/plan/test_places.py::test_faults_and_refused_calls[15]",
            "tests/plan/test_places.py::test_faults_and_refused_calls[31]",
            "tests/plan/test_untold.py::test_a_hidden_size_is_told_by_no_value_and_no_text[14]",
            "tests/sandbox/test_process.py::test_limits_hold",  # of address space, in which shadow memory lies
        ),
        options=("--unconfined",),
    ),
)


def main(arguments: Sequence[str]) -> int:
    """Make the runs, with the tests of each that `arguments` names if it names any; return the exit status."""
    named = [argument for argument in arguments if argument.startswith("tests/")]
    options = [argument for argument in arguments if argument not in named]
    status = 0
    for run in RUNS:
        tests = _of(run, named) if named else run.tests
        if tests:
            status = _made(run, tests, options) or status
    return status


def _of(run: Run, named: Sequence[str]) -> list[str]:
    """Return the named tests that lie in the run's folders; those in no run's are the first's, which has everything."""
    others = [test for test in named if run is RUNS[0] and not any(test.startswith(each.tests) for each in RUNS)]
    return [test for test in named if test.startswith(run.tests)] + others


def _made(run: Run, tests: Sequence[str], options: Sequence[str]) -> int:
    found = [subprocess.run(["g++", f"-print-file-name=lib{name}.so"], capture_output=True, text=True, check=True)
             for name in ("asan", "ubsan", "stdc++")]  # fmt: skip
    with tempfile.TemporaryDirectory() as folder:
        reports = Path(folder) / "report"
        common = f"log_path={reports}:halt_on_error=1:print_stacktrace=1"
        environment = os.environ | {
            # Python keeps memory to its end; it and numpy allocate more than there is where a size is absurd.
            "ASAN_OPTIONS": f"{common}:detect_leaks=0:allocator_may_return_null=1",
            "UBSAN_OPTIONS": common,
        }
        if run.preloaded:
            environment["LD_PRELOAD"] = ":".join(done.stdout.strip() for done in found)
        command = [
            sys.executable,
            "-m",
            "pytest",
            "-p",
            "tests.sanitize.plugin",
            "-q",
            *run.options,
            *(f"--deselect={test}" for test in run.left_out),
            *(f"{_CONTROLS}::{control}" for control in run.controls),
            *tests,
            *options,
        ]
        status = subprocess.run(command, env=environment, check=False).returncode
        for report in sorted(reports.parent.glob("report.*")):
            sys.stderr.write(report.read_text(encoding="utf-8", errors="replace") + "\n")
            status = status or 1
    return status


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
