"""Frames between an evaluator and its judge process: kind, number and one pickled value over a stream socket.

Both sides are trusted: no submission ever runs in either. A frame's value is unpickled by whoever handles it, so that
one that cannot be read spoils only the request that it belongs to.
"""

from __future__ import annotations

import pickle
import socket
import struct
import threading
from dataclasses import dataclass
from enum import IntEnum
from typing import Any

_PREFIX = struct.Struct("<BQQ")


class Kind(IntEnum):
    """What a frame is."""

    EXPECT = 1
    """An evaluation has begun: warm up for it. Holds an `Announced`."""
    FORGET = 2
    """It ended before it came to measuring. Holds the same."""
    MEASURE = 3
    """Holds a `Request`."""
    WITNESS = 4
    """Holds the `Witness` for the request of this number."""
    ANSWER = 5
    """Holds the `Outcome` of the request of this number."""
    ERROR = 6
    """Holds an `Error` about the request of this number."""
    CLOSE = 7


@dataclass(frozen=True)
class Error:
    """Why a request has no outcome."""

    kind: str
    """`usage` or `infrastructure`."""
    message: str
    last: bool = False
    """Whether the process ends with it."""


@dataclass(frozen=True)
class Frame:
    """One frame, not yet unpickled."""

    kind: Kind
    number: int
    data: bytes

    @property
    def value(self) -> Any:
        """The value; whatever unpickling raises passes through."""
        return pickle.loads(self.data)


class Channel:
    """One end; any thread may send, one receives."""

    def __init__(self, stream: socket.socket) -> None:
        self._stream = stream
        self._sending = threading.Lock()

    def send(self, kind: Kind, number: int = 0, value: Any = None) -> None:
        """Send one frame.

        Raises:
            OSError: if the other side has gone.
        """
        data = pickle.dumps(value, protocol=pickle.HIGHEST_PROTOCOL)
        with self._sending:
            self._stream.sendall(_PREFIX.pack(kind, number, len(data)) + data)

    def receive(self) -> Frame:
        """Receive one frame.

        Raises:
            EOFError: if the other side has gone.
            ValueError: if what came is no frame.
        """
        kind, number, length = _PREFIX.unpack(self._exactly(_PREFIX.size))
        return Frame(Kind(kind), number, self._exactly(length))

    def close(self) -> None:
        """Hang up, even while another thread receives."""
        try:
            self._stream.shutdown(socket.SHUT_RDWR)
        except OSError:  # the other side was faster
            pass
        finally:
            self._stream.close()

    def _exactly(self, count: int) -> bytes:
        data = bytearray(count)
        view = memoryview(data)
        while view:
            try:
                got = self._stream.recv_into(view)
            except ConnectionError:
                raise EOFError from None
            if not got:
                raise EOFError
            view = view[got:]
        return bytes(data)
