"""What the decoder hands to the core: a kernel as fixed-size instructions over a warp's register file.

Operations, types and modifier bits are read from the C++ headers themselves (`ops.def`, `flags.hpp`, `ir.hpp`), so that
decoder and core cannot disagree about a number.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

_HEADERS = Path(__file__).parents[2] / "native" / "emulator"


def _without_comments(text: str) -> str:
    return re.sub(r"//[^\n]*", "", text)


def _enumerations(text: str) -> dict[str, dict[str, int]]:
    """Return enum name → {enumerator: value} of a header that writes every enumerator as `NAME = expression`."""
    enums: dict[str, dict[str, int]] = {}
    for name, body in re.findall(r"enum (\w+) : \w+ \{(.*?)\};", _without_comments(text), flags=re.S):
        values: dict[str, int] = {}
        for key, expression in re.findall(r"(\w+)\s*=\s*([^,}]+)", body):
            expression = expression.strip()
            shift = re.fullmatch(r"1u << (\d+)", expression)
            values[key] = (
                1 << int(shift[1]) if shift else values[expression] if expression in values else int(expression)
            )
        enums[name] = values
    return enums


def _constants(text: str) -> dict[str, int]:
    found = re.findall(r"constexpr \w+ (\w+) = (0x[\dA-Fa-f']+|\d+)(?:ull)?;", _without_comments(text))
    return {name: int(value.replace("'", ""), 0) for name, value in found}


_FLAGS_TEXT = (_HEADERS / "flags.hpp").read_text(encoding="utf-8")
_IR_TEXT = (_HEADERS / "ir.hpp").read_text(encoding="utf-8")
_ENUMS = _enumerations(_FLAGS_TEXT) | _enumerations(_IR_TEXT)

OP: Mapping[str, int] = {
    name: index
    for index, name in enumerate(
        re.findall(r"^OP\((\w+)\)", (_HEADERS / "ops.def").read_text(encoding="utf-8"), flags=re.M)
    )
}
"""Operation name → number, in the order of `ops.def`."""
OP_NAMES: tuple[str, ...] = tuple(OP)
TYPE: Mapping[str, int] = _ENUMS["Type"]
FLAG: Mapping[str, int] = _ENUMS["Flag"]
CMP: Mapping[str, int] = _ENUMS["Cmp"]
BOOL: Mapping[str, int] = _ENUMS["BoolOp"]
SPACE: Mapping[str, int] = _ENUMS["Space"]
ORDER: Mapping[str, int] = _ENUMS["Order"]
SCOPE: Mapping[str, int] = _ENUMS["Scope"]
ATOM: Mapping[str, int] = _ENUMS["AtomOp"]
FENCE_PROXY: Mapping[str, int] = _ENUMS["FenceProxy"]
SREG: Mapping[str, int] = _ENUMS["Sreg"]
MMA_SHAPE: Mapping[str, int] = _ENUMS["MmaShape"]
TMEM_SHAPE: Mapping[str, int] = _ENUMS["TmemShape"]
TMEM_COPY: Mapping[str, int] = _ENUMS["TmemCopy"]
TMEM_UNPACK: Mapping[str, int] = _ENUMS["TmemUnpack"]
MMA_KIND: Mapping[str, int] = _ENUMS["MmaKind"]
COLLECTOR: Mapping[str, int] = _ENUMS["Collector"]
MAP_FIELD: Mapping[str, int] = _ENUMS["MapField"]
FRAGMENT: Mapping[str, int] = _ENUMS["Fragment"]
GRID_DEPENDENCY: Mapping[str, int] = _ENUMS["GridDependency"]
NOP_REASON: Mapping[str, int] = _ENUMS["NopReason"]
REGISTER_COUNT: Mapping[str, int] = _ENUMS["RegisterCount"]
ADDRESS_WIDTH: Mapping[str, int] = _ENUMS["AddressWidth"]
FEATURE: Mapping[str, int] = _ENUMS["Feature"]
_CONSTANTS = _constants(_IR_TEXT)
SMEM_BASE = _CONSTANTS["SMEM_BASE"]
PARAM_WINDOW = _CONSTANTS["PARAM_WINDOW"]
FUNCTION_WINDOW = _CONSTANTS["FUNCTION_WINDOW"]
FUNCTION_STEP = _CONSTANTS["FUNCTION_STEP"]
UNSET_REGISTER = _CONSTANTS["UNSET_REGISTER"]
SHARED_ADDRESS = _CONSTANTS["SHARED_ADDRESS"]

INST_FIELDS = (
    ("op", "<u2"), ("type", "u1"), ("stype", "u1"), ("flags", "<u4"), ("mods", "<u4"),
    ("guard", "<i4"), ("guard_not", "<u4"),
    ("d", "<i4"), ("d2", "<i4"), ("a", "<i4"), ("b", "<i4"), ("c", "<i4"), ("e", "<i4"),
    ("vec", "<i4"), ("nvec", "<i4"), ("vec2", "<i4"), ("nvec2", "<i4"), ("target", "<i4"), ("imm", "<i8"),
)  # fmt: skip
"""Members of `struct Inst` (ir.hpp), in order."""
INST_DTYPE = np.dtype([(name, code) for name, code in INST_FIELDS], align=True)
CONST_DTYPE = np.dtype([("offset", "<i4"), ("width", "<u4"), ("lo", "<u8"), ("hi", "<u8")], align=True)
SREG_DTYPE = np.dtype([("offset", "<i4"), ("width", "<u4"), ("sreg", "<u4"), ("pad", "<u4")], align=True)
EARLY_READ_DTYPE = np.dtype([("inst", "<i4"), ("offset", "<i4"), ("width", "<u4"), ("pad", "<u4")], align=True)
EXTENT_DTYPE = np.dtype(
    [("inst", "<i4"), ("begin", "<u4"), ("end", "<u4"), ("pad", "<u4"), ("name", "<u8")], align=True
)


@dataclass(frozen=True)
class Parameter:
    """One kernel parameter and where it lies in the parameter block."""

    name: str
    offset: int
    size_bytes: int
    align: int


@dataclass(frozen=True)
class SharedSymbol:
    """A `.shared` variable of a kernel."""

    name: str
    address: int
    """Shared-space address; the first byte of a CTA's static shared memory is `SMEM_BASE`."""
    size_bytes: int
    """0 for the dynamic (`.extern`) arrays."""
    align: int
    dynamic: bool = False


