"""The first moments of the command `ptxgym`: nothing of it can be lost yet, and an interrupt ends it at once."""

from __future__ import annotations

import os
import signal
import sys
from itertools import pairwise
from types import FrameType

_MODULES = {("-m", "ptxgym"), ("-m", "ptxgym.cli")}


def starts_command() -> bool:
    """Whether this process is the command `ptxgym`, or `python -m`, which imports a package before its module."""
    program = sys.argv[0] if sys.argv else ""
    return program == "-m" or os.path.basename(program) == "ptxgym"  # noqa: PTH119  (pathlib takes a while to import)


def end_at_interrupt() -> None:
    """Let Ctrl-C end the command at once, in one line, until `let_main_end` is called; other programs keep theirs.

    What is imported before the command can treat an interrupt (Gymnasium and numpy: 0.1 s and more) would else end in a
    traceback, or make another error of it.
    """
    if _is_command() and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, _end)


def let_main_end() -> None:
    """Give Ctrl-C back to Python, where `end_at_interrupt` took it."""
    if signal.getsignal(signal.SIGINT) is _end:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def _is_command() -> bool:
    """Whether the interpreter was started for the command: not its worker, nor a process that it spawned."""
    if sys.argv and sys.argv[0] == "-m":
        return not _MODULES.isdisjoint(pairwise(sys.orig_argv))
    return starts_command() and sys.argv[0] in sys.orig_argv


def _end(number: int, frame: FrameType | None) -> None:
    os.write(2, b"ptxgym: interrupted\n")
    os._exit(130)
