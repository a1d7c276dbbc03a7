"""What is in a training set, in tables."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence

from ptxgym.bench.tables import Table
from ptxgym.fixit.build import Built
from ptxgym.fixit.records import FailedKernel, Row
from ptxgym.fixit.workshop import Front


def report(rows: Sequence[Row], dropped: dict[str, int], stages: dict[str, int]) -> tuple[Table, ...]:
    """Return the tables of a set: how it came about, its tasks, its kinds and turns, lengths."""
    return (
        Table(
            "From failures to rows", ("stage", "kernels"), tuple((name, str(count)) for name, count in stages.items())
        ),
        Table("Left out", ("reason", "rows"), tuple((name, str(count)) for name, count in dropped.items())),
        _crossed("Rows by task and kind", rows, lambda row: (row.env, row.variant, row.split), lambda row: row.kind),
        _crossed("Rows by turn and kind", rows, lambda row: (f"turn {row.turn}",), lambda row: row.kind),
        _lengths(rows),
    )


def mined(kernels: Iterable[FailedKernel]) -> Table:
    """Return the table of a sample: tasks by kinds."""
    found = tuple(kernels)
    return _crossed("Mined kernels", found, lambda each: (each.env, each.variant, each.split), lambda each: each.kind)


def card(front: Front, built: Built, direct: bool) -> str:
    """Return the page that goes with a set, in Markdown."""
    recipe = front.recipe
    kind = "the task alone → rationale and kernel" if direct else "task, failed kernel, feedback → rationale and repair"
    lines = [
        f"# Fixit set {recipe.name}",
        "",
        f"{recipe.summary}",
        "",
        f"Rows: {kind}. Learn `completion` only. Seed {front.seed}, {len(front.runs)} runs, ptxgym {front.ptxgym}. "
        "Every kernel that is learnt passed the evaluator by target instructions, under conditions of its own; none is "
        "a copy of a proven solution of an evaluated task.",
    ]
    for table in report(built.rows, built.dropped, built.stages):
        lines += ["", f"## {table.title}", "", *_markdown(table)]
    return "\n".join(lines) + "\n"


def _crossed(
    title: str, items: Sequence[object], down: Callable[..., tuple[str, ...]], across: Callable[..., str]
) -> Table:
    """Count items, with totals; the strata that have none show a 0."""
    counts = Counter((down(item), across(item)) for item in items)
    rows = sorted({key for key, _ in counts}, key=lambda key: tuple(map(_natural, key)))
    columns = sorted({key for _, key in counts})
    body = [
        (" ".join(row), *(str(counts[row, column]) for column in columns), str(sum(counts[row, c] for c in columns)))
        for row in rows
    ]
    totals = (str(sum(counts[row, column] for row in rows)) for column in columns)
    body.append(("all", *totals, str(len(items))))
    return Table(title, ("", *columns, "all"), tuple(body))


def _natural(text: str) -> tuple[str, int]:
    word, _, number = text.rpartition(" ")
    return (word, int(number)) if number.isdigit() else (text, 0)


def _lengths(rows: Sequence[Row]) -> Table:
    lengths = sorted(row.tokens for row in rows)
    shown = [lengths[0], lengths[len(lengths) // 2], lengths[-1], sum(lengths)] if lengths else [0, 0, 0, 0]
    return Table("Tokens of a row, estimated", ("least", "median", "most", "sum"), (tuple(f"{n:,}" for n in shown),))


def _markdown(table: Table) -> list[str]:
    head = [" | ".join(("", *table.columns, "")).strip(), "|".join(("", *("---" for _ in table.columns), ""))]
    return [*head, *(" | ".join(("", *row, "")).strip() for row in table.rows)]
