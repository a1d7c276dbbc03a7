"""Proven kernels, built and recorded as the product does, with inputs and expected values."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from typing import NamedTuple

import numpy as np

from ptxgym.build import Build, build
from ptxgym.judge.conditions import Case, buffers
from ptxgym.judge.numbers import decode
from ptxgym.plan import Argument, LaunchPlan, device_profile, record
from ptxgym.task import Axes, Draw, load_arch, load_task
from tests.mutation.campaign import Target
from tests.mutation.cross_cta import CROSS_CTA, load_cross_cta


class Known(NamedTuple):
    """A kernel that is mutated, and the size at which it runs."""

    task: str
    file: str
    axes: Axes
    stage_bytes: dict[str, int]
    """Bytes of one stage of operand `A` and `B`."""
    larger: Axes
    """The size at which survivors run again."""
    arch: str = "h100"
    draw: Draw = "normal"


_GEMM_SHAPE = {"M": 256, "N": 512, "K": 576}
"""Nine slices of 64 wrap a ring of four stages more than twice; every CTA has two tiles' worth of neighbours."""
_HEADS = {"B": 1, "H": 2, "S": 384, "D": 128}
"""Every CTA walks three query tiles, or two pairs: their tiles of K and V wrap a ring of four stages several times."""
_HEAD = {"B": 1, "H": 1, "S": 384, "D": 128}
"""Six blocks of 64 tokens wrap a ring of three stages; the kernels are not persistent."""
STAGE_BYTES = {"A": 128 * 64 * 2, "B": 256 * 64 * 2}
_TILE = {"A": 128 * 128 * 2, "B": 128 * 128 * 2}
_TWO_TILES = {"A": 2 * 64 * 128 * 2, "B": 2 * 64 * 128 * 2}

_BLACKWELL_SHAPE = {"M": 256, "N": 1024, "K": 320}
"""Four tiles a CTA use both accumulators twice; five slices wrap a ring of four stages."""

_PAIR_SHAPE = {"M": 256, "N": 1280, "K": 320}
"""Five tiles of the one pair use both accumulators twice and end in the middle of a turn."""

_FIVE_TILES = {"B": 1, "H": 1, "S": 640, "D": 128}
"""One CTA of the forward kernel walks two pairs of query tiles, the other one tile alone; a loop over five tiles runs
both its unrolled body and the rest."""
_LARGER_HEADS = {"B": 1, "H": 1, "S": 768, "D": 128}
_LARGER_HEADS_128 = {"B": 1, "H": 2, "S": 640, "D": 128}
_LARGER_HEAD = {"B": 1, "H": 1, "S": 1024, "D": 128}
_LARGER_HEAD_128 = {"B": 1, "H": 1, "S": 640, "D": 128}
_LARGER_GEMM = {"M": 384, "N": 768, "K": 1152}
_LARGER_PAIR = {"M": 512, "N": 1280, "K": 704}
"""Odd numbers of tiles and turns, more rounds of every ring, and a second item for every role."""
_HALF_TILE = {"A": 128 * 64 * 2, "B": 128 * 64 * 2}
_TWO_TILES_128 = {"A": 2 * 128 * 128 * 2, "B": 2 * 128 * 128 * 2}

_KNOWN = {
    "naive": Known("gemm", "naive", _GEMM_SHAPE, STAGE_BYTES, _LARGER_GEMM),
    "mma_sync": Known("gemm", "mma_sync", _GEMM_SHAPE, STAGE_BYTES, _LARGER_GEMM),
    "wgmma": Known("gemm", "wgmma", _GEMM_SHAPE, STAGE_BYTES, _LARGER_GEMM),
    "oracle": Known("gemm", "oracle", _GEMM_SHAPE, STAGE_BYTES, _LARGER_GEMM),
    "gemm_b200": Known("gemm", "oracle", _BLACKWELL_SHAPE, STAGE_BYTES, _LARGER_GEMM, "b200"),
    "gemm_pair_b200": Known("gemm", "pair", _PAIR_SHAPE, _HALF_TILE, _LARGER_PAIR, "b200"),
    "attn_fwd": Known("attn_fwd", "oracle", _HEADS, _TILE, _LARGER_HEADS),
    "attn_fwd_causal": Known("attn_fwd_causal", "oracle", _HEADS, _TILE, _LARGER_HEADS),
    "attn_bwd": Known("attn_bwd", "oracle", _HEAD, _TWO_TILES, _LARGER_HEAD),
    "attn_bwd_causal": Known("attn_bwd_causal", "oracle", _HEAD, _TWO_TILES, _LARGER_HEAD),
    "attn_fwd_b200": Known("attn_fwd", "oracle", _FIVE_TILES, _TILE, _LARGER_HEADS_128, "b200", "sharp"),
    "attn_fwd_causal_b200": Known("attn_fwd_causal", "oracle", _FIVE_TILES, _TILE, _LARGER_HEADS_128, "b200", "sharp"),
    "attn_bwd_b200": Known("attn_bwd", "oracle", _HEAD, _TWO_TILES_128, _LARGER_HEAD_128, "b200"),
    "attn_bwd_causal_b200": Known("attn_bwd_causal", "oracle", _HEAD, _TWO_TILES_128, _LARGER_HEAD_128, "b200"),
}
GEMM = ("wgmma", "oracle")
HOPPER = (*GEMM, "attn_fwd", "attn_fwd_causal", "attn_bwd", "attn_bwd_causal")
BLACKWELL = (
    "gemm_b200", "gemm_pair_b200", "attn_fwd_b200", "attn_fwd_causal_b200", "attn_bwd_b200", "attn_bwd_causal_b200",
)  # fmt: skip
SOLUTIONS = (*HOPPER, *BLACKWELL, *CROSS_CTA)
"""Whose mutants make the campaign."""
PROCESSORS = 2
"""A small GPU, so that each CTA of a persistent kernel walks several tiles, and what goes on across tiles is seen."""


def load(name: str) -> Target:
    """Build and record the kernel `name`, and draw its inputs."""
    if name in CROSS_CTA:
        return load_cross_cta(name)
    return _load(name, _KNOWN[name].axes, lambda: _load(name, _KNOWN[name].larger))


def _load(name: str, axes: Axes, larger: Callable[[], Target] | None = None) -> Target:
    known = _KNOWN[name]
    task = load_task(known.task)
    text = (task.folder / "solutions" / known.arch / f"{known.file}.cu").read_text()
    built = build(text, declaration=task.signature.declaration(), arch=load_arch(known.arch).code)
    assert isinstance(built, Build), built
    sizes = task.sizes_bytes(axes)
    arguments = [Argument(tensor.name, "input", sizes[tensor.name]) for tensor in task.inputs]
    arguments += [Argument(tensor.name, "output", sizes[tensor.name]) for tensor in task.outputs]
    plan = record(built, arguments, axes, replace(device_profile(known.arch), sm_count=PROCESSORS))
    assert isinstance(plan, LaunchPlan), plan
    data = buffers(task, Case(f"mutation/{known.draw}", axes, known.draw, 3, False))
    inputs = {tensor.name: decode(data[tensor.name], tensor, axes) for tensor in task.inputs}
    expected = task.reference().reference(np, inputs, axes)
    return Target(name, built, plan, data, expected, known.stage_bytes, cache(larger) if larger else None)
