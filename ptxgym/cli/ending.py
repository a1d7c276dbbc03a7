"""How a command ends: known errors, interrupts, and streams that are closed, full or cannot show every character."""

from __future__ import annotations

import codecs
import contextlib
import errno
import io
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from types import FrameType

from ptxgym.cli.console import Exit, ReaderGone, err, plain
from ptxgym.errors import InfrastructureError, PtxgymError

_PLAIN = {
    "·": "-", "×": "x", "−": "-", "–": "-", "…": "...", "→": "->", "≤": "<=", "≥": ">=", "ᵀ": "^T", "✓": "ok",
    "✗": "no", "│": "|", "─": "-", "█": "#", "░": ".",
}  # fmt: skip
"""What stands for a character that the encoding of a stream does not have; anything else becomes `?`."""


_CANNOT_WRITE = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO})


class _Interrupted(BaseException):
    """Ctrl-C. No library treats it in a way of its own, as some do KeyboardInterrupt."""


def run() -> int:
    """Run the command line and return its exit status; whatever ends it early is one line on standard error."""
    _open_streams()
    if sys.stdout is None:
        return _say("standard output is closed", Exit.INFRASTRUCTURE)
    try:
        return _finish(_run())
    except _Interrupted:  # while another ending was told
        return _say("interrupted", Exit.INTERRUPTED)


def _run() -> int:
    output, file = sys.stdout, os.fstat(1).st_ino
    try:
        with _interrupts():
            from ptxgym import native
            from ptxgym.cli.commands import app

            with native.announcing(_announce()):
                app()
    except SystemExit as ended:
        if sys.stdout is not output or os.fstat(1).st_ino != file:  # typer and rich replace what has no reader
            sys.stdout = output
            return Exit.NO_READER
        return ended.code if isinstance(ended.code, int) else Exit.OK
    except _Interrupted:
        return _say("interrupted", Exit.INTERRUPTED)
    except (ReaderGone, BrokenPipeError):
        return Exit.NO_READER
    except SystemError as error:  # Cython's word for an exception of a signal handler that it did not expect
        if not _comes_of_interrupt(error):
            raise
        return _say("interrupted", Exit.INTERRUPTED)
    except PtxgymError as error:
        return _say(str(error), Exit.INFRASTRUCTURE if isinstance(error, InfrastructureError) else Exit.USAGE)
    except OSError as error:
        what = "cannot write: " if error.errno in _CANNOT_WRITE else ""
        where = f"{error.filename}: " if error.filename else ""
        return _say(f"{what}{where}{error.strerror or error}", Exit.INFRASTRUCTURE)
    return Exit.OK


def _comes_of_interrupt(error: BaseException) -> bool:
    seen = error.__cause__ or error.__context__
    return seen is not None and (isinstance(seen, _Interrupted) or _comes_of_interrupt(seen))


def _finish(status: int) -> int:
    """Write what is still buffered, while a failure can be told."""
    failed = _flushed()
    if failed is None:
        return status
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # the interpreter flushes once more at its end
    if isinstance(failed, BrokenPipeError):
        return Exit.NO_READER
    return status if status == Exit.INFRASTRUCTURE else _say(f"cannot write: {failed.strerror}", Exit.INFRASTRUCTURE)


def _flushed() -> OSError | None:
    try:
        sys.stdout.flush()
    except OSError as error:
        return error
    return None


def _say(message: str, status: Exit) -> Exit:
    with contextlib.suppress(OSError):
        err.print(plain(f"ptxgym: {message}", "red"))
    return status


def _announce() -> Callable[[str], None]:
    """Return what tells of native parts that are compiled: that takes minutes, but once only."""
    told: list[str] = []

    def tell(line: str) -> None:
        with contextlib.suppress(OSError):
            err.print(plain(line if told else f"{line} (once per machine; it takes some minutes in all)", "dim"))
        told.append(line)

    return tell


@contextlib.contextmanager
def _interrupts() -> Iterator[None]:
    """Turn Ctrl-C into `_Interrupted`, once; what follows it on the way out is not cut short by another."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def interrupt(number: int, frame: FrameType | None) -> None:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        raise _Interrupted

    before = signal.signal(signal.SIGINT, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def _open_streams() -> None:
    """Put the null device where a standard stream is closed, and let no character be one that a stream cannot show."""
    for number in (0, 1, 2):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # takes the lowest free number: this one
    if sys.stderr is None:
        sys.stderr = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115, PTH123  (for the life of the process)
    codecs.register_error("ptxgym.plain", _replace)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="ptxgym.plain")


def _replace(error: UnicodeError) -> tuple[str | bytes, int]:
    if not isinstance(error, UnicodeEncodeError):
        raise error
    return "".join(_PLAIN.get(letter, "?") for letter in error.object[error.start : error.end]), error.end
