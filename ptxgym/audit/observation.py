"""What one check has to say about one item; the checklist puts together what all of them say."""

from __future__ import annotations

from dataclasses import dataclass

from ptxgym.audit.model import Outcome


@dataclass(frozen=True)
class Observation:
    """One thing seen."""

    item: str
    outcome: Outcome
    found: str
    line: int | None = None
    remedy: str | None = None
    code: str | None = None


def kept(item: str, found: str, line: int | None = None) -> Observation:
    """Say that an item holds as far as this check looks."""
    return Observation(item, Outcome.KEPT, found, line)


def violated(
    item: str, found: str, remedy: str | None = None, line: int | None = None, code: str | None = None
) -> Observation:
    """Say that an item does not hold."""
    return Observation(item, Outcome.VIOLATED, found, line, remedy, code)


def unknown(
    item: str, found: str, remedy: str | None = None, line: int | None = None, code: str | None = None
) -> Observation:
    """Say that something was seen that may be a violation, or that cannot be judged."""
    return Observation(item, Outcome.UNKNOWN, found, line, remedy, code)
