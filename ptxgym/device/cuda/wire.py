"""Frames between this process and an executor, over a Unix stream socket. Their layout is written down here.

All numbers are little-endian. A frame is a prefix, `u64` bytes of body, `u32` type, `u32` descriptors (0 or 1), then
the body; a descriptor travels as SCM_RIGHTS beside the prefix. In a body, `text` and `bytes` are a `u32` length and so
many bytes, `list(X)` is a `u32` count and so many X, `flag` is a `u8`, `ref` is `u32` buffer and `u64` offset, and
`dim3` is three `u32`.

Requests, each answered by one frame, a good CALL by two:

====== = ======================================================================================================
LOAD   1 `bytes` cubin, `u32` bytes of the largest stack frame, `list(text)` kernels, `list(text name, flag zeros)`
         variables of the module, `list(plan)`; once per context
REGION 2 `u32` id, `u8` kind (0 exported device memory, 1 file in host memory), `u64` bytes; brings the descriptor
FORGET 3 `u32` id
CALL   4 `u32` plan, `flag` flush, `flag` profile, `list(u32 buffer, u32 region)` inputs, the same for results,
         `list(u32 buffer, u32 width, u32 value)` poisons
BEGIN  5 empty; the first request, before which the process does not touch the GPU. Once more: the submission, its
         context and all that lies in it are given up, and a new context is made
====== = ======================================================================================================

* plan: `list(text name, u8 role, u64 bytes)` buffers, `list(map)`, `list(function)`, `list(operation)`; the roles are
  input, output, workspace, symbol
* map: `text` data type, interleave, swizzle, L2 promotion, fill; `ref` address; `list(u64)` dims, strides in bytes;
  `list(u32)` box, element strides
* function: `u32` kernel, `i32` dynamic shared memory (bytes, 0 leaves it), `i32` carve-out (−1 leaves it), `flag`
  non-portable cluster
* operation: `u8` kind, `flag` set-up, `u32` stream, `list(u32)` operations of other streams to wait for, then

  * launch (0): `u32` kernel, `dim3` grid, block, cluster (zeros: no attribute), `u32` dynamic shared memory, `flag`
    cooperative, programmatic, `list(blob)` parameters
  * memset (1): `ref` target, `u32` value, `u32` width, `u64` count
  * copy (2): `ref` target, source, `u64` bytes
  * upload (3): `ref` target, `blob`

* blob: `bytes`, `list(u8 kind, u32 at, …)` references: pointer (0) `ref`, tensor map (1) `u32` index

Answers:

========= = ===================================================================================================
READY     1 `i32` driver version, `u64` bytes of L2, `flag` kernels can read this host's memory (of BEGIN)
DONE      2 `flag` the module is loaded anew before each call (of LOAD)
CALLED    3 `f64` µs between events, `f64` µs by the executor's clock, `text` printed
FAILED    4 `text` stage, `i32` CUresult, `text` its name, `text` driver call, `i32` index (meanings:
            `executor_failure.Reported`), `text` printed
OVERRUN   5 `u32` buffer, `flag` before it, `u64` distance in bytes (from 1), `text` printed
LAUNCHING 6 empty; precedes the answer to CALL when everything is ready and the first operation comes next
========= = ===================================================================================================
"""

from __future__ import annotations

import socket
import struct
import time
from collections.abc import Callable, Iterable
from enum import IntEnum
from typing import Any, TypeVar

_PREFIX = struct.Struct("<QII")
MAX_ANSWER_BYTES = 1 << 20
"""An answer holds 64 KiB of printed text at most; the process that sends it runs code that an agent wrote."""
T = TypeVar("T")


class Request(IntEnum):
    """What an executor is asked for."""

    LOAD = 1
    REGION = 2
    FORGET = 3
    CALL = 4
    BEGIN = 5


class Answer(IntEnum):
    """What it says."""

    READY = 1
    DONE = 2
    CALLED = 3
    FAILED = 4
    OVERRUN = 5
    LAUNCHING = 6


class Writer:
    """A body under construction."""

    def __init__(self) -> None:
        self._parts: list[bytes] = []

    def numbers(self, layout: str, *values: float) -> Writer:
        """Append `values` as the `struct` format `layout` says, little-endian and without padding."""
        self._parts.append(struct.pack(f"<{layout}", *values))
        return self

    def blob(self, value: bytes) -> Writer:
        """Append bytes with their length."""
        self._parts += [struct.pack("<I", len(value)), value]
        return self

    def text(self, value: str) -> Writer:
        """Append text with its length."""
        return self.blob(value.encode())

    def items(self, items: Iterable[T], write: Callable[[T], Any]) -> Writer:
        """Append the count of `items`, then what `write` appends for each."""
        held = tuple(items)
        self.numbers("I", len(held))
        for item in held:
            write(item)
        return self

    @property
    def body(self) -> bytes:
        """Everything so far."""
        return b"".join(self._parts)


class Reader:
    """Takes a body apart; raises `ValueError` where it ends early."""

    def __init__(self, body: bytes) -> None:
        self._body = body
        self._at = 0

    def numbers(self, layout: str) -> tuple[Any, ...]:
        """Take numbers as the `struct` format `layout` says."""
        return struct.unpack(f"<{layout}", self._take(struct.calcsize(f"<{layout}")))

    def text(self) -> str:
        """Take a text; bytes that are no UTF-8 are replaced."""
        (size,) = self.numbers("I")
        return self._take(size).decode(errors="replace")

    def end(self) -> None:
        """Raise `ValueError` unless everything was taken."""
        if self._at != len(self._body):
            raise ValueError(f"{len(self._body) - self._at} bytes are left over")

    def _take(self, size: int) -> bytes:
        if size > len(self._body) - self._at:
            raise ValueError(f"a body of {len(self._body)} bytes ends early")
        self._at += size
        return self._body[self._at - size : self._at]


def send(stream: socket.socket, request: Request, body: bytes, descriptor: int | None = None) -> None:
    """Send one frame.

    Raises:
        OSError: if the other side has gone.
    """
    prefix = _PREFIX.pack(len(body), request, descriptor is not None)
    if descriptor is None:
        stream.sendall(prefix)
    elif socket.send_fds(stream, [prefix], [descriptor]) != len(prefix):
        raise OSError("a descriptor was not sent whole")
    if body:  # who has no body may have been answered already, and the other side gone
        stream.sendall(body)


def receive(stream: socket.socket) -> tuple[Answer, Reader]:
    """Receive one frame.

    Raises:
        EOFError: if the other side has gone.
        TimeoutError: if it takes longer than the socket's time-out, in however many pieces it comes.
        ValueError: if what came is not a frame.
    """
    limit_s = stream.gettimeout()
    until = None if limit_s is None else time.monotonic() + limit_s
    size, kind, descriptors = _PREFIX.unpack(_exactly(stream, _PREFIX.size, until))
    if size > MAX_ANSWER_BYTES or descriptors:
        raise ValueError(f"a frame announces {size} bytes and {descriptors} descriptors")
    return Answer(kind), Reader(_exactly(stream, size, until))


def _exactly(stream: socket.socket, count: int, until: float | None) -> bytes:
    data = bytearray(count)
    view = memoryview(data)
    while view:
        if until is not None:
            left_s = until - time.monotonic()
            if left_s <= 0:
                raise TimeoutError("a frame did not come whole in time")
            stream.settimeout(left_s)
        got = stream.recv_into(view)
        if not got:
            raise EOFError
        view = view[got:]
    return bytes(data)
