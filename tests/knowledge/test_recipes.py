"""Recipes hold what they promise: kernels that follow them, written with template functions alone, are right."""

from __future__ import annotations

from pathlib import Path

import pytest

from ptxgym.evaluator import Evaluator
from ptxgym.knowledge import load_pack, template_text
from ptxgym.task import load_task
from ptxgym.verdict import Severity, Status

RECIPES = [  # of Hopper: those of other architectures stand in their own files
    ("h100", "gemm", "recipe_gemm.cu", ""),
    ("h100", "attn_fwd", "recipe_attn_fwd.cu", "#define CAUSAL 0\n"),
    ("h100", "attn_fwd_causal", "recipe_attn_fwd.cu", "#define CAUSAL 1\n"),
    ("h100", "attn_bwd", "recipe_attn_bwd.cu", "#define CAUSAL 0\n"),
    ("h100", "attn_bwd_causal", "recipe_attn_bwd.cu", "#define CAUSAL 1\n"),
]


@pytest.mark.parametrize(("arch", "task", "file", "defined"), RECIPES, ids=lambda value: str(value).strip())
def test_kernel_by_the_recipe_is_right_on_target_and_clean(
    evaluator: Evaluator, arch: str, task: str, file: str, defined: str
) -> None:
    text = template_text(load_pack(arch)) + defined + (Path(__file__).parent / arch / file).read_text()
    verdict = evaluator.evaluate(text, load_task(task), arch)
    assert verdict.status is Status.OK, (verdict.message, verdict.diagnostics, verdict.findings)
    assert verdict.evidence is not None and verdict.evidence.target_ok and verdict.evidence.coverage == 1.0
    assert [f"{f.code}: {f.message}" for f in verdict.findings if f.severity is not Severity.NOTE] == []
