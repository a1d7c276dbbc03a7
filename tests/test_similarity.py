"""How alike kernels are: what counts, what does not, and what a share is a share of."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ptxgym.similarity import LENGTH, alike, contained, edit, shingles, tokens
from ptxgym.task import load_task, oracle
from tests.fixit.scripted import kernel, naive
from tests.fixit.test_solutions import renamed


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


def test_a_part_s_own_runs_and_those_that_straddle_it() -> None:
    first = " ".join(f"{number}.f()" for number in range(40))
    second = " ".join(f"{number}.g[]" for number in range(40))
    both = shingles(f"{first} {second}")
    half, own = shingles(first), shingles(second)
    assert contained(half, both) == 1.0 and contained(half, own) == 0.0
    assert contained(both, half) == pytest.approx(len(half) / (len(half) + len(own) + LENGTH - 1))


@given(st.text(max_size=300))
def test_any_text_contains_itself(text: str) -> None:
    own = shingles(text)
    assert contained(own, own) == (1.0 if own else 0.0)


@pytest.mark.parametrize("unit", ['\\"', "/*", '"\\\n'])
def test_what_is_left_open_takes_linear_time(unit: str) -> None:
    assert tokens(f"a {unit * 99_999}")[0] == "a"


def test_an_open_string_is_read_as_code() -> None:
    assert tokens('a "b c\\"d // e\n"f.g" h') == ("a", "b", "c", "\\", "d", "f.g", "h")
