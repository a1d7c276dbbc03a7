"""`ptxgym show`: the prompt of an environment and, where knowledge was asked for, what it costs."""

from __future__ import annotations

from rich.table import Table

from ptxgym.cli.console import err, out, plain
from ptxgym.envs import EnvConfig
from ptxgym.knowledge import estimate_tokens, parse_parts, render_knowledge
from ptxgym.prompt import render_prompt


def show_prompt(config: EnvConfig, knowledge: str | None) -> None:
    """Print the prompt; with `knowledge`, names of parts separated by commas, also a table of tokens (standard error).

    Raises:
        UnknownNameError: if there is no such part, or the architecture has no pack.
    """
    if knowledge is None:
        out.print(plain(render_prompt(config)), end="")
        return
    config = config.override(knowledge=parse_parts(knowledge))
    prompt = render_prompt(config)
    out.print(plain(prompt), end="")
    table = Table("part", "tokens, estimated", "characters", box=None, header_style="bold", title_justify="left")
    table.columns[1].justify = table.columns[2].justify = "right"
    sections = render_knowledge(config.arch, config.knowledge, config.task)
    rows = [("task", render_prompt(config.override(knowledge=()))), *sections, ("whole prompt", prompt)]
    for part, text in rows:
        table.add_row(part, f"{estimate_tokens(text):,}", f"{len(text):,}")
    err.print(table)
