"""`ptxgym report`: a run as one page."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from ptxgym.cli.console import out, plain
from ptxgym.report import write_report


def report_runs(runs: Sequence[Path], page: Path) -> None:
    """Write the page and say where it lies.

    Raises:
        UsageError: if a package of the extra `report` is missing, a folder holds no run, no episode has ended, or
            `page` is something else than a page.
        ContentError: if a line of a run is not what it should be.
    """
    written = write_report(runs, page)
    out.print(plain(f"{written}: {written.stat().st_size / 1e6:.1f} MB; open it in a browser, it needs no network"))
