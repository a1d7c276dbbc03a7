"""Run one random program on both sides and say where they differ."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tests.device.emulator.core.harness import Run, run
from tests.fuzz.interpreter import BITS, Machine, Memory, inputs
from tests.fuzz.program import CELLS, COUNTS, SLOT, Fuzzed
from tests.fuzz.text import OUT_BYTES, ptx_of


@dataclass(frozen=True)
class Disagreement:
    """What the two sides say."""

    kind: str
    """`outcome`, `finding`, `registers`, `memory` or `cells`."""
    detail: str


def check(program: Fuzzed) -> tuple[Disagreement | None, dict[str, int]]:
    """Return the first difference, and how often threads executed each form.

    Raises:
        PtxSyntaxError, NotEmulated: if the emulator refuses the program, which is a fault of it or of the generator.
    """
    memory = inputs(program)
    machine = Machine(program, memory)
    machine.run()
    done = emulate(program, memory)
    return difference(program, machine, done), machine.counts


def emulate(program: Fuzzed, memory: Memory) -> Run:
    """Run the program on the emulator's core, in this process."""
    shape = program.shape
    threads = shape.grid * shape.block
    buffers = {
        "in": np.frombuffer(memory.registers, np.uint8).copy(),
        "out": np.zeros(threads * OUT_BYTES, np.uint8),
        "slots": np.frombuffer(memory.slots, np.uint8).copy(),
        "cells": np.array(memory.cells, "<u8").view(np.uint8),
    }
    cluster = {"cluster": (shape.cluster, 1, 1)} if shape.cluster > 1 else {}
    return run(
        ptx_of(program, memory.table), buffers, grid=shape.grid, block=shape.block, inputs=("in",),
        schedule=shape.schedule, seed=shape.seed, threads=shape.threads, **cluster,
    )  # fmt: skip


def difference(program: Fuzzed, machine: Machine, done: Run) -> Disagreement | None:
    """Compare the emulator's launch with the interpreter's."""
    complaints = [record for record in done.records if record["severity"] > 0]
    if done.launch.outcome != 0:
        return Disagreement("outcome", f"{done.launch.outcome.name}: {[r['message'].decode() for r in complaints]}")
    if complaints:
        first = complaints[0]
        return Disagreement("finding", f"{first['code'].decode()}: {first['message'].decode()}")
    out = done.buffers["out"].tobytes()
    for index, thread in enumerate(machine.threads):
        at = index * OUT_BYTES
        for letter in "hrd":
            for number in range(COUNTS[letter]):
                size, name = BITS[letter] // 8, f"%{letter}{number}"
                got, want = int.from_bytes(out[at : at + size], "little"), thread.registers[name]
                at += size
                if got != want:
                    return Disagreement("registers", f"thread {index}, {name}: emulator {got:#x}, here {want:#x}")
        got, want = out[at], sum(thread.registers[f"%p{i}"] << i for i in range(COUNTS["p"]))
        if got != want:
            return Disagreement("registers", f"thread {index}, predicates: emulator {got:#06b}, here {want:#06b}")
        slot = done.buffers["slots"][index * SLOT : (index + 1) * SLOT].tobytes()
        mine = bytes(a ^ b ^ c for a, b, c in zip(*thread.slots.values(), strict=True))
        if slot != mine:
            return Disagreement("memory", f"thread {index}: emulator {slot.hex()}, here {mine.hex()}")
    cells = done.buffers["cells"].view("<u8").tolist()
    for index, (got, want) in enumerate(zip(cells, machine.cells, strict=True)):
        if got != want:
            operation, kind = CELLS[index % len(CELLS)]
            where = "global" if index < len(CELLS) else f"shared, CTA {index // len(CELLS) - 1}"
            return Disagreement("cells", f"{operation}.{kind} ({where}): emulator {got:#x}, here {want:#x}")
    return None
