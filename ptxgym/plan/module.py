"""What the PTX says that a plan needs: which bytes of a parameter are read, and which variables there are."""

from __future__ import annotations

import functools
import itertools
import re
from collections.abc import Iterator, Set
from pathlib import Path

from ptxgym.build.model import Build
from ptxgym.build.text import ptx_code
from ptxgym.plan.reached import TYPE, Body, type_bytes

MAX_PARAMETER_BYTES = 32_764
"""All parameters of a kernel (CUDA Programming Guide, "Function Parameters")."""
# PTX ISA 5.2: sizes of fundamental types. Inline assembly makes much of the text the submission's, so no pattern may
# take more than linear time on any text, nor read a number that `int` refuses.
_LOAD = re.compile(
    r"\bld\.param(?:\.(?!v\d)\w+(?:::\w+)?)*?(?:\.(?P<vector>v[248]))?\.(?P<type>" + TYPE + r")\s+"
    r"[^\[;]{0,400}\[\s*(?P<param>[\w$]++)\s*(?:\+\s*(?P<offset>0|[1-9]\d{0,8})\s*)?\]"
)
_DECLARATION = re.compile(
    r"\.param\s++(?:\.(?P<type>\w++)(?:\s++\d++)?+\s*+){0,8}+(?P<name>[\w$]++)(?:\s*+\[(?P<elements>\d{1,9})\])?+"
)
_NAME = re.compile(r"[\w$]++")
_FUNCTION = re.compile(r"\.(?:func\b|entry\s++(?P<kernel>[\w$]++))")
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
            size = type_bytes(load["type"]) * int((load["vector"] or "v1")[1:])
            start = int(load["offset"] or 0)
            self._ranges.setdefault(load["param"], set()).add((start, start + size))
        self._sizes: dict[str, dict[str, int]] = {}
        for each in _DECLARATION.finditer(ptx):
            if (number := _PARAMETER.search(each["name"])) and each["type"]:
                size = type_bytes(each["type"]) * int(each["elements"] or 1)
                self._sizes.setdefault(each["name"][: number.start()], {})[each["name"]] = size
        rest = _LOAD.sub("", _DECLARATION.sub("", ptx))
        self._addressed = {name for name in _NAME.findall(rest) if _PARAMETER.search(name)}
        self._bodies = _bodies({_PARAMETER.sub("", name) for name in self._addressed}, ptx)
        self._masks: dict[str, dict[str, bytes]] = {}
        self.variables: dict[str, int] = {}
        """Size in bytes of each `.global` and `.const` variable, by mangled name."""
        self.globals: set[str] = set()
        """Those which kernels can write to; strings of `printf` are none."""
        for variable in _VARIABLE.finditer(ptx):
            elements = 1
            for dimension in re.findall(r"\[(\d*)\]", variable["dims"]):
                elements *= int(dimension or 0)
            self.variables[variable["name"]] = type_bytes(variable["type"]) * elements
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
        if size_bytes <= 8:
            return None
        if kernel not in self._masks:
            self._masks[kernel] = dict(self._masks_of(kernel))
        mask = self._masks[kernel].get(f"{kernel}_param_{index}")
        return mask if mask is not None and len(mask) == size_bytes else None

    def _masks_of(self, kernel: str) -> Iterator[tuple[str, bytes]]:
        sizes = self._sizes.get(kernel, {})
        addressed = self._addressed & sizes.keys()
        body = Body(self._bodies[kernel]) if addressed and kernel in self._bodies else None
        for name, size_bytes in sizes.items():
            ranges: Set[tuple[int, int]] | None = self._ranges.get(name, set())
            if name in addressed:
                ranges = body.reached(name, size_bytes) if body is not None else None
            if ranges is not None and size_bytes <= MAX_PARAMETER_BYTES:
                mask = bytearray(size_bytes)
                for start, stop in ranges:
                    mask[start:stop] = b"\1" * (min(stop, size_bytes) - start)
                yield name, bytes(mask)


def _bodies(kernels: Set[str], ptx: str) -> dict[str, str]:
    """Return the text between the braces of each of some kernels."""
    found: dict[str, str] = {}
    for head, following in itertools.pairwise([*_FUNCTION.finditer(ptx), None]):
        if head is not None and head["kernel"] in kernels:
            _, brace, body = ptx[head.end() : following.start() if following else len(ptx)].partition("{")
            found[head["kernel"]] = found.get(head["kernel"], "") + brace + body
    return found


@functools.lru_cache(maxsize=64)
def _scanned(ptx: Path, key: str) -> Module:
    return Module(ptx.read_text(encoding="utf-8", errors="replace"))


def module_of(build: Build) -> Module:
    """Return the facts about a build's PTX."""
    return _scanned(build.ptx, build.key)
