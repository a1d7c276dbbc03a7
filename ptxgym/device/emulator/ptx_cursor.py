"""What module-level and body parser share: a place in the token list, constant expressions, variable declarations."""

from __future__ import annotations

import math
import operator
import struct
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NoReturn

from ptxgym.device.emulator.ptx import (
    DIGITS,
    TYPE_BYTES,
    WORD_START,
    Integer,
    Module,
    PtxSyntaxError,
    Real,
    Reference,
    Variable,
    parse_number,
)

_MAX_NESTING = 32
_BINARY: dict[str, tuple[int, Callable[[int, int], int]]] = {
    "||": (1, lambda a, b: int(bool(a) or bool(b))),
    "&&": (2, lambda a, b: int(bool(a) and bool(b))),
    "|": (3, lambda a, b: a | b),
    "^": (4, lambda a, b: a ^ b),
    "&": (5, lambda a, b: a & b),
    "==": (6, lambda a, b: int(a == b)),
    "!=": (6, lambda a, b: int(a != b)),
    "<": (7, lambda a, b: int(a < b)),
    "<=": (7, lambda a, b: int(a <= b)),
    ">": (7, lambda a, b: int(a > b)),
    ">=": (7, lambda a, b: int(a >= b)),
    "<<": (8, lambda a, b: a << (b & 63)),
    ">>": (8, lambda a, b: a >> (b & 63)),
    "+": (9, lambda a, b: a + b),
    "-": (9, lambda a, b: a - b),
    "*": (10, lambda a, b: a * b),
    "/": (10, lambda a, b: abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1)),
    "%": (10, lambda a, b: a - b * (abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1))),
}
BINARY_OPERATORS = frozenset(_BINARY)
_REAL_BINARY: dict[str, Callable[[float, float], float]] = {
    "+": operator.add, "-": operator.sub, "*": operator.mul, "/": operator.truediv,
    "==": operator.eq, "!=": operator.ne, "<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge,
}  # fmt: skip
_CONTINUES = BINARY_OPERATORS | {"?"}
_MAX_INITIALISED_BYTES = 1 << 28


def _real(number: Real) -> float:
    """The value of a floating-point constant."""
    code = "<f" if number.width == 4 else "<d"
    value: float = struct.unpack(code, number.bits.to_bytes(number.width, "little"))[0]
    return value


def _wrap(value: int) -> int:
    """Reduce to 64 bits, signed."""
    value &= 0xFFFF_FFFF_FFFF_FFFF
    return value - (1 << 64) if value >> 63 else value


@dataclass
class _Initial:
    """What an initialiser comes to while it is read."""

    name: str
    kind: str
    is_open: bool
    """The first bound is as large as the initialiser."""
    data: bytearray = field(default_factory=bytearray)
    references: list[Reference] = field(default_factory=list)
    unsupported: str | None = None


