"""Tensor, bulk and group copies."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from tests.gpu.cases.model import DATA_TYPES, ELEMENT_BYTES, FILLS, Case, Map
from tests.gpu.cases.values import random_bytes, special_floats


def load(
    name: str,
    m: Map,
    coords: tuple[int, ...],
    *,
    offset: int = 0,
    expected: int | None = None,
    kernel: str = "",
    source: bytes = b"",
    seed: int = 1,
) -> Case:
    """A box into shared memory, of which what the box takes and the next 128 bytes are dumped."""
    pitch = m.box[0] * m.element_bytes if m.swizzle == "NONE" else int(m.swizzle[:-1])
    dump = offset + -(-int(np.prod(m.counts[1:])) * pitch // 128) * 128 + 128
    map_at = -(-(16 + dump) // 128) * 128
    args = (offset, m.box_bytes if expected is None else expected, dump, *coords, *(0,) * (5 - len(coords)), map_at)
    out_bytes = map_at + 128 if kernel else 16 + dump
    source = source or random_bytes(m.offset + m.tensor_bytes, seed)
    return Case(name, kernel or f"tensor_load_{m.rank}", 128, source, out_bytes, args, map=m)


def store(name: str, m: Map, coords: tuple[int, ...], *, offset: int = 0, seed: int = 2, image: int = 8192) -> Case:
    args = (offset, 0, 0, *coords, *(0,) * (5 - len(coords)))
    return Case(name, f"tensor_store_{m.rank}", 128, random_bytes(image, seed), m.offset + m.tensor_bytes, args, map=m)


def copy_cases() -> Iterator[Case]:
    dims = (160, 48)
    for swizzle, inner in (("NONE", 64), ("NONE", 96), ("32B", 16), ("64B", 32), ("128B", 64)):
        yield load(f"load/2d/{swizzle}/{inner}", Map(dims, (inner, 16), swizzle=swizzle), (8, 3))
        yield store(f"store/2d/{swizzle}/{inner}", Map(dims, (inner, 16), swizzle=swizzle, over="out"), (8, 3))
    for swizzle, inner in (("32B", 16), ("64B", 32), ("128B", 64)):
        for lines in (1, 3, 6):
            yield load(
                f"load/phase/{swizzle}/{lines}", Map(dims, (inner, 16), swizzle=swizzle), (0, 0), offset=128 * lines
            )
    for swizzle, inner in (("32B", 8), ("64B", 8), ("64B", 16), ("128B", 8), ("128B", 16), ("128B", 32), ("128B", 48)):
        yield load(f"load/narrow/{swizzle}/{inner}", Map(dims, (inner, 12), swizzle=swizzle), (8, 3))
        yield store(f"store/narrow/{swizzle}/{inner}", Map(dims, (inner, 12), swizzle=swizzle, over="out"), (8, 3))
    places = {"low": (-24, -5), "high": (120, 40), "corner": (-24, 40), "outside": (160, 0), "far": (-64, -16)}
    for name, coords in {**places, "low0": (-24, 3), "low1": (8, -5)}.items():
        yield load(f"load/clip/{name}", Map(dims, (64, 16), swizzle="128B"), coords)
        yield store(f"store/clip/{name}", Map(dims, (64, 16), swizzle="128B", over="out"), coords)
    # The innermost coordinate must be a multiple of 16 bytes.
    yield load("load/coordinate/4bytes", Map(dims, (64, 16), swizzle="128B"), (2, 3))
    yield load("load/coordinate/8bytes", Map(dims, (64, 16)), (4, 3))
    yield load("load/coordinate/negative", Map(dims, (64, 16)), (-4, 3))
    yield store("store/coordinate/8bytes", Map(dims, (64, 16), over="out"), (4, 3))
    for kind in ("BFLOAT16", "FLOAT16", "FLOAT32", "FLOAT64", "TFLOAT32", "FLOAT32_FTZ", "TFLOAT32_FTZ"):
        inner = 128 // ELEMENT_BYTES[kind]
        m = Map((inner * 2, 24), (inner, 8), type=kind, fill=FILLS[1], swizzle="128B")
        yield load(f"load/nan/{kind}", m, (inner + inner // 2, 20))
    for kind in DATA_TYPES:
        inner, unit = 64 // ELEMENT_BYTES[kind], 16 // ELEMENT_BYTES[kind]
        yield load(f"load/type/{kind}", Map((inner * 2, 32), (inner, 24), type=kind), (unit, 5))
    for kind in ("FLOAT32", "FLOAT32_FTZ", "TFLOAT32", "TFLOAT32_FTZ"):
        yield load(f"load/special/{kind}", Map((32, 8), (32, 8), type=kind), (0, 0), source=special_floats(256))
    for steps in ((1, 2), (1, 3), (1, 8)):
        m = Map(dims, (32, 16), swizzle="64B", element_strides=steps)
        yield load(f"load/steps/{steps[1]}", m, (16, 1))
        yield load(f"load/steps/{steps[1]}/clip", m, (144, 37))
        yield load(f"load/steps/{steps[1]}/low", m, (-8, -5))
        yield store(
            f"store/steps/{steps[1]}", Map(dims, (32, 16), swizzle="64B", element_strides=steps, over="out"), (16, 1)
        )
    yield load("load/steps/inner", Map(dims, (32, 4), element_strides=(2, 1)), (16, 1))
    yield load("load/1d", Map((1000,), (128,)), (40,))
    yield load("load/1d/clip", Map((1000,), (128,)), (936,))
    yield store("store/1d", Map((1000,), (128,), over="out"), (40,))
    shape3, shape4, shape5 = (40, 12, 9), (24, 7, 6, 5), (16, 5, 4, 3, 6)
    yield load("load/3d", Map(shape3, (32, 5, 3), swizzle="64B"), (8, 4, 2))
    yield load("load/3d/clip", Map(shape3, (32, 5, 3), swizzle="64B"), (-8, 9, 7))
    yield load("load/3d/steps", Map(shape3, (32, 5, 7), element_strides=(1, 2, 3)), (8, 1, 1))
    yield load("load/3d/strided", Map((24, 5, 4), (16, 4, 3), strides=(64, 480), swizzle="32B"), (16, 1, 1))
    yield store("store/3d", Map(shape3, (32, 5, 3), swizzle="64B", over="out"), (8, 4, 2))
    yield load("load/4d", Map(shape4, (16, 3, 2, 4), swizzle="32B"), (8, 1, 3, 0))
    yield load("load/4d/clip", Map(shape4, (16, 3, 2, 4), swizzle="32B"), (16, -1, 5, 3))
    yield store("store/4d", Map(shape4, (16, 3, 2, 4), swizzle="32B", over="out"), (8, 1, 3, 0))
    yield load("load/5d", Map(shape5, (16, 2, 3, 2, 4), swizzle="32B"), (0, 1, 0, 1, 2))
    yield load("load/5d/clip", Map(shape5, (16, 2, 3, 2, 4), swizzle="32B"), (-8, 4, -1, 2, 3))
    yield store("store/5d", Map(shape5, (16, 2, 3, 2, 4), swizzle="32B", over="out"), (0, 1, 0, 1, 2))
    m = Map(dims, (64, 16), swizzle="128B")
    yield load("load/tx/less", m, (8, 3), expected=m.box_bytes - 16)
    yield load("load/tx/more", m, (8, 3), expected=m.box_bytes + 16)
    yield load("load/global_map", m, (8, 3), kernel="tensor_load_global_map")
    for offset in (16, 64):
        yield load(f"load/misaligned/{offset}", Map(dims, (64, 16)), (8, 3), offset=offset)
        yield store(f"store/misaligned/{offset}", Map(dims, (64, 16), over="out"), (8, 3), offset=offset)
    for size, offset in ((48, 264),):
        yield Case(
            f"bulk/misaligned/{size}", "bulk_load", 128, random_bytes(4096, 3), 16 + 512, (offset, size, 512, 512)
        )
    for size in (16, 48, 2048):
        yield Case(f"bulk/load/{size}", "bulk_load", 128, random_bytes(4096, 3), 16 + 2432, (256, size, 2432, 512))
        yield Case(f"bulk/store/{size}", "bulk_store", 128, random_bytes(4096, 4), 4096, (256, size, 0, 512))
    for size in (4, 8, 16):
        case = Case(
            f"cp_async/{size}", f"cp_async_{size}", 32, random_bytes(512, 5), 1024 + 64, (5, 0x5A5A1234, 1024 + 64)
        )
        yield case
    yield Case("cp_async/arrive", "cp_async_arrive", 32, random_bytes(128, 6), 16 + 128)
    yield Case("mbarrier/trace", "mbarrier_trace", 32, b"", 256)
