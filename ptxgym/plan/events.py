"""What the recorder wrote: events with raw addresses, parsed strictly, since anything may have written them."""

from __future__ import annotations

from collections.abc import Mapping, Sized
from dataclasses import dataclass, field, replace
from typing import Annotated, Literal

from pydantic import ConfigDict, Field, TypeAdapter, ValidationError

from ptxgym.plan.model import MAX_STREAMS, Dim3
from ptxgym.verdict import Value

Address = Annotated[int, Field(ge=0, lt=1 << 64)]
Count = Annotated[int, Field(ge=0, lt=1 << 63)]
Hex = Annotated[str, Field(pattern=r"^([0-9a-f]{2})*$")]
Text = Annotated[str, Field(pattern=r"^[ -~]*$", max_length=4096)]
"""Printable ASCII, which is all that the recorder writes: the text is shown."""
Extents = Annotated[list[Count], Field(max_length=5)]


MAX_PARAMETERS = 32_764
"""Bytes of parameters that a kernel may have (PTX ISA 5.1.6), and so of its parameters."""
ALWAYS_THERE = 3
"""Streams that nobody makes: the given one, the legacy and the per-thread default stream."""
MAX_CALLS = 4
"""Of `run` in one process."""
MAX_ERRORS = 16
"""Failed calls that are kept, and ignored ones; the recorder notes no more either."""


class Event(Value):
    """Base of all events."""

    model_config = ConfigDict(strict=True)


class Placed(Event):
    """An event that knows which calls of the submission led to it, innermost first."""

    frames: Annotated[tuple[Address, ...], Field(max_length=8, strict=False)] = ()
    """Offsets of their code in the library."""


class Start(Event):
    """The submission is about to be loaded."""

    event: Literal["start"]
    confined: bool


class RawCall(Event):
    """`run` is about to be called, for the first time or again."""

    event: Literal["call"]
    index: Count


class RawBuffer(Event):
    """An allocation."""

    event: Literal["buffer"]
    name: Text
    role: Literal["argument", "workspace", "symbol"]
    address: Address
    bytes: Count
    in_stream_order: bool
    """Given by `cudaMallocAsync`: it may be memory that a kernel still at work had, freed in a stream before."""


class RawFree(Event):
    """A workspace was freed."""

    event: Literal["free"]
    name: Text


class RawTensorMap(Event):
    """A tensor map was encoded; its index is its place among these events."""

    event: Literal["tensor_map"]
    data_type: Text
    address: Address
    global_dim: Extents
    global_strides_bytes: Extents
    box_dim: Extents
    element_strides: Extents
    interleave: Text
    swizzle: Text
    l2_promotion: Text
    oob_fill: Text


class RawFunction(Event):
    """A function attribute was set."""

    event: Literal["function"]
    kernel: Text
    attribute: Literal["max_dynamic_smem_bytes", "preferred_smem_carveout", "non_portable_cluster"]
    value: Annotated[int, Field(ge=-(1 << 31), lt=1 << 31)]


class RawLaunch(Placed):
    """A kernel launch."""

    event: Literal["launch"]
    kernel: Text
    grid: list[Count] = Field(min_length=3, max_length=3)
    block: list[Count] = Field(min_length=3, max_length=3)
    dynamic_smem_bytes: Count
    cluster: list[Count] = Field(max_length=3)
    """Empty where there is none."""
    cooperative: bool
    programmatic: bool
    stream: Count
    params: list[Hex] = Field(max_length=MAX_PARAMETERS)


class RawMemset(Placed):
    """A fill."""

    event: Literal["memset"]
    target: Address
    value: Count
    width_bytes: Count
    count: Count
    stream: Count


class RawCopy(Placed):
    """A device-to-device copy."""

    event: Literal["copy"]
    target: Address
    source: Address
    bytes: Count
    stream: Count


