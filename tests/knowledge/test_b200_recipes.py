"""The Blackwell recipes, followed with the pack's functions alone: right, and without a finding above a note."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from ptxgym.device.protocol import RunOptions
from ptxgym.evaluator import Evaluator
from ptxgym.knowledge import load_pack, template_text
from ptxgym.task import load_task
from ptxgym.verdict import Severity, Status
from tests.knowledge.harness import FOLDER, as_float, bf16, run, small_integers

ARCH = "b200"
SCHEDULES = (RunOptions(), RunOptions(schedule="lazy"), RunOptions(schedule="random", seed=1))


@pytest.mark.parametrize(("m", "n", "k", "pairs"), [(256, 256, 64, 1), (512, 512, 320, 1), (384, 320, 512, 2)])
def test_gemm_by_pairs(m: int, n: int, k: int, pairs: int) -> None:
    a, b = small_integers(1, m, k), small_integers(2, n, k)
    ran = run(
        ARCH,
        "recipe_gemm.cu",
        inputs={"A": bf16(a), "B": bf16(b)},
        outputs={"C": (np.uint16, m * n)},
        axes={"M": m, "N": n, "K": k, "pairs": pairs},
        schedules=SCHEDULES,
    )
    np.testing.assert_array_equal(ran.outputs["C"].reshape(m, n), bf16(a @ b.T))


def normal(seed: int, *shape: int) -> NDArray[np.float64]:
    """Normal draws as BF16 holds them."""
    return as_float(bf16(np.random.default_rng(seed).normal(size=shape))).astype(np.float64)


def attention(
    q: NDArray[np.float64], k: NDArray[np.float64], causal: bool
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Weights and log-sum-exp of scores [heads, S, S], scaled by the square root of the head dimension."""
    scores = q @ k.swapaxes(1, 2) / np.sqrt(q.shape[2])
    if causal:
        scores = np.where(np.tri(q.shape[1], dtype=bool), scores, -np.inf)
    maximum = scores.max(axis=-1, keepdims=True)
    powers = np.exp(scores - maximum)
    sums = powers.sum(axis=-1, keepdims=True)
    return powers / sums, (maximum + np.log(sums))[..., 0]


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize(("heads", "length", "dimensions"), [(1, 128, 128), (2, 384, 128), (1, 256, 96)])
def test_attention_forward(heads: int, length: int, dimensions: int, causal: bool) -> None:
    q, k, v = (normal(seed, heads, length, dimensions) for seed in range(3))
    q[:, 1::2] *= 4  # rows whose maximum grows
    ran = run(
        ARCH,
        "recipe_attn_fwd.cu",
        inputs={"Q": bf16(q), "K": bf16(k), "V": bf16(v)},
        outputs={"O": (np.uint16, q.size), "LSE": (np.float32, heads * length)},
        axes={"heads": heads, "S": length, "D": dimensions, "causal": int(causal)},
        schedules=SCHEDULES,
    )
    weights, lse = attention(q, k, causal)
    error = as_float(ran.outputs["O"]).reshape(q.shape) - weights @ v
    assert np.linalg.norm(error) < 0.005 * np.linalg.norm(weights @ v)
    np.testing.assert_allclose(ran.outputs["LSE"].reshape(heads, length), lse, atol=1e-4)


TASKS = [
    ("gemm", "recipe_gemm.cu", "#define TASK\n"),
    ("attn_fwd", "recipe_attn_fwd.cu", "#define CAUSAL 0\n"),
    ("attn_fwd_causal", "recipe_attn_fwd.cu", "#define CAUSAL 1\n"),
    ("attn_bwd", "recipe_attn_bwd.cu", "#define CAUSAL 0\n"),
    ("attn_bwd_causal", "recipe_attn_bwd.cu", "#define CAUSAL 1\n"),
]


@pytest.mark.parametrize(("task", "file", "defined"), TASKS, ids=[task for task, _, _ in TASKS])
def test_kernel_by_the_recipe_is_right_on_target_and_clean(
    evaluator: Evaluator, task: str, file: str, defined: str
) -> None:
    text = template_text(load_pack(ARCH)) + defined + (FOLDER / ARCH / file).read_text()
    verdict = evaluator.evaluate(text, load_task(task), ARCH)
    assert verdict.status is Status.OK, (verdict.message, verdict.diagnostics, verdict.findings)
    assert verdict.evidence is not None and verdict.evidence.target_ok and verdict.evidence.coverage == 1.0
    assert [f"{f.code}: {f.message}" for f in verdict.findings if f.severity is not Severity.NOTE] == []
