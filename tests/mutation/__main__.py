"""`python -m tests.mutation [SOLUTION …]`: the whole campaign, as a table; survivors and unnamed mutants one by one."""

from __future__ import annotations

import sys

from tests.mutation.campaign import campaign, seeds, table
from tests.mutation.targets import SOLUTIONS, load

SEEDS = 100


def report(name: str) -> tuple[str, bool]:
    """Run the campaign of one solution; return its report, and whether it is clean and its survivors justified."""
    target = load(name)
    unclean = list(seeds(target, SEEDS))
    results = list(campaign(target))
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


def main(names: tuple[str, ...]) -> int:
    """Run and print; 1 if a solution is not clean or a survivor has no justification."""
    good = True
    for name in names:
        text, sound = report(name)
        sys.stdout.write(text + "\n")
        good &= sound
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main(tuple(sys.argv[1:]) or SOLUTIONS))
