"""Which operation has to wait for which: what the calls on streams and events established, as edges of the plan.

The rules are those of the CUDA runtime API (sections "Stream synchronization behavior", "API synchronization behavior",
"Event management"). The stream that `run` is given is taken as created with `cudaStreamNonBlocking`, as harnesses do
(`torch.cuda.Stream`): the default streams do not wait for it. So what is not ordered with it by an event or by the
host is ordered with nothing, and is refused, as it is while a CUDA graph is captured.

A clock says of each stream how many of its operations are over. The given stream begins with one more: what it was
given before `run`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

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
from ptxgym.plan.model import MAX_EDGES, MAX_STREAMS, Copy, Launch, Memset, Operation, PointerRef, Upload

Clock = NDArray[np.int32]

GIVEN, LEGACY, PER_THREAD = 0, 1, 2
_START = -1
"""Stands among the given stream's operations for what it was given before `run`."""
_ANY_KERNEL = ""
"""No buffer's name: stands for the variables of the module, which any kernel may use."""
_FORK_AND_JOIN = (
    "fork the stream from `stream` and join it again: cudaEventRecord(fork, stream); cudaStreamWaitEvent(side, fork, "
    "0); ...; cudaEventRecord(join, side); cudaStreamWaitEvent(stream, join, 0)"
)


def ordered(calls: Sequence[Ordered], merged: Merged) -> tuple[Operation, ...]:
    """Return the operations with their `after`.

    Args:
        calls: Operations and what orders them, as recorded; each operation is one of `merged`, in the same order.
        merged: The plan's parts.

    Raises:
        NotAPlan: `plan.unordered_start` if an operation waits for nothing that `stream` was given before `run`,
            `plan.unjoined_stream` if nothing in `stream` and no synchronisation waits for it.
    """
    walk = _Walk(merged)
    after = [edges for call in calls for edges in walk.take(call)]
    walk.check_joined()
    return tuple(
        operation.model_copy(update={"after": edges}) if edges else operation
        for operation, edges in zip(merged.operations, after, strict=True)
    )


class _Walk:
    """The state of streams, events and the host between two calls."""

    def __init__(self, merged: Merged) -> None:
        self._operations = merged.operations
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
        if not end[GIVEN] and not (host_waits and self._is_preparation(operation, end)):
            raise NotAPlan(
                "plan.unordered_start",
                _refusal(index, operation, "which does not wait for what `stream` was given before `run`"),
                index,
            )
        edges = self._edges(stream, end)
        self._members[stream].append(index)
        end[stream] = len(self._members[stream])
        self._clocks.append(end.copy())
        for name in self._named(operation):
            self._touched.setdefault(name, np.zeros(MAX_STREAMS, np.int32))[stream] = end[stream]
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

    def _is_preparation(self, operation: Operation, end: Clock) -> bool:
        """Whether an upload that the host waits for (`cudaMemcpyToSymbol`) is to memory that nothing uses yet."""
        if not isinstance(operation, Upload):
            return False
        name = operation.target.buffer
        role = self._roles[name]
        touched = [self._touched[n] for n in (name, *([_ANY_KERNEL] if role == "symbol" else [])) if n in self._touched]
        return role in ("workspace", "symbol") and all((clock <= end).all() for clock in touched)

    def _named(self, operation: Operation) -> Iterator[str]:
        match operation:
            case Launch():
                yield _ANY_KERNEL
                for ref in (ref for blob in operation.params for ref in blob.refs):
                    yield ref.target.buffer if isinstance(ref, PointerRef) else self._map_buffers[ref.index]
            case Copy():
                yield operation.target.buffer
                yield operation.source.buffer
            case _:
                yield operation.target.buffer


def _advance(clock: Clock, other: Clock | None) -> None:
    if other is not None:
        np.maximum(clock, other, out=clock)


def _refusal(index: int, operation: Operation, why: str) -> str:
    """Name the operation, its stream, what is wrong and the way out."""
    match operation:
        case Launch():
            what, way = f"launch of {operation.kernel}", "pass `stream` as the fourth launch argument"
        case Memset():
            what, way = f"memset of {operation.target.buffer}", "call cudaMemsetAsync(..., stream)"
        case Copy():
            what, way = f"copy to {operation.target.buffer}", "call cudaMemcpyAsync(..., stream)"
        case Upload():
            what, way = f"upload to {operation.target.buffer}", "call cudaMemcpy[ToSymbol]Async(..., stream)"
    if operation.stream == LEGACY:
        where = "on the default stream"
    elif operation.stream == PER_THREAD:
        where = "on the per-thread default stream"
    else:
        where, way = f"on stream {operation.stream}", _FORK_AND_JOIN
    return f"operation {index} ({what}) is {where}, {why}; {way}"
