"""NVML through ctypes: what the driver says about GPUs, without a CUDA context and without torch.

Function signatures and constants: NVML API reference (`nvml.h`), CUDA 13.0.
"""

from __future__ import annotations

import contextlib
import ctypes
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

_TEXT_BYTES = 96
_UNCORRECTED, _VOLATILE = 1, 0
_EVENT_XID = 0x8
_LIBRARY = "libnvidia-ml.so.1"


class NvmlError(Exception):
    """Raised when NVML refuses a call; the message names call and code."""


@dataclass(frozen=True)
class Described:
    """One GPU as NVML describes it."""

    index: int
    uuid: str
    name: str
    cc: tuple[int, int]
    memory_bytes: int
    mig: bool


@dataclass(frozen=True)
class Counters:
    """What tells whether a GPU is well."""

    free_bytes: int
    uncorrected_ecc: int | None
    """Since the driver was loaded; None where the GPU has no ECC."""
    remap_pending: bool
    """Rows of memory wait for a reset to be replaced."""
    remap_failed: bool


class Nvml:
    """An initialised NVML; use `opened()`."""

    def __init__(self, library: ctypes.CDLL) -> None:
        self._library = library

    def call(self, name: str, *arguments: Any) -> None:
        """Call the function `name`.

        Raises:
            NvmlError: if the library lacks it or it fails.
        """
        try:
            code = getattr(self._library, name)(*arguments)
        except AttributeError:
            raise NvmlError(f"{name}: this driver's NVML lacks it") from None
        if code:
            raise NvmlError(f"{name} failed with code {code}")

    def text(self, name: str, *arguments: Any) -> str:
        """Call a function that fills a text buffer, its last two arguments."""
        buffer = ctypes.create_string_buffer(_TEXT_BYTES)
        self.call(name, *arguments, buffer, ctypes.c_uint(_TEXT_BYTES))
        return buffer.value.decode(errors="replace")

    @property
    def driver(self) -> str:
        """Version of the driver, such as `580.95.05`."""
        return self.text("nvmlSystemGetDriverVersion")

    def handle(self, uuid: str) -> ctypes.c_void_p:
        """Return the handle of the GPU `uuid`."""
        handle = ctypes.c_void_p()
        self.call("nvmlDeviceGetHandleByUUID", uuid.encode(), ctypes.byref(handle))
        return handle

    def devices(self) -> list[Described]:
        """Return every GPU that the driver shows to this process and that answers; one that is lost hides no other."""
        count = ctypes.c_uint()
        self.call("nvmlDeviceGetCount_v2", ctypes.byref(count))
        found: list[Described] = []
        for index in range(count.value):
            with contextlib.suppress(NvmlError):
                found.append(self._described(index))
        return found

    def _described(self, index: int) -> Described:
        handle = ctypes.c_void_p()
        self.call("nvmlDeviceGetHandleByIndex_v2", ctypes.c_uint(index), ctypes.byref(handle))
        major, minor = ctypes.c_int(), ctypes.c_int()
        self.call("nvmlDeviceGetCudaComputeCapability", handle, ctypes.byref(major), ctypes.byref(minor))
        return Described(
            index=index,
            uuid=self.text("nvmlDeviceGetUUID", handle),
            name=self.text("nvmlDeviceGetName", handle),
            cc=(major.value, minor.value),
            memory_bytes=self._memory(handle)[0],
            mig=self._mig(handle),
        )

    def _memory(self, handle: ctypes.c_void_p) -> tuple[int, int]:
        """Total and free bytes."""
        values = (ctypes.c_ulonglong * 3)()
        self.call("nvmlDeviceGetMemoryInfo", handle, values)
        return int(values[0]), int(values[1])

    def _mig(self, handle: ctypes.c_void_p) -> bool:
        current, pending = ctypes.c_uint(), ctypes.c_uint()
        try:
            self.call("nvmlDeviceGetMigMode", handle, ctypes.byref(current), ctypes.byref(pending))
        except NvmlError:  # a GPU that has no MIG
            return False
        return bool(current.value)

    def counters(self, uuid: str) -> Counters:
        """Return free memory, ECC errors and remapped rows of a GPU."""
        handle = self.handle(uuid)
        ecc = ctypes.c_ulonglong()
        errors: int | None = None
        with contextlib.suppress(NvmlError):
            self.call(
                "nvmlDeviceGetTotalEccErrors",
                handle,
                ctypes.c_uint(_UNCORRECTED),
                ctypes.c_uint(_VOLATILE),
                ctypes.byref(ecc),
            )
            errors = ecc.value
        rows = [ctypes.c_uint() for _ in range(4)]  # correctable, uncorrectable, pending, failed
        with contextlib.suppress(NvmlError):
            self.call("nvmlDeviceGetRemappedRows", handle, *(ctypes.byref(row) for row in rows))
        return Counters(self._memory(handle)[1], errors, bool(rows[2].value), bool(rows[3].value))


@contextlib.contextmanager
def opened() -> Iterator[Nvml]:
    """Open NVML for a few questions.

    Raises:
        NvmlError: if there is no driver, or it does not answer.
    """
    try:
        library = ctypes.CDLL(_LIBRARY)
    except OSError as error:
        raise NvmlError(f"{_LIBRARY}: {error}") from None
    nvml = Nvml(library)
    nvml.call("nvmlInit_v2")
    try:
        yield nvml
    finally:
        nvml.call("nvmlShutdown")


class _Event(ctypes.Structure):
    _fields_ = (
        ("device", ctypes.c_void_p),
        ("type", ctypes.c_ulonglong),
        ("data", ctypes.c_ulonglong),
        ("gpu_instance", ctypes.c_uint),
        ("compute_instance", ctypes.c_uint),
    )


class XidWatch:
    """The Xid errors that the driver reports for one GPU from now on; it keeps NVML open."""

    def __init__(self, uuid: str) -> None:
        """Start watching.

        Raises:
            NvmlError: where the driver offers no events, as in some containers.
        """
        try:
            self._nvml = Nvml(ctypes.CDLL(_LIBRARY))
        except OSError as error:
            raise NvmlError(f"{_LIBRARY}: {error}") from None
        self._nvml.call("nvmlInit_v2")
        self._set = ctypes.c_void_p()
        self._nvml.call("nvmlEventSetCreate", ctypes.byref(self._set))
        self._nvml.call("nvmlDeviceRegisterEvents", self._nvml.handle(uuid), ctypes.c_ulonglong(_EVENT_XID), self._set)

    def seen(self) -> tuple[int, ...]:
        """Return the Xid numbers that came since the last call, without waiting."""
        found: list[int] = []
        event = _Event()
        while True:
            try:
                self._nvml.call("nvmlEventSetWait_v2", self._set, ctypes.byref(event), ctypes.c_uint(0))
            except NvmlError:  # no more: the time-out of 0 ms
                return tuple(found)
            found.append(int(event.data))
