"""Farmers as CUDA kernels through the whole pipeline: target instructions that do no work must not pay."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from ptxgym.evaluator import Evaluator
from ptxgym.task import Task, expected
from ptxgym.verdict import Status, Verdict

DOT = """
__device__ float dot(const __nv_bfloat16* a, const __nv_bfloat16* b, int K) {
  float sum = 0.0f;
  for (int k = 0; k < K; ++k) sum = ADD(sum, __bfloat162float(a[k]), __bfloat162float(b[k]));
  return sum;
}

__device__ void store_dots(const __nv_bfloat16* A, const __nv_bfloat16* B, __nv_bfloat16* C, int m, int n, int N,
                           int K) {
  const int thread = threadIdx.x - 128;
  for (int i = thread; i < kTileM * kTileN; i += 256) {
    const int row = m + i / kTileN, column = n + i % kTileN;
    C[size_t(row) * N + column] = __float2bfloat16(dot(A + size_t(row) * K, B + size_t(column) * K, K));
  }
}
"""
FUSED = DOT.replace("ADD(sum, ", "fmaf(").replace("(b[k]))", "(b[k]), sum)")
UNFUSED = DOT.replace("ADD(sum, ", "__fadd_rn(sum, __fmul_rn(").replace("(b[k]))", "(b[k])))")


@pytest.fixture(scope="module")
def evaluator() -> Iterator[Evaluator]:
    """The real pipeline with few schedules: scalar arithmetic under every one of them takes long."""
    with Evaluator(random_schedules=0) as few:
        yield few


def wgmma_with(task: Task, helper: str, use: str) -> str:
    """The wgmma solution whose sums are thrown away: what it stores comes from `helper`."""
    (solution,) = [kernel for kernel in expected(task, "h100") if kernel.file.endswith("/wgmma.cu")]
    text = task.source(solution)
    store = "store(C, sums, m + (warpgroup - 1) * 64, n, N);"
    operands = "const __nv_bfloat16* A, const __nv_bfloat16* B"
    edits = {
        "__global__ void": helper + "\n__global__ void",
        store: use,
        "__nv_bfloat16* C, int N,\n           int K)": f"__nv_bfloat16* C, {operands}, int N, int K)",
        "(map_a, map_b, C, N, K);": "(map_a, map_b, C, A, B, N, K);",
    }
    for old, new in edits.items():
        assert text.count(old) == 1, old
        text = text.replace(old, new)
    return text


def judge(evaluator: Evaluator, text: str) -> Verdict:
    verdict = evaluator.evaluate(text, "gemm", "h100")
    assert verdict.evidence is not None, verdict.message
    return verdict


@pytest.mark.parametrize(
    ("helper", "family"), [(FUSED, "fma"), (UNFUSED, "fmul")], ids=["fused arithmetic", "unfused arithmetic"]
)
def test_wgmma_on_scratch_data_is_paid_as_the_naive_kernel_that_it_is(
    evaluator: Evaluator, gemm: Task, helper: str, family: str
) -> None:
    verdict = judge(evaluator, wgmma_with(gemm, helper, "store_dots(A, B, C, m, n, N, K);"))
    assert (verdict.status, verdict.score) == (Status.OK, 0.20)
    assert verdict.evidence is not None
    assert verdict.evidence.coverage == 1.0 and not verdict.evidence.target_ok
    assert verdict.evidence.ablation == "independent"
    others = verdict.evidence.families[family].multiply_adds
    assert others == pytest.approx(verdict.evidence.required_multiply_adds, rel=0.01)
    assert verdict.evidence.other_multiply_adds >= others


def test_control_the_same_text_without_the_trick_is_on_target(evaluator: Evaluator, gemm: Task) -> None:
    text = wgmma_with(gemm, FUSED, "store(C, sums, m + (warpgroup - 1) * 64, n, N);")
    verdict = judge(evaluator, text)
    assert (verdict.status, verdict.score) == (Status.OK, 0.50)


GAIN = """for (float (&row)[8] : sums) for (float& x : row) x *= 1.01f;
    store(C, sums, """


@pytest.mark.parametrize(
    ("old", "new", "cause"),
    [
        ("const int slices = K / kTileK;", "const int slices = 576 / kTileK;", None),
        ("store(C, sums, ", GAIN, "1.01 × the reference"),
        ("slice > 0 || k > 0);", "1);", None),
    ],
    ids=["size hard-coded", "gain of 1 %", "accumulators not cleared"],
)
def test_almost_right_is_wrong(evaluator: Evaluator, gemm: Task, old: str, new: str, cause: str | None) -> None:
    (solution,) = [kernel for kernel in expected(gemm, "h100") if kernel.file.endswith("/wgmma.cu")]
    text = gemm.source(solution)
    assert text.count(old) == 1, old
    verdict = evaluator.evaluate(text.replace(old, new), "gemm", "h100")
    assert verdict.status in (Status.WRONG_OUTPUT, Status.HAZARD, Status.HANG, Status.RUNTIME_FAULT), verdict.message
    assert verdict.score <= 0.125
    if cause is not None:
        assert cause in verdict.message
