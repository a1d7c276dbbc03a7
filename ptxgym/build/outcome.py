"""What an nvcc run says about the submission: a `Failure` with its code, or nothing."""

from __future__ import annotations

import os
import re
import resource
import signal
from collections.abc import Callable
from pathlib import Path

from ptxgym.build import entry
from ptxgym.build.diagnostics import Report, output_lines, read_messages, scrub
from ptxgym.build.elf import exported_functions
from ptxgym.build.hints import syntax_hint
from ptxgym.build.linking import link_error
from ptxgym.build.nvcc import MAX_FILE_BYTES, MAX_OUTPUT_BYTES, MAX_SAID_BYTES, MEMORY_BYTES, Products
from ptxgym.errors import InfrastructureError, ToolchainError
from ptxgym.sandbox import Completed
from ptxgym.verdict import Diagnostic, Failure, Severity, Stage, Status

ROOM_BYTES = 4 * MAX_FILE_BYTES
"""Free space with which no compiler runs out of it."""

_SELF_CONTAINED = (
    "a submission is one self-contained file that may include only CUDA's and the C++ compiler's own headers"
)
# Tools begin their lines so. That proves nothing: `#line`, `static_assert` and `.print` can write any line. So no line
# alone puts a failure down to the machine.
_FOREIGN = re.compile(
    r"^[^\s:][^:\n]*:(?:\d+:){0,2} (?:"
    r"fatal error: (?P<a>[^\n]+?): (?:Permission denied|No such file or directory|Is a directory|Not a directory)"
    r"|Error: file not found: (?P<b>[^\n]+)"
    r"|Error: can't open (?P<c>[^\n]+?) for reading"
    r"|fatal error: '?(?P<d>[^\n']+?)'? is a directory)",
    re.MULTILINE,
)
_LIMIT_SIGNALS = {"CPU time limit exceeded": signal.SIGXCPU, "File size limit exceeded": signal.SIGXFSZ}
_LIMIT = f"({'|'.join(_LIMIT_SIGNALS)})"
_DIED = re.compile(
    rf"^nvcc error\s*: '[^'\n]+' died due to signal (\d{{1,3}})\b"
    rf"|^(?:Internal error: )?{_LIMIT}"
    rf"|^[\w.+-]+: (?:fatal error|internal compiler error): {_LIMIT} signal terminated program",
    re.MULTILINE,
)
_NO_MEMORY = re.compile(
    r"out of memory|virtual memory exhausted|[Cc]annot allocate memory|bad_alloc|memory exhausted|^LLVM ERROR: .*alloc",
    re.MULTILINE,
)
_HOST_REFUSED = re.compile(
    r"^[^\s:][^:\n]*host_config\.h:\d+:\d+: error: #error -- unsupported GNU version", re.MULTILINE
)
_FRONT_END_MEMORY = re.compile(
    rf"^{re.escape(entry.SUBMISSION_FILE)}\((?P<line>\d{{1,9}})\): catastrophic error: out of memory", re.MULTILINE
)
_CRASHES = (signal.SIGABRT, signal.SIGKILL, signal.SIGSEGV)


