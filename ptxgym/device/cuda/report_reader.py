"""Nsight Compute's report reader in a process of its own: `python -m ptxgym.device.cuda.report_reader FOLDER KERNEL`.

NVIDIA's module is native code, and brings its own copies of libraries that torch has too; when it crashes, the judge
process does not. The process is started before it is needed, and reads one report.
"""

from __future__ import annotations

import functools
import os
import pickle
import signal
import subprocess
import sys
from pathlib import Path

from ptxgym.device.cuda.report import Launch, ReportError, load_reader, read_report

READ_LIMIT_S = 60.0
_MOST_SAID = 600


class ReportReader:
    """One process that waits for one report."""

    def __init__(self, folder: Path, left_out: str = "") -> None:
        """Start it with `extras/python` of Nsight Compute, and what `read_report` leaves out."""
        package = str(Path(__file__).parents[3])
        path = os.pathsep.join([package, *filter(None, [os.environ.get("PYTHONPATH")])])
        self._process = subprocess.Popen(
            [sys.executable, "-X", "faulthandler", "-m", "ptxgym.device.cuda.report_reader", str(folder), left_out],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": path},
        )  # fmt: skip

    def read(self, path: Path | None) -> tuple[Launch, ...]:
        """Return the launches of the report at `path`; without one, only load the module. Once per process.

        Raises:
            ReportError: if the module cannot be loaded, or the report not be read.
        """
        try:
            answer, said = self._process.communicate(os.fsencode(path or ""), READ_LIMIT_S)
        except subprocess.TimeoutExpired:
            raise ReportError(f"the report was not read within {READ_LIMIT_S:g} s") from None
        finally:
            self.close()
        code = self._process.returncode
        if code:
            how = f"died of {signal.Signals(-code).name}" if code < 0 else f"ended with status {code}"
            raise ReportError(
                f"the reader of Nsight Compute's reports {how}: {said.decode(errors='replace')[:_MOST_SAID]}"
            )
        found = pickle.loads(answer)
        if isinstance(found, str):
            raise ReportError(found)
        return tuple(found)

    def close(self) -> None:
        """End the process."""
        self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout, self._process.stderr):
            if pipe is not None:
                pipe.close()


@functools.cache
def reader_problem(folder: Path) -> str | None:
    """Return why the module in `folder` cannot be used, or None; asked once per process."""
    try:
        ReportReader(folder).read(None)
    except ReportError as error:
        return str(error)
    return None


def main(arguments: list[str]) -> int:
    """Load the module, wait for a path on standard input, write the launches."""
    folder = Path(arguments[0])
    try:
        load_reader(folder)
        path = os.fsdecode(sys.stdin.buffer.read())
        found: tuple[Launch, ...] | str = read_report(Path(path), folder, arguments[1]) if path else ()
    except ReportError as error:
        found = str(error)
    sys.stdout.buffer.write(pickle.dumps(found))
    sys.stdout.flush()
    os._exit(0)  # the module's own clean-up has nothing to say


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
