"""Numbers of four, six and eight bits, their conversions, and pairs of 16-bit integers."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from tests.device.emulator.core.harness import apply

FORMATS = {"e2m1": (2, 1), "e2m3": (2, 3), "e3m2": (3, 2)}


def values(kind: str) -> NDArray[np.float64]:
    """Value of every magnitude of a format without infinities and NaNs (PTX ISA 5.2.3)."""
    exponent, mantissa = FORMATS[kind]
    codes = np.arange(1 << (exponent + mantissa))
    field, fraction = codes >> mantissa, (codes & ((1 << mantissa) - 1)) / (1 << mantissa)
    bias = (1 << (exponent - 1)) - 1
    return np.where(field > 0, (1 + fraction) * 2.0 ** (field - bias), fraction * 2.0 ** (1 - bias))


def nearest(kind: str, x: NDArray[np.float32]) -> NDArray[np.int64]:
    """Codes by search: the nearest value, of two as near the even code, the largest beyond all."""
    table = values(kind)
    distance = abs(np.minimum(abs(x.astype(np.float64)), table[-1])[:, None] - table)
    best = distance.min(1, keepdims=True)
    candidates = distance == best
    even = candidates & (np.arange(table.size) % 2 == 0)
    code = np.where(even.any(1), even.argmax(1), candidates.argmax(1))
    code = np.where(np.isnan(x), table.size - 1, code)
    return code | np.where(np.signbit(x) & ~np.isnan(x), table.size, 0)


def samples(kind: str) -> NDArray[np.float32]:
    table = values(kind)
    middles = (table[1:] + table[:-1]) / 2
    some = np.concatenate([table, middles, middles * (1 + 1e-6), middles * (1 - 1e-6), [1e9, np.inf, np.nan, 1e-9, 0]])
    both = np.concatenate([some, -some]).astype(np.float32)
    return np.resize(both, -(-both.size // 32) * 32)


@pytest.mark.parametrize("kind", FORMATS)
@pytest.mark.parametrize("relu", ["", ".relu"])
def test_to_small_floats(kind: str, relu: str) -> None:
    a = samples(kind)
    b = np.roll(a, 7)
    shift = 4 if kind == "e2m1" else 8
    if kind == "e2m1":
        body = (
            f".reg .b8 %x, %z; cvt.rn.satfinite{relu}.e2m1x2.f32 %x, %a, %b; mov.b16 %z2, {{%x, %x}}; mov.b16 %d, %z2;"
        )
        body = body.replace(".reg .b8 %x, %z;", ".reg .b8 %x; .reg .b16 %z2;")
    else:
        body = f"cvt.rn.satfinite{relu}.{kind}x2.f32 %d, %a, %b;"
    got = apply(body, "u16", ("f32", "f32"), a, b)

    def code(x: NDArray[np.float32]) -> NDArray[np.int64]:
        return nearest(kind, np.where(np.signbit(x) & ~np.isnan(x), np.float32(0), x) if relu else x)

    want = code(a) << shift | code(b)
    np.testing.assert_array_equal(got, want * 0x101 if kind == "e2m1" else want)


@pytest.mark.parametrize("kind", FORMATS)
def test_from_small_floats(kind: str) -> None:
    size = values(kind).size * 2
    signed = np.concatenate([values(kind), -values(kind)]).astype(np.float16)
    high, low = np.meshgrid(np.arange(size), np.arange(size))
    codes = np.resize((high << (4 if kind == "e2m1" else 8) | low).reshape(-1), -(-size * size // 32) * 32)
    if kind == "e2m1":
        body = ".reg .b8 %x, %y; mov.b16 {%x, %y}, %a; cvt.rn.f16x2.e2m1x2 %d, %x;"
    else:
        body = f"cvt.rn.f16x2.{kind}x2 %d, %a;"
    got = apply(body, "u32", ("u16",), codes.astype(np.uint16))
    want = np.stack([signed[codes & (size - 1)], signed[codes >> (4 if kind == "e2m1" else 8)]], axis=1)
    np.testing.assert_array_equal(got, np.ascontiguousarray(want).view(np.uint32).reshape(-1))


@pytest.mark.parametrize("rounding", ["rz", "rp"])
@pytest.mark.parametrize("saturate", ["", ".satfinite"])
def test_scales(rounding: str, saturate: str) -> None:
    """ue8m0 holds a power of two: the one below, or the one above."""
    some = [1.0, 1.5, 2.0, 3.0, 0.75, 2.0**-126, 2.0**-127, 1.1 * 2.0**-127, 2.0**-140, 0.0, 1.5 * 2.0**127, 2.0**127]
    a = np.resize(np.array([*some, np.inf, np.nan, -6.0], np.float32), 32)
    got = apply(f"cvt.{rounding}{saturate}.ue8m0x2.f32 %d, %a, %b;", "u16", ("f32", "f32"), a, np.ones(32, np.float32))
    magnitude = abs(a.astype(np.float64))
    with np.errstate(divide="ignore"):
        power = np.floor(np.log2(magnitude)) if rounding == "rz" else np.ceil(np.log2(magnitude))
    beyond = power > 127
    code = np.clip(power, -127, 127) + 127
    code = np.where(beyond, 254 if saturate else 255, code)
    want = np.where(np.isnan(a), 255, code).astype(np.int64)
    np.testing.assert_array_equal(got >> 8, want)
    assert set((got & 255).tolist()) == {127}
    brains = (a.view(np.uint32) >> 16).astype(np.uint32)
    exact = brains.astype(np.uint32) << 16 == a.view(np.uint32)
    from_brain = apply(f"cvt.{rounding}{saturate}.ue8m0x2.bf16x2 %d, %a;", "u16", ("u32",), brains << 16 | 0x3F80)
    np.testing.assert_array_equal((from_brain >> 8)[exact], want[exact])


def test_scales_as_bf16() -> None:
    codes = np.arange(256, dtype=np.uint16)
    got = apply("cvt.rn.bf16x2.ue8m0x2 %d, %a;", "u32", ("u16",), codes << 8 | codes)
    numbers = (got >> 16 << 16).view(np.float32)
    np.testing.assert_array_equal(numbers[:-1], 2.0 ** (np.arange(255) - 127.0))
    assert np.isnan(numbers[-1]) and ((got & 0xFFFF) == got >> 16).all()


@pytest.mark.parametrize("kind", ["u16x2", "s16x2"])
@pytest.mark.parametrize("operation", ["add", "min", "max", "min.relu", "max.relu"])
def test_pairs_of_16_bit_integers(kind: str, operation: str) -> None:
    if ".relu" in operation and kind == "u16x2":
        return
    rng = np.random.default_rng(3)
    a, b = rng.integers(0, 2**16, (2, 128)).astype("<u2"), rng.integers(0, 2**16, (2, 128)).astype("<u2")
    a[0, :4], b[0, :4] = (0, 0xFFFF, 0x8000, 0x7FFF), (0, 1, 0xFFFF, 0x7FFF)
    halves = [x.astype(np.int64) if kind[0] == "u" else x.view("<i2").astype(np.int64) for x in (a, b)]
    function = {"add": np.add, "min": np.minimum, "max": np.maximum}[operation.partition(".")[0]]
    result = function(*halves)
    result = np.maximum(result, 0) if "relu" in operation else result
    want = (result[1] & 0xFFFF) << 16 | result[0] & 0xFFFF
    words = [(x[1].astype(np.uint32) << 16 | x[0]).astype("<u4") for x in (a, b)]
    np.testing.assert_array_equal(apply(f"{operation}.{kind} %d, %a, %b;", "u32", ("u32", "u32"), *words), want)
