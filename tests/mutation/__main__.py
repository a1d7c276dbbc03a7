"""The whole campaign, as a table; survivors and unnamed mutants one by one.

    python -m tests.mutation [SOLUTION …] [--every N] [--json FILE]
    python -m tests.mutation --tables FILE … > docs/mutation.md

The file is what `tests/gpu/mutation.py` shows beside what hardware and compute-sanitizer find.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
from pathlib import Path

from tests.mutation.campaign import Result, campaign, seeds, table
from tests.mutation.document import document
from tests.mutation.targets import SOLUTIONS, load

SEEDS = 100


def report(name: str, results: list[Result], every: int) -> tuple[str, bool]:
    """Run the campaign of one solution; return its report, and whether it is clean and its survivors justified."""
    target = load(name)
    unclean = list(seeds(target, SEEDS))
    first = len(results)
    results += campaign(target, lambda number: number % every == 0)
    results = results[first:]
    lines = [f"\n{name}: {len(unclean)} findings or errors over {SEEDS} seeds, fair and lazy; {len(results)} mutants\n"]
    lines += [f"{schedule}: {what}" for schedule, what in unclean]
    lines += [table(results), ""]
    for result in results:
        if result.outcome != "named":
            where = f"line {result.line}" if result.line else "host"
            lines.append(f"{result.outcome:9} {result.operator:24} {where:9} {result.detail:40} {result.first}")
        if result.outcome == "survived":
            lines.append(f"{'':9} {result.reason or 'NOT JUSTIFIED'}")
    justified = all(result.reason for result in results if result.outcome == "survived")
    return "\n".join(lines), justified and not unclean


def main() -> int:
    """Run and print; 1 if a solution is not clean or a survivor has no justification."""
    parser = argparse.ArgumentParser(description="Does the emulator notice every mutant of the proven kernels?")
    parser.add_argument("names", nargs="*", help=f"of {', '.join(SOLUTIONS)}; all by default")
    parser.add_argument("--json", type=Path, help="write every mutant's outcome there")
    parser.add_argument("--every", type=int, default=1, help="run one mutant of so many; all by default")
    parser.add_argument("--tables", type=Path, nargs="+", help="run nothing; print the page of these files")
    options = parser.parse_args()
    if options.tables:
        held = [Result(**row) for file in options.tables for row in json.loads(file.read_text())]
        sys.stdout.write(document(held))
        return 0
    good, results = True, list[Result]()
    for name in options.names or SOLUTIONS:
        text, sound = report(name, results, options.every)
        sys.stdout.write(text + "\n")
        good &= sound
    if options.json is not None:
        options.json.write_text(json.dumps([dataclasses.asdict(result) for result in results], indent=1) + "\n")
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
