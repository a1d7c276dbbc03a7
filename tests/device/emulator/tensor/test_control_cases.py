"""Cases of control flow against the same programs in Python, whatever a GPU has recorded."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np
import pytest
from numpy.typing import NDArray

from ptxgym.device.emulator.core import Outcome
from tests.device.emulator.tensor.harness import SCHEDULES, Kernels, succeeded
from tests.gpu.cases import control_cases
from tests.gpu.cases.control import LEFT

CASES = {case.name.partition("/")[2]: case for case in control_cases()}
MASK = 0xFFFFFFFF
UNTOUCHED = [0xEEEEEEEE] * 4
Words = list[int]


def signed(word: int) -> int:
    return word - (1 << 32) if word >> 31 else word


def rotated(word: int, by: int) -> int:
    return (word << by | word >> 32 - by) & MASK


def table(tid: int, w: Words) -> Words:
    first = (w[1] + w[2], w[1] - w[2], w[1] * w[2], w[1] ^ w[2])[w[0] & 3] & MASK
    second = (first ^ w[3] if tid & 32 else first + w[3]) & MASK
    return [first, second, first + second, 0]


def machine(_: int, w: Words) -> Words:
    value, state, visits = w[0], w[1] & 3, 0
    for _ in range(9):
        if state == 0:
            value = value + w[2] & MASK
            state = value & 3
        elif state == 1:
            value = value * 5 + w[3] & MASK
            state = value >> 3 & 3
        elif state == 2:
            value, visits, state = value ^ w[1], visits + 1, 3
        else:
            value = rotated(value, 7)
            state = 0 if signed(value) > 0 else 1
    return [value, state, visits, 0]


def counted(w: Words) -> int:
    value = 0
    for _ in range(w[0] & 31):
        value = value * 3 + w[1] & MASK
    return value


def loops(tid: int, w: Words, rows: Sequence[Words]) -> Words:
    number, steps = (w[2] & 0xFF) + 1, 0
    while number != 1:
        steps += 1
        if number % 2:
            number = number * 3 + 1
            if number > 4000:
                break
        else:
            number //= 2
    return [counted(w), counted(rows[tid ^ 1]), steps, nested(w[3] & 7)]


def nested(limit: int) -> int:
    """Two loops, of which the inner one leaves both."""
    total = 0
    for outer in range(limit + 1):
        inner = 0
        while True:
            total = total + inner & MASK ^ outer
            if total > 300:
                return total
            inner += 1
            if inner >= outer:
                break
    return total


def calls(_: int, w: Words) -> Words:
    wide, other = w[1] | w[2] << 32, w[3] | w[0] << 32
    mixed = w[3] - w[2] if w[0] >> 31 else w[0] * w[3] + (wide ^ other)
    pair = 0
    if w[0] & 1:
        pair = (w[2] * w[3] >> 32 ^ (w[2] + w[3] & MASK)) + (w[2] ^ w[3])
    chosen = w[2] - w[3] if w[3] & 2 else w[2] + w[3]
    return [mixed, math.gcd(w[1] & 0xFFF, w[2] & 0xFFF), pair, chosen]


def exits(tid: int, rows: Sequence[Words], *, stored: bool) -> Words:
    lane, warp = tid % 32, tid - tid % 32
    if lane % 3 == 0:
        return [rows[tid][3], *UNTOUCHED[1:]] if stored else UNTOUCHED
    left = [x for x in range(32) if x % 3]
    words = {x: rows[warp + x] for x in left}
    negative = [x for x in left if words[x][1] >> 31]
    ballot = sum(1 << x for x in negative)
    third = (1 if negative else 0) | (2 if not negative else 0)
    third ^= sum(words[x][2] for x in left) & MASK
    third += sum(1 << x for x in left if words[x][3] & 1 == words[lane][3] & 1)
    third += (64 if lane == min(left) else 0) + min(left)
    following = left[(left.index(lane) + 1) % len(left)]
    return [LEFT, ballot, third, words[following][0]]


def barriers(tid: int, rows: Sequence[Words]) -> Words:
    if tid < 32 or tid % 32 == 5:
        return UNTOUCHED
    return rows[tid ^ (tid & 32) << 1]


def halves(tid: int, rows: Sequence[Words]) -> Words:
    warp, lane = tid - tid % 32, tid % 32
    high = lane >= 16
    mine = range(16, 32) if high else range(16)
    source = (lane + 5 if lane + 5 < 32 else lane) if high else max(lane - 3, 0) if lane >= 3 else lane
    mask = sum(1 << x for x in mine)
    if high:
        third = 0
        for x in mine:
            third ^= rows[warp + x][1]
    else:
        third = max(signed(rows[warp + x][1]) for x in mine)
    ballot = sum(1 << x for x in mine if bool(rows[warp + x][2] >> 31) != high)
    return [mask, rows[warp + source][0] ^ rows[tid ^ 16][3], third, ballot]


def around(tid: int, rows: Sequence[Words]) -> Words:
    negative = [bool(row[1] >> 31) for row in rows]
    other = [row[0] != 0 for row in rows]
    flags = all(other) | all(negative) << 1 | any(negative) << 2 | all(other) << 3
    seen = rows[tid ^ 64][2] if tid >= 64 else 0
    return [(len(rows) - sum(negative)) * 256 + sum(negative), flags, seen, 0]


def spaces(tid: int, w: Words) -> Words:
    word = w[w[1] & 3]
    byte = word >> 8 & 0xFF
    value = word + (byte - 256 if byte & 128 else byte) & MASK
    return [w[2], (value ^ word >> 16) + (w[3] & 0xFF), 4096, 1 | 4]  # in .param, which lies in .global (9.7.9.19)


BY_LANE: dict[str, Callable[[int, Words, Sequence[Words]], Words]] = {
    "table": lambda tid, w, _: table(tid, w),
    "machine": lambda tid, w, _: machine(tid, w),
    "loops": loops,
    "calls": lambda tid, w, _: calls(tid, w),
    "barriers": lambda tid, _, rows: barriers(tid, rows),
    "halves": lambda tid, _, rows: halves(tid, rows),
    "round": lambda tid, _, rows: around(tid, rows),
    "spaces": lambda tid, w, _: spaces(tid, w),
    "exits/exit": lambda tid, _, rows: exits(tid, rows, stored=False),
    "exits/ret": lambda tid, _, rows: exits(tid, rows, stored=False),
    "exits/branch": lambda tid, _, rows: exits(tid, rows, stored=True),
    "exits/function": lambda tid, _, rows: exits(tid, rows, stored=False),
}
FAULTS = {"trap": "kernel.trap", "brkpt": "kernel.breakpoint"}


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("name", BY_LANE)
def test_every_lane_goes_its_way(conformance: Kernels, name: str, schedule: str) -> None:
    rows = np.frombuffer(CASES[name].input, np.uint32).reshape(-1, 4).tolist()
    want = [[x & MASK for x in BY_LANE[name](tid, row, rows)] for tid, row in enumerate(rows)]
    run = conformance.run(CASES[name], schedule)
    assert succeeded(run) and not run.codes()
    np.testing.assert_array_equal(words(run.output), want)


def words(output: NDArray[np.uint8]) -> NDArray[np.uint32]:
    return output.view(np.uint32).reshape(-1, 4)


@pytest.mark.parametrize("name", FAULTS)
def test_traps_end_the_launch(conformance: Kernels, name: str) -> None:
    run = conformance.run(CASES[name])
    assert run.launch.outcome == Outcome.RUNTIME_FAULT and FAULTS[name] in run.codes()


def test_every_case_is_tried() -> None:
    assert set(CASES) == {*BY_LANE, *FAULTS}
