"""The other spellings of asynchronous and matrix instructions: each must do what its plain form does."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from tests.gpu.cases.copies import load, store
from tests.gpu.cases.model import Case, Map
from tests.gpu.cases.values import random_bytes


def form_cases() -> Iterator[Case]:
    """Copies as those of the plain forms, then traces of barriers, then a warp."""
    tensor = Map((160, 48), (64, 16), swizzle="128B")
    yield replace(load("form/tensor_load", tensor, (8, 3)), kernel="tensor_load_hint")
    yield replace(store("form/tensor_store", replace(tensor, over="out"), (8, 3)), kernel="tensor_store_hint")
    args = (256, 2048, 2432, 512)
    yield Case("form/bulk_load", "bulk_load_hint", 128, random_bytes(4096, 3), 16 + 2432, args)
    yield Case("form/bulk_store", "bulk_store_hint", 128, random_bytes(4096, 4), 4096, args)
    yield Case("form/cp_async_groups", "cp_async_groups", 32, random_bytes(1024, 5), 1536)
    yield Case("form/mbarrier", "mbarrier_forms", 32, b"", 256)
    for name, data in (("mixed", random_bytes(128, 8)), ("all", b"\1" * 128), ("none", bytes(128))):
        yield Case(f"form/barrier/{name}", "barrier_forms", 128, data, 128 * 24)
    for kernel in ("mma_s8_m8", "mma_su8_m8"):  # per lane one register of A, one of B, two of C; two of D
        yield Case(f"form/{kernel}", kernel, 32, random_bytes(32 * 16, 10), 32 * 8)
    yield Case("form/warp", "warp_forms", 32, random_bytes(512, 9), 32 * 32)
