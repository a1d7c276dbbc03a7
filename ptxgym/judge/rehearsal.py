"""A rehearsal on small outputs: cupy compiles each of its kernels at first use, which no submission should wait for.

On an H200's host that takes some 10 s once, and 1 s in later processes, which find the kernels in cupy's cache.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from ptxgym.device.protocol import Bytes, Execution
from ptxgym.judge import numbers
from ptxgym.judge.conditions import conditions
from ptxgym.judge.judge import Judgement, judge_numbers
from ptxgym.judge.references import ExpectedOutput, expect
from ptxgym.judge.tiles import TILE
from ptxgym.task import Task


def rehearse(task: Task, xp: Any = np) -> tuple[Judgement, ...]:
    """Judge outputs of the smallest workload on the device of `xp`: a right one, and one for each way to be wrong."""
    drawn = conditions(task, "schedules", secret=b"rehearsal")
    cases = [expect(task, case, xp) for case in drawn.cases]
    judged = []
    for take in _TAKES:
        runs = [
            Execution(buffers={**case.inputs, **{name: take(output) for name, output in case.outputs.items()}})
            for case in cases
        ]
        judged.append(judge_numbers(task, drawn, runs, xp=xp))
    return tuple(judged)


def _right(output: ExpectedOutput) -> Bytes:
    ideal: Bytes = numbers.on_host(output.ideal_data)
    return ideal


def _noisy(output: ExpectedOutput) -> Bytes:
    """No hypothesis fits, so that all are tried."""
    ideal = numbers.on_host(output.ideal).astype(np.float32)
    noise = np.random.default_rng(0).standard_normal(ideal.shape).astype(np.float32)
    return numbers.store(ideal + ideal.std() * noise, output.tensor)


def _displaced(output: ExpectedOutput) -> Bytes:
    """The first rows stand in the place of the following ones, too."""
    ideal = numbers.on_host(output.ideal).astype(np.float32)
    rows = ideal.reshape(-1, ideal.shape[-1])
    rows[TILE : 2 * TILE] = rows[:TILE]
    return numbers.store(ideal, output.tensor)


def _one_infinite(output: ExpectedOutput) -> Bytes:
    ideal = numbers.on_host(output.ideal).astype(np.float32)
    ideal.reshape(-1)[-1] = np.inf
    return numbers.store(ideal, output.tensor)


def _nan(output: ExpectedOutput) -> Bytes:
    return numbers.store(np.full(output.values.shape, np.nan, np.float32), output.tensor)


def _unwritten(output: ExpectedOutput) -> Bytes:
    return numbers.poisoned(output.tensor, output.axes)


_TAKES: tuple[Callable[[ExpectedOutput], Bytes], ...] = (_right, _noisy, _displaced, _one_infinite, _nan, _unwritten)
