"""What a worker does to sample a plan: run a few CTAs of each launch in device memory that is barely there.

Inputs are one period, mapped over and over; outputs and workspaces are zero pages until something writes to them. So a
plan over gigabytes costs the memory that its sampled CTAs touch.
"""

from __future__ import annotations

import ctypes
import math
import mmap
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ptxgym.device.emulator.core import Bytes, LaunchOutcome, Outcome, PlacedBuffer
from ptxgym.device.emulator.placement import zeros
from ptxgym.device.emulator.session import (
    OUTCOME_NAMES,
    LoadedModule,
    Memory,
    Session,
    described_kernel,
    launch_shape,
    launched_kernels,
    move,
    parameters_of,
)

_MAX_WRITTEN_BYTES = 4 << 20
"""Of each output; a CTA's tile is far below."""
_PEEKS, _PEEKS_AT_WORK = 32, 256
"""Where some are idle, so many must be seen at work: the share that works is known to a tenth then."""
_PEEK_PER_WARP = 40
"""Warp instructions after which a CTA is believed to work: who has nothing to do leaves earlier."""
_IN_VAIN = 3
"""Units of one search that run for long and store nothing, before no other is tried."""
_WARP_LANES = 32
_MAP_FIXED = 0x10
_STORES = ("st.", "atom.", "red.", "multimem.", "wmma.store.", "tensormap.replace.")
_LOADS = ("ld.", "ldu.", "atom.", "multimem.", "wmma.load.", "tensormap.replace.")
_COPIES = ("cp.async.", "cp.reduce.async.", "tensormap.cp_fenceproxy.")
"""Their forms name target and source, in this order."""
_ELSEWHERE = (".shared", ".local", ".param")
_PAGEMAP = Path("/proc/self/pagemap")
_PAGEMAP_ENTRY_BYTES = 8
_THERE = 62
"""Bit 63 of an entry says that the page is in memory, bit 62 that it is swapped out (Linux: admin-guide/mm/pagemap)."""


def run_sample(
    session: Session, job: Mapping[str, Any], blobs: Sequence[bytes], arena: int
) -> tuple[dict[str, Any], list[bytes]]:
    """Run one job; `arena` is the file that holds the periods of the inputs."""
    loaded, refused = session.prepared(job)
    if loaded is None:
        return refused, []
    mapped = [_Repeated(arena, item) for item in job["buffers"] if item["role"] == "input"]
    by_name = {each.name: each.view for each in mapped}
    placed = [_placed(item, by_name.get(item["name"])) for item in job["buffers"]]
    memory = Memory(placed, loaded.module.symbols)
    for name in launched_kernels(job):
        loaded.programs[name].relocate(memory.addresses)
    return _run(job, blobs, memory, loaded)


def _placed(item: Mapping[str, Any], repeated: Bytes | None) -> PlacedBuffer:
    if repeated is not None:
        return PlacedBuffer(item["name"], item["address"], repeated, is_input=True)
    return PlacedBuffer(item["name"], item["address"], zeros(item["size"]), zeros(item["size"]))


def _run(
    job: Mapping[str, Any], blobs: Sequence[bytes], memory: Memory, loaded: LoadedModule
) -> tuple[dict[str, Any], list[bytes]]:
    launches: list[dict[str, Any]] = []
    sent: list[bytes] = []
    alone = len(job["sample"]) == 1
    outputs = [item["name"] for item in job["buffers"] if item["role"] == "output"] if alone else []
    elsewhere = _Elsewhere(job, memory)
    for operation in job["operations"]:
        if operation["kind"] == "launch":
            asked = job["sample"][len(launches)]
            units = _Units(operation, job["options"], blobs, memory, loaded, alone)
            for tried in (asked["units"], *asked["more"]):
                if not units.search(tried, int(asked["budget"]), first=tried is asked["units"]):
                    continue
                written = [part for name in outputs for part in _written(memory.buffers[name])]
                units.done["worked"][-1]["elsewhere_bytes"] = elsewhere.stored_bytes()
                sent += [units.records, *written]
                if units.done["worked"][-1]["end"] != "ok":
                    break
            units.peek(asked["units"])
            launches.append({"kernel": operation["kernel"], **units.done})
        elif operation["kind"] != "copy" and (operation["kind"] != "memset" or operation["value"]):
            _move_unmarked(operation, blobs, memory)
    names = dict.fromkeys(launch["kernel"] for launch in launches)
    kernels = [described_kernel(loaded, name, with_chains=True) for name in names]
    return {"outcome": "sampled", "launches": launches, "kernels": kernels}, sent


def _move_unmarked(operation: Mapping[str, Any], blobs: Sequence[bytes], memory: Memory) -> None:
    """Do a memset or an upload: what it writes is no kernel's result."""
    name, start = operation["target"]
    is_memset = operation["kind"] == "memset"
    size = operation["width_bytes"] * operation["count"] if is_memset else len(blobs[operation["data"]])
    marks = memory.buffers[name].initialised
    before = None if marks is None else marks[start : start + size].copy()
    move(operation, blobs, memory)
    if marks is not None and before is not None:
        marks[start : start + size] = before


