"""Failures of host code say at which line of the submission it was, and by which calls it came there."""

from __future__ import annotations

import pytest

from ptxgym.build import Build
from ptxgym.plan.places import lines_of, places
from ptxgym.verdict import Failure, Severity
from tests.plan.conftest import SUBMISSIONS, Recorder, failed, planned

HOSTS = {
    0: "case 0: sink = A[5]; break;",  # a fault
    2: "case 2: sink = *reinterpret_cast<volatile float*>(8); break;",
    4: "case 4: abort();",
    6: "case 6: exit(3);",
    11: "std::thread other([] {});",  # what is inlined from headers
    15: 'std::ifstream file("/etc/hostname");',
    19: 'case 19: dlopen("libcublas.so.13", RTLD_NOW); break;',
    26: "case 26: cudaMemcpy(text, A, 16, cudaMemcpyDeviceToHost); break;",
    31: "lock.lock();",
    35: "cudaMalloc(&p, std::size_t(5) << 30);",
    40: "case 40: cudaFuncSetAttribute(plain, cudaFuncAttributeRequiredClusterWidth, 2); break;",
    44: 'case 44: assert(mode == 1 && "an assertion of mine"); break;',
}
LAUNCHES = {
    0: "case 0: plain<<<1 - step, 32, 0, stream>>>(B); break;",  # equal calls of other lines are not made one
    3: "case 3: plain<<<1, 1 - step, 0, stream>>>(B); break;",
    4: "case 4: plain<<<1, 1024 + step, 0, stream>>>(B); break;",
    9: "case 9: greedy<<<1, n ? 1024 : 128, 0, stream>>>(B, B); break;",
    13: "plain<<<1, 60000 + step, stream>>>(B);",
    18: "case 18: clustered<<<4 + step, 32, 0, stream>>>(B); break;",
}


def lines(failure: Failure) -> list[str]:
    """The lines that a failure shows, checked against the file by their numbers."""
    assert [d.severity for d in failure.diagnostics][:1] in ([], [Severity.ERROR])
    return [(d.source_line or "").strip() for d in failure.diagnostics]


@pytest.mark.parametrize("mode", sorted(HOSTS))
def test_faults_and_refused_calls(hosts: Recorder, mode: int) -> None:
    text = (SUBMISSIONS / "hosts.cu").read_text().split("\n")
    failure = failed(hosts(mode, n=1))
    assert lines(failure) == [HOSTS[mode], "const long long value = n ? misdeed(A, B, mode, stream) : 42;"]
    assert [text[d.line - 1] for d in failure.diagnostics if d.line] == [d.source_line for d in failure.diagnostics]


@pytest.mark.parametrize("mode", sorted(LAUNCHES))
def test_refused_launches(launches: Recorder, mode: int) -> None:
    expected = LAUNCHES[mode].replace("1, 60000", "1, 32, 60000")
    assert lines(failed(launches(mode, n=1))) == [expected]


def test_a_launch_in_a_function_that_others_call(launches: Recorder, hosts: Recorder, streams: Recorder) -> None:
    first, second = lines(failed(launches(14, n=1)))
    assert first == "cudaLaunchKernelExC(&configuration, kernel, arguments);"
    assert second.startswith("case 14: extended(ADDRESS(plain)")
    # What is found only when two recordings are compared, or when all is recorded, is placed too.
    for failure in (failed(hosts(20, n=1)), failed(hosts(33, n=1))):
        assert lines(failure)[0] == "plain<<<1, 32, 0, stream>>>(in, out, value);"
    assert lines(failed(hosts(20, n=1)))[1] == "launch(A, B, value, stream);"
    assert lines(failed(streams(9, n=2)))[1] == "if (n == 2) launch(2, side);"


def test_failed_calls_have_lines(hosts: Recorder) -> None:
    text = (SUBMISSIONS / "hosts.cu").read_text().split("\n")
    line = 1 + next(i for i, words in enumerate(text) if "cudaMemset(nullptr" in words)
    (call,) = planned(hosts(53, n=1)).failed_calls
    assert call.startswith(f"cudaMemset at line {line}: cudaErrorInvalidValue")
    line = 1 + next(i for i, words in enumerate(text) if "case 52:" in words)
    assert f"cudaFuncSetAttribute at line {line} had failed" in failed(hosts(52, n=1)).message


def test_a_failure_without_a_place(hosts: Recorder) -> None:
    assert failed(hosts(0, n=2)).diagnostics == ()


def test_forged_frames_are_no_lines(features_build: Build) -> None:
    frames = (0, 1, (1 << 64) - 1, 1 << 40)
    assert lines_of(features_build, frames) == () and places(features_build, frames) == ()