def judge_outcome(
    products: Products, text: str, declaration: str, timeout_s: float, compiles_nothing: Callable[[], bool]
) -> tuple[Failure | None, Report]:
    """Say what, if anything, is wrong with the outcome of nvcc, and what its tools said.

    Args:
        products: The finished run.
        text: The submission.
        declaration: Of its entry point.
        timeout_s: The CPU time that each tool had.
        compiles_nothing: Whether nvcc compiles an empty file; asked where the submission may not be to blame.

    Raises:
        InfrastructureError: if the machine, not the submission, is at fault.
        ToolchainError: if nvcc does not accept the host compiler.
    """
    completed = products.completed
    stopped = _stopped(completed, products.said, text, timeout_s)
    if stopped is not None:
        return stopped, Report((), ())
    report = read_messages(products.said, text, products.ptx_text)
    if completed.outcome == "exited" and completed.code == 0:
        return _unfit_product(products, text, declaration), report
    foreign = _FOREIGN.search(products.said)
    if foreign is not None:
        path = next(group for group in foreign.groups() if group)
        return foreign_include(path, text), report
    if _HOST_REFUSED.search(products.said) and not compiles_nothing():
        raise ToolchainError(
            f"the CUDA compiler does not accept this host compiler: {scrub(products.said.strip())[:500]}; set CXX"
        )
    if "No space left on device" in products.said and _is_full(products.ptx.parent):
        raise InfrastructureError(
            f"no disk space left for the compiler in {products.ptx.parent}; free some there, or set PTXGYM_CACHE to a "
            "folder on a larger disk"
        )
    return _compile_failure(products.said, report, text, declaration, products.ptx_text), report


# How the CUDA front end and g++ say that evaluation at compile time went on for ever.
_ENDLESS = (
    "excessive recursion at instantiation",
    "excessive constexpr function call complexity",
    "template instantiation depth exceeds",
    "constexpr' evaluation depth exceeds",
)


def _compile_failure(said: str, report: Report, text: str, declaration: str, ptx: str | None = None) -> Failure:
    if not report.errors and report.entry_errors:
        if any(entry.is_linkage_conflict(message) for message in report.entry_errors):
            return _no_entry(text, declaration, linkage=True)
        if any(entry.is_conflict(message) for message in report.entry_errors):
            return _wrong_signature(text, declaration)
    errors = report.errors
    if internal := _INTERNAL.search(said):
        return _broke_down(text, int(internal["line"]))
    if _TOOL_DIED.search(_of_tools(said)) and not any(error.line for error in errors):
        return _broke_down(text, None)
    if errors and all(error.message.startswith(_LINKER) for error in errors):
        why, line = link_error(said, text, ptx)
        at = f" at line {line}" if line else ""
        return failure("build.link", f"The linker refused the file{at}: {why}", _at(text, line, why))
    if not errors:
        first = next((line for line in output_lines(said) if line.strip()), "the compiler printed nothing")
        details = "; ".join(report.entry_errors) or scrub(first)
        return failure("build.crash", f"The compiler failed without an error of this file: {details}", ())
    if any(phrase in diagnostic.message for diagnostic in report.diagnostics for phrase in _ENDLESS):
        at = f" at line {errors[0].line}" if errors[0].line else ""
        message = f"A template or constexpr function{at} never ends; give it a base case, such as a specialisation"
        return failure("build.recursion", message, report.diagnostics)
    from_ptxas = errors[0].message.startswith("ptxas: ")
    code = "build.ptxas" if from_ptxas else "build.syntax"
    who = "The assembler of the GPU refused the PTX" if from_ptxas else "The compiler refused the file"
    at = f" at line {errors[0].line}" if errors[0].line else ""
    first = errors[0].message.removeprefix("ptxas: ").split("\n")[0]
    more = f" ({len(errors)} errors)" if len(errors) > 1 else ""
    hint = "" if from_ptxas else syntax_hint(errors[0].source_line)
    return failure(code, f"{who}{at}: {first}{more}{f'; {hint}' if hint else ''}", report.diagnostics)


_LINKER = "ld returned "
_INTERNAL = re.compile(
    rf"^{re.escape(entry.SUBMISSION_FILE)}[:(](?P<line>\d{{1,9}})[^\n ]* internal (?:compiler )?error: ", re.MULTILINE
)
_TOOL_DIED = re.compile(r"\binternal (?:compiler )?error\b|died due to signal|segmentation fault", re.IGNORECASE)


def _broke_down(text: str, line: int | None) -> Failure:
    """A compiler that fell over: what it prints then is about itself."""
    at = f" at line {line}" if line else ""
    return failure(
        "build.crash",
        f"The CUDA compiler itself failed{at}: an internal error of the compiler, not a mistake that it names in the "
        "file. Undo what was changed last, or write it in simpler pieces.",
        _at(text, line, "the compiler failed here"),
    )


