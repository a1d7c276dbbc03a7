"""Variants on the emulator, and what the judge of each kind of variant refuses."""

from __future__ import annotations

import functools
import random
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pytest

from ptxgym.evaluator import Evaluator
from ptxgym.judge import numbers
from ptxgym.judge.conditions import Case, conditions
from ptxgym.judge.correctness import compare
from ptxgym.judge.references import compute, expect
from ptxgym.task import Task, Tensor, load_task
from ptxgym.task_modules import ReferenceModule
from ptxgym.variants import load_variant, variants_of
from tests.judge import attention
from tests.judge.attention import Fault

TASKS = ("gemm", "attn_fwd", "attn_fwd_causal", "attn_bwd", "attn_bwd_causal")
SEED = 20
ALL = [(name, variant.name) for name in TASKS for variant in variants_of(load_task(name)) if variant.traits]
CHOSEN = sorted(random.Random(SEED).sample(ALL, 20), key=ALL.index)

Kernel = Callable[[Mapping[str, Any]], Mapping[str, Any]]
"""Inputs → outputs, both in their logical order of axes."""


@pytest.mark.parametrize(("name", "variant"), CHOSEN)
def test_naive_kernels_solve_variants_chosen_at_random(name: str, variant: str, evaluator: Evaluator) -> None:
    """`ptxgym verify --variants all` does the same with all of them."""
    task = load_variant(name, variant)
    arch = ("h100", "b200")[CHOSEN.index((name, variant)) % 2]
    (solution,) = task.solutions[arch]
    verdict = evaluator.evaluate(task.source(solution), task, arch)
    assert (verdict.status, verdict.score) == (solution.status, solution.score), verdict.message
    assert verdict.evidence is not None and verdict.evidence.coverage == 0.0
    assert not verdict.findings


# Wrong kernels, in numpy


@functools.cache
def cases(name: str, variant: str) -> tuple[Task, tuple[Case, ...]]:
    """Return the task with the first and the last of its draws: normal at the public size, hard at a hidden one."""
    task = load_variant(name, variant)
    first, *_, last = conditions(task, "emulation", secret=b"wrong kernels").cases
    return task, (first, last)


def excess(name: str, variant: str, kernel: Kernel, lies: Callable[[Tensor], Tensor] = lambda tensor: tensor) -> float:
    """Return how far over budget the worst output is on the worst draw; `lies` says how the kernel stores it."""
    task, drawn = cases(name, variant)
    worst = 0.0
    for case in drawn:
        expected = expect(task, case)
        found = kernel(expected.values)
        for tensor in task.outputs:
            data = numbers.store(np.asarray(found[tensor.name], np.float32), lies(tensor))
            worst = max(worst, compare(expected.outputs[tensor.name], data, case).excess)
    return worst


def attend(name: str, fault: Fault = attention.RIGHT) -> Kernel:
    return functools.partial(attention.kernel(name), fault=fault)


def louder(kernel: Kernel, factor: float = 1.01) -> Kernel:
    return lambda given: {key: factor * values for key, values in kernel(given).items()}


def as_the_task_stores_it(tensor: Tensor) -> Tensor:
    return tensor.model_copy(update={"shape": tensor.logical or tensor.shape, "logical": ()})


ATTENTION = [
    (name, variant)
    for name, variants in {
        "attn_fwd": ("d64", "d96", "bshd", "s128", "ragged", "o", "lse", "d96-bshd-lse"),
        "attn_fwd_causal": ("ragged", "d64-s128-o", "lse"),
        "attn_bwd": ("d64", "d96", "bshd", "s128", "ragged", "dv", "dk", "dkdv", "dq"),
        "attn_bwd_causal": ("ragged-dv", "d96-bshd-dk", "dkdv", "s128-dq"),
    }.items()
    for variant in variants
]


@pytest.mark.parametrize(("name", "variant"), ATTENTION)
def test_budgets_of_attention_tell_honest_kernels_from_a_gain_of_1_percent(name: str, variant: str) -> None:
    assert excess(name, variant, attend(name)) < 0.8
    assert excess(name, variant, louder(attend(name))) > 1.2


@pytest.mark.parametrize("name", [name for name in TASKS if name != "gemm"])
def test_outputs_in_the_tasks_own_layout_are_wrong_where_another_is_asked_for(name: str) -> None:
    assert excess(name, "bshd", attend(name), as_the_task_stores_it) > 100


