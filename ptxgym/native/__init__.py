"""The C++ parts of ptxgym, compiled at first use by the host compiler and kept in the user's cache.

Each folder beside this file holds one or more targets. A folder without `native.toml` is one shared library of all its
`*.cpp`, named after the folder. A `native.toml` has one table per target; the target `cudart` of the folder `recorder`
is asked for as `library("recorder/cudart")`, a target named like its folder as `library("emulator")`. Keys of a table,
all optional:

=============== ========================================================================================
`kind`          `"library"` (default) or `"program"`
`sources`       globs relative to the folder, default `["*.cpp"]`
`output`        file name, default `lib<target>.so` or `<target>`
`soname`        the library's `DT_SONAME`
`cuda_headers`  true if the sources include `cuda.h` and its kin (needs a CUDA toolkit on the machine)
`include`       further folders beside this file whose headers the sources use
`compile_flags` added to `COMMON_FLAGS`
`link_flags`    added when linking
=============== ========================================================================================

Objects and results are keyed by sources, headers, compiler, flags and CPU, since they are built with `-march=native`.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import logging
import os
import platform
import shutil
import tomllib
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Literal

from pydantic import ValidationError

from ptxgym.cache import Cache, default_cache
from ptxgym.errors import ContentError, InfrastructureError, ToolchainError, UnknownNameError
from ptxgym.tools import run_tool
from ptxgym.verdict import Value

NATIVE = Path(__file__).parent
COMMON_FLAGS = (
    "-std=c++17",
    "-O3",
    "-march=native",
    "-ffp-contract=off",  # a fused multiply-add only where PTX says fma
    "-fPIC",
    "-pthread",
    "-Wall",
    "-Wextra",
)
_HEADER_SUFFIXES = frozenset({".h", ".hpp", ".def", ".inc"})


class Target(Value):
    """One shared library or program; see the module's docstring for the keys of `native.toml`."""

    name: str
    folder: Path
    kind: Literal["library", "program"] = "library"
    sources: tuple[str, ...] = ("*.cpp",)
    output: str = ""
    soname: str = ""
    cuda_headers: bool = False
    include: tuple[str, ...] = ()
    compile_flags: tuple[str, ...] = ()
    link_flags: tuple[str, ...] = ()

    def source_files(self) -> list[Path]:
        """Return the sources, sorted."""
        return sorted({file for pattern in self.sources for file in self.folder.glob(pattern)})

    def header_files(self) -> list[Path]:
        """Return every header that the sources may include from this package, sorted."""
        folders = [self.folder, *(NATIVE / name for name in self.include)]
        return sorted(f for folder in folders for f in folder.rglob("*") if f.suffix in _HEADER_SUFFIXES)


Listener = Callable[[str], None]


def _log(line: str) -> None:
    """Say what the first use waits for: on standard error, where nobody has set up logging."""
    logging.getLogger(__name__).warning("%s (once per machine; it takes some minutes in all)", line)


_listener: Listener = _log


@contextlib.contextmanager
def announcing(listener: Listener) -> Iterator[None]:
    """Tell `listener`, while inside, of every target before it is compiled at first use: a line that names it.

    Otherwise it goes to the logger `ptxgym.native`.
    """
    global _listener
    before, _listener = _listener, listener
    try:
        yield
    finally:
        _listener = before


def library(name: str) -> Path:
    """Return the path of the shared library `name`, building it if this machine has not done so yet.

    Raises:
        UnknownNameError: if there is no such target.
        ToolchainError: if there is no C++ compiler (or no CUDA headers, where they are needed).
        InfrastructureError: if it does not compile.
    """
    return _built(name, "library")


def program(name: str) -> Path:
    """Return the path of the program `name`, building it if this machine has not done so yet; raises as `library`."""
    return _built(name, "program")


@functools.cache
def targets() -> dict[str, Target]:
    """Return all targets by name."""
    found: dict[str, Target] = {}
    for folder in sorted(NATIVE.iterdir()):
        if not folder.is_dir() or not any(folder.rglob("*.cpp")):
            continue
        declaration = folder / "native.toml"
        tables = tomllib.loads(declaration.read_text(encoding="utf-8")) if declaration.exists() else {folder.name: {}}
        for key, table in tables.items():
            name = folder.name if key == folder.name else f"{folder.name}/{key}"
            found[name] = _target(name, folder, key, table, declaration)
    return found


def _target(name: str, folder: Path, key: str, table: dict[str, Any], declaration: Path) -> Target:
    output = f"lib{key}.so" if table.get("kind", "library") == "library" else key
    try:
        return Target(**{"name": name, "folder": folder, "output": output, **table})
    except ValidationError as error:
        wrong = "; ".join(f"{'.'.join(map(str, item['loc']))}: {item['msg']}" for item in error.errors())
        raise ContentError(f"{declaration}, table [{key}]: {wrong}") from error


def build_all(report: Listener, names: Iterable[str]) -> None:
    """Build the targets `names`; `report` gets a short line for each, and the compiler's warnings.

    Raises:
        UnknownNameError, ToolchainError, InfrastructureError: as `library`.
    """
    for name in names:
        target = targets().get(name)
        if target is None:
            raise UnknownNameError(f"no native target is named {name!r}; there are: {', '.join(targets())}")
        path = build(target, report=report)
        report(f"{name}: {path}")


