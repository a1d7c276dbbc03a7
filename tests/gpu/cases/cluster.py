"""Thread-block clusters: exchanges between two CTAs, multicast, and bulk reductions into global memory."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from tests.gpu.cases.model import Case, Map
from tests.gpu.cases.values import random_bytes, small_integers, spread_words

WORDS = {"u32": 4, "s32": 4, "b32": 4, "u64": 8, "s64": 8, "b64": 8, "f32": 4, "f64": 8, "f16": 2, "bf16": 2}
"""Bytes of an element."""
GLOBAL = (
    ("add", "u32"), ("add", "u64"), ("add", "f32"), ("add", "f64"), ("add", "f16"), ("add", "bf16"), ("min", "s32"),
    ("min", "bf16"), ("max", "u64"), ("max", "f16"), ("inc", "u32"), ("dec", "u32"), ("and", "b32"), ("or", "b64"),
    ("xor", "b32"), ("add", "s32"), ("min", "u32"), ("min", "u64"), ("min", "s64"), ("min", "f16"), ("max", "u32"),
    ("max", "s32"), ("max", "s64"), ("max", "bf16"), ("and", "b64"), ("or", "b32"), ("xor", "b64"),
)  # fmt: skip
SHARED = (
    ("add", "u32"), ("add", "u64"), ("min", "s32"), ("max", "u32"), ("inc", "u32"), ("dec", "u32"), ("and", "b32"),
    ("or", "b32"), ("xor", "b32"),
)  # fmt: skip
TENSOR = (
    ("add", "UINT32"), ("add", "INT64"), ("add", "FLOAT32"), ("add", "FLOAT32_FTZ"), ("add", "FLOAT64"),
    ("add", "FLOAT16"), ("add", "BFLOAT16"), ("min", "INT32"), ("min", "BFLOAT16"), ("max", "INT64"),
    ("max", "FLOAT16"), ("inc", "UINT32"), ("dec", "UINT32"), ("and", "UINT32"), ("or", "UINT64"), ("xor", "INT32"),
    ("add", "UINT64"), ("and", "INT64"),
)  # fmt: skip
NAN_TYPES = {"FLOAT32": "f32", "FLOAT32_FTZ": "f32", "FLOAT64": "f64", "FLOAT16": "f16", "BFLOAT16": "bf16"}


def in_cluster(ctas: int, threads: int) -> int:
    """`Case.threads` of a case whose one cluster has `ctas` CTAs."""
    return ctas << 16 | threads


def _floats(kind: str, size_bytes: int, seed: int) -> bytes:
    """Two parts of `size_bytes`: small whole numbers, numbers near one, subnormals, and any bits."""
    width = WORDS[kind]
    if kind == "f64":
        return random_bytes(2 * size_bytes, seed)
    count = 2 * size_bytes // width // 4
    parts = [spread_words(spread, kind, (count,), seed) for spread in ("normal", "wide", "low", "bits")]
    quarters = [words.astype(f"<u{width}") for words in parts]
    halves = [b"".join(words[i * count // 2 : (i + 1) * count // 2].tobytes() for words in quarters) for i in (0, 1)]
    return b"".join(halves)


def reduced_values(kind: str, size_bytes: int, seed: int) -> bytes:
    return (
        _floats(kind, size_bytes, seed) if kind in ("f16", "bf16", "f32", "f64") else random_bytes(2 * size_bytes, seed)
    )


def cluster_cases() -> Iterator[Case]:
    """Cases of one CTA (reductions into global memory), then those of clusters."""
    size = 2048
    for number, (op, kind) in enumerate(GLOBAL):
        nan = kind if kind in ("f16", "bf16", "f32", "f64") else ""
        data = reduced_values(kind, size, 50 + number)
        yield Case(f"reduce/bulk/{op}/{kind}", f"bulk_reduce_{op}_{kind}", 128, data, size, (size,), nan_type=nan)
    for number, (op, kind) in enumerate(TENSOR):
        nan = NAN_TYPES.get(kind, "")
        m = Map((0, 0), (0, 0), type=kind, over="out")
        inner = 64 // m.element_bytes
        m = Map((inner * 2, 16), (inner, 16), type=kind, over="out")
        values = (
            reduced_values(nan, m.tensor_bytes, 70 + number) if nan else random_bytes(2 * m.tensor_bytes, 70 + number)
        )
        yield Case(f"reduce/tensor/{op}/{kind}", f"tensor_reduce_{op}", 128, values, m.tensor_bytes,
                   (m.tensor_bytes, inner // 2, 3), map=m, nan_type=nan)  # fmt: skip
    for kind in ("FLOAT32", "FLOAT32_FTZ"):
        m = Map((32, 16), (16, 16), type=kind, over="out")
        low = spread_words("low", "f32", (1024,), 115) & np.uint32(0x81FFFFFF)  # of four exponents, one of subnormals
        yield Case(f"reduce/tensor/add/{kind}/low", "tensor_reduce_add", 128, low.tobytes(), 2048, (2048, 8, 3), map=m)
    m = Map((64, 32), (64, 16), swizzle="128B", over="out")
    whole = small_integers(2 * 64 * 32, 90, "bf16")
    yield Case("reduce/tensor/swizzled", "tensor_reduce_add", 128, whole, 4096, (4096, 0, 8), map=m)
    yield Case("cluster/share", "cluster_share", in_cluster(2, 128), random_bytes(4 * size, 91), 2 * size, (size,))
    for number, (op, kind) in enumerate(SHARED):
        part = 128 * WORDS[kind]
        for form in ("share_reduce", "red_async"):
            yield Case(f"cluster/{form}/{op}/{kind}", f"{form}_{op}_{kind}", in_cluster(2, 128),
                       random_bytes(4 * part, 92 + number), 2 * part, (part,))  # fmt: skip
    yield Case("cluster/st_async", "st_async_v4", in_cluster(2, 128), random_bytes(4 * size, 110), 2 * size, (size,))
    yield Case("cluster/access", "cluster_access", in_cluster(2, 128), random_bytes(1024, 111), 2048, (512,))
    for ctas, mask in ((2, 0b11), (2, 0b10), (4, 0b1111), (4, 0b1010), (8, 0xFF)):
        yield Case(f"multicast/bulk/{ctas}/{mask:x}", "bulk_multicast", in_cluster(ctas, 128), random_bytes(1024, 112),
                   ctas * (16 + 1536), (256, 1024, 1536, mask))  # fmt: skip
        for swizzle, inner in (("NONE", 32), ("128B", 64)):
            m = Map((160, 48), (inner, 16), swizzle=swizzle)
            dump = m.box_bytes + 256
            yield Case(f"multicast/2d/{swizzle}/{ctas}/{mask:x}", "tensor_multicast", in_cluster(ctas, 128),
                       random_bytes(m.tensor_bytes, 113), ctas * (16 + dump), (0, m.box_bytes, dump, mask, 8, 3),
                       map=m)  # fmt: skip
