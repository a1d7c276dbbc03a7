"""What an instruction form is: its text, the types of its operands, and its meaning on unsigned Python integers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

Meaning = Callable[..., int | tuple[int, ...]]


@dataclass(frozen=True)
class Form:
    """One opcode with everything that its modifiers say."""

    opcode: str
    results: tuple[str, ...]
    """PTX types; two results are written `d|p`."""
    sources: tuple[str, ...]
    """PTX types; `shift` is a u32 that is mostly small, `byte` a literal of eight bits."""
    meaning: Meaning
    """Unsigned operands to unsigned results, which may be wider than the type (upper bits do not count)."""

    def apply(self, operands: tuple[int, ...]) -> tuple[int, ...]:
        """Return the results, cut to their registers."""
        found = self.meaning(*operands)
        values = found if isinstance(found, tuple) else (found,)
        assert len(values) == len(self.results), self.opcode
        return tuple(value & mask(bits_of(kind)) for value, kind in zip(values, self.results, strict=True))


def mask(bits: int) -> int:
    """Ones in the `bits` lowest places."""
    return (1 << bits) - 1


def bits_of(kind: str) -> int:
    """Width of the register that holds a value of a PTX type."""
    if kind == "pred":
        return 1
    if kind in ("shift", "f16x2", "bf16x2", "byte", "tf32"):
        return 32
    if kind in ("u8", "s8", "b8", "bf16", "e4m3x2", "e5m2x2"):
        return 16
    return int(kind.lstrip("usbf"))


def signed(value: int, bits: int) -> int:
    """Read the lowest `bits` as two's complement."""
    value &= mask(bits)
    return value - (1 << bits) if value >> (bits - 1) else value


def read(value: int, kind: str) -> int:
    """The number that a register of an integer type holds; of narrow types only their own bits count."""
    bits = int(kind[1:])
    return signed(value, bits) if kind[0] == "s" else value & mask(bits)


FORMS: dict[str, Form] = {}
"""By opcode and types of the registers: every form that the fuzzer writes outside memory and warps."""


def form(opcode: str, results: str, sources: str, meaning: Meaning) -> None:
    """Add a form; types are separated by blanks."""
    key = f"{opcode} {results} <- {sources}"
    assert key not in FORMS, key
    FORMS[key] = Form(opcode, tuple(results.split()), tuple(sources.split()), meaning)
