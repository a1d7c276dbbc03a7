"""The build stage: a submission's text becomes a `Build`, or a `Failure` that says what is wrong with it."""

from __future__ import annotations

import hashlib
import re
import shutil
from dataclasses import dataclass
from pathlib import Path

from pydantic import TypeAdapter

from ptxgym import native
from ptxgym.build import entry
from ptxgym.build.diagnostics import Report, read_messages, scrub
from ptxgym.build.elf import exported_functions
from ptxgym.build.hostfiles import compiler_files
from ptxgym.build.model import Build, KernelResources
from ptxgym.build.nvcc import Products, compile_unit, flags
from ptxgym.build.resources import kernel_resources
from ptxgym.build.text import blank_comments
from ptxgym.build.toolchain import find_toolchain
from ptxgym.build.unconfined import foreign_file_in, has_host_assembly
from ptxgym.cache import Cache
from ptxgym.errors import InfrastructureError, ToolchainError
from ptxgym.sandbox import Completed, isolation
from ptxgym.verdict import Diagnostic, Failure, Severity, Stage, Status

BUILD_REVISION = 1
"""Part of every key; raise it when the same text gives another Build."""
MAX_OUTPUT_BYTES = 64 << 20
"""Largest library, cubin or PTX of a submission."""

_KIND = "build"
_SELF_CONTAINED = (
    "a submission is one self-contained file that may include only CUDA's and the C++ compiler's own headers"
)
_HOST_ASM = (
    "The file holds inline assembly outside __device__ and __global__ functions. On this machine, where the compiler's "
    "view of the file system cannot be restricted, that is refused."
)
_FOREIGN = re.compile(
    r"fatal error: (?P<a>[^\n]+?): (?:Permission denied|No such file or directory|Is a directory|Not a directory)"
    r"|Error: file not found: (?P<b>[^\n]+)"
    r"|Error: can't open (?P<c>[^\n]+?) for reading"
    r"|fatal error: '?(?P<d>[^\n']+?)'? is a directory"
)
_LITERAL_PATH = re.compile(
    r'^[ \t]*#[ \t]*(?:include|include_next|import|embed)[ \t]*["<]([^">\n]+)[">]'
    r'|__has_(?:include|include_next|embed)[ \t]*\([ \t]*["<]([^">\n]+)[">]',
    re.MULTILINE,
)
_DIED = re.compile(
    r"died due to signal (\d+)|(CPU time limit exceeded|File size limit exceeded|Killed) signal terminated"
)
_NO_MEMORY = re.compile(
    r"out of memory|virtual memory exhausted|[Cc]annot allocate memory|bad_alloc|memory exhausted|LLVM ERROR: .*alloc"
)
_SIGNALS = {"CPU time limit exceeded": 24, "File size limit exceeded": 25, "Killed": 9}


@dataclass(frozen=True)
class _Record:
    """What a cache entry says beside its files."""

    compiler: str
    flags: tuple[str, ...]
    kernels: tuple[KernelResources, ...]
    diagnostics: tuple[Diagnostic, ...]


_RECORD = TypeAdapter(_Record)


def build(
    text: str, *, declaration: str, arch: str, cache: Cache | None = None, timeout_s: float = 60.0
) -> Build | Failure:
    """Compile a submission, or take it from the cache.

    Args:
        text: The kernel file; `submission.check_text` has accepted it.
        declaration: The exact C++ declaration of its entry point, without a semicolon.
        arch: Such as `sm_90a`.
        cache: Where builds are kept; by default the user's cache.
        timeout_s: CPU seconds per compiler process.

    Returns:
        The build, or a `Failure` of stage `build` with one of the codes `build.syntax`, `build.ptxas`,
        `build.foreign_include`, `build.no_entry`, `build.wrong_signature`, `build.timeout`, `build.memory`,
        `build.too_large_output`, `build.host_asm`, `build.crash`.

    Raises:
        ToolchainError: if there is no usable CUDA or C++ compiler.
        InfrastructureError: if the machine failed: no disk space, an overloaded host, a broken sandbox.
    """
    toolchain = find_toolchain()
    host, host_version = native.host_compiler()
    cache = cache or Cache()
    key = build_key(text, declaration=declaration, arch=arch, compiler=f"{toolchain.name}, {host_version}")
    found = cache.get(_KIND, key)
    if found is not None:
        return _load(found, key, arch)
    unconfined = isolation().filesystem == "none"
    foreign = _literal_foreign_path(text) or (foreign_file_in(text) if unconfined else None)
    if foreign is not None:
        return _foreign(foreign, text)
    with cache.staging() as folder:
        job, product = folder / "job", folder / "product"
        job.mkdir()
        product.mkdir()
        view = compiler_files(toolchain, host, host_version, cache)
        products = compile_unit(toolchain, host, view, entry.translation_unit(text, declaration), arch, job, timeout_s)
        preprocessed = job / "kernel.cpp4.ii"  # of the host pass
        if unconfined and preprocessed.exists() and has_host_assembly(preprocessed.read_text(errors="replace")):
            return _failure("build.host_asm", _HOST_ASM, ())
        failure, report = _judge(products, text, declaration, timeout_s)
        if failure is not None:
            return failure
        record = _Record(
            toolchain.name,
            flags(arch),
            kernel_resources(_read_ptx(products) or "", products.said),
            report.diagnostics,
        )
        (product / "kernel.cu").write_bytes(text.encode())
        (product / "build.json").write_bytes(_RECORD.dump_json(record))
        for file in (products.library, products.cubin, products.ptx):
            shutil.move(file, product / file.name)
        shutil.rmtree(job)
        for file in product.iterdir():
            file.rename(folder / file.name)
        product.rmdir()
        return _load(cache.publish(_KIND, key, folder), key, arch)


