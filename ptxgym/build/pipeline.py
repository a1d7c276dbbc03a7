"""The build stage: a submission's text becomes a `Build`, or a `Failure` that says what is wrong with it."""

from __future__ import annotations

import hashlib
import shutil
from dataclasses import dataclass
from pathlib import Path

from pydantic import TypeAdapter

from ptxgym import native
from ptxgym.build import entry
from ptxgym.build.hostfiles import compiler_files
from ptxgym.build.model import Build, KernelResources
from ptxgym.build.nvcc import MAX_PREPROCESSED_BYTES, compile_unit, flags
from ptxgym.build.outcome import failure, foreign_include, judge_outcome, too_large
from ptxgym.build.resources import kernel_resources
from ptxgym.build.text import literal_foreign_path
from ptxgym.build.toolchain import find_toolchain
from ptxgym.build.unconfined import foreign_file_in, has_host_assembly
from ptxgym.cache import Cache, default_cache
from ptxgym.sandbox import isolation
from ptxgym.verdict import Diagnostic, Failure

BUILD_REVISION = 3
"""Part of every key; raise it when the same text gives another Build."""
_KIND = "build"
_HOST_ASM = (
    "The file holds inline assembly outside __device__ and __global__ functions. On this machine, where the compiler's "
    "view of the file system cannot be restricted, that is refused."
)


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
        `build.too_large_output`, `build.host_asm`, `build.link`, `build.crash`.

    Raises:
        ToolchainError: if there is no usable CUDA or C++ compiler.
        InfrastructureError: if the machine failed: no disk space, an overloaded host, a broken sandbox.
    """
    toolchain = find_toolchain()
    host, host_version = native.host_compiler()
    cache = cache or default_cache()
    key = build_key(text, declaration=declaration, arch=arch, compiler=f"{toolchain.name}, {host_version}")
    found = cache.get(_KIND, key)
    if found is not None:
        return _load(found, key, arch)
    unconfined = isolation().filesystem == "none"
    foreign = literal_foreign_path(text) or (foreign_file_in(text) if unconfined else None)
    if foreign is not None:
        return foreign_include(foreign, text)
    with cache.staging() as folder:
        job = folder / "job"
        job.mkdir()
        view = compiler_files(toolchain, host, host_version, cache)
        products = compile_unit(toolchain, host, view, entry.translation_unit(text, declaration), arch, job, timeout_s)
        if unconfined:
            preprocessed = products.preprocessed
            if preprocessed is None:
                return too_large("The preprocessed file", MAX_PREPROCESSED_BYTES)
            if has_host_assembly(preprocessed):
                return failure("build.host_asm", _HOST_ASM, ())

        def compiles_nothing() -> bool:
            (empty := folder / "empty").mkdir()
            return compile_unit(toolchain, host, view, "", arch, empty, timeout_s).completed.code == 0

        refusal, report = judge_outcome(products, text, declaration, timeout_s, compiles_nothing)
        if refusal is not None:
            return refusal
        record = _Record(
            toolchain.name,
            flags(arch),
            kernel_resources(products.ptx_text or "", products.said),
            report.diagnostics,
        )
        (folder / "kernel.cu").write_bytes(text.encode())
        (folder / "build.json").write_bytes(_RECORD.dump_json(record))
        for file in (products.library, products.cubin, products.ptx):
            file.rename(folder / file.name)
        shutil.rmtree(job)
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
