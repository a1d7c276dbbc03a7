"""The test by ranks with which learning is compared with its controls."""

from __future__ import annotations

import itertools
from collections.abc import Sequence


def mann_whitney(one: Sequence[float], other: Sequence[float]) -> tuple[float, float]:
    """U of `one` and the exact probability of one as large, if both are of one distribution (ties count half).

    Over all ways to divide the values into groups of these sizes: with five seeds nothing may be taken for normal, and
    ranks do not care that one arm scatters more than the other.
    """
    values = [*one, *other]

    def u(chosen: Sequence[int]) -> float:
        rest = [values[at] for at in range(len(values)) if at not in chosen]
        return sum((values[at] > each) + (values[at] == each) / 2 for at in chosen for each in rest)

    observed = u(range(len(one)))
    all_ = [u(chosen) for chosen in itertools.combinations(range(len(values)), len(one))]
    return observed, sum(each >= observed for each in all_) / len(all_)
