"""How much of a kernel stands in texts that hold an answer: its task's oracle, and the pack's template functions."""

from __future__ import annotations

import contextlib
import functools
from dataclasses import dataclass

from ptxgym.errors import UsageError
from ptxgym.knowledge import load_pack, template_text
from ptxgym.similarity import Shingles, contained, shingles
from ptxgym.task import load_task, oracle

THRESHOLD = 0.7
"""From here on a kernel is flagged. The oracles of GEMM and attention, which share helpers, reach 0.52 of one another;
a simpler kernel of GEMM by the same hand has 0.89 of its oracle."""


@dataclass(frozen=True)
class Likeness:
    """How much of a kernel stands elsewhere, in [0, 1]; None where there is nothing to compare with."""

    oracle: float | None
    templates: float | None

    @property
    def flagged(self) -> bool:
        """Whether either reaches the threshold."""
        return max(self.oracle or 0.0, self.templates or 0.0) >= THRESHOLD


def likeness(source: str, task: str, arch: str) -> Likeness:
    """Compare a kernel with the oracle of its task, and with the template functions of its architecture's pack."""
    own = shingles(source)
    found = {name: contained(own, other) for name, other in references(task, arch).items()}
    return Likeness(found.get("oracle"), found.get("templates"))


@functools.cache
def references(task: str, arch: str) -> dict[str, Shingles]:
    """Return the shingles of what kernels are compared with, as far as it is here: a wheel carries no oracles."""
    found = {}
    with contextlib.suppress(UsageError):  # a wheel, or somebody else's task: the page shows that nothing was compared
        known = load_task(task)
        found["oracle"] = shingles(known.source(oracle(known, arch)))
    with contextlib.suppress(UsageError):  # an architecture without a pack
        found["templates"] = shingles(template_text(load_pack(arch)))
    return found
