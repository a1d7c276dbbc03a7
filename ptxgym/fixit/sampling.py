"""Choices that are the same on every machine: by hashes and whole numbers, without random generators or floats."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import Any, TypeVar

from ptxgym.fixit.recipe import Balance

Item = TypeVar("Item")


def drawn(seed: int, *parts: object) -> int:
    """Return a number of 64 bits that follows from a seed and any parts alone."""
    text = "\0".join(map(str, (seed, *parts)))
    return int.from_bytes(hashlib.sha256(text.encode(errors="surrogatepass")).digest()[:8], "big")


def shuffled(items: Iterable[Item], seed: int, key: Callable[[Item], str]) -> list[Item]:
    """Return items in an order that follows from the seed and their keys, not from the order in which they come."""
    return sorted(items, key=lambda item: (drawn(seed, key(item)), key(item)))


def apportion(sizes: Sequence[int], places: int, balance: Balance) -> list[int]:
    """Divide places among strata, none more than it can fill.

    Args:
        sizes: Of the strata.
        places: To be divided; where there are more than items, all items get one.
        balance: `proportional` by the largest remainders, `equal` one by one; ties go to the earlier stratum.

    Returns:
        Places of each stratum.
    """
    total = sum(sizes)
    if places >= total:
        return list(sizes)
    if balance == "proportional":
        quotas = [size * places // total for size in sizes]
        order = sorted(range(len(sizes)), key=lambda at: (-(sizes[at] * places % total), at))
        for at in order[: places - sum(quotas)]:
            quotas[at] += 1
        return quotas
    quotas = [0] * len(sizes)
    while places > 0:
        open_ = [at for at, size in enumerate(sizes) if quotas[at] < size]
        for at in open_[:places]:
            quotas[at] += 1
        places -= min(places, len(open_))
    return quotas


def stratified(
    items: Iterable[Item],
    places: int | None,
    balance: Balance,
    seed: int,
    stratum: Callable[[Item], Any],
    key: Callable[[Item], str],
) -> list[Item]:
    """Sample items by strata.

    Args:
        items: In any order.
        places: How many; None for all.
        balance: Of the strata.
        seed: Of the choice within a stratum.
        stratum: Of an item; sortable.
        key: Of an item; unique.

    Returns:
        The sample by stratum, then in the order in which it was drawn.
    """
    strata: dict[Hashable, list[Item]] = {}
    for item in shuffled(items, seed, key):
        strata.setdefault(stratum(item), []).append(item)
    names = sorted(strata, key=lambda name: (str(type(name)), name))
    sizes = [len(strata[name]) for name in names]
    quotas = sizes if places is None else apportion(sizes, places, balance)
    return [item for name, quota in zip(names, quotas, strict=True) for item in strata[name][:quota]]
