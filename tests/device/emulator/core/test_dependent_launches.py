"""Programmatic dependent launch: what a launch may touch before griddepcontrol.wait."""

from __future__ import annotations

import numpy as np
import pytest

from ptxgym.build.model import Build
from ptxgym.device.emulator.device import EmulatorDevice
from ptxgym.device.protocol import Bytes, RunOptions
from ptxgym.plan.model import BufferRef, Launch, Memset, Operation
from ptxgym.verdict import Finding, Severity
from tests.device.emulator.core.test_device import N, executed, launch, literal, plan, pointer

GIVEN = np.arange(N, dtype="<i4")
SHAPE = {"grid": N // 128, "block": 128}
COUNT = literal("<i", N)
WORK = pointer("workspace0")


def produce(kernel: str) -> Launch:
    return launch(kernel, WORK, pointer("in"), COUNT, **SHAPE)  # type: ignore[arg-type]


def consume(kernel: str, **more: object) -> Launch:
    return launch(kernel, pointer("out"), WORK, COUNT, programmatic=True, **SHAPE, **more)  # type: ignore[arg-type]


def run(
    device: EmulatorDevice, build: Build, *operations: Operation, threads: int = 1
) -> tuple[np.ndarray, tuple[Finding, ...]]:
    buffers: dict[str, Bytes] = {"in": GIVEN.view(np.uint8), "out": np.zeros(4 * N, np.uint8)}
    done = executed(device.run(build, plan(*operations, workspace=4 * N), buffers, RunOptions(threads=threads)))
    return done.buffers["out"].view("<i4"), done.findings


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize(
    ("producer", "consumer", "found"),
    [
        ("signals_early", "waits", None),
        ("signals_late", "waits", None),
        ("signals_early", "does_not_wait", ("griddepcontrol.race", Severity.ERROR)),
        ("signals_late", "does_not_wait", ("griddepcontrol.no_wait", Severity.WARNING)),
    ],
)
def test_what_the_launch_before_writes_is_read_after_the_wait(
    device: EmulatorDevice, build: Build, producer: str, consumer: str, found: tuple[str, Severity] | None, threads: int
) -> None:
    out, findings = run(device, build, produce(producer), consume(consumer), threads=threads)
    np.testing.assert_array_equal(out, 3 * (GIVEN + 1))
    assert [(f.code, f.severity) for f in findings] == ([found] if found else [])
    if found:
        assert "the line that should have waited" in (findings[0].source_line or "")
        assert "workspace0" in findings[0].message


def test_what_nobody_writes_may_be_read_at_once(device: EmulatorDevice, build: Build) -> None:
    prologue = launch(
        "reads_own_then_waits",
        pointer("out"),
        pointer("in"),
        WORK,
        COUNT,
        programmatic=True,
        **SHAPE,  # type: ignore[arg-type]
    )
    out, findings = run(device, build, produce("signals_early"), prologue)
    assert not findings and (out == 1).all()


def test_without_the_attribute_launches_follow_each_other(device: EmulatorDevice, build: Build) -> None:
    plain = consume("does_not_wait").model_copy(update={"programmatic": False})
    assert not run(device, build, produce("signals_early"), plain)[1]


def test_what_is_no_launch_is_over_before_a_launch_begins(device: EmulatorDevice, build: Build) -> None:
    between = Memset(target=BufferRef(buffer="out"), value=0, width_bytes=4, count=4)
    assert not run(device, build, produce("signals_early"), between, consume("does_not_wait"))[1]
    assert not run(device, build, produce("signals_early"), consume("does_not_wait", after=(0,)))[1]


def test_writing_what_the_launch_before_still_reads(device: EmulatorDevice, build: Build) -> None:
    """The second launch overwrites the input of the first."""
    overwrites = launch("does_not_wait", pointer("in"), pointer("in"), COUNT, programmatic=True, **SHAPE)  # type: ignore[arg-type]
    _, late = run(device, build, produce("signals_early"), overwrites)
    assert [(f.code, f.severity) for f in late] == [("griddepcontrol.race", Severity.ERROR)]
    assert "reads byte" in late[0].message and "this one writes it" in late[0].message
    assert not run(device, build, produce("signals_late"), overwrites)[1], "its reads were over when it signalled"


def test_a_launch_that_does_not_wait_orders_nothing_for_the_next(device: EmulatorDevice, build: Build) -> None:
    """The third launch waits for the second, which has not waited for the first."""
    bystander = launch("does_not_wait", pointer("out"), pointer("in"), COUNT, programmatic=True, **SHAPE)  # type: ignore[arg-type]
    last = consume("does_not_wait")
    _, findings = run(device, build, produce("signals_early"), bystander, last)
    assert [f.code for f in findings if "workspace0" in f.message] == ["griddepcontrol.race"]
    waits = launch("waits", pointer("out"), pointer("in"), COUNT, programmatic=True, **SHAPE)  # type: ignore[arg-type]
    _, findings = run(device, build, produce("signals_early"), waits, last)
    assert not [f for f in findings if "workspace0" in f.message]
