"""Which bytes of a parameter a kernel reads by its address, which it takes of every `__grid_constant__` struct.

The address is followed through the kernel's registers, in whatever order its statements run: through moves, `cvta` and
sums with constants, to the loads and tensor copies that say what they read there. Anything else that is done with it,
and an address beyond the parameter, may read all of it; so may a text that is not understood.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

MAX_STEPS = 20_000
"""Statements that are looked at for one parameter; each as often as other offsets get there."""

TYPE = r"[busf]\d{1,3}|f16x2|bf16x2"
"""What a load may be of: a pattern."""
_TENSOR_MAP_BYTES = 128
_BITS = re.compile(r"\d{1,9}")
# PTX ISA 4.2, 4.4 and 6.4; a constant that begins with 0 is octal. As in `plan.module`, patterns take linear time.
_WORD = r"[%\w$]++"
_NUMBER = r"-?(?:0|[1-9]\d{0,8})(?!\w)"
_ADDRESS = rf"\[\s*+(?P<base>{_WORD})\s*+(?:\+\s*+(?P<more>{_NUMBER})\s*+)?"
_LOC = re.compile(r"^[ \t]*+\.loc\b[^\n]*+", re.MULTILINE)
_BEFORE = re.compile(rf"(?:\s++|[{{}}]|{_WORD}\s*+:(?!:)|@\s*+!?\s*+{_WORD})*+")
"""What stands before an instruction: the braces of a block, labels, a guard."""
_INSTRUCTION = re.compile(r"(?P<opcode>[\w.:]++)\s*+(?P<operands>.*+)", re.DOTALL)
_NAME = re.compile(_WORD)
_PASS = re.compile(r"(?:mov\.[bus]64|cvta(?:\.to)?\.param\.u64|add\.[us]64)")
_PASSED = re.compile(rf"(?P<to>{_WORD})\s*+,\s*+(?P<base>{_WORD})\s*+(?:[+,]\s*+(?P<more>{_NUMBER}))?\s*+")
_LOAD = re.compile(rf"ld(?:\.(?!v\d)\w++(?:::\w++)*+)*?(?:\.v(?P<vector>[248]))?\.(?P<type>{TYPE})")
_LOADED = re.compile(rf"(?:{_WORD}|\{{[^{{}}\[\]]*+\}})\s*+,\s*+{_ADDRESS}\](?:\s*+,\s*+(?P<policy>{_WORD}))?\s*+")
_COPY = re.compile(r"cp\.(?:reduce\.)?async\.bulk\.(?:prefetch\.)?tensor\.[\w.:]++")
_COPIED = re.compile(rf"{_ADDRESS},\s*+\{{")
_PREFETCH = re.compile(r"prefetch(?:\.param)?\.tensormap")
_PREFETCHED = re.compile(rf"{_ADDRESS}\]\s*+")


def type_bytes(name: str) -> int:
    """Return the size of a type of `TYPE`, or of a variable; 0 where it is none."""
    if name in ("f16x2", "bf16x2"):
        return 4
    bits = _BITS.search(name)
    return int(bits.group()) // 8 if bits else 0


class _Unknown(Exception):
    """Raised where an address goes somewhere that is not followed."""


@dataclass(frozen=True)
class _Use:
    """What a statement does with an address in a register: reads bytes there, or puts it into another register."""

    start: int = 0
    """Bytes after the address; of what is read, or of the new address."""
    length: int = 0
    to: str | None = None


class _Statement:
    """An instruction of a kernel."""

    __slots__ = ("_opcode", "_operands", "_uses", "names")

    def __init__(self, opcode: str, operands: str) -> None:
        self._opcode, self._operands = opcode, operands
        self._uses: dict[str, _Use] = {}
        self.names = _NAME.findall(operands)

    def use(self, name: str) -> _Use:
        """Return what it does with the address in `name`.

        Raises:
            _Unknown: if that may be anything.
        """
        if name not in self._uses:
            self._uses[name] = self._read(name)
        return self._uses[name]

    def _read(self, name: str) -> _Use:
        opcode, operands = self._opcode, self._operands
        if _PASS.fullmatch(opcode) and (passed := _PASSED.fullmatch(operands)) and passed["base"] == name:
            return _Use(int(passed["more"] or 0), to=passed["to"])
        if (load := _LOAD.fullmatch(opcode)) and (loaded := _LOADED.fullmatch(operands)) and loaded["policy"] != name:
            if loaded["base"] != name:
                return _Use()
            return _Use(int(loaded["more"] or 0), type_bytes(load["type"]) * int(load["vector"] or 1))
        if self.names.count(name) == 1:
            maps = (_PREFETCHED.fullmatch(operands),) if _PREFETCH.fullmatch(opcode) else ()
            if _COPY.fullmatch(opcode):
                maps = (_COPIED.search(operands),)
            for address in maps:
                if address is not None and address["base"] == name:
                    return _Use(int(address["more"] or 0), _TENSOR_MAP_BYTES)
            if self.names[0] == name and operands.startswith(name):  # a result in its place; jumps read nothing there
                return _Use()
        raise _Unknown


def _statements(body: str) -> Iterator[_Statement]:
    for text in _LOC.sub("", body).split(";"):
        before = _BEFORE.match(text)
        instruction = _INSTRUCTION.match(text, before.end() if before else 0)
        if instruction is None:
            yield _Statement("", text)
        elif instruction["opcode"] != ".reg":
            yield _Statement(instruction["opcode"], instruction["operands"])


class Body:
    """The statements of a kernel, by the names in them."""

    def __init__(self, text: str) -> None:
        """Read the PTX between the kernel's braces; it has neither comments nor strings."""
        self._users: dict[str, list[_Statement]] = {}
        for statement in _statements(text):
            for name in set(statement.names):
                self._users.setdefault(name, []).append(statement)

    def reached(self, parameter: str, size_bytes: int) -> set[tuple[int, int]] | None:
        """Return the ranges of a parameter that may be read, from byte to byte, or None where any byte may be."""
        ranges: set[tuple[int, int]] = set()
        todo, seen, steps = [(parameter, 0)], {(parameter, 0)}, 0
        while todo:
            name, at = todo.pop()
            users = self._users.get(name, [])
            steps += len(users)
            if steps > MAX_STEPS:
                return None
            for statement in users:
                try:
                    use = statement.use(name)
                except _Unknown:
                    return None
                start = at + use.start
                if not 0 <= start <= size_bytes - use.length:
                    return None
                if use.length:
                    ranges.add((start, start + use.length))
                if use.to is not None and (use.to, start) not in seen:
                    seen.add((use.to, start))
                    todo.append((use.to, start))
        return ranges
