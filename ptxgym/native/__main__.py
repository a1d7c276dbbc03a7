"""`python -m ptxgym.native [TARGET ...]`: build these (by default all) native targets now, rather than at first use."""

import sys

from ptxgym.errors import PtxgymError
from ptxgym.native import build_all, targets


def _say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def main() -> int:
    """Build; return 0, or 3 if the machine cannot."""
    try:
        build_all(_say, sys.argv[1:] or targets())
    except PtxgymError as error:
        sys.stderr.write(f"{error}\n")
        return 3
    return 0


if __name__ == "__main__":
    sys.exit(main())
