"""Proven solutions of evaluated tasks, which no training set may hold.

A model that was trained on them would recite them where it is evaluated. What counts as a copy is what a kernel shares
with a solution beyond the template functions of the knowledge pack, which any agent may be shown.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass

from ptxgym.envs import env_names, load_env
from ptxgym.errors import ContentError, UsageError
from ptxgym.knowledge import load_pack, template_text
from ptxgym.similarity import Shingles, contained, shingles
from ptxgym.task import expected, load_arch, load_task


@dataclass(frozen=True)
class Copied:
    """What a kernel shares with a solution."""

    solution: str
    """File, in the task's folder."""
    share: float
    """Of the solution's own shingles, or of the kernel's own, whichever is larger."""


class Solutions:
    """All solutions by target instructions of the tasks of all environments."""

    def __init__(self) -> None:
        """Read the solutions.

        Raises:
            UsageError: if they are not there, as in a wheel: then nothing could be checked.
        """
        self._own: dict[str, dict[str, Shingles]] = {}
        self._public: dict[str, Shingles] = {}
        try:
            for config in map(load_env, env_names()):
                task = load_task(config.task)
                public = self._public.setdefault(config.arch, _public(config.arch))
                for solution in expected(task, config.arch):
                    if solution.coverage:
                        own = shingles(task.source(solution)) - public
                        self._own.setdefault(config.arch, {})[f"{task.name}/{solution.file}"] = own
        except ContentError as error:
            raise UsageError(
                "without the proven solutions nothing tells whether a kernel is a copy of one; build training sets in "
                f"a checkout of ptxgym ({error})"
            ) from error

    def nearest(self, text: str, arch: str) -> Copied:
        """Return the solution that a kernel shares most with.

        Raises:
            UnknownNameError: if the architecture does not exist.
        """
        load_arch(arch)
        own = shingles(text) - self._public.get(arch, frozenset())
        shares = (
            Copied(name, max(contained(known, own), contained(own, known)))
            for name, known in sorted(self._own.get(arch, {}).items())
        )
        return max(shares, key=lambda found: found.share, default=Copied("", 0.0))


@functools.cache
def _public(arch: str) -> Shingles:
    return shingles(template_text(load_pack(arch)))