@pytest.mark.parametrize(
    ("name", "variant", "fault"),
    [
        ("attn_fwd", "o", "a tile of keys dropped"),
        ("attn_fwd", "bshd", "V of another head"),
        ("attn_fwd_causal", "o", "mask shifted by one"),
        ("attn_fwd", "lse", "LSE in base 2"),
        ("attn_fwd_causal", "d64-bshd-lse", "no mask"),
        ("attn_fwd_causal", "ragged-lse", "mask shifted by one"),
        ("attn_bwd", "dv", "dV lacks one query"),
        ("attn_bwd_causal", "d96-bshd-dv", "dO of another head"),
        ("attn_bwd", "dk", "no delta"),
        ("attn_bwd_causal", "ragged-dk", "dK lacks a tile of queries"),
        ("attn_bwd", "dkdv", "dK and dV exchanged"),
        ("attn_bwd", "dq", "no delta"),
        ("attn_bwd_causal", "d64-bshd-dq", "mask shifted by one"),
        ("attn_bwd", "ragged-dq", "dQ lacks one key"),
    ],
)
def test_faults_of_attention_are_caught_in_subsets_layouts_and_sizes(name: str, variant: str, fault: str) -> None:
    assert excess(name, variant, attend(name, attention.faults(name)[fault])) > 1.2


def epilogue(without: str = "", **changed: Any) -> Kernel:
    """C = A·Bᵀ with the steps for which there are inputs, and those that are asked for; one of them left out."""
    steps = {"gelu": False, "relu": False, "div32": False, "fp32": False, **changed, without: False}

    def kernel(given: Mapping[str, Any]) -> Mapping[str, Any]:
        given = {name: values for name, values in given.items() if name != without}
        x = np.einsum("mk,nk->mn", given["A"], given["B"], dtype=np.float32, optimize=True)
        x = x * given.get("scale", np.float32(1)) / np.float32(32 if steps["div32"] else 1) + given.get("bias", 0)
        if steps["relu"]:
            x = np.where(x > 0, x, 0)
        if steps["gelu"]:
            x = x / 2 * (1 + np.tanh(0.7978845608 * (x + 0.044715 * x**3)))
        x = x + given.get("residual", 0)
        return {"C": x if steps["fp32"] else numbers.round_bf16(x)}

    return kernel


EPILOGUES: dict[str, dict[str, bool]] = {
    "scale": {},
    "bias": {},
    "residual": {},
    "fp32": {"fp32": True},
    "scale-fp32": {"fp32": True},
    "scale-relu": {"relu": True},
    "div32-bias-gelu": {"div32": True, "gelu": True},
    "scale-bias-relu-residual": {"relu": True},
    "nn-bias": {},
    "nt-residual": {},
    "tt-fp32": {"fp32": True},
    "thin-bias": {},
    "ragged-residual": {},
    "deep-fp32": {"fp32": True},
    "k64": {},
}


@pytest.mark.parametrize("variant", EPILOGUES)
def test_budgets_of_gemm_tell_honest_epilogues_from_wrong_ones(variant: str) -> None:
    steps = EPILOGUES[variant]
    assert excess("gemm", variant, epilogue(**steps)) <= 1.0
    assert excess("gemm", variant, louder(epilogue(**steps))) > 1.2
    for step in set(variant.split("-")) & {"scale", "bias", "relu", "gelu", "div32", "residual", "fp32"}:
        assert excess("gemm", variant, epilogue(step, **steps)) > 1.2, step


def tensor_core_sum(a: Any, b: Any, terms: int) -> Any:
    """Sum as Hopper's tensor cores do: products and the sum so far cut at 25 places, then the sum to FP32."""
    one, other = (np.frexp(values)[1] - 1 for values in (a, b))
    total = np.zeros((len(a), len(b)), np.float32)
    for start in range(0, a.shape[1], terms):
        step = slice(start, start + terms)
        products = a[:, None, step].astype(np.float64) * b[None, :, step]
        greatest = (one[:, None, step] + other[None, :, step]).max(axis=-1)
        shift = 25 - np.maximum(greatest, np.where(total == 0, -1000, np.frexp(total)[1] - 1))
        cut = np.trunc(np.ldexp(products, shift[..., None])).sum(axis=-1) + np.trunc(
            np.ldexp(total.astype(float), shift)
        )
        exact = np.ldexp(cut, -shift)
        nearest = exact.astype(np.float32)
        total = np.where(np.abs(nearest) > np.abs(exact), np.nextafter(nearest, np.float32(0)), nearest)
    return total


