"""Are the numbers right? An error budget per output, set from what an ideal BF16 algorithm loses on the same draw.

Two bounds must hold: the relative Frobenius error of the whole output, and the error of its worst 64×64 tile, so that
neither a small systematic error nor a single wrong tile hides in a large output. No element alone decides: results near
zero carry the error of their terms, and a bound relative to the element would refuse correct kernels
(HazyResearch/HipKittens#64).

The budget is `FACTOR` × the error of FP32 accumulation with one rounding to nearest, plus the task's own bound on what
FP32 accumulation may lose, in any order, by truncating accumulators too. A task whose algorithms also round between
their steps says by how much that moves each element (`rounding`): such errors are independent from row to row, so a
tile allows for all of them, the whole only for as much as few rows that outweigh the others leave to chance.

A correct GEMM lies at 0.66 of its budget on
every draw (60 secrets: 0.661 to 0.667); rounding toward zero at 1.3, a gain error of 0.3 % at 1.2 to 1.7, of 1 % at 4,
sums kept in BF16 between steps of 16 at 2.5. Two BF16 partial sums (error × √2) stay just inside on real numbers. On
small integers every sum is exact in FP32, so each result that BF16 can hold must be exact: there they fail.

Everything runs where its arrays lie: on numpy for emulated runs, on cupy beside a GPU. What stays is kept small: per
output element 8 bytes of reference, 4 of accumulation bound and the ideal result in the output's own type, so 0.9 GiB
for a GEMM case of 8192×7168×5120 with its inputs; computing it takes 3 GB for a moment, explaining a wrong output as
much. The cache holds the cases of an epoch and drops the oldest beyond `cache_bytes`; `release` empties it.

Such a case costs, on an H200 and 16 cores (`benchmarks/judge.py`): once 120 ms to draw, 30 ms to copy and 80 ms for
reference and budgets; for each call 1 ms to compare and 0.3 ms for its inputs; 6 to 70 ms to explain a wrong output.
"""

from __future__ import annotations

import functools
import math
import os
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ptxgym.device.protocol import Bytes
from ptxgym.errors import UsageError
from ptxgym.judge import conditions, numbers, tiles
from ptxgym.judge.conditions import Case
from ptxgym.judge.tiles import TILE, Doubles, TileSums, tile_sums
from ptxgym.task import Axes, Task, Tensor

FACTOR = 1.5
TILE_FACTOR = 2.0
"""Tiles vary: a correct tile of 4096 elements stays within a few per cent of the whole, smaller edge tiles do not."""
CLOSENESS_STEPS = 4
HOST_CACHE_BYTES = 1 << 30
GPU_CACHE_SHARE = 1 / 8
"""Of the GPU's memory: 17 GiB of an H200, 10 GiB of an 80 GB H100."""

Array = Any
"""An array of numpy or cupy."""


@dataclass(frozen=True, eq=False)
class ExpectedOutput:
    """The reference of one output on one case, with the budgets that follow from it."""

    tensor: Tensor
    axes: Axes
    values: Array
    """Float64."""
    ideal_data: Array
    """What an ideal BF16 algorithm writes, as device bytes."""
    accumulation: Array
    """Float32."""
    must_be_exact: bool
    """Whether results that the output's type can hold must be exact: on draws of small integers."""
    scale: float
    """Frobenius norm of the reference."""
    lost: float
    """Frobenius norm of the ideal result's error."""
    relative_budget: float
    tile_budgets: Doubles
    """Absolute, per tile; on the host."""
    predictor_error: float
    """Relative error of the best trivial predictor."""
    predictor: str

    @property
    def ideal(self) -> Array:
        """What an ideal BF16 algorithm writes, in float64."""
        return numbers.decode(self.ideal_data, self.tensor, self.axes).astype(np.float64)

    @property
    def exact(self) -> Array | None:
        """Where the result must be exact; None on draws of real numbers."""
        words = numbers.POISON[self.tensor.dtype].nbytes
        return tiles.holds_exactly(self.values, words) if self.must_be_exact else None

    @property
    def nbytes(self) -> int:
        """Bytes that the reference keeps."""
        return int(self.values.nbytes + self.ideal_data.nbytes + self.accumulation.nbytes)


@dataclass(frozen=True, eq=False)
class Expected:
    """Inputs and references of one case, computed once per epoch."""

    case: Case
    tensors: tuple[Tensor, ...]
    inputs: Mapping[str, Bytes]
    """As device bytes, by numpy or cupy."""
    outputs: Mapping[str, ExpectedOutput]

    @property
    def values(self) -> Mapping[str, numbers.Floats]:
        """The inputs as float32, decoded anew; those that a variant does without are zeros."""
        return numbers.values(self.tensors, self.inputs, self.case.axes)

    @property
    def nbytes(self) -> int:
        """Bytes that inputs and references keep."""
        return sum(int(data.nbytes) for data in self.inputs.values()) + sum(o.nbytes for o in self.outputs.values())


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


def norm(values: Array) -> float:
    """Return the Frobenius norm, without BLAS: its threads cost more than the sum on a busy machine."""
    return math.sqrt(float(numbers.namespace(values).square(values, dtype=np.float64).sum()))


def tile_norms(values: Array) -> Array:
    """Return the Frobenius norm of every 64×64 tile of the last two axes (the last alone for vectors)."""
    xp = numbers.namespace(values)
    return xp.sqrt(tile_sums(xp.square(values, dtype=np.float64)))


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


