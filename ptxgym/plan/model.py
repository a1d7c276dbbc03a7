"""A launch plan: what the host code asked of the driver, as plain data.

A plan has no addresses. Bytes that held device pointers or tensor maps are zero in `Blob.data` and named in
`Blob.refs`, so that a plan hashes, goes to JSON and back, and replays on fresh addresses any number of times.
"""

from __future__ import annotations

import hashlib
import re
from typing import Annotated, Literal

from pydantic import Field

from ptxgym.verdict import Value

Dim3 = tuple[int, int, int]

MAX_STREAMS = 128
"""Streams of a plan; as in native/recorder/streams.cpp."""
MAX_EDGES = 20_000
"""Times that operations of a plan wait for others in other streams."""

_PER_BUILD_HASH = re.compile(r"(_GLOBAL__N__|_INTERNAL_)[0-9a-f]{8}(?=_)")


def normalize_names(text: str) -> str:
    """Return `text` with zeros for the hashes that nvcc puts into names of internal linkage.

    They come from the folder of the compilation, so that equal sources get other names in another build.
    """
    return _PER_BUILD_HASH.sub(r"\g<1>00000000", text)


class Buffer(Value):
    """A range of device memory."""

    name: str
    """Argument name, `workspace<n>`, or the mangled symbol of a module variable."""
    role: Literal["input", "output", "workspace", "symbol"]
    size_bytes: int


class BufferRef(Value):
    """An address: a buffer plus a byte offset (one past the end is allowed)."""

    buffer: str
    offset: int = 0


class PointerRef(Value):
    """Eight bytes at `at` that hold a device address."""

    kind: Literal["pointer"] = "pointer"
    at: int
    target: BufferRef


class TensorMapRef(Value):
    """128 bytes at `at` that hold the tensor map `index` of the plan."""

    kind: Literal["tensor_map"] = "tensor_map"
    at: int
    index: int


Ref = Annotated[PointerRef | TensorMapRef, Field(discriminator="kind")]


class Blob(Value):
    """Bytes of a parameter or an upload, with what must be patched in before use."""

    data: str
    """Hex; zeros where a reference stands."""
    refs: tuple[Ref, ...] = ()

    @property
    def raw(self) -> bytes:
        """The literal bytes."""
        return bytes.fromhex(self.data)


class TensorMap(Value):
    """All arguments of one `cuTensorMapEncodeTiled`; names of enumerators without their `CU_TENSOR_MAP_…_` prefix."""

    data_type: str
    """`BFLOAT16`, `UINT8`, `FLOAT32`, …"""
    global_address: BufferRef
    global_dim: tuple[int, ...]
    """Elements, innermost first; its length is the rank, 1 to 5."""
    global_strides_bytes: tuple[int, ...]
    """rank − 1 values: the stride of dimension 1, 2, …"""
    box_dim: tuple[int, ...]
    element_strides: tuple[int, ...]
    interleave: str = "NONE"
    swizzle: str = "NONE"
    """`NONE`, `32B`, `64B`, `128B`."""
    l2_promotion: str = "NONE"
    oob_fill: str = "NONE"
    """`NONE` (zeros) or `NAN_REQUEST_ZERO_FMA`."""


class Launch(Value):
    """One kernel launch."""

    kind: Literal["launch"] = "launch"
    kernel: str
    """Mangled name, with anonymous-namespace hashes as in this build."""
    grid: Dim3
    block: Dim3
    dynamic_smem_bytes: int
    params: tuple[Blob, ...]
    cluster: Dim3 | None = None
    """From the PTX directive or the launch attribute."""
    cooperative: bool = False
    programmatic: bool = False
    stream: int = 0
    """0 is the stream that `run` was given, 1 the legacy and 2 the per-thread default stream, then those created."""
    after: tuple[int, ...] = ()
    """Operations of other streams that must be over before this one starts, with all before them in their streams.

    The operation before this one in its own stream goes without saying, and so does what follows from others; every
    stream starts after the given one and is joined to it at the end.
    """


class Memset(Value):
    """Fill `count` elements of `width_bytes` with `value`."""

    kind: Literal["memset"] = "memset"
    target: BufferRef
    value: int
    width_bytes: int
    count: int
    stream: int = 0
    after: tuple[int, ...] = ()


class Copy(Value):
    """A device-to-device copy."""

    kind: Literal["copy"] = "copy"
    target: BufferRef
    source: BufferRef
    size_bytes: int
    stream: int = 0
    after: tuple[int, ...] = ()


class Upload(Value):
    """A host-to-device copy of constants known at record time."""

    kind: Literal["upload"] = "upload"
    target: BufferRef
    data: Blob
    stream: int = 0
    after: tuple[int, ...] = ()


Operation = Annotated[Launch | Memset | Copy | Upload, Field(discriminator="kind")]


class FunctionAttributes(Value):
    """What `cudaFuncSetAttribute` set for one kernel."""

    kernel: str
    max_dynamic_smem_bytes: int = 0
    preferred_smem_carveout: int = -1
    non_portable_cluster: bool = False


class LaunchPlan(Value):
    """One self-contained cold call of `run`, in order."""

    build_key: str
    device_profile: str
    axes: dict[str, int]
    buffers: tuple[Buffer, ...]
    tensor_maps: tuple[TensorMap, ...] = ()
    functions: tuple[FunctionAttributes, ...] = ()
    operations: tuple[Operation, ...]
    failed_calls: tuple[str, ...] = ()
    """Calls that failed as on a device though recording went on: name, error and reason, of the first few."""
    ignored_calls: tuple[str, ...] = ()
    """Hints about speed that are not replayed, such as `cudaStreamSetAttribute (access policy window)`; a few."""
    kept: tuple[str, ...] = ()
    """What later calls in the same process find as earlier ones left it: workspaces, set-up that happens once."""
    isolation: str
    """Level under which the host code ran: `full`, `seccomp` or `rlimits`."""
    recorder_revision: int

    @property
    def hash(self) -> str:
        """Hex SHA-256 of the plan without its isolation level; equal for every build of the same submission."""
        return hashlib.sha256(normalize_names(self.model_dump_json(exclude={"isolation"})).encode()).hexdigest()

    @property
    def launches(self) -> tuple[Launch, ...]:
        """The kernel launches, in order."""
        return tuple(op for op in self.operations if isinstance(op, Launch))

    @property
    def has_side_streams(self) -> bool:
        """Whether operations may run beside each other, on more than one stream."""
        return len({operation.stream for operation in self.operations}) > 1
