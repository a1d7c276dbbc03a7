from __future__ import annotations

import gc
import time
from concurrent.futures import ThreadPoolExecutor

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


class _Garbage:
    """Lets another thread run when it is collected, which the next allocation may do."""

    def __init__(self) -> None:
        self.cycle = self

    def __del__(self) -> None:
        time.sleep(0)


def test_threads_that_parse_at_once_do_not_disturb_each_other() -> None:
    def parse(_: int) -> set[str]:
        names = set[str]()
        for _ in range(1500):
            _Garbage()
            names |= names_in("2 * M * K + 2 * N * K + 2 * N + 2 * M * N")
        return names

    thresholds = gc.get_threshold()
    gc.set_threshold(5)
    try:
        with ThreadPoolExecutor(6) as pool:
            assert list(pool.map(parse, range(6))) == [{"M", "N", "K"}] * 6
    finally:
        gc.set_threshold(*thresholds)
