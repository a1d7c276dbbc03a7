from __future__ import annotations

import re

import pytest

from ptxgym.fixit.similarity import alike, contained, edit, shingles, tokens
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


def test_tokens_have_no_comments_and_split_inline_ptx() -> None:
    found = tokens('a /* b */ += "mbarrier.init.b64 [%0], %1;"; // c')
    assert found == ("a", "+=", "mbarrier.init.b64", "[", "%0", "]", ",", "%1", ";", ";")


def test_names_comments_and_layout_make_no_difference() -> None:
    text = load_task("gemm").source(oracle(load_task("gemm"), "h100"))
    assert alike(shingles(text), shingles(renamed(text))) > 0.97
    assert alike(shingles(text), shingles(naive("bias"))) < 0.05


def test_an_edit_is_what_was_changed() -> None:
    text = kernel("h100")
    one, other = text.replace("wgmma_commit();\n    wgmma", "wgmma"), text.replace("parity ^= 1", "parity ^= 0")
    assert 0 < len(edit(one, text)) < 60
    assert alike(edit(one, text), edit(other, text)) < 0.2
    assert alike(edit(one, text), edit(one.replace("sums", "totals"), text.replace("sums", "totals"))) == 1


def test_containment_is_a_share_of_the_part() -> None:
    assert contained(shingles(""), shingles("a b")) == 0
    text = kernel("h100")
    assert contained(shingles(text[: len(text) // 2]), shingles(text)) > 0.95
    assert 0.3 < contained(shingles(text), shingles(text[: len(text) // 2])) < 0.7


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
