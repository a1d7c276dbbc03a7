"""Where the wrong elements of an output lie, in words: rows, columns, tiles, or places that recur."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ptxgym.judge.correctness import Comparison, indexed
from ptxgym.judge.numbers import namespace, on_host
from ptxgym.judge.references import Array
from ptxgym.judge.tiles import TILE, Doubles, tile_sums


def wrong_elements(comparison: Comparison) -> Array:
    """Return which elements are off by more than rounding explains: two units in the last place of BF16."""
    expected = comparison.expected
    magnitude = namespace(expected.values).abs(expected.values)
    bound = 4 * expected.accumulation + float(magnitude.mean()) * 2.0**-8
    magnitude *= 2.0**-7
    magnitude += bound
    return comparison.error > magnitude


def pattern(comparison: Comparison) -> str | None:
    """Return in words where the wrong elements lie; None if the output is right or nothing stands out."""
    if comparison.ok:
        return None
    wrong = wrong_elements(comparison)
    xp = namespace(wrong)
    count = int(xp.count_nonzero(wrong))
    share = count / wrong.size
    if count == 0:
        return "all over, each by little"
    if count <= 4:
        tensor = comparison.expected.tensor
        return "single elements: " + ", ".join(
            indexed(tensor, [str(int(i)) for i in index]) for index in on_host(xp.argwhere(wrong))
        )
    if share > 0.9:
        return "nearly every element"
    grid = wrong.reshape(1, -1) if wrong.ndim == 1 else wrong.reshape(-1, wrong.shape[-1])
    rows, columns = on_host(grid.mean(axis=1)), on_host(grid.mean(axis=0))
    bad_rows, bad_columns = _mostly(rows), _mostly(columns)
    if bad_rows is not None:
        return f"whole rows: {_ranges(bad_rows, grid.shape[0], 'rows')}"
    if bad_columns is not None:
        return f"whole columns: {_ranges(bad_columns, grid.shape[1], 'columns')}"
    if (fragments := _fragments(grid)) is not None:
        return fragments
    tiles = _tile_share(grid)
    touched = tiles > 0.0
    if touched.mean() < 0.9 and (tiles[touched] > 0.6).all():
        return f"whole {TILE}×{TILE} tiles: {int(touched.sum())} of {touched.size}"
    if touched.mean() < 0.5:
        return (
            f"inside {int(touched.sum())} of {touched.size} tiles of {TILE}×{TILE}, {tiles[touched].mean():.0%} of each"
        )
    return f"scattered, {share:.2%} of all elements"


def _mostly(shares: NDArray[np.float64]) -> NDArray[np.int64] | None:
    """Return the lines that are mostly wrong, if those hold nearly all wrong elements and are not all lines."""
    bad = np.flatnonzero(shares > 0.6)
    if 0 < len(bad) < len(shares) and shares[bad].sum() > 0.95 * shares.sum():
        return bad
    return None


def _ranges(lines: NDArray[np.int64], count: int, what: str) -> str:
    steps = np.diff(lines)
    if len(lines) == 1:
        return f"{what[:-1]} {lines[0]} of {count}"
    if (steps == 1).all():
        last = f", the last {len(lines)}" if lines[-1] == count - 1 else ""
        return f"{lines[0]} … {lines[-1]} of {count}{last}"
    if len(lines) > 2 and (steps == steps[0]).all():
        return f"every {steps[0]} from {lines[0]} on"
    return f"{len(lines)} of {count}, from {lines[0]} to {lines[-1]}"


def _fragments(grid: Array) -> str | None:
    """Say at which rows and columns of every few the wrong elements lie, as where registers are stored to wrong places.

    Each thread of a matrix instruction holds elements at fixed distances: a mistake in one of them recurs.
    """
    height, width = (size // TILE for size in grid.shape)
    if not height or not width:
        return None
    whole = grid[: height * TILE, : width * TILE].reshape(height, TILE, width, TILE)
    shares = on_host(whole.mean(axis=(0, 2)))
    bad = shares > 0.9
    rows, columns = bad.any(axis=1), bad.any(axis=0)
    if not bad.any() or not np.array_equal(bad, np.outer(rows, columns)) or shares[~bad].max(initial=0.0) > 0.05:
        return None
    places = [text for text in (_residues(rows, "row"), _residues(columns, "column")) if text]
    return f"regular: {', '.join(places)}, as where an index of a fragment is wrong" if places else None


def _residues(lines: NDArray[np.bool_], what: str) -> str:
    """Return which of how many lines are set, in the shortest period; nothing where all are or the period is long."""
    for period in (1, 2, 4, 8, 16, 32):
        if np.array_equal(lines, np.tile(lines[:period], len(lines) // period)):
            break
    else:
        return f"{int(lines.sum())} {what}s of every {len(lines)}"
    if period == 1:
        return ""
    found = np.flatnonzero(lines[:period])
    if len(found) == 1:
        return f"{what} {found[0]} of every {period}"
    if (np.diff(found) == 1).all():
        return f"{what}s {found[0]} … {found[-1]} of every {period}"
    return f"{what}s {', '.join(map(str, found))} of every {period}"


def _tile_share(grid: Array) -> Doubles:
    """Return which share of each tile of a mask is set, on the host."""
    rows, columns = (np.minimum(TILE, size - np.arange(0, size, TILE)) for size in grid.shape)
    shares: Doubles = on_host(tile_sums(grid)) / np.outer(rows, columns)
    return shares
