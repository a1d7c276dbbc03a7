"""No file is read or written in the encoding of the user's locale."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import ptxgym

PACKAGE = Path(ptxgym.__file__).parent
FILES = sorted(PACKAGE.rglob("*.py"))


def locale_dependent(source: str) -> Iterator[int]:
    """Lines of calls that read or write text without naming its encoding."""
    for call in ast.walk(ast.parse(source)):
        if not isinstance(call, ast.Call):
            continue
        name = call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")
        owner = getattr(getattr(call.func, "value", None), "id", "")
        keywords = {keyword.arg for keyword in call.keywords}
        piped = any(
            k.arg in ("text", "universal_newlines") and getattr(k.value, "value", 0) is True for k in call.keywords
        )
        binary = any(isinstance(a, ast.Constant) and isinstance(a.value, str) and "b" in a.value for a in call.args)
        text = name in ("read_text", "write_text") or (name == "open" and owner != "os" and not binary)
        if (text or piped) and "encoding" not in keywords:
            yield call.lineno


@pytest.mark.parametrize(
    ("source", "lines"),
    [
        ("path.read_text()", [1]),
        ("path.read_text(errors='replace')", [1]),
        ("path.write_text(x)", [1]),
        ("open(path)", [1]),
        ("path.open('w')", [1]),
        ("run(command, text=True)", [1]),
        ("path.read_text(encoding='utf-8')", []),
        ("path.open('rb')", []),
        ("Rule(text=text)", []),
        ("os.open(path, flags)", []),
        ("run(command, text=True, encoding='utf-8')", []),
    ],
)
def test_what_the_search_finds(source: str, lines: list[int]) -> None:
    assert list(locale_dependent(source)) == lines


@pytest.mark.parametrize("file", FILES, ids=lambda file: str(file.relative_to(PACKAGE)))
def test_every_text_file_has_its_encoding_named(file: Path) -> None:
    assert list(locale_dependent(file.read_text(encoding="utf-8"))) == []
