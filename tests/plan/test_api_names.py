"""The recorder answers for every public function of the toolkit's headers, by doing or by refusing."""

from __future__ import annotations

import re
from pathlib import Path

import ptxgym.native
from ptxgym.build import find_toolchain

RECORDER = Path(ptxgym.native.__file__).parent / "recorder"
_DECLARED = re.compile(r"\b(?:CUDAAPI|CUDARTAPI(?:_CDECL)?)\s+(cu\w+)\s*\(")
_RENAMED = re.compile(r"#\s*define\s+cu\w+\s+(cu\w+_v\d\w*)\s*$", re.MULTILINE)
_PER_THREAD = re.compile(r"#\s*define\s+cu\w+\s+__CUDA(?:RT)?_API_(PTSZ|PTDS)\((cu\w+)\)")


def functions_of_the_headers() -> set[str]:
    """Every name under which a header lets host code refer to a function."""
    include = Path(find_toolchain().include)
    names: set[str] = set()
    for header in ("cuda.h", "cuda_runtime_api.h"):
        text = re.sub(r"/\*.*?\*/", "", (include / header).read_text(errors="replace"), flags=re.DOTALL)
        names.update(_DECLARED.findall(text))
        names.update(_RENAMED.findall(text))
        names.update(f"{name}_{suffix.lower()}" for suffix, name in _PER_THREAD.findall(text))
        names.update(name for _, name in _PER_THREAD.findall(text))
    return names


def test_every_function_has_an_answer() -> None:
    listed = set(re.findall(r"^REFUSED\((\w+)\)$", (RECORDER / "api_names.def").read_text(), re.MULTILINE))
    missing = sorted(functions_of_the_headers() - listed)
    assert len(listed) > 900
    assert not missing, f"add to api_names.def: {missing}"
