"""Small readings of C++ text that need no compiler."""

from __future__ import annotations

import re

_COMMENT_OR_LITERAL = re.compile(
    r"""
    //(?:[^\n\\]|\\.|\\\n)*              # line comment, which a backslash continues
  | /\*.*?(?:\*/|\Z)                     # block comment
  | R"(?P<mark>[^()\\\s]{0,16})\(.*?\)(?P=mark)"   # raw string
  | "(?:[^"\\\n]|\\.|\\\n)*"             # string
  | '(?:[^'\\\n]|\\.)*'                  # character
    """,
    re.VERBOSE | re.DOTALL,
)
_DIRECTIVE = re.compile(r"^[ \t]*#(?:[^\n\\]|\\.|\\\n)*", re.MULTILINE)


def blank_comments(text: str) -> str:
    """Return `text` with every comment replaced by spaces, so that offsets and lines stay; literals are kept."""

    def blank(match: re.Match[str]) -> str:
        token = match.group()
        return re.sub(r"[^\n]", " ", token) if token.startswith(("//", "/*")) else token

    return _COMMENT_OR_LITERAL.sub(blank, text)


def blank_directives(text: str) -> str:
    """Return `text` with every preprocessor line replaced by spaces, so that offsets and lines stay."""
    return _DIRECTIVE.sub(lambda match: re.sub(r"[^\n]", " ", match.group()), text)


def line_of(text: str, offset: int) -> int:
    """Return the 1-based line that holds `offset`."""
    return text.count("\n", 0, offset) + 1
