"""Bytes of a parameter that no kernel reads are no part of a plan, whatever lay on the host's stack there."""

from __future__ import annotations

import struct

import numpy as np
import pytest

from ptxgym.build import Build
from ptxgym.device.emulator.device import EmulatorDevice
from ptxgym.device.protocol import Execution, RunOptions
from ptxgym.plan import LaunchPlan, device_profile, record
from ptxgym.plan.model import BufferRef, PointerRef, TensorMapRef
from ptxgym.verdict import Failure, Status
from tests.plan.conftest import ARGUMENTS, LIMITS, SUBMISSIONS, compiled, failed, planned

MEMBERS, PADDING, INDEXED, PASSED, ODD_PADDING, ODD_MEMBER = range(6)
SCALE, ROWS = 2.0, 7


@pytest.fixture(scope="module")
def build() -> Build:
    return compiled((SUBMISSIONS / "padding.cu").read_text())


def recorded(build: Build, mode: int) -> LaunchPlan | Failure:
    return record(build, ARGUMENTS, {"mode": mode, "n": 5}, device_profile("h100"), limits=LIMITS)


@pytest.mark.parametrize("mode", [MEMBERS, ODD_PADDING])
def test_padding_that_differs_from_call_to_call_is_zeros(build: Build, mode: int) -> None:
    plan = planned(recorded(build, mode))
    struct_, out, _ = plan.launches[0].params
    assert struct_.raw == struct.pack("<8xi116x128xf124x", ROWS, SCALE)
    map_of_tile = 2  # the third that the call makes
    assert struct_.refs == (
        PointerRef(at=0, target=BufferRef(buffer="A")),
        TensorMapRef(at=128, index=map_of_tile),
    )
    assert out.refs == (PointerRef(at=0, target=BufferRef(buffer="B")),)
    assert plan.tensor_maps[map_of_tile].global_address == BufferRef(buffer="A", offset=256)


def test_the_kernel_gets_every_member(build: Build) -> None:
    plan = planned(recorded(build, MEMBERS))
    values = np.arange(ARGUMENTS[0].size_bytes // 4, dtype=np.float32)
    device = EmulatorDevice()
    try:
        ran = device.run(
            build, plan, {"A": values.view(np.uint8), "B": np.zeros(ARGUMENTS[1].size_bytes, np.uint8)}, RunOptions()
        )
    finally:
        device.close()
    assert isinstance(ran, Execution), ran
    assert not ran.findings
    result = np.frombuffer(bytes(ran.buffers["B"]), np.float32)
    assert result[:32].tolist() == [SCALE * (64 + lane) + ROWS + 1 for lane in range(32)]
    assert not result[32:].any()


@pytest.mark.parametrize("mode", [PADDING, INDEXED, PASSED, ODD_MEMBER])
def test_bytes_that_a_kernel_reads_or_may_read_must_not_differ(build: Build, mode: int) -> None:
    """At a constant place, at one that a number says, in a function that got the address; and a member."""
    failure = failed(recorded(build, mode))
    assert (failure.status, failure.code) == (Status.PLAN_ERROR, "plan.later_call"), failure.message
    assert "parameter 0 of operation 0" in failure.message and "holds another value" in failure.message