def _stopped(completed: Completed, said: str, text: str, timeout_s: float) -> Failure | None:
    """A compiler process that a limit ended.

    Raises:
        InfrastructureError: if wall-clock time ran out though the compiler had little CPU time, it was killed, or it
            could not write files as large as it may.
    """
    if completed.outcome == "exited" and completed.code == 0:
        return None
    ended_by = _ending_signal(completed, said)
    if ended_by == signal.SIGXFSZ or "File too large" in _of_tools(said):
        _check_file_size_limit()
        return too_large("A file that the compiler writes")
    used_up = (completed.outcome == "timeout" and completed.cpu_s >= timeout_s * 0.5) or (
        ended_by == signal.SIGKILL and completed.cpu_s >= timeout_s * 0.9
    )
    if ended_by == signal.SIGXCPU or used_up:
        return failure(
            "build.timeout",
            f"Compilation needs more than {timeout_s:g} s of CPU time. Look for endless template recursion, huge "
            "constexpr loops and loops unrolled without bound.",
            (),
        )
    front_end = _FRONT_END_MEMORY.search(said)
    if front_end or _NO_MEMORY.search(_of_tools(said)) or (ended_by in _CRASHES and completed.peak_bytes > 3 << 30):
        return failure(
            "build.memory",
            f"Compilation needs more than {MEMORY_BYTES >> 30} GiB of memory. Look for endless template recursion and "
            "huge initialised arrays.",
            _at(text, int(front_end["line"]), "out of memory here") if front_end else (),
        )
    if completed.outcome in ("timeout", "killed") or ended_by in (signal.SIGKILL, signal.SIGTERM):
        raise InfrastructureError(
            f"the compiler was stopped after {completed.wall_s:.0f} s with {completed.cpu_s:.1f} s of CPU time; "
            "is the machine overloaded?"
        )
    return None


def _check_file_size_limit() -> None:
    """Blame the machine for a file that could not be written where it allows smaller ones than we do."""
    inherited_bytes = resource.getrlimit(resource.RLIMIT_FSIZE)[1]  # the launcher raises the soft limit to it
    if inherited_bytes != resource.RLIM_INFINITY and inherited_bytes < MAX_FILE_BYTES:
        raise InfrastructureError(
            f"the compiler may write files of at most {inherited_bytes:,} bytes here (RLIMIT_FSIZE); it needs up to "
            f"{MAX_FILE_BYTES:,}: raise the limit with `ulimit -f unlimited` where this process was started from"
        )


def _is_full(folder: Path) -> bool:
    """Whether a compiler had no room in `folder`, whose files are still there."""
    room = os.statvfs(folder)
    return room.f_bavail * room.f_frsize < ROOM_BYTES or (room.f_files > 0 and room.f_favail == 0)


def _of_tools(said: str) -> str:
    """Drop the lines in which a message about the submission may quote it."""
    return "\n".join(line for line in output_lines(said) if not line.startswith((entry.SUBMISSION_FILE, " ")))


def _ending_signal(completed: Completed, said: str) -> int:
    """Return the signal that ended nvcc or one of its tools, 0 if none did.

    Front ends say that they have reached a limit, and abort; g++ has only words for what it started. The signals that
    may be the machine's doing need nvcc's exit status: 128 + number, as shells have it (measured with 13.0).
    """
    if completed.outcome == "signalled":
        return completed.code
    died = _DIED.search(_of_tools(said))
    if died is not None:
        number, first, second = died.groups()
        ended_by = int(number) if number else _LIMIT_SIGNALS[first or second]
        if ended_by not in (signal.SIGKILL, signal.SIGTERM) or completed.code == ended_by:
            return ended_by
    return completed.code - 128 if 128 < completed.code < 128 + signal.NSIG else 0


