"""Proven solutions in records, which name them and do not hold them: what is left of a verdict, and the way back."""

from __future__ import annotations

import contextlib
import hashlib
from typing import Any

from ptxgym.errors import UsageError
from ptxgym.store.records import TurnRecord
from ptxgym.task import BASE
from ptxgym.variants import load_variant
from ptxgym.verdict import Verdict

_QUOTES = "source_line"
"""The key under which diagnostics, findings, their parties and hot lines quote the submission."""


def kernel_of(turn: TurnRecord) -> str | None:
    """Return the text that was judged; None where it is a proven solution that is not here, or no longer the same."""
    if not turn.solution:
        return turn.source
    found = turn.verdict.provenance
    with contextlib.suppress(UsageError):  # a task of another version, or a wheel, which carries no solutions
        task = load_variant(found.task, found.variant or BASE)
        for solution in task.solutions.get(found.arch, ()):
            text = task.source(solution)
            if hashlib.sha256(text.encode()).hexdigest() == found.source_sha256:
                return text
    return None


def unquoted(verdict: Verdict) -> Verdict:
    """Return a verdict without the lines of the submission that it quotes."""
    return Verdict.model_validate(_unquoted(verdict.model_dump()))


def _unquoted(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: None if name == _QUOTES else _unquoted(item) for name, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_unquoted(item) for item in value]
    return value
