"""Inputs that were read otherwise than they lie in memory: what the operator makes of what such a kernel sees."""

from __future__ import annotations

import functools
from collections.abc import Callable, Hashable, Iterator, Mapping
from typing import Any, NamedTuple, cast

import numpy as np
from numpy.typing import NDArray

from ptxgym.judge.correctness import Comparison
from ptxgym.judge.numbers import bf16_bits, on_host
from ptxgym.judge.references import Expected, norm
from ptxgym.task import Tensor
from ptxgym.task_modules import ReferenceModule

MOST_ELEMENTS = 1 << 20
"""Of all inputs: references of larger cases cost more than their explanation is worth."""
FIT = 0.05
"""A misreading fits if it leaves at most this share of the error (norms)."""

Values = Mapping[str, NDArray[np.float32]]
Change = Callable[[NDArray[np.float32]], NDArray[np.float32]]


class _Reading(NamedTuple):
    text: str
    outputs: Mapping[str, NDArray[np.float64]]


def misread(comparison: Comparison, expected: Expected, module: ReferenceModule) -> Iterator[str]:
    """Yield the misreading of the inputs that gives the wrong output, if one does."""
    held = sum(int(data.nbytes) for data in expected.inputs.values())
    if not expected.inputs or held > 2 * MOST_ELEMENTS:
        return
    found, name = on_host(comparison.found), comparison.expected.tensor.name
    error = norm(found - on_host(comparison.expected.values))
    for reading in _readings(expected, cast(Hashable, module)):
        if norm(found - reading.outputs[name]) < FIT * error:
            yield reading.text
            return


@functools.lru_cache(maxsize=1)
def _readings(expected: Expected, module: Any) -> tuple[_Reading, ...]:
    """Return what the operator gives for every misreading; kept for the other outputs of the same case."""
    inputs = {name: on_host(values) for name, values in expected.values.items()}
    found = []
    with np.errstate(all="ignore"):  # misread numbers may be huge
        for text, changed in _misreadings(inputs, {tensor.name: tensor for tensor in expected.tensors}):
            outputs = module.reference(np, {**inputs, **changed}, expected.case.axes)
            found.append(_Reading(text, outputs))
    return tuple(found)


def _misreadings(inputs: Values, tensors: Mapping[str, Tensor]) -> Iterator[tuple[str, Values]]:
    matrices = {name: tensors[name] for name, x in inputs.items() if x.ndim >= 2 and tensors[name].dtype == "bf16"}
    for name, tensor in matrices.items():
        rows, columns = tensor.shape[-2:]
        yield (
            f"{name} is read as [{columns}, {rows}], but it lies in memory as [{rows}, {columns}]: exchange the "
            f"strides of {rows} and {columns}",
            {name: _seen(inputs[name], tensor, exchanged)},
        )
    strides = "read with rows half as far apart as they are: strides count bytes"
    wrong_type = "read as FP16, but {hold} BF16: the matrix instruction's types must be those of the data"
    for change, how in ((half_strides, strides), (as_fp16, wrong_type)):
        changed = {name: _seen(inputs[name], tensor, change) for name, tensor in matrices.items()}
        yield from _each_and_all(changed, how)


def _seen(x: NDArray[np.float32], tensor: Tensor, change: Change) -> NDArray[np.float32]:
    """Change `x` as it lies in memory, which a variant's layout decides; its axes are in the logical order."""
    return change(x.transpose(tensor.to_stored)).transpose(tensor.to_logical)


def _each_and_all(changed: Values, how: str) -> Iterator[tuple[str, Values]]:
    groups = [(name,) for name in changed]
    for group in [tuple(changed), *groups] if len(groups) > 1 else groups:
        verb, hold = ("is", "it holds") if len(group) == 1 else ("are", "they hold")
        yield f"{', '.join(group)} {verb} {how.format(hold=hold)}", {name: changed[name] for name in group}


def exchanged(x: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return what is seen where the last two axes are taken for each other."""
    *outer, rows, columns = x.shape
    return np.ascontiguousarray(x).reshape(*outer, columns, rows).swapaxes(-1, -2)


def half_strides(x: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return what is seen of BF16 rows whose distance in elements is taken for one in bytes."""
    columns = x.shape[-1]
    flat = np.ascontiguousarray(x).reshape(-1)
    starts = np.arange(flat.size // columns) * (columns // 2)
    seen: NDArray[np.float32] = flat[starts[:, None] + np.arange(columns)].reshape(x.shape)
    return seen


def as_fp16(x: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return what is seen of BF16 whose bits are taken for FP16."""
    seen: NDArray[np.float32] = bf16_bits(np.ascontiguousarray(x)).view(np.float16).astype(np.float32)
    return seen
