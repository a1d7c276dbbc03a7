"""Function bodies of PTX: scopes, registers, labels, instructions with their operands and source lines."""

from __future__ import annotations

import re

from ptxgym.device.emulator.ptx import (
    DIGITS,
    TYPE_BYTES,
    WORD_START,
    Body,
    Function,
    Group,
    Instruction,
    Integer,
    Memory,
    Name,
    Not,
    Operand,
    Pair,
    Register,
    Sink,
    Special,
    Symbol,
    Variable,
    Vector,
)
from ptxgym.device.emulator.ptx_cursor import Cursor

_N = r"(\d{1,9})(?!\d)"
_LOC = re.compile(rf"\.loc\s+{_N}\s+{_N}\s+{_N}(?:[^/]*?inlined_at\s+{_N}\s+{_N}\s+{_N})?")
_NUMBERED = re.compile(r"(.*?)(\d+)", flags=re.S)
_FOLLOWS_OPERAND = frozenset({",", ";"})
_CONSTANT_START = DIGITS | frozenset("-+~!(")

Place = tuple[int, int, int]
"""File number, line, column of a `.loc`."""


class _Scope:
    """Names declared between a pair of braces, and those already looked up in the scopes around it."""

    __slots__ = ("labels", "names", "parent", "ranges")

    def __init__(self, parent: _Scope | None) -> None:
        self.parent = parent
        self.names: dict[str, Operand] = {}
        self.ranges: dict[str, tuple[str, int]] = {}
        self.labels: dict[str, Name] = {}


class _Lines:
    """Maps the current `.loc` to a line of the submission: through `inlined_at` when it stands in a header."""

    def __init__(self, own_files: frozenset[int]) -> None:
        self._own = own_files
        self._callers: dict[Place, Place] = {}
        self._parsed: dict[str, tuple[Place, Place | None]] = {}
        self.line = 0

    def move(self, token: str) -> None:
        known = self._parsed.get(token)
        if known is None:
            match = _LOC.match(token)
            if match is None:
                return
            file, line, column, *caller = match.groups()
            inlined = (int(caller[0]), int(caller[1]), int(caller[2])) if caller[0] else None
            known = self._parsed[token] = ((int(file), int(line), int(column)), inlined)
        place, caller_place = known
        if caller_place is not None:
            self._callers[place] = caller_place
            place = caller_place if place[0] not in self._own else place
        for _ in range(64):
            if place[0] in self._own:
                self.line = place[1] or self.line
                return
            outer = self._callers.get(place)
            if outer is None:
                break
            place = outer
        self.line = 0