class RawUpload(Placed):
    """A host-to-device copy."""

    event: Literal["upload"]
    target: Address
    data: Hex
    stream: Count
    host_waits: bool
    """The call returned only when the bytes were there (`cudaMemcpy`)."""


class RawStream(Event):
    """A stream was created; 0 to 2 are always there."""

    event: Literal["stream"]
    index: Annotated[int, Field(ge=3, lt=MAX_STREAMS * MAX_CALLS)]
    blocking: bool
    """It and the legacy default stream wait for each other: not created with `cudaStreamNonBlocking`."""


class RawEventRecord(Event):
    """From here on an event stands for everything in a stream so far."""

    event: Literal["event_record"]
    recorded: Count
    stream: Count


class RawStreamWait(Event):
    """What a stream gets from here on waits for what an event stands for."""

    event: Literal["stream_wait"]
    stream: Count
    awaited: Count


class RawHostWait(Event):
    """What the host code asks for from here on comes after a stream, an event or the whole device so far."""

    event: Literal["host_wait"]
    what: Literal["stream", "event", "device"]
    index: Count
    """Of the stream or the event."""


class ApiError(Placed):
    """A call failed as on a real device."""

    event: Literal["api_error"]
    call: Text
    error: Text
    why: Text


class Ignored(Event):
    """A call that is a hint about speed, and no part of a plan."""

    event: Literal["ignored"]
    call: Text
    what: Text


class Failed(Placed):
    """The recording ended early."""

    event: Literal["failure"]
    status: Literal["plan_error", "launch_error"]
    code: Annotated[str, Field(pattern=r"^(plan|launch|infra)\.[a-z_]+$", max_length=60)]
    message: Text


class End(Event):
    """`run` returned."""

    event: Literal["end"]


RawOperation = RawLaunch | RawMemset | RawCopy | RawUpload
RawOrder = RawStream | RawEventRecord | RawStreamWait | RawHostWait
Ordered = RawOperation | RawFree | RawOrder
AnyEvent = Annotated[
    Start
    | RawCall
    | RawBuffer
    | RawFree
    | RawTensorMap
    | RawFunction
    | RawLaunch
    | RawMemset
    | RawCopy
    | RawUpload
    | RawStream
    | RawEventRecord
    | RawStreamWait
    | RawHostWait
    | ApiError
    | Ignored
    | Failed
    | End,
    Field(discriminator="event"),
]
_ADAPTER: TypeAdapter[AnyEvent] = TypeAdapter(AnyEvent)

MAX_LINES = 80_000 * MAX_CALLS
"""More than the recorder's own limits of operations, order, buffers, tensor maps and attributes add up to."""


@dataclass(frozen=True)
class Begin:
    """How much had been recorded when a call began."""

    buffers: int
    tensor_maps: int
    functions: int
    ordered: int
    errors: int
    ignored: int


