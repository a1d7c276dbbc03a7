from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ptxgym.expression import evaluate, names_in

AXES = {"M": 7, "N": 3, "K": 2}
leaves = st.one_of(st.integers(0, 99).map(str), st.sampled_from(sorted(AXES)))
texts = st.recursive(
    leaves,
    lambda inner: st.builds(lambda a, op, b: f"({a} {op} {b})", inner, st.sampled_from(["+", "-", "*", "//"]), inner),
    max_leaves=8,
)


@given(texts)
def test_agrees_with_python(text: str) -> None:
    try:
        expected = eval(text, {"__builtins__": {}}, dict(AXES))
    except ZeroDivisionError:
        with pytest.raises(ValueError, match="divides by zero"):
            evaluate(text, AXES)
    else:
        assert evaluate(text, AXES) == expected


@pytest.mark.parametrize(
    "text",
    [
        "__import__('os').system('true')",
        "M.bit_length()",
        "M ** K",
        "M << 99",
        "[M]",
        "lambda: 1",
        "M if N else K",
        "True",
        "1.5 * M",
        "'a' * M",
        "M,",
        "",
        "M +",
        "(" * 400 + "M" + ")" * 400,
    ],
)
def test_everything_else_is_refused(text: str) -> None:
    with pytest.raises(ValueError):
        evaluate(text, AXES)


def test_unknown_axis_is_named() -> None:
    with pytest.raises(ValueError, match="uses 'S', which is no axis; known: M, N, K"):
        evaluate("M * S", AXES)


def test_names() -> None:
    assert names_in("2 * (M + 4) // K") == {"M", "K"}