class _BodyParser(Cursor):
    def __init__(self, function: Function, start: int) -> None:
        super().__init__(function.module, start)
        self.instructions: list[Instruction] = []
        self.declared: list[Variable] = []
        self.lines = _Lines(function.module.own_files)
        outer = _Scope(None)
        for variable in function.module.variables.values():
            outer.names[variable.name] = Symbol(variable)
        for variable in (*function.params, *function.returns):
            outer.names[variable.name] = Symbol(variable)
        self.scope = _Scope(outer)
        self.pending: list[tuple[Name, _Scope]] = []

    def parse(self) -> Body:
        depth, tokens = 1, self.tokens
        while depth:
            token = self.peek()
            first = token[0]
            if first in WORD_START:
                if tokens[self.at + 1 : self.at + 2] == [":"]:
                    self._label(token)
                else:
                    self._instruction(None, False)
            elif first == "@":
                self._guarded()
            elif first == ".":
                if token.startswith(".loc") and len(token) > 4 and token[4] in " \t":
                    self.at += 1
                    self.lines.move(token)
                else:
                    self._directive(token)
            elif token == "{":
                self.at += 1
                depth += 1
                if depth > 200:
                    self.fail("scopes are nested too deeply")
                self.scope = _Scope(self.scope)
            elif token == "}":
                self.at += 1
                depth -= 1
                if depth:
                    assert self.scope.parent is not None
                    self.scope = self.scope.parent
            elif token == ";":
                self.at += 1
            else:
                self.fail(f"`{token[:60]}` does not begin a statement")
        self._resolve_labels()
        return Body(tuple(self.instructions), tuple(self.declared))

    # ---- labels and directives

    def _label(self, text: str) -> None:
        self.at += 2
        if text in self.scope.labels:
            self.fail(f"label `{text}` is defined twice in one scope", self.at - 2)
        label = self.scope.labels[text] = Name(text)
        label.index = len(self.instructions)
        if self.peek() == ".branchtargets":
            self.at += 1
            targets = [self._name(self.word())]
            while self.accept(","):
                targets.append(self._name(self.word()))
            self.expect(";")
            label.targets = tuple(targets)
        elif self.peek() in (".calltargets", ".callprototype"):
            while self.take() != ";":
                self.peek()

    def _name(self, text: str) -> Name:
        name = Name(text)
        self.pending.append((name, self.scope))
        return name

    def _resolve_labels(self) -> None:
        for name, scope in self.pending:
            around: _Scope | None = scope
            while around is not None:
                label = around.labels.get(name.text)
                if label is not None:
                    name.index, name.targets = label.index, label.targets
                    break
                around = around.parent

    def _directive(self, token: str) -> None:
        self.at += 1
        if token == ".reg":
            self._registers()
        elif token in (".shared", ".local", ".param", ".global", ".const"):
            for variable in self.variables(token[1:]):
                self.declared.append(variable)
                self.scope.names[variable.name] = Symbol(variable)
            self.expect(";")
        elif token == ".pragma":
            self.string()
            while self.accept(","):
                self.string()
            self.expect(";")
        else:
            self.fail(f"`{token[:60]}` in a function is not understood", self.at - 1)

    def _registers(self) -> None:
        kind = self.take()[1:]
        if kind not in TYPE_BYTES:
            self.fail(f"registers of type `.{kind[:20]}` are not understood", self.at - 1)
        while True:
            name = self.word()
            if self.accept("<"):
                count = self.integer(7)  # not across the closing `>`
                self.expect(">")
                self.scope.ranges[name] = (kind, count)
            else:
                self.scope.names[name] = Register(name, kind)
            if not self.accept(","):
                break
        self.expect(";")

    # ---- instructions

    def _guarded(self) -> None:
        self.at += 1
        negated = self.accept("!")
        guard = self._lookup(self.word())
        if not isinstance(guard, Register) or guard.type != "pred":
            self.fail("a guard that is not a predicate register", self.at - 1)
        if self.peek()[0] not in WORD_START:
            self.fail(f"expected an instruction after a guard, found `{self.peek()[:60]}`")
        self._instruction(guard, negated)

    def _instruction(self, guard: Register | None, negated: bool) -> None:
        position = at = self.at
        tokens = self.tokens
        opcode = tokens[at]
        at += 1
        operands: list[Operand] = []
        names = self.scope.names
        try:
            while tokens[at][0] == ".":
                opcode += tokens[at]
                at += 1
            if tokens[at] == ";":
                at += 1
            else:
                while True:
                    token = tokens[at]
                    if tokens[at + 1] in _FOLLOWS_OPERAND and token in names:
                        operands.append(names[token])
                        at += 1
                    else:
                        self.at = at
                        operands.append(self._operand())
                        at = self.at
                    token = tokens[at]
                    at += 1
                    if token == ".unified":  # stands after the address of `ld`
                        opcode += token
                        token = tokens[at]
                        at += 1
                    if token == ",":
                        continue
                    if token == ";":
                        break
                    self.fail(f"expected `,` or `;` after an operand of `{opcode[:80]}`, found `{token[:60]}`", at - 1)
        except IndexError:
            self.fail(f"the text ends inside `{opcode[:80]}`", position)
        self.at = at
        self.instructions.append(Instruction(opcode, tuple(operands), guard, negated, self.lines.line, position))

    def _operand(self) -> Operand:
        token = self.tokens[self.at]
        if token == "{":
            self.at += 1
            return Vector(self._elements("}"))
        if token == "[":
            self.at += 1
            return self._memory()
        if token == "(" and self._is_group():
            self.at += 1
            return Group(self._elements(")"))
        operand = self._simple()
        if self.tokens[self.at] == "|":
            self.at += 1
            return Pair(operand, self._simple())
        return operand

    def _is_group(self) -> bool:
        """Tell a call's argument list from a parenthesised constant."""
        following = self.tokens[self.at + 1]
        return following == ")" or following[0] in WORD_START

    def _elements(self, closing: str) -> tuple[Operand, ...]:
        found: list[Operand] = []
        while not self.accept(closing):
            found.append(self._simple())
            if not self.accept(",") and self.peek() != closing:
                self.fail(f"expected `,` or `{closing}`, found `{self.peek()[:60]}`")
        return tuple(found)

    def _simple(self) -> Operand:
        """A register, constant, symbol, sink or negated predicate: anything without brackets."""
        token = self.tokens[self.at]
        first = token[0]
        if first in WORD_START and token != "WARP_SZ":
            self.at += 1
            operand = self._lookup(token)
            if isinstance(operand, Symbol) and self.tokens[self.at] in ("+", "-"):
                return Symbol(operand.variable, operand.offset + self._signed_offset())
            if isinstance(operand, Symbol) and self.accept("["):  # `A[5]` counts elements, `A+5` bytes
                index = self.integer()
                self.expect("]")
                return Symbol(operand.variable, operand.offset + index * TYPE_BYTES[operand.variable.type])
            return operand
        if first == "!" and token == "!" and self.tokens[self.at + 1][0] in WORD_START:
            self.at += 2
            return Not(self._lookup(self.tokens[self.at - 1]))
        if first in _CONSTANT_START or token == "WARP_SZ":
            return self._constant()
        return self.fail(f"expected an operand, found `{token[:60]}`")

    def _constant(self) -> Operand:
        # `|` after a constant would be a pair, which no instruction has: it continues the expression
        return self.signed_number() or self.constant()

    def _signed_offset(self) -> int:
        """An offset that begins with its sign: `+16`, `+-16`, `-16`."""
        return self.integer()

    def _memory(self) -> Memory:
        tokens = self.tokens
        token = tokens[self.at]
        base: Operand
        if token[0] in WORD_START and token != "WARP_SZ":
            self.at += 1
            base = self.scope.names.get(token) or self._lookup(token)
        else:
            base = Integer(self.integer())
        offset = 0
        token = tokens[self.at]
        if token == "+" or token == "-":
            offset = self._signed_offset()
            token = tokens[self.at]
        if not isinstance(base, Register | Integer | Symbol | Name):
            self.fail(f"`{tokens[self.at - 1][:60]}` cannot be an address")
        if token == "]":
            self.at += 1
            return Memory(base, offset)
        extra: list[Operand] = []
        while self.accept(","):
            if self.accept("{"):
                extra.append(Vector(self._elements("}")))
            else:
                extra.append(self._simple())
        self.expect("]")
        return Memory(base, offset, tuple(extra))

    # ---- names

    def _lookup(self, token: str) -> Operand:
        scope: _Scope | None = self.scope
        while scope is not None:
            found = scope.names.get(token) or self._ranged(scope, token)
            if found is not None:
                self.scope.names[token] = found
                return found
            scope = scope.parent
        if token == "_":
            return Sink()
        if token[0] == "%":
            return Special(token)
        return self._name(token)

    @staticmethod
    def _ranged(scope: _Scope, token: str) -> Register | None:
        """A register of a declaration such as `.reg .b32 %r<76>`."""
        if not scope.ranges:
            return None
        match = _NUMBERED.fullmatch(token)
        if match is None:
            return None
        # the prefix of `%r12` is `%r`; a prefix may itself end in digits (`%r1<8>`)
        for cut in range(len(match[1]), len(token)):
            declared = scope.ranges.get(token[:cut])
            number = token[cut:]
            if (
                declared is not None
                and len(number) < 10
                and int(number) < declared[1]
                and (number[0] != "0" or number == "0")
            ):
                register = Register(token, declared[0])
                scope.names[token] = register
                return register
        return None


def parse_body(function: Function) -> Body:
    """Parse the body of `function`.

    Raises:
        PtxSyntaxError: if it is malformed or missing.
    """
    if function.start is None:
        raise _missing_body(function)
    return _BodyParser(function, function.start).parse()


def _missing_body(function: Function) -> Exception:
    from ptxgym.device.emulator.ptx import PtxSyntaxError

    return PtxSyntaxError(f"`{function.name}` is declared but has no body")
