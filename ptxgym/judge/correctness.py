"""Are the numbers right? An error budget per output, set from what an ideal BF16 algorithm loses on the same draw.

Two bounds must hold: the relative Frobenius error of the whole output, and the error of its worst 64×64 tile, so that
neither a small systematic error nor a single wrong tile hides in a large output. No element alone decides: results near
zero carry the error of their terms, and a bound relative to the element would refuse correct kernels
(HazyResearch/HipKittens#64).

The budget is `FACTOR` × the error of FP32 accumulation with one rounding to nearest, plus the task's own bound on what
FP32 accumulation may lose, in any order, by truncating accumulators too. A correct GEMM lies at 0.66 of its budget on
every draw (60 secrets: 0.661 to 0.667); rounding toward zero at 1.3, a gain error of 0.3 % at 1.2 to 1.7, of 1 % at 4,
sums kept in BF16 between steps of 16 at 2.5. Two BF16 partial sums (error × √2) stay just inside on real numbers. On
small integers every sum is exact in FP32, so each result that BF16 can hold must be exact: there they fail.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from ptxgym.device.protocol import Bytes
from ptxgym.judge import conditions, numbers
from ptxgym.judge.conditions import Case
from ptxgym.task import Task, Tensor

FACTOR = 1.5
TILE_FACTOR = 2.0
"""Tiles vary: a correct tile of 4096 elements stays within a few per cent of the whole, smaller edge tiles do not."""
TILE = 64
PTXBENCH_ATOL = PTXBENCH_RTOL = 1e-2
CLOSENESS_STEPS = 4

Doubles = NDArray[np.float64]
Mask = NDArray[np.bool_]


@dataclass(frozen=True, eq=False)
class ExpectedOutput:
    """The reference of one output on one case, with the budgets that follow from it."""

    tensor: Tensor
    values: Doubles
    ideal: Doubles
    accumulation: Doubles
    exact: Mask | None
    """Where the result must be exact; None on draws of real numbers."""
    relative_budget: float
    tile_budgets: Doubles
    """Absolute, per tile."""
    predictor_error: float
    """Relative error of the best trivial predictor."""
    predictor: str


@dataclass(frozen=True, eq=False)
class Expected:
    """Inputs and references of one case, computed once per epoch."""

    case: Case
    inputs: Mapping[str, Bytes]
    values: Mapping[str, numbers.Floats]
    """The inputs as float32."""
    outputs: Mapping[str, ExpectedOutput]


@dataclass(frozen=True, eq=False)
class Comparison:
    """One output of one run against its reference."""

    expected: ExpectedOutput
    found: Doubles
    missing: Mask
    """Elements that still hold the poison."""
    error: Doubles
    """|found − reference|; inf where not finite."""
    relative_error: float
    tile_errors: Doubles
    inexact: int
    """Elements of an exact draw that should be exact and are not."""
    closeness: float
    ptxbench_ok: bool

    @property
    def excess(self) -> float:
        """How many times over budget the output is: above 1 it is wrong."""
        tiles = _ratio(self.tile_errors, self.expected.tile_budgets)
        whole = _ratio(np.float64(self.relative_error), np.float64(self.expected.relative_budget))
        exactness = 1.0 + self.inexact / self.error.size if self.inexact else 0.0
        return float(max(whole.max(), tiles.max(), exactness))

    @property
    def ok(self) -> bool:
        """Whether the output is right."""
        return self.excess <= 1.0

    @property
    def worst_tile(self) -> tuple[int, ...]:
        """Index of the tile that is furthest over its budget."""
        ratios = _ratio(self.tile_errors, self.expected.tile_budgets)
        return tuple(int(i) for i in np.unravel_index(int(ratios.argmax()), ratios.shape))


def norm(values: Doubles) -> float:
    """Return the Frobenius norm, without BLAS: its threads cost more than the sum on a busy machine."""
    return float(np.sqrt(np.square(values).sum()))


def tile_norms(values: Doubles) -> Doubles:
    """Return the Frobenius norm of every 64×64 tile of the last two axes (the last alone for vectors)."""
    grid = values.reshape(1, -1) if values.ndim == 1 else values
    squares = np.square(grid)
    for axis in (-1, -2):
        edges = np.arange(0, grid.shape[axis], TILE)
        squares = np.add.reduceat(squares, edges, axis=axis)
    norms: Doubles = np.sqrt(squares)
    return norms.reshape(-1) if values.ndim == 1 else norms


def tile_slices(tensor: Tensor, tile: tuple[int, ...], sizes: tuple[int, ...]) -> tuple[slice, ...]:
    """Return the index ranges of the tile `tile` of an output."""
    tiled = min(2, len(sizes))
    leading = tuple(slice(i, i + 1) for i in tile[: len(sizes) - tiled])
    inner = zip(tile[len(sizes) - tiled :], sizes[len(sizes) - tiled :], strict=True)
    return leading + tuple(slice(i * TILE, min((i + 1) * TILE, size)) for i, size in inner)


def region(tensor: Tensor, slices: tuple[slice, ...]) -> str:
    """Return index ranges as text, such as `C[128:192, 0:64]`."""
    return (
        f"{tensor.name}[{', '.join(f'{s.start}:{s.stop}' if s.stop - s.start > 1 else str(s.start) for s in slices)}]"
    )


@dataclass(frozen=True)
class _Key:
    """What a reference depends on; the task itself rides along uncompared."""

    name: str
    revision: int
    case: Case
    task: Task = field(compare=False)


@functools.lru_cache(maxsize=16)
def _cached(key: _Key) -> Expected:
    return compute(key.task, key.case, conditions.inputs(key.task, key.case))


def expect(task: Task, case: Case) -> Expected:
    """Return inputs, references and budgets of `case`, from the cache where they are known."""
    return _cached(_Key(f"{task.folder}:{task.name}", task.revision, case, task))


def compute(task: Task, case: Case, drawn: Mapping[str, Bytes]) -> Expected:
    """Return references and budgets for the inputs `drawn`, whatever `case.draw` says about how they came about."""
    module = task.reference()
    values = {tensor.name: numbers.decode(drawn[tensor.name], tensor, case.axes) for tensor in task.inputs}
    reference = {name: np.asarray(array, np.float64) for name, array in module.reference(np, values, case.axes).items()}
    ideal = module.ideal(np, values, case.axes, numbers.round_bf16)
    accumulation = module.accumulation(np, values, case.axes)
    predictors = module.predictors(np, values, case.axes, reference)
    outputs = {}
    for tensor in task.outputs:
        name = tensor.name
        guesses = {label: np.asarray(guess[name], np.float64) for label, guess in predictors.items()}
        outputs[name] = _budget(
            tensor,
            case,
            reference[name],
            np.asarray(ideal[name], np.float64),
            np.asarray(accumulation[name], np.float64),
            guesses,
        )
    return Expected(case, drawn, values, outputs)


def _budget(
    tensor: Tensor,
    case: Case,
    reference: Doubles,
    ideal: Doubles,
    accumulation: Doubles,
    guesses: Mapping[str, Doubles],
) -> ExpectedOutput:
    scale = norm(reference)
    lost = norm(ideal - reference)
    errors = {label: norm(guess - reference) / scale for label, guess in guesses.items()}
    best = min(errors, key=errors.__getitem__)
    exact = None
    if case.draw == "integers":
        single = reference.astype(np.float32)
        rounded = numbers.round_bf16(single) if tensor.dtype == "bf16" else single
        exact = rounded.astype(np.float64) == reference
    return ExpectedOutput(
        tensor=tensor,
        values=reference,
        ideal=ideal,
        accumulation=accumulation,
        exact=exact,
        relative_budget=(FACTOR * lost + norm(accumulation)) / scale,
        tile_budgets=TILE_FACTOR * tile_norms(ideal - reference) + tile_norms(accumulation),
        predictor_error=errors[best],
        predictor=best,
    )


def compare(expected: ExpectedOutput, data: Bytes, case: Case) -> Comparison:
    """Compare an output's bytes after a run with the reference."""
    found = numbers.decode(data, expected.tensor, case.axes).astype(np.float64)
    finite = np.isfinite(found)
    error = np.where(finite, np.abs(np.where(finite, found, 0.0) - expected.values), np.inf)
    relative = norm(error) / norm(expected.values) if finite.all() else float("inf")
    inexact = 0 if expected.exact is None else int(np.count_nonzero(expected.exact & (error != 0.0)))
    close = 1.0 - relative / expected.predictor_error if np.isfinite(relative) else 0.0
    return Comparison(
        expected=expected,
        found=found,
        missing=numbers.unwritten(data, expected.tensor, case.axes),
        error=error,
        relative_error=relative,
        tile_errors=tile_norms(error),
        inexact=inexact,
        closeness=round(CLOSENESS_STEPS * min(1.0, max(0.0, close))) / CLOSENESS_STEPS,
        ptxbench_ok=ptxbench_accepts(found, expected.ideal),
    )


def ptxbench_accepts(found: Doubles, vendor: Doubles) -> bool:
    """Return whether PTXBench accepts: no element is off by more than 1e-2 both absolutely and relatively.

    Source: PTXBench at commit 491860b, `packages/fibserve/flashinfer_bench/bench/utils.py`; `vendor` is the result of a
    library that accumulates in FP32 and rounds once.
    """
    if not np.isfinite(found).all():
        return False
    off = np.abs(found - vendor)
    return not bool(np.any((off > PTXBENCH_ATOL) & (off / (np.abs(vendor) + 1e-8) > PTXBENCH_RTOL)))


def _ratio(error: NDArray[np.float64] | np.float64, budget: NDArray[np.float64] | np.float64) -> Doubles:
    """Return error ÷ budget, 0 where both are 0."""
    errors, budgets = np.atleast_1d(np.asarray(error)), np.atleast_1d(np.asarray(budget))
    with np.errstate(divide="ignore", invalid="ignore"):
        ratio = errors / budgets
    return np.where(errors == 0.0, 0.0, ratio)