class Cursor:
    """A position in a module's tokens. Reading past the end is a `PtxSyntaxError`."""

    def __init__(self, module: Module, at: int = 0) -> None:
        self.module = module
        self.tokens = module.tokens
        self.at = at

    def fail(self, message: str, at: int | None = None) -> NoReturn:
        """Raise a `PtxSyntaxError` at token `at` (default: the current one)."""
        raise PtxSyntaxError(message, self.module.ptx_line(self.at if at is None else at))

    def peek(self) -> str:
        """The current token."""
        try:
            return self.tokens[self.at]
        except IndexError:
            self.fail("the text ends in the middle of a statement")

    def take(self) -> str:
        """Return the current token and go on."""
        token = self.peek()
        self.at += 1
        return token

    def expect(self, token: str) -> None:
        """Take `token`, or fail."""
        found = self.take()
        if found != token:
            self.fail(f"expected `{token}`, found `{found[:60]}`", self.at - 1)

    def accept(self, token: str) -> bool:
        """Take `token` if it is next."""
        if self.peek() == token:
            self.at += 1
            return True
        return False

    def word(self) -> str:
        """Take an identifier."""
        token = self.take()
        if token[0] not in WORD_START:
            self.fail(f"expected a name, found `{token[:60]}`", self.at - 1)
        return token

    def integer(self, floor: int = 0) -> int:
        """Take a constant integer expression, of operators that bind more tightly than `floor`."""
        at = self.at
        value = self._expression(floor, 0)
        if isinstance(value, float):
            self.fail("expected an integer constant, found a floating-point one", at)
        return value

    def constant(self) -> Integer | Real:
        """Take a constant expression: of integers, or of floating-point constants, which count as `.f64` (4.5.5)."""
        value = self._expression(0, 0)
        if isinstance(value, int):
            return Integer(value)
        return Real(struct.unpack("<Q", struct.pack("<d", value))[0], 8)

    def _expression(self, floor: int, depth: int) -> int | float:
        value = self._unary(depth)
        while True:
            sign = self.peek()
            entry = _BINARY.get(sign)
            if entry is None or entry[0] <= floor:
                break
            self.at += 1
            value = self._apply(sign, value, self._expression(entry[0], depth))
        if floor == 0 and self.peek() == "?":
            self.at += 1
            if depth > _MAX_NESTING:
                self.fail("a constant expression is nested too deeply")
            yes = self._expression(0, depth + 1)
            self.expect(":")
            no = self._expression(0, depth + 1)
            return yes if value else no
        return value

    def _apply(self, sign: str, left: int | float, right: int | float) -> int | float:
        try:
            if isinstance(left, int) and isinstance(right, int):
                return _wrap(_BINARY[sign][1](left, right))
            function = _REAL_BINARY.get(sign)
            if function is None or not (isinstance(left, float) and isinstance(right, float)):
                self.fail(f"`{sign}` of these two constants: casts between integers and floating point do not exist")
            value = function(left, right)
        except ZeroDivisionError:
            self.fail("division by zero in a constant expression")
        return int(value) if isinstance(value, bool) else value

    def _unary(self, depth: int) -> int | float:
        if depth > _MAX_NESTING:
            self.fail("a constant expression is nested too deeply")
        token = self.take()
        if token == "(":
            if self.peek() in (".s64", ".u64"):
                self.at += 1
                self.expect(")")
                return self._unary(depth + 1)
            value = self._expression(0, depth + 1)
            self.expect(")")
            return value
        if token in ("-", "+"):
            value = self._unary(depth + 1)
            if token == "+":
                return value
            return -value if isinstance(value, float) else _wrap(-value)
        if token in ("~", "!"):
            at, value = self.at, self._unary(depth + 1)
            if isinstance(value, float):
                self.fail(f"`{token}` of a floating-point constant", at)
            return _wrap(~value) if token == "~" else int(not value)
        if token[0] in DIGITS:
            number = self.number(token)
            return number.value if isinstance(number, Integer) else _real(number)
        if token == "WARP_SZ":
            return 32
        return self.fail(f"expected a constant, found `{token[:60]}`", self.at - 1)

    def signed_number(self) -> Integer | Real | None:
        """Take one number with its signs, bit for bit; take nothing, and return None, where the expression goes on."""
        start, negative = self.at, False
        while self.peek() in ("-", "+"):
            negative ^= self.take() == "-"
        token = self.peek()
        if token[0] in DIGITS and self.tokens[self.at + 1] not in _CONTINUES:
            number = self.number(self.take())
            if isinstance(number, Integer):
                return Integer(-number.value if negative else number.value)
            return Real(number.bits ^ (1 << (8 * number.width - 1)) if negative else number.bits, number.width)
        self.at = start
        return None

    def number(self, token: str) -> Integer | Real:
        """`parse_number` with the place in the message."""
        try:
            return parse_number(token)
        except PtxSyntaxError as error:
            self.fail(error.message)

    def string(self) -> str:
        """Take a quoted string, without its quotes."""
        token = self.take()
        if token[0] != '"' or len(token) < 2:
            self.fail(f"expected a string, found `{token[:60]}`", self.at - 1)
        return token[1:-1]

    def skip_braces(self) -> int:
        """Take a balanced `{ … }`; return the position after its opening brace."""
        self.expect("{")
        start, depth, tokens, at = self.at, 1, self.tokens, self.at
        end = len(tokens) - 1
        while depth:
            if at >= end:
                self.fail("a brace is never closed", start - 1)
            token = tokens[at]
            if token == "{":
                depth += 1
            elif token == "}":
                depth -= 1
            at += 1
        self.at = at
        return start

    # ---- declarations

    def variables(self, space: str, extern: bool = False) -> list[Variable]:
        """Take the declaration after `.space`: alignment, type, names, bounds, initialisers. Stops before `;`."""
        align, kind, lanes = 0, "", 1
        while self.peek()[0] == ".":
            token = self.take()[1:]
            if token == "align":
                align = self.integer()
            elif token in TYPE_BYTES:
                kind = token
            elif token in ("v2", "v4"):
                lanes = int(token[1])
            elif token == "ptr":
                if self.peek() in (".global", ".shared", ".const", ".local", ".param"):
                    self.at += 1
                if self.accept(".align"):
                    self.integer()  # of what it points to
            elif token == "attribute":
                self.expect("(")
                while not self.accept(")"):
                    self.at += 1
                    self.peek()
            else:
                self.fail(f"`.{token}` in a variable declaration is not understood", self.at - 1)
        if not kind:
            self.fail("a variable declaration lacks its type")
        if align & (align - 1) or align < 0:
            self.fail(f"alignment {align} is not a power of two")
        if lanes > 1 and (kind == "pred" or lanes * TYPE_BYTES[kind] > 16):
            self.fail(f"vectors have at most 128 bits: `.v{lanes} .{kind}` does not exist")
        align = align or lanes * TYPE_BYTES[kind]
        declared = [self._variable(space, kind, lanes, align, extern)]
        while space != "param" and self.accept(","):
            declared.append(self._variable(space, kind, lanes, align, extern))
        return declared

    def _variable(self, space: str, kind: str, lanes: int, align: int, extern: bool) -> Variable:
        name, bounds, open_bound = self.word(), list[int](), False
        while self.accept("["):
            if not bounds and self.accept("]"):
                open_bound = True
                bounds.append(0)
                continue
            if len(bounds) == _MAX_NESTING:
                self.fail(f"`{name}` has more than {_MAX_NESTING} dimensions")
            bounds.append(self.integer())
            self.expect("]")
        is_array = bool(bounds)
        if lanes > 1:
            bounds.append(lanes)
        count = math.prod(bounds[open_bound:])
        if min(bounds, default=0) < 0 or not 0 <= count <= 1 << 34:
            self.fail(f"`{name}` has {count} elements")
        initial = _Initial(name, kind, open_bound)
        if self.accept("="):
            if count * TYPE_BYTES[kind] > _MAX_INITIALISED_BYTES:
                self.fail(f"`{name}` is too large to be initialised")
            self._initialiser(initial, tuple(bounds))
        size = len(initial.data) if open_bound else count * TYPE_BYTES[kind]
        return Variable(
            name, space, kind, align, size, is_array, extern, bytes(initial.data), tuple(initial.references),
            initial.unsupported,
        )  # fmt: skip

    def _initialiser(self, into: _Initial, bounds: tuple[int, ...], outermost: bool = True) -> None:
        """Take `{ … }` of an array, one pair of braces a dimension, or a single element; what a row leaves out is 0."""
        if not bounds:
            self._element(into)
            return
        row_bytes = math.prod(bounds[1:]) * TYPE_BYTES[into.kind]
        is_open, start, begin = into.is_open and outermost, self.at, len(into.data)
        self.expect("{")
        while not self.accept("}"):
            if len(bounds) == 1 and self.peek()[0] == '"':
                into.data += self.string().encode()
            else:
                self._initialiser(into, bounds[1:], False)
            if not is_open and len(into.data) - begin > bounds[0] * row_bytes:
                self.fail(f"the initialiser of `{into.name}` is longer than the variable, or one of its rows", start)
            if len(into.data) > _MAX_INITIALISED_BYTES:
                self.fail(f"`{into.name}` is too large to be initialised", start)
            if not self.accept(",") and self.peek() != "}":
                self.fail(f"expected `,` or `}}` in an initialiser, found `{self.peek()[:60]}`")
        if not is_open:
            into.data.extend(bytes(begin + bounds[0] * row_bytes - len(into.data)))

    def _element(self, into: _Initial) -> None:
        """Take one number or address of an initialiser."""
        width, token = TYPE_BYTES[into.kind], self.peek()
        if token[0] in WORD_START and token != "WARP_SZ":
            into.references.append(self._reference(len(into.data)))
            if width != 8:
                into.unsupported = f"an address in a .{into.kind} initialiser"
            into.data += bytes(width)
            return
        into.data += self._number_bytes(into.kind, width)
        if self.peek() == "(":  # 0xFF(symbol): one byte of an address
            into.unsupported = "an initialiser that holds single bytes of an address"
            while self.take() != ")":
                pass
            if self.peek() == ")":
                self.at += 1

    def _reference(self, offset: int) -> Reference:
        name = self.word()
        if name == "generic" and self.accept("("):
            name = self.word()
            addend = self.integer() if self.peek() in ("+", "-") else 0
            self.expect(")")
        else:
            addend = 0
        if self.peek() in ("+", "-"):
            addend += self.integer()
        return Reference(offset, name, addend)

    def _number_bytes(self, kind: str, width: int) -> bytes:
        number = self.signed_number() or self.constant()
        if isinstance(number, Real):
            return self._real_bytes(number, kind)
        if kind in ("f32", "f64"):
            return self._real_bytes(Real(struct.unpack("<Q", struct.pack("<d", number.value))[0], 8), kind)
        return (number.value & ((1 << (8 * width)) - 1)).to_bytes(width, "little")

    def _real_bytes(self, number: Real, kind: str) -> bytes:
        if TYPE_BYTES[kind] == number.width and kind[0] in "fb":  # keep the bits, NaN payloads included
            return number.bits.to_bytes(number.width, "little")
        if kind not in ("f32", "f64"):
            self.fail(f"a floating-point initialiser of a .{kind} variable")
        value = _real(number)
        try:
            return struct.pack("<f" if kind == "f32" else "<d", value)
        except OverflowError:
            return struct.pack("<f", math.copysign(math.inf, value))
