"""Packs a plan's tensor map into the 128 bytes that the emulator's TMA engine reads (`tensor_map.hpp`)."""

from __future__ import annotations

import struct

from ptxgym.plan.model import TensorMap

TENSOR_MAP_BYTES = 128
_MAGIC = b"PTXGMAP1"
_LAYOUT = struct.Struct("<8sQ4Q5I5H5BBBBB41x")

_DATA_TYPES = (
    "UINT8",
    "UINT16",
    "UINT32",
    "INT32",
    "UINT64",
    "INT64",
    "FLOAT16",
    "FLOAT32",
    "FLOAT64",
    "BFLOAT16",
    "FLOAT32_FTZ",
    "TFLOAT32",
    "TFLOAT32_FTZ",
    "16U4_ALIGN8B",
    "16U4_ALIGN16B",
    "16U6_ALIGN16B",
)
_SWIZZLES = ("NONE", "32B", "64B", "128B", "128B_ATOM_32B", "128B_ATOM_32B_FLIP_8B", "128B_ATOM_64B")
_FILLS = ("NONE", "NAN_REQUEST_ZERO_FMA")


def unsupported(tensor_map: TensorMap) -> str | None:
    """Name the field that the emulator's TMA engine does not implement, or None: interleaved layouts serve im2col."""
    if tensor_map.data_type not in _DATA_TYPES:
        return f"tensor map data type {tensor_map.data_type}"
    if tensor_map.swizzle not in _SWIZZLES:
        return f"tensor map swizzle {tensor_map.swizzle}"
    if tensor_map.interleave != "NONE":
        return f"tensor map interleave {tensor_map.interleave}"
    if tensor_map.oob_fill not in _FILLS:
        return f"tensor map out-of-bounds fill {tensor_map.oob_fill}"
    return None


def pack(tensor_map: TensorMap, address: int) -> bytes:
    """Pack `tensor_map` over the tensor whose first element is at device address `address`.

    Raises:
        ValueError: if `unsupported` names a field; callers ask first.
    """
    if (field := unsupported(tensor_map)) is not None:
        raise ValueError(f"{field} is not emulated")
    rank = len(tensor_map.global_dim)

    def filled(values: tuple[int, ...], count: int, rest: int) -> tuple[int, ...]:
        return values + (rest,) * (count - len(values))

    return _LAYOUT.pack(
        _MAGIC,
        address,
        *filled(tensor_map.global_strides_bytes, 4, 0),
        *filled(tuple(size - 1 for size in tensor_map.global_dim), 5, 0),
        *filled(tensor_map.box_dim, 5, 1),
        *filled(tensor_map.element_strides, 5, 1),
        rank,
        _DATA_TYPES.index(tensor_map.data_type),
        _SWIZZLES.index(tensor_map.swizzle),
        _FILLS.index(tensor_map.oob_fill),
    )
