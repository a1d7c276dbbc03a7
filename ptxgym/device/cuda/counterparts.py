"""Multiply-adds of Blackwell's matrix instructions: executions by Nsight Compute, shapes by the emulator.

M and N of a `tcgen05.mma` stand in its instruction descriptor, a register (PTX ISA 9.7.16.4.2), so that UTC*MMA does
not say what it multiplies. ptxas makes one UTC*MMA of every `tcgen05.mma`, at the same line, and lets one thread at a
time issue it; the emulator, which reads descriptors, knows the multiply-adds of each. Read off cubins of ptxas 13.0; no
Blackwell GPU has confirmed how Nsight Compute counts them.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Collection, Sequence
from dataclasses import replace
from fractions import Fraction

from ptxgym.device.protocol import InstructionCount

MATRIX_SASS = re.compile(r"UTC[A-Z]MMA\b")
MATRIX_PTX = "tcgen05.mma"

_Site = tuple[str, int | None]
"""Kernel, and line of the call where the instruction stands in a wrapper, or its own."""


def completed(
    executed: Sequence[InstructionCount], emulated: Sequence[InstructionCount]
) -> tuple[tuple[InstructionCount, ...], tuple[str, ...]]:
    """Return executed SASS with the multiply-adds of UTC*MMA, and notes on where they come from or are missing.

    Instructions are joined by kernel and line, and by order where those of a line differ in shape. Where the order says
    nothing, as ptxas has copied or dropped some, the smallest shape of the line counts.

    Args:
        executed: by Nsight Compute, in the order of the code.
        emulated: PTX of the same build, in the order of the code.
    """
    indices = [index for index, count in enumerate(executed) if MATRIX_SASS.match(count.form)]
    if not indices:
        return tuple(executed), ()
    called = {(count.kernel, count.site) for count in emulated if count.form.startswith(MATRIX_PTX)}
    known_calls = called & {(executed[index].kernel, executed[index].site) for index in indices}
    found: dict[_Site, list[int]] = defaultdict(list)
    for index in indices:
        found[_place(executed[index], known_calls)].append(index)
    shapes = _multiply_adds_per_issue(emulated, known_calls)
    counts, notes = list(executed), ["the shapes of UTC*MMA instructions, which only the emulator knows: emulated"]
    for (kernel, site), places in found.items():
        known = shapes.get((kernel, site), ())
        if not known:
            form = executed[places[0]].form
            notes.append(f"multiply-adds of {form} at line {site or '?'}: the emulator executed no {MATRIX_PTX} there")
            continue
        ordered = known if len(known) == len(places) else [min(known)] * len(places)
        if len(set(known)) > 1 and len(known) != len(places):
            notes.append(
                f"{len(places)} UTC*MMA stand for {len(known)} {MATRIX_PTX} at line {site}: the smallest counts"
            )
        for index, each in zip(places, ordered, strict=True):
            count = counts[index]
            counts[index] = replace(count, multiply_adds=int(each * count.warp) if count.thread else 0)
    return tuple(counts), tuple(notes)


def _place(count: InstructionCount, known_calls: Collection[_Site]) -> _Site:
    """Return the call from which an instruction came, where both sides know it; else the line of the instruction."""
    call = (count.kernel, count.site)
    return call if call in known_calls else (count.kernel, count.line)


def _multiply_adds_per_issue(
    emulated: Sequence[InstructionCount], known_calls: Collection[_Site]
) -> dict[_Site, list[Fraction]]:
    """Return per place what one issue of each executed `tcgen05.mma` does, in the order of the code.

    It is a fraction where the shape of an instruction changes from one issue to the next.
    """
    shapes: dict[_Site, list[Fraction]] = defaultdict(list)
    for count in emulated:
        if count.form.startswith(MATRIX_PTX) and count.thread:
            shapes[_place(count, known_calls)].append(Fraction(count.multiply_adds, count.thread))
    return dict(shapes)