@dataclass
class Recording:
    """One run of the host code."""

    buffers: list[RawBuffer] = field(default_factory=list)
    tensor_maps: list[RawTensorMap] = field(default_factory=list)
    functions: list[RawFunction] = field(default_factory=list)
    ordered: list[Ordered] = field(default_factory=list)
    """Operations, frees and what orders them, as the calls came."""
    errors: list[ApiError] = field(default_factory=list)
    ignored: list[Ignored] = field(default_factory=list)
    failed: Failed | None = None
    started: bool = False
    ended: bool = False
    malformed: str | None = None
    """The first line that is no event; None if all are."""
    calls: list[Begin] = field(default_factory=list)
    freed: frozenset[str] = frozenset()
    """Workspaces that earlier calls had freed."""
    fresh: frozenset[str] = frozenset()
    """Workspaces of this call that no work before it can have used (`cudaMalloc`)."""

    def call(self, index: int) -> Recording:
        """Return what one call of `run` asked for, over all that it and those before had made.

        The first call has what was done while the library was loaded.
        """
        start = self.calls[index] if index else Begin(0, 0, 0, 0, 0, 0)
        end = self.calls[index + 1] if index + 1 < len(self.calls) else self._end()
        before, during = self.ordered[: start.ordered], self.ordered[start.ordered : end.ordered]
        return replace(
            self,
            buffers=self.buffers[: end.buffers],
            tensor_maps=self.tensor_maps[: end.tensor_maps],
            functions=self.functions[: end.functions],
            ordered=_with_own_streams([each for each in before if isinstance(each, RawStream)], during),
            errors=self.errors[start.errors : end.errors],
            ignored=self.ignored[start.ignored : end.ignored],
            calls=[],
            freed=frozenset(each.name for each in before if isinstance(each, RawFree)),
            fresh=frozenset(
                buffer.name
                for buffer in self.buffers[start.buffers : end.buffers]
                if buffer.role == "workspace" and not buffer.in_stream_order
            ),
        )

    def begin(self) -> None:
        """Note that a call begins."""
        self.calls.append(self._end())

    def _end(self) -> Begin:
        kinds: tuple[Sized, ...] = (
            self.buffers, self.tensor_maps, self.functions, self.ordered, self.errors, self.ignored,
        )  # fmt: skip
        return Begin(*map(len, kinds))


def _with_own_streams(kept: list[RawStream], calls: list[Ordered]) -> list[Ordered]:
    """Return `calls` with streams numbered as if the process had begun here: first those kept from before, if used."""
    used = {index for call in calls for index in _streams_of(call)}
    made: list[Ordered] = [*(stream for stream in kept if stream.index in used), *calls]
    numbers = {index: index for index in range(ALWAYS_THERE)}
    for call in made:
        if isinstance(call, RawStream):
            numbers[call.index] = len(numbers)
    return [_renumbered(call, numbers) for call in made]


def _streams_of(call: Ordered) -> tuple[int, ...]:
    match call:
        case RawHostWait(what="stream"):
            return (call.index,)
        case RawFree() | RawHostWait() | RawStream():
            return ()
    return (call.stream,)


def _renumbered(call: Ordered, numbers: Mapping[int, int]) -> Ordered:
    """Return `call` with other numbers for its streams; one that was never made keeps its number."""
    name = "index" if isinstance(call, RawHostWait | RawStream) else "stream"
    if isinstance(call, RawFree) or (isinstance(call, RawHostWait) and call.what != "stream"):
        return call
    number = getattr(call, name)
    new = numbers.get(number, number)
    return call if new == number else call.model_copy(update={name: new})


def dim3(values: list[int]) -> Dim3:
    """Return three numbers as a tuple."""
    x, y, z = values
    return x, y, z


def parse_record(record: bytes) -> Recording:
    """Parse the recorder's lines, up to the first failure or end."""
    recording = Recording()
    lines = record.split(b"\n", MAX_LINES)
    if len(lines) > MAX_LINES and lines.pop():
        recording.malformed = "too many lines"
    for line in lines:
        if not line.strip():
            continue
        try:
            event = _ADAPTER.validate_json(line)
        except ValidationError:
            if recording.malformed is None:
                recording.malformed = line[:200].decode("ascii", "replace")
            continue  # a signal may have cut a line short; the failure that it reports follows
        match event:
            case Start():
                recording.started = True
            case RawCall():
                recording.begin()
            case RawBuffer():
                recording.buffers.append(event)
            case RawTensorMap():
                recording.tensor_maps.append(event)
            case RawFunction():
                recording.functions.append(event)
            case ApiError():
                if len(recording.errors) < MAX_ERRORS:
                    recording.errors.append(event)
            case Ignored():
                if len(recording.ignored) < MAX_ERRORS:
                    recording.ignored.append(event)
            case Failed():
                recording.failed = event
                return recording
            case End():
                recording.ended = True
                return recording
            case _:
                recording.ordered.append(event)
    return recording
