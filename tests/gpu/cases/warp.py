"""Matrices of a warp: ldmatrix, stmatrix, movmatrix, mma.sync."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from tests.gpu.cases.model import Case
from tests.gpu.cases.values import SPREADS, bf16, random_bytes, spread_words


def warp_cases() -> Iterator[Case]:
    for num in (1, 2, 4):
        for suffix in ("", "t"):
            for pitch, multiplier in ((16, 1), (48, 5)):
                label = f"{num}{suffix}/{pitch}"
                args, size = (pitch, multiplier, 32 * pitch), 32 * pitch
                yield Case(f"ldmatrix/{label}", f"ldmatrix_{num}{suffix}", 32, random_bytes(size, 20), 128 * num, args)
                yield Case(f"stmatrix/{label}", f"stmatrix_{num}{suffix}", 32, random_bytes(128 * num, 21), size, args)
    yield Case("movmatrix", "movmatrix", 32, random_bytes(128, 22), 128)
    for kernel, form in MMA_FORMS.items():
        yield mma(kernel)
        if form.result != "s32":
            for spread in SPREADS:
                yield mma_accumulation(kernel, spread)


@dataclass(frozen=True)
class MmaForm:
    """Registers of A, B and C per lane, and element kinds."""

    k: int
    kind: str
    result: str
    b_kind: str = ""
    saturate: bool = False

    @property
    def registers(self) -> tuple[int, int, int]:
        bits = {"bf16": 16, "f16": 16, "tf32": 32, "s8": 8, "u8": 8}[self.kind]
        return 16 * self.k * bits // 1024, 8 * self.k * bits // 1024, 2 if self.result == "f16" else 4


MMA_FORMS = {
    "mma_bf16_k16": MmaForm(16, "bf16", "f32"),
    "mma_f16_k16": MmaForm(16, "f16", "f32"),
    "mma_bf16_k8": MmaForm(8, "bf16", "f32"),
    "mma_f16_k8": MmaForm(8, "f16", "f32"),
    "mma_tf32_k4": MmaForm(4, "tf32", "f32"),
    "mma_tf32_k8": MmaForm(8, "tf32", "f32"),
    "mma_half_k16": MmaForm(16, "f16", "f16"),
    "mma_half_k8": MmaForm(8, "f16", "f16"),
    "mma_s8_k16": MmaForm(16, "s8", "s32"),
    "mma_s8_k32": MmaForm(32, "s8", "s32"),
    "mma_u8_k16": MmaForm(16, "u8", "s32"),
    "mma_u8_k32": MmaForm(32, "u8", "s32"),
    "mma_us8_k16": MmaForm(16, "u8", "s32", "s8"),
    "mma_us8_k32": MmaForm(32, "u8", "s32", "s8"),
    "mma_su8_k16": MmaForm(16, "s8", "s32", "u8"),
    "mma_su8_k32": MmaForm(32, "s8", "s32", "u8"),
    "mma_s8_sat_k16": MmaForm(16, "s8", "s32", saturate=True),
    "mma_s8_sat_k32": MmaForm(32, "s8", "s32", saturate=True),
}


def mma(kernel: str, seed: int = 30) -> Case:
    """Random operands whose results are exact; integer accumulators near the ends of the range."""
    form = MMA_FORMS[kernel]
    na, nb, nc = form.registers
    rng = np.random.default_rng(seed)
    words = np.empty((32, na + nb + nc), np.uint32)
    if form.kind in ("s8", "u8"):
        words[:, : na + nb] = rng.integers(0, 2**32, (32, na + nb), dtype=np.uint32)
        edges = np.array([0, 1000, -1000, 2**31 - 5, -(2**31) + 5], np.int64)
        words[:, na + nb :] = rng.choice(edges, (32, nc)).astype(np.int32).view(np.uint32)
    else:
        integers = rng.integers(-8, 9, (32, na + nb, 2)).astype(np.float32)
        if form.kind == "tf32":  # the low 13 bits must not matter
            words[:, : na + nb] = integers[:, :, 0].view(np.uint32) | rng.integers(
                0, 2**13, (32, na + nb), dtype=np.uint32
            )
        elif form.kind == "bf16":
            words[:, : na + nb] = bf16(integers).view(np.uint32)[:, :, 0]
        else:
            words[:, : na + nb] = integers.astype(np.float16).view(np.uint32)[:, :, 0]
        start = rng.integers(-64, 65, (32, nc, 2)).astype(np.float32)
        c = (
            start.astype(np.float16).view(np.uint32)[:, :, 0]
            if form.result == "f16"
            else start[:, :, 0].view(np.uint32)
        )
        words[:, na + nb :] = c
    return Case(kernel.replace("_", "/", 1), kernel, 32, words.tobytes(), 128 * nc)


def mma_accumulation(kernel: str, spread: str) -> Case:
    """Operands whose sums are not exact, as `accumulation_cases` has them for wgmma."""
    form = MMA_FORMS[kernel]
    na, nb, nc = form.registers
    halves = 1 if form.kind == "tf32" else 2
    a = spread_words(spread, form.kind, (32, na, halves), 70)
    b = spread_words("wide" if spread == "low" else spread, form.kind, (32, nb, halves), 71)
    c = spread_words(spread, form.result, (32, nc, 2 if form.result == "f16" else 1), 72)
    words = [x[..., 0] | (x[..., 1] << 16 if x.shape[2] == 2 else 0) for x in (a, b, c)]
    data = np.concatenate(words, axis=1).astype(np.uint32).tobytes()
    return Case(f"mma/accumulation/{kernel}/{spread}", kernel, 32, data, 128 * nc, probe=True)
