"""PTX text → `Module`: a tokeniser and a statement parser for modules as nvcc prints them, inline assembly included.

`parse_module` reads the module level and finds the functions; a function's body is parsed by `Function.body` on first
use, so that only the kernels of a plan cost time.
Malformed text raises `PtxSyntaxError` with the line of the PTX, and nothing else.

Source: PTX ISA 9.0 sections 4 (syntax), 5 (state spaces, types, variables), 6 (operands) and 11 (directives).
"""

from __future__ import annotations

import re
import struct
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import PurePosixPath
from typing import NamedTuple

from ptxgym.errors import PtxgymError

TYPE_BYTES = {
    "pred": 1, "b8": 1, "u8": 1, "s8": 1, "e4m3": 1, "e5m2": 1, "e2m1x2": 1,
    "e2m1x4": 2, "e4m3x4": 4, "e5m2x4": 4, "e2m3x4": 4, "e3m2x4": 4,
    "b16": 2, "u16": 2, "s16": 2, "f16": 2, "bf16": 2, "e4m3x2": 2, "e5m2x2": 2, "e2m3x2": 2, "e3m2x2": 2, "ue8m0x2": 2,
    "b32": 4, "u32": 4, "s32": 4, "f32": 4, "f16x2": 4, "bf16x2": 4, "tf32": 4, "u16x2": 4, "s16x2": 4,
    "b64": 8, "u64": 8, "s64": 8, "f64": 8, "f32x2": 8, "b128": 16,
}  # fmt: skip
"""Bytes of a value of each PTX type (a predicate counts as one)."""

BYTE_TYPES = frozenset({"b8", "u8", "s8"})
"""Registers of these types are kept like 16-bit ones."""
MAX_TOKENS = 8_000_000


class PtxSyntaxError(PtxgymError):
    """Raised when a text is not PTX as this parser knows it."""

    def __init__(self, message: str, line: int | None = None) -> None:
        super().__init__(message if line is None else f"PTX line {line}: {message}")
        self.message = message
        self.line = line


# ---- operands


class Register:
    """A declared register; two registers are equal only if they are the same declaration."""

    __slots__ = ("name", "type", "width")

    def __init__(self, name: str, type_name: str) -> None:
        self.name = name
        self.type = type_name
        self.width = 2 if type_name in BYTE_TYPES else TYPE_BYTES[type_name]

    def __repr__(self) -> str:
        return f"Register({self.name!r}, {self.type!r})"


class Integer(NamedTuple):
    """An integer constant."""

    value: int


class Real(NamedTuple):
    """A floating-point constant: its bits as written (`0f…`: 4 bytes; `0d…` and decimals: 8 bytes)."""

    bits: int
    width: int


class Special(NamedTuple):
    """A special register such as `%tid.x`."""

    name: str


class Symbol(NamedTuple):
    """The address of a variable, with a byte offset."""

    variable: Variable
    offset: int = 0


class Memory(NamedTuple):
    """`[base + offset]`, or `[base + offset, extra…]` as tensor copies write it."""

    base: Register | Integer | Symbol | Name
    offset: int = 0
    extra: tuple[Operand, ...] = ()


class Vector(NamedTuple):
    """`{a, b, …}`."""

    elements: tuple[Operand, ...]


class Pair(NamedTuple):
    """`p|q`."""

    first: Operand
    second: Operand


class Not(NamedTuple):
    """`!p`."""

    operand: Operand


class Sink(NamedTuple):
    """`_`."""


class Group(NamedTuple):
    """`(a, b)`, the lists of a call."""

    elements: tuple[Operand, ...]


class Name:
    """A label, a function or an undeclared name; `index` is the label's instruction once the body is parsed."""

    __slots__ = ("index", "targets", "text")

    def __init__(self, text: str) -> None:
        self.text = text
        self.index: int | None = None
        self.targets: tuple[Name, ...] = ()

    def __repr__(self) -> str:
        return f"Name({self.text!r}, {self.index})"


Operand = Register | Integer | Real | Special | Symbol | Memory | Vector | Pair | Not | Sink | Group | Name


# ---- declarations


class Reference(NamedTuple):
    """A place in an initialiser that holds the address of another variable plus `addend`."""

    offset: int
    symbol: str
    addend: int


@dataclass(frozen=True, eq=False)
class Variable:
    """A variable of any state space; identity is the declaration."""

    name: str
    space: str
    """`global`, `const`, `shared`, `local`, `param`."""
    type: str
    align: int
    size_bytes: int
    """0 for an array of unknown size."""
    is_array: bool = False
    extern: bool = False
    initial: bytes = b""
    references: tuple[Reference, ...] = ()
    unsupported: str | None = None
    """Why its initialiser cannot be honoured."""


class Instruction(NamedTuple):
    """One instruction of a body."""

    opcode: str
    """With all modifiers, such as `fma.rn.f32`."""
    operands: tuple[Operand, ...]
    guard: Register | None
    guard_not: bool
    line: int
    """Line of the submission; 0 where there is none."""
    position: int
    """Index of its first token, for `Module.ptx_line`."""


@dataclass(frozen=True, eq=False)
class Body:
    """The statements of a function: instructions in order, and the variables that it declares."""

    instructions: tuple[Instruction, ...]
    variables: tuple[Variable, ...]


@dataclass(frozen=True, eq=False)
class Function:
    """An `.entry` or a `.func`."""

    name: str
    is_entry: bool
    params: tuple[Variable, ...]
    returns: tuple[Variable, ...]
    directives: dict[str, tuple[int, ...]]
    """Such as `{"maxntid": (128, 1, 1)}`."""
    start: int | None
    """Token after the body's opening brace; None for a declaration."""
    module: Module = field(repr=False)

    @cached_property
    def body(self) -> Body:
        """The parsed body.

        Raises:
            PtxSyntaxError: if it is malformed, or the function is only declared.
        """
        from ptxgym.device.emulator.ptx_body import parse_body

        return parse_body(self)


