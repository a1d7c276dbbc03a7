"""Kernels whose CTAs hand data to each other, made for mutation: their plans are written by hand."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ptxgym.plan.model import (
    Blob,
    Buffer,
    BufferRef,
    FunctionAttributes,
    Launch,
    LaunchPlan,
    Memset,
    PointerRef,
)
from tests.device.emulator.hazards.harness import compile_ptx
from tests.mutation.campaign import Target

FOLDER = Path(__file__).parent / "cross_cta"
THREADS, ROWS = 64, 5
STAGE_BYTES = {"A": 128, "B": 128}
"""They have no stages; what would be a mutant of one is none here."""
Floats = NDArray[np.float64]


def _sum(data: Floats) -> Floats:
    return data.sum(axis=(0, 1))


def _averages(data: Floats) -> Floats:
    values = data.reshape(-1, THREADS)[: len(data)]
    for _ in range(ROWS):
        values = 0.5 * (values + np.roll(values, -1, axis=0))
    return values


def _pairs(data: Floats) -> Floats:
    slices = data.sum(axis=1)
    return slices[0::2] + np.roll(slices[1::2], -1, axis=1)


_EXPECTED: dict[str, tuple[int, Callable[[Floats], Floats]]] = {
    "split_k": (5, _sum),
    "in_turn": (4, _sum),
    "grid_barrier": (6, _averages),
    "cluster_sum": (4, _pairs),
}
"""CTAs, and what the kernel makes of [CTAs, rows, threads]."""
CROSS_CTA = tuple(_EXPECTED)


def load_cross_cta(name: str) -> Target:
    """Compile a kernel and draw its input."""
    folder = Path(tempfile.mkdtemp())
    kernels = compile_ptx(FOLDER / f"{name}.cu", folder)
    (entry,) = [kernel.name for kernel in kernels.build.kernels]
    blocks, expected = _EXPECTED[name]
    data = np.random.default_rng(7).normal(size=(blocks, ROWS, THREADS)).astype(np.float32)
    want = expected(data.astype(np.float64))
    sizes = {"input": data.nbytes, "out": want.size * 4, "parts": blocks * THREADS * 4, "counter": 8}
    pointers = tuple(Blob(data="00" * 8, refs=(PointerRef(at=0, target=BufferRef(buffer=name)),)) for name in sizes)
    roles = {"input": "input", "out": "output"}
    plan = LaunchPlan(
        build_key=kernels.build.key,
        device_profile="h100",
        axes={},
        buffers=tuple(
            Buffer(name=name, role=roles.get(name, "workspace"), size_bytes=size)  # type: ignore[arg-type]
            for name, size in sizes.items()
        ),
        functions=(FunctionAttributes(kernel=entry, max_dynamic_smem_bytes=0),),
        operations=(
            Memset(target=BufferRef(buffer="counter"), value=0, width_bytes=1, count=8),
            Launch(
                kernel=entry, grid=(blocks, 1, 1), block=(THREADS, 1, 1), dynamic_smem_bytes=0,
                params=(*pointers, Blob(data=ROWS.to_bytes(4, "little").hex())),
                cluster=(2, 1, 1) if name == "cluster_sum" else None,
            ),
        ),
        isolation="full",
        recorder_revision=1,
    )  # fmt: skip
    buffers = {"input": data.view(np.uint8).reshape(-1), "out": np.full(sizes["out"], 0xFF, np.uint8)}
    return Target(name, kernels.build, plan, buffers, {"out": want}, STAGE_BYTES)
