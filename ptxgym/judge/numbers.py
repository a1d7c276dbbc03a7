"""BF16 in numpy and cupy, which have no such type: bits as uint16, values as float32."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ptxgym.task import DType, Tensor

Floats = NDArray[np.float32]
Bits = NDArray[np.uint16]

# Quiet NaNs with payloads that no arithmetic instruction produces (those give 0x7fff in BF16 and 0x7fffffff in FP32).
POISON: dict[DType, Any] = {"bf16": np.uint16(0x7FDB), "fp32": np.uint32(0x7FDBABED)}


def namespace(array: Any) -> Any:
    """Return the module, numpy or cupy, whose array this is; cupy is never imported for it."""
    return np if isinstance(array, np.ndarray | np.generic) else sys.modules[type(array).__module__.partition(".")[0]]


def on_host(array: Any) -> Any:
    """Return a numpy or cupy array as a numpy array, copied where it lies on a GPU."""
    return array if isinstance(array, np.ndarray | np.generic) else array.get()


def bf16_bits(values: Floats) -> Bits:
    """Round float32 to BF16, to nearest, ties to even; NaN stays NaN, overflow becomes infinity.

    Returns:
        The upper halves of the rounded floats, in the shape of `values`.
    """
    xp = namespace(values)
    bits = xp.ascontiguousarray(values, dtype=xp.float32).view(xp.uint32)
    rounded = bits >> 16
    rounded &= 1
    rounded += 0x7FFF
    rounded += bits  # wraps around for NaNs alone, which are replaced below
    rounded >>= 16
    words = rounded.astype(xp.uint16)
    words[xp.isnan(values)] = 0x7FFF
    result: Bits = words
    return result


def bf16_values(bits: Bits) -> Floats:
    """Return BF16 bits as float32 values, exactly."""
    xp = namespace(bits)
    words = bits.astype(xp.uint32)
    words <<= 16
    values: Floats = words.view(xp.float32)
    return values


def round_bf16(values: Floats) -> Floats:
    """Return the float32 values rounded to BF16's grid."""
    xp = namespace(values)
    return bf16_values(bf16_bits(xp.asarray(values, dtype=xp.float32)))


def encode(values: Floats, dtype: DType) -> NDArray[np.uint8]:
    """Return the device bytes of `values`."""
    xp = namespace(values)
    words = bf16_bits(values) if dtype == "bf16" else xp.ascontiguousarray(values, dtype=xp.float32)
    data: NDArray[np.uint8] = words.reshape(-1).view(xp.uint8)
    return data


def store(values: Floats, tensor: Tensor) -> NDArray[np.uint8]:
    """Return the device bytes of a tensor whose values are given in its logical order of axes."""
    return encode(values.transpose(tensor.to_stored), tensor.dtype)


def decode(data: NDArray[np.uint8], tensor: Tensor, axes: dict[str, int]) -> Floats:
    """Return device bytes as float32 values in the tensor's logical order of axes.

    Raises:
        ValueError: if the size does not match.
    """
    words = as_words(data, tensor, axes)
    return bf16_values(words) if tensor.dtype == "bf16" else words.view(np.float32)


def values(tensors: Iterable[Tensor], data: Mapping[str, NDArray[np.uint8]], axes: dict[str, int]) -> dict[str, Floats]:
    """Return tensors as float32 values in their logical order of axes; zeros where `data` has none."""
    xp = namespace(next(iter(data.values())))
    found: dict[str, Floats] = {}
    for tensor in tensors:
        if tensor.name in data:
            found[tensor.name] = decode(data[tensor.name], tensor, axes)
        else:
            sizes = tuple(tensor.sizes(axes)[axis] for axis in tensor.to_logical)
            found[tensor.name] = xp.broadcast_to(xp.zeros(1, xp.float32), sizes)
    return found


def as_words(data: NDArray[np.uint8], tensor: Tensor, axes: dict[str, int]) -> NDArray[Any]:
    """Return device bytes as unsigned words of the element's size, in the tensor's logical order of axes.

    Nothing is copied where that is how the tensor lies in memory.

    Raises:
        ValueError: if the size does not match.
    """
    expected = tensor.size_bytes(axes)
    if data.nbytes != expected:
        raise ValueError(f"buffer {tensor.name} holds {data.nbytes} bytes, its shape needs {expected}")
    xp = namespace(data)
    stored = xp.ascontiguousarray(data).reshape(-1).view(POISON[tensor.dtype].dtype).reshape(tensor.sizes(axes))
    words: NDArray[Any] = xp.ascontiguousarray(stored.transpose(tensor.to_logical))
    return words


def poisoned(tensor: Tensor, axes: dict[str, int]) -> NDArray[np.uint8]:
    """Return the bytes of an output that nobody has written yet."""
    word = POISON[tensor.dtype]
    count = tensor.size_bytes(axes) // word.nbytes
    return np.full(count, word, dtype=word.dtype).view(np.uint8)


def unwritten(data: NDArray[np.uint8], tensor: Tensor, axes: dict[str, int]) -> NDArray[np.bool_]:
    """Return, in the tensor's logical order of axes, which elements still hold the poison."""
    mask: NDArray[np.bool_] = as_words(data, tensor, axes) == POISON[tensor.dtype]
    return mask
