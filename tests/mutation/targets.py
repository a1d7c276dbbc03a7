"""The wgmma solutions of the GEMM task, built and recorded as the product does, with inputs and expected values."""

from __future__ import annotations

import numpy as np

from ptxgym.build import Build, build
from ptxgym.content import locate
from ptxgym.plan import Argument, LaunchPlan, device_profile, record
from ptxgym.plan.model import Launch
from ptxgym.task import load_arch, load_task
from ptxgym.verdict import Failure
from tests.mutation.campaign import Target

SHAPE = {"M": 256, "N": 512, "K": 576}
"""Nine slices of 64 wrap a ring of four stages more than twice; every CTA has two tiles' worth of neighbours."""
SOLUTIONS = ("wgmma", "oracle")
STAGE_BYTES = {"A": 128 * 64 * 2, "B": 256 * 64 * 2}


def load(name: str) -> Target:
    """Build and record solution `name` of PTX-Gemm-H100."""
    task = load_task("gemm")
    text = (locate("tasks", "gemm").parent / "solutions" / "h100" / f"{name}.cu").read_text()
    arch = load_arch("h100")
    built = build(text, declaration=task.signature.declaration(), arch=arch.code)
    assert isinstance(built, Build), built
    sizes = {"A": ("M", "K"), "B": ("N", "K"), "C": ("M", "N")}
    arguments = [
        Argument(tensor, "output" if tensor == "C" else "input", 2 * SHAPE[rows] * SHAPE[columns])
        for tensor, (rows, columns) in sizes.items()
    ]
    plan = record(built, arguments, SHAPE, device_profile("h100"))
    assert not isinstance(plan, Failure), plan
    return target(name, built, persistent(plan) if name == "oracle" else plan)


def persistent(plan: LaunchPlan) -> LaunchPlan:
    """Launch half as many CTAs, as on a small GPU: each walks two tiles, so that what goes on across tiles is seen."""
    launches = [op.model_copy(update={"grid": (2, 1, 1)}) if isinstance(op, Launch) else op for op in plan.operations]
    return plan.model_copy(update={"operations": tuple(launches)})


def target(name: str, built: Build, plan: LaunchPlan) -> Target:
    """Draw inputs for a recorded plan."""
    random = np.random.default_rng(3)
    m, n, k = SHAPE["M"], SHAPE["N"], SHAPE["K"]
    a, b = _bf16(random.standard_normal((m, k))), _bf16(random.standard_normal((n, k)))
    expected = _values(a) @ _values(b).T
    buffers = {"A": a.reshape(-1).view(np.uint8), "B": b.reshape(-1).view(np.uint8)}
    buffers["C"] = np.full(2 * m * n, 0xFF, np.uint8)
    return Target(name, built, plan, buffers, {"C": expected}, STAGE_BYTES)


def _bf16(values: np.ndarray) -> np.ndarray:
    """Round toward zero: any bf16 will do as an input."""
    return (np.ascontiguousarray(values, np.float32).view(np.uint32) >> 16).astype("<u2")


def _values(bits: np.ndarray) -> np.ndarray:
    return (bits.astype(np.uint32) << 16).view(np.float32).astype(np.float64)
