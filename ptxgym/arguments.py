"""Checks of what callers pass: each refusal names the argument, the value and what would be accepted."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, SupportsIndex

from ptxgym.content import unknown
from ptxgym.errors import UsageError


def whole_number(name: str, value: object, least: int, most: int | None = None) -> int:
    """Return `value`, which must be a whole number in a range; booleans, floats and texts are none.

    Raises:
        UsageError: if it is not.
    """
    number = as_whole(value)
    if type(number) is int and least <= number and (most is None or number <= most):
        return number
    span = f"of at least {least}" if most is None else f"from {least} to {most}"
    raise UsageError(f"{name} must be a whole number {span}, not {value!r}{hint(value)}")


def as_whole(value: object) -> object:
    """Return numpy's integers and their like as `int`, anything else, booleans too, as it is."""
    return value.__index__() if isinstance(value, SupportsIndex) and not isinstance(value, bool) else value


def hint(value: object) -> str:
    """Return what else to say about a value that looks right and has the wrong type."""
    if isinstance(value, str) and value.strip().lstrip("+-").isdigit():
        return " (a text: leave the quotes out)"
    return ""


def no_others(what: str, given: Mapping[str, Any], known: Iterable[str], elsewhere: Mapping[str, str]) -> None:
    """Accept that no argument was given that is not known.

    Args:
        what: Of which the argument is, such as `argument of PTX-Gemm-H100`.
        given: Arguments that were not expected, by name.
        known: Names that are accepted; the nearest is suggested.
        elsewhere: Where else to pass what is asked for often, by name.

    Raises:
        UsageError: if one was.
    """
    for name in given:
        if name in elsewhere:
            raise UsageError(f"{what}: {name} is not accepted here; {elsewhere[name]}")
        raise UsageError(unknown(what, name, known))
