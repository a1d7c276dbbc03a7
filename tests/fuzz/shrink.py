"""Make a program smaller for as long as it still shows what it shows."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import replace

from tests.fuzz.program import Access, Block, Fuzzed, If, Loop, Op, Reduce, Shape, Statement, Switch

Shows = Callable[[Fuzzed], bool]


def shrink(program: Fuzzed, shows: Shows, seconds: float = 60) -> Fuzzed:
    """Return a smaller program for which `shows` still holds."""
    deadline = time.monotonic() + seconds
    smaller = True
    while smaller and time.monotonic() < deadline:
        smaller = False
        for candidate in _candidates(program):
            if time.monotonic() > deadline:
                break
            if shows(candidate):
                program, smaller = candidate, True
                break
    return program


def _candidates(program: Fuzzed) -> Iterator[Fuzzed]:
    for body in _blocks(program.body):
        yield replace(program, body=body)
    shape = program.shape
    simpler = (
        Shape(cluster=shape.cluster, grid=shape.cluster), replace(shape, schedule="fair", seed=0),
        replace(shape, grid=shape.cluster), replace(shape, block=32), replace(shape, threads=1),
    )  # fmt: skip
    yield from (replace(program, shape=s) for s in simpler if s != shape)
    if program.data:
        yield replace(program, data=0)


def _blocks(block: Block) -> Iterator[Block]:
    """Large cuts first."""
    size = len(block)
    while size:
        for start in range(0, len(block), size):
            yield block[:start] + block[start + size :]
        size //= 2
    for at, statement in enumerate(block):
        for inner in _hoisted(statement):
            yield block[:at] + inner + block[at + 1 :]
        for simpler in _simpler(statement):
            yield (*block[:at], simpler, *block[at + 1 :])


def _hoisted(statement: Statement) -> Iterator[Block]:
    match statement:
        case If():
            yield from (statement.then, statement.otherwise)
        case Loop():
            yield statement.body
        case Switch():
            yield from statement.cases


def _simpler(statement: Statement) -> Iterator[Statement]:
    match statement:
        case Op() | Access() | Reduce():
            if statement.guard:
                yield replace(statement, guard="")
        case If():
            yield from (replace(statement, then=b) for b in _blocks(statement.then))
            yield from (replace(statement, otherwise=b) for b in _blocks(statement.otherwise))
        case Loop():
            yield from (replace(statement, body=b) for b in _blocks(statement.body))
            if isinstance(statement.count, int) and statement.count > 1:
                yield replace(statement, count=1)
        case Switch():
            for at, case in enumerate(statement.cases):
                for b in _blocks(case):
                    yield replace(statement, cases=(*statement.cases[:at], b, *statement.cases[at + 1 :]))
