"""Integer arithmetic over named axes, as content files use it for counts and budgets; nothing else is evaluated."""

from __future__ import annotations

import ast
import operator
import threading
from collections.abc import Callable, Mapping

_OPERATIONS: dict[type[ast.operator], Callable[[int, int], int]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.FloorDiv: operator.floordiv,
}
_MAX_LENGTH = 500
# CPython counts the depth of a tree that it builds once for all threads, and raises SystemError where a collection of
# garbage lets another thread build one in between (github.com/python/cpython/issues/106905, seen on 3.11.7).
_PARSING = threading.RLock()


def evaluate(text: str, axes: Mapping[str, int]) -> int:
    """Evaluate `text` (integers, names of axes, `+ - * //` and parentheses).

    Raises:
        ValueError: if the text holds anything else, names an unknown axis, or divides by zero.
    """
    return _value(_parse(text), axes, text)


def names_in(text: str) -> set[str]:
    """Return the names that `text` uses.

    Raises:
        ValueError: if the text is not an expression of this kind.
    """
    tree = _parse(text)
    names = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
    _value(tree, dict.fromkeys(names, 1), text)
    return names


def _parse(text: str) -> ast.expr:
    if len(text) > _MAX_LENGTH:
        raise ValueError(f"expression of {len(text)} characters; the limit is {_MAX_LENGTH}")
    try:
        with _PARSING:
            return ast.parse(text.strip(), mode="eval").body
    except (SyntaxError, RecursionError, MemoryError) as error:
        raise ValueError(f"{text!r} is not an arithmetic expression") from error


def _value(node: ast.expr, axes: Mapping[str, int], text: str) -> int:
    if isinstance(node, ast.Constant) and type(node.value) is int:
        return node.value
    if isinstance(node, ast.Name):
        if node.id not in axes:
            raise ValueError(f"{text!r} uses {node.id!r}, which is no axis; known: {', '.join(axes)}")
        return axes[node.id]
    if isinstance(node, ast.BinOp) and type(node.op) in _OPERATIONS:
        left, right = _value(node.left, axes, text), _value(node.right, axes, text)
        if isinstance(node.op, ast.FloorDiv) and right == 0:
            raise ValueError(f"{text!r} divides by zero")
        return _OPERATIONS[type(node.op)](left, right)
    raise ValueError(f"{text!r}: only integers, axes, + - * // and parentheses are allowed")
