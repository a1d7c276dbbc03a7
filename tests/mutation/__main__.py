"""The whole campaign, as a table; survivors and unnamed mutants one by one.

    nice python -m tests.mutation [SOLUTION …] [--every N] [--json FILE]
    python -m tests.mutation --tables FILE … > docs/mutation.md

The file holds each result as soon as it is there: started again with the same file, the campaign goes on where it
ended, and argues survivors anew. It belongs to one state of kernels and emulator. `tests/gpu/mutation.py` shows it
beside what hardware and compute-sanitizer find.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
from collections.abc import Iterator
from pathlib import Path

from tests.mutation.campaign import UNCHANGED, Result, campaign, seeds, table
from tests.mutation.document import document
from tests.mutation.targets import SOLUTIONS, load

SEEDS = 100


class Held:
    """Results by key, kept in a file if there is one."""

    def __init__(self, file: Path | None) -> None:
        self._file = file
        rows = json.loads(file.read_text()) if file is not None and file.exists() else []
        self.results = {row["key"]: Result(**row) for row in rows}

    def add(self, result: Result) -> None:
        """Keep one more result."""
        before = self.results.get(result.key)
        self.results[result.key] = result
        if self._file is None or before == result:
            return
        rows = [dataclasses.asdict(held) for held in self.results.values()]
        new = self._file.with_suffix(".new")
        new.write_text(json.dumps(rows, indent=1) + "\n")
        new.replace(self._file)


def report(name: str, held: Held, every: int) -> tuple[str, bool]:
    """Run the campaign of one solution; return its report, and whether it is clean and its survivors argued."""
    target = load(name)
    clean = held.results.get(f"{name}/unchanged")
    if clean is None:
        unclean = [f"{schedule}: {what}" for schedule, what in seeds(target, SEEDS)]
        outcome = "unclean" if unclean else "clean"
        clean = Result(name, UNCHANGED, f"{SEEDS} seeds", 0, outcome, "\n".join(unclean), key=f"{name}/unchanged")
        held.add(clean)
    results = []
    for result in campaign(target, lambda subject: subject.number % every == 0, held.results):
        held.add(result)
        results.append(result)
    lines = [f"\n{name}: {clean.outcome} over {clean.detail}, fair and lazy; {len(results)} mutants\n", clean.first]
    lines += [table(results), "", *_one_by_one(results)]
    all_argued = all(result.reason for result in results if result.outcome == "survived")
    return "\n".join(lines), all_argued and clean.outcome == "clean"


def _one_by_one(results: list[Result]) -> Iterator[str]:
    for result in results:
        if result.outcome != "named":
            where = f"line {result.line}" if result.line else "host"
            yield f"{result.outcome:9} {result.operator:24} {where:9} {result.detail:40} {result.first}"
        if result.outcome == "survived":
            yield f"{'':9} {result.kind or 'NOT ARGUED'}: {result.reason or ''}"


def main() -> int:
    """Run and print; 1 if a solution is not clean or a survivor is not argued."""
    parser = argparse.ArgumentParser(description="Does the emulator notice every mutant of the proven kernels?")
    parser.add_argument("names", nargs="*", help=f"of {', '.join(SOLUTIONS)}; all by default")
    parser.add_argument("--json", type=Path, help="keep every mutant's outcome there, and go on from there")
    parser.add_argument("--every", type=int, default=1, help="run one mutant of so many; all by default")
    parser.add_argument("--tables", type=Path, nargs="+", help="run nothing; print the page of these files")
    options = parser.parse_args()
    if options.tables:
        files = [Held(file).results.values() for file in options.tables]
        sys.stdout.write(document([result for results in files for result in results]))
        return 0
    good, held = True, Held(options.json)
    for name in options.names or SOLUTIONS:
        text, sound = report(name, held, options.every)
        sys.stdout.write(text + "\n")
        sys.stdout.flush()
        good &= sound
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