class _Units:
    """Units of one launch, which run one after the other."""

    def __init__(
        self,
        operation: Mapping[str, Any],
        options: Mapping[str, Any],
        blobs: Sequence[bytes],
        memory: Memory,
        loaded: LoadedModule,
        alone: bool,
    ) -> None:
        program = loaded.programs[operation["kernel"]]
        parameters = parameters_of(program, operation, blobs)
        self._forms = program.decoded.forms
        self._stores = np.array([stores_globally(form) for form in program.decoded.forms], bool)
        self._loads = np.array([loads_globally(form) for form in program.decoded.forms], bool)
        self._plain = self._loads & [not form.startswith("cp.async.bulk") for form in program.decoded.forms]
        self._run: Callable[[int, int], LaunchOutcome] = lambda unit, budget: program.launch(
            launch_shape(operation, options, budget, unit), memory.ascending, parameters
        )
        self._by_warp, self._by_thread = program.decoded.warp_multiply_adds, program.decoded.thread_multiply_adds
        self._warps = -(-math.prod(operation["block"]) // _WARP_LANES) * math.prod(operation["cluster"] or (1,))
        self.done: dict[str, Any] = {"ran": 0, "idle": 0, "blind": 0, "worked": []}
        self._alone = alone
        self.records = b""

    def search(self, units: Sequence[int], budget: int, *, first: bool) -> bool:
        """Run units until one works, and note what it did; return whether one does.

        Of the only launch, one that runs for long and stores nothing works in vain. Then another is looked for, whose
        results can be compared, and which tells that it stands for such a one.
        """
        in_vain: list[tuple[int, LaunchOutcome]] = []
        for unit in units:
            result = self._run(unit, budget)
            if first:
                self._count(result)
            if self._idle(result):
                budget = budget if self._alone else max(0, budget - result.warp_instructions)
            elif result.outcome is not Outcome.OK or _any(result, self._stores):
                self._note(unit, result, instead=bool(in_vain))
                return True
            else:
                in_vain.append((unit, result))
                if len(in_vain) == _IN_VAIN:
                    break
        if in_vain:
            self._note(*in_vain[0])
        return bool(in_vain)

    def _note(self, unit: int, result: LaunchOutcome, *, instead: bool = False) -> None:
        executed = {self._forms[at] for at in np.flatnonzero(result.warp_counts).tolist()}
        done = {"end": OUTCOME_NAMES[result.outcome], "unit": unit, "instead": instead, "forms": sorted(executed)}
        done |= {"multiply_adds": self._multiply_adds(result), "warp_instructions": result.warp_instructions}
        done |= {"looked": self._looked(result), "loaded": _any(result, self._plain)}
        self.done["worked"].append({**done, "stored": _any(result, self._stores)})
        self.records = result.records

    def peek(self, units: Sequence[int]) -> None:
        """Look which of further units of the first search start to work: up to `_PEEKS`, or more where some do not."""
        for unit in units[self.done["ran"] :]:
            at_work = self.done["ran"] - self.done["idle"]
            if self.done["ran"] >= _PEEKS and (not self.done["idle"] or at_work >= _PEEKS_AT_WORK):
                break
            self._count(self._run(unit, _PEEK_PER_WARP * self._warps))

    def _multiply_adds(self, result: LaunchOutcome) -> int:
        threads = result.thread_counts.astype(np.int64)
        fixed = -(-threads // _WARP_LANES) * self._by_warp + threads * self._by_thread
        return int(fixed.sum()) + int(result.multiply_adds.sum())

    def _looked(self, result: LaunchOutcome) -> bool:
        """Return whether what others write may have decided something; `red` meets it, and returns nothing."""
        return result.looked and _any(result, self._loads)

    def _idle(self, result: LaunchOutcome) -> bool:
        """Return whether a unit ended without a store to global memory: of the only launch, at once."""
        if result.outcome is not Outcome.OK or _any(result, self._stores):
            return False
        return not self._alone or result.warp_instructions <= _PEEK_PER_WARP * self._warps

    def _count(self, result: LaunchOutcome) -> None:
        """Count a unit that has run."""
        idle = self._idle(result)
        self.done["ran"] += 1
        self.done["idle"] += idle
        self.done["blind"] += idle and not _any(result, self._loads)


def _any(result: LaunchOutcome, instructions: NDArray[np.bool_]) -> bool:
    """Return whether some thread has executed one of these instructions."""
    return bool(result.thread_counts[instructions].any())


def stores_globally(form: str) -> bool:
    """Return whether an instruction may write to global memory; where its address tells, it counts."""
    if form.startswith(_COPIES):
        return ".global.shared" in form
    return form.startswith(_STORES) and not any(space in form for space in _ELSEWHERE)


def loads_globally(form: str) -> bool:
    """Return whether an instruction may read global memory, so that what it finds can decide something."""
    if form.startswith(_COPIES):
        return ".global" in form and ".global.shared" not in form and ".prefetch" not in form
    return form.startswith(_LOADS) and not any(space in form for space in (*_ELSEWHERE, ".const"))


class _Elsewhere:
    """Memory that is no argument: workspaces, and the variables of the module."""

    def __init__(self, job: Mapping[str, Any], memory: Memory) -> None:
        arguments = {item["name"] for item in job["buffers"] if item["role"] in ("input", "output")}
        others = [buffer for name, buffer in memory.buffers.items() if name not in arguments and not buffer.read_only]
        self._marks = [buffer.initialised for buffer in others if buffer.initialised is not None]
        self._variables = [(buffer.data, _copied(buffer.data)) for buffer in others if buffer.initialised is None]

    def stored_bytes(self) -> int:
        """Return how many bytes of workspaces were stored to, and of variables hold something else than before."""
        marked = sum(np.count_nonzero(part) for marks in self._marks for _, part in _touched(marks))
        changed = sum(
            np.count_nonzero(part != before[start : start + part.size])
            for now, before in self._variables
            for start, part in _touched(now)
        )
        return int(marked + changed)


def _copied(data: Bytes) -> Bytes:
    """Return a copy that takes memory only where `data` does."""
    copy = np.zeros(data.size, np.uint8)
    for start, part in _touched(data):
        copy[start : start + part.size] = part
    return copy


def _touched(data: Bytes) -> Iterator[tuple[int, Bytes]]:
    """Yield the parts of an array of zero pages, with their places, on pages that something may have written to.

    So gigabytes of which nobody wrote a byte are not read. Where the kernel tells nothing that is all of it.
    """
    first, begin = divmod(data.ctypes.data, mmap.PAGESIZE)
    pages = -(-(begin + data.size) // mmap.PAGESIZE)
    there = np.zeros(pages + 2, bool)
    there[1:-1] = _pages_there(first, pages)
    edges = np.flatnonzero(there[1:] != there[:-1]) * mmap.PAGESIZE - begin
    for start, end in edges.reshape(-1, 2).tolist():
        at = max(start, 0)
        yield at, data[at : min(end, data.size)]


def _pages_there(first: int, count: int) -> NDArray[np.bool_]:
    """Return which of some pages of this process exist."""
    try:
        with _PAGEMAP.open("rb") as file:
            file.seek(first * _PAGEMAP_ENTRY_BYTES)
            entries = np.frombuffer(file.read(count * _PAGEMAP_ENTRY_BYTES), np.uint64)
    except OSError:
        return np.ones(count, bool)
    found: NDArray[np.bool_] = entries >> np.uint64(_THERE) != 0
    return found if found.size == count else np.ones(count, bool)


def _written(buffer: PlacedBuffer) -> list[bytes]:
    """Return offsets and values of the bytes that were written, and forget that they were."""
    marks = buffer.initialised
    assert marks is not None
    whole = marks.size // 8 * 8
    words = np.flatnonzero(marks[:whole].view(np.uint64))[: _MAX_WRITTEN_BYTES // 8]
    candidates = (words[:, None] * 8 + np.arange(8)).reshape(-1)
    candidates = np.concatenate([candidates, np.arange(whole, marks.size)])
    offsets = candidates[marks[candidates] != 0].astype(np.int64)
    marks[offsets] = 0
    return [offsets.tobytes(), buffer.data[offsets].tobytes()]


class _Repeated:
    """An input that repeats a period: private pages of one file, mapped again and again; writes to it stay here."""

    def __init__(self, descriptor: int, item: Mapping[str, Any]) -> None:
        self.name: str = item["name"]
        size, period = item["size"], item["period"]
        length = -(-size // mmap.PAGESIZE) * mmap.PAGESIZE
        self._length = length
        libc = ctypes.CDLL(None, use_errno=True)
        self._map = libc.mmap
        self._map.restype = ctypes.c_void_p
        self._map.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
        self._unmap = libc.munmap
        self._unmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
        self._base = self._mapped(None, length, mmap.MAP_ANONYMOUS, -1, 0)
        for start in range(0, length, period):
            count = min(period, length - start)
            self._mapped(self._base + start, count, _MAP_FIXED, descriptor, item["offset"])
        self.view: Bytes = np.frombuffer((ctypes.c_uint8 * size).from_address(self._base), np.uint8)

    def _mapped(self, address: int | None, length: int, how: int, descriptor: int, offset: int) -> int:
        flags = mmap.MAP_PRIVATE | how
        base = self._map(address, length, mmap.PROT_READ | mmap.PROT_WRITE, flags, descriptor, offset)
        if base is None or base == ctypes.c_void_p(-1).value:
            error = ctypes.get_errno()
            raise OSError(error, os.strerror(error))
        return int(base)

    def __del__(self) -> None:
        if hasattr(self, "_base"):
            self._unmap(self._base, self._length)
