"""Reads a report of Nsight Compute for `report`: a script, run by a Python that has loaded nothing else.

In a process that has imported numpy, `ncu_report` crashes when it is asked for a unit (Nsight Compute 2025.3.1, numpy
2.5); in a bare interpreter it does not. So this file imports nothing of this project, and is run as
`python -I -S report_script.py FOLDER`.
"""

import faulthandler
import importlib
import json
import os
import sys
from typing import Any

ENTRIES = "launch__function_pcs"


def load_module(folder: str) -> Any:
    """Load `ncu_report` from Nsight Compute's `extras/python`; raises ImportError."""
    sys.path.insert(0, folder)
    return importlib.import_module("ncu_report")


def launches(module: Any, request: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the launches of a report, in order.

    Args:
        module: `ncu_report`.
        request: `path` of the report; metrics `of_launch` and `of_instructions`; `executions`, the one of the latter
            that has all instructions; `left_out`, the kernel whose launch is left out if it is the first; `known`,
            the byte offsets of instructions by kernel whose texts need not be read, which takes half a second.

    Returns:
        Per launch: `kernel`, mangled; `values`, [value, unit] by metric; `offsets` of its instructions from the
        kernel's start, and their `sass`, null where known; `instances`, values per instruction by metric. Metrics that
        a report lacks are left out.
    """
    report = module.load_report(request["path"])
    ranges = [report.range_by_idx(index) for index in range(report.num_ranges())]
    actions = [part.action_by_idx(number) for part in ranges for number in range(part.num_actions())]
    return [
        _launch(action, request)
        for number, action in enumerate(actions)
        if number or action.name(action.NameBase_MANGLED) != request["left_out"]
    ]


def _launch(action: Any, request: dict[str, Any]) -> dict[str, Any]:
    present = set(action.metric_names())
    values = {}
    for name in request["of_launch"]:
        if name in present:
            metric = action.metric_by_name(name)
            values[name] = [metric.value(), metric.unit()]
    by_address = {name: _instances(action, name) for name in request["of_instructions"] if name in present}
    kernel = action.name(action.NameBase_MANGLED)
    addresses = sorted(by_address.get(request["executions"], {}))
    start = _start(action, present, addresses)
    known = set(request["known"].get(kernel, ()))
    return {
        "kernel": kernel,
        "values": values,
        "offsets": [address - start for address in addresses],
        "sass": [None if at - start in known else action.sass_by_pc(at) for at in addresses],
        "instances": {name: [found.get(at, 0) for at in addresses] for name, found in by_address.items()},
    }


def _start(action: Any, present: set[str], addresses: list[int]) -> int:
    """Return the address of the kernel's first instruction; functions that it calls may lie before."""
    if ENTRIES in present:
        entries = action.metric_by_name(ENTRIES)
        if entries.num_instances() == 1:
            return int(entries.value(0))
    return addresses[0] if addresses else 0


def _instances(action: Any, name: str) -> dict[int, int]:
    """Return the values of a metric by the address of the instruction."""
    metric = action.metric_by_name(name)
    if not metric.has_correlation_ids():
        return {}
    addresses = metric.correlation_ids()
    return {addresses.value(index): metric.value(index) for index in range(metric.num_instances())}


def main(folder: str) -> None:
    """Load the module, wait for a request as JSON on standard input, answer with `launches` or a `problem`."""
    faulthandler.enable()
    answer: dict[str, Any] = {}
    try:
        module = load_module(folder)
        said = sys.stdin.read()
        answer["launches"] = launches(module, json.loads(said)) if said else []
    except (ImportError, OSError, RuntimeError, ValueError) as error:
        answer["problem"] = f"{type(error).__name__}: {error}"
    sys.stdout.write(json.dumps(answer) + "\n")
    sys.stdout.flush()
    os._exit(0)  # the module's own clean-up has nothing to say


if __name__ == "__main__":
    main(sys.argv[1])
