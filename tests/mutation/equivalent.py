"""Mutants that survive, each with the reason why no report is due: the changed kernel is as correct as the original."""

from __future__ import annotations

from tests.mutation.sites import KernelText

REASONS: dict[tuple[str, str, str], str] = {}
"""(kernel, operator, text of the source line that was mutated) → why it is equivalent."""


def reason(kernel: str, operator: str, line: int, text: KernelText) -> str | None:
    """Return why a surviving mutant is equivalent, or None if nobody has justified it."""
    del text
    return REASONS.get((kernel, operator, str(line)))
