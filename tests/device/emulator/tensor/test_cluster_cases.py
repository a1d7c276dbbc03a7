"""Clusters, multicast and bulk reductions against formulas of their own (PTX ISA 9.7.9.25.4, 9.7.9.25.5, 9.7.13.7)."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from ptxgym.device.emulator.core import Outcome
from tests.device.emulator.tensor.harness import SCHEDULES, Kernels, succeeded
from tests.gpu.cases import Case, cluster_cases
from tests.gpu.cases.model import Map

CASES = {case.name: case for case in cluster_cases()}
KINDS = {
    "u32": "<u4", "s32": "<i4", "b32": "<u4", "u64": "<u8", "s64": "<i8", "b64": "<u8", "f32": "<f4", "f64": "<f8",
    "f16": "<f2", "UINT32": "<u4", "INT32": "<i4", "UINT64": "<u8", "INT64": "<i8", "FLOAT32": "<f4",
    "FLOAT32_FTZ": "<f4", "TFLOAT32": "<f4", "FLOAT64": "<f8", "FLOAT16": "<f2",
}  # fmt: skip
BF16 = ("bf16", "BFLOAT16")
Bytes = NDArray[np.uint8]


def widened(data: Bytes) -> NDArray[np.float64]:
    """The values of bf16 bits."""
    return (data.view("<u2").astype(np.uint32) << 16).view(np.float32).astype(np.float64)


def to_bf16(values: NDArray[np.float64]) -> NDArray[np.uint16]:
    """Round to nearest even; sums of two bf16 are exact in float64."""
    with np.errstate(over="ignore", invalid="ignore"):
        largest = np.nextafter(np.float64(2.0**128), 0)
        bits = np.zeros(values.shape, np.uint16)
        for i, value in enumerate(values):
            if np.isnan(value):
                bits[i] = 0x7FFF
                continue
            magnitude = min(abs(value), largest)
            exponent = max(int(np.floor(np.log2(magnitude))), -126) if magnitude else -126
            steps = round(magnitude / 2.0 ** (exponent - 7))  # round() takes ties to even
            whole = steps * 2.0 ** (exponent - 7)
            word = 0x7F80 if whole >= 2.0**128 else int(np.float32(whole).view(np.uint32)) >> 16
            bits[i] = word | (0x8000 if np.signbit(value) else 0)
    return bits


def flushed(values: NDArray[np.float32]) -> NDArray[np.float32]:
    """Subnormals as zeros of their sign."""
    tiny = np.abs(values) < np.float32(2.0**-126)
    return np.where(tiny, np.copysign(np.float32(0), values), values)


def combined(op: str, kind: str, memory: Bytes, operand: Bytes) -> Bytes:
    """Memory after `op`, element by element."""
    with np.errstate(all="ignore"):
        if kind in BF16:
            a, b = widened(memory), widened(operand)
            if op == "add":
                return to_bf16(a + b).view(np.uint8)
            pick = np.fmin(a, b) if op == "min" else np.fmax(a, b)
            return to_bf16(pick).view(np.uint8)
        old, value = memory.view(KINDS[kind]), operand.view(KINDS[kind])
        if op == "add" and kind == "FLOAT32_FTZ":
            return flushed(flushed(old) + flushed(value)).view(np.uint8)
        if op == "add" and kind in ("f16", "FLOAT16"):
            return (old.astype(np.float64) + value.astype(np.float64)).astype("<f2").view(np.uint8)
        floating = old.dtype.kind == "f"
        found = {
            "add": lambda: old + value,
            "min": lambda: np.fmin(old, value) if floating else np.minimum(old, value),
            "max": lambda: np.fmax(old, value) if floating else np.maximum(old, value),
            "inc": lambda: np.where(old >= value, 0, old + 1),
            "dec": lambda: np.where((old == 0) | (old > value), value, old - 1),
            "and": lambda: old & value,
            "or": lambda: old | value,
            "xor": lambda: old ^ value,
        }[op]()
        return np.ascontiguousarray(found.astype(old.dtype)).view(np.uint8)


def outputs(conformance: Kernels, case: Case) -> list[Bytes]:
    """What the case comes to under every schedule, without findings above a note."""
    runs = [(s, seed) for s in SCHEDULES for seed in range(3 if s == "random" else 1)]
    found = []
    for schedule, seed in runs:
        run = conformance.run(case, schedule, seed=seed)
        assert succeeded(run), run.records
        assert run.codes(1) == set(), [r["message"] for r in run.records]
        found.append(run.output)
    return found


def same(case: Case, got: Bytes, want: Bytes) -> None:
    np.testing.assert_array_equal(case.comparable(got), case.comparable(np.ascontiguousarray(want)))


def named(prefix: str) -> list[str]:
    return [name for name in CASES if name.startswith(prefix)]


@pytest.mark.parametrize("name", named("reduce/bulk/"))
def test_bulk_reductions_into_global_memory(conformance: Kernels, name: str) -> None:
    case = CASES[name]
    _, _, op, kind = name.split("/")
    data = np.frombuffer(case.input, np.uint8)
    half = data.size // 2
    want = combined(op, kind, data[:half], data[half:])
    for got in outputs(conformance, case):
        same(case, got, want)


FAULTS = ("reduce/tensor/add/INT64", "reduce/tensor/and/INT64")
ELSEWHERE = ("reduce/tensor/swizzled", *FAULTS)


@pytest.mark.parametrize("name", FAULTS)
def test_signed_words_of_64_bits_are_compared_alone(conformance: Kernels, name: str) -> None:
    """PTX ISA 9.7.9.25.4.3 lists no `.add.s64`; an H200 faults, also on bits."""
    run = conformance.run(CASES[name])
    assert run.launch.outcome == Outcome.RUNTIME_FAULT
    assert run.codes() == {"tma.reduction_type"}, run.codes()


@pytest.mark.parametrize("name", [n for n in named("reduce/tensor/") if n not in ELSEWHERE])
def test_tensor_reductions(conformance: Kernels, name: str) -> None:
    case = CASES[name]
    _, _, op, kind, *_ = name.split("/")
    assert case.map is not None
    m, (x, y) = case.map, case.args[1:3]
    rows, row_bytes, box_bytes = m.dims[1], m.dims[0] * m.element_bytes, m.box[0] * m.element_bytes
    data = np.frombuffer(case.input, np.uint8)
    half = data.size // 2
    want = data[:half].copy().reshape(rows, row_bytes)
    box = data[half : half + m.box_bytes].reshape(m.box[1], box_bytes)
    for line in range(min(m.box[1], rows - y)):  # the box leaves the tensor below
        at = slice(x * m.element_bytes, x * m.element_bytes + box_bytes)
        want[y + line, at] = combined(op, kind, want[y + line, at].copy(), box[line].copy())
    for got in outputs(conformance, case):
        same(case, got, want.reshape(-1))


def test_a_swizzled_source(conformance: Kernels) -> None:
    case = CASES["reduce/tensor/swizzled"]
    data = np.frombuffer(case.input, np.uint8)
    memory, image = data[:4096].reshape(32, 128).copy(), data[4096:].reshape(32, 8, 16)
    for line in range(16):
        plain = np.concatenate([image[line, chunk ^ line % 8] for chunk in range(8)])
        memory[8 + line] = combined("add", "bf16", memory[8 + line].copy(), plain)
    for got in outputs(conformance, case):
        same(case, got, memory.reshape(-1))


@pytest.mark.parametrize("name", named("cluster/share") + named("cluster/red_async") + named("cluster/st_async"))
def test_exchanges_between_two_ctas(conformance: Kernels, name: str) -> None:
    case = CASES[name]
    part = case.args[0]
    data = np.frombuffer(case.input, np.uint8).reshape(2, 2, part)
    want = [data[1 - rank, 1] for rank in range(2)]
    if name.count("/") == 3:
        _, _, op, kind = name.split("/")
        want = [combined(op, kind, data[rank, 0].copy(), data[1 - rank, 1].copy()) for rank in range(2)]
    for got in outputs(conformance, case):
        same(case, got, np.concatenate(want))


def test_loads_stores_and_atomics(conformance: Kernels) -> None:
    case = CASES["cluster/access"]
    data = np.frombuffer(case.input, "<u4").reshape(2, 128)
    want = np.stack([np.stack([2 * data[r] + 3, data[1 - r] + 3]) for r in range(2)]).astype("<u4")
    for got in outputs(conformance, case):
        np.testing.assert_array_equal(got.view("<u4").reshape(2, 2, 128), want)


def box_of(m: Map, source: Bytes, x: int, y: int) -> NDArray[np.uint8]:
    """A box inside of its tensor, as it lies in shared memory from a multiple of 1024 on."""
    rows = source[: m.tensor_bytes].reshape(m.dims[1], m.dims[0] * m.element_bytes)
    box = rows[y : y + m.box[1], x * m.element_bytes : (x + m.box[0]) * m.element_bytes]
    if m.swizzle == "NONE":
        return np.ascontiguousarray(box).reshape(-1)
    lines = box.reshape(m.box[1], 8, 16)
    return np.concatenate([lines[i, chunk ^ i % 8] for i in range(m.box[1]) for chunk in range(8)])


@pytest.mark.parametrize("name", named("multicast/"))
def test_multicast(conformance: Kernels, name: str) -> None:
    case = CASES[name]
    offset, size, dump, mask = case.args[:4]
    source = np.frombuffer(case.input, np.uint8)
    brought = source[:size] if case.map is None else box_of(case.map, source, *case.args[4:6])
    for got in outputs(conformance, case):
        for rank, part in enumerate(got.reshape(case.cluster, 16 + dump)):
            image = np.full(dump, 0xCD, np.uint8)
            if mask >> rank & 1:
                image[offset : offset + size] = brought
            assert part[:4].view("<u4")[0] == (1 if mask >> rank & 1 else 2)
            np.testing.assert_array_equal(part[16:], image)
