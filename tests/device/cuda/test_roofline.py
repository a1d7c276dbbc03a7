from __future__ import annotations

import pytest

from ptxgym.device.cuda.roofline import L2_BYTES, PEAKS, Peak, peak_of, roofline_us, too_fast
from ptxgym.task import load_task
from ptxgym.verdict import Status


def test_rates_are_those_of_the_datasheets() -> None:
    h100 = PEAKS["NVIDIA H100 80GB HBM3"]
    at_boost = Peak(h100.sm_count, 1830, h100.bytes_per_s, "")
    assert at_boost.flop_per_s == pytest.approx(989.4e12, rel=1e-3)
    assert peak_of("NVIDIA H200") == PEAKS["NVIDIA H200"]
    assert peak_of("NVIDIA H200").bytes_per_s == 4.8e12  # type: ignore[union-attr]
    assert peak_of("NVIDIA RTX 9999") is None


def test_arithmetic_or_bytes_whichever_takes_longer() -> None:
    task = load_task("gemm")
    slow_math = Peak(1, 1000, 1e15, "")  # 4.096 TFLOP/s
    assert roofline_us(task, {"M": 128, "N": 256, "K": 64}, slow_math) == pytest.approx(2 * 128 * 256 * 64 / 4.096e6)
    slow_bus = Peak(10_000, 1000, 1e9, "")
    axes = {"M": 8192, "N": 8192, "K": 64}
    moved = 2 * (8192 * 64 * 2 + 8192 * 8192) - L2_BYTES
    assert roofline_us(task, axes, slow_bus) == pytest.approx(moved / 1e3)
    assert roofline_us(task, {"M": 128, "N": 256, "K": 64}, slow_bus) < 0.2  # all of it fits in L2


def test_the_best_vendor_time_is_believed_and_half_of_the_roofline_is_not() -> None:
    """cuBLASLt took 722 µs for the hardware size on an H200."""
    task = load_task("gemm")
    least = roofline_us(task, task.workload("hardware").axes, PEAKS["NVIDIA H200"])
    assert 500 < least < 700
    assert too_fast(722.0, least) is None
    assert too_fast(least, least) is None
    failure = too_fast(least / 2, least)
    assert failure is not None
    assert (failure.status, failure.code) == (Status.INTEGRITY, "timing.faster_than_roofline")
    assert f"{least:.1f} µs" in failure.message
