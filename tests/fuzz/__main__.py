"""Fuzz the emulator: `python -m tests.fuzz --seconds 3600`."""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from pathlib import Path

from tests.fuzz.campaign import ROOT, campaign, described, minimised

SOURCES = (
    "device/emulator/decode/features.cu", "device/emulator/hazards/kernels.cu", "device/emulator/cluster/kernels.cu",
    "device/emulator/tensor/faulty.cu",
)  # fmt: skip


def main() -> None:
    """Run the command line; the exit status is 1 where anything was found."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("--seconds", type=float, default=60, help="how long (default 60)")
    parser.add_argument("--first", type=int, default=int(time.time()), help="first seed (default: the time)")
    parser.add_argument("--kind", choices=("programs", "damage", "both"), default="both")
    parser.add_argument("--seed", type=int, help="minimise the program of this seed and print it")
    arguments = parser.parse_args()
    if arguments.seed is not None:
        _say(described(minimised(arguments.seed)))
        return
    kinds = ("programs", "damage") if arguments.kind == "both" else (arguments.kind,)
    with tempfile.TemporaryDirectory() as folder:
        modules = compiled(Path(folder)) if "damage" in kinds else []
        report = campaign(arguments.seconds, arguments.first, kinds, modules, _say)
    _say(f"{sum(report.outcomes.values())} seeds, {len(report.faults)} faults")
    sys.exit(bool(report.faults))


def _say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def compiled(folder: Path) -> list[str]:
    """Compile the emulator's own test kernels to PTX, to be damaged."""
    from tests.device.emulator.hazards.harness import compile_ptx

    found = []
    for source in SOURCES:
        path = ROOT / "tests" / source
        into = folder / source.replace("/", "_")
        into.mkdir()
        compile_ptx(path, into)
        found += [str(ptx) for ptx in into.glob("*.ptx")]
    return found


if __name__ == "__main__":
    main()
