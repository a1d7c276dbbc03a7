"""Holds a stream back until all of a timed call is enqueued, so that no gap of the host lies between its events.

A thread that waits for Python's global lock, or for a processor, may take milliseconds from one enqueued command to the
next. Behind a gate this costs nothing: the GPU begins when the last command is there.
"""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from ptxgym.errors import InfrastructureError

PATIENCE_S = 0.2
"""A gate that is still closed after this is opened by force: whoever enqueues waits for the GPU himself."""


@dataclass
class Held:
    """What became of a closed gate."""

    forced: bool = False
    """Whether it was open before all was enqueued, so that gaps of the host may lie between the commands."""


class Gate:
    """One flag in host memory that streams of the current context wait for; used by one thread at a time."""

    def __init__(self) -> None:
        """Allocate the flag.

        Raises:
            InfrastructureError: if the driver refuses it.
        """
        from cuda.bindings import driver

        self._driver = driver
        works = driver.CUdevice_attribute.CU_DEVICE_ATTRIBUTE_CAN_USE_64_BIT_STREAM_MEM_OPS
        (device,) = _checked(driver.cuCtxGetDevice())
        (self._works,) = _checked(driver.cuDeviceGetAttribute(works, device))
        """Not with some virtual GPUs; what is enqueued in front then has to hide the host's gaps."""
        self._number = 0
        if self._works:
            (self._address,) = _checked(driver.cuMemHostAlloc(4, driver.CU_MEMHOSTALLOC_DEVICEMAP))
            self._flag = ctypes.c_uint32.from_address(int(self._address))
            self._flag.value = 0

    @contextmanager
    def closed(self, stream: int) -> Iterator[Held]:
        """Hold back what is enqueued on `stream` (a CUstream) inside.

        Raises:
            InfrastructureError: if the driver refuses to.
        """
        held = Held(forced=not self._works)
        if not self._works:
            yield held
            return
        self._number += 1
        number = self._number  # a timer that fires late must not open the next call's gate
        late = threading.Timer(PATIENCE_S, lambda: self._open(number))
        late.daemon = True
        late.start()  # waits for its thread, which must not take time from who enqueues behind the closed gate
        at_least = self._driver.CUstreamWaitValue_flags.CU_STREAM_WAIT_VALUE_GEQ
        try:
            (device_address,) = _checked(self._driver.cuMemHostGetDevicePointer(self._address, 0))
            _checked(self._driver.cuStreamWaitValue32(stream, device_address, number, at_least))
            yield held
            held.forced = self._flag.value == number
        finally:
            late.cancel()
            self._open(number)

    def _open(self, number: int) -> None:
        if self._flag.value < number:
            self._flag.value = number


def _checked(answer: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return what a driver call gave beside its CUresult."""
    result, *values = answer
    if int(result):
        raise InfrastructureError(f"the CUDA driver refuses a gate for timed calls: {result!r}")
    return tuple(values)
