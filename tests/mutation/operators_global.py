"""Mutation operators on what orders global memory between CTAs: fences, scopes, flags and counters."""

from __future__ import annotations

import re
from collections.abc import Iterator

from tests.mutation.operators import Edit, Operator, drop, rewrite
from tests.mutation.sites import KernelText, Statement

FENCE = r"fence\.(?:acq_rel|sc)|membar"
FLAG_LOAD = r"ld\.(?:acquire|relaxed|volatile)"
FLAG_STORE = r"st\.(?:release|relaxed|volatile)"
COUNTER = r"(?:atom|red)\.(?!shared|async)"
DATA = r"(?:ld|st)\.global"
TOLD = f"{FENCE}|{FLAG_LOAD}|{FLAG_STORE}|{COUNTER}|{DATA}"


def _word(old: str, new: str) -> Edit:
    return rewrite(re.escape(old), lambda _: new)


def _early(kernel: KernelText, statement: Statement) -> dict[int, str] | None:
    """What was loaded or counted reads one more than it is, so that its reader does not wait for the last one."""
    line = kernel.lines[statement.index]
    match = re.search(r"\s(%r\d+),", line)
    return {statement.index: f"{line} add.u32 {match[1]}, {match[1]}, 1;"} if match else None


def _other(kernel: KernelText, statement: Statement) -> dict[int, str] | None:
    line = kernel.lines[statement.index]
    changed = re.sub(r"\[(%\w+)\]", r"[\1+4]", line, count=1)
    return {statement.index: changed} if changed != line else None


def global_operators() -> tuple[Operator, ...]:
    """Return the operators on flags, counters and fences in global memory."""
    return tuple(_global())


def _global() -> Iterator[Operator]:
    yield Operator("drop.fence", FENCE, drop, every=TOLD)
    yield Operator("scope.fence", FENCE, _word(".gpu", ".cta"), every=TOLD, detail="scope .cta")
    yield Operator("relaxed.flag_load", FLAG_LOAD, _word(".acquire", ".relaxed"), every=TOLD)
    yield Operator("scope.flag_load", FLAG_LOAD, _word(".gpu", ".cta"), every=TOLD, detail="scope .cta")
    yield Operator("relaxed.flag_store", FLAG_STORE, _word(".release", ".relaxed"), every=TOLD)
    yield Operator("scope.flag_store", FLAG_STORE, _word(".gpu", ".cta"), every=TOLD, detail="scope .cta")
    yield Operator("relaxed.counter", COUNTER, _word(".release", ".relaxed"), every=TOLD)
    yield Operator("scope.counter", COUNTER, _word(".gpu", ".cta"), every=TOLD, detail="scope .cta")
    yield Operator("flag.other_load", FLAG_LOAD, _other, every=TOLD, detail="another flag")
    yield Operator("flag.other_store", FLAG_STORE, _other, every=TOLD, detail="another flag")
    yield Operator("flag.other_counter", COUNTER, _other, every=TOLD, detail="another counter")
    yield Operator("flag.early", f"{FLAG_LOAD}|atom\\.(?!shared|async)", _early, every=TOLD, detail="one too early")
    yield Operator("drop.flag_store", FLAG_STORE, drop, every=TOLD)
    yield Operator("drop.counter", r"red\.(?!shared|async)", drop, every=TOLD)
