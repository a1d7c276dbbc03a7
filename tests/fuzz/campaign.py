"""Many seeds in worker processes, and what they found."""

from __future__ import annotations

import collections
import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tests.fuzz.check import check
from tests.fuzz.generate import program
from tests.fuzz.interpreter import inputs
from tests.fuzz.program import Fuzzed
from tests.fuzz.shrink import shrink
from tests.fuzz.text import ptx_of

ROOT = Path(__file__).parents[2]
GOOD = ("agree", "PtxSyntaxError", "NotEmulated", "empty", "too large", "OK", "RUNTIME_FAULT", "HANG", "BUDGET")
"""Outcomes that are as they should be; everything else is reported."""


@dataclass(frozen=True)
class Fault:
    """A seed that shows something wrong."""

    kind: str
    seed: int
    outcome: str
    detail: str


@dataclass
class Report:
    """What a campaign came to."""

    outcomes: collections.Counter[str] = field(default_factory=collections.Counter)
    executed: collections.Counter[str] = field(default_factory=collections.Counter)
    """Thread executions of every form."""
    faults: list[Fault] = field(default_factory=list)


def run_seeds(kind: str, first: int, count: int, modules: Sequence[str], report: Report) -> None:
    """Run seeds in worker processes, a fresh one after each that died."""
    end = first + count
    while first < end:
        command = [sys.executable, "-m", "tests.fuzz.worker", kind, str(first), str(end - first), *modules]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
        at = first
        for line in done.stdout.splitlines():
            if line.startswith("@ "):
                at = int(line.split()[2])
                continue
            told = json.loads(line)
            if "executed" in told:
                report.executed.update(told["executed"])
                continue
            report.outcomes[told["outcome"]] += 1
            if told["outcome"] not in GOOD:
                report.faults.append(Fault(kind, told["seed"], told["outcome"], told.get("detail", "")))
        if done.returncode == 0:
            return
        how = signal.Signals(-done.returncode).name if done.returncode < 0 else f"exit status {done.returncode}"
        report.outcomes["died"] += 1
        report.faults.append(Fault(kind, at, "died", f"{how}: {done.stderr[-2000:]}"))
        first = at + 1


def campaign(
    seconds: float,
    first: int,
    kinds: Sequence[str],
    modules: Sequence[str],
    say: Callable[[str], None],
    batch: int = 200,
) -> Report:
    """Run batches of seeds until the time is over, and say what is wrong as it is found."""
    report, end, told = Report(), time.monotonic() + seconds, 0
    while time.monotonic() < end:
        for kind in kinds:
            many = 1 if kind == "programs" else 3
            run_seeds(kind, many * first, many * batch, modules, report)
            for fault in report.faults[told:]:
                say(f"{fault.kind} seed {fault.seed}: {fault.outcome}: {fault.detail}")
                if fault.kind == "programs" and fault.outcome != "died":
                    say(described(minimised(fault.seed)))
            told = len(report.faults)
        first += batch
        say(f"seeds up to {first}: {dict(report.outcomes)}; {len(report.executed)} forms")
    return report


def minimised(seed: int) -> Fuzzed:
    """The smallest program found that shows the same kind of disagreement as the seed's."""
    original = program(seed)

    def kind_of(candidate: Fuzzed) -> str:
        try:
            found, _ = check(candidate)
        except Exception as error:
            return type(error).__name__
        return "" if found is None else found.kind

    wanted = kind_of(original)
    return shrink(original, lambda candidate: kind_of(candidate) == wanted) if wanted else original


def described(small: Fuzzed) -> str:
    """A minimised program and its module."""
    return f"minimised: {small}\n{ptx_of(small, inputs(small).table)}"