@functools.cache
def _built(name: str, kind: str) -> Path:
    target = targets().get(name)
    if target is None or target.kind != kind:
        known = ", ".join(sorted(n for n, t in targets().items() if t.kind == kind))
        raise UnknownNameError(f"no native {kind} is named {name!r}; there are: {known}")
    return build(target)


def _unheard(line: str) -> None:
    pass


def build(target: Target, *, cache: Cache | None = None, report: Listener = _unheard) -> Path:
    """Compile and link `target` unless the cache has it; return the path of the result.

    `report` gets a line before something is compiled, and the compiler's warnings; the listener of `announcing` the
    first alone.

    Raises:
        ToolchainError: if there is no C++ compiler, or no CUDA headers where they are needed.
        InfrastructureError: if a source does not compile or link; the message holds the compiler's output.
    """
    cache = cache or default_cache()
    compiler, version = host_compiler()
    flags = [*COMMON_FLAGS, *target.compile_flags, f"-I{target.folder}", *(f"-I{NATIVE / n}" for n in target.include)]
    identity = [version, cpu(), *COMMON_FLAGS, *target.compile_flags]
    if target.cuda_headers:
        from ptxgym.build.toolchain import find_toolchain  # not needed, and so not asked for, by most targets

        toolkit = find_toolchain()
        flags.append(f"-isystem{toolkit.include}")
        identity.append(toolkit.version)
    headers = [_digest(file.read_bytes()) for file in target.header_files()]
    objects = {file: _digest(*identity, file.name, *headers, file.read_bytes()) for file in target.source_files()}
    key = _digest(target.kind, target.output, target.soname, *target.link_flags, "objects", *objects.values())
    entry = cache.get("native", key, forever=True)
    if entry is not None:
        return entry / target.output
    with cache.lock(f"native-{target.name.replace('/', '-')}"):
        entry = cache.get("native", key, forever=True)
        if entry is not None:
            return entry / target.output
        begun = f"{target.name}: compiling {len(objects)} file{'s' if len(objects) != 1 else ''}"
        report(begun)
        _listener(begun)
        with cache.staging() as folder, ThreadPoolExecutor(2) as pool:
            compiled = list(
                pool.map(lambda item: _compile(cache, compiler, flags, *item, report=report), objects.items())
            )
            output = folder / target.output
            shared = ["-shared"] if target.kind == "library" else []
            if target.soname:
                shared.append(f"-Wl,-soname,{target.soname}")
            _invoke([compiler, *COMMON_FLAGS, *shared, *map(str, compiled), "-o", str(output), *target.link_flags])
            cache.publish("native", key, folder)
        built = cache.get("native", key, forever=True)
        if built is None:
            raise InfrastructureError(f"the cache under {cache.root} lost {target.name} as soon as it was built")
        return built / target.output


def _compile(cache: Cache, compiler: str, flags: list[str], source: Path, key: str, *, report: Listener) -> Path:
    entry = cache.get("object", key)
    if entry is None:
        with cache.staging() as folder:
            warnings = _invoke([compiler, *flags, "-c", str(source), "-o", str(folder / "unit.o")])
            if warnings:
                report(warnings)
            entry = cache.publish("object", key, folder)
    return entry / "unit.o"


def _invoke(command: list[str]) -> str:
    """Run a compiler; return what it said."""
    done = run_tool(command)
    said = (done.stdout + done.stderr).strip()
    if done.returncode:
        raise InfrastructureError(f"`{' '.join(command)}` failed with status {done.returncode}:\n{said[-8000:]}")
    return said


@functools.cache
def host_compiler() -> tuple[str, str]:
    """Return the path of the host C++ compiler (`$CXX`, else g++) and its version.

    Raises:
        ToolchainError: if there is none.
        InfrastructureError: if it cannot be started.
    """
    wanted = os.environ.get("CXX") or "g++"
    found = shutil.which(wanted)
    if found is None:
        raise ToolchainError(
            f"no C++ compiler: `{wanted}` is not on PATH; install the Debian or Ubuntu package g++ "
            "(`apt-get install g++`), or set CXX"
        )
    done = run_tool([found, "--version"])
    said = done.stdout.strip().splitlines()
    if done.returncode or not said:
        why = done.stderr.strip()[:500] or f"exit status {done.returncode}, and it said nothing"
        raise ToolchainError(f"`{found} --version` failed: {why}; set CXX to a C++ compiler")
    return found, said[0]


@functools.cache
def cpu() -> str:
    """Return what `-march=native` depends on: machine, model name and feature flags of the first CPU."""
    wanted = ("vendor_id", "model name", "flags", "Features", "CPU part")
    described: dict[str, str] = {}
    for line in Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines():
        field, _, value = line.partition(":")
        if field.strip() in wanted:
            described.setdefault(field.strip(), value.strip())
    return " ".join([platform.machine(), *described.values()])


def _digest(*parts: str | bytes) -> str:
    total = hashlib.sha256()
    for part in parts:
        data = part.encode() if isinstance(part, str) else part
        total.update(len(data).to_bytes(8, "little") + data)
    return total.hexdigest()
