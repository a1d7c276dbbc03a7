"""What a knowledge pack must keep so that an agent can trust it: names that exist, figures with sources.

`problems(pack)` is empty for a good pack. The rules stand in `knowledge/README.md`.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator
from pathlib import Path

from ptxgym.build import find_toolchain
from ptxgym.knowledge import PACK_TOKENS, Pack, estimate_tokens, render_part

_DEFINED = re.compile(r"^ {0,2}(?:__device__|__host__|inline|constexpr|static) [\w:<>&* ]*?\b(\w+)\(", re.MULTILINE)
_QUOTED = re.compile(r"`([^`\n]+)`")
_CALL = re.compile(r"\b(\w+)(?:<[^<>`]*>)?\(")
_EMPTY_CALL = re.compile(r"\b(\w+)(?:<[^<>`]*>)?\(\)")
_COMMENT = re.compile(r"//.*$", re.MULTILINE)
_CODE = re.compile(r"`([a-z][a-z0-9_]*\.[a-z][a-z0-9_]*)`")
_FILE = re.compile(r"`([\w./-]+\.(?:cuh|cu|md|toml))`")
_ITEM = re.compile(r"^(?:- |\d+\. )", re.MULTILINE)
_SOURCE = re.compile(r"\[[^\]]*[A-Za-z]{3}[^\]]*\]$")
_CPP = frozenset({"run", "sizeof", "alignas", "min", "max", "fmaf", "fmaxf", "fminf", "logf", "log2f", "exp", "exp2f"})
_INSTRUCTIONS = frozenset({"mma.sync", "cp.async", "bar.sync", "elect.sync", "st.async", "red.async"})


def problems(pack: Pack) -> tuple[str, ...]:
    """Return what is wrong with a pack: one line each, with the file it stands in; nothing for a good one.

    Raises:
        ContentError: if a file is missing.
        ToolchainError: if there is no CUDA toolkit, whose names the text may use.
    """
    found: list[str] = []
    texts = {file: pack.read(file) for part in pack.parts for file in part.files_for(None)}
    functions = function_names(pack)
    for file, text in texts.items():
        code = file.endswith(".cuh")
        said = "\n".join(_COMMENT.findall(text)) if code else text
        found += [f"{file}: {problem}" for problem in _of_names(said, functions, set(texts))]
        found += [f"{file}: {problem}" for problem in (_of_code(text) if code else _of_prose(text))]
    for part in pack.parts:
        if part.name == "parameters":
            found += [f"{file}: {problem}" for file in part.files for problem in _unsourced(texts[file])]
    tokens = sum(estimate_tokens(render_part(pack, part.name, None)) for part in pack.parts)
    if tokens >= PACK_TOKENS:
        found.append(f"the pack has about {tokens:,} tokens; it must stay under {PACK_TOKENS:,}")
    return tuple(found)


def function_names(pack: Pack) -> frozenset[str]:
    """Return the functions that a pack's templates define."""
    return frozenset(
        name
        for part in pack.parts
        for file in part.files_for(None)
        if file.endswith(".cuh")
        for name in _DEFINED.findall(pack.read(file))
    )


def _of_names(text: str, functions: frozenset[str], files: set[str]) -> Iterator[str]:
    """Names in prose or comments that stand for nothing."""
    called = {name for quoted in _QUOTED.findall(text) for name in _CALL.findall(quoted)}
    for name in sorted(called.union(_EMPTY_CALL.findall(text))):
        cuda = name.startswith(("__", "cu")) and name in _toolkit_words()
        if name not in functions and name not in _CPP and not cuda:
            yield f"{name}() is no function of the pack, of CUDA or of C++"
    names = {Path(file).name for file in files}
    for name in sorted(set(_FILE.findall(text))):
        if Path(name).name not in names:
            yield f"`{name}` is no file of the pack"
    for code in sorted(set(_CODE.findall(text)) - set(_FILE.findall(text)) - _INSTRUCTIONS):
        if code not in _codes():
            yield f"`{code}` is no code of a finding or verdict"


def _of_code(text: str) -> Iterator[str]:
    if "__global__" in text:
        yield "a template holds functions, never a kernel"
    lines = text.splitlines()
    for number, line in enumerate(lines):
        for name in _DEFINED.findall(line):
            above = number - 1
            while above >= 0 and lines[above].strip() and not lines[above].lstrip().startswith("//"):
                above -= 1
            if above < 0 or not lines[above].strip():
                yield f"{name}() has no comment above it that says what it does"


def _of_prose(text: str) -> Iterator[str]:
    for line in text.splitlines():
        if re.match(r"#{1,2} ", line):
            yield f"{line!r}: headings inside of a part begin with ###"


def _unsourced(text: str) -> Iterator[str]:
    """Rows of tables and items of lists that hold a figure and no source."""
    rows = [line for line in text.splitlines() if line.startswith("|")]
    for row in rows[2:] if len(rows) > 2 else ():
        cells = [cell.strip() for cell in row.strip("|").split("|")]
        if re.search(r"\d", " ".join(cells[:-1])) and not re.search(r"[A-Za-z]{3}", cells[-1]):
            yield f"the row {cells[0]!r} has a figure without a source in its last cell"
    for item in _ITEM.split("\n".join(line for line in text.splitlines() if not line.startswith("|")))[1:]:
        joined = " ".join(item.split("\n\n")[0].split())
        if re.search(r"\d", joined) and not _SOURCE.search(joined):
            yield f"the item {joined[:40]!r} has a figure and does not end in [source]"


@functools.cache
def _toolkit_words() -> frozenset[str]:
    """Words of CUDA's own headers."""
    include = find_toolchain().include
    headers = [include / name for name in ("cuda.h", "cuda_runtime_api.h", "cuda_bf16.h", "cuda_bf16.hpp")]
    headers += [*sorted((include / "crt").glob("*.h*")), *sorted(include.glob("sm_*.hpp"))]
    return frozenset(word for header in headers for word in re.findall(r"\w+", header.read_text(encoding="latin-1")))


@functools.cache
def _codes() -> frozenset[str]:
    """Dotted codes that ptxgym's own sources hold as texts."""
    sources = (path for path in Path(__file__).parent.rglob("*") if path.suffix in (".py", ".cpp", ".hpp"))
    texts = (path.read_text(encoding="utf-8") for path in sources)
    return frozenset(code for text in texts for code in re.findall(r'"([a-z][a-z0-9_]*\.[a-z][a-z0-9_]*)"', text))
