from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from ptxgym.build import Build, build
from ptxgym.build.nvcc import Products
from ptxgym.cache import Cache
from ptxgym.sandbox import Completed
from ptxgym.verdict import Failure

DECLARATION = (
    'extern "C" void run(const __nv_bfloat16* A, const __nv_bfloat16* B, __nv_bfloat16* C, int M, int N, int K, '
    "cudaStream_t stream)"
)
HEAD = "#include <cuda_bf16.h>\n"
KERNEL = "__global__ void fill(__nv_bfloat16* C, int n) { C[threadIdx.x % n] = __float2bfloat16(1.0f); }\n"
RUN = DECLARATION + " {\n  fill<<<1, 32, 0, stream>>>(C, N);\n}\n"
GOOD = HEAD + KERNEL + RUN

Builder = Callable[..., Build | Failure]


@pytest.fixture(scope="session")
def cache(tmp_path_factory) -> Cache:
    """A cache of this session, so that every build really happens."""
    return Cache(tmp_path_factory.mktemp("builds") / "cache")


@pytest.fixture(scope="session")
def compile_text(cache: Cache) -> Builder:
    def call(text: str, **options) -> Build | Failure:
        options = {"declaration": DECLARATION, "arch": "sm_90a", "cache": cache, "timeout_s": 30.0, **options}
        return build(text, **options)

    return call


@pytest.fixture(scope="session")
def good(compile_text: Builder) -> Build:
    result = compile_text(GOOD)
    assert isinstance(result, Build)
    return result


def failed(folder: Path, said: str, *, ptx: str | None = None, code: int = 1) -> Products:
    """A run of nvcc in `folder` that said `said` and ended with status `code`."""
    if ptx is not None:
        (folder / "kernel.ptx").write_text(ptx)
    completed = Completed("exited", code, 0.5, 100 << 20, b"", said.encode(), False, 1.0)
    return Products(folder / "kernel.so", folder / "kernel.cubin", folder / "kernel.ptx", completed)
