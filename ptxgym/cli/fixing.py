"""`ptxgym fixit …`: training data made of repairs of one's own failures."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ptxgym.cli.console import Exit, err, out, plain

if TYPE_CHECKING:
    from pydantic import JsonValue

    from ptxgym.agent import Agent

fixit = typer.Typer(help="Training data made of repairs of a model's own failures.", no_args_is_help=True)

FolderArgument = Annotated[Path, typer.Argument(metavar="DIR", help="What `fixit mine` has written.")]
SetArgument = Annotated[Path, typer.Argument(metavar="SET", help="What `fixit build` has written.")]
AgentOption = Annotated[str, typer.Option("--agent", metavar="NAME", help="The teacher: a folder of agents/.")]
SetOption = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="A setting of the agent, such as model=NAME; repeatable."),
]
AtOnceOption = Annotated[int, typer.Option("--at-once", min=1, help="How many are worked on at the same time.")]
DirectOption = Annotated[
    bool, typer.Option("--direct", metavar="", help="For the comparison data: the task → rationale and kernel.")
]


@fixit.command()
def mine(
    runs: Annotated[list[Path], typer.Argument(metavar="RUN", help="Folders of runs, as `bench` writes them.")],
    folder: Annotated[Path, typer.Option("--out", metavar="DIR", help="For the sample and all that follows.")],
    recipe: Annotated[
        str, typer.Option("--recipe", metavar="RECIPE", help="A TOML file, or the name of one in configs/fixit/.")
    ] = "default",
    seed: Annotated[int, typer.Option("--seed", help="Of all choices: the same sample on any machine.")] = 0,
) -> None:
    """Sample failed kernels of runs with their feedback, by task, kind of error and turn."""
    import ptxgym
    from ptxgym.cli.benching import show_tables
    from ptxgym.fixit.mine import mine as sample
    from ptxgym.fixit.recipe import load_fixit_recipe
    from ptxgym.fixit.records import digest
    from ptxgym.fixit.report import mined
    from ptxgym.fixit.workshop import Front, Workshop
    from ptxgym.store.lines import to_json
    from ptxgym.store.reader import read_run

    chosen, stored = load_fixit_recipe(recipe), [read_run(run) for run in runs]
    front = Front(
        ptxgym=ptxgym.__version__,
        recipe=chosen,
        seed=seed,
        runs=tuple(sorted({digest(to_json(run.record)) for run in stored})),
        canaries=tuple(sorted({run.record.canary for run in stored if run.record.canary})),
    )
    workshop = Workshop.begin(folder, front, sample(stored, chosen.mine, seed))
    show_tables((mined(workshop.mined),))
    if held_out := sum(kernel.split == "eval" for kernel in workshop.mined):
        out.print(
            plain(f"{held_out} kernels are of held-out tasks: results there will say nothing of new tasks", "yellow")
        )


@fixit.command()
def repair(
    folder: FolderArgument,
    agent: AgentOption,
    set_: SetOption = None,
    at_once: AtOnceOption = 4,
    device: Annotated[str, typer.Option("--device", help="auto, emulator or cuda.")] = "auto",
) -> None:
    """Let a teacher repair the sample; exit 3 where some stay open. What is settled is not asked again."""
    from ptxgym.cli.settings import parse_settings
    from ptxgym.evaluator import Evaluator
    from ptxgym.fixit.repair import EPOCH, repair_all
    from ptxgym.fixit.workshop import Workshop

    workshop, teacher = Workshop(folder), _agent(agent, parse_settings(set_ or ()))
    counts: dict[str, int] = {}
    with Evaluator(device, secret=workshop.secret, epoch=EPOCH, builds=2, runs=2) as evaluator:
        open_ = asyncio.run(
            repair_all(
                workshop,
                teacher,
                evaluator,
                at_once=at_once,
                on_repair=lambda found: _count(counts, found.status, len(workshop.mined), found.failure),
                on_trouble=_say,
            )
        )
    total = len(workshop.repairs())
    found = ", ".join(f"{count} {status}" for status, count in sorted(counts.items())) or "nothing new"
    out.print(plain(f"{found}; {total} of {len(workshop.mined)} settled"))
    raise typer.Exit(Exit.INFRASTRUCTURE if open_ else Exit.OK)


@fixit.command()
def rationalise(
    folder: FolderArgument,
    agent: AgentOption,
    set_: SetOption = None,
    at_once: AtOnceOption = 4,
    direct: DirectOption = False,
) -> None:
    """Let a teacher write the way from each failure to its repair; exit 3 where some stay open."""
    from ptxgym.cli.settings import parse_settings
    from ptxgym.fixit.rationalise import pairs, rationalise_all
    from ptxgym.fixit.workshop import Workshop

    workshop, teacher = Workshop(folder), _agent(agent, parse_settings(set_ or ()))
    total = len(pairs(workshop, direct))
    counts: dict[str, int] = {}
    open_ = asyncio.run(
        rationalise_all(
            workshop,
            teacher,
            direct=direct,
            at_once=at_once,
            on_rationale=lambda found: _count(counts, "kept" if found.text else found.rejected[-1], total, found.row),
            on_trouble=_say,
        )
    )
    found = ", ".join(f"{count} {status}" for status, count in sorted(counts.items())) or "nothing new"
    out.print(plain(f"{found}; {len(workshop.rationales(direct))} of {total} settled"))
    raise typer.Exit(Exit.INFRASTRUCTURE if open_ else Exit.OK)


@fixit.command()
def build(
    folder: FolderArgument,
    target: Annotated[Path, typer.Option("--out", metavar="SET", help="For the training set.")],
    direct: DirectOption = False,
    jsonl_only: Annotated[
        bool, typer.Option("--jsonl-only", metavar="", help="Write no Parquet, which needs pyarrow.")
    ] = False,
) -> None:
    """Filter, balance and write the rows: JSONL, Parquet, a report and a manifest of hashes."""
    from ptxgym.cli.benching import show_tables
    from ptxgym.fixit.build import build as make
    from ptxgym.fixit.pack import write_set
    from ptxgym.fixit.report import report as tables
    from ptxgym.fixit.solutions import Solutions
    from ptxgym.fixit.workshop import Workshop

    workshop = Workshop(folder)
    built = make(workshop, Solutions(), direct=direct)
    teachers = {each.teacher for each in workshop.repairs().values()}
    teachers |= {each.teacher for each in workshop.rationales(direct).values()}
    manifest = write_set(target, workshop.front, built, teachers, direct=direct, parquet=not jsonl_only)
    show_tables(tables(built.rows, built.dropped, built.stages))
    out.print(plain(f"{manifest.rows} rows in {target}"))


@fixit.command()
def verify(folder: SetArgument) -> None:
    """Check a training set against its manifest; exit 1 where something does not fit."""
    from ptxgym.fixit.pack import problems, read_manifest

    found = problems(folder)
    for problem in found:
        out.print(plain(problem, "red"))
    if not found:
        out.print(plain(f"{read_manifest(folder).rows} rows; every hash is as the manifest says", "green"))
    raise typer.Exit(Exit.FAILED if found else Exit.OK)


@fixit.command()
def report(folder: SetArgument) -> None:
    """Show what is in a training set: strata, lengths, and what was left out."""
    from ptxgym.cli.benching import show_tables
    from ptxgym.fixit.pack import read_manifest, read_rows
    from ptxgym.fixit.report import report as tables

    manifest = read_manifest(folder)
    show_tables(tables(read_rows(folder), manifest.dropped, manifest.stages))


def _agent(name: str, settings: dict[str, JsonValue]) -> Agent:
    from ptxgym.agent import load_agent

    return load_agent(name, **settings)


def _count(counts: dict[str, int], status: str, total: int, what: str) -> None:
    counts[status] = counts.get(status, 0) + 1
    err.print(plain(f"{sum(counts.values())} of at most {total}: {what} {status}", "dim"))


def _say(message: str) -> None:
    err.print(plain(message, "yellow"))
