"""The C++ core through ctypes: programs are loaded once and launched over placed buffers.

Only numpy and the decoder's types are imported here: the worker process, which is all that runs the core, starts fast.
"""

from __future__ import annotations

import ctypes
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ptxgym.device.emulator.ir import (
    CONST_DTYPE,
    EARLY_READ_DTYPE,
    EXTENT_DTYPE,
    INST_DTYPE,
    OP,
    SREG_DTYPE,
    DecodedKernel,
)
from ptxgym.errors import InfrastructureError

Bytes = NDArray[np.uint8]

RECORD_BYTES = 1248
"""`sizeof(FindingRecord)`; checked at load."""
POLICIES = {"fair": 0, "lazy": 1, "random": 2}


class Outcome(IntEnum):
    """Mirrors `enum class Outcome` of core.hpp."""

    OK = 0
    RUNTIME_FAULT = 1
    HANG = 2
    BUDGET = 3
    CONFLICT = 4


class _Kernel(ctypes.Structure):
    _fields_ = [
        ("inst", ctypes.c_void_p), ("ninst", ctypes.c_int64), ("pool", ctypes.c_void_p), ("npool", ctypes.c_int64),
        ("consts", ctypes.c_void_p), ("nconst", ctypes.c_int64), ("sregs", ctypes.c_void_p), ("nsreg", ctypes.c_int64),
        ("reg_bytes", ctypes.c_int64), ("static_smem_bytes", ctypes.c_int64), ("local_bytes", ctypes.c_int64),
        ("param_bytes", ctypes.c_int64), ("features", ctypes.c_uint32), ("early_reads", ctypes.c_void_p),
        ("nearly_reads", ctypes.c_int64), ("extents", ctypes.c_void_p), ("nextents", ctypes.c_int64),
    ]  # fmt: skip


class _Buffer(ctypes.Structure):
    _fields_ = [
        ("base", ctypes.c_uint64), ("size", ctypes.c_uint64), ("data", ctypes.c_void_p),
        ("initialised", ctypes.c_void_p), ("stamps", ctypes.c_void_p), ("name", ctypes.c_char_p),
        ("read_only", ctypes.c_uint32), ("is_input", ctypes.c_uint32),
    ]  # fmt: skip


class _Launch(ctypes.Structure):
    _fields_ = [
        ("grid", ctypes.c_uint32 * 3), ("block", ctypes.c_uint32 * 3), ("dynamic_smem_bytes", ctypes.c_uint32),
        ("policy", ctypes.c_uint32), ("threads", ctypes.c_uint32), ("zero_target_results", ctypes.c_uint32),
        ("cluster", ctypes.c_uint32 * 3), ("explicit_cluster", ctypes.c_uint32),
        ("registers", ctypes.c_uint32), ("cooperative", ctypes.c_uint32), ("programmatic", ctypes.c_uint32),
        ("only", ctypes.c_uint32),
        ("seed", ctypes.c_uint64), ("budget", ctypes.c_uint64), ("resident", ctypes.c_uint64),
        ("max_findings", ctypes.c_uint64), ("buffers", ctypes.c_void_p), ("nbuffers", ctypes.c_int64),
        ("params", ctypes.c_void_p),
    ]  # fmt: skip


class _Result(ctypes.Structure):
    _fields_ = [
        ("outcome", ctypes.c_uint32), ("reran", ctypes.c_uint32), ("warp_instructions", ctypes.c_uint64),
        ("tma_bytes", ctypes.c_uint64), ("warp_counts", ctypes.c_void_p), ("thread_counts", ctypes.c_void_p),
        ("multiply_adds", ctypes.c_void_p), ("busiest", ctypes.c_int64), ("nfindings", ctypes.c_int64),
        ("nprinted", ctypes.c_int64), ("looked", ctypes.c_uint32),
    ]  # fmt: skip


@dataclass(frozen=True)
class PlacedBuffer:
    """An allocation of device memory and its content."""

    name: str
    address: int
    data: Bytes
    """[size]; kernels write into it."""
    initialised: Bytes | None = None
    """[size], 1 where a byte has been written; None where everything is."""
    read_only: bool = False
    is_input: bool = False
    stamps: Bytes | None = None
    """[size], what launches that may overlap did with a byte (launch_control.cpp); None where none may."""


