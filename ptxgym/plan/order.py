"""Which operation has to wait for which: what the calls on streams and events established, as edges of the plan.

The rules are those of the CUDA runtime API (sections "Stream synchronization behavior", "API synchronization behavior",
"Event management"). The stream that `run` is given is taken as created with `cudaStreamNonBlocking`, as harnesses do
(`torch.cuda.Stream`): the default streams do not wait for it. So what is not ordered with it by an event or by the
host is ordered with nothing, and is refused, as it is while a CUDA graph is captured. Set-up of memory that this very
call got from `cudaMalloc` is no part of what `stream` was given before; what uses the memory has to wait for it.

In one thing the rules are kinder: an upload by `cudaMemcpy` from pageable memory counts as over when the call returns.
The text leaves open whether its last bytes are there for other streams; many launchers rely on it.

A clock says of each stream how many of its operations are over. The given stream begins with one more: what it was
given before `run`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence, Set

import numpy as np
from numpy.typing import NDArray

from ptxgym.plan.events import (
    Ordered,
    RawEventRecord,
    RawFree,
    RawHostWait,
    RawStream,
    RawStreamWait,
    RawUpload,
)
from ptxgym.plan.merge import Merged, NotAPlan
from ptxgym.plan.model import MAX_EDGES, MAX_STREAMS, Copy, Launch, Memset, Operation, PointerRef, Ref, Upload

Clock = NDArray[np.int32]

GIVEN, LEGACY, PER_THREAD = 0, 1, 2
_START = -1
"""Stands among the given stream's operations for what it was given before `run`."""
_ANY_KERNEL = ""
"""No buffer's name: stands for the variables of the module, which any kernel may use."""
_REACHABLE = "*"
"""No buffer's name: stands for all buffers to which memory may hold pointers, so that any kernel may use them."""
_FORK_AND_JOIN = (
    "fork the stream from `stream` and join it again: cudaEventRecord(fork, stream); cudaStreamWaitEvent(side, fork, "
    "0); ...; cudaEventRecord(join, side); cudaStreamWaitEvent(stream, join, 0)"
)


def ordered(
    calls: Sequence[Ordered], merged: Merged, fresh: Set[str] = frozenset(), *, kernels_share: bool = True
) -> tuple[Operation, ...]:
    """Return the operations with their `after`.

    Args:
        calls: Operations and what orders them, as recorded; each operation is one of `merged`, in the same order.
        merged: The plan's parts.
        fresh: Workspaces that nothing before `run` can have used.
        kernels_share: Whether kernels may meet in variables of the module.

    Raises:
        NotAPlan: `plan.unordered_start` if an operation waits for nothing that `stream` was given before `run`, and is
            not the set-up of memory that is used only when it is over; `plan.unjoined_stream` if nothing in `stream`
            and no synchronisation waits for it.
    """
    walk = _Walk(merged, fresh, kernels_share)
    after = [edges for call in calls for edges in walk.take(call)]
    walk.check_joined()
    return tuple(
        operation.model_copy(update={"after": edges}) if edges else operation
        for operation, edges in zip(merged.operations, after, strict=True)
    )