@dataclass(frozen=True)
class SharedExtent:
    """Instruction `inst` computes its shared address from that of the array `name` alone, which is [begin, end)."""

    inst: int
    begin: int
    end: int
    name: str


@dataclass(frozen=True)
class Relocation:
    """`consts[const]` must be set to the address of module variable `symbol` plus `addend` before a launch."""

    const: int
    symbol: str
    addend: int


@dataclass(frozen=True)
class SymbolRelocation:
    """Eight bytes at `offset` of a module variable that hold the address of `symbol` plus `addend`."""

    offset: int
    symbol: str
    addend: int


@dataclass(frozen=True)
class ModuleSymbol:
    """A module-level `.global` or `.const` variable, to be placed as a buffer of role `symbol`."""

    name: str
    space: str
    """`global` or `const`."""
    size_bytes: int
    align: int
    initial: bytes
    """`size_bytes` long; zeros where PTX gives no initialiser or a relocation stands."""
    relocations: tuple[SymbolRelocation, ...] = ()


@dataclass(frozen=True, eq=False)
class DecodedKernel:
    """A kernel in the core's form; arrays are read-only and mirror `struct Kernel` of ir.hpp."""

    name: str
    inst: NDArray[np.void]
    """[instructions] of `INST_DTYPE`."""
    pool: NDArray[np.int32]
    consts: NDArray[np.void]
    """[constants] of `CONST_DTYPE`; entries named in `relocations` hold the addend until then."""
    sregs: NDArray[np.void]
    reg_bytes: int
    """Bytes of registers per warp."""
    static_smem_bytes: int
    """From `SMEM_BASE` up to where dynamic shared memory begins (padding for its alignment included)."""
    shared: tuple[SharedSymbol, ...]
    uses_dynamic_smem: bool
    local_bytes: int
    params: tuple[Parameter, ...]
    param_bytes: int
    features: int
    """Bits of `FEATURE`."""
    forms: tuple[str, ...]
    """Per instruction: the full PTX opcode."""
    families: tuple[str, ...]
    """Per instruction: `wgmma`, `tma`, `mma.sync`, `fma`, … (see `decode_grammar.FAMILIES`)."""
    thread_multiply_adds: NDArray[np.int64]
    """Per instruction: multiply-adds of one thread's execution (fma 1, hfma2 2)."""
    warp_multiply_adds: NDArray[np.int64]
    """Per instruction: multiply-adds of one warp's execution (mma.sync m16n8k16: 2048; wgmma m64nNkK: 64·N·K ÷ 4)."""
    lines: NDArray[np.int32]
    """Per instruction: line of the submission's own source; 0 where it has none."""
    origins: tuple[tuple[str, int], ...]
    """Per instruction: its function, and the instruction of that function's body; -1 where the decoder added one."""
    relocations: tuple[Relocation, ...]
    max_ntid: tuple[int, int, int] | None = None
    req_ntid: tuple[int, int, int] | None = None
    cluster: tuple[int, int, int] | None = None
    """`.reqnctapercluster`."""
    early_reads: NDArray[np.void] = field(default_factory=lambda: np.empty(0, EARLY_READ_DTYPE), repr=False)
    """[reads] of `EARLY_READ_DTYPE`: registers that an instruction may read before anything has written them."""
    extents: tuple[SharedExtent, ...] = ()
    """Ascending instructions."""
    register_names: Mapping[int, str] = field(default_factory=dict, repr=False)
    """Register-file offset → PTX name or value, of the places that belong to one register alone."""

    @cached_property
    def uses(self) -> frozenset[str]:
        """Names of the module variables whose addresses the kernel takes."""
        return frozenset(relocation.symbol for relocation in self.relocations)
