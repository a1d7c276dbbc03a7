"""Copies of proven solutions are recognised, other kernels are not."""

from __future__ import annotations

import re

import pytest

from ptxgym.fixit.solutions import Solutions
from ptxgym.task import load_task, oracle
from tests.fixit.scripted import kernel, naive


@pytest.fixture(scope="module")
def solutions() -> Solutions:
    return Solutions()


def renamed(text: str) -> str:
    """The same kernel in other words: names, comments and layout differ."""
    for number, name in enumerate(["cursor", "descriptor", "produce", "multiply", "sums", "map_a"]):
        text = re.sub(rf"\b{name}\b", f"other{number}", text)
    lines = re.sub(r"//[^\n]*", "", text).split("\n")
    return "\n".join(line if "\\" in line else f"  {line}  // !" for line in lines)


@pytest.mark.parametrize("arch", ["h100", "b200"])
@pytest.mark.parametrize("task", ["gemm", "attn_fwd", "attn_bwd_causal"])
def test_solutions_are_recognised_whole_renamed_and_in_part(solutions: Solutions, task: str, arch: str) -> None:
    text = load_task(task).source(oracle(load_task(task), arch))
    assert solutions.nearest(text, arch).share == 1
    assert solutions.nearest(renamed(text), arch).share > 0.9
    assert solutions.nearest(text[: len(text) * 2 // 3], arch).share > 0.9


@pytest.mark.parametrize("arch", ["h100", "b200"])
def test_other_kernels_are_no_copies(solutions: Solutions, arch: str) -> None:
    assert solutions.nearest(kernel(arch), arch).share < 0.3
    assert solutions.nearest(naive("bias"), arch).share < 0.1
    assert solutions.nearest("", arch).share == 0
