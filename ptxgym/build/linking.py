"""What the host's linker refuses: variables that are too large together, and names that others define too."""

from __future__ import annotations

import re

from ptxgym.build.demangle import function_name
from ptxgym.build.entry import SUBMISSION_FILE
from ptxgym.build.model import MAX_MODULE_BYTES
from ptxgym.build.text import code_only, line_of, ptx_code

_NAMED = 3
"""Variables that a message names at most."""
# PTX ISA 5.4: nvcc writes arrays of whatever type as one dimension, of bytes or of a fundamental type.
_ARRAY = re.compile(
    r"^[ \t]*(?:\.(?:visible|weak|common)[ \t]+)*\.global[ \t]+(?:\.align[ \t]+\d+[ \t]+)?"
    r"\.[a-z]+(?P<bits>\d{1,3})[ \t]+(?P<name>[\w$]+)\[(?P<length>\d{1,18})\]",
    re.MULTILINE,
)
_TWICE = re.compile(
    rf"^{re.escape(SUBMISSION_FILE)}:(?P<line>\d{{1,9}}): multiple definition of `(?P<name>[^'\n]+)'", re.M
)


def link_error(said: str, text: str, ptx: str | None) -> tuple[str, int | None]:
    """Say in half a sentence why the linker failed, and the submission's line (1-based) where one is to blame.

    Args:
        said: The output of the tools.
        text: The submission.
        ptx: What it was compiled to, which knows the sizes of its `__device__` arrays.
    """
    if "relocation truncated to fit" in said:
        large = _large(ptx or "")
        named = ", ".join(f"`{name}` has {size_bytes:,} bytes" for name, size_bytes in large)
        message = f"the variables of the file are too large together{f' ({named})' if named else ''}"
        message += f"; all `__device__` variables may have {MAX_MODULE_BYTES >> 30} GiB, larger buffers come from "
        return message + "cudaMalloc", _line(large[0][0], text) if large else None
    if twice := _TWICE.search(said):
        why = f"multiple definition of `{twice['name']}`, a name that the C or CUDA runtime has too"
        return why, int(twice["line"])
    return "it names no cause", None


def _large(ptx: str) -> list[tuple[str, int]]:
    """Return names and bytes of the largest arrays in global memory, as far as they matter."""
    sizes = [
        (function_name(array["name"]).rsplit("::", 1)[-1], int(array["bits"]) // 8 * int(array["length"]))
        for array in _ARRAY.finditer(ptx_code(ptx))
    ]
    matter = [(name, size_bytes) for name, size_bytes in sizes if size_bytes > MAX_MODULE_BYTES // 8]
    return sorted(matter, key=lambda named: -named[1])[:_NAMED]


def _line(name: str, text: str) -> int | None:
    """Return the line in which an array is declared, as far as the text alone shows it."""
    code = code_only(text)
    found = re.search(rf"(?<!\w){re.escape(name)}\s*\[", code)
    return line_of(code, found.start()) if found else None
