"""The campaign as a page of the documentation."""

from __future__ import annotations

import datetime
from collections.abc import Iterable, Sequence

import ptxgym
from tests.mutation.campaign import Result, subjects
from tests.mutation.equivalent import EQUIVALENCES
from tests.mutation.targets import load

_HEAD = """# Mutants of the proven kernels

Does the emulator notice a fault, and does it name the place? Each oracle is changed in one place, as an edit of its
source would: waits, fences, commits and arrivals dropped or moved, parities and counts changed, descriptors and columns
of tensor memory displaced, stages mixed up, sizes and strides of tensor maps and launches altered. Every mutant runs on
a fair, a late and a random schedule.

- **equivalent**: it survives because it is as correct as the original; argued one by one in
  `tests/mutation/equivalent.py`.
- **noticed**: a finding or a fault, or wrong numbers. All others are.
- **named**: one of the first three findings names the changed line, or the line of the statement that it orders,
  counts or feeds.

The unchanged kernels are clean: right numbers and no finding of any severity over 100 random schedules, a fair and a
late one.
"""
_TAIL = """
What is noticed but not named shows in the numbers alone: shapes and signs of an instruction descriptor, the box and
the swizzle of a tensor map through which results are stored, a descriptor that leads to other data which is there.
Blackwell is emulated; no GPU of that generation has confirmed any of it.
"""


def document(results: Sequence[Result]) -> str:
    """Return the page, with the date and the version of the software it was made with."""
    today = datetime.datetime.now(tz=datetime.UTC).date().isoformat()
    made = f"Made by `python -m tests.mutation --tables` on {today}, with ptxgym {ptxgym.__version__}."
    kernels = _table("kernel", ((name, group, _run(name, group)) for name, group in _groups(results, "kernel")))
    operators = _table("change", ((name, group, "") for name, group in _groups(results, "operator")))
    reasons = "\n".join(f"- {reason}" for reason in dict.fromkeys(known.reason for known in EQUIVALENCES))
    return f"{_HEAD}\n{made}\n\n{kernels}\n{operators}{_TAIL}\n## Why mutants are equivalent\n\n{reasons}\n"


def _groups(results: Sequence[Result], field: str) -> list[tuple[str, list[Result]]]:
    found: dict[str, list[Result]] = {}
    for result in results:
        found.setdefault(getattr(result, field), []).append(result)
    return list(found.items())


def _run(name: str, group: Sequence[Result]) -> str:
    total = sum(1 for _ in subjects(load(name)))
    return "" if total == len(group) else f" (a sample of {total})"


def _table(what: str, rows: Iterable[tuple[str, Sequence[Result], str]]) -> str:
    lines = [
        f"| {what} | mutants | equivalent | noticed | named | share named |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    for name, group, remark in rows:
        noticed = sum(result.outcome != "survived" for result in group)
        named = sum(result.outcome == "named" for result in group)
        share = f"{named / noticed:.0%}" if noticed else "–"
        lines.append(f"| `{name}`{remark} | {len(group)} | {len(group) - noticed} | {noticed} | {named} | {share} |")
    return "\n".join(lines) + "\n"
