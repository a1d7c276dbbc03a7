"""What the PTX says that a plan needs: which bytes of a parameter are read, and which variables there are."""

from __future__ import annotations

import functools
import re
from pathlib import Path

from ptxgym.build.model import Build
from ptxgym.build.text import ptx_code

# PTX ISA 5.2: sizes of fundamental types. Inline assembly makes much of the text the submission's, so no pattern may
# take more than linear time on any text, nor read a number that `int` refuses.
_BITS = re.compile(r"\d{1,9}")
_LOAD = re.compile(
    r"\bld\.param(?:\.(?!v\d)\w+(?:::\w+)?)*?(?:\.(?P<vector>v[248]))?\.(?P<type>[busf]\d{1,3}|f16x2|bf16x2)\s+"
    r"[^\[;]{0,400}\[\s*(?P<param>[\w$]++)\s*(?:\+\s*(?P<offset>\d{1,9})\s*)?\]"
)
_DECLARATION = re.compile(r"\.param\s++(?:\.\w++(?:\s++\d++)?+\s*+){0,8}+[\w$]++(?:\s*+\[\d++\])?+")
_NAME = re.compile(r"[\w$]++")
_PARAMETER = re.compile(r"_param_\d+\Z")
_VARIABLE = re.compile(
    r"^[ \t]*(?:\.(?:visible|weak|common|extern)\s+)*\.(?P<space>global|const)\s+(?:\.attribute\([^)]*\)\s*)?"
    r"(?:\.align\s+\d+\s+)?\.(?P<type>\w+)\s+(?P<name>[\w$]+)\s*(?P<dims>(?:\[\d{0,18}\])*)",
    re.MULTILINE,
)


class Module:
    """Facts about one build's PTX."""

    def __init__(self, ptx: str) -> None:
        """Scan the text once."""
        ptx = ptx_code(ptx)
        self._ranges: dict[str, set[tuple[int, int]]] = {}
        for load in _LOAD.finditer(ptx):
            size = _type_bytes(load["type"]) * int((load["vector"] or "v1")[1:])
            start = int(load["offset"] or 0)
            self._ranges.setdefault(load["param"], set()).add((start, start + size))
        rest = _LOAD.sub("", _DECLARATION.sub("", ptx))
        self._whole = {name for name in _NAME.findall(rest) if _PARAMETER.search(name)}
        self.variables: dict[str, int] = {}
        """Size in bytes of each `.global` and `.const` variable, by mangled name."""
        self.globals: set[str] = set()
        """Those which kernels can write to; strings of `printf` are none."""
        for variable in _VARIABLE.finditer(ptx):
            elements = 1
            for dimension in re.findall(r"\[(\d*)\]", variable["dims"]):
                elements *= int(dimension or 0)
            self.variables[variable["name"]] = _type_bytes(variable["type"]) * elements
            if variable["space"] == "global" and not variable["name"].startswith("$"):
                self.globals.add(variable["name"])

    @property
    def has_variables(self) -> bool:
        """Whether kernels may meet in memory that no parameter names; strings of `printf` are none."""
        return any(not name.startswith("$") for name in self.variables)

    def used(self, kernel: str, index: int, size_bytes: int) -> bytes | None:
        """Return which bytes of a parameter the kernel may read (1 or 0 each), or None for all of them.

        Padding of a struct holds whatever lay on the host's stack; it is no part of a plan.
        """
        name = f"{kernel}_param_{index}"
        if name in self._whole or size_bytes <= 8:
            return None
        mask = bytearray(size_bytes)
        for start, stop in self._ranges.get(name, ()):
            mask[start:stop] = b"\1" * (min(stop, size_bytes) - start)
        return bytes(mask)


def _type_bytes(name: str) -> int:
    if name in ("f16x2", "bf16x2"):
        return 4
    bits = _BITS.search(name)
    return int(bits.group()) // 8 if bits else 0


@functools.lru_cache(maxsize=64)
def _scanned(ptx: Path, key: str) -> Module:
    return Module(ptx.read_text(encoding="utf-8", errors="replace"))


def module_of(build: Build) -> Module:
    """Return the facts about a build's PTX."""
    return _scanned(build.ptx, build.key)
