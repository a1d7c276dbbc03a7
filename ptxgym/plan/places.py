"""Where in the submission a call of the host code was, for messages: its line, and the lines that led there."""

from __future__ import annotations

from collections.abc import Sequence

from ptxgym.build.lines import host_lines
from ptxgym.build.model import Build
from ptxgym.verdict import Diagnostic, Severity

_SHOWN_LINES = 3


def lines_of(build: Build, frames: Sequence[int]) -> tuple[int, ...]:
    """Return the lines behind the recorder's frames (offsets, innermost first), without repeats."""
    table = host_lines(build.library)
    return tuple(dict.fromkeys(line for frame in frames for line in table.lines(frame)))


def places(build: Build, frames: Sequence[int]) -> tuple[Diagnostic, ...]:
    """Return the innermost lines as diagnostics of the submission, each with its text; () where none is known."""
    lines = lines_of(build, frames)[:_SHOWN_LINES]
    if not lines:
        return ()
    text = build.source.read_text(encoding="utf-8", errors="replace").split("\n")
    return tuple(
        Diagnostic(
            severity=Severity.NOTE if index else Severity.ERROR,
            message="called from here" if index else "the host code was here",
            line=line,
            source_line=text[line - 1] if line <= len(text) else None,
        )
        for index, line in enumerate(lines)
    )
