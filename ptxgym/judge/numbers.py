"""BF16 in numpy, which has no such type: bits as uint16, values as float32."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from ptxgym.task import DType, Tensor

Floats = NDArray[np.float32]
Bits = NDArray[np.uint16]

# Quiet NaNs with payloads that no arithmetic instruction produces (those give 0x7fff in BF16 and 0x7fffffff in FP32).
POISON: dict[DType, Any] = {"bf16": np.uint16(0x7FDB), "fp32": np.uint32(0x7FDBABED)}


def bf16_bits(values: Floats) -> Bits:
    """Round float32 to BF16, to nearest, ties to even; NaN stays NaN, overflow becomes infinity.

    Returns:
        The upper halves of the rounded floats, in the shape of `values`.
    """
    bits = np.ascontiguousarray(values, dtype=np.float32).view(np.uint32)
    rounded = ((bits.astype(np.uint64) + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)
    return np.where(np.isnan(values), np.uint16(0x7FFF), rounded)


def bf16_values(bits: Bits) -> Floats:
    """Return BF16 bits as float32 values, exactly."""
    return (bits.astype(np.uint32) << 16).view(np.float32)


def round_bf16(values: Floats) -> Floats:
    """Return the float32 values rounded to BF16's grid."""
    return bf16_values(bf16_bits(np.asarray(values, dtype=np.float32)))


def encode(values: Floats, dtype: DType) -> NDArray[np.uint8]:
    """Return the device bytes of `values`."""
    words = bf16_bits(values) if dtype == "bf16" else np.ascontiguousarray(values, dtype=np.float32)
    return words.reshape(-1).view(np.uint8)


def decode(data: NDArray[np.uint8], tensor: Tensor, axes: dict[str, int]) -> Floats:
    """Return device bytes as float32 values in the tensor's shape.

    Raises:
        ValueError: if the size does not match.
    """
    expected = tensor.size_bytes(axes)
    if data.nbytes != expected:
        raise ValueError(f"buffer {tensor.name} holds {data.nbytes} bytes, its shape needs {expected}")
    flat = np.ascontiguousarray(data).reshape(-1).view(np.uint8)
    words = bf16_values(flat.view(np.uint16)) if tensor.dtype == "bf16" else flat.view(np.float32)
    return words.reshape(tensor.sizes(axes))


def poisoned(tensor: Tensor, axes: dict[str, int]) -> NDArray[np.uint8]:
    """Return the bytes of an output that nobody has written yet."""
    word = POISON[tensor.dtype]
    count = tensor.size_bytes(axes) // word.nbytes
    return np.full(count, word, dtype=word.dtype).view(np.uint8)


def unwritten(data: NDArray[np.uint8], tensor: Tensor, axes: dict[str, int]) -> NDArray[np.bool_]:
    """Return, in the tensor's shape, which elements still hold the poison."""
    word = POISON[tensor.dtype]
    flat = np.ascontiguousarray(data).reshape(-1).view(np.uint8).view(word.dtype)
    mask: NDArray[np.bool_] = np.equal(flat, word).reshape(tensor.sizes(axes))
    return mask