def build_key(text: str, *, declaration: str, arch: str, compiler: str) -> str:
    """Return the hex SHA-256 that names a build: over text, declaration, compilers, flags and build revision."""
    parts = (text, declaration, arch, compiler, *flags(arch), str(BUILD_REVISION))
    total = hashlib.sha256()
    for part in parts:
        data = part.encode()
        total.update(len(data).to_bytes(8, "little") + data)
    return total.hexdigest()


def _load(folder: Path, key: str, arch: str) -> Build:
    record = _RECORD.validate_json((folder / "build.json").read_bytes())
    return Build(
        key=key,
        arch=arch,
        folder=folder,
        source=folder / "kernel.cu",
        library=folder / "kernel.so",
        cubin=folder / "kernel.cubin",
        ptx=folder / "kernel.ptx",
        sass=folder / "kernel.sass",
        compiler=record.compiler,
        flags=record.flags,
        kernels=record.kernels,
        diagnostics=record.diagnostics,
    )


def _read_ptx(products: Products) -> str | None:
    return products.ptx.read_text(errors="replace") if products.ptx.exists() else None


def _judge(products: Products, text: str, declaration: str, timeout_s: float) -> tuple[Failure | None, Report]:
    """Say what, if anything, is wrong with the outcome of nvcc."""
    completed = products.completed
    stopped = _stopped(completed, products.said, timeout_s)
    if stopped is not None:
        return stopped, Report((), ())
    report = read_messages(products.said, text, _read_ptx(products))
    if completed.outcome == "exited" and completed.code == 0:
        return _unfit_product(products, text, declaration), report
    foreign = _FOREIGN.search(products.said)
    if foreign is not None:
        path = next(group for group in foreign.groups() if group)
        return _foreign(path, text), report
    if "unsupported GNU version" in products.said and "host_config.h" in products.said:
        raise ToolchainError(
            f"the CUDA compiler does not accept this host compiler: {scrub(products.said.strip())[:500]}; set CXX"
        )
    if "No space left on device" in products.said:
        raise InfrastructureError(f"no disk space left for the compiler in {products.ptx.parent}")
    return _compile_failure(products.said, report, text, declaration), report


def _compile_failure(said: str, report: Report, text: str, declaration: str) -> Failure:
    if not report.errors and report.entry_errors:
        if any(entry.is_linkage_conflict(message) for message in report.entry_errors):
            return _no_entry(text, declaration, linkage=True)
        if any(entry.is_conflict(message) for message in report.entry_errors):
            return _wrong_signature(text, declaration)
    errors = report.errors
    if not errors:
        first = next((line for line in said.splitlines() if line.strip()), "the compiler printed nothing")
        details = "; ".join(report.entry_errors) or scrub(first)
        return _failure("build.crash", f"The compiler failed without an error of this file: {details}", ())
    from_ptxas = errors[0].message.startswith("ptxas: ")
    code = "build.ptxas" if from_ptxas else "build.syntax"
    who = "The assembler of the GPU refused the PTX" if from_ptxas else "The compiler refused the file"
    at = f" at line {errors[0].line}" if errors[0].line else ""
    first = errors[0].message.removeprefix("ptxas: ").split("\n")[0]
    more = f" ({len(errors)} errors)" if len(errors) > 1 else ""
    return _failure(code, f"{who}{at}: {first}{more}", report.diagnostics)


