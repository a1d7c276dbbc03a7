"""Rules for machines without Landlock and mount namespaces, where the compiler could read any file of its user.

There a text is refused if it names a file in any way that the rules below do not understand. They are stricter than
C++: they look at the raw text, comments and strings included, so that no trick of lexing hides a directive from them.

- Includes and `__has_include` must name a plain header: no absolute path, no `..`, no macro, no comment in between.
- No `#line`, and nothing that looks like a line marker, which a string of several lines could bring into the
  preprocessed text: so the origin of all its lines is known.
- Inline assembly only in `__device__` and `__global__` functions: the host's assembler has `.incbin` and `.include`. No
  attribute that hands the assembler a name of one's own, which may hold a line feed.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from ptxgym.build.entry import SUBMISSION_FILE

_SPACE = r"[ \t\f\v]*+"
_HASH = r"(?:\#|%:|\?\?=)"
# What follows is looked at, and not taken: it may hold the next one.
_DIRECTIVE = re.compile(rf"{_HASH}{_SPACE}(?P<name>include_next|include|import|embed|line|\d{{1,9}}|/\*)")
_HAS = re.compile(rf"__has_(?:include_next|include|embed)\b{_SPACE}\(?{_SPACE}")
_NAME_CHARS = 300
_PLAIN_HEADER = re.compile(r'[<"][\w.+-]+(?:/[\w.+-]+)*[>"]')
_MARKER = re.compile(r'^# \d+ "(?P<file>[^"]*)"')
# As C++ takes text apart: quotes stand in numbers, and an `R` behind a literal is its suffix and begins no raw string.
_TOKEN = re.compile(
    r"""
    (?:u8|[uUL])?R"(?P<mark>[^()\\\s]{0,16})\(.*?(?:\)(?P=mark)"|\Z)[\w$]*+
  | "(?:[^"\\\n]|\\.)*+(?:"[\w$]*+)?
  | [0-9](?:'?[\w.$]|(?<=[eEpP])[+-])*+
  | '(?:[^'\\\n]|\\.)*+(?:'[\w$]*+)?
  | (?:[^\W\d]|\$)[\w$]*+
  | [{}();]
    """,
    re.VERBOSE | re.DOTALL,
)
_ASM = frozenset({"asm", "__asm__", "__asm"})
_NAMES = frozenset({"section", "alias", "ifunc", "weakref", "symver"})
"""Attributes whose strings g++ writes into assembly as they are."""
_CONTAINERS = frozenset({"namespace", "struct", "class", "union", "extern"})
_QUALIFIERS = frozenset({"const", "noexcept", "override", "final"})


def foreign_file_in(text: str) -> str | None:
    """Return the first place of `text` that may open a file beside the system's headers, as it is written, or None."""
    spliced = text.replace("\r", "").replace("\\\n", "").replace("??/\n", "")
    for match in _DIRECTIVE.finditer(spliced):
        name, rest = match["name"], _rest(spliced, match.end())
        if name in ("line", "/*") or name.isdigit():
            return f"#{name}"
        if not _is_plain(rest):
            return rest or f"#{name}"
    for match in _HAS.finditer(spliced):
        rest = _rest(spliced, match.end())
        if not _is_plain(rest):
            return rest or "__has_include"
    return None


def has_host_assembly(preprocessed: str) -> bool:
    """Whether the submission's part of the host's preprocessed text holds `asm` outside device functions."""
    return _Scopes(_own_part(preprocessed)).host_assembly


def _rest(text: str, at: int) -> str:
    """Return what stands in the line of `at` from there on, as far as a header's name may go."""
    return text[at : at + _NAME_CHARS].split("\n", 1)[0].strip()


def _is_plain(rest: str) -> bool:
    match = _PLAIN_HEADER.match(rest)
    return match is not None and ".." not in match.group()


def _own_part(preprocessed: str) -> str:
    """Keep the lines that the line markers attribute to the submission."""
    kept: list[str] = []
    own = False
    for line in preprocessed.split("\n"):
        marker = _MARKER.match(line)
        if marker:
            own = marker["file"] == SUBMISSION_FILE
        elif own:
            kept.append(line)
    return "\n".join(kept)


@dataclass(frozen=True)
class _Brace:
    container: bool
    """A namespace, class or linkage block in nothing but such, where functions may be defined."""
    device: bool
    """The body of a function for the device only, or a block in it."""


class _Scopes:
    """Walks the tokens and knows, for each, whether it lies in a function for the device only."""

    def __init__(self, code: str) -> None:
        self.host_assembly = False
        self._open: list[_Brace] = []
        self._declaration: list[str] = []
        self._before = ("", "")
        for match in _TOKEN.finditer(code):
            self._take(match.group())
            self._before = self._before[1], match.group()

    def _take(self, token: str) -> None:
        if token == "{":
            self._open.append(self._brace())
            self._declaration = []
        elif token == "}":
            if self._open:
                self._open.pop()
            self._declaration = []
        elif token == ";":
            self._declaration = []
        elif token in _ASM:
            self.host_assembly = self.host_assembly or not (self._open and self._open[-1].device)
        else:
            if '"' in token and self._before[1] == "(" and self._before[0].strip("_") in _NAMES:
                self.host_assembly = True
            self._declaration.append(token)

    def _brace(self) -> _Brace:
        if self._open and not self._open[-1].container:
            return _Brace(False, self._open[-1].device)
        attributes = _execution_spaces(self._declaration)
        words = [word for word in self._declaration if word not in _QUALIFIERS]
        container = bool(_CONTAINERS.intersection(words)) and words[-1] != ")"
        device = not container and bool(attributes & {"device", "global"}) and "host" not in attributes
        return _Brace(container, device)


def _execution_spaces(declaration: list[str]) -> set[str]:
    """Names in `__attribute__((name))` outside parentheses, as `__device__` and its kin are after preprocessing."""
    found: set[str] = set()
    depth = 0
    for at, token in enumerate(declaration):
        if token == "__attribute__" and depth == 0:
            found.update(declaration[at + 3 : at + 4])
        depth += {"(": 1, ")": -1}.get(token, 0)
    return found
