"""The reference of the GEMM task against sums written out by hand."""

from __future__ import annotations

from fractions import Fraction
from types import ModuleType

import numpy as np
import pytest

from ptxgym.judge.numbers import round_bf16
from ptxgym.task import Task, load_task
from ptxgym.task_modules import ReferenceModule

AXES = {"M": 3, "N": 5, "K": 32}


@pytest.fixture(scope="module")
def gemm() -> Task:
    return load_task("gemm")


@pytest.fixture(scope="module")
def module(gemm: Task) -> ReferenceModule:
    return gemm.reference()


@pytest.fixture(scope="module")
def inputs() -> dict[str, np.ndarray]:
    random = np.random.default_rng(11)
    return {
        name: round_bf16(random.standard_normal((rows, 32), dtype=np.float32)) for name, rows in (("A", 3), ("B", 5))
    }


def exact(inputs: dict[str, np.ndarray], m: int, n: int) -> Fraction:
    pairs = zip(inputs["A"][m].tolist(), inputs["B"][n].tolist(), strict=True)
    return sum((Fraction(a) * Fraction(b) for a, b in pairs), Fraction(0))


def test_reference_is_the_exact_sum(module: ReferenceModule, inputs: dict[str, np.ndarray]) -> None:
    c = module.reference(np, inputs, AXES)["C"]
    assert c.dtype == np.float64 and c.shape == (3, 5)
    for m in range(3):
        for n in range(5):
            assert abs(Fraction(float(c[m, n])) - exact(inputs, m, n)) < Fraction(1, 10**13)


def test_ideal_is_the_exact_sum_rounded_once(module: ReferenceModule, inputs: dict[str, np.ndarray]) -> None:
    c = module.ideal(np, inputs, AXES, round_bf16)["C"]
    for m in range(3):
        for n in range(5):
            assert abs(float(c[m, n]) - float(exact(inputs, m, n))) <= 2.0**-8 * abs(float(exact(inputs, m, n))) + 1e-5


def test_accumulation_bounds_every_order_of_fp32_sums(module: ReferenceModule) -> None:
    random = np.random.default_rng(4)
    axes = {"M": 16, "N": 16, "K": 512}
    inputs = {name: round_bf16(random.standard_normal((16, 512), dtype=np.float32)) for name in "AB"}
    bound = module.accumulation(np, inputs, axes)["C"]
    reference = module.reference(np, inputs, axes)["C"]
    for _ in range(5):
        order = random.permutation(512)
        total = np.zeros((16, 16), np.float32)
        for k in order:
            total += inputs["A"][:, k, None] * inputs["B"][None, :, k]
        assert (np.abs(total - reference) < bound).all()
    assert (bound < 1e-2).all()


def test_terms_add_up_to_the_region(module: ModuleType, inputs: dict[str, np.ndarray]) -> None:
    region = (slice(1, 3), slice(0, 4))
    labels, parts = module.terms(np, inputs, AXES, "C", region)
    assert labels == ["k 0:16", "k 16:32"] and parts.shape == (2, 2, 4)
    assert parts.sum(axis=0) == pytest.approx(module.reference(np, inputs, AXES)["C"][region], abs=1e-5)
    assert parts[1] == pytest.approx(inputs["A"][1:3, 16:] @ inputs["B"][:4, 16:].T, abs=1e-6)


def test_predictors_cost_less_than_the_product(module: ReferenceModule) -> None:
    """None of them knows a single element of C better than sums over rows and columns of A and B allow."""
    random = np.random.default_rng(9)
    axes = {"M": 128, "N": 256, "K": 64}
    inputs = {
        name: random.standard_normal((axes[rows], 64)).astype(np.float32) for name, rows in (("A", "M"), ("B", "N"))
    }
    reference = module.reference(np, inputs, axes)
    guesses = module.predictors(np, inputs, axes, reference)
    assert set(guesses) >= {"zeros", "the mean of C", "a repeated input", "row means + column means"}
    for label, guess in guesses.items():
        assert guess["C"].shape == (128, 256)
        error = np.linalg.norm(guess["C"] - reference["C"]) / np.linalg.norm(reference["C"])
        assert error > 0.9, label