def _stopped(completed: Completed, said: str, timeout_s: float) -> Failure | None:
    """A compiler process that a limit ended.

    Raises:
        InfrastructureError: if wall-clock time ran out though the compiler had little CPU time, or it was killed.
    """
    died = _DIED.search(said)
    signal = (int(died.group(1)) if died.group(1) else _SIGNALS[died.group(2)]) if died else 0
    if completed.outcome == "signalled":
        signal = completed.code
    succeeded = completed.outcome == "exited" and completed.code == 0
    if succeeded:
        return None
    if (
        signal == 24
        or (completed.outcome == "timeout" and completed.cpu_s >= timeout_s * 0.5)
        or (signal == 9 and completed.cpu_s >= timeout_s * 0.9)
    ):
        return _failure(
            "build.timeout",
            f"Compilation needs more than {timeout_s:g} s of CPU time. Look for endless template recursion, huge "
            "constexpr loops and loops unrolled without bound.",
            (),
        )
    if _NO_MEMORY.search(said) or (signal in (6, 9, 11) and completed.peak_bytes > 3 << 30):
        return _failure(
            "build.memory",
            "Compilation needs more than 4 GiB of memory. Look for endless template recursion and huge initialised "
            "arrays.",
            (),
        )
    if signal == 25:
        return _too_large("A file that the compiler writes")
    if completed.outcome in ("timeout", "killed") or signal in (9, 15):
        raise InfrastructureError(
            f"the compiler was stopped after {completed.wall_s:.0f} s with {completed.cpu_s:.1f} s of CPU time; "
            "is the machine overloaded?"
        )
    return None


def _unfit_product(products: Products, text: str, declaration: str) -> Failure | None:
    """Check what a successful compilation produced."""
    for file in (products.library, products.cubin, products.ptx):
        if not file.exists():
            raise InfrastructureError(f"nvcc succeeded but left no {file.name}")
        if file.stat().st_size > MAX_OUTPUT_BYTES:
            return _too_large(f"The compiled {file.suffix[1:]} file of {file.stat().st_size >> 20} MiB")
    if entry.entry_name(declaration) not in exported_functions(products.library):
        return _no_entry(text, declaration, linkage=False)
    return None


def _too_large(what: str) -> Failure:
    return _failure(
        "build.too_large_output",
        f"{what} is larger than {MAX_OUTPUT_BYTES >> 20} MiB. Do not initialise large arrays in the source; "
        "fill them at run time.",
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
    return _failure(
        "build.no_entry",
        f"The file does not export its entry point: {hint}. Expected: {declaration}",
        _at(text, line, f"expected: {declaration}"),
    )


def _wrong_signature(text: str, declaration: str) -> Failure:
    written = entry.written_signature(text, entry.entry_name(declaration))
    found = f" Found: {written[0]}." if written else ""
    return _failure(
        "build.wrong_signature",
        f"The entry point has other types than the task asks for.{found} Expected: {declaration}",
        _at(text, written[1] if written else None, f"expected: {declaration}"),
    )


def _literal_foreign_path(text: str) -> str | None:
    """Find absolute and upward paths before anything is opened, so that the answer does not tell what exists."""
    for match in _LITERAL_PATH.finditer(blank_comments(text)):
        path = match.group(1) or match.group(2)
        if path.startswith(("/", "~")) or ".." in path.split("/"):
            return path
    return None


def _foreign(path: str, text: str) -> Failure:
    path = path.strip().strip("'\"")
    lines = text.split("\n")
    line = next((i for i, source in enumerate(lines, 1) if path in source), None)
    shown = path if line is not None else "a file"
    return _failure(
        "build.foreign_include",
        f"The submission includes `{shown}`, which it cannot read: {_SELF_CONTAINED}. Paste what you need from it.",
        _at(text, line, "this file is not available"),
    )


def _at(text: str, line: int | None, message: str) -> tuple[Diagnostic, ...]:
    if line is None:
        return ()
    source_line = text.split("\n")[line - 1].rstrip()[:240]
    return (Diagnostic(severity=Severity.ERROR, message=message, line=line, source_line=source_line),)


def _failure(code: str, message: str, diagnostics: tuple[Diagnostic, ...]) -> Failure:
    status = Status.REJECTED if code in _POLICY else Status.COMPILE_ERROR
    return Failure(stage=Stage.BUILD, status=status, code=code, message=message, diagnostics=diagnostics)


_POLICY = frozenset(
    {"build.foreign_include", "build.no_entry", "build.wrong_signature", "build.too_large_output", "build.host_asm"}
)
"""Codes of files that are C++ but not what a submission may be: status `rejected`, the rest `compile_error`."""
