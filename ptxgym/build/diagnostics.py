"""Turns what nvcc's tools print into `Diagnostic`s about the submission's own lines.

Five tools speak, in four ways:

- the preprocessor and the host compiler (g++): `/kernel.cu:3:1: error: unterminated comment`
- the CUDA front ends (cudafe++, cicc): `/kernel.cu(3): error: …`, then the preprocessed line, a caret and context
- the assembler: `/kernel.cu:2: Error: …`
- ptxas: `ptxas kernel.ptx, line 26; error : …`, whose line leads to the submission's by the `.loc` before it

Only lines of the submission are quoted. Paths, temporary names and mangled names do not come through, so that equal
texts get equal diagnostics everywhere.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field

from ptxgym.build.demangle import demangle_all
from ptxgym.build.entry import ENTRY_FILE, SUBMISSION_FILE
from ptxgym.build.hints import INVISIBLE_BREAK
from ptxgym.build.ptx_lines import PtxLines
from ptxgym.verdict import Diagnostic, Severity

MAX_DIAGNOSTICS = 40
MAX_LOCATED = 300
"""Messages of ptxas whose lines are looked for: each costs a walk through a piece of PTX."""
MAX_MESSAGE_CHARS = 1200
MAX_SOURCE_LINE_CHARS = 240
_MAX_RAW_CHARS = 16 << 10
"""Of a message before it is made readable."""

_SEVERITIES = {"warning": Severity.WARNING, "note": Severity.NOTE, "info": Severity.NOTE, "remark": Severity.NOTE}
_KIND = r"(?P<kind>catastrophic error|fatal error|internal error|error|warning|note|remark|Error|Warning|Fatal error)"
_FRONT_END = re.compile(
    rf"(?P<file>[^\s(][^(\n]*)\((?P<line>\d{{1,9}})\): {_KIND}(?P<number> #\d+(?:-D)?)?: (?P<message>.*)"
)
_END_OF_SOURCE = re.compile(rf"At end of source: {_KIND}(?P<number> #\d+(?:-D)?)?: (?P<message>.*)")
_HOST = re.compile(rf"(?P<file>[^\s:][^:\n]*):(?P<line>\d{{1,9}}):(?:(?P<column>\d{{1,9}}):)? {_KIND}: (?P<message>.*)")
_INCLUDED_FROM = re.compile(rf"(?:In file included| +) from {re.escape(SUBMISSION_FILE)}:(\d{{1,9}})[,:]")
_HOST_NO_LINE = re.compile(rf"(?:cc1plus|cc1|ld|as|collect2|nvcc)\s*:? *{_KIND}\s*: (?P<message>.*)")
_PTXAS = re.compile(r"ptxas (?:\S+, line (?P<line>\d{1,9}); )?(?P<kind>error|fatal|warning|info)\s*: (?P<message>.*)")
_PTXAS_CODE = re.compile(r"\(C\d+\)")
_AROUND_LINE = re.compile(r" (?:in around|encountered on) line (\d{1,9})")
_CONTEXT_LINE = re.compile(r'at line (\d{1,9})(?: of "?([^"\n]{1,255}?)"?)?$')
_WARNING_FLAG = re.compile(r" \[-W[\w=+-]+\]$")
_PTXAS_SUMMARY = ("Ptx assembly aborted due to errors",)
_ABSOLUTE_PATH = re.compile(r"(?<![\w/.])(?:/[\w.+@~-]+)+/([\w.+@~-]+)")
_SUBMISSION_PATH = re.compile(rf"(?<![\w/.]){re.escape(SUBMISSION_FILE)}\b")
_TEMPORARY = re.compile(r"\b(?:cc[A-Za-z0-9]{6}|tmpxft_\w+)(\.[a-z]+)?\b")


@dataclass
class _Raw:
    """A message as a tool printed it, with the lines that belong to it."""

    file: str | None
    line: int | None
    column: int | None
    severity: Severity
    message: str
    echo: str | None = None
    context: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Report:
    """Everything the tools said, sorted by where it belongs."""

    diagnostics: tuple[Diagnostic, ...]
    """About the submission: errors with their notes first, then warnings."""
    entry_errors: tuple[str, ...]
    """Messages of errors at the repeated declaration of the entry point."""

    @property
    def errors(self) -> tuple[Diagnostic, ...]:
        """The diagnostics that are errors."""
        return tuple(d for d in self.diagnostics if d.severity is Severity.ERROR)


def read_messages(said: str, source: str, ptx: str | None = None) -> Report:
    """Parse the output of one nvcc run.

    Args:
        said: Standard error and output of nvcc.
        source: The submission's text.
        ptx: The PTX that ptxas read, if compilation came that far.
    """
    lines = source.split("\n")
    entry_errors: list[str] = []
    groups: list[list[Diagnostic]] = []
    for raw in _parse(output_lines(said), PtxLines(ptx, lines) if ptx else None):
        if raw.file == ENTRY_FILE:
            if raw.severity is Severity.ERROR:
                entry_errors.append(raw.message)
            continue
        diagnostic = _diagnostic(raw, lines)
        if diagnostic.severity is Severity.NOTE:
            if groups and diagnostic.line is not None and len(groups[-1]) < 4:
                groups[-1].append(diagnostic)
            continue
        groups.append([diagnostic])
    return Report(_ordered(groups), tuple(dict.fromkeys(entry_errors)))


def output_lines(said: str) -> list[str]:
    """Return the lines of what tools printed; what they quote of the submission may hold U+2028, which ends none."""
    return [line.removesuffix("\r") for line in said.split("\n")]


def scrub(message: str) -> str:
    """Return `message` without folders, temporary names and mangled names."""
    if len(message) > _MAX_RAW_CHARS:
        message = message[:_MAX_RAW_CHARS] + " …"
    message = _ABSOLUTE_PATH.sub(r"\1", message)
    message = _SUBMISSION_PATH.sub(SUBMISSION_FILE.lstrip("/"), message)
    message = _TEMPORARY.sub(lambda m: f"temporary{m.group(1) or ''}", message)
    message = demangle_all(message)
    message = INVISIBLE_BREAK.sub(lambda m: f"U+{ord(m.group()):04X}", message)
    return message if len(message) <= MAX_MESSAGE_CHARS else message[:MAX_MESSAGE_CHARS] + " …"


def _ordered(groups: list[list[Diagnostic]]) -> tuple[Diagnostic, ...]:
    """Drop repetitions (two front ends read the same file); put errors before warnings."""
    seen: set[tuple[Severity, str, int | None]] = set()
    kept: list[list[Diagnostic]] = []
    for group in groups:
        identity = (group[0].severity, group[0].message, group[0].line)
        if identity not in seen:
            seen.add(identity)
            kept.append(group)
    kept.sort(key=lambda group: group[0].severity is not Severity.ERROR)
    return tuple(diagnostic for group in kept for diagnostic in group)[:MAX_DIAGNOSTICS]


def _diagnostic(raw: _Raw, lines: list[str]) -> Diagnostic:
    line, column, where = raw.line, raw.column, ""
    if raw.file != SUBMISSION_FILE:
        line, column = _line_from_context(raw.context), None
        if raw.file is not None and raw.file not in ("", "ptx"):
            where = f" (in {raw.file.rsplit('/', 1)[-1]})"
    if line is not None and not 1 <= line <= len(lines):
        line = None
    source_line = lines[line - 1].rstrip() if line is not None else None
    if column is not None and (source_line is None or (raw.echo is not None and raw.echo.rstrip() != source_line)):
        column = None  # counted in the preprocessed line, where macros are expanded
    if source_line is not None and len(source_line) > MAX_SOURCE_LINE_CHARS:
        source_line = source_line[:MAX_SOURCE_LINE_CHARS] + " …"
    message = "\n".join([raw.message + where, *_useful_context(raw.context)])
    return Diagnostic(severity=raw.severity, message=scrub(message), line=line, column=column, source_line=source_line)


def _useful_context(context: list[str]) -> list[str]:
    """Keep instantiation chains short: the first four lines of context say what the rest repeats."""
    return [line.strip() for line in context[:4] if line.strip() != "detected during:"]


def _line_from_context(context: list[str]) -> int | None:
    """Find the submission's line from which a template of a header was instantiated."""
    for text in context:
        match = _CONTEXT_LINE.search(text)
        if match and match.group(2) == SUBMISSION_FILE:
            return int(match.group(1))
    return None


