"""How alike kernels are, whatever their comments, layout and names.

A text becomes tokens without comments; a shingle is some tokens in a row, in which names count by the order in which
they first occur. So a renamed or reformatted copy has the same shingles. What a share of them says: A. Broder, "On the
resemblance and containment of documents", 1997.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator

LENGTH = 12
"""Tokens of a shingle. Shorter runs are shared by all CUDA code, longer ones are broken by any edit."""
_COMMENT = r"//[^\n]*|/\*.*?(?:\*/|\Z)"
_WORD = r"[A-Za-z_]\w*|\d[\w.']*|::|<<|>>|->|[-+*/%&|^=<>!]=?|[^\s\"]"
_TOKEN = re.compile(rf"{_COMMENT}|(?P<open>\"(?:\\.|[^\"\\\n])*+)(?P<close>\")?|(?P<token>{_WORD})", re.DOTALL)
_NO_STRING = re.compile(rf"{_COMMENT}|(?P<token>{_WORD})", re.DOTALL)
_IN_STRING = re.compile(r"[A-Za-z_.][\w.:]*|%\d+|\S")
_KEPT = re.compile(
    r"__(?:device|global|shared|forceinline|grid_constant|launch_bounds)__|__sync\w+|asm|auto|blockIdx|bool|break|case|char"
    r"|const|constexpr|continue|do|double|else|enum|extern|float|for|gridDim|if|int|long|namespace|return|short|sizeof|static"
    r"|struct|switch|template|threadIdx|typename|unsigned|using|void|volatile|while|u?int\d+_t|__nv_bfloat162?|CUtensorMap"
)
"""Words that are no names of the author's."""

Shingles = frozenset[tuple[str, ...]]


def tokens(text: str) -> tuple[str, ...]:
    """Return the tokens of a kernel, without comments; inline PTX word by word."""
    return tuple(_tokens(text))


def _tokens(text: str) -> Iterator[str]:
    at = no_string_before = 0  # where a quote is not closed in its line, none after it is: each is looked at once
    while match := (_NO_STRING if at < no_string_before else _TOKEN).search(text, at):
        if at < no_string_before <= match.start():
            at = no_string_before
            continue
        at = match.end()
        if token := match["token"]:
            yield token
        elif match.re is _TOKEN and match["close"]:
            yield from _IN_STRING.findall(match["open"][1:])
        elif match.re is _TOKEN and match["open"]:
            no_string_before, at = at, match.start() + 1


@functools.lru_cache(maxsize=4096)
def shingles(text: str) -> Shingles:
    """Return the shingles of a text; one of all its tokens where it has fewer than a shingle's."""
    found = tokens(text)
    if not found:
        return frozenset()
    starts = range(max(1, len(found) - LENGTH + 1))
    return frozenset(_renamed(found[start : start + LENGTH]) for start in starts)


def _renamed(window: tuple[str, ...]) -> tuple[str, ...]:
    names: dict[str, str] = {}
    return tuple(names.setdefault(token, f"${len(names)}") if _is_name(token) else token for token in window)


def _is_name(token: str) -> bool:
    """Whether the author chose the word; opcodes of PTX have dots."""
    return (token[0].isalpha() or token[0] == "_") and "." not in token and not _KEPT.fullmatch(token)


def alike(one: Shingles, other: Shingles) -> float:
    """Return the Jaccard similarity of two sets of shingles; 1 for two empty ones."""
    union = len(one | other)
    return len(one & other) / union if union else 1.0


def contained(part: Shingles, whole: Shingles) -> float:
    """Return the share of `part` that `whole` has; 0 for an empty part."""
    return len(part & whole) / len(part) if part else 0.0


def edit(before: str, after: str) -> Shingles:
    """Return the shingles that only one of two texts has: what was changed, with what stands around it."""
    return shingles(before) ^ shingles(after)
