"""The first moments of the command `ptxgym`: nothing of it can be lost yet, and an interrupt ends it at once."""

from __future__ import annotations

import os
import signal
import sys
from itertools import pairwise
from types import FrameType

_MODULES = ("ptxgym", "ptxgym.cli")


def starts_command() -> bool:
    """Whether this process is the command `ptxgym`, or `python -m`, which imports a package before its module."""
    program = sys.argv[0] if sys.argv else ""
    return program == "-m" or os.path.basename(program) == "ptxgym"  # noqa: PTH119  (pathlib takes a while to import)


class EndAtInterrupt:
    """Lets Ctrl-C end the command at once, in one line, while the package is imported; other programs keep theirs.

    What is imported before the command can treat an interrupt (Gymnasium and numpy: 0.1 s and more) would else end in a
    traceback, or make another error of it. Afterwards Python has Ctrl-C back: a program may have the command's name and
    only use the library. From there to `main` it is 0.3 ms.
    """

    _holds = False

    def __enter__(self) -> None:
        if _is_command() and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
            try:
                signal.signal(signal.SIGINT, _end)
            except ValueError:  # a thread of such a program imports us
                return
            self._holds = True

    def __exit__(self, *raised: object) -> None:
        if self._holds:
            signal.signal(signal.SIGINT, signal.default_int_handler)


def _is_command() -> bool:
    """Whether the interpreter was started for the command: not its worker, nor a process that it spawned."""
    if sys.argv and sys.argv[0] == "-m":
        return _module() in _MODULES
    return starts_command() and sys.argv[0] in sys.orig_argv


def _module() -> str:
    """Return what `python -m` runs: the option may end others (`-um`), and its value may follow without a space."""
    for word, following in pairwise([*sys.orig_argv[1:], ""]):
        options, found, value = word.partition("m")
        if found and options.startswith("-") and not {"-", "W", "X"} & {*options[1:]}:  # these have values of their own
            return value or following
    return ""


def _end(number: int, frame: FrameType | None) -> None:
    os.write(2, b"ptxgym: interrupted\n")
    os._exit(130)
