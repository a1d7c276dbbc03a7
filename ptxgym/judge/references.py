"""What each output of a case should be, and how far from it a right kernel may be: references and error budgets.

The budget is `FACTOR` × the error of FP32 accumulation with one rounding to nearest, plus the task's own bound on what
FP32 accumulation may lose, in any order, by truncating accumulators too. A task whose algorithms also round between
their steps says by how much that moves each element (`rounding`): such errors are independent from row to row, so a
tile allows for all of them, the whole only for as much as few rows that outweigh the others leave to chance.

Everything is computed where its arrays lie: on numpy for emulated runs, on cupy beside a GPU. What stays is kept small:
per output element 8 bytes of reference, 4 of accumulation bound and the ideal result in the output's own type, so
0.9 GiB for a GEMM case of 8192×7168×5120 with its inputs; computing it takes 3 GB for a moment. The cache holds the
cases of an epoch and drops the oldest beyond `cache_bytes`; `release` empties it.

Such a case costs, on an H200 and 16 cores (`benchmarks/judge.py`), once: 120 ms to draw, 30 ms to copy and 80 ms for
reference and budgets.
"""

from __future__ import annotations

import math
import os
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from ptxgym.device.protocol import Bytes
from ptxgym.errors import UsageError
from ptxgym.judge import conditions, numbers, tiles
from ptxgym.judge.conditions import Case
from ptxgym.judge.tiles import Doubles, tile_sums
from ptxgym.task import Axes, Task, Tensor

FACTOR = 1.5
TILE_FACTOR = 2.0
"""Tiles vary: a correct tile of 4096 elements stays within a few per cent of the whole, smaller edge tiles do not."""
HOST_CACHE_BYTES = 1 << 30
GPU_CACHE_SHARE = 1 / 7
"""Of the GPU's memory: 19 GiB of an H200, 11 GiB of an 80 GB H100. An epoch of `attn_bwd` takes up to 18 GiB."""

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


def norm(values: Array) -> float:
    """Return the Frobenius norm, without BLAS: its threads cost more than the sum on a busy machine."""
    return math.sqrt(float(numbers.namespace(values).square(values, dtype=np.float64).sum()))


def tile_norms(values: Array) -> Array:
    """Return the Frobenius norm of every 64×64 tile of the last two axes (the last alone for vectors)."""
    xp = numbers.namespace(values)
    return xp.sqrt(tile_sums(xp.square(values, dtype=np.float64)))


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