@dataclass(frozen=True)
class LaunchShape:
    """Everything of a launch that is a number."""

    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    dynamic_smem_bytes: int = 0
    schedule: str = "fair"
    seed: int = 0
    threads: int = 1
    """Host threads."""
    zero_target_results: bool = False
    warp_instruction_budget: int = 2_000_000_000
    resident_ctas: int = 0
    """CTAs that the GPU holds at a time; 0: all of the grid."""
    cluster: tuple[int, int, int] | None = None
    """CTAs of a cluster along each axis, which divide the grid; None: the launch has no clusters."""
    registers: int = 0
    """Of each thread, the pool of `setmaxnreg`; 0: not known, and it has no effect."""
    cooperative: bool = False
    """Its CTAs are resident together and share a grid-wide barrier."""
    programmatic: bool = False
    """It may begin before the launch before it is over."""
    only_unit: int | None = None
    """The one CTA, or cluster, that runs; None: all."""
    max_findings: int = 200


@dataclass(frozen=True, eq=False)
class LaunchOutcome:
    """What one launch came to."""

    outcome: Outcome
    reran: bool
    """The CTAs were not independent, and ran one after the other."""
    looked: bool
    """Some CTA has read global memory that others may write: neither an input nor const."""
    warp_instructions: int
    tma_bytes: int
    warp_counts: NDArray[np.uint64]
    """[instructions] warp executions; zeros where the launch failed."""
    thread_counts: NDArray[np.uint64]
    """[instructions] executions by threads whose predicate was on."""
    multiply_adds: NDArray[np.uint64]
    """[instructions] of those whose shape only the run knows (tcgen05.mma); zeros elsewhere."""
    busiest: int
    """Where the launch failed: the most executed instruction of the CTA that ended it; otherwise -1."""
    records: bytes
    """Findings, `RECORD_BYTES` each (`struct FindingRecord`)."""
    printed: str


class Core:
    """The loaded library."""

    def __init__(self, library: Path) -> None:
        """Load `library` and check that both sides mean the same structures.

        Raises:
            InfrastructureError: if they do not.
        """
        self._lib = lib = ctypes.CDLL(str(library))
        lib.emu_load.restype = lib.emu_launch.restype = ctypes.c_void_p
        lib.emu_load.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_int64]
        lib.emu_refresh.argtypes = lib.emu_unload.argtypes = [ctypes.c_void_p]
        lib.emu_launch.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p]
        lib.emu_take.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p]
        sizes = (ctypes.c_int64 * 11)()
        lib.emu_sizes(sizes)
        expected = [
            INST_DTYPE.itemsize, CONST_DTYPE.itemsize, SREG_DTYPE.itemsize, ctypes.sizeof(_Kernel), RECORD_BYTES,
            ctypes.sizeof(_Buffer), ctypes.sizeof(_Launch), ctypes.sizeof(_Result), len(OP),
            EARLY_READ_DTYPE.itemsize, EXTENT_DTYPE.itemsize,
        ]  # fmt: skip
        if list(sizes) != expected:
            raise InfrastructureError(f"the emulator core {library} has structure sizes {list(sizes)}, not {expected}")

    def load(self, decoded: DecodedKernel) -> Program:
        """Bind every instruction of `decoded` to its handler.

        Raises:
            InfrastructureError: if an instruction has none, although the decoder accepted it.
        """
        return Program(self._lib, decoded)


