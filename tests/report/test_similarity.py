"""Containment of token shingles: what counts as alike, what does not, and where the threshold lies."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ptxgym.report.similarity import SHINGLE, THRESHOLD, Likeness, containment, likeness, shingles, tokens
from ptxgym.task import load_task, oracle


def test_names_numbers_comments_and_layout_do_not_count() -> None:
    one = 'for (int i = 0; i < 64; ++i) { /* sum */ sum += a[i]; } // done\nasm volatile("wgmma.wait_group.sync 0;");'
    other = 'for(int row=8;row<0x40;++row){total+=b[row];}\n\nasm volatile("wgmma.wait_group.sync 0;");'
    assert tokens(one) == tokens(other)
    assert "wgmma.wait_group.sync" in tokens(one), "instructions do"
    assert tokens(one) != tokens(one.replace("wait_group", "commit_group"))
    assert tokens(one) != tokens(one.replace("+=", "-="))


def test_containment_is_the_share_of_the_kernel_s_own_runs() -> None:
    first = " ".join(f"__f{number}();" for number in range(40))
    second = " ".join(f"__g{number}();" for number in range(40))
    both = shingles(f"{first} {second}")
    half, own = shingles(first), shingles(second)
    assert containment(half, both) == 1.0 and containment(half, own) == 0.0
    # The whole's runs are those of its halves and the SHINGLE - 1 that straddle them.
    assert containment(both, half) == pytest.approx(len(half) / (len(half) + len(own) + SHINGLE - 1))
    assert containment(shingles(""), both) == 0.0


@given(st.text(max_size=300))
def test_any_text_contains_itself(text: str) -> None:
    own = shingles(text)
    assert containment(own, own) == (1.0 if own else 0.0)


@pytest.mark.parametrize("arch", ["h100", "b200"])
def test_a_renamed_oracle_is_flagged_and_a_naive_kernel_is_not(arch: str) -> None:
    task = load_task("gemm")
    text = task.source(oracle(task, arch))
    renamed = re.sub(r"\b(sums|slice|cursor|slot)\b", r"my_\1", text).replace("//", "// mine:").replace("\n", "\n  ")
    assert renamed.count("my_") >= 30
    found = likeness(renamed, "gemm", arch)
    assert found.oracle == 1.0 and found.flagged
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
