"""`--set key=value`: settings from the command line, in TOML's words."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Iterable

from pydantic import JsonValue

from ptxgym.errors import UsageError


def parse_settings(texts: Iterable[str]) -> dict[str, JsonValue]:
    """Parse `key=value` texts; a value that is no TOML (number, boolean, quoted string, array, table) is a string.

    Raises:
        UsageError: if one has no key, or two have the same.
    """
    found: dict[str, JsonValue] = {}
    for text in texts:
        key, equals, value = text.partition("=")
        if not equals or not key.strip():
            raise UsageError(f"--set {text}: must be key=value, such as --set sampling.temperature=0.6")
        if key.strip() in found:
            raise UsageError(f"--set {text}: {key.strip()} is set twice")
        found[key.strip()] = _value(value.strip())
    return found


def _value(text: str) -> JsonValue:
    try:
        parsed: dict[str, JsonValue] = tomllib.loads(f"value = {text}")
        json.dumps(parsed, allow_nan=False)
    except (tomllib.TOMLDecodeError, TypeError, ValueError):  # dates and infinities are no JSON
        return text
    return parsed["value"] if len(parsed) == 1 else text  # a text of several lines may set more
