"""`python -m tests.mutation [SOLUTION …]`: the whole campaign, as a table; survivors and unnamed mutants one by one."""

from __future__ import annotations

import sys

from tests.mutation.campaign import campaign, table
from tests.mutation.targets import SOLUTIONS, load


def main(names: tuple[str, ...]) -> int:
    """Run and print; 1 if a survivor has no justification."""
    unjustified = 0
    for name in names:
        results = list(campaign(load(name)))
        print(f"\n{name}: {len(results)} mutants\n\n{table(results)}\n")
        for result in results:
            if result.outcome != "named":
                print(f"{result.outcome:9} {result.operator:24} line {result.line:4} {result.detail:40} {result.first}")
            if result.outcome == "survived":
                unjustified += result.reason is None
                print(f"          {result.reason or 'NOT JUSTIFIED'}")
    return 1 if unjustified else 0


if __name__ == "__main__":
    sys.exit(main(tuple(sys.argv[1:]) or SOLUTIONS))
