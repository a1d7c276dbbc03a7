"""Kernels of one instruction each, written as PTX from the line that says it: a new form is a line of a table.

A line names its registers by field and width, as `tests/device/emulator/decode/accepted.txt` does: a, b, c, e are read,
d and d2 written; v and x are elements of vectors; 16, 32, 64 are widths, p a predicate. Each thread loads its own
operands and stores its own results. Where the line has an address `[a64…]` or `[a32…]`, that is the middle of a cell of
the thread's own, which is also stored.
"""

from __future__ import annotations

import hashlib
import re

HEAD = ".version 9.0\n.target sm_90a\n.address_size 64\n.extern .shared .align 16 .b8 dynamic_smem[];\n"
SOURCES = ("a", "b", "c", "e")
FIELDS = (*SOURCES, "d", "d2")
WIDTHS = {"16": "b16", "32": "b32", "64": "b64", "p": "pred"}
VECTORS = {"vh": "b16", "v": "b32", "vd": "b64", "xh": "b16", "x": "b32", "xd": "b64"}
VECTOR_LENGTH = 4
BYTES = {"b16": 2, "b32": 4, "b64": 8, "pred": 4}
RESULT = re.compile(r"(?<![\w%.])(?:(d2|d)(16|32|64|p)|(vh|vd|v)(\d))(?!\w)")
CELL_BYTES, ADDRESS_IN_CELL = 64, 16
THREADS_LIMIT = 1024


def results(instruction: str) -> list[tuple[str, str]]:
    """Return the results that an instruction writes, in the order of its operands: register and type."""
    found: dict[str, str] = {}
    for match in RESULT.finditer(instruction.partition(" ")[2]):
        found[match[0]] = WIDTHS[match[2]] if match[1] else VECTORS[match[3]]
    return list(found.items())


def cell_space(instruction: str) -> str | None:
    """Return the state space of the cell that an instruction addresses: `shared`, `global` or None."""
    if not re.search(r"\[a(?:32|64)", instruction):
        return None
    return "shared" if ".shared" in instruction.split()[0] else "global"


def out_bytes(instruction: str, threads: int) -> int:
    """Return the size of the output: results, then cells."""
    cells = CELL_BYTES if cell_space(instruction) else 0
    return threads * (sum(BYTES[kind] for _, kind in results(instruction)) + cells)


def kernel_name(instruction: str) -> str:
    """Return a name that follows from the text, so that no other line changes it."""
    return f"{instruction.split('.')[0]}_{hashlib.sha256(instruction.encode()).hexdigest()[:12]}"


def one_instruction(instruction: str) -> str:
    """Return the entry that executes `instruction` once per thread.

    Input: 64 bits per source and thread, source by source (`a`, `b`, `c`, `e`). Output: the results, one after another,
    then the cells. Several statements may stand in a line, divided by semicolons.
    """
    space = cell_space(instruction)
    lines = [f".visible .entry {kernel_name(instruction)}(.param .align 128 .b8 params[256])"]
    lines += [f".maxntid {THREADS_LIMIT}", "{", *_declarations()]
    lines += ["ld.param.u64 in, [params+128];", "ld.param.u64 out, [params+136];", "mov.u32 tid, %tid.x;"]
    lines += ["mov.u32 count, %ntid.x;", "mul.wide.u32 step, count, 8;", "mad.wide.u32 at, tid, 8, in;"]
    for field in SOURCES:
        lines += [f"ld.global.u64 {field}64, [at];", "add.s64 at, at, step;", f"cvt.u32.u64 {field}32, {field}64;"]
        lines += [f"cvt.u16.u64 {field}16, {field}64;", f"and.b64 low, {field}64, 1;", f"setp.ne.u64 {field}p, low, 0;"]
    lines += _vectors()
    if space:
        lines += _cell(instruction, space)
    lines += [f"{statement.strip()};" for statement in instruction.split(";")]
    for register, kind in results(instruction):
        lines.append(f"mad.wide.u32 at, tid, {BYTES[kind]}, out;")
        if kind == "pred":
            lines.append(f"selp.u32 word, 1, 0, {register};")
        lines.append(f"st.global.b{8 * BYTES[kind]} [at], {'word' if kind == 'pred' else register};")
        lines += [f"mul.wide.u32 step, count, {BYTES[kind]};", "add.s64 out, out, step;"]
    if space == "shared":
        lines.append(f"mad.wide.u32 at, tid, {CELL_BYTES}, out;")
        for offset in range(0, CELL_BYTES, 8):
            lines += [f"ld.shared.u64 low, [cell+{offset}];", f"st.global.u64 [at+{offset}], low;"]
    return "\n".join([*lines, "ret;", "}"]) + "\n"


def module(entries: list[str]) -> str:
    """Return the module that holds the entries, each once."""
    return HEAD + "".join(dict.fromkeys(entries))


def _declarations() -> list[str]:
    lines = [f".reg .{kind} {', '.join(f + width for f in FIELDS)};" for width, kind in WIDTHS.items()]
    lines += [f".reg .{kind} {name}<{VECTOR_LENGTH}>;" for name, kind in VECTORS.items()]
    return [*lines, ".reg .b32 tid, count, word, cell;", ".reg .b64 in, out, at, step, low, cells;"]


def _vectors() -> list[str]:
    """Fill elements of vectors from the sources, each with other bits."""
    lines = []
    for index in range(VECTOR_LENGTH):
        field = SOURCES[index]
        for letter, shift in (("v", 0), ("x", 8)):
            lines += [f"shr.u64 {letter}d{index}, {field}64, {shift};"]
            lines += [f"cvt.u32.u64 {letter}{index}, {letter}d{index};"]
            lines += [f"cvt.u16.u64 {letter}h{index}, {letter}d{index};"]
    return lines


def _cell(instruction: str, space: str) -> list[str]:
    """Fill the thread's cell from b, c, e and let `a` point into it; global cells lie behind the results."""
    before = sum(BYTES[kind] for _, kind in results(instruction))
    if space == "shared":
        address, register = "cell", "32"
        lines = ["mov.u32 word, dynamic_smem;", f"mad.lo.u32 cell, tid, {CELL_BYTES}, word;"]
    else:
        address, register = "cells", "64"
        lines = [f"mul.wide.u32 cells, count, {before};", "add.s64 cells, cells, out;"]
        lines += [f"mul.wide.u32 low, tid, {CELL_BYTES};", "add.s64 cells, cells, low;"]
    for offset, field in zip(range(0, CELL_BYTES, 8), ("b", "c", "c", "e", "e", "b", "c", "e"), strict=True):
        lines.append(f"st.{space}.u64 [{address}+{offset}], {field}64;")
    lines.append(f"add.u{register} a{register}, {address}, {ADDRESS_IN_CELL};")
    return [*lines, "cvt.u64.u32 a64, a32;"] if space == "shared" else lines
