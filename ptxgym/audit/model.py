"""What an audit says: one frozen value per item of the checklist, and all of them together."""

from __future__ import annotations

from enum import StrEnum

from ptxgym.verdict import Value


class Outcome(StrEnum):
    """What became of one item."""

    KEPT = "kept"
    """Seen to hold, in the code, in the plan or in every run made."""
    VIOLATED = "violated"
    NOT_APPLICABLE = "not_applicable"
    """The kernel uses nothing that the item is about."""
    UNKNOWN = "unknown"
    """Could not be told: a run broke off before, or what was seen may be meant so."""


class Check(Value):
    """One item of the checklist."""

    name: str
    """Stable dotted name, such as `mbarrier.bytes`."""
    group: str
    title: str
    """What must hold, as one sentence."""
    source: str
    """Where that is written."""
    outcome: Outcome
    found: str
    """What was seen: values of this kernel, or why nothing can be said."""
    line: int | None = None
    """Line of the file; None where the item is about no single line."""
    source_line: str | None = None
    remedy: str | None = None
    """The way out of a violation."""
    code: str | None = None
    """Of the finding or failure behind it, as in verdicts."""
    further: tuple[str, ...] = ()
    """More of the same kind: line and message."""


class Audit(Value):
    """The whole checklist of one file in one environment."""

    env: str
    variant: str
    task: str
    arch: str
    source_sha256: str
    shapes: tuple[dict[str, int], ...] = ()
    """Axes of the calls that were recorded and emulated."""
    runs: tuple[str, ...] = ()
    """How each emulated run ended."""
    checks: tuple[Check, ...]

    def having(self, outcome: Outcome) -> tuple[Check, ...]:
        """Return the items with `outcome`, in the checklist's order."""
        return tuple(check for check in self.checks if check.outcome is outcome)

    @property
    def sound(self) -> bool:
        """Whether no item is violated."""
        return not self.having(Outcome.VIOLATED)
