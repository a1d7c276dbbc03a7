"""Real submissions, each compiled once, with many hosts chosen by the axis `mode`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from ptxgym.build import Build, build
from ptxgym.plan import Argument, LaunchPlan, RecordLimits, device_profile, record
from ptxgym.verdict import Failure

DECLARATION = 'extern "C" void run(const float* A, float* B, int mode, int n, cudaStream_t stream)'
SUBMISSIONS = Path(__file__).parent / "submissions"
ARGUMENTS = (Argument("A", "input", 4096 + 16), Argument("B", "output", 4096))
LIMITS = RecordLimits(cpu_s=1, memory_bytes=512 << 20)

Recorder = Callable[..., LaunchPlan | Failure]


def compiled(text: str, arch: str = "sm_90a") -> Build:
    """Compile a submission that is known to be right."""
    product = build(text, declaration=DECLARATION, arch=arch)
    assert isinstance(product, Build), product
    return product


def _recorder(product: Build) -> Recorder:
    def run(mode: int, n: int = 0, profile: str = "h100") -> LaunchPlan | Failure:
        axes = {"mode": mode, "n": n}
        return record(product, ARGUMENTS, axes, device_profile(profile), limits=LIMITS)

    return run


@pytest.fixture(scope="session")
def features_build() -> Build:
    """Honest host code."""
    return compiled((SUBMISSIONS / "features.cu").read_text())


@pytest.fixture(scope="session")
def features(features_build: Build) -> Recorder:
    """Record one feature of `features.cu`."""
    return _recorder(features_build)


@pytest.fixture(scope="session")
def streams() -> Recorder:
    """Record one way to order the streams of `streams.cu`."""
    return _recorder(compiled((SUBMISSIONS / "streams.cu").read_text()))


@pytest.fixture(scope="session")
def launches_build() -> Build:
    """Launches at a limit, and beyond."""
    return compiled((SUBMISSIONS / "launches.cu").read_text())


@pytest.fixture(scope="session")
def launches(launches_build: Build) -> Recorder:
    """Record one launch of `launches.cu`."""
    return _recorder(launches_build)


@pytest.fixture(scope="session")
def hosts() -> Recorder:
    """Record one misdeed of `hosts.cu`, or its honest twin."""
    return _recorder(compiled((SUBMISSIONS / "hosts.cu").read_text()))


def planned(outcome: LaunchPlan | Failure) -> LaunchPlan:
    """Return the plan, failing the test with the message where there is none."""
    assert isinstance(outcome, LaunchPlan), outcome
    return outcome


def failed(outcome: LaunchPlan | Failure) -> Failure:
    """Return the failure."""
    assert isinstance(outcome, Failure), "a plan where a failure was due"
    return outcome
