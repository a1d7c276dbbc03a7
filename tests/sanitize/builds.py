"""How native code is built with sanitizers.

AddressSanitizer needs its runtime in the process, as much address space as there is, and /proc. The recorder and the
launcher run where there is none of that. There, what UndefinedBehaviorSanitizer finds is a trap, which needs nothing at
run time, and what the C and C++ libraries find by themselves an abort. Where they are `unconfined` they have both
sanitizers, as the emulator and the executor always do.
"""

from __future__ import annotations

import platform
from pathlib import Path
from typing import Any

import pytest

from ptxgym import native

CONFINED = frozenset({"recorder", "sandbox"})
_ALL = ("-fsanitize=undefined", "-D_GLIBCXX_ASSERTIONS")
_TRAPS = ("-fsanitize-undefined-trap-on-error", "-U_FORTIFY_SOURCE", "-D_FORTIFY_SOURCE=3")
_REPORTS = ("-O0", "-g1", "-fno-omit-frame-pointer", "-fsanitize=address", "-fno-sanitize-recover=undefined")
# g++ 12 without optimization fails on vectors of 512 bits: "unrecognizable insn".
_PLAIN = ("-mno-avx512f",) if platform.machine() == "x86_64" else ()
# The recorder's own `malloc` and its kin, which submissions call, take their memory from the sanitizer. They are called
# before there is any shadow memory; which file has them is a macro, so that the keys of what is built know of it.
_ALLOCATES = (
    *(f"-D__libc_{name}=__interceptor_{name}" for name in ("malloc", "calloc", "realloc", "memalign")),
    "-DNOT_INSTRUMENTED=interpose.cpp",
)


def traps(name: str, unconfined: bool) -> bool:
    """Say whether a fault of the target `name` is a trap, not a report."""
    return name in CONFINED and not unconfined


def sanitized(target: native.Target, unconfined: bool) -> native.Target:
    """Return the target with the flags of sanitizers."""
    flags = (*_ALL, *(_TRAPS if traps(target.name, unconfined) else (*_REPORTS, *_PLAIN)))
    compile_flags = (*target.compile_flags, *flags, *(_ALLOCATES if target.name == "recorder" and unconfined else ()))
    return target.model_copy(update={"compile_flags": compile_flags, "link_flags": (*target.link_flags, *flags)})


def use(patch: pytest.MonkeyPatch, unconfined: bool) -> None:
    """Build what this process asks for of ptxgym's own with sanitizers."""
    build, compile_one = native.build, native._compile

    def build_sanitized(target: native.Target, **keywords: Any) -> Path:
        own = target.folder.parent == native.NATIVE
        return build(sanitized(target, unconfined) if own else target, **keywords)

    def compile_before(cache: Any, compiler: str, flags: list[str], source: Path, key: str, **keywords: Any) -> Path:
        if f"-DNOT_INSTRUMENTED={source.name}" in flags:
            flags = [*flags, "-fno-sanitize=address"]
        return compile_one(cache, compiler, flags, source, key, **keywords)

    patch.setattr(native, "build", build_sanitized)
    patch.setattr(native, "_compile", compile_before)
