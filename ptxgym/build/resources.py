"""What each kernel needs: from the directives of its PTX and from what ptxas reports with `-v`."""

from __future__ import annotations

import re

from ptxgym.build.model import KernelResources
from ptxgym.build.text import ptx_code

Dim3 = tuple[int, int, int]
_Report = tuple[int, ...]
"""Registers, bytes of static shared memory, of stack, spill stores and spill loads."""

# PTX ISA 5.2.1 (types) and 10 of 11.1 (performance-tuning directives).
_TYPE_BYTES = {
    "b8": 1, "u8": 1, "s8": 1, "b16": 2, "u16": 2, "s16": 2, "f16": 2, "b32": 4, "u32": 4, "s32": 4, "f32": 4,
    "bf16": 2, "f16x2": 4, "bf16x2": 4, "b64": 8, "u64": 8, "s64": 8, "f64": 8, "b128": 16,
}  # fmt: skip
_HANDLE_BYTES = 8
"""Of the opaque types (`.texref` and its kin), the only others of parameters."""
# What is not closed is taken to the end, so that time is linear.
_ENTRY = re.compile(r"\.entry\s+([\w$]+)\s*(?:\(([^)]*+)(?:\)|\Z))?+([^{;]*+)(\{|;|\Z)")
_PARAM = re.compile(
    r"\.param\s+(?:\.align\s+(?P<align>\d{1,9})\s+)?\.(?P<type>\w+)\s*"
    r"(?:\.ptr(?:\s*\.\w+)?(?:\s*\.align\s+\d+)?\s*)?[\w$]+\s*(?:\[(?P<count>\d{1,9})\])?"
)
# Lines of ptxas. Others can print such lines too, with what the submission has them say; nobody can take these away.
_COMPILING = re.compile(r"^ptxas info\s*: Compiling entry function '([^'\n]+)'", re.MULTILINE)
_FRAME = re.compile(
    r"^ +(\d{1,9}) bytes stack frame, (\d{1,9}) bytes spill stores, (\d{1,9}) bytes spill loads", re.MULTILINE
)
_USED = re.compile(r"^ptxas info\s*: Used (\d{1,9}) registers([^\n]*)", re.MULTILINE)
_SMEM = re.compile(r"(?<!\d)(\d{1,9})(?:\+\d+)? bytes smem")


def kernel_resources(ptx: str, ptxas_said: str) -> tuple[KernelResources, ...]:
    """Return the resources of every entry function of the module, in the order of the PTX."""
    reported = _reported(ptxas_said)
    kernels = []
    for name, params, directives, end in _ENTRY.findall(ptx_code(ptx)):
        if end != "{":
            continue  # a declaration
        sizes, aligns = _params(params)
        registers, smem, stack, stores, loads = reported.get(name, (0, 0, 0, 0, 0))
        kernels.append(
            KernelResources(
                name=name,
                registers=registers,
                static_smem_bytes=smem,
                stack_bytes=stack,
                spill_store_bytes=stores,
                spill_load_bytes=loads,
                param_bytes=sizes,
                param_aligns=aligns,
                max_ntid=_triple(directives, "maxntid"),
                req_ntid=_triple(directives, "reqntid"),
                cluster=_triple(directives, "reqnctapercluster"),
                max_cluster_rank=(_triple(directives, "maxclusterrank") or (None,))[0],
                blocks_are_clusters=re.search(r"\.blocksareclusters\b", directives) is not None,
            )
        )
    return tuple(kernels)


def _params(text: str) -> tuple[tuple[int, ...], tuple[int, ...]]:
    sizes, aligns = [], []
    for match in _PARAM.finditer(text):
        size = _TYPE_BYTES.get(match["type"], _HANDLE_BYTES)
        sizes.append(size * int(match["count"] or 1))
        aligns.append(int(match["align"] or size))
    return tuple(sizes), tuple(aligns)


def _triple(directives: str, name: str) -> Dim3 | None:
    """A directive's one to three numbers; missing ones are 1 (PTX ISA 11.1)."""
    match = re.search(rf"\.{name}\s+(\d{{1,9}})(?:\s*,\s*(\d{{1,9}}))?(?:\s*,\s*(\d{{1,9}}))?", directives)
    if match is None:
        return None
    x, y, z = (int(number or 1) for number in match.groups())
    return x, y, z


def _reported(said: str) -> dict[str, _Report]:
    """Read what ptxas says of each kernel; of several reports on one, all but one forged, the largest numbers."""
    found: dict[str, _Report] = {}
    parts = _COMPILING.split(said)
    for name, report in zip(parts[1::2], parts[2::2], strict=True):
        used, frame = _USED.search(report), _FRAME.search(report)
        smem = _SMEM.search(used[2]) if used else None
        stack, stores, loads = (int(n) for n in frame.groups()) if frame else (0, 0, 0)
        numbers = (int(used[1]) if used else 0, int(smem[1]) if smem else 0, stack, stores, loads)
        found[name] = tuple(map(max, numbers, found.get(name, numbers)))
    return found
