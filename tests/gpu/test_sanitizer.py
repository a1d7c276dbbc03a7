"""compute-sanitizer around the executor on a Hopper GPU: `pytest -m gpu tests/gpu/test_sanitizer.py -s`."""
# ruff: noqa: T201

from __future__ import annotations

import re
import time
from pathlib import Path

import numpy as np
import pytest

from ptxgym.build import Build, build
from ptxgym.device.cuda.gpu import Gpu, profile_of
from ptxgym.device.cuda.sanitizer import TOOLS, Tool, find_sanitizer, sanitize
from ptxgym.plan import Argument, LaunchPlan, record
from ptxgym.verdict import Finding, Severity

pytestmark = [pytest.mark.gpu, pytest.mark.filterwarnings("default")]

N = 1000
SOURCE = Path(__file__).with_name("faults.cu").read_text()
DECLARATION = 'extern "C" void run(const float* A, float* C, int which, int n, cudaStream_t stream)'
A = np.arange(N, dtype=np.float32)


@pytest.fixture(scope="module", autouse=True)
def tool() -> None:
    """Skip where NVIDIA's tool, which pip cannot install, is missing; recorded texts stand in elsewhere."""
    if find_sanitizer() is None:
        pytest.skip("no compute-sanitizer")


@pytest.fixture(scope="module")
def built() -> Build:
    made = build(SOURCE, declaration=DECLARATION, arch="sm_90a")
    assert isinstance(made, Build), made
    return made


def line_of(kernel: str) -> int:
    return next(n for n, text in enumerate(SOURCE.split("\n"), 1) if text.endswith(f"// {kernel}"))


def number_of(kernel: str) -> int:
    match = re.search(rf"case (\d+): {kernel}<<<", SOURCE)
    assert match is not None
    return int(match[1])


def found(gpu: Gpu, built: Build, kernel: str, *tools: Tool, timeout_s: float = 30) -> tuple[Finding, ...]:
    arguments = [Argument("A", "input", 4 * N), Argument("C", "output", 4 * N + 4)]
    plan = record(built, arguments, {"which": number_of(kernel), "n": N}, profile_of(gpu), confined=False)
    assert isinstance(plan, LaunchPlan), plan
    started = time.monotonic()
    findings = sanitize(gpu, built, plan, {"A": A}, tools, timeout_s=timeout_s)
    print(f"\n{kernel}, {' '.join(tools)}: {time.monotonic() - started:.1f} s")
    assert isinstance(findings, tuple), findings
    for finding in findings:
        print(f"  {finding.code} ×{finding.count}: {finding.message}")
    return findings


@pytest.mark.parametrize(
    ("kernel", "code", "words"),
    [
        (
            "write_past",
            "invalid_global_write",
            "writes 4 bytes of global memory out of bounds, 0 bytes past the end of C",
        ),
        ("read_past", "invalid_global_read", "0 bytes past the end of A at line"),
        ("read_far", "invalid_global_read", "far from every buffer"),
        ("misaligned", "misaligned_global_write", "no multiple of 4"),
        ("shared_past", "invalid_shared_write", "at byte 1,200 of its block's shared memory"),
        ("through_null", "invalid_global_write", "through a null pointer"),
        ("in_wrapper", "invalid_global_write", "past the end of C"),
        ("in_function", "invalid_global_write", "past the end of C"),
        ("bulk_past", "invalid_global_write", "across the end of C"),
        ("traps", "trap", "(thread (5, 0, 0) of block (0, 0, 0))"),
        ("bad_mbarrier", "exception", "breaks off"),
    ],
)
def test_memcheck(gpu: Gpu, built: Build, kernel: str, code: str, words: str) -> None:
    first = found(gpu, built, kernel, "memcheck")[0]
    assert (first.code, first.severity) == (f"sanitizer.memcheck.{code}", Severity.ERROR)
    # ptxas puts a trap at the statement behind it.
    assert first.line == line_of(kernel) + (kernel == "traps") and words in first.message
    assert first.kernel is not None and kernel in first.kernel


@pytest.mark.parametrize(
    ("kernel", "tool", "code"),
    [
        ("race", "racecheck", "race"),
        ("divergent", "synccheck", "divergent_thread_s_in_warp"),
        ("bad_mbarrier", "synccheck", "missing_init"),
        ("unwritten", "initcheck", "uninitialised_global_read"),
    ],
)
def test_other_tools(gpu: Gpu, built: Build, kernel: str, tool: Tool, code: str) -> None:
    first = found(gpu, built, kernel, tool)[0]
    assert (first.code, first.severity) == (f"sanitizer.{tool}.{code}", Severity.WARNING)
    assert first.line == line_of(kernel)
    assert first.kernel is not None and kernel in first.kernel


def test_a_kernel_without_faults_is_not_accused(gpu: Gpu, built: Build) -> None:
    assert found(gpu, built, "fine", *TOOLS) == ()


def test_a_hang_ends_in_time(gpu: Gpu, built: Build) -> None:
    started = time.monotonic()
    assert found(gpu, built, "spins", "memcheck", timeout_s=2) == ()
    assert time.monotonic() - started < 20
