"""The page: everything that a report shows, rendered into one file that needs nothing beside it."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import ptxgym
from ptxgym import similarity
from ptxgym.bench.metrics import FAST, comparable, emulated, horizons
from ptxgym.bench.tables import transfers
from ptxgym.errors import UsageError
from ptxgym.report import extra
from ptxgym.report.charts import REASONS, charts
from ptxgym.report.drawing import kinds
from ptxgym.report.episodes import Entry, entry
from ptxgym.report.facts import differences, facts, origins
from ptxgym.report.origin import THRESHOLD
from ptxgym.report.runs import Run, as_runs, as_series, groups
from ptxgym.report.tables import by_arch, by_task, by_turns, left_out, reasons, versus
from ptxgym.report.text import visible
from ptxgym.store.lines import explained, write_whole
from ptxgym.store.reader import StoredRun, read_run

ASSETS = Path(__file__).parent / "assets"
_BEGINNING = b"<!doctype html"


def write_report(folders: Sequence[str | Path], out: str | Path) -> Path:
    """Write the report of one or several runs.

    Args:
        folders: Of runs.
        out: The file to write; another page is replaced, anything else is not.

    Returns:
        The file.

    Raises:
        UsageError: if a package of the extra `report` is missing, a folder holds no run, no episode has ended, or `out`
            is something else than a page.
        ContentError: if a line of a run is not what it should be.
        InfrastructureError: if the page cannot be written; an earlier one is as it was.
    """
    extra.check()
    out = Path(out)
    _check_target(out)
    page = render([read_run(folder) for folder in folders])
    with explained(out):
        out.parent.mkdir(parents=True, exist_ok=True)
    write_whole(out, page)
    return out


def _check_target(out: Path) -> None:
    """Accept a new file, or a page that may be replaced: a record or a kernel is not lost to a slip of the keyboard."""
    if not out.exists():
        return
    if not out.is_file():
        raise UsageError(f"{out} is no file; name one for the page, such as report.html")
    with out.open("rb") as file:
        if file.read(len(_BEGINNING)).lower() != _BEGINNING:
            raise UsageError(f"{out} is there already and is no HTML page; name another file, or remove it")


def render(stored: Sequence[StoredRun]) -> str:
    """Return the page of one or several runs."""
    runs = as_runs(stored)
    found = groups(runs)
    turns = max(run.recipe.turns for run in runs)
    within = horizons(turns)
    series = as_series(found)
    script = (ASSETS / "page.js").read_text(encoding="utf-8")
    entries = viewer(runs)
    environment = extra.need("jinja2").Environment(
        loader=extra.need("jinja2").FileSystemLoader(ASSETS),
        autoescape=True,
        undefined=extra.need("jinja2").StrictUndefined,
        finalize=lambda value: visible(value) if type(value) is str else value,  # markup is of another type
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {"percent": percent, "number": "{:,.0f}".format, "p": "{:.2g}".format}
    environment.filters |= {"signed": "{:+.0%}".format, "date": lambda text: text[:16].replace("T", " ")}
    environment.filters["share"] = lambda value: "–" if value is None else f"{value:.2f}"
    page: str = environment.get_template("page.html.j2").render(
        title=" + ".join(run.name for run in runs),
        summary=" · ".join(filter(None, dict.fromkeys(run.recipe.summary for run in runs))),
        made=datetime.now(UTC).isoformat(timespec="minutes")[:16].replace("T", " "),
        version=ptxgym.__version__,
        runs=[facts(run) for run in runs],
        apart=differences(runs),
        left_out=left_out(runs),
        parts={"arch": by_arch(found, within), "task": by_task(found, within)},
        by_turns=(every := by_turns(found)),
        reasons=reasons(every, REASONS),
        within=within,
        fast=[f"{speed:g}" for speed in FAST],
        turns=turns,
        many_runs=len(runs) > 1,
        many_arms=len({group.arm for group in found if not group.anchor}) > 1,
        fewer=any(comparable(group.found, turns) < turns for group in found),
        models=len({(group.run, group.agent) for group in found if not group.anchor}),
        environments=len({one.task for group in found for one in group.found}),
        trajectories=sum(len(group.found) for group in found),
        kernels=sum(len(one.outcomes) for group in found for one in group.found),
        kinds=kinds(series),
        versus=versus(found, turns),
        transfers=[transfers(run.recipe, run.found) for run in runs if run.recipe.transfers],
        charts=charts(series, turns),
        origins=[each for run in runs for each in origins(run)],
        shingle=similarity.LENGTH,
        threshold=THRESHOLD,
        entries=[each.data for each in entries],
        chunks=[each.chunk for each in entries],
        css=(ASSETS / "page.css").read_text(encoding="utf-8"),
        script=script,
        script_sha256=base64.b64encode(hashlib.sha256(script.encode()).digest()).decode(),
    )
    return page


def viewer(runs: Sequence[Run]) -> tuple[Entry, ...]:
    """Return all episodes that have turns on record and have ended, in the order of the recipes."""
    found = []
    for run in runs:
        solved = {one.id: one.within(len(one.outcomes), "target") for one in run.found}
        turns: dict[str, list[Any]] = {}
        for turn in run.stored.turns:
            turns.setdefault(turn.episode, []).append(turn)
        for episode in sorted(
            run.stored.episodes,
            key=lambda one: (one.env, one.variant or "", *run.place(one.agent, one.arm), one.trajectory),
        ):
            played = sorted(turns.get(episode.id, ()), key=lambda turn: turn.turn)
            if played:
                found.append(
                    entry(
                        run.name,
                        episode,
                        played,
                        target=solved.get(episode.id, False),
                        emulated=emulated(run.stored.record, episode.id, played),
                    )
                )
    return tuple(found)


def percent(value: float) -> str:
    """Return a rate as a whole number of per cent."""
    return f"{value:.0%}".replace("%", " %")
