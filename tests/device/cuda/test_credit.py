"""Counts of a profiler that the hardware's own counters do not bear out."""

from __future__ import annotations

import pytest

from ptxgym.device.cuda.credit import idle_tensor_cores
from ptxgym.device.protocol import InstructionCount
from ptxgym.verdict import KernelProfile

FAMILIES = ("wgmma",)
FULL = 8192 * 7168 * 5120
"""Multiply-adds of the operator; an H200 does them in 670 µs with its tensor cores active in 93 % of the cycles."""


def counted(multiply_adds: int, kernel: str = "gemm", family: str = "wgmma") -> InstructionCount:
    return InstructionCount(kernel, "HGMMA.64x256x16.F32.BF16", family, None, 1, 32, multiply_adds)


def profiled(percent: float | None, duration_us: float = 670.0, launches: int = 1) -> KernelProfile:
    return KernelProfile(kernel="gemm", launches=launches, duration_us=duration_us, tensor_pipe_percent=percent)


@pytest.mark.parametrize(
    ("count", "profile", "idle"),
    [
        (counted(FULL), profiled(92.8), False),
        (counted(FULL), profiled(0.0), True),
        (counted(FULL), profiled(20.0), True),
        (counted(FULL), profiled(5.0, duration_us=20 * 670.0), False),  # slow, but it does it all
        (counted(FULL), profiled(None), False),
        (counted(4 * FULL), profiled(92.8, launches=4), False),
        (counted(FULL // 100), profiled(0.1), True),
        (counted(FULL // 100), profiled(1.0), False),
        (counted(FULL, family="fma"), profiled(0.0), False),
        (counted(FULL, kernel="other"), profiled(0.0), False),
    ],
)
def test_counted_instructions_must_show_in_the_tensor_cores_counter(
    count: InstructionCount, profile: KernelProfile, idle: bool
) -> None:
    said = idle_tensor_cores((count,), (profile,), FAMILIES)
    assert (said is not None) == idle
    if said is not None:
        assert "gemm" in said and "behaves differently" in said
