"""Edges between operations against a graph of all calls, in which order is a path."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ptxgym.plan.events import (
    Ordered,
    RawEventRecord,
    RawHostWait,
    RawLaunch,
    RawMemset,
    RawStream,
    RawStreamWait,
    RawUpload,
)
from ptxgym.plan.merge import Merged, NotAPlan
from ptxgym.plan.model import Blob, Buffer, BufferRef, Launch, Memset, Operation, PointerRef, Upload
from ptxgym.plan.order import ordered

STREAMS = st.sampled_from([0, 3, 4, 1, 5, 2])
EVENTS = st.integers(0, 1)
START, END = "start", "end"

calls_of_a_host = st.lists(
    st.one_of(
        st.builds(RawMemset, event=st.just("memset"), target=st.just(0), value=st.just(0), width_bytes=st.just(1),
                  count=st.just(1), stream=STREAMS),
        st.builds(RawEventRecord, event=st.just("event_record"), recorded=EVENTS, stream=STREAMS),
        st.builds(RawStreamWait, event=st.just("stream_wait"), stream=STREAMS, awaited=EVENTS),
        st.builds(RawHostWait, event=st.just("host_wait"), what=st.sampled_from(["event", "stream", "device"]),
                  index=EVENTS),
    ),
    min_size=12,
    max_size=30,
)  # fmt: skip
# Without these hardly any draw is a plan: streams fork from the given one and join it.
FORK: list[Ordered] = [
    RawEventRecord(event="event_record", recorded=9, stream=0),
    *(RawStreamWait(event="stream_wait", stream=stream, awaited=9) for stream in range(1, 6)),
]
JOIN: list[Ordered] = [RawHostWait(event="host_wait", what="device", index=0)]


def created(blocking: Sequence[bool]) -> list[Ordered]:
    """Streams 3, 4, 5."""
    return [RawStream(event="stream", index=3 + i, blocking=b) for i, b in enumerate(blocking)]


def merged(calls: Sequence[Ordered], role: Literal["output", "workspace"] = "output") -> Merged:
    """A plan of memsets."""
    target = BufferRef(buffer="B")
    operations = tuple(
        Memset(target=target, value=0, width_bytes=1, count=1, stream=call.stream)
        for call in calls
        if isinstance(call, RawMemset)
    )
    return Merged((Buffer(name="B", role=role, size_bytes=1),), (), (), operations)


class CallGraph:
    """Every call is a node that follows others; operation i is node i."""

    def __init__(self, calls: Sequence[Ordered], blocking: Sequence[bool]) -> None:
        self.before: dict[object, set[object]] = {START: set(), "host0": set()}
        self.last: dict[int, object] = {0: START}
        self.blocking = [2, *(3 + i for i, b in enumerate(blocking) if b)]
        self.host: object = "host0"
        self.recorded: dict[int, object] = {}
        self.operations = 0
        for number, call in enumerate(calls):
            self._take(number, call)
        self.before[END] = {self.last[0], self.host}

    def _take(self, number: int, call: Ordered) -> None:
        match call:
            case RawMemset():
                self._queue(call.stream, self.operations)
                self.operations += 1
            case RawEventRecord():
                self.recorded[call.recorded] = self._queue(call.stream, f"call{number}")
            case RawStreamWait():
                node = self._queue(call.stream, f"call{number}")
                if call.awaited in self.recorded:
                    self.before[node].add(self.recorded[call.awaited])
            case RawHostWait():
                awaited: set[object] = set(self.last.values())
                if call.what == "stream":
                    awaited = {self._queue(call.index, f"call{number}")}
                elif call.what == "event":
                    awaited = {self.recorded[call.index]} if call.index in self.recorded else set()
                node = f"host{number + 1}"
                self.before[node] = {self.host, *awaited}
                self.host = node

    def _queue(self, stream: int, node: object) -> object:
        self.before[node] = {self.host}
        waits_for = [stream]
        if stream == 1:
            waits_for += self.blocking
        elif stream in self.blocking:
            waits_for.append(1)
        self.before[node] |= {self.last[s] for s in waits_for if s in self.last}
        self.last[stream] = node
        return node

    def behind(self, node: object) -> set[object]:
        """Return every node on a path to `node`."""
        found: set[object] = set()
        open_nodes = [node]
        while open_nodes:
            for earlier in self.before[open_nodes.pop()] - found:
                found.add(earlier)
                open_nodes.append(earlier)
        return found


def closure(streams: Sequence[int], after: Sequence[Sequence[int]]) -> list[set[int]]:
    """What is over before each operation, by edges and by the order in its stream."""
    behind: list[set[int]] = []
    for index, stream in enumerate(streams):
        direct = [*after[index], *[i for i in range(index) if streams[i] == stream]]
        behind.append({i for j in direct for i in (j, *behind[j])})
    return behind


@settings(max_examples=400, deadline=None)
@given(calls_of_a_host, st.lists(st.booleans(), min_size=3, max_size=3), st.booleans())
def test_edges_say_what_the_calls_say(body: list[Ordered], blocking: list[bool], forked: bool) -> None:
    calls = [*FORK, *body, *JOIN] if forked else body
    graph = CallGraph(calls, blocking)
    behind = [graph.behind(i) for i in range(graph.operations)]
    early = [i for i in range(graph.operations) if START not in behind[i]]
    lost = sorted(set(range(graph.operations)) - graph.behind(END), key=int)
    refused = f"operation {early[0]} " if early else f"operation {lost[0]} " if lost else None
    try:
        operations = ordered([*created(blocking), *calls], merged(calls))
    except NotAPlan as error:
        assert refused is not None and error.message.startswith(refused)
        assert error.code == ("plan.unordered_start" if early else "plan.unjoined_stream")
        return
    assert refused is None
    check_edges(operations, [{i for i in nodes if isinstance(i, int)} for nodes in behind])


@settings(max_examples=400, deadline=None)
@given(calls_of_a_host, st.lists(st.booleans(), min_size=3, max_size=3))
def test_set_up_of_new_memory_is_ordered_with_all_its_uses(body: list[Ordered], blocking: list[bool]) -> None:
    """All memsets are of one new workspace: those which do not come after the start must not run beside others."""
    calls = [*body, *JOIN]
    graph = CallGraph(calls, blocking)
    behind = [graph.behind(i) for i in range(graph.operations)]
    early = [i for i in range(graph.operations) if START not in behind[i]]
    beside = any(i != j and i not in behind[j] and j not in behind[i] for i in early for j in range(graph.operations))
    try:
        operations = ordered([*created(blocking), *calls], merged(calls, "workspace"), {"B"})
    except NotAPlan as error:
        assert error.code == "plan.unordered_start" and beside
        return
    assert not beside
    check_edges(operations, [{i for i in nodes if isinstance(i, int)} for nodes in behind])


@pytest.mark.parametrize(("held", "refused"), [("AB", True), ("VB", True), ("VV", False)])
def test_set_up_by_a_kernel_that_finds_pointers_in_its_memory(held: str, refused: bool) -> None:
    """W gets two pointers; a kernel that is given W alone may use what they point to."""
    calls: list[Ordered] = [
        *created([False]),
        RawUpload(event="upload", target=0, data="00" * 16, stream=1, host_waits=True),
        RawLaunch(event="launch", kernel="work", grid=[1, 1, 1], block=[32, 1, 1], dynamic_smem_bytes=0, cluster=[],
                  cooperative=False, programmatic=False, stream=3, params=["00" * 8]),
        RawHostWait(event="host_wait", what="stream", index=3),
    ]  # fmt: skip
    table, given = (pointers(names) for names in (held, "W"))
    operations: tuple[Operation, ...] = (
        Upload(target=BufferRef(buffer="W"), data=table, stream=1),
        Launch(kernel="work", grid=(1, 1, 1), block=(32, 1, 1), dynamic_smem_bytes=0, params=(given,), stream=3),
    )
    roles: dict[str, Literal["input", "output", "workspace"]] = {"A": "input", "B": "output"}
    buffers = tuple(Buffer(name=name, role=roles.get(name, "workspace"), size_bytes=16) for name in "ABVW")
    plan = Merged(buffers, (), (), operations)
    if not refused:
        assert [op.after for op in ordered(calls, plan, {"V", "W"}, kernels_share=False)] == [(), (0,)]
        return
    with pytest.raises(NotAPlan, match=r"operation 1 \(launch of work\) is on stream 3, which does not wait") as raised:
        ordered(calls, plan, {"V", "W"}, kernels_share=False)
    assert raised.value.code == "plan.unordered_start"


def pointers(names: str) -> Blob:
    """Return addresses of buffers, one after the other."""
    refs = tuple(PointerRef(at=8 * i, target=BufferRef(buffer=name)) for i, name in enumerate(names))
    return Blob(data="00" * 8 * len(names), refs=refs)


def check_edges(operations: Sequence[Operation], expected: list[set[int]]) -> None:
    """Edges make the expected order, and none can be left out."""
    streams, after = [op.stream for op in operations], [op.after for op in operations]
    assert closure(streams, after) == expected
    for index, edges in enumerate(after):
        for edge in edges:
            assert streams[edge] != streams[index]
            fewer = [*after[:index], [e for e in edges if e != edge], *after[index + 1 :]]
            assert closure(streams, fewer) != expected


@pytest.mark.parametrize("stream", [3, 127, 128, 1 << 40])
def test_a_forged_stream(stream: int) -> None:
    call = RawMemset(event="memset", target=0, value=0, width_bytes=1, count=1, stream=stream)
    with pytest.raises(NotAPlan, match=f"stream {stream}, which it did not create") as raised:
        ordered([call], merged([call]))
    assert raised.value.code == "plan.invalid"


def test_too_many_edges() -> None:
    """Every stream waits for all others, again and again."""
    memset = RawMemset(event="memset", target=0, value=0, width_bytes=1, count=1, stream=0)
    calls = [*created([False] * 3), *FORK]
    for _ in range(2_000):
        calls += [*(memset.model_copy(update={"stream": stream}) for stream in (0, 3, 4, 5)), *JOIN]
    with pytest.raises(NotAPlan, match="more than 20000 times") as raised:
        ordered(calls, merged(calls))
    assert raised.value.code == "plan.operation_limit"
    fewer = calls[: len(calls) // 2]
    assert sum(len(operation.after) for operation in ordered([*fewer, *JOIN], merged(fewer))) > 10_000
