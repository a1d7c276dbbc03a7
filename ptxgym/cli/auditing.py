"""`ptxgym audit`: the checklist as a person reads it."""

from __future__ import annotations

from rich.text import Text

from ptxgym.audit import Audit, Check, Outcome
from ptxgym.cli.console import out, plain

_MARKS = {
    Outcome.KEPT: ("✓", "green"),
    Outcome.VIOLATED: ("✗", "bold red"),
    Outcome.UNKNOWN: ("?", "yellow"),
    Outcome.NOT_APPLICABLE: ("–", "dim"),
}
_INDENT = " " * 4
_FURTHER = 5


def show_audit(audit: Audit) -> None:
    """Print every item that applies, by group, then the names of those that do not, and a line of totals."""
    out.print(
        plain(f"audit of a kernel for {audit.env}" + (f" ({audit.variant})" if audit.variant != "base" else ""), "bold")
    )
    broken = [run for run in audit.runs if "broke off" in run]
    shapes = "; ".join(", ".join(f"{name}={value}" for name, value in shape.items()) for shape in audit.shapes)
    out.print(
        plain(f"  {len(audit.runs)} emulated runs at {shapes}: {len(audit.runs) - len(broken)} to their end", "dim")
    )
    group = ""
    for check in audit.checks:
        if check.outcome is Outcome.NOT_APPLICABLE or _nothing_seen(check):
            continue
        if check.group != group:
            group = check.group
            out.print(plain(f"\n{group}", "bold"))
        _show(check)
    unseen: dict[str, list[str]] = {}
    for check in filter(_nothing_seen, audit.checks):
        unseen.setdefault(check.found, []).append(check.name)
    for why, names in unseen.items():
        out.print(plain(f"\n? {why}: {', '.join(names)}", "yellow"))
    left = audit.having(Outcome.NOT_APPLICABLE)
    if left:
        out.print(plain(f"\n– not applicable: {', '.join(check.name for check in left)}", "dim"))
    counts = {outcome: len(audit.having(outcome)) for outcome in Outcome}
    out.print(
        plain(
            f"\n{counts[Outcome.VIOLATED]} violated, {counts[Outcome.UNKNOWN]} could not be told, "
            f"{counts[Outcome.KEPT]} kept, {counts[Outcome.NOT_APPLICABLE]} not applicable. No number was judged: "
            "`ptxgym eval` does that.",
            "bold",
        )
    )


def _nothing_seen(check: Check) -> bool:
    """Whether nothing was seen of an item, so that its name and the common reason say all."""
    return check.outcome is Outcome.UNKNOWN and check.code is None and check.remedy is None


def _show(check: Check) -> None:
    mark, style = _MARKS[check.outcome]
    out.print(Text.assemble((f"{mark} ", style), (check.name, style), f"  {check.title}"))
    where = f"line {check.line}: " if check.line else ""
    code = f" [{check.code}]" if check.code else ""
    out.print(plain(f"{_INDENT}{where}{check.found}{code}", "dim" if check.outcome is Outcome.KEPT else ""))
    if check.source_line:
        out.print(plain(f"{_INDENT}  | {check.source_line}"))
    if check.remedy:
        out.print(plain(f"{_INDENT}way out: {check.remedy}"))
    for text in check.further[:_FURTHER]:
        out.print(plain(f"{_INDENT}also {text}", "dim"))
    if len(check.further) > _FURTHER:
        out.print(plain(f"{_INDENT}and {len(check.further) - _FURTHER} more (--json shows all)", "dim"))
