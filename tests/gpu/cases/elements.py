"""wgmma with elements of 8 and 19 bits: every pair of types, A in registers, every result, and how sums are rounded."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from tests.gpu.cases.model import Case
from tests.gpu.cases.shapes import with_kernel
from tests.gpu.cases.values import random_bytes, spread_words
from tests.gpu.cases.wgmma import B_START, IMAGE, dense, wgmma

EIGHT_BITS = {"e4m3": (4, 3), "e5m2": (5, 2)}
"""Bits of the exponent and of the mantissa."""
PAIRS = [("e4m3", "e4m3"), ("e4m3", "e5m2"), ("e5m2", "e4m3"), ("e5m2", "e5m2"), ("tf32", "tf32")]
SPREADS = ("exact", "normal", "wide", "bits")
INTEGER_PAIRS = [(a, b) for a in ("s8", "u8") for b in ("s8", "u8")]
INTEGER_WIDTHS = (8, 16, 24, *range(32, 257, 16))
"""PTX ISA 9.7.15.5.2."""
ENDS = np.array([0, 1000, -1000, 2**31 - 5, -(2**31) + 5], np.int64)


def element_bytes(spread: str, kind: str, count: int, seed: int) -> NDArray[np.uint8]:
    """Elements: sums of which are exact; near one; over all numbers that are finite; any bits."""
    rng = np.random.default_rng(seed)
    if kind == "tf32":
        if spread == "exact":
            return rng.integers(-8, 9, count // 4).astype(np.float32).view(np.uint8)
        return spread_words(spread, "tf32", (count // 4,), seed).view(np.uint8)
    exponent_bits, mantissa_bits = EIGHT_BITS[kind]
    if spread == "bits":
        return rng.integers(0, 256, count, dtype=np.uint8)
    sign, mantissa = rng.integers(0, 2, count), rng.integers(0, 2**mantissa_bits, count)
    middle = 2 ** (exponent_bits - 1) - 1
    if spread == "exact":
        exponent = rng.integers(middle, middle + 2, count)
    elif spread == "normal":
        exponent = middle - rng.geometric(0.5, count).clip(max=middle) + 1
    else:
        exponent = rng.integers(0, 2**exponent_bits - 1, count)
    return (sign << 7 | exponent << mantissa_bits | mantissa).astype(np.uint8)


def element_cases() -> Iterator[Case]:
    """K-major operands with a swizzle of 128 bytes, one step of 32 bytes of K."""
    for a, b in PAIRS:
        k = 8 if a == "tf32" else 32
        for spread in SPREADS:
            for result in ("f32",) if a == "tf32" else ("f32", "f16"):
                yield one(f"m64n8k{k}.{result}.{a}.{b}", spread, in_registers=False)
            yield one(f"m64n16k{k}.f32.{a}.{b}", spread, in_registers=True)
    for form in ("m64n64k32.f32.e4m3.e4m3", "m64n256k32.f16.e5m2.e4m3", "m64n64k8.f32.tf32.tf32"):
        yield one(form, "exact", in_registers=False)
    yield from integer_cases()


def integer_cases() -> Iterator[Case]:
    """Any bytes, and accumulators of which many overflow: every pair of types, then every width."""
    for a, b in INTEGER_PAIRS:
        for limit in ("", ".satfinite"):
            for in_registers in (False, True):
                yield whole(f"m64n8k32{limit}.s32.{a}.{b}", in_registers=in_registers)
    for width in INTEGER_WIDTHS[1:]:
        yield whole(f"m64n{width}k32.s32.s8.u8")
    for width in (48, 128, 256):
        yield whole(f"m64n{width}k32.satfinite.s32.u8.s8", in_registers=True)
    yield whole("m64n24k32.satfinite.s32.s8.s8", scale_d=0)


def whole(form: str, *, in_registers: bool = False, scale_d: int = 1) -> Case:
    """One product of bytes; three rows of A and of B hold the ends of both types."""
    registers, seed = int(form[4:].partition("k")[0]) // 2, sum(form.encode())
    image = np.frombuffer(random_bytes(IMAGE, seed), np.uint8).copy()
    for start in (0, B_START):
        for row, byte in enumerate((0x80, 0xFF, 0x7F)):
            image[start + 128 * row :][:128] = byte
    name = f"wgmma/integers/{form}{'/registers' if in_registers else ''}{'' if scale_d else '/scale_d'}"
    kernel = f"wgmma_{form.replace('.', '_')}{'_reg' if in_registers else ''}"
    operands = (0 if in_registers else dense(0, "128B", False)), dense(B_START, "128B", False)
    case = wgmma(name, kernel, *operands, registers=registers, image=image.tobytes(), scale_d=scale_d)
    rng = np.random.default_rng(seed + 1)
    start_values = rng.choice(ENDS, (128, registers)).astype(np.int32)
    start_values[::2] = rng.integers(-(2**31), 2**31, (64, registers))
    fragments = random_bytes(128 * 16, seed + 2) if in_registers else b""
    return with_kernel(
        replace(case, input=image.tobytes() + start_values.tobytes() + fragments),
        form,
        registers,
        in_registers=in_registers,
    )


def one(form: str, spread: str, *, in_registers: bool) -> Case:
    shape, result, kind_a, kind_b = form.split(".")
    n, half = int(shape[4:].partition("k")[0]), result == "f16"
    registers, seed = n // 4 if half else n // 2, sum(form.encode()) + len(spread)
    image = np.concatenate(
        [
            element_bytes(spread, kind_a, B_START, seed),
            element_bytes(spread, kind_b, IMAGE - B_START, seed + 1),
        ]
    )
    name = f"wgmma/elements/{form}/{spread}{'/registers' if in_registers else ''}"
    kernel = f"wgmma_{form.replace('.', '_')}{'_reg' if in_registers else ''}"
    operands = (0 if in_registers else dense(0, "128B", False)), dense(B_START, "128B", False)
    case = wgmma(name, kernel, *operands, registers=registers, half=half, image=image.tobytes(), probe=n < 64)
    if spread in ("exact", "normal"):
        accumulators = np.random.default_rng(seed + 2).integers(-64, 65, (128, registers * (2 if half else 1)))
        start = accumulators.astype(np.float16 if half else np.float32).tobytes()
    else:
        words = spread_words(spread, "f16" if half else "f32", (128, registers * (2 if half else 1)), seed + 2)
        start = words.astype(np.uint16 if half else np.uint32).tobytes()
    fragments = element_bytes(spread, kind_a, 128 * 16, seed + 3).tobytes() if in_registers else b""
    return with_kernel(
        replace(case, input=image.tobytes() + start + fragments), form, registers, in_registers=in_registers
    )
