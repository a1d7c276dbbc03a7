"""Where buffers lie: in emulated device memory by a function of their order and sizes alone, and in the host's."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

GLOBAL_BASE = 0x0000_1000_0000_0000
"""As in ir.hpp: global addresses start here."""
ALIGNMENT_BYTES = 512
GUARD_BYTES = 4096
"""At least so much unmapped space follows every buffer, so that an access past its end meets no other buffer."""
HOST_ALIGNMENT_BYTES = 64
"""A line of the host's caches, which device memory has lines of, too: else every store of a whole warp would touch one
more of them, which took half as long again."""


def aligned(value: int, to: int) -> int:
    """Round `value` up to a multiple of `to`."""
    return (value + to - 1) // to * to


def place(sizes: Iterable[tuple[str, int]], start: int = GLOBAL_BASE) -> dict[str, int]:
    """Return name → device address for buffers of the given names and sizes (bytes), ascending in their order."""
    addresses = {}
    at = start
    for name, size in sizes:
        addresses[name] = at
        at = after(at, size)
    return addresses


def after(address: int, size_bytes: int) -> int:
    """Return the first address that may follow a buffer."""
    return aligned(address + size_bytes + GUARD_BYTES, ALIGNMENT_BYTES)


def zeros(size_bytes: int) -> NDArray[np.uint8]:
    """Return host memory that holds zeros, from the start of a line on."""
    whole = np.zeros(size_bytes + HOST_ALIGNMENT_BYTES, np.uint8)
    start = -whole.ctypes.data % HOST_ALIGNMENT_BYTES
    return whole[start : start + size_bytes]
