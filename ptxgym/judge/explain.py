"""Simple causes that fit wrong numbers.

Every explanation is a hypothesis that was tried on the numbers and fits within a stated residual; where none fits,
nothing is said. Whole outputs stay on their device, where a hypothesis costs a few passes over them; sums by row,
column and tile, and the worst tile itself, come to the host.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from ptxgym.judge.correctness import Comparison, indexed, region, tile_slices
from ptxgym.judge.misreadings import misread
from ptxgym.judge.numbers import namespace, on_host, round_bf16
from ptxgym.judge.references import Array, Expected, norm, tile_norms
from ptxgym.judge.tiles import Doubles
from ptxgym.task import Tensor
from ptxgym.task_modules import ReferenceModule

FIT = 0.05
"""A hypothesis fits if it leaves at most this share of the error (norms), or no more than rounding …"""
MUST_EXPLAIN = 0.7
"""… and in any case less than this share."""
SAME_ROUNDINGS = 0.3
"""Sums in another order round differently here and there: so much of the error (norms) a fitting sequence may leave."""
LESS_THAN_SCALED = 0.5
"""A part of a sum is believed if it leaves less than this share of what the best scale factor leaves."""
PART_FACTORS = (0.01, 0.8)
"""Half of a sum or less is, on average, so many times the whole."""
LOST_BITS = 0.05
"""Relative error beyond which inexact integers are no matter of partial sums that lose bits."""
FRAGMENTS = ((8, 8), (16, 8), (16, 16), (64, 8))
"""Blocks in which registers of a matrix instruction repeat: of mma.sync and wgmma (PTX ISA 9.7.14.5, 9.7.15.5.1)."""
FEWEST_BLOCKS = 8
"""That a rearrangement must have in common before it is believed."""
MAX_EXPLANATIONS = 4


def explain(comparison: Comparison, expected: Expected, module: ReferenceModule) -> tuple[str, ...]:
    """Return the causes that fit the wrong output, the most telling first; empty for a right one."""
    if comparison.ok:
        return ()
    found: list[str] = list(_missing(comparison))
    if not found:
        found += _non_finite(comparison, expected)
    if not found and np.isfinite(comparison.relative_error):
        found += (
            list(_started_anew(comparison, expected, module))
            or list(_whole(comparison))
            or list(_tile(comparison, expected, module))
            or list(misread(comparison, expected, module))
            or list(_rounding(comparison))
        )
    if comparison.inexact and not found and comparison.relative_error < LOST_BITS:
        found.append(
            f"on small integers {comparison.inexact:,} elements are not exact although BF16 can hold their results: "
            "partial sums lose bits (accumulate in FP32, round once)"
        )
    return tuple(found[:MAX_EXPLANATIONS])


def _missing(comparison: Comparison) -> Iterator[str]:
    count = comparison.sums.unwritten
    if count:
        where = _bounds(comparison.expected.tensor, comparison.missing, count)
        yield f"{count:,} of {comparison.size:,} elements were never written, {where}"


def _non_finite(comparison: Comparison, expected: Expected) -> Iterator[str]:
    count = int(comparison.sums.not_finite.sum())
    if not count:
        return
    found = comparison.found
    xp = namespace(found)
    nans = int(xp.count_nonzero(xp.isnan(found)))
    if nans == found.size:
        held = [name for name, values in expected.values.items() if bool(xp.isnan(values).any())]
        inputs = f"{', '.join(held)} held NaN, too" if held else "the inputs held none"
        yield (
            f"all {nans:,} elements are NaN ({inputs}): uninitialised accumulators (zero them, or let the first matrix "
            "instruction overwrite them: scale-d 0), or operands from memory or registers that nobody wrote"
        )
        return
    bad = ~xp.isfinite(found)
    kind = "NaN" if nans == count else "infinite" if nans == 0 else "NaN or infinite"
    tensor = comparison.expected.tensor
    first = indexed(tensor, [str(int(i)) for i in np.unravel_index(int(bad.argmax()), bad.shape)])
    yield (
        f"{count:,} elements are {kind}, first {first}, {_bounds(tensor, bad, count)}: a result was computed "
        "from memory or registers that nobody wrote, or overflowed"
    )


def _bounds(tensor: Tensor, mask: Array, count: int) -> str:
    """Return the smallest box that holds the `count` set elements of `mask`."""
    others = (tuple(other for other in range(mask.ndim) if other != axis) for axis in range(mask.ndim))
    lines = [np.flatnonzero(on_host(mask.any(axis=axes) if axes else mask)) for axes in others]
    where = indexed(tensor, [f"{line[0]}:{line[-1] + 1}" for line in lines])
    volume = int(np.prod([line[-1] + 1 - line[0] for line in lines]))
    return f"{'exactly' if volume == count else 'within'} {where}"


def _whole(comparison: Comparison) -> Iterator[str]:
    """Hypotheses about the whole output."""
    reference, found = comparison.expected.values, comparison.found
    xp = namespace(found)
    error = norm(found - reference)
    ideal_norm = 1.5 * comparison.expected.lost
    enough = min(max(FIT * error, ideal_norm), MUST_EXPLAIN * error)
    if error < 4 * ideal_norm and float((xp.abs(found) <= xp.abs(reference)).mean()) > 0.999:
        yield "results are rounded toward zero; round to nearest (__float2bfloat16_rn)"
        return
    if not found.any():
        yield "every element is zero"
        return
    if float(xp.ptp(found)) == 0.0:
        yield f"every element is {float(found.reshape(-1)[0]):g}"
        return
    factor = float((found * reference).sum()) / comparison.expected.scale**2
    scaled = abs(factor) * comparison.expected.scale
    close = min(max(FIT * error, ideal_norm * max(1.0, abs(factor))), MUST_EXPLAIN * min(error, scaled))
    if abs(factor - 1.0) > 1e-3 and norm(found - factor * reference) < close:
        yield f"the output is {factor:.4g} × the reference: a scale factor is wrong, missing or applied twice"
        return
    offset = float((found - reference).mean())
    if norm(found - reference - offset) < enough:
        yield f"the output is the reference + {offset:.4g}: a constant was added"
        return
    if found.ndim >= 2:
        swapped = reference.swapaxes(-1, -2).reshape(reference.shape)
        if norm(found - swapped) < enough:
            yield "the output holds the transposed result: rows and columns are exchanged when it is stored"


def _started_anew(comparison: Comparison, expected: Expected, module: ReferenceModule) -> Iterator[str]:
    """Try whether the worst tile holds only the first or the last terms, half of them or fewer.

    On inputs with a mean, a part of a sum is nearly the whole, scaled: of the two the one that leaves less is told.
    """
    terms = getattr(module, "terms", None)
    tensor = comparison.expected.tensor
    here = tile_slices(tensor, comparison.worst_tile, comparison.found.shape)
    found, reference, ideal = (
        on_host(array[here]) for array in (comparison.found, comparison.expected.values, comparison.expected.ideal)
    )
    error, factor = norm(found - reference), float((found * reference).sum()) / (float(np.square(reference).sum()) or 1)
    low, high = PART_FACTORS
    if terms is None or not low < factor < high:
        return
    known = terms(namespace(comparison.found), expected.values, expected.case.axes, tensor.name, here)
    if known is None:
        return
    labels, parts = known[0], on_host(known[1]).reshape(len(known[0]), *found.shape)
    scaled = norm(found - factor * reference)
    enough = min(FIT * error + 2.0 * norm(ideal - reference), MUST_EXPLAIN * error, LESS_THAN_SCALED * scaled)
    half = len(labels) // 2
    sums = {"last": np.cumsum(parts[::-1][:half], axis=0), "first": np.cumsum(parts[:half], axis=0)}
    for which, totals in sums.items():
        left = [norm(found - total) for total in totals]
        best = int(np.argmin(left)) if left else 0
        if left and left[best] < enough:
            span = labels[len(labels) - best - 1 :] if which == "last" else labels[: best + 1]
            only = span[0] if len(span) == 1 else f"{span[0]} to {span[-1]}"
            why = "the accumulator starts anew in between" if which == "last" else "what follows is not added"
            yield f"{region(tensor, here)} holds the sum over {only} alone: {why}"
            return


def _tile(comparison: Comparison, expected: Expected, module: ReferenceModule) -> Iterator[str]:
    """Hypotheses about the worst tile."""
    tensor = comparison.expected.tensor
    sizes = comparison.found.shape
    here = tile_slices(tensor, comparison.worst_tile, sizes)
    shape = (-1, sizes[-1] if len(sizes) == 1 else here[-1].stop - here[-1].start)
    found, reference, ideal = (
        on_host(array[here]).reshape(shape)
        for array in (comparison.found, comparison.expected.values, comparison.expected.ideal)
    )
    name = region(tensor, here)
    error = norm(found - reference)
    enough = min(max(FIT * error, 2.0 * norm(ideal - reference)), MUST_EXPLAIN * error)
    if not found.any():
        yield f"{name} is all zeros"
        return
    for block in (64, 32, 16, 8):
        if found.shape[0] % block == 0 and found.shape[1] % block == 0:
            turned = _transpose_blocks(reference, block)
            if norm(found - turned) < enough:
                yield f"in {name} every {block}×{block} block is transposed"
                return
    for what, f, r in (("row", found, reference), ("column", found.T, reference.T)):
        order = _permutation(f, r)
        if order is not None and norm(f - r[order]) < enough:
            moved = np.flatnonzero(order != np.arange(len(order)))
            first = f"{what} {moved[0]} holds what belongs to {what} {order[moved[0]]}"
            yield f"in {name} {len(moved)} {what}s are exchanged: {first}"
            return
    other = _displaced(found, comparison)
    if other is not None:
        yield f"{name} holds the values of {region(tensor, other)}: a wrong tile was stored there, or a stale one"
        return
    mirrored = _displaced(np.ascontiguousarray(found.T), comparison) if found.shape[0] == found.shape[1] else None
    if mirrored is not None:
        yield f"{name} holds the values of {region(tensor, mirrored)} transposed: larger tiles are stored transposed"
        return
    for rows, columns in FRAGMENTS:
        moved_element = _rearranged(found, reference, rows, columns, enough)
        if moved_element is not None:
            yield (
                f"in {name} the elements of every {rows}×{columns} block are rearranged alike, {moved_element}: the "
                "registers of the accumulator hold other elements than they are stored as"
            )
            return
    factors = getattr(module, "factors", None)
    if factors is not None:
        rows, columns = factors(namespace(comparison.found), expected.values, expected.case.axes, tensor.name, here)
        if _bf16_chain(found, reference, on_host(rows), on_host(columns)):
            yield (
                f"in {name} the running sum is rounded to BF16 after every product: accumulate in FP32 (float, or FP32 "
                "sums of a matrix instruction) and round once"
            )
            return
    terms = getattr(module, "terms", None)
    if terms is not None:
        xp = namespace(comparison.found)
        known = terms(xp, expected.values, expected.case.axes, tensor.name, here)
        if known is None:
            return
        labels, parts = known[0], on_host(known[1])
        rounded = _bf16_sums(found, reference, labels, parts, name)
        yield from [rounded] if rounded else _combination(found - reference, labels, parts, enough, name)


def _transpose_blocks(tile: Doubles, block: int) -> Doubles:
    rows, columns = tile.shape[0] // block, tile.shape[1] // block
    split = tile.reshape(rows, block, columns, block)
    return split.transpose(0, 3, 2, 1).reshape(tile.shape)


def _rearranged(found: Doubles, reference: Doubles, rows: int, columns: int, enough: float) -> str | None:
    """Return an example of how elements are exchanged, if it is the same in every block of the tile."""
    if found.shape[0] % rows or found.shape[1] % columns or found.size < FEWEST_BLOCKS * rows * columns:
        return None

    def places(tile: Doubles) -> Doubles:  # [place within a block, block]
        down, across = tile.shape[0] // rows, tile.shape[1] // columns
        return tile.reshape(down, rows, across, columns).transpose(1, 3, 0, 2).reshape(rows * columns, down * across)

    f, r = places(found), places(reference)
    order = _permutation(f, r)
    if order is None or norm(f - r[order]) >= enough:
        return None
    place = int(np.flatnonzero(order != np.arange(len(order)))[0])
    (row, column), (from_row, from_column) = divmod(place, columns), divmod(int(order[place]), columns)
    return f"[{row}, {column}] holds what belongs to [{from_row}, {from_column}]"


def _permutation(found: Doubles, reference: Doubles) -> NDArray[np.int64] | None:
    """Return, for each line, the reference line nearest to it, if that is a permutation other than the identity."""
    squares = np.square(found).sum(axis=1)[:, None] + np.square(reference).sum(axis=1)[None, :]
    order: NDArray[np.int64] = np.argmin(squares - 2 * found @ reference.T, axis=1)
    identity = np.arange(len(order))
    return order if len(np.unique(order)) == len(order) and (order != identity).any() else None


def _displaced(found: Doubles, comparison: Comparison) -> tuple[slice, ...] | None:
    """Return the ranges of another tile of the reference, as large, that equals `found`."""
    values, tensor = comparison.expected.values, comparison.expected.tensor
    xp = namespace(values)
    covered = [-(-size // side) for size, side in zip(values.shape[-2:], found.shape[-values.ndim :], strict=True)]
    copies = xp.tile(xp.asarray(found).reshape(found.shape[-values.ndim :]), covered)
    copies = copies[tuple(slice(size) for size in values.shape[-2:])]
    distance, size = on_host(tile_norms(values - copies)), on_host(tile_norms(values))
    for tile in np.argwhere(distance < FIT * size):
        slices = tile_slices(tensor, tuple(int(i) for i in tile), values.shape)
        if tuple(tile) != comparison.worst_tile and values[slices].size == found.size:
            return slices
    return None


def _bf16_chain(found: Doubles, reference: Doubles, rows: NDArray[np.float32], columns: NDArray[np.float32]) -> bool:
    """Try whether every product was added to a sum in BF16, with or without being rounded itself before."""
    error = norm(found - reference)
    for rounds_products in (False, True):
        total = np.zeros(found.shape, np.float32)
        for k in range(rows.shape[1]):
            product = np.multiply.outer(rows[:, k], columns[:, k])
            total = round_bf16(total + (round_bf16(product) if rounds_products else product))
        if norm(found - total) < SAME_ROUNDINGS * error:
            return True
    return False


def _bf16_sums(found: Doubles, reference: Doubles, labels: list[str], parts: Doubles, name: str) -> str | None:
    """Try whether the running sum was rounded to BF16 after every 1, 2, 4 or 8 terms."""
    error = norm(found - reference)
    for step in (1, 2, 4, 8):
        total = np.zeros(found.shape, np.float32)
        for start in range(0, len(labels), step):
            total = round_bf16(total + parts[start : start + step].sum(axis=0).reshape(found.shape))
        if norm(found - total) < SAME_ROUNDINGS * error:
            each = labels[0] if step == 1 else f"{labels[0]} … {labels[step - 1]}"
            return (
                f"in {name} the running sum is rounded to BF16 after every step such as {each}: keep partial sums in "
                "FP32 and round once"
            )
    return None


def _combination(residual: Doubles, labels: list[str], parts: Doubles, enough: float, name: str) -> Iterator[str]:
    """Explain the residual as a sum of the operator's own terms, each missing (−1) or counted twice (+1)."""
    flat = parts.reshape(len(labels), -1)
    weights, *_ = np.linalg.lstsq(flat @ flat.T, flat @ residual.reshape(-1), rcond=None)  # normal equations: small
    whole = np.rint(weights)
    if not whole.any() or norm(residual.reshape(-1) - whole @ flat) > enough:
        return
    missing = [label for label, weight in zip(labels, whole, strict=True) if weight == -1]
    double = [label for label, weight in zip(labels, whole, strict=True) if weight >= 1]
    if missing and len(missing) + len(double) <= max(3, len(labels) // 2):
        yield f"in {name} the sum lacks {_some(missing)}"
    if double and len(missing) + len(double) <= max(3, len(labels) // 2):
        yield f"in {name} the sum counts {_some(double)} more than once"


def _some(labels: list[str]) -> str:
    shown = ", ".join(labels[:3])
    return shown if len(labels) <= 3 else f"{shown} and {len(labels) - 3} more"


def _rounding(comparison: Comparison) -> Iterator[str]:
    """Errors that look like too many roundings: more than one rounding makes, small beside everything else."""
    lost = comparison.expected.lost
    error = norm(comparison.found - comparison.expected.values)
    if lost == 0.0 or not 1.2 * lost < error < 12 * lost:
        return
    yield (
        f"errors are {error / lost:.1f} × those of FP32 accumulation with one rounding: partial sums or operands "
        "are rounded to fewer bits on the way"
    )
