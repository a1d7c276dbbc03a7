"""The commands of `ptxgym`, one function each; what a command imports beyond this file is imported when it runs."""

from __future__ import annotations

import sys
from json import dumps, loads
from pathlib import Path
from typing import Annotated

import typer

import ptxgym
from ptxgym.cli.clustering import cluster
from ptxgym.cli.console import Exit, out, plain, style_of
from ptxgym.cli.fixing import fixit
from ptxgym.cli.serving import serve
from ptxgym.cli.tracking import JSONL, TrackOption
from ptxgym.cli.training import train
from ptxgym.errors import UsageError

app = typer.Typer(
    name="ptxgym",
    help="Write CUDA C++ with inline PTX; have it compiled, executed on the CPU or a GPU, judged and scored.",
    epilog="Exit status: 0 ok, 1 the submission or a check failed, 2 usage, 3 the machine failed, 130 interrupted.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)

_FLAG = ""
"""Metavar of what takes no value."""
EnvOption = Annotated[str, typer.Option("--env", metavar="ID", help="Such as PTX-Gemm-H100; see `ptxgym list`.")]
DeviceOption = Annotated[str, typer.Option("--device", help="auto, emulator, cuda, or the address of a service.")]
VariantOption = Annotated[
    str | None,
    typer.Option("--variant", metavar="NAME", help="Of the environment's task; see `ptxgym list --variants`."),
]
TierOption = Annotated[str, typer.Option("--tier", help="How a GPU measures: rl, standard or publish.")]


def _show_version(wanted: bool) -> None:
    if wanted:
        out.print(plain(f"ptxgym {ptxgym.__version__}"))
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool,
        typer.Option(
            "--version", metavar=_FLAG, callback=_show_version, is_eager=True, help="Show the version and end."
        ),
    ] = False,
) -> None:
    pass


@app.command("list")
def list_(
    variants: Annotated[
        bool, typer.Option("--variants", metavar=_FLAG, help="List the variants of all tasks instead.")
    ] = False,
) -> None:
    """List environments, tasks, rewards, agents and recipes, or the variants of all tasks."""
    from ptxgym.cli.listing import show_list, show_variants

    show_variants() if variants else show_list()


@app.command()
def show(
    name: Annotated[str, typer.Argument(metavar="ID", help="An environment, plain or pinned.")],
    variant: VariantOption = None,
    knowledge: Annotated[
        str | None,
        typer.Option(
            "--knowledge", metavar="PARTS", help="Parts of the knowledge pack, such as parameters,contract; all."
        ),
    ] = None,
) -> None:
    """Show the prompt that an agent gets in an environment; with --knowledge also its tokens by part."""
    from ptxgym.cli.showing import show_prompt
    from ptxgym.envs import load_env

    show_prompt(load_env(name).of_variant(variant), knowledge)


@app.command("eval")
def eval_(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="A kernel file; - reads standard input.")],
    env: EnvOption,
    variant: VariantOption = None,
    device: DeviceOption = "auto",
    tier: TierOption = "standard",
    json: Annotated[bool, typer.Option("--json", metavar=_FLAG, help="Print the verdict as JSON.")] = False,
    notes: Annotated[
        bool, typer.Option("--notes", metavar=_FLAG, help="Show findings that real, fast kernels get away with.")
    ] = False,
) -> None:
    """Judge one kernel file; exit 0 ok, 1 the submission failed, 2 usage, 3 the machine failed."""
    from ptxgym.availability import check_tier
    from ptxgym.envs import load_env
    from ptxgym.evaluator import Evaluator
    from ptxgym.feedback import render
    from ptxgym.verdict import Severity, Status

    config, text = load_env(env).of_variant(variant), read_source(file)
    with Evaluator(device, tier=check_tier(tier)) as evaluator:
        verdict = evaluator.evaluate(text, config.task, config.arch, variant=config.variant)
    if json:
        typer.echo(dumps(loads(verdict.model_dump_json()), indent=2))  # in ASCII: whatever the terminal's encoding is
    else:
        headline, _, rest = render(verdict, text, cap_bytes=config.feedback_bytes, notes=notes).partition("\n")
        out.print(plain(headline, f"bold {style_of(verdict)}"))
        out.print(plain(rest), end="")
        if not notes and any(finding.severity is Severity.NOTE for finding in verdict.findings):
            out.print("--notes shows the notes")
    raise typer.Exit(Exit.OK if verdict.status is Status.OK else Exit.FAILED)


@app.command("audit")
def audit_(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="A kernel file; - reads standard input.")],
    env: EnvOption,
    variant: VariantOption = None,
    json: Annotated[bool, typer.Option("--json", metavar=_FLAG, help="Print the checklist as JSON.")] = False,
) -> None:
    """Check one kernel file against the contract, without judging numbers; exit 1 if an item is violated."""
    from ptxgym.audit import audit
    from ptxgym.cli.auditing import show_audit
    from ptxgym.envs import load_env

    found = audit(read_source(file), load_env(env).of_variant(variant))
    if json:
        typer.echo(dumps(loads(found.model_dump_json()), indent=2))
    else:
        show_audit(found)
    raise typer.Exit(Exit.OK if found.sound else Exit.FAILED)


