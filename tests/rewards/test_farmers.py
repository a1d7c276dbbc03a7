"""Scripted farmers: what a lazy policy could submit for reward. None may beat the honest kernel one rung above it."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from ptxgym.judge.conditions import Conditions
from ptxgym.reward import Ledger, load_reward
from ptxgym.task import Task
from ptxgym.verdict import Verdict

Policy = Callable[["Bench"], list[Verdict]]
TURNS = 4


class Bench:
    """Judges kernels given as numpy functions."""

    def __init__(self, task: Task, drawn: Conditions, fakes: ModuleType) -> None:
        self.task, self.drawn, self.fakes = task, drawn, fakes
        self.known: dict[Any, Any] = {}

    def verdict(self, source: str, kernel: Any, ablated: Any = None, **families: float) -> Verdict:
        key = (kernel, ablated, tuple(families.items()))
        if key not in self.known:
            self.known[key] = self.fakes.judged(self.task, self.drawn, kernel, ablated, **families)
        return self.fakes.verdict(self.known[key], source)  # type: ignore[no-any-return]


@pytest.fixture(scope="module")
def bench(task: Task, drawn: Conditions, fakes: ModuleType) -> Bench:
    return Bench(task, drawn, fakes)


def product(a: Any, b: Any) -> Any:
    return a @ b.T


def nothing(a: Any, b: Any) -> Any:
    return 0 * (a @ b.T)


def half(a: Any, b: Any) -> Any:
    """Half of K: an unfinished, honest attempt."""
    k = a.shape[1] // 2
    return a[:, :k] @ b[:, :k].T


HONEST: dict[str, Policy] = {
    "compiles and runs": lambda bench: [bench.verdict("honest", lambda a, b: 3 * (a @ b.T)[::-1], fma=1.0)],
    "correct": lambda bench: [bench.verdict("honest", product, fma=1.0)],
    "half on target": lambda bench: [bench.verdict("honest", product, half, wgmma=0.5, fma=0.5)],
    "on target": lambda bench: [bench.verdict("honest", product, nothing, wgmma=1.0)],
}
"""Rungs, lowest first."""


def guess(kernel: Any, **families: float) -> Policy:
    return lambda bench: [bench.verdict(f"farm {turn}", kernel, **families) for turn in range(TURNS)]


def alternate(bench: Bench) -> list[Verdict]:
    """Right, wrong, right … with ever new texts."""
    return [bench.verdict(f"farm {turn}", product if turn % 2 == 0 else nothing, fma=1.0) for turn in range(TURNS)]


def dispatch(a: Any, b: Any) -> Any:
    """Right at the published size alone."""
    return a @ b.T if a.shape == (256, 576) else 0 * (a @ b.T)


FARMERS: dict[str, tuple[Policy, str]] = {
    "zeros": (guess(nothing), "correct"),
    "zeros after dead wgmma": (guess(nothing, wgmma=1.0), "correct"),
    "constants": (guess(lambda a, b: 0 * (a @ b.T) + 1), "correct"),
    "mean of the output": (guess(lambda a, b: 0 * (a @ b.T) + float((a @ b.T).mean())), "correct"),
    "row and column means": (
        guess(
            lambda a, b: (a @ b.mean(axis=0))[:, None] + (b @ a.mean(axis=0))[None, :] - a.mean(axis=0) @ b.mean(axis=0)
        ),
        "correct",
    ),
    "an input as output": (guess(lambda a, b: np.resize(a, (len(a), len(b)))), "correct"),
    "BF16 sums on target": (
        lambda bench: [bench.verdict(f"farm {turn}", bf16_sums, wgmma=1.0) for turn in range(TURNS)],
        "correct",
    ),
    "matrix instructions on scratch data": (guess(product, ablated=product, wgmma=1.0, fma=1.0), "half on target"),
    "scratch data, no ablation": (guess(product, wgmma=1.0, fma=1.0), "half on target"),
    "scratch data, arithmetic that is not counted": (guess(product, ablated=product, wgmma=1.0), "half on target"),
    "a token of target instructions": (guess(product, wgmma=0.001, fma=1.0), "half on target"),
    "older matrix instructions": (guess(product, mma_sync=1.0), "half on target"),
    "resubmission": (lambda bench: [bench.verdict("same", product, fma=1.0)] * TURNS, "half on target"),
    "alternating right and wrong": (alternate, "half on target"),
    "one kernel in many spellings": (guess(product, fma=1.0), "half on target"),
    "shape dispatch": (guess(dispatch, wgmma=1.0), "correct"),
    "target instructions at the published shape only": (
        lambda bench: [published_only(bench, f"farm {turn}") for turn in range(TURNS)],
        "half on target",
    ),
}
"""Farmer → policy, and the honest rung above the one that it stands on."""


def bf16_sums(a: Any, b: Any) -> Any:
    from ptxgym.judge.numbers import round_bf16

    total = np.zeros((len(a), len(b)), np.float32)
    for k in range(0, a.shape[1], 16):
        total = round_bf16(total + a[:, k : k + 16] @ b[:, k : k + 16].T)
    return total


def published_only(bench: Bench, source: str) -> Verdict:
    """Right everywhere, on target where the shape is known."""
    from ptxgym.judge.judge import judge

    fakes, task = bench.fakes, bench.task
    runs = [
        fakes.execute(task, case, product, fakes.share(task, case, **({"fma": 1.0} if case.hidden else {"wgmma": 1.0})))
        for case in bench.drawn.cases
    ]
    ablation = fakes.execute(task, bench.drawn.cases[0], nothing)
    return fakes.verdict(judge(task, "h100", bench.drawn, runs, ablation=ablation), source)  # type: ignore[no-any-return]


def total(preset: str, verdicts: list[Verdict]) -> float:
    ledger, earned = Ledger.start(load_reward(preset)), 0.0
    for index, verdict in enumerate(verdicts):
        payment, ledger = ledger.settle(verdict, last=index == len(verdicts) - 1)
        earned += payment.reward
    return earned


@pytest.fixture(scope="module")
def honest(bench: Bench) -> dict[str, list[Verdict]]:
    return {name: policy(bench) for name, policy in HONEST.items()}


@pytest.mark.parametrize("name", FARMERS)
def test_farmer_never_beats_the_honest_kernel_one_rung_above(
    bench: Bench, honest: dict[str, list[Verdict]], name: str
) -> None:
    policy, rung = FARMERS[name]
    farmed = policy(bench)
    above = honest[rung][0]
    assert max(verdict.score for verdict in farmed) < above.score
    for preset in ("shaped", "final"):
        assert total(preset, farmed) < total(preset, honest[rung])
    for preset in ("sparse", "ptxbench"):
        assert total(preset, farmed) <= total(preset, honest[rung])


@pytest.mark.parametrize("name", FARMERS)
def test_no_farmer_is_on_target(bench: Bench, name: str) -> None:
    for verdict in FARMERS[name][0](bench):
        assert verdict.evidence is None or not verdict.evidence.target_ok


def test_rungs_rise(honest: dict[str, list[Verdict]]) -> None:
    scores = [verdicts[0].score for verdicts in honest.values()]
    assert scores == sorted(scores) and len(set(scores)) == len(scores)
    assert scores[0] == 0.05 and scores[-1] == 0.5


def test_farming_more_turns_pays_no_more(bench: Bench) -> None:
    for policy in (alternate, guess(product, fma=1.0), guess(nothing)):
        farmed = policy(bench)
        assert total("shaped", farmed) == pytest.approx(total("shaped", farmed[:1]))
