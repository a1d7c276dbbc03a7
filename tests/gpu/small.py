"""The GEMM task at smaller sizes, and texts that no cache has seen."""

from __future__ import annotations

import itertools
import os
from collections.abc import Mapping

from ptxgym.task import Draw, Task, Workload

_NUMBERS = itertools.count()


def shrunk(
    task: Task,
    hardware: Mapping[str, int],
    emulation: Mapping[str, int],
    *,
    hidden: Mapping[str, int] | None = None,
    draws: tuple[Draw, ...] = ("normal", "shifted"),
    hidden_draws: tuple[Draw, ...] = ("integers",),
) -> Task:
    """Return `task` measured at `hardware` and emulated at `emulation`, one size each."""
    large = Workload(
        axes=dict(hardware),
        draws=draws,
        hidden=(dict(hidden or hardware),),
        hidden_draws=hidden_draws,
    )
    little = Workload(axes=dict(emulation), draws=("normal",))
    return task.model_copy(update={"workloads": {"hardware": large, "emulation": little, "schedules": little}})


def new_text(text: str, salt: str = "") -> str:
    """Return the text with a comment that makes it one that was never seen: no build and no verdict is remembered."""
    return f"{text}\n// {salt or os.urandom(8).hex()} {next(_NUMBERS)}\n"
