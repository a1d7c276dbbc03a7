"""What the launcher writes into the 128 bytes of a tensor map; that the core reads the same, every copy test shows."""

from __future__ import annotations

import struct

import pytest

from ptxgym.device.emulator.tensor_map import pack, unsupported
from ptxgym.plan.model import BufferRef, TensorMap

PLAIN = TensorMap(
    data_type="FLOAT32",
    global_address=BufferRef(buffer="A"),
    global_dim=(2**32, 7, 5),
    global_strides_bytes=(2**34, 2**37),
    box_dim=(32, 256, 2),
    element_strides=(1, 2, 3),
    swizzle="128B",
    oob_fill="NAN_REQUEST_ZERO_FMA",
)


def test_every_field_stands_where_the_core_looks_for_it() -> None:
    data = pack(PLAIN, 0x1000_0000_0040)
    assert len(data) == 128
    assert data[:8] == b"PTXGMAP1"
    address, *strides = struct.unpack_from("<5Q", data, 8)
    assert (address, strides) == (0x1000_0000_0040, [2**34, 2**37, 0, 0])
    assert struct.unpack_from("<5I", data, 48) == (2**32 - 1, 6, 4, 0, 0)  # sizes less one
    assert struct.unpack_from("<5H", data, 68) == (32, 256, 2, 1, 1)
    assert tuple(data[78:87]) == (1, 2, 3, 1, 1, 3, 7, 3, 1)  # strides, rank, FLOAT32, 128B, NaN
    assert not any(data[87:])


@pytest.mark.parametrize(
    ("field", "value"),
    [("data_type", "16U8_ALIGN8B"), ("swizzle", "96B"), ("interleave", "16B"), ("oob_fill", "OTHER")],
)
def test_what_is_not_emulated_is_named(field: str, value: str) -> None:
    other = PLAIN.model_copy(update={field: value})
    named = unsupported(other)
    assert named is not None
    assert value in named
    with pytest.raises(ValueError, match=value):
        pack(other, 0)
    assert unsupported(PLAIN) is None
