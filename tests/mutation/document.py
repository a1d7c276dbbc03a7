"""The campaign as a page of the documentation."""

from __future__ import annotations

import datetime
from collections.abc import Iterable, Iterator, Sequence
from functools import cache

import ptxgym
from tests.mutation.campaign import UNCHANGED, Result, argue, source_lines, subjects
from tests.mutation.survivors import Kind
from tests.mutation.targets import load

_HEAD = """# Mutants of the proven kernels

Does the emulator notice a fault, and does it name the place? Each oracle is changed in one place, as an edit of its
source would: waits, fences, commits and arrivals dropped, moved or relaxed, parities and counts changed, descriptors
and columns of tensor memory displaced, stages mixed up, signals sent to the wrong CTA of a pair, sizes and strides of
tensor maps and launches altered. Every mutant runs on a fair, a late and a random schedule; one that survives runs
again at a larger size.

- **equivalent**: it survives because it is as correct as the original, for the reason given below.
- **unspecified**: it survives, and is a fault only if hardware does what no document promises or rules out.
- **noticed**: a finding or a fault, or wrong numbers.
- **missed**: a fault that the emulator does not see.
- **named**: one of the first three findings names the changed line, or the line of the statement that it orders,
  counts or feeds. The share is of all that is noticed or missed.
"""
_TAIL = """
What is noticed but not named shows in the numbers alone: shapes of an instruction descriptor, the box and the swizzle
of a tensor map through which results are stored, a descriptor or a column that leads to other data which is there.
Blackwell is emulated; no GPU of that generation has confirmed any of it.
"""
_KINDS: dict[Kind, str] = {
    "hole": "## What is missed",
    "unspecified": "## What no document decides",
    "equivalent": "## Why mutants are equivalent",
}


def document(results: Sequence[Result]) -> str:
    """Return the page, with the date and the version of the software it was made with.

    Raises:
        ValueError: if a survivor is not argued.
    """
    today = datetime.datetime.now(tz=datetime.UTC).date().isoformat()
    made = f"Made by `python -m tests.mutation --tables` on {today}, with ptxgym {ptxgym.__version__}."
    mutants = [argue(result, _source(result.kernel)) for result in results if result.operator != UNCHANGED]
    open_questions = [result.key for result in mutants if result.outcome == "survived" and not result.kind]
    if open_questions:
        raise ValueError(f"nobody has argued why these survive: {', '.join(open_questions)}; see survivors.py")
    kernels = _table("kernel", ((f"`{name}`{_run(name, group)}", group) for name, group in _groups(mutants, "kernel")))
    operators = _table("change", ((f"`{name}`", group) for name, group in _groups(mutants, "operator")))
    clean = _clean([result for result in results if result.operator == UNCHANGED])
    return f"{_HEAD}\n{clean}\n{made}\n\n{kernels}\n{operators}{_TAIL}{''.join(_reasons(mutants))}"


def _clean(unchanged: Sequence[Result]) -> str:
    """Return what is said of the kernels as they are."""
    lines = [
        "The kernels as they are, on a fair, a late and many random schedules (clean: right numbers and no finding of"
    ]
    lines += ["any severity):\n"]
    groups: dict[str, list[str]] = {}
    for result in unchanged:
        groups.setdefault(f"{result.outcome}, {result.detail}", []).append(f"`{result.kernel}`")
    lines += [f"- {what}: {', '.join(names)}" for what, names in groups.items()]
    return "\n".join(lines) + "\n"


def _groups(results: Sequence[Result], field: str) -> list[tuple[str, list[Result]]]:
    found: dict[str, list[Result]] = {}
    for result in results:
        found.setdefault(getattr(result, field), []).append(result)
    return list(found.items())


@cache
def _source(name: str) -> Sequence[str]:
    return source_lines(load(name))


def _run(name: str, group: Sequence[Result]) -> str:
    total = sum(1 for _ in subjects(load(name)))
    return "" if total == len(group) else f" (a sample of {total})"


def _table(what: str, rows: Iterable[tuple[str, Sequence[Result]]]) -> str:
    lines = [
        f"| {what} | mutants | equivalent | unspecified | noticed | missed | named | share named |",
        "| --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    together: list[Result] = []
    for name, group in rows:
        lines.append(_row(name, group))
        together += group
    return "\n".join([*lines, _row("all", together)]) + "\n"


def _row(name: str, group: Sequence[Result]) -> str:
    def survivors(kind: Kind) -> int:
        return sum(result.kind == kind for result in group)

    noticed = sum(result.outcome != "survived" for result in group)
    named = sum(result.outcome == "named" for result in group)
    faults = noticed + survivors("hole")
    cells = [len(group), survivors("equivalent"), survivors("unspecified"), noticed, survivors("hole"), named]
    share = f"{named / faults:.0%}" if faults else "–"
    return f"| {name} | {' | '.join(map(str, cells))} | {share} |"


def _reasons(mutants: Sequence[Result]) -> Iterator[str]:
    """Yield a section for each kind of survivor: every reason, with how many mutants it holds for."""
    for kind, title in _KINDS.items():
        counts: dict[str, list[Result]] = {}
        for result in mutants:
            if result.kind == kind and result.reason:
                counts.setdefault(result.reason, []).append(result)
        if counts:
            yield f"\n{title}\n\n"
        for reason, group in counts.items():
            yield f"- {', '.join(dict.fromkeys(f'`{r.operator}`' for r in group))} ({len(group)}): {reason}\n"
