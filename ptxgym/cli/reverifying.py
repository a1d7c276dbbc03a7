"""`ptxgym reverify`: the kernels of a run, judged again."""

from __future__ import annotations

from pathlib import Path

from rich.progress import Progress
from rich.table import Table

from ptxgym.cli.console import err, out, plain
from ptxgym.store.reader import read_run
from ptxgym.store.reverify import Change, gone, reverify


def reverify_run(folder: Path, device: str | None = None) -> bool:
    """Print which verdicts changed, and return whether none did."""
    with Progress(console=err, transient=True) as progress:
        task = progress.add_task("judging again", total=None)
        judged = 0

        def on_progress(done: int, total: int) -> None:
            nonlocal judged
            judged = total
            progress.update(task, completed=done, total=total)

        changes = reverify(folder, device, on_progress=on_progress)
    for name in gone(read_run(folder)):
        out.print(plain(f"{name} is not here as it was judged, so it was not judged again", "yellow"))
    if not changes:
        out.print(plain(f"{judged} kernels judged again, nothing changed", "green"))
        return True
    table = Table("episode", "turn", "before", "now", "what differs", box=None, header_style="bold")
    for change in changes:
        for episode, turn in change.kernel.places:
            table.add_row(plain(episode), str(turn), *_both(change), plain(", ".join(change.parts)))
    out.print(table)
    out.print(plain(f"{len(changes)} of {judged} kernels have another verdict now", "red"))
    return False


def _both(change: Change) -> tuple[str, str]:
    before, now = change.kernel.verdict, change.now
    return f"{before.status} {before.score:.3f}", f"{now.status} {now.score:.3f}"