class Program:
    """A kernel in the core."""

    def __init__(self, lib: ctypes.CDLL, decoded: DecodedKernel) -> None:
        self._lib = lib
        self.decoded = decoded
        self._consts = decoded.consts.copy()
        self._addends = {r.const: r.addend for r in decoded.relocations}
        self._array_names = [ctypes.create_string_buffer(extent.name.encode()) for extent in decoded.extents]
        self._extents = np.array(
            [
                (extent.inst, extent.begin, extent.end, 0, ctypes.addressof(name))
                for extent, name in zip(decoded.extents, self._array_names, strict=True)
            ],
            EXTENT_DTYPE,
        )
        self._kernel = _Kernel(
            decoded.inst.ctypes.data, len(decoded.inst), decoded.pool.ctypes.data, len(decoded.pool),
            self._consts.ctypes.data, len(self._consts), decoded.sregs.ctypes.data, len(decoded.sregs),
            decoded.reg_bytes, decoded.static_smem_bytes, decoded.local_bytes, decoded.param_bytes, decoded.features,
            decoded.early_reads.ctypes.data, len(decoded.early_reads), self._extents.ctypes.data, len(self._extents),
        )  # fmt: skip
        error = ctypes.create_string_buffer(512)
        self._handle = lib.emu_load(ctypes.byref(self._kernel), error, len(error))
        if not self._handle:
            raise InfrastructureError(f"kernel {decoded.name}: {error.value.decode()}")

    def __del__(self) -> None:
        if getattr(self, "_handle", None):
            self._lib.emu_unload(self._handle)

    def relocate(self, addresses: Mapping[str, int]) -> None:
        """Set the constants that hold addresses of module variables."""
        if not self._addends:
            return
        for relocation in self.decoded.relocations:
            self._consts["lo"][relocation.const] = addresses[relocation.symbol] + relocation.addend & 0xFFFFFFFFFFFFFFFF
        self._lib.emu_refresh(self._handle)

    def launch(self, shape: LaunchShape, buffers: Sequence[PlacedBuffer], params: bytes) -> LaunchOutcome:
        """Run one launch; `buffers` in ascending order of addresses, `params` as laid out by the decoder."""
        names = [buffer.name.encode() for buffer in buffers]
        placed = (_Buffer * max(1, len(buffers)))()
        for slot, buffer, name in zip(placed, buffers, names, strict=False):
            initialised = None if buffer.initialised is None else buffer.initialised.ctypes.data
            values: tuple[Any, ...] = (buffer.address, buffer.data.size, buffer.data.ctypes.data, initialised, name)
            slot.base, slot.size, slot.data, slot.initialised, slot.name = values
            slot.read_only, slot.is_input = buffer.read_only, buffer.is_input
            slot.stamps = None if buffer.stamps is None else buffer.stamps.ctypes.data
        block = np.zeros(self.decoded.param_bytes + 128, np.uint8)
        block[: len(params)] = np.frombuffer(params, np.uint8)
        count = len(self.decoded.inst)
        warp_counts, thread_counts, multiply_adds = (np.zeros(count, np.uint64) for _ in range(3))
        launch = _Launch(
            (ctypes.c_uint32 * 3)(*shape.grid), (ctypes.c_uint32 * 3)(*shape.block), shape.dynamic_smem_bytes,
            POLICIES[shape.schedule], shape.threads, shape.zero_target_results,
            (ctypes.c_uint32 * 3)(*(shape.cluster or (1, 1, 1))), shape.cluster is not None, shape.registers,
            shape.cooperative, shape.programmatic,
            0 if shape.only_unit is None else shape.only_unit + 1,
            shape.seed & 0xFFFFFFFFFFFFFFFF, shape.warp_instruction_budget, shape.resident_ctas, shape.max_findings,
            ctypes.addressof(placed), len(buffers), block.ctypes.data,
        )  # fmt: skip
        result = _Result(
            warp_counts=warp_counts.ctypes.data,
            thread_counts=thread_counts.ctypes.data,
            multiply_adds=multiply_adds.ctypes.data,
        )
        taken = self._lib.emu_launch(self._handle, ctypes.byref(launch), ctypes.byref(result))
        records = ctypes.create_string_buffer(max(1, result.nfindings * RECORD_BYTES))
        printed = ctypes.create_string_buffer(max(1, result.nprinted))
        self._lib.emu_take(taken, records, printed)
        return LaunchOutcome(
            outcome=Outcome(result.outcome),
            reran=bool(result.reran),
            looked=bool(result.looked),
            warp_instructions=result.warp_instructions,
            tma_bytes=result.tma_bytes,
            warp_counts=warp_counts,
            thread_counts=thread_counts,
            multiply_adds=multiply_adds,
            busiest=result.busiest,
            records=records.raw[: result.nfindings * RECORD_BYTES],
            printed=printed.raw[: result.nprinted].decode("utf-8", "replace"),
        )