def _parse(said: list[str], ptx: PtxLines | None) -> Iterator[_Raw]:
    at = 0
    included_at = None
    of_ptxas = 0
    while at < len(said):
        text = said[at]
        at += 1
        if match := _INCLUDED_FROM.match(text):
            included_at = match.group(1)
        elif match := _PTXAS.match(text):
            raw = _from_ptxas(match, ptx if of_ptxas < MAX_LOCATED else None)
            of_ptxas += match["line"] is not None
            if raw is not None:
                yield raw
        elif match := _END_OF_SOURCE.match(text):
            raw, at = _with_following(said, at, _Raw(None, None, None, Severity.ERROR, match["message"]))
            raw.message += " at the end of the file"
            yield _located_by_note(raw, said[at : at + 1])
        elif match := _FRONT_END.match(text):
            severity = _SEVERITIES.get(match["kind"].lower(), Severity.ERROR)
            raw = _Raw(match["file"], int(match["line"]), None, severity, match["message"])
            raw, at = _with_following(said, at, raw)
            yield raw
        elif match := _HOST.match(text):
            severity = _SEVERITIES.get(match["kind"].lower(), Severity.ERROR)
            column = int(match["column"]) if match["column"] else None
            raw = _Raw(match["file"], int(match["line"]), column, severity, _WARNING_FLAG.sub("", match["message"]))
            if raw.file != SUBMISSION_FILE and included_at is not None:
                raw.context.append(f"included at line {included_at} of {SUBMISSION_FILE}")
            yield raw
        elif match := _HOST_NO_LINE.match(text):
            severity = _SEVERITIES.get(match["kind"].lower(), Severity.ERROR)
            yield _Raw(None, None, None, severity, match["message"])


