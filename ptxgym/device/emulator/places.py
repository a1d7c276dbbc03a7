"""Source lines of inlined code: the chain of calls through which every instruction came into its kernel.

An asm statement usually stands in a small wrapper (`barrier_wait`, `tma_load`) that is called from several places. The
line of the call says more than that of the wrapper, so a chain leaves wrappers out: functions with an asm statement
whose code stands on few lines of the submission, and others that are a single line of code. Around the innermost one
all count whose code stands on few lines and that are called from several places: where a role is called, or a function
that was passed to a loop, says nothing. Source: `.loc … inlined_at`, PTX ISA 11.5.4.
"""

from __future__ import annotations

import re
from collections import defaultdict
from typing import NamedTuple

from ptxgym.device.emulator.ptx import Function

WRAPPER_LINES = 3
"""A function around an asm statement whose instructions stand on at most this many lines counts as a wrapper; one
without asm where they stand on one."""

_LOC = re.compile(
    r"\.loc\s+(\d+)\s+(\d+)\s+(\d+)(?:\s*,\s*function_name\s+(\S+?)\s*,\s*inlined_at\s+(\d+)\s+(\d+)\s+(\d+))?"
)


class _Frame(NamedTuple):
    file: int
    line: int
    column: int


class _Location(NamedTuple):
    frame: _Frame
    function: str
    """Label of the inlined function's name; empty in the kernel's own body."""
    caller: _Frame | None


def call_chains(function: Function) -> tuple[tuple[int, ...], ...]:
    """Return per PTX instruction of `function.body` its lines in the submission, innermost first, wrappers left out.

    The last element is a line of the kernel's own body; a chain is empty where no line is known.
    """
    own = function.module.own_files
    asm = {at.function for at in map(_parse, function.module.asm_locs) if at is not None}
    lines_of: dict[str, set[int]] = defaultdict(set)
    callers_of: dict[str, set[_Frame | None]] = defaultdict(set)
    frames_of: dict[tuple[_Location, ...], list[tuple[str, int]]] = {}
    stacks = _stacks(function)
    for stack in set(stacks):
        frames = [(at.function, at.frame.line) for at in stack if at.frame.file in own and at.frame.line]
        frames_of[stack] = frames
        for name, line in frames:
            lines_of[name].add(line)
        for at in stack:
            callers_of[at.function].add(at.caller)

    def chain(frames: list[tuple[str, int]]) -> tuple[int, ...]:
        wrapped = 0
        while wrapped + 1 < len(frames):
            name = frames[wrapped][0]
            most = WRAPPER_LINES if wrapped or name in asm else 1
            if len(lines_of[name]) > most or (wrapped and len(callers_of[name]) == 1):
                break
            wrapped += 1
        return tuple(line for _, line in frames[wrapped:])

    chains = {stack: chain(frames) for stack, frames in frames_of.items()}
    return tuple(chains[stack] for stack in stacks)


def _stacks(function: Function) -> list[tuple[_Location, ...]]:
    """Return the `.loc` in force at every instruction and those of its callers, innermost first."""
    tokens = function.module.tokens
    parsed: dict[str, _Location | None] = {}
    callers: dict[_Frame, _Location] = {}
    found: list[tuple[_Location, ...]] = []
    at, stack = function.start or 0, tuple[_Location, ...]()
    for instruction in function.body.instructions:
        for token in tokens[at : instruction.position]:
            if not token.startswith(".loc") or len(token) < 5 or token[4] not in " \t":
                continue
            if token not in parsed:
                parsed[token] = _parse(token)
            location = parsed[token]
            if location is not None:
                callers[location.frame] = location
                stack = _stack(location, callers)
        at = max(at, instruction.position)
        found.append(stack)
    return found


def _stack(location: _Location, callers: dict[_Frame, _Location]) -> tuple[_Location, ...]:
    stack = [location]
    while location.caller is not None and len(stack) < 64:
        location = callers.get(location.caller) or _Location(location.caller, "", None)
        stack.append(location)
    return tuple(stack)


def _parse(token: str) -> _Location | None:
    match = _LOC.match(token)
    if match is None:
        return None
    file, line, column, name, *caller = match.groups()
    outer = _Frame(int(caller[0]), int(caller[1]), int(caller[2])) if name else None
    return _Location(_Frame(int(file), int(line), int(column)), name or "", outer)
