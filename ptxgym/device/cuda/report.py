"""Nsight Compute's reports: one value per kernel launch, read in a process of its own.

`ncu_report` (Nsight Compute, "Python Report Interface") comes with Nsight Compute, in `extras/python`.
"""

from __future__ import annotations

import functools
import json
import signal
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ptxgym.device.cuda import metrics, report_script
from ptxgym.device.cuda.listing import Texts

READ_LIMIT_S = 60.0
NO_TEXTS: Texts = {}
_MOST_SAID = 400


@dataclass(frozen=True)
class Launch:
    """One profiled launch."""

    kernel: str
    """Mangled name."""
    values: Mapping[str, float]
    """Metrics of the whole launch by Nsight Compute's name, in the units of `UNITS`."""
    sass: tuple[str, ...]
    """Its instructions, as text, in the order of their addresses."""
    offsets: tuple[int, ...]
    """Byte offset of each instruction from the kernel's first."""
    instances: Mapping[str, tuple[int, ...]]
    """Metrics per instruction, by Nsight Compute's name, in the order of `sass`."""


class ReportError(Exception):
    """Raised when Nsight Compute's module cannot be loaded, or a report cannot be read; says why."""


UNITS: Mapping[str, Mapping[str, float]] = {
    metrics.DURATION: {"ns": 1e-3, "nsecond": 1e-3, "us": 1.0, "usecond": 1.0, "ms": 1e3, "msecond": 1e3},
}
"""Factors to what `Launch.values` holds (µs), by the unit of the report; other metrics come as they are."""


class ReportReader:
    """A process that has loaded Nsight Compute's module and waits for one report; start it before it is needed."""

    def __init__(self, folder: Path) -> None:
        """Start it with `extras/python` of Nsight Compute."""
        self._process = subprocess.Popen(
            [sys.executable, "-I", "-S", report_script.__file__, folder],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        )  # fmt: skip

    def read(self, path: Path | None, left_out: str = "", texts: Texts = NO_TEXTS) -> tuple[Launch, ...]:
        """Return the launches of the report at `path`, in order; without one, only load the module. Once per process.

        Args:
            path: a `.ncu-rep` file.
            left_out: Kernel whose launch is left out if it is the first.
            texts: What is known of the kernels' instructions; the module takes half a second for that.

        Raises:
            ReportError: if the module cannot be loaded, or the report not be read.
        """
        request = {
            "path": str(path), "left_out": left_out, "executions": metrics.WARP_EXECUTIONS,
            "of_launch": metrics.OF_LAUNCH, "of_instructions": metrics.OF_INSTRUCTIONS,
            "known": {kernel: list(known) for kernel, known in texts.items()},
        }  # fmt: skip
        try:
            answer, said = self._process.communicate(json.dumps(request).encode() if path else b"", READ_LIMIT_S)
        except subprocess.TimeoutExpired:
            raise ReportError(f"the report was not read within {READ_LIMIT_S:g} s") from None
        finally:
            self.close()
        code = self._process.returncode
        if code:
            how = f"died of {signal.Signals(-code).name}" if code < 0 else f"ended with status {code}"
            last_words = said.decode(errors="replace")[:_MOST_SAID]
            raise ReportError(f"the reader of Nsight Compute's reports {how}: {last_words}")
        read = json.loads(answer)
        if "problem" in read:
            raise ReportError(f"Nsight Compute's report cannot be read: {read['problem']}")
        return tuple(_launch(found, texts.get(found["kernel"], {})) for found in read["launches"])

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


def _launch(found: Mapping[str, Any], texts: Mapping[int, str]) -> Launch:
    """Return a launch of `report_script`'s answer."""
    missing = [name for name in (metrics.WARP_EXECUTIONS, metrics.THREAD_EXECUTIONS) if name not in found["instances"]]
    if missing:
        raise ReportError(f"the report lacks {', '.join(missing)} of {found['kernel']}")
    return Launch(
        kernel=found["kernel"],
        values={name: _value(name, *measured) for name, measured in found["values"].items()},
        sass=tuple(
            texts[offset] if text is None else text.strip()
            for offset, text in zip(found["offsets"], found["sass"], strict=True)
        ),
        offsets=tuple(found["offsets"]),
        instances={name: tuple(counts) for name, counts in found["instances"].items()},
    )


def _value(name: str, value: float, unit: str) -> float:
    factors = UNITS.get(name)
    if factors is None:
        return float(value)
    if unit not in factors:
        raise ReportError(f"the report gives {name} in {unit!r}, which is no unit that is known")
    return float(value) * factors[unit]
