"""`--track`: where numbers, attempts and artefacts of a run go besides its own files."""

from __future__ import annotations

from typing import Annotated

import typer

from ptxgym.cli.console import err, plain

TrackOption = Annotated[
    str, typer.Option("--track", metavar="NAME", help="jsonl, or wandb as well, as wandb's own variables say.")
]
JSONL = "jsonl"


def told(problem: str) -> None:
    """Say what is not tracked."""
    err.print(plain(problem, "yellow"))


def show_where(where: str) -> None:
    """Say where wandb's run is to be seen; nothing without one."""
    if where:
        err.print(plain(f"wandb: {where}", "dim"))