@app.command("run")
def run_(
    env: EnvOption,
    agent: Annotated[str, typer.Option("--agent", metavar="NAME", help="A folder of agents/; see `ptxgym list`.")],
    variant: VariantOption = None,
    turns: Annotated[int | None, typer.Option("--turns", help="Instead of the environment's.")] = None,
    stop: Annotated[str | None, typer.Option("--stop", help="never, target_ok or speedup:<x>.")] = None,
    knowledge: Annotated[
        str | None,
        typer.Option("--knowledge", metavar="PARTS", help="Of the architecture's knowledge pack: names, or all."),
    ] = None,
    set_: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="A setting of the agent, such as model=NAME; repeatable."),
    ] = None,
    seed: Annotated[int, typer.Option("--seed", help="Of the agent's sampling, where it sends one.")] = 0,
    device: DeviceOption = "auto",
    tier: TierOption = "standard",
    folder: Annotated[
        Path | None, typer.Option("--out", metavar="DIR", help="For the records; by default a new folder in runs/.")
    ] = None,
    resume: Annotated[
        bool, typer.Option("--resume", metavar=_FLAG, help="Go on with the run in --out, after whatever ended it.")
    ] = False,
    track: TrackOption = JSONL,
) -> None:
    """Let an agent play one episode; exit 0 played, 1 the model refused, 2 usage, 3 the machine or the model failed."""
    from ptxgym.availability import check_device, check_tier
    from ptxgym.cli.playing import run_one
    from ptxgym.cli.settings import parse_settings
    from ptxgym.envs import load_env
    from ptxgym.knowledge import parse_parts
    from ptxgym.track.tracker import check_tracker

    check_device(device)
    tracker = check_tracker(track)
    parts = None if knowledge is None else parse_parts(knowledge)
    chosen = {"turns": turns, "stop": stop, "knowledge": parts}
    config = load_env(env).of_variant(variant)
    config = config.override(**{name: value for name, value in chosen.items() if value is not None})
    settings = parse_settings(set_ or ())
    chosen_tier = check_tier(tier)
    raise typer.Exit(
        run_one(
            config,
            agent,
            settings,
            seed=seed,
            device=device,
            tier=chosen_tier,
            folder=folder,
            resume=resume,
            track=tracker,
        )
    )


@app.command()
def verify(
    env: Annotated[str | None, typer.Option("--env", metavar="ID", help="Only this environment.")] = None,
    all_: Annotated[bool, typer.Option("--all", metavar=_FLAG, help="Every environment.")] = False,
    variants: Annotated[
        str | None,
        typer.Option("--variants", metavar="N|all", help="Instead, so many random variants of the tasks, or all."),
    ] = None,
    seed: Annotated[int, typer.Option("--seed", help="Of the choice of variants.")] = 0,
    device: DeviceOption = "emulator",
) -> None:
    """Check that every proven solution and teaching kernel still gets the verdict that its task names.

    On a GPU (--device cuda) the proven solutions alone: what a teaching kernel shows is the emulator's to find.
    With --variants, that the naive kernel still solves variants of the tasks.
    """
    from ptxgym.cli.verifying import choose_variants, verify_envs
    from ptxgym.envs import env_names, load_env

    if (env is not None and all_) or (env is None and not all_ and variants is None):
        raise UsageError("verify: give either --env ID or --all, or --variants")
    configs = [load_env(name) for name in (env_names() if env is None else (env,))]
    if variants is not None:
        configs = choose_variants(configs, variants, seed)
    raise typer.Exit(Exit.OK if verify_envs(configs, device) else Exit.FAILED)


@app.command()
def bench(
    recipe: Annotated[str, typer.Argument(metavar="RECIPE", help="A TOML file, or the name of one in configs/.")],
    folder: Annotated[
        Path | None, typer.Option("--out", metavar="DIR", help="For the records; by default runs/<recipe>.")
    ] = None,
    resume: Annotated[
        bool, typer.Option("--resume", metavar=_FLAG, help="Go on with the run that is there, after whatever ended it.")
    ] = False,
    remeasure: Annotated[
        bool,
        typer.Option("--remeasure", metavar=_FLAG, help="Then judge the best kernels again, under new conditions."),
    ] = False,
    set_: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="AGENT.KEY=VALUE", help="A setting of one of its agents; repeatable."),
    ] = None,
    track: TrackOption = JSONL,
) -> None:
    """Play a sweep: environments, agents, knowledge arms, trajectories; exit 3 where the machine failed at episodes."""
    from ptxgym.bench.recipe import load_recipe
    from ptxgym.cli.benching import run_bench
    from ptxgym.cli.settings import parse_settings
    from ptxgym.track.tracker import check_tracker

    tracker = check_tracker(track)
    sweep = load_recipe(recipe).with_settings(parse_settings(set_ or ()).items())
    where = folder or Path("runs") / sweep.name
    complete = run_bench(sweep, where, resume=resume, remeasure=remeasure, track=tracker)
    raise typer.Exit(Exit.OK if complete else Exit.INFRASTRUCTURE)