def _with_following(said: list[str], at: int, raw: _Raw) -> tuple[_Raw, int]:
    """Take in the echoed line with its caret, and the indented context, of a front end's message."""
    while at < len(said) and said[at].strip():
        text = said[at]
        caret = said[at + 1] if at + 1 < len(said) else ""
        if raw.echo is None and caret.strip() == "^" and text.startswith("  "):
            raw.echo = text[2:]
            raw.column = caret.index("^") - 1
            at += 2
        elif text.startswith(" " * 10):
            raw.context.append(text)
            at += 1
        else:
            break
    return raw, at


def _located_by_note(raw: _Raw, following: list[str]) -> _Raw:
    """An unclosed brace is reported at the end of the file; the note that follows says where it was opened."""
    match = _FRONT_END.match(following[0]) if following else None
    if match and match["kind"] == "note":
        raw.file, raw.line = match["file"], int(match["line"])
        raw.message += f", {match['message']}"
    return raw


def _from_ptxas(match: re.Match[str], ptx: PtxLines | None) -> _Raw | None:
    message = match["message"]
    if message in _PTXAS_SUMMARY:
        return None
    if match["kind"] == "info" and not _PTXAS_CODE.search(message):
        return None  # resource usage; what carries a code is advice
    severity = Severity.ERROR if match["kind"] in ("error", "fatal") else Severity.WARNING
    around = _AROUND_LINE.search(message)
    ptx_line = match["line"] or (around.group(1) if around else None)
    line = ptx.submission_line(int(ptx_line)) if ptx and ptx_line else None
    message = _AROUND_LINE.sub("", message)  # a line of the PTX
    unfinished = ptx.unfinished(int(ptx_line)) if ptx and ptx_line and message.startswith("Parsing error") else None
    if unfinished is not None:
        message += f"; a `;` is missing after `{unfinished.text}`"
        line = unfinished.line or line
    return _Raw(SUBMISSION_FILE if line else "ptx", line, None, severity, f"ptxas: {message}")
