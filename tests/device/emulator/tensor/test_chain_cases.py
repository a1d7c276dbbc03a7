"""Cases of carries and of what concerns speed alone against Python's integers, whatever a GPU has recorded."""

from __future__ import annotations

import re

import numpy as np
import pytest

from tests.device.emulator.tensor.harness import Kernels, succeeded
from tests.gpu.cases import Case, lane_cases
from tests.gpu.cases.lines import CHAINS, HINTS, MIXED, ONLY, expanded
from tests.gpu.cases.ptx import results

LANES = {case.name.partition("/")[2]: case for case in lane_cases()}


def chained(instruction: str, registers: dict[str, int]) -> dict[str, int]:
    """Registers after a chain, PTX ISA 9.7.2; a subtraction adds the complement, so that its carry is no borrow."""
    registers, flag = dict(registers), 0
    for statement in instruction.split("; "):
        opcode, _, operands = statement.partition(" ")
        name, *modifiers = opcode.split(".")
        width, signed = int(modifiers[-1][1:]), modifiers[-1][0] == "s"
        target, *names = operands.split(", ")
        values = [registers.get(n, 0) for n in names]
        incoming = flag if name in ("addc", "subc", "madc") else 0
        mask = (1 << width) - 1
        if name.startswith("mad"):
            x, y = (v - (1 << width) if signed and v >> width - 1 else v for v in values[:2])
            product = x * y
            part = product >> width if "hi" in modifiers else product
            total = (part & mask) + values[2] + incoming
        elif name.startswith("sub"):
            total = values[0] + (~values[1] & mask) + (incoming if name == "subc" else 1)
        else:
            total = values[0] + values[1] + incoming
        if "cc" in modifiers:
            flag = int(total > mask)
        registers[target] = total & mask
    return registers


def sources(case: Case) -> list[dict[str, int]]:
    """Registers of each thread: every source as 32 and as 64 bits."""
    words = np.frombuffer(case.input, np.uint64).reshape(4, case.threads)
    return [
        {f"{name}{w}": int(words[i, t]) & (1 << w) - 1 for i, name in enumerate("abce") for w in (32, 64)}
        for t in range(case.threads)
    ]


@pytest.mark.parametrize("instruction", (*CHAINS, *MIXED))
def test_carries_go_through_chains(conformance: Kernels, instruction: str) -> None:
    case = LANES[instruction]
    run = conformance.run(case)
    assert succeeded(run)
    want = [chained(instruction, registers) for registers in sources(case)]
    at, flags = 0, set()
    for register, kind in results(instruction):
        word = np.uint32 if kind == "b32" else np.uint64
        size = case.threads * word().nbytes
        got = run.output[at : at + size].view(word).tolist()
        assert got == [registers[register] for registers in want], register
        at += size
    for registers in sources(case):  # both flags must occur, else the case says nothing
        plain = chained(instruction.replace(".cc", ""), registers)
        flags.add(chained(instruction, registers) == plain)
    assert flags == {False, True}


HINTED = [line for pattern in HINTS for line in (expanded(pattern) if ";" not in pattern else [pattern])]
BYTES = {"vh": 2, "v": 4, "vd": 8}


@pytest.mark.parametrize("instruction", [line for line in HINTED if re.search(r"(?<![\w.])ld\.global", line)])
def test_hints_change_no_value(conformance: Kernels, instruction: str) -> None:
    """What is loaded is what lies there: c, e, … of the cell, from its middle."""
    case = LANES[instruction]
    run = conformance.run(case)
    assert succeeded(run) and not run.codes(severity=1)
    b, c, _, e = (np.frombuffer(case.input, np.uint64).reshape(4, case.threads)[i] for i in (1, 2, 2, 3))
    cells = np.stack([b, c, c, e, e, b, c, e], axis=1).copy().view(np.uint8)
    found = results(instruction)
    start = 16 + (2 if "[a64+2]" in instruction else 0)
    at = 0
    for register, _ in found:
        size = BYTES[register.rstrip("0123456789")]
        want = np.ascontiguousarray(cells[:, start : start + size]).reshape(-1)
        np.testing.assert_array_equal(run.output[at : at + want.size], want)
        at, start = at + want.size, start + size


@pytest.mark.parametrize("instruction", [line for line in ONLY if ".v4.u32" in line or ".v4.f32" in line])
def test_only_read_loads_see_the_input(conformance: Kernels, instruction: str) -> None:
    case = LANES[instruction]
    run = conformance.run(case)
    assert succeeded(run) and not run.codes(severity=1)
    words = np.frombuffer(case.input, np.uint32)
    rows = np.arange(case.threads) // (32 if "ldu" in instruction else 1)
    np.testing.assert_array_equal(run.output.view(np.uint32).reshape(4, -1).T, words.reshape(-1, 4)[rows])
