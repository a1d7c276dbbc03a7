"""What module-level and body parser share: a place in the token list, constant expressions, variable declarations."""

from __future__ import annotations

import struct
from collections.abc import Callable
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


def _wrap(value: int) -> int:
    """Reduce to 64 bits, signed."""
    value &= 0xFFFF_FFFF_FFFF_FFFF
    return value - (1 << 64) if value >> 63 else value


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

    def integer(self) -> int:
        """Take a constant integer expression."""
        return self._expression(0, 0)

    def _expression(self, floor: int, depth: int) -> int:
        value = self._unary(depth)
        while True:
            operator = _BINARY.get(self.peek())
            if operator is None or operator[0] <= floor:
                break
            self.at += 1
            right = self._expression(operator[0], depth)
            try:
                value = _wrap(operator[1](value, right))
            except ZeroDivisionError:
                self.fail("division by zero in a constant expression")
        if floor == 0 and self.peek() == "?":
            self.at += 1
            if depth > _MAX_NESTING:
                self.fail("a constant expression is nested too deeply")
            yes = self._expression(0, depth + 1)
            self.expect(":")
            no = self._expression(0, depth + 1)
            return yes if value else no
        return value

    def _unary(self, depth: int) -> int:
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
        if token == "-":
            return _wrap(-self._unary(depth + 1))
        if token == "+":
            return self._unary(depth + 1)
        if token == "~":
            return _wrap(~self._unary(depth + 1))
        if token == "!":
            return int(not self._unary(depth + 1))
        if token[0] in DIGITS:
            number = self.number(token)
            if isinstance(number, Integer):
                return number.value
        elif token == "WARP_SZ":
            return 32
        return self.fail(f"expected an integer constant, found `{token[:60]}`", self.at - 1)

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
        align, kind = 0, ""
        while self.peek()[0] == ".":
            token = self.take()[1:]
            if token == "align":
                align = self.integer()
            elif token in TYPE_BYTES:
                kind = token
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
        declared = [self._variable(space, kind, align or TYPE_BYTES[kind], extern)]
        while space != "param" and self.accept(","):
            declared.append(self._variable(space, kind, align or TYPE_BYTES[kind], extern))
        return declared

    def _variable(self, space: str, kind: str, align: int, extern: bool) -> Variable:
        name, count, is_array, open_bound = self.word(), 1, False, False
        while self.accept("["):
            is_array = True
            if self.accept("]"):
                open_bound = True
                continue
            count *= self.integer()
            self.expect("]")
        if not 0 <= count <= 1 << 34:
            self.fail(f"`{name}` has {count} elements")
        initial = bytearray()
        references: list[Reference] = []
        unsupported: str | None = None
        if self.accept("="):
            initial, references, unsupported = self._initialiser(kind)
        size = count * TYPE_BYTES[kind]
        if open_bound:
            size = max(len(initial), 0 if count == 1 else len(initial))
        if len(initial) > size:
            self.fail(f"the initialiser of `{name}` is longer than the variable")
        if initial:
            initial.extend(bytes(size - len(initial)) if size <= 1 << 28 else b"")
        return Variable(
            name, space, kind, align, size, is_array, extern, bytes(initial), tuple(references), unsupported
        )  # fmt: skip

    def _initialiser(self, kind: str) -> tuple[bytearray, list[Reference], str | None]:
        data, depth, width = bytearray(), 0, TYPE_BYTES[kind]
        references: list[Reference] = []
        unsupported: str | None = None
        while True:
            token = self.peek()
            if token == "{":
                depth += 1
                self.at += 1
                if depth > _MAX_NESTING:
                    self.fail("an initialiser is nested too deeply")
                continue
            if token == "}" and depth:
                depth -= 1
                self.at += 1
            elif token[0] == '"':
                data += self.string().encode()
            elif token[0] in WORD_START and token != "WARP_SZ":
                references.append(self._reference(len(data)))
                if width != 8:
                    unsupported = f"an address in a .{kind} initialiser"
                data += bytes(width)
            else:
                data += self._element(kind, width)
                if self.peek() == "(":  # 0xFF(symbol): one byte of an address
                    unsupported = "an initialiser that holds single bytes of an address"
                    while self.take() != ")":
                        pass
                    if self.peek() == ")":
                        self.at += 1
            if not depth:
                return data, references, unsupported
            if not self.accept(",") and self.peek() != "}":
                self.fail(f"expected `,` or `}}` in an initialiser, found `{self.peek()[:60]}`")

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

    def _element(self, kind: str, width: int) -> bytes:
        """One number of an initialiser, as bytes."""
        start, negative = self.at, False
        while self.peek() == "-":
            self.at += 1
            negative = not negative
        if self.peek()[0] in DIGITS:
            number = self.number(self.peek())
            if isinstance(number, Real):
                self.at += 1
                return self._real_bytes(number, negative, kind)
        self.at = start
        if kind in ("f32", "f64"):
            return self._real_bytes(Real(struct.unpack("<Q", struct.pack("<d", self.integer()))[0], 8), False, kind)
        return (self.integer() & ((1 << (8 * width)) - 1)).to_bytes(width, "little")

    def _real_bytes(self, number: Real, negative: bool, kind: str) -> bytes:
        code = "<f" if number.width == 4 else "<d"
        value: float = struct.unpack(code, number.bits.to_bytes(number.width, "little"))[0]
        if TYPE_BYTES[kind] == number.width and kind[0] in "fb":  # keep the bits, NaN payloads included
            sign = (1 << (8 * number.width - 1)) if negative else 0
            return (number.bits ^ sign).to_bytes(number.width, "little")
        if kind not in ("f32", "f64"):
            self.fail(f"a floating-point initialiser of a .{kind} variable")
        try:
            return struct.pack("<f" if kind == "f32" else "<d", -value if negative else value)
        except OverflowError:
            return struct.pack("<f", float("-inf") if (value < 0) != negative else float("inf"))
