"""The entry point: which text is compiled around a submission so that a wrong `run` is found by the one compilation.

`extern "C"` symbols carry no types. The expected declaration is therefore repeated after the submission, under another
file name: a definition with other types, or without C linkage, conflicts with it, and the compiler says so there.
Identifiers of the declaration are undefined as macros first. A comment, `#if` or brace that the submission leaves open
is an error of its own.
"""

from __future__ import annotations

import re

from ptxgym.build.text import blank_comments, blank_directives, line_of

SUBMISSION_FILE = "/kernel.cu"
"""The name under which messages and line tables know the submission."""
ENTRY_FILE = "/entry.cu"

_IDENTIFIER = re.compile(r"[A-Za-z_]\w*")
_DEVICE_STRUCT = re.compile(r"\b(?:__nv_\w+|__half2?)\b")
_CONFLICT = re.compile(
    r'more than one instance of overloaded function "\w+" has "C" linkage'
    r"|cannot overload functions distinguished by return type alone"
    r"|declaration is incompatible with"
    r"|has already been declared in the current scope"
    r"|follows declaration as type"
)
_STATEMENT_END = re.compile(r"([;{}])")
_LINKAGE = re.compile(r"linkage specification is incompatible with previous")


def translation_unit(text: str, declaration: str) -> str:
    """Return what nvcc compiles for the submission `text`, which must export `declaration` (without semicolon)."""
    names = dict.fromkeys(_IDENTIFIER.findall(re.sub(r'"[^"]*"', "", declaration)))
    structs = dict.fromkeys(_DEVICE_STRUCT.findall(declaration))
    return "\n".join(
        [
            f'#line 1 "{SUBMISSION_FILE}"',
            text.removeprefix("\ufeff"),  # a byte order mark, which compilers accept at the start of a file only
            "",  # a backslash at the end of the text swallows one newline
            f'#line 1 "{ENTRY_FILE}"',
            *(f"#undef {name}" for name in names),
            *(f"struct {name};" for name in structs),
            f"{declaration};",
            "",
        ]
    )


def entry_name(declaration: str) -> str:
    """Return the name of the function that `declaration` declares."""
    match = re.search(r"([A-Za-z_]\w*)\s*\(", declaration)
    if match is None:
        raise ValueError(f"not a function declaration: {declaration!r}")
    return match.group(1)


def is_conflict(message: str) -> bool:
    """Whether an error at the repeated declaration says that the submission's `run` has other types."""
    return _CONFLICT.search(message) is not None


def is_linkage_conflict(message: str) -> bool:
    """Whether an error at the repeated declaration says that the submission's `run` lacks `extern "C"`."""
    return _LINKAGE.search(message) is not None


def written_signature(text: str, name: str) -> tuple[str, int] | None:
    """Return how the submission declares the function `name`, on one line, and at which line; None if it does not."""
    code = blank_directives(blank_comments(text))
    called = re.compile(rf"\b{re.escape(name)}\s*\(")
    parts = _STATEMENT_END.split(code)  # statement, what ends it, statement, … (one pass, whatever the text)
    declared: int | None = None
    start = 0
    for statement, end in zip(parts[::2], parts[1::2], strict=False):
        head = statement.rstrip().removesuffix("noexcept").rstrip()
        if end != "}" and head.endswith(")") and called.search(head):
            if end == "{":
                return _written(code, start, statement)
            declared = start if declared is None else declared
        start += len(statement) + 1
    return None if declared is None else _written(code, declared, code[declared : code.index(";", declared)])


def _written(code: str, start: int, statement: str) -> tuple[str, int]:
    """Return `statement`, which stands at `start` of `code`, as `written_signature` does."""
    before = code[:start].rstrip()
    in_block = before.endswith("{") and re.search(r'extern\s*"C"\s*\Z', before[-40:-1])
    prefix = 'extern "C" ' if in_block else ""
    return prefix + " ".join(statement.split()), line_of(code, start + len(statement) - len(statement.lstrip()))
