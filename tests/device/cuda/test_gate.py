"""A flag that a stream waits for, on a driver that is none."""

from __future__ import annotations

import ctypes
import sys
import threading
import time
from types import SimpleNamespace
from typing import Any

import pytest

from ptxgym.device.cuda import gate as gates
from ptxgym.device.cuda.gate import Gate
from ptxgym.errors import InfrastructureError


class Driver:
    """What `cuda.bindings.driver` is to a gate."""

    CU_MEMHOSTALLOC_DEVICEMAP = 2
    CUdevice_attribute = SimpleNamespace(CU_DEVICE_ATTRIBUTE_CAN_USE_64_BIT_STREAM_MEM_OPS=93)
    CUstreamWaitValue_flags = SimpleNamespace(CU_STREAM_WAIT_VALUE_GEQ=0)

    def __init__(self, works: int = 1) -> None:
        self.works, self.refuses = works, 0
        self.memory = ctypes.c_uint32(77)
        self.waits: list[tuple[int, int, int]] = []
        self.timers: list[int] = []
        """How many timers ran when a stream was told to wait."""

    def cuCtxGetDevice(self) -> tuple[int, int]:  # noqa: N802
        return 0, 0

    def cuDeviceGetAttribute(self, which: int, device: int) -> tuple[int, int]:  # noqa: N802
        assert which == 93
        return 0, self.works

    def cuMemHostAlloc(self, size_bytes: int, flags: int) -> tuple[int, int]:  # noqa: N802
        assert (size_bytes, flags) == (4, 2)
        return 0, ctypes.addressof(self.memory)

    def cuMemHostGetDevicePointer(self, address: int, flags: int) -> tuple[int, int]:  # noqa: N802
        return 0, address + 1000

    def cuStreamWaitValue32(self, stream: int, address: int, value: int, flags: int) -> tuple[int]:  # noqa: N802
        assert address == ctypes.addressof(self.memory) + 1000
        self.waits.append((stream, value, flags))
        self.timers.append(sum(isinstance(thread, threading.Timer) for thread in threading.enumerate()))
        return (self.refuses,)


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch) -> Driver:
    return installed(monkeypatch, Driver())


def installed(monkeypatch: pytest.MonkeyPatch, driver: Driver) -> Driver:
    for name, module in (("cuda", SimpleNamespace()), ("cuda.bindings", SimpleNamespace(driver=driver))):
        monkeypatch.setitem(sys.modules, name, module)
    return driver


def test_the_stream_waits_until_all_is_enqueued(driver: Driver) -> None:
    gate = Gate()
    assert driver.memory.value == 0
    for number in (1, 2, 3):
        with gate.closed(42):
            assert driver.waits == [(42, one, 0) for one in range(1, number + 1)]
            assert driver.memory.value < number
        assert driver.memory.value == number


def test_an_error_inside_opens_it(driver: Driver) -> None:
    gate = Gate()
    with pytest.raises(ZeroDivisionError), gate.closed(0):
        raise ZeroDivisionError
    assert driver.memory.value == 1


def test_who_waits_for_the_gpu_inside_is_told(driver: Driver, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gates, "PATIENCE_S", 0.02)
    gate = Gate()

    def wait_for_gpu() -> None:
        deadline = time.monotonic() + 10
        while driver.memory.value < 1 and time.monotonic() < deadline:
            time.sleep(0.001)

    with gate.closed(0) as held:
        wait_for_gpu()
    assert held.forced
    with gate.closed(0) as held:  # the next call is another one
        assert driver.memory.value == 1
    assert driver.memory.value == 2 and not held.forced


def test_no_thread_is_started_behind_the_closed_gate(driver: Driver) -> None:
    """Starting one waits for it, and so for Python's global lock."""
    with Gate().closed(0):
        pass
    assert driver.timers == [1]


def test_refusals_are_errors(driver: Driver) -> None:
    driver.refuses = 1
    with pytest.raises(InfrastructureError, match="refuses a gate"), Gate().closed(0):
        pass
    assert driver.memory.value == 1  # what the driver took nevertheless does not wait for ever


def test_gpus_that_cannot_wait_for_memory_are_not_asked_to(monkeypatch: pytest.MonkeyPatch) -> None:
    driver = installed(monkeypatch, Driver(works=0))
    inside: list[Any] = []
    with Gate().closed(0) as held:
        inside.append(1)
    assert inside == [1] and driver.waits == [] and held.forced