@dataclass(eq=False)
class Module:
    """A parsed module; complete once `parse_module` has returned."""

    text: str = field(repr=False)
    tokens: list[str] = field(repr=False)
    version: str = ""
    target: str = ""
    address_size: int = 64
    files: dict[int, str] = field(default_factory=dict)
    variables: dict[str, Variable] = field(default_factory=dict)
    functions: dict[str, Function] = field(default_factory=dict)
    own_files: frozenset[int] = frozenset()
    """Numbers of the `.file` entries that are the submission itself."""

    @property
    def entries(self) -> tuple[Function, ...]:
        """The kernels that have a body."""
        return tuple(f for f in self.functions.values() if f.is_entry and f.start is not None)

    @cached_property
    def asm_locs(self) -> frozenset[str]:
        """The `.loc` tokens after which an asm statement of the submission begins, which nvcc marks by a comment."""
        last, found = "", set[str]()
        for match in _LOC_OR_ASM.finditer(self.text):
            if match[1]:
                last = match[1]
            elif last:
                found.add(last)
        return frozenset(found)

    def ptx_line(self, position: int) -> int:
        """Return the line of the PTX text on which token `position` stands."""
        for index, match in enumerate(_TOKEN.finditer(self.text)):
            if index == position:
                return self.text.count("\n", 0, match.start(1)) + 1
        return self.text.count("\n") + 1


# ---- tokens

# `.loc` and the rest of its line is one token; an unknown character is a token of its own, hence an error later.
_TOKEN = re.compile(
    r"""(?:\s++|//[^\n]*+|/\*(?:[^*]|\*(?!/))*+\*/)*+
    ( \.loc[ \t][^\n]*+
    | [%$A-Za-z_][\w$]*+(?:(?:\.|::)\w++)*+
    | \.\d++(?:[eE][+-]?\d++)?(?![\w$]|::)
    | \.\w[\w$]*+(?:::\w++)*+
    | 0[fF][0-9A-Fa-f]{8}(?!\w) | 0[dD][0-9A-Fa-f]{16}(?!\w)
    | 0[xX][0-9A-Fa-f]++U? | 0[bB][01]++U?
    | \d++\.\d*+(?:[eE][+-]?\d++)? | \d++[eE][+-]?\d++
    | \d++U?
    | "(?:[^"\\\n]|\\.)*+"
    | <<|>>|&&|\|\||==|!=|<=|>=
    | \S
    )""",
    re.VERBOSE,
)
_BARE_FRACTION = re.compile(r"(?<![\w$])\.\d")
_FRACTION = re.compile(r"\.\d+(?:[eE][+-]?\d+)?")
_LOC_OR_ASM = re.compile(r"(\.loc[ \t][^\n]*)|// begin inline asm")
WORD_START = frozenset("%$_abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ")
DIGITS = frozenset("0123456789")
END = "\0"


def tokenise(text: str) -> list[str]:
    """Split PTX text into tokens; comments and white space are gone, a `.loc` line is one token, `END` is the last."""
    tokens: list[str] = _TOKEN.findall(text)
    if _BARE_FRACTION.search(text):  # `.5` begins as a modifier such as `.2d` does; written `0.5` it is a number to all
        tokens = [f"0{token}" if token[0] == "." and _FRACTION.fullmatch(token) else token for token in tokens]
    tokens.append(END)
    return tokens


def parse_number(token: str) -> Integer | Real:
    """Turn a numeric token into a constant.

    Raises:
        PtxSyntaxError: if it is none.
    """
    head = token[:2]
    try:
        if head in ("0f", "0F"):
            return Real(int(token[2:], 16), 4)
        if head in ("0d", "0D"):
            return Real(int(token[2:], 16), 8)
        digits = token.rstrip("U")
        if head in ("0x", "0X", "0b", "0B"):
            return Integer(int(digits, 0))
        if "." in digits or "e" in digits or "E" in digits:
            return Real(struct.unpack("<Q", struct.pack("<d", float(digits)))[0], 8)
        return Integer(int(digits, 8) if digits[0] == "0" and len(digits) > 1 else int(digits[:40]))
    except (ValueError, OverflowError, IndexError):
        raise PtxSyntaxError(f"`{token[:60]}` is not a number") from None


def parse_module(text: str, source: str | None = None) -> Module:
    """Parse a PTX module.

    Args:
        text: The whole module.
        source: Path or file name of the submission; lines are reported in that file. By default the first `.file` that
            ends in `.cu`, else the first.

    Raises:
        PtxSyntaxError: if the text is not PTX.
    """
    from ptxgym.device.emulator.ptx_module import ModuleParser

    tokens = tokenise(text)
    if len(tokens) > MAX_TOKENS:
        raise PtxSyntaxError(f"the module has {len(tokens):,} tokens; at most {MAX_TOKENS:,} are read")
    module = Module(text, tokens)
    ModuleParser(module).parse()
    module.own_files = _own_files(module.files, source)
    return module


def _own_files(files: dict[int, str], source: str | None) -> frozenset[int]:
    if source is not None:
        name = PurePosixPath(source).name
        return frozenset(number for number, path in files.items() if PurePosixPath(path).name == name)
    for number in sorted(files):
        if files[number].endswith(".cu"):
            return frozenset(n for n, path in files.items() if path == files[number])
    return frozenset(sorted(files)[:1])
