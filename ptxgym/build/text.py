"""Small readings of C++ text that need no compiler."""

from __future__ import annotations

import re

# Each alternative keeps what it began, to the end of the line or of the text where nothing closes it, and never goes
# back: time is linear, whatever the text. Compilers take an open quote to the end of its line too.
_COMMENT_OR_LITERAL = re.compile(
    r"""
    //(?:[^\n\\]|\\.)*+                  # line comment, which a backslash continues
  | /\*.*?(?:(?P<close>\*/)|\Z)          # block comment
  | (?<![\w$])(?:u8|[uUL])?R"(?P<mark>[^()\\\s]{0,16})\(.*?(?:(?P<end>\)(?P=mark)")|\Z)   # raw string
  | "(?:[^"\\\n]|\\.)*+(?:"[\w$]*+)?     # string, with its suffix
  | (?P<number>(?<![\w$])[0-9](?:'?[\w.$]|(?<=[eEpP])[+-])*+)   # number, in which quotes may stand
  | '(?:[^'\\\n]|\\.)*+(?:'[\w$]*+)?     # character
    """,
    re.VERBOSE | re.DOTALL,
)
_MAX_PATH = 4096
"""PATH_MAX of Linux: what is longer opens no file."""
_LITERAL_PATH = re.compile(
    rf'^[ \t]*#[ \t]*(?:include|include_next|import|embed)[ \t]*["<](?P<included>[^">\n]{{1,{_MAX_PATH}}}+)[">]'
    rf'|__has_(?:include|include_next|embed)[ \t]*\([ \t]*["<](?P<asked>[^">\n]{{1,{_MAX_PATH}}}+)[">]',
    re.MULTILINE,
)
_DIRECTIVE = re.compile(r"^[ \t]*#(?:[^\n\\]|\\.|\\\n)*", re.MULTILINE)
_SPLICE = re.compile(r"\\[ \t]*\r?\n")
_CONDITIONAL = re.compile(r"^[ \t\f\v]*+(?:#|%:)[ \t\f\v]*+(if|else|elif|endif)(?:n?def)?\b", re.MULTILINE)
_PTX_COMMENT_OR_STRING = re.compile(r"//[^\n]*+|/\*.*?(?:\*/|\Z)|\"[^\"\n]*+\"", re.DOTALL)


def ptx_code(ptx: str) -> str:
    """Return PTX without comments and strings: inline assembly puts text of the submission's choice into both."""
    return _PTX_COMMENT_OR_STRING.sub(" ", ptx)


def ptx_statements(ptx: str) -> str:
    """Return PTX without comments; strings are kept."""
    return _PTX_COMMENT_OR_STRING.sub(lambda match: match.group() if match.group()[0] == '"' else " ", ptx)


def blank_comments(text: str) -> str:
    """Return `text` with every comment replaced by spaces, so that offsets and lines stay; literals are kept."""

    def blank(match: re.Match[str]) -> str:
        token = match.group()
        return re.sub(r"[^\n]", " ", token) if token.startswith(("//", "/*")) else token

    return _COMMENT_OR_LITERAL.sub(blank, text)


def code_only(text: str) -> str:
    """Return `text` with every comment and literal replaced by spaces, so that offsets and lines stay."""

    def blank(match: re.Match[str]) -> str:
        return match.group() if match["number"] else re.sub(r"[^\n]", " ", match.group())

    return _COMMENT_OR_LITERAL.sub(blank, text)


def blank_directives(text: str) -> str:
    """Return `text` with every preprocessor line replaced by spaces, so that offsets and lines stay."""
    return _DIRECTIVE.sub(lambda match: re.sub(r"[^\n]", " ", match.group()), text)


def left_open(text: str) -> str | None:
    """Return what `text` leaves open, or closes of what stands around it: a comment, a raw string, an `#if`, a line.

    So nothing around it is skipped, or read as another thing, whatever the text is put into.
    """
    if re.search(r"\\\s*\Z", text):
        return "a line that goes on"
    spliced = _SPLICE.sub("", text)
    for read in (text, spliced):  # raw strings are no lines that go on
        for match in _COMMENT_OR_LITERAL.finditer(read):
            if match.group().startswith("/*") and not match["close"]:
                return "a comment"
            if match["mark"] is not None and match["end"] is None:
                return "a raw string"
    depth = 0
    code = _COMMENT_OR_LITERAL.sub(lambda match: match["number"] or " ", spliced)
    for match in _CONDITIONAL.finditer(code):
        depth += {"if": 1, "endif": -1}.get(match[1], 0)
        if depth < (match[1] != "endif"):
            return f"an #if that it does not begin (#{match[1]})"
    return "an #if" if depth else None


def line_of(text: str, offset: int) -> int:
    """Return the 1-based line that holds `offset`."""
    return text.count("\n", 0, offset) + 1


def literal_foreign_path(text: str) -> str | None:
    """Return the first included path of `text` that is absolute or leads upwards, or None.

    Such paths are refused before anything is opened, so that the answer does not tell what exists.
    """
    for match in _LITERAL_PATH.finditer(blank_comments(text)):
        path = str(match["included"] or match["asked"])
        if path.startswith(("/", "~")) or ".." in path.split("/"):
            return path
    return None
