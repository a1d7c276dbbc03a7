"""Inputs: bytes and bit patterns, each the same in every run."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray


def random_bytes(count: int, seed: int) -> bytes:
    return np.random.default_rng(seed).integers(0, 256, count, dtype=np.uint8).tobytes()


def bf16(values: NDArray[np.floating]) -> NDArray[np.uint16]:
    """The upper halves of float32 values that bf16 holds exactly."""
    bits = np.ascontiguousarray(values, np.float32).view(np.uint32)
    assert not np.any(bits & 0xFFFF)
    return (bits >> 16).astype(np.uint16)


def small_integers(count: int, seed: int, kind: str) -> bytes:
    """Whole numbers −8…8 as bf16 or f16: every sum of products is exact in any order."""
    values = np.random.default_rng(seed).integers(-8, 9, count).astype(np.float32)
    return (bf16(values) if kind == "bf16" else values.astype(np.float16).view(np.uint16)).tobytes()


def special_floats(count: int) -> bytes:
    """Words around what a conversion may change: ties of tf32, subnormals, infinities, NaNs, both signs."""
    words = [0, 1, 0x1FFF, 0x7FFFFF, 0x400000, 0x800000, 0x7F800000, 0x7F800001, 0x7FC00000, 0x7FFFFFFF, 0x7F7FFFFF]
    words += [0x7F7FE000, 0x7F7FF000]
    words += [0x3F800000 | low | odd << 13 for low in (0xFFF, 0x1000, 0x1001, 0x1FFF) for odd in (0, 1)]
    words += [low | odd << 13 for low in (0xFFF, 0x1000, 0x1001) for odd in (0, 1)]
    both = np.array(words + [w | 0x80000000 for w in words], np.uint32)
    rest = np.random.default_rng(9).integers(0, 2**32, count - len(both), dtype=np.uint32)
    return np.concatenate([both, rest]).tobytes()


SPREADS = ("normal", "wide", "low", "bits")


def spread_words(spread: str, kind: str, shape: tuple[int, ...], seed: int) -> NDArray[np.uint32]:
    """Bit patterns: exponents near one; over many binades; subnormals and what lies just above; any bits."""
    rng = np.random.default_rng(seed)
    exponent_bits, mantissa_bits = {"bf16": (8, 7), "f16": (5, 10), "tf32": (8, 23), "f32": (8, 23)}[kind]
    width = 1 + exponent_bits + mantissa_bits
    if spread == "bits":
        return rng.integers(0, 2**width, shape, dtype=np.uint64).astype(np.uint32)
    mantissa = rng.integers(0, 2**mantissa_bits, shape, dtype=np.uint64)
    middle, half_range = 2 ** (exponent_bits - 1) - 1, 20 if exponent_bits == 8 else 7
    if spread == "wide":
        exponent = rng.integers(middle - half_range, middle + half_range, shape)
    elif spread == "low":
        exponent = rng.integers(0, 12 if exponent_bits == 8 else 4, shape)
    else:
        exponent = middle - rng.geometric(0.5, shape) + 1
    sign = rng.integers(0, 2, shape)
    return (sign.astype(np.uint64) << (width - 1) | exponent.astype(np.uint64) << mantissa_bits | mantissa).astype(
        np.uint32
    )
