"""Are the numbers right? Outputs against the error budget that follows from what an ideal BF16 algorithm loses.

Two bounds must hold: the relative Frobenius error of the whole output, and the error of its worst 64×64 tile, so that
neither a small systematic error nor a single wrong tile hides in a large output. No element alone decides: results near
zero carry the error of their terms, and a bound relative to the element would refuse correct kernels
(HazyResearch/HipKittens#64).

A correct GEMM lies at 0.66 of its budget on every draw (60 secrets: 0.661 to 0.667); rounding toward zero at 1.3, a
gain error of 0.3 % at 1.2 to 1.7, of 1 % at 4, sums kept in BF16 between steps of 16 at 2.5. Two BF16 partial sums
(error × √2) stay just inside on real numbers. On small integers every sum is exact in FP32, so each result that BF16
can hold must be exact: there they fail.

On an H200 and 16 cores (`benchmarks/judge.py`) a call at 8192×7168×5120 takes 1 ms to compare and 0.3 ms for its
inputs; a wrong output takes 6 to 70 ms to explain, and as much memory as computing its reference.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from ptxgym.judge import numbers, tiles
from ptxgym.judge.conditions import Case
from ptxgym.judge.references import Array, Expected, ExpectedOutput
from ptxgym.judge.tiles import TILE, Doubles, TileSums
from ptxgym.task import Tensor

CLOSENESS_STEPS = 4


@dataclass(frozen=True, eq=False)
class Comparison:
    """One output of one run against its reference. Its arrays are made when asked for, from the run's own buffer."""

    expected: ExpectedOutput
    data: Array
    """Bytes of the output."""
    sums: TileSums
    ptxbench_ok: bool

    @functools.cached_property
    def found(self) -> Array:
        """The output in float64."""
        return numbers.decode(self.data, self.expected.tensor, self.expected.axes).astype(np.float64)

    @functools.cached_property
    def missing(self) -> Array:
        """Elements that still hold the poison."""
        return numbers.unwritten(self.data, self.expected.tensor, self.expected.axes)

    @functools.cached_property
    def error(self) -> Array:
        """|found − reference|; inf where not finite."""
        xp = numbers.namespace(self.found)
        return xp.where(xp.isfinite(self.found), xp.abs(self.found - self.expected.values), xp.inf)

    @property
    def size(self) -> int:
        """Elements of the output."""
        return int(self.expected.values.size)

    @functools.cached_property
    def tile_errors(self) -> Doubles:
        """Frobenius norm of the error of every tile; inf where an element is not finite."""
        return _tile_errors(self.sums)

    @property
    def relative_error(self) -> float:
        """Frobenius norm of the error ÷ that of the reference; inf where an element is not finite."""
        return _relative_error(self.expected, self.sums)

    @property
    def inexact(self) -> int:
        """Elements of an exact draw that should be exact and are not."""
        return self.sums.inexact if self.expected.must_be_exact else 0

    @property
    def untouched(self) -> bool:
        """Whether no element was written."""
        return self.sums.unwritten == self.size

    @property
    def closeness(self) -> float:
        """1 − error ÷ error of the best trivial predictor, in [0, 1], in steps of ¼; 1 only if the output is right."""
        relative = self.relative_error
        close = 1.0 - relative / self.expected.predictor_error if np.isfinite(relative) else 0.0
        steps = round(CLOSENESS_STEPS * min(1.0, max(0.0, close)))
        return (steps if self.ok else min(steps, CLOSENESS_STEPS - 1)) / CLOSENESS_STEPS

    @functools.cached_property
    def excess(self) -> float:
        """How many times over budget the output is: above 1 it is wrong."""
        return _excess(self.expected, self.sums)

    @property
    def ok(self) -> bool:
        """Whether the output is right."""
        return self.excess <= 1.0

    @functools.cached_property
    def worst_tile(self) -> tuple[int, ...]:
        """Index of the tile that is furthest over its budget."""
        ratios = _ratio(self.tile_errors, self.expected.tile_budgets)
        return tuple(int(i) for i in np.unravel_index(int(ratios.argmax()), ratios.shape))


def tile_slices(tensor: Tensor, tile: tuple[int, ...], sizes: tuple[int, ...]) -> tuple[slice, ...]:
    """Return the index ranges of the tile `tile` of an output."""
    tiled = min(2, len(sizes))
    leading = tuple(slice(i, i + 1) for i in tile[: len(sizes) - tiled])
    inner = zip(tile[len(sizes) - tiled :], sizes[len(sizes) - tiled :], strict=True)
    return leading + tuple(slice(i * TILE, min((i + 1) * TILE, size)) for i, size in inner)