class _Cache:
    """Expected cases by what they depend on; the oldest go where they exceed the bound of their device."""

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self._known: dict[tuple[str, int, Case, str], Expected] = {}

    def expect(self, task: Task, case: Case, xp: Any) -> Expected:
        key = (f"{task.folder}:{task.label}", task.revision, case, xp.__name__)
        with self.lock:
            known = self._known.pop(key, None) or compute(task, case, conditions.inputs(task, case, xp), xp)
            self._known[key] = known
            own = [other for other in self._known if other[-1] == xp.__name__]
            total, bound = sum(self._known[other].nbytes for other in own), cache_bytes(xp)
            for oldest in own[:-1]:
                if total <= bound:
                    break
                total -= self._known.pop(oldest).nbytes
            return known

    def release(self, xp: Any) -> None:
        with self.lock:
            self._known = {key: known for key, known in self._known.items() if key[-1] != xp.__name__}

    def unlocked(self) -> None:
        """Forget, in a forked child, that another thread of the parent was computing."""
        self.lock = threading.RLock()


_CACHE = _Cache()
os.register_at_fork(after_in_child=_CACHE.unlocked)


def cache_bytes(xp: Any = np) -> int:
    """Return how many bytes of expected cases are kept on a device: numpy's or cupy's current one."""
    if xp is np:
        return HOST_CACHE_BYTES
    return int(GPU_CACHE_SHARE * xp.cuda.Device().mem_info[1])


def expect(task: Task, case: Case, xp: Any = np) -> Expected:
    """Return inputs, references and budgets of `case` as arrays of `xp`, from the cache where they are known.

    Raises:
        UsageError: if cupy is set to compute float32 products in TF32.
    """
    return _CACHE.expect(task, case, xp)


def release(xp: Any = np) -> None:
    """Drop what is cached on the device of `xp`, and give its memory back."""
    _CACHE.release(xp)
    free(xp)


def compute(task: Task, case: Case, drawn: Mapping[str, Bytes], xp: Any = np) -> Expected:
    """Return references and budgets for the inputs `drawn`, whatever `case.draw` says about how they came about.

    Raises:
        UsageError: if cupy is set to compute float32 products in TF32.
    """
    if xp is not np and os.environ.get("CUPY_TF32", "0") != "0":
        raise UsageError("CUPY_TF32 is set, but references need full float32 products; unset it and start again")
    inputs = {name: xp.asarray(data) for name, data in drawn.items()}
    module = task.reference()
    tensors = (*task.inputs, *task.unused)
    values = numbers.values(tensors, inputs, case.axes)
    reference = {
        name: array.astype(xp.float64, copy=False) for name, array in module.reference(xp, values, case.axes).items()
    }
    ideal = module.ideal(xp, values, case.axes, numbers.round_bf16)
    accumulation = module.accumulation(xp, values, case.axes)
    rounding = module.rounding(xp, values, case.axes) if hasattr(module, "rounding") else {}
    predictors = module.predictors(xp, values, case.axes, reference)
    outputs = {}
    for tensor in task.outputs:
        name = tensor.name
        guesses = {label: guess[name] for label, guess in predictors.items()}
        errors = ideal.pop(name), accumulation.pop(name), rounding.pop(name, None)
        outputs[name] = _budget(tensor, case, reference[name], *errors, guesses)
    del values, predictors, guesses, errors
    free(xp)
    return Expected(case, tensors, inputs, outputs)


def free(xp: Any) -> None:
    """Give back memory that cupy keeps for later arrays: other processes on the GPU need it."""
    if xp is not np:
        xp.get_default_memory_pool().free_all_blocks()


def _budget(
    tensor: Tensor,
    case: Case,
    reference: Array,
    ideal: Array,
    accumulation: Array,
    rounding: Array | None,
    guesses: Mapping[str, Array],
) -> ExpectedOutput:
    scale = norm(reference)
    loss = tile_sums(numbers.namespace(reference).square(ideal - reference))
    lost = math.sqrt(float(loss.sum()))
    errors = {label: norm(guess - reference) / scale for label, guess in guesses.items()}
    best = min(errors, key=errors.__getitem__)
    tile_budgets = TILE_FACTOR * loss**0.5 + tile_norms(accumulation)
    chance = 0.0
    if rounding is not None:
        tile_budgets += tile_norms(rounding)
        chance = _chance(rounding)
    return ExpectedOutput(
        tensor=tensor,
        axes=case.axes,
        values=reference,
        ideal_data=numbers.store(ideal, tensor),
        accumulation=accumulation.astype(np.float32),
        must_be_exact=case.draw == "integers",
        scale=scale,
        lost=lost,
        relative_budget=(FACTOR * lost + norm(accumulation) + chance) / scale,
        tile_budgets=numbers.on_host(tile_budgets),
        predictor_error=errors[best],
        predictor=best,
    )


def _chance(rounding: Array) -> float:
    """Return by how much the norm of errors up to `rounding` varies, which are independent from row to row.

    The variance of a sum of squares is about the sum of fourth powers: this is the norm of `rounding` where one row
    holds everything, and 1/√n of it where n rows are alike.
    """
    squares = numbers.namespace(rounding).square(rounding, dtype=np.float64).sum(axis=-1)
    total = float(squares.sum())
    return math.sqrt(float((squares / total * squares).sum())) if total else 0.0


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