def _unfit_product(products: Products, text: str, declaration: str) -> Failure | None:
    """Check what a successful compilation produced."""
    for file in (products.library, products.cubin, products.ptx):
        if not file.exists():
            raise InfrastructureError(f"nvcc succeeded but left no {file.name}")
        if file.stat().st_size > MAX_OUTPUT_BYTES:
            return too_large(f"The compiled {file.suffix[1:]} file of {file.stat().st_size >> 20} MiB")
    if products.completed.truncated:
        return failure(
            "build.too_large_output",
            f"The compiler says more than {MAX_SAID_BYTES >> 20} MiB of the file; what it says of registers and shared "
            "memory may be lost. Mend what it warns of.",
            (),
        )
    if entry.entry_name(declaration) not in exported_functions(products.library):
        return _no_entry(text, declaration, linkage=False)
    return None


def too_large(what: str, max_bytes: int = MAX_OUTPUT_BYTES) -> Failure:
    """Return the failure of a submission of which `what` has more than `max_bytes`."""
    return failure(
        "build.too_large_output",
        f"{what} is larger than {max_bytes >> 20} MiB. Look for macros that multiply each other, endless "
        "templates and unrolled loops; fill large arrays at run time instead of initialising them in the source.",
        (),
    )


def _no_entry(text: str, declaration: str, *, linkage: bool) -> Failure:
    name = entry.entry_name(declaration)
    written = entry.written_signature(text, name)
    if linkage or (written is not None and "static" not in written[0].split()):
        hint = (
            f'`{name}` is there but has no C linkage, or lies where others cannot see it: write `extern "C"` before it'
        )
    elif written is not None:
        hint = f"`{name}` is static, so that nobody else can call it"
    else:
        hint = f"no function `{name}` is defined"
    line = written[1] if written else None
    return failure(
        "build.no_entry",
        f"The file does not export its entry point: {hint}. Expected: {declaration}",
        _at(text, line, f"expected: {declaration}"),
    )


def _wrong_signature(text: str, declaration: str) -> Failure:
    written = entry.written_signature(text, entry.entry_name(declaration))
    found = f" Found: {written[0]}." if written else ""
    return failure(
        "build.wrong_signature",
        f"The entry point has other types than the task asks for.{found} Expected: {declaration}",
        _at(text, written[1] if written else None, f"expected: {declaration}"),
    )


def foreign_include(path: str, text: str) -> Failure:
    """Return the failure of a submission that asks for the file `path`, located in its `text`."""
    path = path.strip().strip("'\"")
    lines = text.split("\n")
    line = next((i for i, source in enumerate(lines, 1) if path in source), None)
    shown = path if line is not None else "a file"
    return failure(
        "build.foreign_include",
        f"The submission includes `{shown}`, which it cannot read: {_SELF_CONTAINED}. Paste what you need from it.",
        _at(text, line, "this file is not available"),
    )


def _at(text: str, line: int | None, message: str) -> tuple[Diagnostic, ...]:
    lines = text.split("\n")
    if line is None or not 1 <= line <= len(lines):
        return ()
    source_line = lines[line - 1].rstrip()[:240]
    return (Diagnostic(severity=Severity.ERROR, message=message, line=line, source_line=source_line),)


def failure(code: str, message: str, diagnostics: tuple[Diagnostic, ...]) -> Failure:
    """Return a `Failure` of the build stage with the status that goes with `code`."""
    status = Status.REJECTED if code in _POLICY else Status.COMPILE_ERROR
    return Failure(stage=Stage.BUILD, status=status, code=code, message=message, diagnostics=diagnostics)


_POLICY = frozenset(
    {"build.foreign_include", "build.no_entry", "build.wrong_signature", "build.too_large_output", "build.host_asm"}
)
"""Codes of files that are C++ but not what a submission may be: status `rejected`, the rest `compile_error`."""
