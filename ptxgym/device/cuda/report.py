"""Reads Nsight Compute's reports: one value per kernel launch, independent of NVIDIA's module from there on.

`ncu_report` (Nsight Compute, "Python Report Interface") comes with Nsight Compute, in `extras/python`; reading a report
of one launch takes 0.1 s with it, 0.5 s with `ncu --import --csv` (measured on an H200 machine, version 2025.3.1).
"""

from __future__ import annotations

import functools
import importlib
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ptxgym.device.cuda import metrics


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
    "gpu__time_duration.sum": {"ns": 1e-3, "nsecond": 1e-3, "us": 1.0, "usecond": 1.0, "ms": 1e3, "msecond": 1e3},
}
"""Factors to what `Launch.values` holds (µs), by the unit of the report; other metrics come as they are."""


@functools.cache
def _module(folder: Path) -> Any:
    """Load `ncu_report` from `folder` once per process."""
    path = folder / "ncu_report.py"
    if not path.is_file():
        raise ReportError(f"{path} is missing")
    sys.path.insert(0, str(folder))
    try:
        return importlib.import_module("ncu_report")
    except ImportError as error:
        raise ReportError(f"{path} cannot be loaded by this Python: {error}") from error
    finally:
        sys.path.remove(str(folder))


def load_reader(folder: Path) -> None:
    """Load Nsight Compute's module ahead of the first report.

    Raises:
        ReportError: if it is missing or not for this Python.
    """
    _module(folder)


def read_report(path: Path, folder: Path, left_out: str = "") -> tuple[Launch, ...]:
    """Return the launches of the report at `path`, in order.

    Args:
        path: a `.ncu-rep` file.
        folder: Nsight Compute's `extras/python`.
        left_out: Kernel whose launch is left out if it is the first.

    Raises:
        ReportError: if it cannot be read.
    """
    module = _module(folder)
    try:
        report = module.load_report(str(path))
        ranges = [report.range_by_idx(index) for index in range(report.num_ranges())]
        actions = [part.action_by_idx(number) for part in ranges for number in range(part.num_actions())]
        return tuple(
            _launch(action)
            for number, action in enumerate(actions)
            if number or action.name(action.NameBase_MANGLED) != left_out
        )
    except (FileNotFoundError, RuntimeError, ValueError) as error:
        raise ReportError(f"{path.name} cannot be read: {error}") from error


def _launch(action: Any) -> Launch:
    present = set(action.metric_names())
    if missing := {metrics.WARP_EXECUTIONS, metrics.THREAD_EXECUTIONS} - present:
        raise ReportError(f"the report lacks {', '.join(sorted(missing))} of {action.name()}")
    values = {name: _value(action, name) for name in metrics.OF_LAUNCH if name in present}
    instances = {name: _instances(action, name) for name in metrics.OF_INSTRUCTIONS if name in present}
    addresses = sorted(instances.get(metrics.WARP_EXECUTIONS, {}))
    start = addresses[0] if addresses else 0
    return Launch(
        kernel=action.name(action.NameBase_MANGLED),
        values=values,
        sass=tuple(action.sass_by_pc(address).strip() for address in addresses),
        offsets=tuple(address - start for address in addresses),
        instances={name: tuple(found.get(at, 0) for at in addresses) for name, found in instances.items()},
    )


def _value(action: Any, name: str) -> float:
    metric = action.metric_by_name(name)
    factor = UNITS[name][metric.unit()] if name in UNITS else 1.0
    return float(metric.as_double()) * factor


def _instances(action: Any, name: str) -> dict[int, int]:
    """Return the values of a metric by the address of the instruction."""
    metric = action.metric_by_name(name)
    if not metric.has_correlation_ids():
        return {}
    addresses = metric.correlation_ids()
    return {addresses.as_uint64(i): metric.as_uint64(i) for i in range(metric.num_instances())}
