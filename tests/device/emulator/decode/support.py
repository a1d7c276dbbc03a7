"""Builds one-instruction kernels from the tables' register names, and reads the decoded row back."""

from __future__ import annotations

import re
from dataclasses import dataclass

from ptxgym.device.emulator import decode, ir
from ptxgym.device.emulator.decode_layout import lay_out
from ptxgym.device.emulator.decode_operands import Context
from ptxgym.device.emulator.ptx import parse_module

WIDTHS = {"8": "b8", "16": "b16", "32": "b32", "64": "b64", "128": "b128", "p": "pred"}
FIELDS = ("d", "d2", "a", "b", "c", "e")
DECLARATIONS = "".join(
    f".reg .{kind} {', '.join(f'{field}{width}' for field in FIELDS)};\n" for width, kind in WIDTHS.items()
) + (
    ".reg .b32 v<256>; .reg .b16 vh<8>; .reg .b64 vd<8>; .reg .b128 vq<2>;\n"
    ".reg .b32 x<32>; .reg .b64 xd<8>; .reg .b16 xh<8>;\n"
)
HEAD = ".version 9.0\n.target sm_90a\n.address_size 64\n"


def kernel(body: str, head: str = "", params: str = "") -> str:
    """A module with one kernel `k` around `body`."""
    return f"{HEAD}{head}\n.visible .entry k({params})\n{{\n{body}\n}}\n"


def around(instruction: str) -> str:
    """A module whose kernel `k` holds `instruction` after the declarations."""
    return kernel(f"{DECLARATIONS}LABEL:\nTABLE: .branchtargets LABEL, LABEL;\n{instruction};\nret;\n")


@dataclass(frozen=True)
class Decoded:
    """One decoded instruction."""

    context: Context
    row: dict[str, int]
    family: str

    def name(self, offset: int) -> str:
        """Register name at an offset of the register file."""
        return self.context.names[offset]

    def vector(self, field: str) -> list[str]:
        """Names in `vec` or `vec2`; `_` for sinks."""
        start, count = self.row[field], self.row["n" + field]
        return ["_" if offset < 0 else self.name(offset) for offset in self.context.pool[start : start + count]]


def decode_all(text: str) -> list[Decoded]:
    """Decode the instructions of kernel `k` one by one, before registers share places."""
    function = parse_module(text).functions["k"]
    context = lay_out(function).context
    found = []
    for instruction in function.body.instructions:
        template, row = decode.decode_instruction(context, instruction)
        found.append(
            Decoded(context, dict(zip((name for name, _ in ir.INST_FIELDS), row, strict=True)), template.family)
        )
    return found


def decode_one(instruction: str) -> Decoded:
    """Decode one instruction with the tables' registers."""
    return decode_all(around(instruction))[0]


def registers(text: str) -> list[str]:
    """Register names of the tables in an operand list."""
    return re.findall(r"(?<![\w%.])(?:(?:d2|[abcde])(?:8|16|32|64|128|p)|[vx][hdq]?\d+)(?!\w)", text)
