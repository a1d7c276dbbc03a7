"""Counts of a profiler that the hardware's own counters do not bear out."""

from __future__ import annotations

import pytest

from ptxgym.device.cuda.credit import cross_checked, duration_problem, idle_tensor_cores, needs_counting
from ptxgym.device.cuda.model import Witness
from ptxgym.device.protocol import InstructionCount
from ptxgym.judge.judge import Judgement
from ptxgym.plan.model import BufferRef, Copy, Launch, LaunchPlan, Memset
from ptxgym.reward import score
from ptxgym.verdict import Evidence, KernelProfile, Status, Timing

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


def plan(*operations: Launch | Memset | Copy) -> LaunchPlan:
    return LaunchPlan(
        build_key="", device_profile="h200", axes={}, buffers=(), operations=operations, isolation="full",
        recorder_revision=1,
    )  # fmt: skip


def launch(stream: int = 0, programmatic: bool = False) -> Launch:
    return Launch(
        kernel="k", grid=(1, 1, 1), block=(32, 1, 1), dynamic_smem_bytes=0, params=(), stream=stream,
        programmatic=programmatic,
    )  # fmt: skip


FILL = Memset(target=BufferRef(buffer="C"), value=0, width_bytes=4, count=25_000_000)


@pytest.mark.parametrize(
    ("operations", "durations_us", "timed_us", "agrees"),
    [
        ((launch(),), (700.0,), 750.0, True),
        ((launch(),), (700.0,), 100.0, False),  # honest work under the profiler only
        ((launch(),), (100.0,), 700.0, False),
        ((launch(),), (3.0,), 9.0, True),  # an empty kernel and its launch
        ((launch(), launch()), (400.0, 400.0), 410.0, False),
        ((launch(), launch(stream=3)), (400.0, 400.0), 410.0, True),  # beside each other
        ((launch(), launch(stream=3)), (400.0, 400.0), 200.0, False),
        ((launch(), *[launch(programmatic=True)] * 3), (600.0,) * 4, 650.0, True),  # each beside the one before it
        ((launch(), *[launch(programmatic=True)] * 3), (600.0,) * 4, 2400.0, True),
        ((launch(), *[launch(programmatic=True)] * 3), (600.0,) * 4, 300.0, False),
        ((launch(programmatic=True), launch()), (600.0,) * 2, 650.0, False),
        ((launch(), launch(programmatic=True), launch()), (600.0,) * 3, 650.0, False),
        ((launch(), launch(programmatic=True), launch()), (600.0,) * 3, 1250.0, True),
        ((launch(), FILL, launch(programmatic=True)), (600.0,) * 2, 650.0, False),  # replayed as an ordinary one
        ((launch(), launch(3, programmatic=True)), (400.0, 400.0), 410.0, True),
        ((FILL, launch()), (100.0,), 190.0, True),  # the fill is not profiled
        ((launch(),), (100.0,), 190.0, False),
        (tuple(launch() for _ in range(20)), (2.0,) * 20, 140.0, True),  # gaps between short kernels
    ],
)
def test_profiled_and_timed_durations_must_agree(
    operations: tuple[Launch, ...], durations_us: tuple[float, ...], timed_us: float, agrees: bool
) -> None:
    assert (duration_problem(plan(*operations), durations_us, timed_us) is None) is agrees


@pytest.mark.parametrize(("tflops", "needs"), [(400.0, True), (579.0, True), (None, True), (581.0, False)])
def test_what_older_instructions_reach_is_asked_of_the_rate_not_of_a_slow_library(
    tflops: float | None, needs: bool
) -> None:
    timing = Timing(
        speedup=1.2, speedup_low=1.19, speedup_high=1.21, candidate_us=100.0, baseline_us=120.0, baseline="slow",
        pairs=16, stopped="narrow", tflops=tflops,
    )  # fmt: skip
    assert needs_counting(timing) is needs
    assert needs_counting(None)


def evidence(source: str, coverage: float, other: float) -> Evidence:
    return Evidence(
        source=source,
        workload="any",
        required_multiply_adds=FULL,
        target_multiply_adds=round(coverage * FULL),
        other_multiply_adds=round(other * FULL),
        coverage=coverage,
        target_ok=coverage >= 0.9 and other <= 0.1,
        families={},
    )


@pytest.mark.parametrize(
    ("profiled", "emulated", "least", "said"),
    [
        ((0.89, 0.05), (0.0, 1.0), 0.20, "0.89 under the profiler, but 0.00 without one"),
        ((1.0, 0.15), (0.0, 1.0), 0.20, "0.94 under the profiler, but 0.00 without one"),
        ((0.6, 0.4), (0.3, 0.7), 0.30, "0.60 under the profiler, but 0.30 without one"),
        ((0.6, 0.4), (0.55, 0.45), 0.40, None),  # the control: tiles at the edge weigh more where there are few
        ((0.3, 0.7), (0.6, 0.4), 0.30, None),
    ],
)
def test_a_part_done_under_the_profiler_alone_is_not_credited(
    profiled: tuple[float, float], emulated: tuple[float, float], least: float, said: str | None
) -> None:
    seen = Judgement(status=Status.OK, code="judge.ok", message="", score=0.2, evidence=evidence("emulator", *emulated))
    counted, notes = cross_checked(evidence("ncu", *profiled), Witness(seen))
    assert notes == () and score(Status.OK, (), counted) == least
    assert (counted.explanation or "").startswith(f"credited coverage is {said}") if said else counted.source == "ncu"
