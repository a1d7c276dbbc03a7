"""What the campaigns of this folder share: one table on the screen, the same as JSON beside, a limit on their time.

A campaign writes its file after every row, so that it can be stopped at any moment. Started again with the same file it
goes on where it was: rows that the file holds are not made again.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from pathlib import Path
from typing import Any, NoReturn

Row = dict[str, Any]

GRACE_S = 45.0
"""What has begun may go on for so long after the time is up."""


class Report:
    """Rows of one campaign, by their `key`."""

    def __init__(self, name: str, out: Path | None, limit_s: float) -> None:
        """Begin, or go on with the rows of `out`.

        Args:
            name: Of the campaign.
            out: JSON file; None keeps the rows in memory.
            limit_s: Seconds after which nothing new is begun.
        """
        self.name = name
        self.facts: Row = {}
        self.rows: dict[str, Row] = {}
        self._out = out
        self._mutex = threading.Lock()
        self._until = time.monotonic() + limit_s
        self.stuck = False
        """Whether a thread is in an evaluation that did not end."""
        if out is not None and out.exists():
            kept = json.loads(out.read_text())
            if kept.get("campaign") != name:
                raise SystemExit(f"{out} is of the campaign {kept.get('campaign')!r}, not {name!r}: name another file")
            self.facts = kept["facts"]
            self.rows = {row["key"]: row for row in kept["rows"]}

    @property
    def seconds_left(self) -> float:
        """Seconds until nothing new is begun."""
        return self._until - time.monotonic()

    def end(self, code: int) -> NoReturn:
        """End the process, though a thread may be stuck in an evaluation that never ends."""
        sys.stdout.flush()
        if self.stuck:
            os._exit(code or 1)
        raise SystemExit(code)

    def add(self, key: str, **values: Any) -> Row:
        """Add a row and write the file."""
        row = {"key": key, **values}
        with self._mutex:
            self.rows[key] = row
            self._write()
        return row

    def state(self, **facts: Any) -> None:
        """Add facts about the whole and write the file."""
        with self._mutex:
            self.facts.update(facts)
            self._write()

    def _write(self) -> None:
        if self._out is None:
            return
        self._out.parent.mkdir(parents=True, exist_ok=True)
        text = json.dumps({"campaign": self.name, "facts": self.facts, "rows": list(self.rows.values())}, indent=1)
        fresh = self._out.with_name(self._out.name + ".new")
        fresh.write_text(text + "\n")
        fresh.replace(self._out)

    def each(self, items: Iterable[tuple[str, Any]], make: Callable[[Any], Row], workers: int = 1) -> None:
        """Make the row of every item that has none yet, several at once; one that raises becomes a row that says so."""
        todo = [(key, item) for key, item in items if key not in self.rows]
        pool = ThreadPoolExecutor(workers, "campaign")
        running: dict[Future[None], str] = {}
        for key, item in todo:
            if self.seconds_left <= 0:
                break
            running[pool.submit(self._one, key, item, make)] = key
            while len(running) >= workers and self.seconds_left > 0:
                ended, _ = wait(running, timeout=self.seconds_left, return_when=FIRST_COMPLETED)
                running = {future: other for future, other in running.items() if future not in ended}
        _, stuck = wait(running, timeout=max(0.0, self.seconds_left) + GRACE_S)
        pool.shutdown(wait=not stuck, cancel_futures=True)
        for future in stuck:
            self.add(running[future], good=False, problem=f"did not end within {GRACE_S:.0f} s after the time was up")
        self.stuck |= bool(stuck)
        skipped = [key for key, _ in todo if key not in self.rows]
        self.state(not_begun=len(skipped))
        if skipped:
            say(f"the time was up: {len(skipped)} not begun; the same command goes on with them")

    def _one(self, key: str, item: Any, make: Callable[[Any], Row]) -> None:
        started = time.perf_counter()
        try:
            values = make(item)
        except Exception as error:  # whatever it is: one failing item does not end a campaign
            values = {"good": False, "problem": f"{type(error).__name__}: {error}"}
        self.add(key, seconds=round(time.perf_counter() - started, 3), **values)


def say(text: str) -> None:
    """Print a line at once."""
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def table(columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    """Return rows as a table; numbers to the right."""
    cells = [[_cell(value) for value in row] for row in rows]
    widths = [max([len(name), *(len(row[i]) for row in cells)]) for i, name in enumerate(columns)]
    right = [all(_numeric(row[i]) for row in cells) for i in range(len(columns))]

    def line(row: Sequence[str]) -> str:
        placed = [v.rjust(w) if r else v.ljust(w) for v, w, r in zip(row, widths, right, strict=True)]
        return "  ".join(placed).rstrip()

    return "\n".join([line(columns), line(["-" * width for width in widths]), *(line(row) for row in cells)])


def _cell(value: Any) -> str:
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "NO"
    return f"{value:.3f}".rstrip("0").rstrip(".") if isinstance(value, float) else str(value)


def _numeric(text: str) -> bool:
    return text == "-" or text.replace(".", "", 1).lstrip("-").isdigit()


def median(values: Iterable[float]) -> float | None:
    """Return the median; None where there is none."""
    found = list(values)
    return statistics.median(found) if found else None


def arguments(description: str | None, limit_s: float, **defaults: str) -> argparse.ArgumentParser:
    """Return a parser with what every campaign takes: a time limit, a file, and device and tier where given."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, help="JSON file; rows that it holds already are not made again")
    parser.add_argument("--limit-s", type=float, default=limit_s, help="begin nothing new after so many seconds")
    if "device" in defaults:
        parser.add_argument("--device", choices=("cuda", "emulator"), default=defaults["device"])
    if "tier" in defaults:
        parser.add_argument("--tier", choices=("rl", "standard", "publish"), default=defaults["tier"])
    return parser


def no_gpu(device: str = "cuda") -> bool:
    """Say why nothing can be done, and return True, where `device` is a GPU that is not here."""
    if device != "cuda":
        return False
    from ptxgym.availability import check_device
    from ptxgym.errors import UsageError

    try:
        check_device("cuda")
    except UsageError as error:
        say(f"skipped: {error}")
        return True
    return False


def timing_of(verdict: Any) -> Mapping[str, float]:
    """Return the speed-up and its interval of a verdict, empty where it was not timed."""
    timing = verdict.measured.timing
    if timing is None:
        return {}
    return {
        "speedup": timing.speedup,
        "low": timing.speedup_low,
        "high": timing.speedup_high,
        "us": timing.candidate_us,
    }