@app.command()
def reverify(
    folder: Annotated[Path, typer.Argument(metavar="RUN", help="The folder of a run.")],
    device: Annotated[
        str | None, typer.Option("--device", metavar="ADDRESS", help="Of the service that judged it, if one did.")
    ] = None,
) -> None:
    """Judge the kernels of a run again; list which verdicts changed, and exit 1 if any did."""
    from ptxgym.cli.reverifying import reverify_run

    raise typer.Exit(Exit.OK if reverify_run(folder, device) else Exit.FAILED)


@app.command()
def report(
    runs: Annotated[list[Path], typer.Argument(metavar="RUN", help="Folders of runs, as `bench` writes them.")],
    page: Annotated[Path, typer.Option("--out", metavar="FILE", help="The page.")] = Path("report.html"),
) -> None:
    """Write one HTML page about one or several runs: tables, charts, every trajectory. It needs no network."""
    from ptxgym.cli.reporting import report_runs

    report_runs(runs, page)


tasks = typer.Typer(help="Tasks and their variants as data for trainers.", no_args_is_help=True)
app.add_typer(tasks, name="tasks")
app.add_typer(fixit, name="fixit")
app.add_typer(cluster, name="cluster")
app.add_typer(train, name="train")
app.command()(serve)


@tasks.command()
def export(
    split: Annotated[str, typer.Option("--split", help="train, or eval: what is held out.")] = "train",
    format_: Annotated[str, typer.Option("--format", help="jsonl, a row a line, or json, one array.")] = "jsonl",
) -> None:
    """Write a row for each environment and variant of a split: id, reset options, prompt, difficulty, tags."""
    from ptxgym.rows import task_rows

    rows = [loads(row.model_dump_json()) for row in task_rows(split)]
    if format_ not in ("jsonl", "json"):
        raise UsageError(f"--format must be 'jsonl' or 'json', not {format_!r}")
    for text in map(dumps, rows) if format_ == "jsonl" else (dumps(rows, indent=2),):
        typer.echo(text)


@app.command()
def corpus(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="Searched for *.cu and *.ptx, subfolders included.")],
    arch: Annotated[str, typer.Option("--arch", help="Such as h100.")] = "h100",
) -> None:
    """Decode every .cu (compiled first) and .ptx of a folder; say what the emulator would refuse. Executes nothing."""
    from ptxgym.cli.corpus import check_corpus

    raise typer.Exit(Exit.OK if check_corpus(folder, arch) else Exit.FAILED)


@app.command()
def demo() -> None:
    """Run one episode of three turns on PTX-Gemm-H100: right but slow, a missing wait, the oracle."""
    from ptxgym.cli.demo import run_demo

    run_demo()


@app.command()
def doctor() -> None:
    """Check compilers, emulator, sandbox, cache, GPU and profiler; name the fix of whatever is missing."""
    from ptxgym.cli.doctor import examine

    raise typer.Exit(Exit.OK if examine() else Exit.INFRASTRUCTURE)


@app.command()
def cache(
    clear: Annotated[
        bool, typer.Option("--clear", metavar=_FLAG, help="Remove everything that no process has in use.")
    ] = False,
) -> None:
    """Show what is cached and where."""
    from ptxgym.cli.listing import show_cache

    show_cache(clear=clear)


MOST_READ_BYTES = 64 << 20
"""Of a file or a pipe, which may have no end; the judge refuses far smaller ones, and says how many bytes they have."""


def read_source(file: Path) -> str:
    """Return the text of a kernel file; bytes that are no UTF-8 become lone surrogates, which the judge refuses.

    Raises:
        UsageError: if the file cannot be read.
    """
    try:
        if str(file) != "-":
            with file.open("rb") as opened:
                raw = opened.read(MOST_READ_BYTES + 1)
        elif sys.stdin is None:
            raise UsageError("cannot read standard input: it is closed")
        else:
            raw = sys.stdin.buffer.read(MOST_READ_BYTES + 1)
    except OSError as error:
        raise UsageError(f"cannot read {file}: {error.strerror}") from error
    if len(raw) > MOST_READ_BYTES:
        raise UsageError(f"{file} is no kernel file: it has more than {MOST_READ_BYTES >> 20} MiB")
    return raw.decode("utf-8", "surrogateescape")
