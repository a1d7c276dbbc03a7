"""Reads the tables of accepted and refused instructions."""

from __future__ import annotations

from pathlib import Path

_HERE = Path(__file__).parent


def _lines(name: str) -> list[str]:
    text = (_HERE / name).read_text()
    return [line for line in text.splitlines() if line and line[0] not in "#["]


LINES: tuple[tuple[str, str], ...] = tuple(
    (instruction, meaning) for instruction, _, meaning in (line.partition(" -> ") for line in _lines("accepted.txt"))
)
"""(instruction, what it must decode to)."""
REFUSED_LINES = tuple(_lines("refused.txt"))
