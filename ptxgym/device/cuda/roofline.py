"""What a GPU cannot exceed: peak rates of its tensor cores and its memory, and the least time that they allow.

Rates are per multiprocessor and clock, times the greatest clock that the GPU can run at, not the datasheet's boost
clock: an H200 at 1980 MHz exceeds the 989 TFLOP/s that NVIDIA prints for 1830 MHz.
"""

from __future__ import annotations

from dataclasses import dataclass

from ptxgym.task import Axes, Task
from ptxgym.verdict import Failure, Stage, Status

BF16_FLOP_PER_CLOCK = 4096
"""Dense, per multiprocessor of compute capability 9.0: 4 tensor cores × 512 multiply-adds ("NVIDIA H100 Tensor Core GPU
Architecture", table 2: 989.4 TFLOP/s with 132 multiprocessors at 1830 MHz)."""
L2_BYTES = 60 << 20
"""Of the full GH100 ("NVIDIA H100 Tensor Core GPU Architecture"); products have 50 MB of it."""
MARGIN = 0.98
"""Times this short of the roofline are still believed: events tick in steps of about half a microsecond."""
TICK_US = 1.0


@dataclass(frozen=True)
class Peak:
    """Peak rates of one GPU."""

    sm_count: int
    max_clock_mhz: float
    """Of the multiprocessors; `nvidia-smi -q -d CLOCK`, Max Clocks."""
    bytes_per_s: float
    source: str

    @property
    def flop_per_s(self) -> float:
        """Of dense BF16 with FP32 accumulation."""
        return self.sm_count * self.max_clock_mhz * 1e6 * BF16_FLOP_PER_CLOCK


_H100 = "NVIDIA H100 datasheet"
PEAKS: dict[str, Peak] = {
    "NVIDIA H200": Peak(132, 1980, 4.8e12, "NVIDIA H200 datasheet; clock and multiprocessors as read there"),
    "NVIDIA H200 NVL": Peak(132, 1980, 4.8e12, "NVIDIA H200 datasheet, clock of the SXM part"),
    "NVIDIA GH200 480GB": Peak(132, 1980, 4.0e12, "NVIDIA GH200 datasheet"),
    "NVIDIA GH200 144G HBM3e": Peak(132, 1980, 4.9e12, "NVIDIA GH200 datasheet"),
    "NVIDIA H100 80GB HBM3": Peak(132, 1980, 3.35e12, _H100),
    "NVIDIA H100 NVL": Peak(132, 1980, 3.9e12, f"{_H100}, clock of the SXM part"),
    "NVIDIA H100 PCIe": Peak(114, 1980, 2.04e12, f"{_H100}, clock of the SXM part"),
}
"""By the driver's name of the GPU. Where a figure is in doubt it is the greater one: this is a guard."""


def peak_of(name: str) -> Peak | None:
    """Return the peak rates of the GPU that the driver calls `name`; None where they are not known."""
    return PEAKS.get(name)


def roofline_us(task: Task, axes: Axes, peak: Peak) -> float:
    """Return the least time in µs in which `peak` can do the operator's arithmetic or move its bytes.

    What fits in L2 may still lie there when the kernel ends, so that many bytes need not cross the bus.
    """
    arithmetic_s = task.flops(axes) / peak.flop_per_s
    moving_s = max(0, task.moved_bytes(axes) - L2_BYTES) / peak.bytes_per_s
    return max(arithmetic_s, moving_s) * 1e6


def too_fast(time_us: float, least_us: float) -> Failure | None:
    """Return why a measured time cannot be true, or None.

    Args:
        time_us: median of a candidate.
        least_us: of `roofline_us`.
    """
    if time_us >= least_us * MARGIN - TICK_US:
        return None
    return Failure(
        stage=Stage.JUDGE,
        status=Status.INTEGRITY,
        code="timing.faster_than_roofline",
        message=(
            f"the measured {time_us:.1f} µs is less than the {least_us:.1f} µs that this GPU needs at its peak rates; "
            "the work is not done within the timed call, or the events are not what they seem"
        ),
    )
