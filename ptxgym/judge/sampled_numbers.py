"""What elements that a few CTAs wrote should be: computed for their rows and columns alone, on the repeated inputs."""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from ptxgym.device.protocol import Bytes
from ptxgym.device.sampling import Written
from ptxgym.judge import numbers
from ptxgym.task import ITEM_BYTES, Axes, Task, Tensor


def elements(tensor: Tensor, axes: Axes, written: Written) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
    """Return logical indices [count, rank] and values of the elements that were written."""
    item = ITEM_BYTES[tensor.dtype]
    flat = np.unique(written.offsets // item)
    whole = np.searchsorted(written.offsets, flat * item)
    values = _values(written.data[np.minimum(whole[:, None] + np.arange(item), written.data.size - 1)], tensor)
    stored = np.stack(np.unravel_index(flat, tensor.sizes(axes)), axis=1)
    return stored[:, list(tensor.to_logical)].astype(np.int64), values


_MOST = 256


def region_of(task: Task, tensor: Tensor, indices: NDArray[np.int64]) -> dict[str, NDArray[np.int64]]:
    """Return which places along the independent axes are checked: of those that were written, up to `_MOST` each.

    Where an operator couples what lies along other axes (attention), one head is work enough.
    """
    names = tensor.logical or tensor.shape
    most = _MOST if set(task.independent) >= set(names) else 1
    chosen: dict[str, NDArray[np.int64]] = {}
    kept = np.ones(len(indices), bool)
    for axis in task.independent:
        if axis in names:
            column = indices[:, names.index(axis)]
            chosen[axis] = np.unique(column[kept])[:most]
            kept &= np.isin(column, chosen[axis])
    return chosen


def expected_in(
    reference: Reference,
    tensor: Tensor,
    indices: NDArray[np.int64],
    region: Mapping[str, NDArray[np.int64]],
) -> tuple[NDArray[np.bool_], NDArray[np.float64]]:
    """Return which elements lie in the region, and their references."""
    names = tensor.logical or tensor.shape
    inside = np.ones(len(indices), bool)
    local = []
    for at, axis in enumerate(names):
        column = indices[:, at]
        if axis in region:
            inside &= np.isin(column, region[axis])
            local.append(np.searchsorted(region[axis], column))
        else:
            local.append(column)
    return inside, reference.of(region)[tensor.name][tuple(column[inside] for column in local)]


class Reference:
    """References at some places along the independent axes; the last ones are kept, since outputs often share them."""

    def __init__(self, task: Task, axes: Axes, periods: Mapping[str, Bytes]) -> None:
        self._task, self._axes = task, axes
        self._periods = {tensor.name: _values(periods[tensor.name], tensor) for tensor in task.inputs}
        self._region: Mapping[str, NDArray[np.int64]] | None = None
        self._last: dict[str, NDArray[np.float64]] = {}

    def of(self, region: Mapping[str, NDArray[np.int64]]) -> dict[str, NDArray[np.float64]]:
        """Return the references of all outputs in `region`."""
        if self._region is None or not _same(self._region, region):
            smaller = {axis: len(region.get(axis, range(size))) for axis, size in self._axes.items()}
            self._last = self._task.reference().reference(np, self._inputs(region, smaller), smaller)
            self._region = region
        return self._last

    def _inputs(self, region: Mapping[str, NDArray[np.int64]], smaller: Axes) -> dict[str, NDArray[np.float32]]:
        values: dict[str, NDArray[np.float32]] = {}
        for tensor in self._task.inputs:
            period = self._periods[tensor.name]
            places = [region.get(axis, np.arange(self._axes[axis])) for axis in tensor.shape]
            flat = np.ravel_multi_index(np.ix_(*places), tensor.sizes(self._axes))
            values[tensor.name] = period[flat % period.size].transpose(tensor.to_logical)
        for tensor in self._task.unused:
            sizes = [smaller[axis] for axis in tensor.logical or tensor.shape]
            values[tensor.name] = np.broadcast_to(np.zeros(1, np.float32), sizes)
        return values


def _same(one: Mapping[str, NDArray[np.int64]], other: Mapping[str, NDArray[np.int64]]) -> bool:
    return one.keys() == other.keys() and all(np.array_equal(one[axis], other[axis]) for axis in one)


def _values(data: Bytes, tensor: Tensor) -> NDArray[np.float32]:
    """Return elements of a tensor's type as float32, one after the other."""
    words = np.ascontiguousarray(data).reshape(-1).view(numbers.POISON[tensor.dtype].dtype)
    return numbers.bf16_values(words) if tensor.dtype == "bf16" else words.view(np.float32)


def relative_error(found: NDArray[np.float32], expected: NDArray[np.float64]) -> float:
    """Return the relative Frobenius error; infinite where a number is not finite."""
    if not np.isfinite(found).all():
        return float("inf")
    norm = math.sqrt(float(np.square(expected).sum()))
    return math.sqrt(float(np.square(found - expected).sum())) / (norm or 1.0)
