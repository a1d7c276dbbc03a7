"""The command `ptxgym`."""

from __future__ import annotations

import sys


def main() -> None:
    """Run the command line and end the process; whatever ends it early is one line and a status of `console.Exit`."""
    try:
        from ptxgym.cli.ending import run  # takes a moment: an interrupt may come in between

        status = run()
    except KeyboardInterrupt:
        sys.stderr.write("ptxgym: interrupted\n")
        status = 130
    sys.exit(status)