@pytest.mark.parametrize("terms", [16, 8])
@pytest.mark.parametrize("depth", [576, 1536, 5120, 16384])
def test_sums_of_tensor_cores_pass_in_fp32_where_nothing_cancels(depth: int, terms: int) -> None:
    """Means of 1.4, as the shifted draw may have: every cut goes the same way, and over the steps they add up."""
    task = load_variant("gemm", "fp32")
    case = Case("test/means", {"M": 16, "N": 24, "K": depth}, "shifted", 0, False)
    generator = np.random.default_rng(depth)
    drawn = {
        name: numbers.encode(generator.standard_normal((rows, depth), np.float32) + np.float32(mean), "bf16")
        for name, rows, mean in (("A", 16, 1.4), ("B", 24, -1.4))
    }
    expected = compute(task, case, drawn)
    a, b = expected.values["A"], expected.values["B"]

    def over(found: Any) -> float:
        return compare(expected.outputs["C"], numbers.encode(np.asarray(found, np.float32), "fp32"), case).excess

    assert over(tensor_core_sum(a, b, terms)) < 0.6
    half = depth // 2
    parts = [a[:, part] @ b[:, part].T for part in (slice(half), slice(half, depth))]
    assert over(sum(parts)) < 0.3
    assert over(1.0003 * sum(parts)) > 1.2
    assert over(sum(numbers.round_bf16(part) for part in parts)) > 5


def test_relu_is_not_gelu() -> None:
    instead = epilogue(div32=True, relu=True)
    assert excess("gemm", "div32-bias-gelu", instead) > 1.2


@pytest.mark.parametrize("variant", ["nn", "nt", "tt"])
def test_operands_read_in_the_tasks_own_layout_are_wrong_where_another_is_asked_for(variant: str) -> None:
    task, _ = cases("gemm", variant)

    def misread(given: Mapping[str, Any]) -> Mapping[str, Any]:
        moved = {tensor.name: tensor for tensor in task.inputs if tensor.logical}
        axes = {"M": given["A"].shape[0], "N": given["B"].shape[0], "K": given["A"].shape[1]}
        again = {
            name: numbers.decode(numbers.store(given[name], tensor), as_the_task_stores_it(tensor), axes)
            for name, tensor in moved.items()
        }
        return epilogue()({**given, **again})

    assert excess("gemm", variant, epilogue()) <= 1.0
    assert excess("gemm", variant, misread) > 100


# The references of epilogues against loops


def test_epilogues_of_the_reference_are_what_the_prompt_says() -> None:
    generator = np.random.default_rng(3)
    a, b, residual = (generator.integers(-4, 4, shape).astype(np.float32) for shape in ((3, 16), (5, 16), (3, 5)))
    scale, bias = (generator.standard_normal(5).astype(np.float32) for _ in range(2))
    given = {"A": a, "B": b, "scale": scale, "bias": bias, "residual": residual}
    axes = {"M": 3, "N": 5, "K": 16}
    bend = {
        "none": lambda x: x,
        "relu": lambda x: max(x, 0.0),
        "gelu": lambda x: x / 2 * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3))),
    }
    for activation, function in bend.items():
        module: ReferenceModule = load_task("gemm").model_copy(
            update={"settings": {"activation": activation, "over_32": True}}
        ).reference()  # fmt: skip
        found = module.reference(np, given, axes)["C"]
        for m in range(3):
            for n in range(5):
                x = sum(float(a[m, k]) * float(b[n, k]) for k in range(16)) * float(scale[n]) / 32 + float(bias[n])
                assert found[m, n] == pytest.approx(function(x) + float(residual[m, n]), abs=1e-12)


def test_trivial_predictors_know_the_epilogue_and_still_earn_nothing() -> None:
    """Bias and residual alone are guesses: what is left to be computed counts."""
    task, drawn = cases("gemm", "bias-residual")
    for case in drawn:
        output = expect(task, case).outputs["C"]
        assert 0 < output.predictor_error < 1.1
        given = expect(task, case).values
        guess = given["bias"][None, :] + given["residual"]
        error = np.linalg.norm(guess - output.values) / np.linalg.norm(output.values)
        assert output.predictor_error <= error * (1 + 1e-9)
