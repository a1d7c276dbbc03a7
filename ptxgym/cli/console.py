"""Where the commands write, and with which status they end."""

from __future__ import annotations

import sys
from enum import IntEnum

from rich.console import Console
from rich.text import Text

from ptxgym.verdict import Status, Verdict


class Exit(IntEnum):
    """Exit status of every command."""

    OK = 0
    FAILED = 1
    """The submission, or a check, failed."""
    USAGE = 2
    INFRASTRUCTURE = 3
    """The machine failed: no compiler, no disk space, nowhere to write the output."""
    INTERRUPTED = 130
    """Ctrl-C."""
    NO_READER = 141
    """Whatever read the output has gone, as in `ptxgym list | head -1`."""


class ReaderGone(Exception):
    """Raised when nobody reads the output any more."""


class _Console(Console):
    def on_broken_pipe(self) -> None:
        raise ReaderGone


WIDTH = None if sys.stdout is not None and sys.stdout.isatty() else 140
"""Of tables; a pipe or a file has none of its own."""

out = _Console(highlight=False, soft_wrap=True, width=WIDTH)
err = _Console(stderr=True, highlight=False, soft_wrap=True)


def style_of(verdict: Verdict) -> str:
    """Return the colour of a verdict: green what is right, yellow what ran, red the rest."""
    if verdict.status is Status.OK:
        return "green"
    return "yellow" if verdict.score > 0 else "red"


def plain(text: str, style: str = "") -> Text:
    """Return `text` as it stands: brackets in it are no markup."""
    return Text(text, style=style)


def score_bar(score: float, width: int = 20) -> Text:
    """Draw a score in [0, 1] as a bar with its number."""
    filled = round(score * width)
    return Text.assemble(("█" * filled, "green"), ("░" * (width - filled), "dim"), f" {score:.2f}")
