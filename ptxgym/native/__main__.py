"""`python -m ptxgym.native`: build every native target now, rather than at first use."""

import sys

from ptxgym.errors import PtxgymError
from ptxgym.native import build_all


def _say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def main() -> int:
    """Build everything; return 0, or 3 if the machine cannot."""
    try:
        build_all(_say)
    except PtxgymError as error:
        sys.stderr.write(f"{error}\n")
        return 3
    return 0


if __name__ == "__main__":
    sys.exit(main())