class _Walk:
    """The state of streams, events and the host between two calls."""

    def __init__(self, merged: Merged, fresh: Set[str], kernels_share: bool) -> None:
        self._operations = merged.operations
        self._fresh, self._kernels_share = fresh, kernels_share
        self._map_buffers = [tensor_map.global_address.buffer for tensor_map in merged.tensor_maps]
        self._roles = {buffer.name: buffer.role for buffer in merged.buffers}
        self._ends = np.zeros((MAX_STREAMS, MAX_STREAMS), np.int32)
        """Row s: what the next call on stream s comes after."""
        self._ends[GIVEN, GIVEN] = 1
        self._host = np.zeros(MAX_STREAMS, np.int32)
        self._events: dict[int, Clock] = {}
        self._known = np.zeros(MAX_STREAMS, bool)
        self._blocking = np.zeros(MAX_STREAMS, bool)
        self._known[:3] = True
        self._blocking[PER_THREAD] = True
        self._members: list[list[int]] = [[] for _ in range(MAX_STREAMS)]
        """The operations of each stream."""
        self._members[GIVEN].append(_START)
        self._clocks: list[Clock] = []
        """What is over when an operation is over."""
        self._edge_count = 0
        self._touched: dict[str, Clock] = {}
        """The last operations that name a buffer."""
        self._set_up: dict[str, dict[int, int]] = {}
        """Of each buffer and stream, the last operation that waits for nothing before `run`."""
        self._reachable: set[str] = set()
        """Buffers to which memory may hold pointers."""
        self._points_out = False
        """Memory may hold pointers to what was there before `run`, so that a kernel may use what it does not name."""

    def take(self, call: Ordered) -> Iterator[tuple[int, ...]]:
        """Follow one call; yield the edges if it is an operation."""
        match call:
            case RawFree():
                pass
            case RawStream():
                if call.index >= MAX_STREAMS:
                    raise NotAPlan("plan.operation_limit", f"more than {MAX_STREAMS} streams in one call")
                self._known[call.index] = True
                self._blocking[call.index] = call.blocking
            case RawEventRecord():
                self._events[call.recorded] = self._enter(call.stream).copy()
            case RawStreamWait():
                _advance(self._enter(call.stream), self._events.get(call.awaited))
            case RawHostWait(what="stream"):
                _advance(self._host, self._enter(call.index))
            case RawHostWait(what="event"):
                _advance(self._host, self._events.get(call.index))
            case RawHostWait():
                _advance(self._host, self._ends.max(axis=0))
            case _:
                yield self._operation(call.stream, isinstance(call, RawUpload) and call.host_waits)

    def check_joined(self) -> None:
        """Refuse an operation that may still run when `stream` is done."""
        end = np.maximum(self._ends[GIVEN], self._host)
        for index, operation in enumerate(self._operations):
            if self._clocks[index][operation.stream] > end[operation.stream]:
                raise NotAPlan(
                    "plan.unjoined_stream",
                    _refusal(index, operation, "for which nothing in `stream` waits at the end"),
                    index,
                )

    def _enter(self, stream: int) -> Clock:
        """Return what the next call on a stream comes after; the legacy default stream and blocking streams wait."""
        if stream >= MAX_STREAMS or not self._known[stream]:
            raise NotAPlan("plan.invalid", f"the record of the host code uses stream {stream}, which it did not create")
        end: Clock = self._ends[stream]
        _advance(end, self._host)
        if stream == LEGACY:
            _advance(end, self._ends[self._blocking].max(axis=0))
        elif self._blocking[stream]:
            _advance(end, self._ends[LEGACY])
        return end

    def _operation(self, stream: int, host_waits: bool) -> tuple[int, ...]:
        index = len(self._clocks)
        operation = self._operations[index]
        end = self._enter(stream)
        self._check_set_up(index, operation, end)
        if not end[GIVEN] and not self._is_set_up(operation, end, host_waits):
            raise NotAPlan(
                "plan.unordered_start",
                _refusal(index, operation, "which does not wait for what `stream` was given before `run`"),
                index,
            )
        edges = self._edges(stream, end)
        self._members[stream].append(index)
        end[stream] = len(self._members[stream])
        self._clocks.append(end.copy())
        self._note_pointers(operation, early=not end[GIVEN])
        for name in self._names(operation):
            self._touched.setdefault(name, np.zeros(MAX_STREAMS, np.int32))[stream] = end[stream]
            if not end[GIVEN]:
                self._set_up.setdefault(name, {})[stream] = index
        if host_waits:
            _advance(self._host, end)
        return edges

    def _edges(self, stream: int, end: Clock) -> tuple[int, ...]:
        """Return the last operations of other streams that must be over, without those that follow from others."""
        own = int(end[stream])
        over = self._clock(self._members[stream][own - 1]) if own else np.zeros(MAX_STREAMS, np.int32)
        others = [t for t in np.flatnonzero(end > over) if t != stream and self._members[t][end[t] - 1] != _START]
        last = [self._members[t][end[t] - 1] for t in others]
        if len(last) > 1:
            follows = np.stack([self._clocks[operation][others] for operation in last]) >= end[others]
            np.fill_diagonal(follows, False)
            last = [last[i] for i in np.flatnonzero(~follows.any(axis=0))]
        self._edge_count += len(last)
        if self._edge_count > MAX_EDGES:
            raise NotAPlan(
                "plan.operation_limit",
                f"operations wait for others in other streams more than {MAX_EDGES} times; let fewer streams wait",
            )
        return tuple(sorted(last))

    def _clock(self, operation: int) -> Clock:
        if operation != _START:
            return self._clocks[operation]
        start = np.zeros(MAX_STREAMS, np.int32)
        start[GIVEN] = 1
        return start

    def _is_set_up(self, operation: Operation, end: Clock, host_waits: bool) -> bool:
        """Whether an operation is on memory alone that nothing uses yet."""
        names = self._names(operation)
        buffers = names - {_ANY_KERNEL, _REACHABLE}
        roles = {self._roles[name] for name in buffers}
        if isinstance(operation, Upload) and host_waits:  # as `cudaMemcpyToSymbol`
            fits = roles <= {"workspace", "symbol"}
            names.discard(_REACHABLE)
        else:
            fits = bool(buffers) and buffers <= self._fresh
        if isinstance(operation, Launch):
            fits = fits and not self._kernels_share and not self._points_out
        if "symbol" in roles:
            names.add(_ANY_KERNEL)
        return fits and all((self._touched[name] <= end).all() for name in names & self._touched.keys())

    def _check_set_up(self, index: int, operation: Operation, end: Clock) -> None:
        """Refuse set-up that may not be over where its memory is used."""
        for name in sorted(self._names(operation) & self._set_up.keys()):
            for stream, earlier in self._set_up[name].items():
                if self._clocks[earlier][stream] > end[stream]:
                    why = f"and operation {index} ({_what(operation)}) does not wait for it"
                    raise NotAPlan("plan.unordered_start", _refusal(earlier, self._operations[earlier], why), earlier)

    def _note_pointers(self, operation: Operation, early: bool) -> None:
        """An upload may hold pointers, and set-up by a kernel may store those that it gets."""
        found: set[str] = set()
        if isinstance(operation, Upload):
            found.update(self._targets(operation.data.refs))
            self._points_out = self._points_out or not found <= self._fresh
        elif isinstance(operation, Launch) and early:
            found.update(self._named(operation))
        for name in (found & self._fresh) - self._reachable:
            self._reachable.add(name)
            if name in self._touched:
                _advance(self._touched.setdefault(_REACHABLE, np.zeros(MAX_STREAMS, np.int32)), self._touched[name])
            last = self._set_up.setdefault(_REACHABLE, {})
            for stream, index in self._set_up.get(name, {}).items():
                last[stream] = max(index, last.get(stream, index))

    def _names(self, operation: Operation) -> set[str]:
        """Return the buffers that an operation may use, and what stands for those that it does not name."""
        names = set(self._named(operation))
        if isinstance(operation, Launch):
            names |= {_ANY_KERNEL, _REACHABLE}
        elif names & self._reachable:
            names.add(_REACHABLE)
        return names

    def _named(self, operation: Operation) -> Iterator[str]:
        match operation:
            case Launch():
                for blob in operation.params:
                    yield from self._targets(blob.refs)
            case Copy():
                yield operation.target.buffer
                yield operation.source.buffer
            case _:
                yield operation.target.buffer

    def _targets(self, refs: Sequence[Ref]) -> Iterator[str]:
        for ref in refs:
            yield ref.target.buffer if isinstance(ref, PointerRef) else self._map_buffers[ref.index]


def _advance(clock: Clock, other: Clock | None) -> None:
    if other is not None:
        np.maximum(clock, other, out=clock)


def _what(operation: Operation) -> str:
    match operation:
        case Launch():
            return f"launch of {operation.kernel}"
        case Memset():
            return f"memset of {operation.target.buffer}"
        case Copy():
            return f"copy to {operation.target.buffer}"
        case Upload():
            return f"upload to {operation.target.buffer}"


def _refusal(index: int, operation: Operation, why: str) -> str:
    """Name the operation, its stream, what is wrong and the way out."""
    match operation:
        case Launch():
            way = "pass `stream` as the fourth launch argument"
        case Memset():
            way = "call cudaMemsetAsync(..., stream)"
        case Copy():
            way = "call cudaMemcpyAsync(..., stream)"
        case Upload():
            way = "call cudaMemcpy[ToSymbol]Async(..., stream)"
    if operation.stream == LEGACY:
        where = "on the default stream"
    elif operation.stream == PER_THREAD:
        where = "on the per-thread default stream"
    else:
        where, way = f"on stream {operation.stream}", _FORK_AND_JOIN
    return f"operation {index} ({_what(operation)}) is {where}, {why}; {way}"
