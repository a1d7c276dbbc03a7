"""Frames between an evaluator and its emulator workers: a JSON header and binary blobs over a stream socket.

Nothing is unpickled: a worker runs code that an agent wrote, and a fault in the core must not become one in the
evaluator.
"""

from __future__ import annotations

import json
import socket
import struct
from collections.abc import Sequence
from typing import Any

_PREFIX = struct.Struct("<QI")
_LENGTH = struct.Struct("<Q")
MAX_HEADER_BYTES = 256 * 1024**2
MAX_BLOB_BYTES = 1024**3


def send(stream: socket.socket, header: dict[str, Any], blobs: Sequence[bytes] = ()) -> None:
    """Send one frame."""
    text = json.dumps(header, separators=(",", ":")).encode()
    lengths = b"".join(_LENGTH.pack(len(blob)) for blob in blobs)
    stream.sendall(_PREFIX.pack(len(text), len(blobs)) + lengths + text + b"".join(blobs))


def receive(stream: socket.socket) -> tuple[dict[str, Any], list[bytes]]:
    """Receive one frame.

    Raises:
        EOFError: if the other side has gone.
        ValueError: if what came is not a frame.
    """
    length, count = _PREFIX.unpack(_exactly(stream, _PREFIX.size))
    if length > MAX_HEADER_BYTES or count > 1_000_000:
        raise ValueError(f"a frame announces a header of {length} bytes and {count} blobs")
    lengths = [size for (size,) in _LENGTH.iter_unpack(_exactly(stream, _LENGTH.size * count))]
    if any(size > MAX_BLOB_BYTES for size in lengths):
        raise ValueError(f"a frame announces a blob of {max(lengths)} bytes")
    header = json.loads(_exactly(stream, length))
    if not isinstance(header, dict):
        raise ValueError("the header of a frame is not an object")
    return header, [_exactly(stream, size) for size in lengths]


def _exactly(stream: socket.socket, count: int) -> bytes:
    data = bytearray(count)
    view = memoryview(data)
    while view:
        got = stream.recv_into(view)
        if not got:
            raise EOFError
        view = view[got:]
    return bytes(data)
