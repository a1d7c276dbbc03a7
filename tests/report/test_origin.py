"""Where kernels come from: what is flagged, what is not, and where the threshold lies."""

from __future__ import annotations

import re

import pytest

from ptxgym.report.origin import THRESHOLD, Likeness, likeness
from ptxgym.task import load_task, oracle


@pytest.mark.parametrize("arch", ["h100", "b200"])
def test_a_renamed_oracle_is_flagged_and_a_naive_kernel_is_not(arch: str) -> None:
    task = load_task("gemm")
    text = task.source(oracle(task, arch))
    renamed = re.sub(r"\b(sums|slice|cursor|slot)\b", r"my_\1", text).replace("//", "// mine:").replace("\n", "\n  ")
    assert renamed.count("my_") >= 30
    found = likeness(renamed, "gemm", arch)
    assert found.oracle == 1.0 and found.flagged
    tuned = re.sub(r"\b(128|64|4)\b", lambda found: str(2 * int(found[0])), renamed)
    assert tuned != renamed and likeness(tuned, "gemm", arch).flagged, "with other sizes it is still a copy"
    naive = likeness(task.source(task.solutions[arch][0]), "gemm", arch)
    assert naive.oracle is not None and naive.oracle < 0.2 and not naive.flagged


def test_oracles_of_other_operators_stay_below_the_threshold() -> None:
    attention = load_task("attn_fwd")
    found = likeness(attention.source(oracle(attention, "h100")), "gemm", "h100")
    assert found.oracle is not None and 0.2 < found.oracle < THRESHOLD and not found.flagged


def test_templates_are_found_in_a_kernel_made_of_them() -> None:
    from ptxgym.knowledge import load_pack, template_text

    found = likeness(template_text(load_pack("h100")), "gemm", "h100")
    assert found.templates == 1.0 and found.flagged


def test_nothing_to_compare_with_is_no_number() -> None:
    assert likeness("int x;", "no_such_task", "no_such_arch") == Likeness(None, None)
    assert not Likeness(None, None).flagged
