"""Which files of the machine the compiler must see, and no others."""

from __future__ import annotations

import functools
import hashlib
import re
from dataclasses import dataclass
from pathlib import Path

from pydantic import TypeAdapter

from ptxgym.build.toolchain import Toolchain
from ptxgym.cache import Cache
from ptxgym.errors import ToolchainError
from ptxgym.tools import run_tool

# What `g++ -shared` links: start files, the C++ runtime and what their linker scripts name.
_LINKED = (
    *("crti.o", "crtn.o", "crtbeginS.o", "crtendS.o", "libstdc++.so", "libm.so", "libm.so.6", "libmvec.so.1"),
    *("libc.so", "libc.so.6", "libc_nonshared.a", "libgcc_s.so", "libgcc_s.so.1", "libgcc.a", "libgcc_eh.a"),
    *("libpthread.a", "libdl.a", "librt.a"),
)
_TOOLKIT_FOLDERS = ("bin", "include", "nvvm", "lib", "lib64", "targets")


@dataclass(frozen=True)
class FileView:
    """Paths that a compiler process can open."""

    read: tuple[Path, ...]
    execute: tuple[Path, ...]


_VIEW = TypeAdapter(FileView)
_KIND = "compiler-files"


def compiler_files(toolchain: Toolchain, host: str, host_version: str, cache: Cache) -> FileView:
    """Return what `find_files` says; asking the compiler takes a third of a second, so the answer is kept in `cache`.

    Raises:
        ToolchainError: if the host compiler does not answer.
    """
    identity = f"{toolchain.root} {toolchain.version} {Path(host).resolve()} {host_version}"
    key = hashlib.sha256(identity.encode()).hexdigest()
    entry = cache.get(_KIND, key)
    if entry is not None:
        view = _VIEW.validate_json((entry / "view.json").read_bytes())
        if all(path.exists() for path in (*view.read, *view.execute)):
            return view
    view = find_files(toolchain, host)
    if entry is None:
        with cache.staging() as folder:
            (folder / "view.json").write_bytes(_VIEW.dump_json(view))
            cache.publish(_KIND, key, folder)
    return view


def find_files(toolchain: Toolchain, host: str) -> FileView:
    """Return the toolkit's folders, the include folders of the host compiler `host`, and its programs and libraries.

    Programs and libraries are named one by one, because folders such as `/usr/lib` may hold anything, Python packages
    included.

    Raises:
        ToolchainError: if the host compiler does not answer.
    """
    toolkit = [toolchain.root / name for name in _TOOLKIT_FOLDERS] + [toolchain.include]
    private = Path(_ask(host, "-print-prog-name=cc1plus")).parent
    programs = [Path(host).resolve(), Path("/bin/sh"), *_siblings(host), *(_which(host, n) for n in ("as", "ld"))]
    parts = [private / name for name in ("cc1plus", "collect2", "liblto_plugin.so")]
    tools = [toolchain.root / "bin" / name for name in ("nvcc", "cudafe++", "ptxas", "fatbinary")]
    libraries = _shared_libraries([*programs, *parts, *tools, toolchain.root / "nvvm" / "bin" / "cicc"])
    linked = [Path(found) for name in _LINKED if (found := _ask(host, f"-print-file-name={name}")) != name]
    # Of GCC itself, start files and libraries: Debian's 12 keeps them beside its programs, Ubuntu's 13 apart.
    own = Path(_ask(host, "-print-file-name=libgcc.a")).parent
    read = [*_include_folders(host), *linked, own, Path("/etc/ld.so.cache")]
    execute = [*toolkit, private, *programs, *libraries]
    return FileView(_existing(read), _existing(execute))


def _siblings(host: str) -> list[Path]:
    """The C compiler beside the C++ compiler: nvcc calls both."""
    path = Path(host)
    return [path, path.with_name(path.name.replace("g++", "gcc").replace("clang++", "clang"))]


def _which(host: str, tool: str) -> Path:
    named = Path(_ask(host, f"-print-prog-name={tool}"))
    return named if named.is_absolute() else Path("/usr/bin") / named


def _include_folders(host: str) -> list[Path]:
    done = run_tool([host, "-E", "-v", "-x", "c++", "/dev/null"], env={"PATH": "/usr/bin:/bin", "LC_ALL": "C"})
    listed = re.search(r"#include <\.\.\.> search starts here:\n(.*?)End of search list", done.stderr, re.DOTALL)
    if listed is None:
        raise ToolchainError(f"`{host} -E -v` does not name its include folders; set CXX to g++")
    return [Path(line.strip()) for line in listed.group(1).splitlines()]


def _shared_libraries(binaries: list[Path]) -> list[Path]:
    """Libraries and dynamic loader of programs, as ldd(1) resolves them; none for scripts and static programs."""
    present = dict.fromkeys(binary.resolve() for binary in binaries if binary.is_file())
    done = run_tool(["ldd", *present])
    return sorted({Path(path) for path in re.findall(r"(?:=> |^\s*)(/\S+) \(0x", done.stdout, re.MULTILINE)})


@functools.cache
def _ask(host: str, question: str) -> str:
    done = run_tool([host, question])
    if done.returncode:
        raise ToolchainError(f"`{host} {question}` failed: {done.stderr.strip()[:300]}; set CXX to g++")
    return done.stdout.strip()


def _existing(paths: list[Path]) -> tuple[Path, ...]:
    return tuple(dict.fromkeys(path for path in paths if path.exists()))