def region(tensor: Tensor, slices: tuple[slice, ...]) -> str:
    """Return index ranges as text, such as `C[128:192, 0:64]`."""
    ranges = [f"{each.start}:{each.stop}" if each.stop - each.start > 1 else str(each.start) for each in slices]
    return indexed(tensor, ranges)


def indexed(tensor: Tensor, ranges: Sequence[str]) -> str:
    """Return ranges, given in the tensor's logical order of axes, as who wrote the kernel would index it."""
    return f"{tensor.name}[{', '.join(ranges[axis] for axis in tensor.to_stored)}]"


def compare(expected: ExpectedOutput, data: Array, case: Case) -> Comparison:
    """Compare an output's bytes after a run with the reference.

    Args:
        expected: the reference.
        data: bytes, on the reference's device or on the host; they must stay as they are while the result is used.
        case: what was run.

    Raises:
        ValueError: if the size of `data` is not that of the output, or the case not that of the reference.
    """
    if case.axes != expected.axes:
        raise ValueError(f"the reference is of {expected.axes}, the output of {case.axes}")
    data = numbers.namespace(expected.values).asarray(data)
    sums = _measure(expected, data, vendor=True)
    return Comparison(expected, data, sums, ptxbench_ok=not sums.not_finite.any() and not sums.far)


def passes(expected: ExpectedOutput, data: Array) -> bool:
    """Return whether an output is right, by the same bounds as `compare` and nothing else: for timed calls."""
    data = numbers.namespace(expected.values).asarray(data)
    return _excess(expected, _measure(expected, data, vendor=False)) <= 1.0


def changed_input(expected: Expected, buffers: Mapping[str, Array]) -> str | None:
    """Return the first input whose bytes after a run differ from what the run was given, or None."""
    for name, before in expected.inputs.items():
        after = numbers.namespace(before).asarray(buffers[name])
        if not equal_bytes(before, after):
            return name
    return None


def flaw(expected: Expected, buffers: Mapping[str, Array]) -> str | None:
    """Return the first input that a run changed or output that it got wrong, or None: the check of a timed call."""
    wrong = (name for name, output in expected.outputs.items() if not passes(output, buffers[name]))
    return changed_input(expected, buffers) or next(wrong, None)


def ptxbench_accepts(found: Doubles, vendor: Doubles) -> bool:
    """Return whether PTXBench's tolerance accepts: every element finite, none refused by `tiles.ptxbench_far`."""
    return bool(np.isfinite(found).all()) and not bool(tiles.ptxbench_far(found, vendor).any())


def equal_bytes(before: Array, after: Array) -> bool:
    """Return whether two arrays of one device hold the same bytes."""
    first, second = before.reshape(-1).view(np.uint8), after.reshape(-1).view(np.uint8)
    if first.nbytes != second.nbytes:
        return False
    wide = np.uint64 if first.nbytes % 8 == 0 else np.uint8
    return bool((first.view(wide) == second.view(wide)).all())


def _measure(expected: ExpectedOutput, data: Array, vendor: bool) -> TileSums:
    tensor, axes = expected.tensor, expected.axes
    ideal = numbers.as_words(expected.ideal_data, tensor, axes) if vendor else None
    return tiles.measure(numbers.as_words(data, tensor, axes), expected.values, ideal)


def _tile_errors(sums: TileSums) -> Doubles:
    return np.where(sums.not_finite > 0, np.inf, np.sqrt(sums.squares))


def _relative_error(expected: ExpectedOutput, sums: TileSums) -> float:
    return float("inf") if sums.not_finite.any() else float(np.sqrt(sums.squares.sum())) / expected.scale


def _excess(expected: ExpectedOutput, sums: TileSums) -> float:
    ratios = _ratio(_tile_errors(sums), expected.tile_budgets)
    whole = _ratio(np.float64(_relative_error(expected, sums)), np.float64(expected.relative_budget))
    inexact = sums.inexact if expected.must_be_exact else 0
    exactness = 1.0 + inexact / expected.values.size if inexact else 0.0
    return float(max(whole.max(), ratios.max(), exactness))


def _ratio(error: Doubles | np.float64, budget: Doubles | np.float64) -> Doubles:
    """Return error ÷ budget, 0 where both are 0."""
    errors, budgets = np.atleast_1d(np.asarray(error)), np.atleast_1d(np.asarray(budget))
    with np.errstate(divide="ignore", invalid="ignore"):
        ratio = errors / budgets
    return np.where(errors == 0.0, 0.0, ratio)
