"""Device memory of the judge process that executors may map: inputs they read, and slots they write results to.

Allocated by the CUDA virtual memory interface, since only that can be exported as a file descriptor. Used in the judge
process alone; nothing here is imported by the evaluator's.
"""

from __future__ import annotations

import itertools
import os
import sys
import threading
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from ptxgym.errors import InfrastructureError

_serials = itertools.count(1)


class Region:
    """One exported allocation on the current GPU, mapped in this process as long as it lives."""

    def __init__(self, size_bytes: int, mapped_bytes: int, handle: Any, address: int, fd: int) -> None:
        """Take over what `allocate` made."""
        self.size_bytes = size_bytes
        """Bytes asked for."""
        self.mapped_bytes = mapped_bytes
        """Bytes allocated: a multiple of the GPU's granularity (2 MiB)."""
        self.fd = fd
        """Exported handle; stays this object's."""
        self.serial = next(_serials)
        """Never the same for two regions of this process."""
        self._handle = handle
        self._address = address
        self._array: Any = None

    @classmethod
    def allocate(cls, size_bytes: int) -> Region:
        """Allocate at least `size_bytes` on the GPU of the current context (cupy's, made if there is none).

        Raises:
            InfrastructureError: if the GPU has no such memory, or cannot export it.
        """
        import cupy
        from cuda.bindings import driver

        cupy.cuda.runtime.free(0)  # makes the primary context current
        device = cupy.cuda.Device().id
        properties = driver.CUmemAllocationProp()
        properties.type = driver.CUmemAllocationType.CU_MEM_ALLOCATION_TYPE_PINNED
        properties.requestedHandleTypes = driver.CUmemAllocationHandleType.CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR
        properties.location.type = driver.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE
        properties.location.id = device
        recommended = driver.CUmemAllocationGranularity_flags.CU_MEM_ALLOC_GRANULARITY_RECOMMENDED
        (granularity,) = _checked(driver.cuMemGetAllocationGranularity(properties, recommended))
        mapped_bytes = max(-(-size_bytes // granularity), 1) * granularity
        (handle,) = _checked(driver.cuMemCreate(mapped_bytes, properties, 0), f"{size_bytes:,} bytes")
        try:
            (address,) = _checked(driver.cuMemAddressReserve(mapped_bytes, 0, 0, 0))
            try:
                _checked(driver.cuMemMap(address, mapped_bytes, 0, handle, 0))
                access = driver.CUmemAccessDesc()
                access.location = properties.location
                access.flags = driver.CUmemAccess_flags.CU_MEM_ACCESS_FLAGS_PROT_READWRITE
                _checked(driver.cuMemSetAccess(address, mapped_bytes, [access], 1))
                (fd,) = _checked(driver.cuMemExportToShareableHandle(handle, properties.requestedHandleTypes, 0))
            except InfrastructureError:
                driver.cuMemUnmap(address, mapped_bytes)
                driver.cuMemAddressFree(address, mapped_bytes)
                raise
        except InfrastructureError:
            driver.cuMemRelease(handle)
            raise
        return cls(size_bytes, mapped_bytes, handle, int(address), int(fd))

    @property
    def array(self) -> Any:
        """The memory as a cupy array, uint8 [size_bytes]; not to be used after `close`."""
        if self._array is None:
            import cupy

            # The region, not the array, owns the memory: views that outlive it would be the caller's mistake.
            memory = cupy.cuda.UnownedMemory(self._address, self.mapped_bytes, self)
            self._array = cupy.ndarray((self.size_bytes,), cupy.uint8, cupy.cuda.MemoryPointer(memory, 0))
        return self._array

    def fill(self, at: int, source: Region) -> None:
        """Copy all of `source` to byte `at` and further; over after `finish`."""
        self._copy(self._address + at, source._address, source.size_bytes)

    def take(self, source: Region, at: int) -> None:
        """Copy what lies in `source` from byte `at` on, as much as this region holds; over after `finish`."""
        self._copy(self._address, source._address + at, self.size_bytes)

    @staticmethod
    def _copy(target: int, source: int, size_bytes: int) -> None:
        import cupy

        stream = cupy.cuda.get_current_stream().ptr
        cupy.cuda.runtime.memcpyAsync(target, source, size_bytes, cupy.cuda.runtime.memcpyDeviceToDevice, stream)

    @staticmethod
    def finish() -> None:
        """Wait for the copies that this thread has begun."""
        import cupy

        cupy.cuda.get_current_stream().synchronize()

    def close(self) -> None:
        """Give the memory back; executors that have mapped it keep it until they end or forget it."""
        if self._handle is None or sys.is_finalizing():  # in the end the driver takes everything back
            return
        from cuda.bindings import driver

        self._array = None
        os.close(self.fd)
        _checked(driver.cuMemUnmap(self._address, self.mapped_bytes))
        _checked(driver.cuMemAddressFree(self._address, self.mapped_bytes))
        _checked(driver.cuMemRelease(self._handle))
        self._handle = None


class RegionPool:
    """Regions that are used again, by allocated size; safe to share among threads."""

    def __init__(self, limit_bytes: int) -> None:
        """Keep at most `limit_bytes` of idle regions."""
        self._limit_bytes = limit_bytes
        self._idle: dict[int, list[Region]] = defaultdict(list)
        self._idle_bytes = 0
        self._mutex = threading.Lock()

    def take_spare(self, size_bytes: int) -> Region | None:
        """Return a region as `take` does, or None where memory is short: others keep what is idle."""
        try:
            return self._idle_or_new(size_bytes)
        except InfrastructureError:
            return None

    def take(self, size_bytes: int) -> Region:
        """Return a region of exactly `size_bytes`, which may hold anything; raises as `Region.allocate`."""
        try:
            return self._idle_or_new(size_bytes)
        except InfrastructureError:
            self.close()  # idle regions of other sizes may be in the way
            return Region.allocate(size_bytes)

    def _idle_or_new(self, size_bytes: int) -> Region:
        with self._mutex:
            idle = self._idle[size_bytes]
            if idle:
                region = idle.pop()
                self._idle_bytes -= region.mapped_bytes
                return region
        return Region.allocate(size_bytes)

    def give_back(self, region: Region) -> None:
        """Keep a region for the next that wants its size, or close it where enough are kept."""
        with self._mutex:
            keeps = self._idle_bytes + region.mapped_bytes <= self._limit_bytes
            if keeps:
                self._idle[region.size_bytes].append(region)
                self._idle_bytes += region.mapped_bytes
        if not keeps:
            region.close()

    @contextmanager
    def slot(self, size_bytes: int) -> Iterator[Region]:
        """Lend a region."""
        region = self.take(size_bytes)
        try:
            yield region
        finally:
            self.give_back(region)

    def close(self) -> None:
        """Close the idle regions."""
        with self._mutex:
            regions = [region for idle in self._idle.values() for region in idle]
            self._idle.clear()
            self._idle_bytes = 0
        for region in regions:
            region.close()


def _checked(answer: tuple[Any, ...], what: str = "") -> tuple[Any, ...]:
    """Return what a driver call gave beside its CUresult."""
    result, *values = answer
    if int(result):
        raise InfrastructureError(f"the CUDA driver refuses a memory region{f' of {what}' if what else ''}: {result!r}")
    return tuple(values)
