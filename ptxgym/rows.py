"""Rows of tasks for trainers: which environment to make, how to reset it, and the prompt with which it begins.

A trainer samples rows, and for each calls `gymnasium.make(row.env)` (or `Episode(row.env, …)`) and
`reset(options=row.options)`. The prompt is the one of the emulator; where a GPU measures, `reset` adds a section.
"""

from __future__ import annotations

from collections.abc import Iterator

from ptxgym.content import unknown
from ptxgym.envs import env_names, load_env
from ptxgym.errors import UnknownNameError
from ptxgym.prompt import render_prompt
from ptxgym.task import load_task
from ptxgym.variants import SPLITS, variants_of
from ptxgym.verdict import Value


class Row(Value):
    """One task to be solved."""

    env: str
    """The environment's plain id."""
    options: dict[str, str]
    """For `reset`."""
    prompt: str
    task: str
    variant: str
    arch: str
    split: str
    difficulty: int
    """Comparable over all rows, larger is harder; an estimate, not measured."""
    tags: tuple[str, ...]
    """The variant's traits."""


def task_rows(split: str) -> Iterator[Row]:
    """Yield a row for each environment and each variant of its task that belongs to `split`, always in the same order.

    Args:
        split: `train`, or `eval` for those held out, the tasks as they are among them.

    Raises:
        UnknownNameError: if there is no such split.
        ContentError: if a file is malformed.
    """
    if split not in SPLITS:
        raise UnknownNameError(unknown("split", split, SPLITS))
    return _rows(split)


def _rows(split: str) -> Iterator[Row]:
    for name in env_names():
        config = load_env(name)
        for variant in variants_of(load_task(config.task)):
            if variant.split == split:
                yield Row(
                    env=name,
                    options={"variant": variant.name},
                    prompt=render_prompt(config.override(variant=variant.name)),
                    task=config.task,
                    variant=variant.name,
                    arch=config.arch,
                    split=split,
                    difficulty=variant.difficulty,
                    tags=variant.traits,
                )
